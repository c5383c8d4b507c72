//! Token ids and texts against those the reference implementation gives for the same
//! vocabularies: every case of every vocabulary listed here.

#![expect(
    clippy::unwrap_used,
    reason = "a golden that cannot be read is a failure"
)]

use std::path::Path;

use lab_base::tokenizer::Tokenizer;
use serde::Deserialize;

use crate::support::shared;

const VOCABULARIES: &[&str] = &[
    "llama-spm",
    "llama-bpe",
    "qwen2",
    "gpt-2",
    "phi-3",
    "qwen35",
    "falcon",
    "starcoder",
    "mpt",
    "refact",
    "command-r",
    "deepseek-llm",
    "deepseek-coder",
    "gemma-4",
    "bert-bge",
    "nomic-bert-moe",
];

/// Vocabularies whose reference text is tidied up around spaces, which decoding does not do.
const TIDIED: &[&str] = &[
    "llama-bpe",
    "gpt-2",
    "falcon",
    "starcoder",
    "mpt",
    "refact",
    "gemma-4",
    "bert-bge",
];

#[derive(Deserialize)]
struct Golden {
    vocab: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    add_special: bool,
    parse_special: bool,
    ids: Vec<u32>,
    detok: String,
    pieces: Option<String>,
}

#[test]
#[expect(clippy::print_stderr, reason = "tells what was compared")]
fn goldens_are_reproduced() {
    let Some(folder) = shared("golden/tokenizers") else {
        return;
    };
    let mut wrong = Vec::new();
    for name in VOCABULARIES {
        let golden = std::fs::read(folder.join(format!("dev/{name}.json"))).unwrap();
        let golden: Golden = serde_json::from_slice(&golden).unwrap();
        let tokenizer = load(&folder.join("vocab").join(&golden.vocab));
        let before = wrong.len();
        for case in &golden.cases {
            wrong.extend(compare(name, &tokenizer, case));
        }
        let right = golden.cases.len() - (wrong.len() - before);
        eprintln!("{name}: {right} of {} cases match", golden.cases.len());
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(30)].join("\n")
    );
}

fn compare(name: &str, tokenizer: &Tokenizer, case: &Case) -> Option<String> {
    let ids = tokenizer
        .encode(&case.text, case.add_special, case.parse_special)
        .unwrap();
    let pieces: Vec<u8> = ids
        .iter()
        .flat_map(|&id| tokenizer.piece(id))
        .copied()
        .collect();
    let expected = case.pieces.as_ref().unwrap_or(&case.detok);
    let decoded = tokenizer.decode(&ids);

    let same = ids == case.ids
        && lossy(&pieces) == *expected
        && (TIDIED.contains(&name) || lossy(&decoded) == case.detok);
    (!same).then(|| {
        format!(
            "{name} {:?} {}/{}\n  ids {ids:?}\n  not {:?}\n  pieces {:?}\n  not    {expected:?}\n  decoded {:?}\n  not     {:?}",
            case.text,
            case.add_special,
            case.parse_special,
            case.ids,
            lossy(&pieces),
            lossy(&decoded),
            case.detok,
        )
    })
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn load(path: &Path) -> Tokenizer {
    let source = lab_base::weights::open(path).unwrap();
    Tokenizer::from_metadata(source.metadata()).unwrap()
}
