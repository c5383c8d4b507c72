//! The tokens by which a model is asked for a transcript and writes one: languages, tasks and times. They are found in its vocabulary; what
//! its authors suppress is metadata `general.transcription.*`, which a folder states in `generation_config.json`.

use std::path::Path;

use serde_json::{Map, Value as Json};

use lab_base::tokenizer::Tokenizer;
use lab_base::weights::safetensors::{is_named, read_small};
use lab_base::weights::{Array, Metadata, Value};
use lab_sampling::{Timestamps, TranscriptRules};

use crate::plan::Plan;

/// The files of a folder that state suppressed tokens; the first one that states a list counts.
const FILES: [&str; 2] = ["generation_config.json", "config.json"];
/// Maximum size of a file in bytes.
const MAX_BYTES: u64 = 1 << 20;
const PREFIX: &str = "general.transcription.";
const LISTS: [&str; 2] = ["suppress_tokens", "begin_suppress_tokens"];
const MOST_INITIAL: &str = "max_initial_timestamp_index";
const IS_MULTILINGUAL: &str = "is_multilingual";

/// Seconds from one timestamp to the next, as their tokens are named.
pub const TIMESTAMP_SECONDS: f64 = 0.02;

/// The tokens of transcripts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TranscriptTokens {
    /// The token that every prompt has before its languages.
    pub start: u32,
    /// The languages, each with its code and its token; none: the model knows one language and no tasks.
    pub languages: Vec<(String, u32)>,
    pub transcribe: Option<u32>,
    /// The task of a translation into English.
    pub translate: Option<u32>,
    /// The token before the text that was heard before.
    pub previous: Option<u32>,
    /// The token that says that nothing is spoken.
    pub no_speech: Option<u32>,
    /// The token that asks for a text without times.
    pub no_timestamps: Option<u32>,
    /// Which tokens may come in a transcript with times, or in any if there are no times.
    pub rules: TranscriptRules,
}

impl TranscriptTokens {
    /// Those of a model whose source is rows of a sound of at most `seconds`; none if its vocabulary has no tasks.
    pub fn of(
        plan: &Plan,
        tokenizer: &Tokenizer,
        metadata: &Metadata,
        seconds: f64,
    ) -> Option<Self> {
        let source = plan.source.as_ref().filter(|source| source.is_rows)?;
        let end = tokenizer.eos()?;
        let id_of = |text: &str| tokenizer.id_of(text);
        let n_tokens = tokenizer.vocab_len() as u32;
        let text_of = |id: u32| tokenizer.token_text(id).unwrap_or_default();
        let language = |id: u32| {
            let text = text_of(id);
            let code = text.strip_prefix("<|")?.strip_suffix("|>")?;
            let is_code = matches!(code.len(), 2 | 3)
                && code.bytes().all(|byte| byte.is_ascii_lowercase())
                && !tokenizer.is_text(id);
            is_code.then(|| (code.to_owned(), id))
        };
        let transcribe = id_of("<|transcribe|>")?;
        let is_multilingual = metadata.bool(&format!("{PREFIX}{IS_MULTILINGUAL}"));
        let languages: Vec<_> = match is_multilingual {
            Some(false) => Vec::new(),
            _ => (0..n_tokens).filter_map(language).collect(),
        };
        let has_tasks = !languages.is_empty();
        let no_timestamps = id_of("<|notimestamps|>");
        let first = id_of("<|0.00|>").or(no_timestamps.map(|id| id + 1));
        let n_vocab = u32::try_from(plan.n_vocab).unwrap_or(u32::MAX);
        let most = (seconds / TIMESTAMP_SECONDS).round() as u32 + 1;
        let timestamps = first.map(|first| Timestamps {
            first,
            n: match id_of("<|0.00|>") {
                // As many as follow each other in the vocabulary.
                Some(_) => (0..most)
                    .take_while(|at| {
                        let seconds = f64::from(*at) * TIMESTAMP_SECONDS;
                        text_of(first + at) == format!("<|{seconds:.2}|>")
                    })
                    .count() as u32,
                None => n_vocab.saturating_sub(first).min(most),
            },
            most_initial: metadata
                .i64(&format!("{PREFIX}{MOST_INITIAL}"))
                .and_then(|most| u32::try_from(most).ok()),
        });
        let timestamps = timestamps.filter(|times| times.n > 1);
        let [mut suppressed, suppressed_first] =
            LISTS.map(|name| ids(metadata.array(&format!("{PREFIX}{name}"))));
        // Of the other special tokens, none belongs into a transcript.
        let is_time = |id: u32| timestamps.is_some_and(|times| times.number(id).is_some());
        let is_special = |id: &u32| !tokenizer.is_text(*id) && !tokenizer.is_end_of_generation(*id);
        suppressed.extend((0..n_vocab).filter(|id| is_special(id) && !is_time(*id)));
        suppressed.sort_unstable();
        suppressed.dedup();
        Some(Self {
            start: source.start,
            transcribe: has_tasks.then_some(transcribe),
            translate: id_of("<|translate|>").filter(|_| has_tasks),
            languages,
            previous: id_of("<|startofprev|>"),
            no_speech: id_of("<|nospeech|>").or_else(|| id_of("<|nocaptions|>")),
            no_timestamps,
            rules: TranscriptRules {
                end,
                suppressed,
                suppressed_first,
                timestamps,
            },
        })
    }

