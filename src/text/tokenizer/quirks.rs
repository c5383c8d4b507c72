//! Special tokens that swallow the white space beside them, which no key of a file says.
//!
//! A table of data: what to look for in which key, and the tokens concerned. Only the first row
//! that applies counts.

use crate::weights::Metadata;

use super::specials::Specials;

/// Which side of a token.
#[derive(Clone, Copy)]
enum Side {
    Left,
    Right,
}

/// The tokens a row concerns.
enum Tokens {
    Only(&'static [&'static str]),
    AllBut(&'static [&'static str]),
}

struct Quirk {
    key: &'static str,
    /// Any of these, in the key's text or its lower-case form.
    contains: &'static [&'static str],
    side: Side,
    tokens: Tokens,
}

const QUIRKS: &[Quirk] = &[
    Quirk {
        key: "tokenizer.ggml.pre",
        contains: &["jina-v2-de", "jina-v2-es", "jina-v2-code", "mmbert"],
        side: Side::Left,
        tokens: Tokens::Only(&["<mask>"]),
    },
    Quirk {
        key: "general.architecture",
        contains: &["nomic-bert-moe", "jina-bert-v3"],
        side: Side::Left,
        tokens: Tokens::Only(&["<mask>"]),
    },
    Quirk {
        key: "general.name",
        contains: &["phi-3", "phi3"],
        side: Side::Right,
        tokens: Tokens::AllBut(&["<unk>", "<s>", "<|endoftext|>"]),
    },
    Quirk {
        key: "general.name",
        contains: &["modern-bert"],
        side: Side::Left,
        tokens: Tokens::Only(&["[MASK]"]),
    },
];

/// Applies the quirk of a file, if it has one.
pub(super) fn apply(metadata: &Metadata, specials: &mut Specials) {
    let Some(quirk) = QUIRKS.iter().find(|quirk| quirk.applies(metadata)) else {
        return;
    };
    let concerns = |text: &str| match quirk.tokens {
        Tokens::Only(texts) => texts.contains(&text),
        Tokens::AllBut(texts) => !texts.contains(&text),
    };
    match quirk.side {
        Side::Left => specials.strip_left(concerns),
        Side::Right => specials.strip_right(concerns),
    }
}

impl Quirk {
    fn applies(&self, metadata: &Metadata) -> bool {
        let value = metadata.str(self.key).unwrap_or_default().to_lowercase();
        self.contains.iter().any(|part| value.contains(part))
    }
}
