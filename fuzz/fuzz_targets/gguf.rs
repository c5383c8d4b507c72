//! A model file: its header, its data, its plan and its vocabulary.
#![no_main]

use lab_base::weights;
use lab_core::models;
use lab_core::models::ModelSource;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let path = fuzz::file("model.gguf", bytes);
    let Ok(weights) = weights::open(&path) else {
        return;
    };
    for tensor in weights.tensors() {
        let data = weights.data(tensor).expect("it lies in the file");
        assert_eq!(data.len() as u64, tensor.bytes);
    }
    let names: Vec<&str> = weights.tensors().iter().map(|t| t.name.as_str()).collect();
    let _ = weights::check(&weights, &names);
    let source = ModelSource::File(path);
    // Seeds are models without a vocabulary, or vocabularies alone: one of the two is worth the time.
    if !names.is_empty() {
        let _ = models::open(&source, fuzz::definitions());
    } else if let Ok(contents) = models::read(&source, fuzz::definitions())
        && let Ok(tokenizer) = contents.tokenizer()
    {
        let ids = tokenizer.encode("A text <s> of 12 words,\n\u{e9}\u{4e2d}", true, true);
        tokenizer.decode(&ids.unwrap_or_default());
    }
});