    /// The token of a language by its code.
    pub fn language(&self, code: &str) -> Option<u32> {
        let mut all = self.languages.iter();
        all.find_map(|(own, id)| (own == code).then_some(*id))
    }
}

fn ids(array: Option<&Array>) -> Vec<u32> {
    let values = array.into_iter().flat_map(|array| {
        (0..array.len()).filter_map(|at| array.get(at).as_ref().and_then(Value::as_i64))
    });
    // Some files have -1 for a list of its own.
    values.filter_map(|id| u32::try_from(id).ok()).collect()
}

/// What a folder states of transcripts; empty if it states nothing.
pub(super) fn of_folder(folder: &Path) -> Metadata {
    let read = |name: &str| -> Map<String, Json> {
        let path = folder.join(name);
        let text = is_named(&path).then(|| read_small(&path, MAX_BYTES).ok());
        let parsed = text
            .flatten()
            .and_then(|text| serde_json::from_slice(&text).ok());
        parsed.unwrap_or_default()
    };
    let files = FILES.map(read);
    let stated = |name: &str| {
        files
            .iter()
            .find_map(|file| file.get(name).filter(|of| !of.is_null()))
    };
    let mut metadata = Metadata::default();
    for name in LISTS {
        if let Some(list) = stated(name).and_then(Json::as_array) {
            let ids = list
                .iter()
                .filter_map(|id| i32::try_from(id.as_i64()?).ok());
            let value = Value::Array(Array::I32(ids.collect()));
            metadata.insert(format!("{PREFIX}{name}"), value);
        }
    }
    if let Some(most) = stated(MOST_INITIAL).and_then(Json::as_u64) {
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        metadata.insert(format!("{PREFIX}{MOST_INITIAL}"), Value::U32(most));
    }
    // Older files force a language and a task by their places, or neither.
    let forced = stated("forced_decoder_ids").and_then(Json::as_array);
    let is_multilingual = stated(IS_MULTILINGUAL)
        .and_then(Json::as_bool)
        .or_else(|| forced.map(|forced| forced.len() > 1));
    if let Some(is_multilingual) = is_multilingual {
        metadata.insert(
            format!("{PREFIX}{IS_MULTILINGUAL}"),
            Value::Bool(is_multilingual),
        );
    }
    metadata
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generation_config_counts_before_the_config() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).expect("a file");
        };
        write(
            "config.json",
            r#"{"suppress_tokens": [1, 2], "begin_suppress_tokens": [220, 50257]}"#,
        );
        let file = r#"{"suppress_tokens": [-1, 7], "begin_suppress_tokens": null, "max_initial_timestamp_index": 50,
            "forced_decoder_ids": [[1, 50362]]}"#;
        write("generation_config.json", file);
        let found = of_folder(folder.path());
        let list = |name: &str| ids(found.array(&format!("{PREFIX}{name}")));
        assert_eq!(list("suppress_tokens"), [7]);
        assert_eq!(list("begin_suppress_tokens"), [220, 50257]);
        assert_eq!(
            found.i64("general.transcription.max_initial_timestamp_index"),
            Some(50)
        );
        assert_eq!(
            found.bool("general.transcription.is_multilingual"),
            Some(false)
        );
        write("generation_config.json", "[1]");
        assert_eq!(
            of_folder(folder.path()).i64("general.transcription.max_initial_timestamp_index"),
            None
        );
    }
}
