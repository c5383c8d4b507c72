//! Where a server listens: several addresses, sockets in the file system, sockets of a service manager, TLS; and what it tells the
//! service manager.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::support::command::{ended, program, scratch, text};
use crate::support::process::{eventually, kill};

/// A server that is ended with the test, and the lines in which it says where it listens.
struct Listening(Child, Vec<String>);

impl Listening {
    fn start(command: &mut Command, n: usize) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let lines = out.lines().take(n).map(|line| line.expect("a line"));
        let lines = lines.map(|line| {
            let address = line.strip_prefix("listening on ");
            address.unwrap_or_else(|| panic!("{line}")).to_owned()
        });
        let lines = lines.collect();
        Self(child, lines)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(options: &[&str]) -> Command {
    program(&[&["serve", "--in-process", "--threads", "1"], options].concat())
}

const REQUEST: &[u8] = b"GET /version HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

/// The answer to a request over a connection, to its end.
fn asked(mut stream: impl std::io::Read + std::io::Write) -> String {
    stream.write_all(REQUEST).expect("it is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

fn is_fine(answer: &str) -> bool {
    answer.starts_with("HTTP/1.1 200") && answer.contains("version")
}

#[test]
fn a_server_listens_on_several_addresses_and_in_the_file_system() {
    let folder = scratch();
    let path = folder.path().join("bench.sock");
    // One that was killed leaves its socket.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
    let unix = format!("unix:{}", path.display());
    let all = [
        "--listen",
        "127.0.0.1:0",
        "--listen",
        "127.0.0.1:0",
        "--listen",
        &unix,
    ];
    let mut server = Listening::start(&mut serve(&all), 3);
    for address in &server.1[..2] {
        let address = address.strip_prefix("http://").expect("an address");
        let stream = TcpStream::connect(address).expect("it listens");
        assert!(is_fine(&asked(stream)), "{address}");
    }
    assert_eq!(server.1[2], unix);
    assert!(is_fine(&asked(
        UnixStream::connect(&path).expect("it listens")
    )));
    let ran = ended(&mut serve(&["--listen", &unix]));
    assert!(
        ran.err.contains("another server listens there"),
        "{}",
        ran.err
    );
    assert!(is_fine(&asked(
        UnixStream::connect(&path).expect("it listens")
    )));
    // A signal lets it end by itself, with its socket.
    kill(server.0.id(), Signal::TERM);
    assert!(server.0.wait().expect("it ends").success());
    assert!(!path.exists());
}

#[test]
fn an_address_that_others_reach_needs_keys() {
    let ran = ended(&mut serve(&[
        "--listen",
        "127.0.0.1:0",
        "--listen",
        "0.0.0.0:0",
    ]));
    assert!(!ran.is_fine());
    assert!(
        ran.err.contains("--listen 0.0.0.0:") && ran.err.contains("--api-key"),
        "{}",
        ran.err
    );
}

/// Writes a certificate for `localhost` and its key.
fn certificate(folder: &Path) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("made");
    let pem = made.cert.pem();
    std::fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).expect("written");
    std::fs::write(folder.join("cert.pem"), &pem).expect("written");
    CertificateDer::from_pem_slice(pem.as_bytes()).expect("sound")
}

/// The answer of a server over TLS, if it has this certificate.
fn asked_by_tls(address: &str, certificate: &CertificateDer<'static>) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "localhost".try_into().expect("a name");
    let client = ClientConnection::new(Arc::new(config), name).expect("a client");
    let stream = TcpStream::connect(address)?;
    let mut stream = StreamOwned::new(client, stream);
    stream.write_all(REQUEST)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn a_certificate_is_read_again_and_one_that_does_not_fit_is_not() {
    let folder = scratch();
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| folder.path().join(name));
    let first = certificate(folder.path());
    let options = [
        "--listen",
        "127.0.0.1:0",
        "--tls-cert",
        text(&cert),
        "--tls-key",
        text(&key),
    ];
    let server = Listening::start(&mut serve(&options), 1);
    let address = server.1[0].strip_prefix("https://").expect("an address");
    assert!(is_fine(&asked_by_tls(address, &first).expect("an answer")));
    // Who speaks no TLS gets no answer, and the server goes on.
    let mut plain = TcpStream::connect(address).expect("it listens");
    plain.write_all(REQUEST).expect("it is sent");
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"));

    let second = certificate(folder.path());
    kill(server.0.id(), Signal::HUP);
    eventually("the new certificate holds", || {
        asked_by_tls(address, &second).is_ok()
    });
    assert!(asked_by_tls(address, &first).is_err());
    std::fs::write(&key, "no key").expect("written");
    kill(server.0.id(), Signal::HUP);
    std::thread::sleep(Duration::from_millis(300));
    assert!(is_fine(
        &asked_by_tls(address, &second).expect("the old one holds")
    ));

    let ran = ended(&mut serve(&options));
    assert!(!ran.is_fine() && ran.err.contains("key.pem"), "{}", ran.err);
}

#[test]
fn a_service_manager_is_told_and_may_open_the_socket() {
    let folder = scratch();
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("bound");
    manager
        .set_read_timeout(Some(Duration::from_secs(60)))
        .expect("a time");
    let mut told = Vec::new();
    let mut until = |wanted: &str| {
        let mut buffer = [0; 200];
        loop {
            let n = manager.recv(&mut buffer).expect("a message");
            let message = String::from_utf8_lossy(&buffer[..n]).into_owned();
            let is_it = message.starts_with(wanted);
            told.push(message);
            if is_it {
                return told.concat();
            }
        }
    };
    let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = socket.local_addr().expect("bound");
    // The shell puts the socket where systemd does, and becomes the server.
    let script = format!(
        "exec 3<&0 0</dev/null; LISTEN_FDS=1 LISTEN_PID=$$ WATCHDOG_USEC=100000 NOTIFY_SOCKET={} exec \"$0\" serve --in-process --threads 1",
        path.display()
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_bench")]);
    // A shell may know descriptors of one digit alone.
    command.stdin(Stdio::from(OwnedFd::from(socket)));
    let mut server = Listening::start(&mut command, 1);
    assert_eq!(server.1[0], format!("http://{address}"));
    until("READY=1");
    until("WATCHDOG=1");
    assert!(is_fine(&asked(
        TcpStream::connect(address).expect("it listens")
    )));
    kill(server.0.id(), Signal::HUP);
    assert!(until("RELOADING=1").contains("MONOTONIC_USEC="));
    until("READY=1");
    kill(server.0.id(), Signal::TERM);
    until("STOPPING=1");
    assert!(server.0.wait().expect("it ends").success());
}

#[test]
fn a_log_that_was_moved_is_begun_anew() {
    let folder = scratch();
    let [log, moved] = ["log", "log.1"].map(|name| folder.path().join(name));
    let options = ["--listen", "127.0.0.1:0", "--log", text(&log)];
    let server = Listening::start(&mut serve(&options), 1);
    let address = server.1[0].strip_prefix("http://").expect("an address");
    let ask = || asked(TcpStream::connect(address).expect("it listens"));
    ask();
    std::fs::rename(&log, &moved).expect("moved");
    let before = std::fs::read(&moved).expect("a log").len();
    assert!(before > 0);
    eventually("a new log is begun", || {
        ask();
        std::fs::read(&log).is_ok_and(|text| !text.is_empty())
    });
}
