//! The tokens that have a role: those that a file names by id, and those that are known by their text.
//!
//! Files often omit the ids of end-of-turn and fill-in-the-middle tokens, or declare such tokens as plain text. The
//! table `roles.toml` compensates in the same way as the reference implementation: a token that gets a role by its text becomes
//! a control token.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::weights::Metadata;

use super::vocab::{TokenKind, Vocabulary};

/// This project's key: tokens that end a generation but follow from no other key and no text. A file with the key
/// describes roles completely: plain tokens get no role by their text, and the tokenizer model implies none.
pub(super) const ENDS: &str = "tokenizer.ggml.eog_token_ids";

#[derive(Debug, Default)]
pub(super) struct SpecialIds {
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) eot: Option<u32>,
    pub(super) unk: Option<u32>,
    pub(super) pad: Option<u32>,
    pub(super) mask: Option<u32>,
    pub(super) sep: Option<u32>,
    /// The tokens before the text before a gap, before the text after it, and before the generated text
    /// (fill-in-the-middle, FIM), if the vocabulary has all three.
    pub(super) fim: Option<[u32; 3]>,
    /// The token before the name of a repository.
    pub(super) repo: Option<u32>,
    /// The token before the name of a file.
    pub(super) file: Option<u32>,
    pub(super) ends: BTreeSet<u32>,
}

/// Ids that a tokenizer model implies if the file names none.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DefaultIds {
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) unk: Option<u32>,
    pub(super) sep: Option<u32>,
}

/// A role whose token is found by key, otherwise by text.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RoleTexts {
    keys: Vec<String>,
    texts: Vec<String>,
}

/// A token that does not end a generation if all of `others` do.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EndException {
    text: String,
    others: Vec<String>,
    kind: TokenKind,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KnownRoles {
    eot: RoleTexts,
    eom: RoleTexts,
    fim_prefix: RoleTexts,
    fim_suffix: RoleTexts,
    fim_middle: RoleTexts,
    fim_pad: RoleTexts,
    repo: RoleTexts,
    file: RoleTexts,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RoleTable {
    ends: Vec<String>,
    visible: Vec<String>,
    role: KnownRoles,
    exception: Vec<EndException>,
}

static TABLE: LazyLock<RoleTable> =
    LazyLock::new(|| toml::from_str(include_str!("roles.toml")).expect("roles.toml"));

fn has(texts: &[String], text: &str) -> bool {
    texts.iter().any(|other| other == text)
}

/// Whether a token with this text ends a generation in every vocabulary.
pub(super) fn ends_by_text(text: &str) -> bool {
    has(&TABLE.ends, text)
        && TABLE
            .exception
            .iter()
            .all(|exception| exception.text != text)
}

/// Whether a token with this text is assumed to end a turn.
pub(super) fn is_end_of_turn(text: &str) -> bool {
    has(&TABLE.role.eot.texts, text)
}

/// Whether a token with this text is assumed to end a message.
pub(super) fn is_end_of_message(text: &str) -> bool {
    has(&TABLE.role.eom.texts, text)
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
        let known = &TABLE.role;
        this.eot = known.eot.find(metadata, vocab, texts);
        this.ends.extend(this.eos);
        this.ends.extend(this.eot);
        if let [Some(prefix), Some(suffix), Some(middle)] =
            [&known.fim_prefix, &known.fim_suffix, &known.fim_middle]
                .map(|role| role.find(metadata, vocab, texts))
        {
            this.fim = Some([prefix, suffix, middle]);
        }
        let mut find = |role: &RoleTexts| role.find(metadata, vocab, texts);
        let others = [find(&known.eom), find(&known.fim_pad)];
        (this.repo, this.file) = (find(&known.repo), find(&known.file));
        let others = others.into_iter().chain([this.repo, this.file]);
        this.ends.extend(others.flatten());
        this.find_ends_by_text(vocab, texts);
        if let Some(listed) = listed {
            let ids = (0..listed.len()).filter_map(|at| listed.get(at)?.as_i64());
            let ids = ids.filter_map(|id| in_range(vocab, u32::try_from(id).ok()));
            this.ends.extend(ids);
        }
        this
    }

    fn find_ends_by_text(&mut self, vocab: &mut Vocabulary, texts: TextSearch) {
        for text in &TABLE.ends {
            if let Some(id) = texts.find(vocab, text) {
                self.ends.insert(id);
                vocab.set_kind(id, TokenKind::Control);
            }
        }
        for text in &TABLE.visible {
            if let Some(id) = texts.find(vocab, text) {
                vocab.set_kind(id, TokenKind::UserDefined);
            }
        }
        for exception in &TABLE.exception {
            let end = |text: &str| {
                let id = vocab.id_of(text.as_bytes())?;
                self.ends.contains(&id).then_some(id)
            };
            let Some(id) = end(&exception.text) else {
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
