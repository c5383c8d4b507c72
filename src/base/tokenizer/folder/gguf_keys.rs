//! The vocabulary of a `tokenizer.json` as keys of a GGUF file.
//!
//! The keys are those of llama.cpp's converter: texts, kinds, scores and merges for each tokenizer model. They follow
//! from the fields of the file. The pre-tokenizer has no field, and is found by how it splits texts (`verification`).
//!
//! Invariant: a file with the keys tokenizes plain texts like the folder, and a difference that was found is reported.

use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::Value as Json;
use tokenizers::ModelWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::models::unigram::Unigram;

use crate::weights::{Array, Metadata, Value};

use super::super::load::Algorithm;
use super::super::vocab::TokenKind;
use super::super::{Tokenizer, byte_level, keys, library_encoder, pretokenizer};
use super::library_folder::LibraryFolder;
use super::tokenizer_json::TokenizerJson;
use super::tokens::{self, CONTINUES, FolderToken, TokenSpelling};
use super::{Error, base64, verification};

/// The metadata for a file that is to be tokenized like a folder.
#[derive(Debug)]
pub struct FileKeys {
    /// The keys of tokens, roles and chat templates.
    pub metadata: Metadata,
    /// An unusual text that a file with the metadata tokenizes differently from the folder.
    pub differs_at: Option<String>,
}

pub(super) fn of(folder: &LibraryFolder) -> Result<FileKeys, Error> {
    let mut keys = KeyWriter {
        folder,
        metadata: folder.common.clone(),
        is_doubtful: false,
        differs: None,
    };
    let verified = || {
        keys.write()?;
        let tokenizer = Tokenizer::from_metadata(&keys.metadata).map_err(|e| e.to_string())?;
        let found = verification::difference(&tokenizer, folder, keys.is_doubtful)?;
        Ok(FileKeys {
            differs_at: keys.differs.map(str::to_owned).or(found),
            metadata: keys.metadata,
        })
    };
    verified().map_err(|why| Error::NotExpressible {
        path: folder.files.tokenizer_path(),
        why,
    })
}

/// The keys of a folder, while they are collected.
struct KeyWriter<'a> {
    folder: &'a LibraryFolder,
    metadata: Metadata,
    /// Whether every token must be tried, because the words alone do not decide.
    is_doubtful: bool,
    /// A text that is known to be tokenized differently.
    differs: Option<&'static str>,
}

type Merges = [(String, String)];

