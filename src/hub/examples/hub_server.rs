//! The Hub of the tests as a program, for clients in other languages: prints its address, serves until its input ends.
//!
//! `cargo run -p lab-hub --example hub_server`: `owner/repo` is a folder with 40 MB of weights, and a GGUF file.

use std::io::{self, Read, Write};

#[expect(dead_code, reason = "the tests use more of it")]
#[path = "../tests/server.rs"]
mod server;

use server::{Behaviour, Server};

fn main() -> io::Result<()> {
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
    let server = Server::start(&files, Behaviour::default());
    writeln!(io::stdout(), "{}", server.endpoint)?;
    io::stdout().flush()?;
    io::stdin().read_to_end(&mut Vec::new()).map(|_| ())
}
