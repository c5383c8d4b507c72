//! The tokens that have a role: those that a file names by id, and those that are known by their text.
//!
//! Files often omit the ids of end-of-turn and fill-in-the-middle tokens, or declare such tokens as plain text. The
//! tables here compensate in the same way as the reference implementation: a token that gets a role by its text becomes
//! a control token.

use std::collections::BTreeSet;

use crate::weights::Metadata;

use super::vocab::{TokenKind, Vocabulary};

/// This project's key: tokens that end a generation but follow from no other key and no text. A file with the key
/// describes roles completely: plain tokens get no role by their text, and the tokenizer model implies none.
pub(super) const ENDS: &str = "tokenizer.ggml.eog_token_ids";

/// Ids of the tokens with a role.
#[derive(Debug, Default)]
pub(super) struct SpecialIds {
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) eot: Option<u32>,
    pub(super) unk: Option<u32>,
    pub(super) pad: Option<u32>,
    pub(super) mask: Option<u32>,
    pub(super) sep: Option<u32>,
    /// The tokens of [`FIM`], if the vocabulary has all three.
    pub(super) fim: Option<[u32; 3]>,
    /// The token before the name of a repository.
    pub(super) repo: Option<u32>,
    /// The token before the name of a file.
    pub(super) file: Option<u32>,
    /// The tokens that end a generation.
    pub(super) ends: BTreeSet<u32>,
}

/// Ids that a tokenizer model implies if the file names none.
#[derive(Clone, Copy, Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DefaultIds {
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) unk: Option<u32>,
    pub(super) sep: Option<u32>,
}

/// A role whose token is found by key, otherwise by text.
struct RoleTexts {
    keys: &'static [&'static str],
    texts: &'static [&'static str],
    /// Whether the token ends a generation.
    ends: bool,
}

const EOT: RoleTexts = RoleTexts {
    keys: &["tokenizer.ggml.eot_token_id"],
    texts: &[
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "<｜end▁of▁sentence｜>",
        "<end_of_utterance>",
    ],
    ends: true,
};

const EOM: RoleTexts = RoleTexts {
    keys: &["tokenizer.ggml.eom_token_id"],
    texts: &["<|eom_id|>"],
    ends: true,
};

/// The token before the name of a repository.
const REPO: RoleTexts = RoleTexts {
    keys: &["tokenizer.ggml.fim_rep_token_id"],
    texts: &[
        "<|fim_repo|>",
        "<|repo_name|>",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
    ],
    ends: true,
};

/// The token before the name of a file.
const FILE: RoleTexts = RoleTexts {
    keys: &["tokenizer.ggml.fim_sep_token_id"],
    texts: &["<|file_sep|>"],
    ends: true,
};

/// The tokens before the text before a gap, before the text after it, and before the generated text
/// (fill-in-the-middle, FIM).
const FIM: [RoleTexts; 3] = [
    RoleTexts {
        keys: &[
            "tokenizer.ggml.prefix_token_id",
            "tokenizer.ggml.fim_pre_token_id",
        ],
        texts: &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
        ends: false,
    },
    RoleTexts {
        keys: &[
            "tokenizer.ggml.suffix_token_id",
            "tokenizer.ggml.fim_suf_token_id",
        ],
        texts: &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
        ends: false,
    },
    RoleTexts {
        keys: &[
            "tokenizer.ggml.middle_token_id",
            "tokenizer.ggml.fim_mid_token_id",
        ],
        texts: &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
        ends: false,
    },
];

const OTHERS: &[RoleTexts] = &[
    EOM,
    RoleTexts {
        keys: &["tokenizer.ggml.fim_pad_token_id"],
        texts: &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
        ends: true,
    },
    REPO,
    FILE,
];

/// Texts of tokens that end a generation. If a vocabulary has several, all of them do.
const END_TEXTS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Marks inside a turn that are part of the visible text, whatever a file declares.
const VISIBLE: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// A token that does not end a generation if all of `others` do.
struct EndException {
    text: &'static str,
    others: &'static [&'static str],
    kind: TokenKind,
}

const EXCEPTIONS: &[EndException] = &[
    EndException {
        text: "<|end|>",
        others: &["<|return|>", "<|call|>"],
        kind: TokenKind::UserDefined,
    },
    EndException {
        text: "<|end|>",
        others: &["<|return|>", "<|calls|>"],
        kind: TokenKind::UserDefined,
    },
    EndException {
        text: "<|end|>",
        others: &["<|flush|>", "<|call|>"],
        kind: TokenKind::UserDefined,
    },
    EndException {
        text: "<|end|>",
        others: &["<|flush|>", "<|calls|>"],
        kind: TokenKind::UserDefined,
    },
    EndException {
        text: "</s>",
        others: &["<|tool_response>"],
        kind: TokenKind::Normal,
    },
    EndException {
        text: "</s>",
        others: &["<|plamo:eos|>"],
        kind: TokenKind::Normal,
    },
];

