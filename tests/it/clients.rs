//! Client packages for Python and Node, unmodified, against the server; and this project's own package for Python.

use std::process::Command;

use crate::support::command::{scratch, text};
use crate::support::hf;
use crate::support::server::Server;
use crate::support::sources;
use crate::support::vocabulary::with_vocabulary;

/// Where the script installs the packages.
const FOLDER: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/clients");

/// Whether a program is on this machine. CI needs it.
fn has(program: &str) -> bool {
    let version = Command::new(program).arg("--version").output();
    let has = version.is_ok_and(|output| output.status.success());
    let is_ci = std::env::var_os("CI").is_some();
    assert!(has || !is_ci, "CI needs {program} for the client packages");
    if !has {
        println!("NOT RUN: there is no {program} on this machine");
    }
    has
}

/// Runs a client, which has to say that it is content.
fn content(command: &mut Command, expected: &[&str]) {
    let output = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "a client is not content");
    for client in expected {
        let expected = format!("{client}: content");
        assert!(said.contains(&expected), "{client}: nothing was said of it");
    }
}

#[test]
fn client_packages_work_unmodified() {
    if !has("python3") {
        return;
    }
    let has_node = has("node") && has("npm");
    let url = |server: &Server| format!("http://{}", server.address);
    let server = Server::start(&[]);
    let small = Server::start(&["--parallel", "1", "--queue", "1", "--ctx", "4096"]);
    let folder = sources::root().join("tests/media/llava-small");
    let seeing = Server::start(&["-m", text(&folder)]);
    let folder = sources::root().join("tests/media/transcripts");
    let hearing = Server::start(&["-m", text(&folder)]);
    let script = |name: &str| format!("{}/scripts/{name}", env!("CARGO_MANIFEST_DIR"));
    let mut expected = vec![
        "openai client with a picture",
        "anthropic client with a picture",
        "ollama client with a picture",
        "langchain with a picture",
        "openai client with a sound",
        "openai client",
        "openai-agents",
        "anthropic client",
        "langchain client",
        "Hugging Face client",
        "guidance",
        "ollama client",
        "langchain-ollama",
        "llm with llm-ollama",
    ];
    if has_node {
        expected.extend([
            "openai client for Node",
            "AI SDK",
            "Hugging Face client for Node",
            "ollama client for JavaScript",
            "clients for Node with a picture",
            "openai client for Node with a sound",
        ]);
    }
    content(
        Command::new("bash").arg(script("clients.sh")).args([
            &url(&server),
            FOLDER,
            &url(&small),
            &url(&seeing),
            &url(&hearing),
        ]),
        &expected,
    );

    let root = scratch();
    let model = with_vocabulary(&hf::open("bert"), root.path());
    let server = Server::start(&["-m", text(&model)]);
    let url = format!("{}/v1", url(&server));
    content(
        Command::new(format!("{FOLDER}/venv/bin/python"))
            .args([&script("embeddings_client.py"), &url]),
        &["embeddings client"],
    );
    if has_node {
        content(
            Command::new("node")
                .env("NODE_MODULES", format!("{FOLDER}/node/node_modules"))
                .args([&script("embeddings_client.mjs"), &url]),
            &["embeddings client for Node"],
        );
    }
}

#[test]
fn the_python_package_and_its_notebooks_work() {
    if !has("python3") {
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/python_package.sh");
    content(
        Command::new("bash").args([script, env!("CARGO_BIN_EXE_bench"), FOLDER]),
        &["Python package"],
    );
}
