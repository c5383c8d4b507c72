//! The vocabulary of a folder: a `tokenizer.json`, what it does to texts, and the keys of a file for it.
#![no_main]

use lab_base::tokenizer::folder;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::file("tokenizer.json", bytes);
    let Ok(read) = folder::read(fuzz::folder()) else {
        return;
    };
    let _ = read.for_file();
    let tokenizer = read.tokenizer();
    for text in [
        "",
        "a",
        "A text <s> of 12 words,\n\u{e9}\u{4e2d}\u{1f600}  \t",
    ] {
        let ids = tokenizer.encode(text, true, true).unwrap_or_default();
        tokenizer.decode(&ids);
    }
});
