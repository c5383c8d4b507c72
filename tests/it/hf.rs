//! The tiny Hugging Face folders are those that transformers read, and every one has a golden and a case.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::support::Output;
use crate::support::command::scratch;
use crate::support::hf::{hex, names, open, read, root};

#[test]
fn folders_are_the_ones_transformers_read() {
    let mut faults = Vec::new();
    for name in names() {
        let folder = open(&name);
        let stored: BTreeMap<String, String> =
            serde_json::from_value(folder.golden["sha256"].clone()).expect("hashes by file");
        let found: BTreeMap<String, String> = folder
            .files()
            .iter()
            .map(|(file, bytes)| (file.clone(), hex(bytes)))
            .collect();
        if found != stored {
            faults.push(format!("{name}: {found:?}, expected {stored:?}"));
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn goldens_are_whole_and_each_has_its_case() {
    let text = String::from_utf8(read(&root().join("cases.toml"))).expect("UTF-8");
    let table: toml::Table = text.parse().expect("TOML");
    let cases: BTreeSet<String> = table["case"]
        .as_array()
        .expect("a list of cases")
        .iter()
        .map(|case| case["name"].as_str().expect("a name").to_owned())
        .collect();
    assert_eq!(names().into_iter().collect::<BTreeSet<_>>(), cases);
    for name in cases {
        let folder = open(&name);
        let [tokens, width] = folder.shape;
        let expected = match folder.output_name() {
            "scores" => 1,
            _ => folder.tokens.len(),
        };
        assert_eq!(tokens, expected, "{name}");
        assert_eq!(tokens * width, folder.expected.len(), "{name}");
        assert!(folder.expected.iter().all(|v| v.is_finite()), "{name}");
        let scratch = scratch();
        folder.write(scratch.path());
        let text = String::from_utf8(read(&scratch.path().join("config.json"))).expect("UTF-8");
        // Python writes and reads this word; JSON has no such number.
        let text = text.replace("Infinity\n", "null\n");
        let config: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(config["architectures"], json!([folder.class]), "{name}");
        if folder.output == Output::Logits {
            let places = [
                "/text_config/vocab_size",
                "/llm_config/vocab_size",
                "/thinker_config/text_config/vocab_size",
                "/embedding_size",
                "/vocab_size",
                "/padded_vocab_size",
            ];
            let sizes = places
                .iter()
                .filter_map(|place| config.pointer(place)?.as_u64());
            // The table of embeddings may be longer, a multiple of so many rows.
            let multiple = config["pad_vocab_size_multiple"].as_u64().unwrap_or(1);
            let mut rows = sizes.map(|n| n.next_multiple_of(multiple));
            assert!(rows.any(|n| n == width as u64), "{name}: {width} logits");
        }
    }
}