impl KeyWriter<'_> {
    /// Writes the keys that all models have.
    fn begin(&mut self, algorithm: Algorithm, spelling: TokenSpelling) {
        let model = algorithm.model_name();
        self.put(keys::MODEL, Value::Str(model.to_owned()));
        self.put_pre(pretokenizer::DEFAULT);
        tokens::write(&self.folder.tokens, spelling, &mut self.metadata);
    }

    fn put(&mut self, key: &str, value: Value) {
        self.metadata.insert(key, value);
    }

    fn put_pre(&mut self, name: &str) {
        self.put(keys::PRE, Value::Str(name.to_owned()));
    }

    fn put_scores(&mut self, scores: Vec<f32>) {
        self.put(keys::SCORES, Value::Array(Array::F32(scores)));
    }

    fn put_merges(&mut self, merges: &Merges) {
        let lines = merges.iter();
        let lines = lines.map(|(left, right)| format!("{left} {right}"));
        self.put(keys::MERGES, Value::Array(Array::Str(lines.collect())));
    }

    /// Writes the keys, or says why none describe the vocabulary.
    fn write(&mut self) -> Result<(), String> {
        match self.folder.parsed.library.get_model() {
            ModelWrapper::BPE(bpe) => self.write_bpe(bpe),
            ModelWrapper::Unigram(model) => self.write_unigram(model),
            ModelWrapper::WordPiece(pieces) => {
                self.write_word_pieces(&pieces.continuing_subword_prefix)
            }
            ModelWrapper::WordLevel(_) => Err("tokens are whole words".to_owned()),
        }
    }

    fn write_bpe(&mut self, bpe: &BPE) -> Result<(), String> {
        let is_marked = |mark: &Option<String>| mark.as_ref().is_some_and(|m| !m.is_empty());
        if is_marked(&bpe.continuing_subword_prefix) || is_marked(&bpe.end_of_word_suffix) {
            return Err("tokens are marked for their place in a word".to_owned());
        }
        if bpe.dropout.is_some_and(|p| p > 0.0) {
            return Err("BPE dropout is not supported".to_owned());
        }
        // The library shows merges only as a part of its file.
        let mut model = serde_json::to_value(bpe).map_err(|error| error.to_string())?;
        let merges = serde_json::from_value(model["merges"].take());
        let merges: Vec<(String, String)> = merges.map_err(|error| error.to_string())?;
        let has_space = |(l, r): &(String, String)| l.contains(' ') || r.contains(' ');
        if merges.iter().any(has_space) {
            return Err("a merge holds a space".to_owned());
        }
        match self.folder.parsed.is_byte_level() {
            true => self.write_byte_level(bpe, &merges),
            false => self.write_characters(&merges),
        }
    }

    fn write_byte_level(&mut self, bpe: &BPE, merges: &Merges) -> Result<(), String> {
        let parsed = &self.folder.parsed;
        let is_known = |byte: u8| {
            let letter = byte_level::letter_of(byte).to_string();
            parsed.library.token_to_id(&letter).is_some()
        };
        // Bytes without a token are left out silently here; in the folder they become the unknown token.
        if bpe.unk_token.is_some() && !(0..=u8::MAX).all(is_known) {
            return Err("bytes without a token become the unknown token".to_owned());
        }
        let (row, differs) = verification::pre_tokenizer(parsed, bpe.ignore_merges)?;
        self.begin(Algorithm::Merges, TokenSpelling::AsIs);
        self.put_pre(row.usual_name());
        self.put_merges(merges);
        const FORMS: [&str; 4] = ["NFC", "NFD", "NFKC", "NFKD"];
        let mut types = parsed.normalizer.iter().map(|step| step["type"].as_str());
        if let Some(form) = types.find_map(|ty| ty.filter(|ty| FORMS.contains(ty))) {
            self.put(keys::NORMAL_FORM, Value::Str(form.to_lowercase()));
        }
        self.is_doubtful = row.ignore_merges != bpe.ignore_merges;
        self.differs = differs;
        Ok(())
    }

    /// Merges of characters with byte fallback: by score if the merges are those that the scores of their tokens imply,
    /// otherwise by rank.
    fn write_characters(&mut self, merges: &Merges) -> Result<(), String> {
        let tokens = &self.folder.tokens;
        let bytes = tokens.iter().filter(|token| token.kind == TokenKind::Byte);
        if bytes.count() < 256 {
            return Err("not every byte has a token".to_owned());
        }
        let adds_space = self.folder.parsed.adds_space();
        if let Some(scores) = scores(tokens, merges) {
            self.begin(Algorithm::Scores, TokenSpelling::Escaped);
            self.put_scores(scores);
            self.put(keys::ADD_SPACE_PREFIX, Value::Bool(adds_space));
            return Ok(());
        }
        let crosses_lines = |(left, right): &(String, String)| {
            let joined = format!("{left}{right}");
            joined.contains('\n') && joined.contains(|c| c != '\n')
        };
        if adds_space || merges.iter().any(crosses_lines) {
            return Err("merges of characters whose order no scores give".to_owned());
        }
        self.begin(Algorithm::Merges, TokenSpelling::Escaped);
        self.put_pre(pretokenizer::of_lines());
        self.put_merges(merges);
        Ok(())
    }

    fn write_unigram(&mut self, model: &Unigram) -> Result<(), String> {
        const UNUSED: f32 = -10_000.0;
        let parsed = &self.folder.parsed;
        self.begin(Algorithm::Likelihood, TokenSpelling::Escaped);
        let known: FxHashMap<_, _> = model.iter().map(|(text, s)| (text.as_str(), *s)).collect();
        let score = |token: &FolderToken| known.get(&*token.text).map_or(UNUSED, |s| *s as f32);
        self.put_scores(self.folder.tokens.iter().map(score).collect());
        // Several steps can join white space.
        let ids = |text| library_encoder::ids(&parsed.library, text);
        let merges_spaces = ids("a  b")? == ids("a b")?;
        self.put(keys::ADD_SPACE_PREFIX, Value::Bool(parsed.adds_space()));
        self.put(keys::REMOVE_EXTRA_SPACES, Value::Bool(merges_spaces));
        let table = TokenizerJson::step(&parsed.normalizer, "Precompiled");
        if let Some(text) = table.and_then(|step| step["precompiled_charsmap"].as_str()) {
            let bytes = base64::decode(text).ok_or("the table of replacements is not base64")?;
            self.put(keys::CHARSMAP, Value::Array(Array::U8(bytes)));
        }
        Ok(())
    }

    fn write_word_pieces(&mut self, prefix: &str) -> Result<(), String> {
        if prefix != CONTINUES {
            return Err(format!(
                "the continuation prefix is `{prefix}`, expected `{CONTINUES}`"
            ));
        }
        let parsed = &self.folder.parsed;
        let step = TokenizerJson::step(&parsed.normalizer, "BertNormalizer").unwrap_or(&Json::Null);
        let lowercase = step["lowercase"].as_bool().unwrap_or(false);
        let strips = step["strip_accents"].as_bool().unwrap_or(lowercase);
        self.begin(Algorithm::WordPiece, TokenSpelling::Words);
        self.put(keys::LOWERCASE, Value::Bool(lowercase));
        self.put(keys::STRIP_ACCENTS, Value::Bool(strips));
        Ok(())
    }
}

