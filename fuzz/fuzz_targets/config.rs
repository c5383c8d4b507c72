//! A folder's `config.json`, which the maps make metadata of; its tensors are none.
#![no_main]

use lab_core::models;
use lab_core::models::ModelSource;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let folder = fuzz::folder();
    if !folder.join("model.safetensors").exists() {
        fuzz::file("model.safetensors", b"\x02\0\0\0\0\0\0\0{}");
    }
    fuzz::file("config.json", bytes);
    let _ = models::open(&ModelSource::File(folder.to_owned()), fuzz::definitions());
});