/// Whether a token with this text ends a generation in every vocabulary.
pub(super) fn ends_by_text(text: &str) -> bool {
    END_TEXTS.contains(&text) && EXCEPTIONS.iter().all(|exception| exception.text != text)
}

/// Whether a token with this text is assumed to end a turn.
pub(super) fn is_end_of_turn(text: &str) -> bool {
    EOT.texts.contains(&text)
}

/// Whether a token with this text is assumed to end a message.
pub(super) fn is_end_of_message(text: &str) -> bool {
    EOM.texts.contains(&text)
}

impl SpecialIds {
    /// Finds the tokens with a role; those known by their text become control tokens.
    pub(super) fn read(metadata: &Metadata, vocab: &mut Vocabulary, defaults: DefaultIds) -> Self {
        let listed = metadata.array(ENDS);
        let key = |key, default| {
            let default = || in_range(vocab, default).filter(|_| listed.is_none());
            id_of_key(metadata, vocab, key).or_else(default)
        };
        let mut this = Self {
            bos: key("tokenizer.ggml.bos_token_id", defaults.bos),
            eos: key("tokenizer.ggml.eos_token_id", defaults.eos),
            unk: key("tokenizer.ggml.unknown_token_id", defaults.unk),
            pad: key("tokenizer.ggml.padding_token_id", None),
            mask: key("tokenizer.ggml.mask_token_id", None),
            // The format spells it so.
            sep: key("tokenizer.ggml.seperator_token_id", defaults.sep),
            ..Self::default()
        };
        let texts = TextSearch {
            only_special: listed.is_some(),
        };
        this.eot = EOT.find(metadata, vocab, texts);
        this.ends.extend(this.eos);
        this.ends.extend(this.eot);
        if let [Some(prefix), Some(suffix), Some(middle)] =
            FIM.each_ref().map(|role| role.find(metadata, vocab, texts))
        {
            this.fim = Some([prefix, suffix, middle]);
        }
        for role in OTHERS {
            let id = role.find(metadata, vocab, texts);
            this.ends.extend(id.filter(|_| role.ends));
        }
        this.repo = REPO.find(metadata, vocab, texts);
        this.file = FILE.find(metadata, vocab, texts);
        this.find_ends_by_text(vocab, texts);
        if let Some(listed) = listed {
            let ids = (0..listed.len()).filter_map(|at| listed.get(at)?.as_i64());
            let ids = ids.filter_map(|id| in_range(vocab, u32::try_from(id).ok()));
            this.ends.extend(ids);
        }
        this
    }

    fn find_ends_by_text(&mut self, vocab: &mut Vocabulary, texts: TextSearch) {
        for text in END_TEXTS {
            if let Some(id) = texts.find(vocab, text) {
                self.ends.insert(id);
                vocab.set_kind(id, TokenKind::Control);
            }
        }
        for text in VISIBLE {
            if let Some(id) = texts.find(vocab, text) {
                vocab.set_kind(id, TokenKind::UserDefined);
            }
        }
        for exception in EXCEPTIONS {
            let end = |text: &str| {
                let id = vocab.id_of(text.as_bytes())?;
                self.ends.contains(&id).then_some(id)
            };
            let Some(id) = end(exception.text) else {
                continue;
            };
            if exception.others.iter().all(|text| end(text).is_some()) {
                self.ends.remove(&id);
                vocab.set_kind(id, exception.kind);
            }
        }
    }
}

/// The rules for finding tokens by text.
#[derive(Clone, Copy)]
struct TextSearch {
    /// Whether plain tokens are ignored.
    only_special: bool,
}

impl TextSearch {
    fn find(self, vocab: &Vocabulary, text: &str) -> Option<u32> {
        let id = vocab.id_of(text.as_bytes())?;
        (!self.only_special || vocab.kind(id) != Some(TokenKind::Normal)).then_some(id)
    }
}

impl RoleTexts {
    fn find(&self, metadata: &Metadata, vocab: &mut Vocabulary, texts: TextSearch) -> Option<u32> {
        // The later keys of a role take precedence over its deprecated ones.
        let keys = self.keys.iter().rev();
        if let Some(id) = keys
            .into_iter()
            .find_map(|key| id_of_key(metadata, vocab, key))
        {
            return Some(id);
        }
        let id = self.texts.iter().find_map(|text| texts.find(vocab, text))?;
        vocab.set_kind(id, TokenKind::Control);
        Some(id)
    }
}

/// The id under a key; an id outside the vocabulary counts as absent.
fn id_of_key(metadata: &Metadata, vocab: &Vocabulary, key: &str) -> Option<u32> {
    in_range(vocab, u32::try_from(metadata.i64(key)?).ok())
}

fn in_range(vocab: &Vocabulary, id: Option<u32>) -> Option<u32> {
    id.filter(|&id| (id as usize) < vocab.len())
}
