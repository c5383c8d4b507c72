//! Where clients connect: addresses with ports, Unix-domain sockets, and sockets that a service manager has opened.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::path::PathBuf;
use std::str::FromStr;

use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::net::UnixListener;

use super::stream::ClientStream;

/// Who may connect to a Unix-domain socket, unless its address says otherwise: the user and the group of the server.
const USUAL_MODE: u32 = 0o660;

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// An IP address with a port; 0 = any free port.
    Tcp(SocketAddr),
    /// The path of a Unix-domain socket, and its permissions.
    Unix(PathBuf, u32),
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(path) = text.strip_prefix("unix:") else {
            let expected = "expected IP:PORT, [IPv6]:PORT or unix:PATH";
            return text.parse().map(Self::Tcp).map_err(|_| expected.to_owned());
        };
        let (path, mode) = match path.rsplit_once(",mode=") {
            None => (path, USUAL_MODE),
            Some((path, mode)) => {
                let mode = u32::from_str_radix(mode, 8).ok();
                let mode = mode.filter(|mode| *mode <= 0o777);
                (
                    path,
                    mode.ok_or("`mode`, expected octal digits such as 0660")?,
                )
            }
        };
        match path {
            "" => Err("expected a path after `unix:`".to_owned()),
            path => Ok(Self::Unix(path.into(), mode)),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path, _) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// An open socket on which clients connect.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    address: ListenAddress,
    /// Whether the socket's file is removed at the end.
    is_own: bool,
}

#[derive(Debug)]
enum Socket {
    Tcp(StdTcpListener),
    #[cfg(unix)]
    Unix(std::os::unix::net::UnixListener),
}

impl Listener {
    /// Opens a socket. The file of one whose server has ended is replaced.
    ///
    /// # Errors
    /// The address is in use, or the system refuses it.
    pub fn bind(address: &ListenAddress) -> io::Result<Self> {
        let (socket, address) = match address {
            ListenAddress::Tcp(address) => {
                let socket = StdTcpListener::bind(address)?;
                let address = ListenAddress::Tcp(socket.local_addr()?);
                (Socket::Tcp(socket), address)
            }
            #[cfg(unix)]
            ListenAddress::Unix(path, mode) => {
                (Socket::Unix(unix::bind(path, *mode)?), address.clone())
            }
            #[cfg(not(unix))]
            ListenAddress::Unix(..) => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(Self {
            socket,
            address,
            is_own: true,
        })
    }

    /// The sockets that a service manager has opened for this process (systemd: `LISTEN_FDS`).
    ///
    /// # Errors
    /// One is of another kind.
    #[cfg(unix)]
    pub fn inherited() -> io::Result<Vec<Self>> {
        let mut given = listenfd::ListenFd::from_env();
        let n = given.len();
        let one = |i| {
            if let Ok(Some(socket)) = given.take_tcp_listener(i) {
                let address = ListenAddress::Tcp(socket.local_addr()?);
                return Ok((Socket::Tcp(socket), address));
            }
            let socket = given.take_unix_listener(i)?;
            let socket = socket.ok_or_else(|| io::Error::other("no socket is there"))?;
            let path = socket.local_addr()?.as_pathname().map(PathBuf::from);
            let address = ListenAddress::Unix(path.unwrap_or_default(), USUAL_MODE);
            Ok((Socket::Unix(socket), address))
        };
        let all = (0..n).map(one);
        let all = all.map(|one| {
            one.map(|(socket, address)| Self {
                socket,
                address,
                is_own: false,
            })
        });
        all.collect()
    }

    /// Where it listens; with the port that was free, if any was wanted.
    pub fn address(&self) -> &ListenAddress {
        &self.address
    }

    /// Whether only programs on this machine reach it.
    pub fn is_local(&self) -> bool {
        match &self.address {
            ListenAddress::Tcp(address) => address.ip().is_loopback(),
            ListenAddress::Unix(..) => true,
        }
    }

    /// The socket, registered with the current runtime.
    pub(super) fn registered(&self) -> io::Result<Registered> {
        match &self.socket {
            Socket::Tcp(socket) => {
                let socket = socket.try_clone()?;
                socket.set_nonblocking(true)?;
                Ok(Registered::Tcp(TcpListener::from_std(socket)?))
            }
            #[cfg(unix)]
            Socket::Unix(socket) => {
                let socket = socket.try_clone()?;
                socket.set_nonblocking(true)?;
                Ok(Registered::Unix(UnixListener::from_std(socket)?))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let (ListenAddress::Unix(path, _), true) = (&self.address, self.is_own) {
            // Another server may have replaced it; then this one's clients are gone anyway.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A socket in a runtime.
pub(super) enum Registered {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(UnixListener),
}

impl Registered {
    pub(super) async fn accept(&self) -> io::Result<ClientStream> {
        match self {
            Self::Tcp(socket) => {
                let (stream, _) = socket.accept().await?;
                // Tokens are small and must be sent at once (no Nagle delay).
                let _ = stream.set_nodelay(true);
                Ok(ClientStream::Tcp(stream))
            }
            #[cfg(unix)]
            Self::Unix(socket) => Ok(ClientStream::Unix(socket.accept().await?.0)),
        }
    }
}

#[cfg(unix)]
mod unix {
    use std::fs::{self, Permissions};
    use std::io;
    use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::Path;

    /// A socket at a path, which nobody can connect to before it has its permissions.
    pub(super) fn bind(path: &Path, mode: u32) -> io::Result<UnixListener> {
        if let Ok(there) = fs::symlink_metadata(path) {
            if !there.file_type().is_socket() {
                let what = "a file that is no socket is there";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
            }
            match UnixStream::connect(path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(error),
                Ok(_) => {
                    let what = "another server listens there";
                    return Err(io::Error::new(io::ErrorKind::AddrInUse, what));
                }
            }
        }
        let mut new = path.as_os_str().to_owned();
        new.push(format!(".{}", std::process::id()));
        let _ = fs::remove_file(&new);
        let socket = UnixListener::bind(&new)?;
        let placed = fs::set_permissions(&new, Permissions::from_mode(mode))
            .and_then(|()| fs::rename(&new, path));
        if let Err(error) = placed {
            let _ = fs::remove_file(&new);
            return Err(error);
        }
        Ok(socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_an_ip_with_port_or_a_path() {
        let of = |text: &str| text.parse::<ListenAddress>();
        assert!(matches!(of("127.0.0.1:80"), Ok(ListenAddress::Tcp(_))));
        assert!(matches!(of("[::1]:80"), Ok(ListenAddress::Tcp(_))));
        let unix = |path: &str, mode| Ok(ListenAddress::Unix(path.into(), mode));
        assert_eq!(of("unix:/run/a.sock"), unix("/run/a.sock", 0o660));
        assert_eq!(of("unix:/run/a,mode=0600"), unix("/run/a", 0o600));
        for bad in "127.0.0.1 localhost:80 unix: unix:/a,mode=8 unix:/a,mode=1777 :80 /a".split(' ')
        {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn the_socket_of_a_server_that_has_ended_is_replaced_and_no_other() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.sock");
        let address = ListenAddress::Unix(path.clone(), 0o600);
        // A server that was killed leaves its socket.
        drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
        let first = Listener::bind(&address).expect("it is replaced");
        let mode = path.metadata().expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let error = Listener::bind(&address).expect_err("it is in use");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(!path.exists());
        std::fs::write(&path, "text").expect("written");
        assert!(Listener::bind(&address).is_err());
        assert_eq!(std::fs::read(&path).expect("it is there"), b"text");
        let one = std::fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(one, 1);
    }
}
