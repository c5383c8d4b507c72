//! Has the program and its tests export ggml's functions: backend libraries that are loaded at run time call them, so
//! that there is one copy of ggml's core.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    match env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("macos") => println!("cargo::rustc-link-arg=-Wl,-export_dynamic"),
        Ok("windows") => {}
        _ => println!("cargo::rustc-link-arg=-Wl,--export-dynamic-symbol=ggml_*"),
    }
    // Tests build a backend library of their own.
    if let Ok(include) = env::var("DEP_GGML_INCLUDE") {
        println!("cargo::rustc-env=GGML_INCLUDE={include}");
    }
}
