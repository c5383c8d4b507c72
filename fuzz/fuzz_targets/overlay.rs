//! The numbers of `bench diagram --overlay`.
#![no_main]

use lab_inspect::diagram::overlay::Overlay;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = Overlay::read(bytes, None);
});
