//! A transcript, window by window: the language is detected, each window is decoded with what was heard before it, at a higher temperature
//! where the result repeats itself or is improbable, and the times of the result say where the next window begins.
//!
//! The rules and their numbers are those of openai/whisper's `transcribe.py`.

use std::io::Write as _;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::ZlibEncoder;

use lab_core::engine::{FinishReason, Request, Usage};
use lab_core::models::media::{MediumWindows, PromptMedia};
use lab_core::models::transcription::TranscriptTokens;
use lab_media::transcript::Segment;
use lab_sampling::{Params, TokenRules};

use super::languages;
use super::request::{Task, TranscriptRequest};
use super::segments::{Window, cut};
use crate::http::context::RequestContext;
use crate::http::error::{Error, quoted, refuse};
use crate::http::json::block_in_place;
use crate::response::running_completions::{Completion, RunningCompletions};
use crate::served::ServedModel;

/// The temperatures that are tried one after another.
const TEMPERATURES: [f64; 6] = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0];
/// A text that compresses better repeats itself.
const MOST_COMPRESSION: f64 = 2.4;
/// A text of a lower mean log-probability is improbable.
const LEAST_LOGPROB: f64 = -1.0;
/// A window is silent if this probability says so and its text is improbable.
const MOST_SILENCE: f64 = 0.6;
/// Text that was drawn at a higher temperature is not given to the next window.
const MOST_KEPT_TEMPERATURE: f64 = 0.5;

/// The tokens of a transcript.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TranscriptUsage {
    /// Rows of sound that were read.
    pub(super) audio: usize,
    /// Tokens of prompts.
    pub(super) text: usize,
    /// Tokens of the transcript.
    pub(super) output: usize,
}

/// A transcript in progress.
pub(super) struct Transcript {
    served: Arc<ServedModel>,
    tokens: Arc<TranscriptTokens>,
    sound: MediumWindows,
    task: Task,
    temperature: f64,
    seed: u64,
    /// Code and token of the language, once it is known; none of a model for one language.
    language: Option<(String, u32)>,
    /// The first frame of the next window.
    next: usize,
    /// The tokens of the text before the next window: the prompt, and what was heard.
    before: Vec<u32>,
    pub(super) usage: TranscriptUsage,
}

/// The result of a window.
struct Decoded {
    answer: Completion,
    ids: Vec<u32>,
    temperature: f64,
    avg_logprob: f64,
    compression_ratio: f64,
}

impl Transcript {
    /// Checks a request against its model and decodes its sound.
    pub(super) fn new(
        served: Arc<ServedModel>,
        tokens: Arc<TranscriptTokens>,
        request: &TranscriptRequest,
    ) -> Result<Self, Error> {
        let Some(media) = &served.media else {
            return Err(Error::engine("a model of transcripts takes no media"));
        };
        let task = match request.task {
            Task::Transcribe => tokens.transcribe,
            Task::Translate => tokens.translate,
        };
        if request.task == Task::Translate && task.is_none() {
            let message = format!("the model `{}` does not translate", served.name);
            return Err(Error::unsupported("model", message));
        }
        let language = request.language.as_deref();
        let language = language.map(|name| Self::language_of(&tokens, name));
        let sound = block_in_place(|| media.processors.windows(&request.file));
        let sound = sound.or_else(|error| refuse("file", format!(": {error}")))?;
        let mut before = Vec::new();
        if let (Some(prompt), Some(_)) = (&request.prompt, tokens.previous) {
            let tokenizer = served.handle.tokenizer();
            let text = format!(" {}", prompt.trim());
            let encoded = tokenizer.encode(&text, false, false);
            before = encoded.or_else(|error| refuse("prompt", format!(": {error}")))?;
        }
        Ok(Self {
            language: language.transpose()?.flatten(),
            served,
            tokens,
            sound,
            task: request.task,
            temperature: request.temperature,
            seed: request.seed,
            next: 0,
            before,
            usage: TranscriptUsage::default(),
        })
    }

    /// Code and token of a language that a client names; none of a model for one language.
    fn language_of(tokens: &TranscriptTokens, name: &str) -> Result<Option<(String, u32)>, Error> {
        let code = languages::code_of(name);
        match (tokens.language(&code), tokens.languages.is_empty()) {
            (Some(id), _) => Ok(Some((code, id))),
            (None, true) => {
                RequestContext::current().ignore("language");
                Ok(None)
            }
            (None, false) => {
                let known = tokens.languages.iter().map(|(code, _)| code.as_str());
                let known = known.collect::<Vec<_>>().join(", ");
                let name = quoted(name);
                let message = format!(" is `{name}`, expected one of the model's: {known}");
                refuse("language", message)
            }
        }
    }

