//! An array of NumPy, alone or in an archive.
#![no_main]

use lab_core::artifacts::npy;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let path = fuzz::file("array.npy", bytes);
    let _ = npy::read(&path);
    let _ = npy::read_archive(&path, "a");
});
