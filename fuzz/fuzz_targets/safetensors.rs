//! A folder of tensors: up to the first zero byte an index, then the header of a file and its data.
#![no_main]

use lab_base::weights::safetensors::Checkpoint;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(0);
    let (index, file) = bytes.split_at(end);
    let index_name = "model.safetensors.index.json";
    let _ = std::fs::remove_file(fuzz::folder().join(index_name));
    if !index.is_empty() {
        fuzz::file(index_name, index);
    }
    fuzz::file("model.safetensors", file.get(1..).unwrap_or_default());
    let Ok(all) = Checkpoint::open(fuzz::folder()) else {
        return;
    };
    for (name, _) in all.tensors() {
        assert!(all.has(name));
    }
});
