//! Folders of `tests/hf` with a vocabulary of words `w5`, `w6` ...

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::hf;

/// The special tokens, which come first.
const SPECIAL: [&str; 5] = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"];

/// A vocabulary of so many words, read as BERT reads its own.
fn vocabulary(n: usize) -> Value {
    let word = |id: usize| match SPECIAL.get(id) {
        Some(special) => (*special).to_owned(),
        None => format!("w{id}"),
    };
    let vocab: serde_json::Map<String, Value> = (0..n).map(|id| (word(id), json!(id))).collect();
    let added = SPECIAL.iter().enumerate().map(|(id, content)| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true,
        })
    });
    let token = |id: &str| json!({ "SpecialToken": { "id": id, "type_id": 0 } });
    let second = json!({ "SpecialToken": { "id": "[SEP]", "type_id": 1 } });
    let part = |id: &str, of_type: u32| json!({ "Sequence": { "id": id, "type_id": of_type } });
    let (cls, sep) = (token("[CLS]"), token("[SEP]"));
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added.collect::<Value>(),
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true,
        },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [cls, part("A", 0), sep],
            "pair": [cls, part("A", 0), sep, part("B", 1), second],
            "special_tokens": {
                "[CLS]": { "id": "[CLS]", "ids": [1], "tokens": ["[CLS]"] },
                "[SEP]": { "id": "[SEP]", "ids": [2], "tokens": ["[SEP]"] },
            },
        },
        "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true },
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab,
        },
    })
}

/// Writes a folder with a vocabulary. Returns where it is.
pub(crate) fn with_vocabulary(folder: &hf::Folder, root: &Path) -> PathBuf {
    let into = root.join(&folder.name);
    std::fs::create_dir_all(&into).expect("writable");
    folder.write(&into);
    let config = std::fs::read(into.join("config.json")).expect("written");
    let config: Value = serde_json::from_slice(&config).expect("JSON");
    let sizes = [&config["vocab_size"], &config["text_config"]["vocab_size"]];
    let n = sizes.iter().find_map(|size| size.as_u64());
    let n = n.expect("a number") as usize;
    let write = |name: &str, value: &Value| {
        std::fs::write(into.join(name), value.to_string()).expect("writable");
    };
    write("tokenizer.json", &vocabulary(n));
    let roles = json!({
        "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]",
        "mask_token": "[MASK]", "tokenizer_class": "PreTrainedTokenizerFast",
    });
    write("tokenizer_config.json", &roles);
    into
}
