//! What C and C++ compute: each test compiles a program of this folder and runs it. Those of `cuda/` compute with the
//! kernels for CUDA on the processor; what a GPU makes of the same source is not tested here.

use std::path::Path;
use std::process::Command;

/// Compiles `tests/NAME.cpp`, runs it, and fails if it found anything wrong.
fn passes(name: &str) {
    let host = env!("BENCH_TARGET");
    let compiler = cc::Build::new()
        .cpp(true)
        .std("c++17")
        .target(host)
        .host(host)
        .opt_level(2)
        .cargo_metadata(false)
        .get_compiler();
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name.replace('/', "-"));
    let compiled = compiler
        .to_command()
        .args([
            "-Wno-unknown-pragmas",
            "-Icuda",
            "-Isrc",
            "-Itests",
            "-Itests/cuda",
        ])
        .arg(format!("-I{}", env!("GGML_INCLUDE")))
        .arg(format!("tests/{name}.cpp"))
        .arg("-o")
        .arg(&program)
        // ggml and the operations of this project, for what the kernels are compared with.
        .arg(format!("-L{}", env!("GGML_LIBRARY")))
        .args(["-lggml", "-lpthread", "-ldl", "-lm"])
        .output()
        .expect("the compiler that built ggml runs");
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{name}: {said}");
    let ran = Command::new(&program)
        .output()
        .expect("what was compiled runs");
    let said = [ran.stdout, ran.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(ran.status.success(), "{name}: {}\n{said}", ran.status);
}

#[test]
fn kernels_are_chosen_by_card_and_type() {
    passes("cuda/kernel_choice");
}

#[test]
fn the_largest_numbers_of_a_row_are_found() {
    passes("cuda/top_k");
}

#[test]
fn attention_over_blocks_is_that_of_the_processor() {
    passes("cuda/paged_attention");
}

#[test]
fn rounded_columns_have_the_bits_of_ggml() {
    passes("processor/rounding");
}