/// Scores for which joining by score equals joining by the merges in their order: the later a token's merges, the lower
/// its score; tokens whose merges interleave share a score. `None` if merges are missing.
fn scores(tokens: &[FolderToken], merges: &[(String, String)]) -> Option<Vec<f32>> {
    struct Merges {
        first: usize,
        last: usize,
        count: usize,
        score: f32,
    }
    let normal = tokens
        .iter()
        .filter(|token| token.kind == TokenKind::Normal);
    let texts: FxHashSet<&str> = normal.map(|token| token.text.as_str()).collect();
    let mut of_token: FxHashMap<&str, Merges> = FxHashMap::default();
    for (rank, (left, right)) in merges.iter().enumerate() {
        let Some(text) = texts.get(format!("{left}{right}").as_str()) else {
            continue;
        };
        let merges = of_token.entry(text).or_insert(Merges {
            first: rank,
            last: rank,
            count: 0,
            score: 0.0,
        });
        merges.last = rank;
        merges.count += 1;
    }
    let mut in_order: Vec<&mut Merges> = of_token.values_mut().collect();
    in_order.sort_unstable_by_key(|merges| merges.first);
    let (mut score, mut end) = (0.0, None);
    for merges in in_order {
        if end.is_none_or(|end| end < merges.first) {
            score -= 1.0;
        }
        end = end.max(Some(merges.last));
        merges.score = score;
    }
    // Joining by score joins any two pieces that together are a token.
    let ways = |text: &str| {
        let cuts = text.char_indices().skip(1);
        cuts.filter(|(at, _)| texts.contains(&text[..*at]) && texts.contains(&text[*at..]))
            .count()
    };
    let scores = tokens.iter().map(|token| {
        if token.kind != TokenKind::Normal {
            return Some(score - 1.0);
        }
        let merges = of_token.get(token.text.as_str());
        let is_complete = ways(&token.text) == merges.map_or(0, |merges| merges.count);
        is_complete.then(|| merges.map_or(score - 1.0, |merges| merges.score))
    });
    scores.collect()
}