    /// The name of the language in English.
    pub(super) fn language(&self) -> &str {
        let code = self.language.as_ref().map_or("en", |(code, _)| code);
        languages::name_of(code)
    }

    /// The length of the sound in seconds.
    pub(super) fn seconds(&self) -> f64 {
        self.sound.sound().seconds()
    }

    /// Asks for one completion after the rows of a window. The log-probabilities of its tokens are known.
    async fn ask(
        &self,
        media: &Arc<PromptMedia>,
        prompt: &[u32],
        rules: TokenRules,
        (most, temperature): (usize, f64),
    ) -> Result<(Completion, Usage), Error> {
        let request = Request {
            media: Some(Arc::clone(media)),
            rules: Some(Arc::new(rules)),
            top_logprobs: Some(0),
            sampling: Params {
                temperature,
                seed: self.seed,
                ..Params::default()
            },
            ..Request::new(prompt.to_vec(), most)
        };
        let running = RunningCompletions::submit(&self.served, vec![request], 1)?;
        let (mut all, usage) = running.collect().await?;
        let one = all.pop();
        one.map(|one| (one, usage))
            .ok_or_else(|| Error::engine("a completion is missing"))
    }

    /// The probability of a token after a prompt.
    async fn probability(
        &self,
        media: &Arc<PromptMedia>,
        prompt: &[u32],
        token: u32,
    ) -> Result<f64, Error> {
        let rules = TokenRules::Only(vec![token]);
        let (one, _) = self.ask(media, prompt, rules, (1, 0.0)).await?;
        let found = one.tokens.iter().chain(&one.ended).next();
        let logprob = found.and_then(|token| token.chosen);
        Ok(logprob.map_or(0.0, |chosen| chosen.logprob.exp()))
    }

    /// The likeliest language of a window; none of a model for one language.
    async fn detected(&self, media: &Arc<PromptMedia>) -> Result<Option<(String, u32)>, Error> {
        let all = &self.tokens.languages;
        if all.is_empty() {
            return Ok(None);
        }
        let rules = TokenRules::Only(all.iter().map(|(_, id)| *id).collect());
        let (one, _) = self
            .ask(media, &[self.tokens.start], rules, (1, 0.0))
            .await?;
        let found = one.tokens.first().map(|token| token.id);
        Ok(all.iter().find(|(_, id)| Some(*id) == found).cloned())
    }

