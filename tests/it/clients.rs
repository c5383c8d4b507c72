//! Client packages for Python, unmodified, against the server.

use std::process::Command;

use crate::command::{scratch, text};
use crate::embeddings::with_vocabulary;
use crate::hf;
use crate::server::Server;

#[test]
fn client_packages_work_unmodified() {
    let has_python = Command::new("python3")
        .arg("--version")
        .output()
        .is_ok_and(|o| o.status.success());
    if !has_python {
        let is_ci = std::env::var_os("CI").is_some();
        assert!(!is_ci, "CI needs python3 for the client packages");
        println!("NOT RUN: there is no python3 on this machine");
        return;
    }
    let server = Server::start(&[]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/clients.sh");
    let output = Command::new("bash")
        .arg(script)
        .arg(format!("http://{}", server.address))
        .arg(concat!(env!("CARGO_TARGET_TMPDIR"), "/clients-venv"))
        .output()
        .expect("bash runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "the client is not content");
    for client in ["openai", "anthropic", "langchain"] {
        assert!(
            said.contains(&format!("{client} client: content")),
            "{client}: nothing was said of its checks"
        );
    }
    let root = scratch();
    let model = with_vocabulary(&hf::open("bert"), root.path());
    let server = Server::start(&["-m", text(&model)]);
    let output = Command::new(concat!(
        env!("CARGO_TARGET_TMPDIR"),
        "/clients-venv/bin/python"
    ))
    .arg(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/scripts/embeddings_client.py"
    ))
    .arg(format!("http://{}/v1", server.address))
    .output()
    .expect("it is installed");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("embeddings client: content"));
}
