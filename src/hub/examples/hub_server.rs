//! The Hub of the tests as a program, for clients in other languages: prints its address, serves until its input ends,
//! then prints the requests: method, path and range.
//!
//! `cargo run -p lab-hub --example hub_server [FOLDER [PAUSE]]`: `owner/repo` has the files of a folder; without one, 40 MB of
//! weights and a GGUF file. `PAUSE` is the time in milliseconds before each 64 KiB.

use std::io::{self, Read, Write};
use std::path::Path;
use std::{env, fs};

#[expect(dead_code, reason = "the tests use more of it")]
#[path = "../tests/server.rs"]
mod server;

use server::{Behaviour, Server};

/// The files of a folder and of those within it, by their paths in `root`.
fn read_all(root: &Path, folder: &Path, files: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            read_all(root, &path, files)?;
        } else if let Some(name) = path.strip_prefix(root).ok().and_then(Path::to_str) {
            files.push((name.to_owned(), fs::read(&path)?));
        }
    }
    Ok(())
}

fn made_up() -> Vec<(String, Vec<u8>)> {
    let weights: Vec<u8> = (0..40_000_000_u32)
        .map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0])
        .collect();
    let files = [
        ("config.json", b"{}".to_vec()),
        ("tokenizer.json", b"{\"version\": \"1.0\"}".to_vec()),
        ("1_Pooling/config.json", b"{\"pooling\": 1}".to_vec()),
        ("model.safetensors", weights),
        ("gguf/x-Q4_K_M.gguf", b"GGUF".to_vec()),
    ];
    files.map(|(name, bytes)| (name.to_owned(), bytes)).into()
}

fn main() -> io::Result<()> {
    let mut arguments = env::args().skip(1);
    let mut files = Vec::new();
    match arguments.next() {
        Some(folder) => read_all(Path::new(&folder), Path::new(&folder), &mut files)?,
        None => files = made_up(),
    }
    let pause = arguments.next().map_or(Ok(0), |text| text.parse());
    let behaviour = Behaviour {
        pause: pause.map_err(io::Error::other)?,
        ..Behaviour::default()
    };
    let files: Vec<(&str, Vec<u8>)> = files
        .iter()
        .map(|(name, bytes)| (name.as_str(), bytes.clone()))
        .collect();
    let server = Server::start(&files, behaviour);
    writeln!(io::stdout(), "{}", server.endpoint)?;
    io::stdout().flush()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    let log = server
        .log
        .lock()
        .map_err(|_| io::Error::other("the server failed"))?;
    for request in log.iter() {
        let range = request.headers.get("range").map_or("", String::as_str);
        writeln!(io::stdout(), "{} {} {range}", request.method, request.path)?;
    }
    Ok(())
}