    /// The segments of the next window; none at the end of the sound.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<Segment>>, Error> {
        let sound = self.sound.sound();
        let n_left = sound.n_frames().saturating_sub(self.next);
        if n_left == 0 {
            return Ok(None);
        }
        let window = Window {
            from: self.next,
            n: n_left.min(sound.n_of_window()),
            frame_seconds: sound.frame_seconds(),
        };
        let medium = block_in_place(|| self.sound.at(self.next));
        let medium = medium.or_else(|error| refuse("file", format!(": {error}")))?;
        self.usage.audio += medium.n_rows();
        let media = Arc::new(PromptMedia {
            media: vec![Arc::new(medium)],
            places: Vec::new(),
        });
        if self.language.is_none() {
            self.language = self.detected(&media).await?;
        }
        // Half of the positions are for what was heard before, half for the text.
        let half = match self.served.info.n_ctx_train {
            0 => self.served.handle.limits().n_ctx / 2,
            n => usize::try_from(n).unwrap_or(usize::MAX) / 2,
        };
        let mut prompt = Vec::new();
        if let Some(previous) = self.tokens.previous.filter(|_| !self.before.is_empty()) {
            prompt.push(previous);
            let n = self.before.len().min(half.saturating_sub(1));
            prompt.extend_from_slice(&self.before[self.before.len() - n..]);
        }
        prompt.push(self.tokens.start);
        let no_speech_prob = match self.tokens.no_speech {
            Some(token) => self.probability(&media, &prompt, token).await?,
            None => 0.0,
        };
        prompt.extend(self.language.iter().map(|(_, id)| *id));
        prompt.extend(match self.task {
            Task::Transcribe => self.tokens.transcribe,
            Task::Translate => self.tokens.translate,
        });
        let times = self.tokens.rules.timestamps;
        prompt.extend(self.tokens.no_timestamps.filter(|_| times.is_none()));
        let decoded = self
            .decoded(&media, &prompt, (half, no_speech_prob))
            .await?;
        self.usage.text += prompt.len();
        self.usage.output += decoded.ids.len();
        let is_improbable = decoded.avg_logprob <= LEAST_LOGPROB;
        if no_speech_prob > MOST_SILENCE && is_improbable {
            self.next += window.n;
            return Ok(Some(Vec::new()));
        }
        let (cuts, step) = cut(&decoded.ids, times.as_ref(), window);
        let mut segments = Vec::with_capacity(cuts.len());
        let seek = window.from as f64 * window.frame_seconds * 100.0;
        for part in cuts {
            let text = self.text(&decoded.answer, part.tokens.clone());
            if part.end <= part.start || text.trim().is_empty() {
                continue;
            }
            segments.push(Segment {
                seek: seek.round() as usize,
                start: part.start,
                end: part.end,
                text,
                tokens: decoded.ids[part.tokens].to_vec(),
                temperature: decoded.temperature,
                avg_logprob: decoded.avg_logprob,
                compression_ratio: decoded.compression_ratio,
                no_speech_prob,
            });
        }
        self.next += step;
        if decoded.temperature > MOST_KEPT_TEMPERATURE {
            self.before.clear();
        } else {
            let heard = segments.iter().flat_map(|segment| &segment.tokens);
            self.before.extend(heard);
            // No prompt has more.
            let n_over = self.before.len().saturating_sub(half);
            self.before.drain(..n_over);
        }
        Ok(Some(segments))
    }

    /// The tokens of a window, at the first temperature that gives a good text, or at the last one.
    async fn decoded(
        &self,
        media: &Arc<PromptMedia>,
        prompt: &[u32],
        (most, no_speech_prob): (usize, f64),
    ) -> Result<Decoded, Error> {
        let one = [self.temperature];
        let all = match self.temperature > 0.0 {
            true => &one[..],
            false => &TEMPERATURES,
        };
        let mut last = None;
        for temperature in all {
            let rules = TokenRules::Transcript(self.tokens.rules.clone());
            let asked = self.ask(media, prompt, rules, (most, *temperature));
            let decoded = self.judged(asked.await?.0, *temperature);
            let is_silent = no_speech_prob > MOST_SILENCE && decoded.avg_logprob < LEAST_LOGPROB;
            let is_good = decoded.compression_ratio <= MOST_COMPRESSION
                && decoded.avg_logprob >= LEAST_LOGPROB;
            last = Some(decoded);
            if is_good || is_silent {
                break;
            }
        }
        last.ok_or_else(|| Error::engine("no temperature is tried"))
    }

    fn judged(&self, answer: Completion, temperature: f64) -> Decoded {
        let all = answer.tokens.iter().chain(&answer.ended);
        let logprobs = all.filter_map(|token| token.chosen);
        let (n, sum) = logprobs.fold((0, 0.0), |(n, sum), chosen| (n + 1, sum + chosen.logprob));
        // The mean is over the token that ends the text too, whether it came or not.
        let n = if answer.reason == Some(FinishReason::Stop) {
            n
        } else {
            n + 1
        };
        let text = self.text(&answer, 0..answer.tokens.len());
        Decoded {
            ids: answer.tokens.iter().map(|token| token.id).collect(),
            temperature,
            avg_logprob: sum / f64::from(n.max(1)),
            compression_ratio: compression_ratio(text.trim()),
            answer,
        }
    }

    /// The text of tokens of an answer.
    fn text(&self, answer: &Completion, tokens: std::ops::Range<usize>) -> String {
        let tokenizer = self.served.handle.tokenizer();
        let tokens = answer.tokens[tokens].iter();
        let of_text = tokens.filter(|token| tokenizer.is_text(token.id));
        let bytes: Vec<u8> = of_text.flat_map(|token| &token.bytes).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// How many times shorter a text is once compressed.
fn compression_ratio(text: &str) -> f64 {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    let written = encoder.write_all(text.as_bytes());
    let compressed = written.and_then(|()| encoder.finish());
    compressed.map_or(0.0, |bytes| text.len() as f64 / bytes.len().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_compress() {
        assert!(compression_ratio(&"again and ".repeat(40)) > MOST_COMPRESSION);
        assert!(compression_ratio("The sea is wide, and the ship is small.") < MOST_COMPRESSION);
        assert!(compression_ratio("") < 1e-9);
    }
}
