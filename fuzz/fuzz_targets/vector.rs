//! A control vector, as GGUF or as safetensors.
#![no_main]

use lab_core::artifacts::vectors;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let name = if bytes.starts_with(b"GGUF") {
        "vector.gguf"
    } else {
        "vector.safetensors"
    };
    let _ = vectors::read(&fuzz::file(name, bytes));
});
