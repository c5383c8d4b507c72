//! The shapes of a transcript, and the events of one that is streamed.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use lab_media::transcript::{Segment, Verbose, srt, vtt};

use super::request::{Format, Task};
use super::windows::TranscriptUsage;
use crate::http::json::Json;
use crate::http::transport::SseEvents;
use crate::response::completion_parser::CompletionDelta;
use crate::response::running_completions::{StreamEvent, StreamWriter};

impl TranscriptUsage {
    pub(super) fn json(&self) -> Value {
        let Self {
            audio,
            text,
            output,
        } = *self;
        json!({
            "type": "tokens",
            "input_tokens": audio + text,
            "input_token_details": { "text_tokens": text, "audio_tokens": audio },
            "output_tokens": output,
            "total_tokens": audio + text + output,
        })
    }
}

/// A transcript with times.
pub(super) struct Timed<'a> {
    pub(super) task: Task,
    /// The name of the language in English.
    pub(super) language: &'a str,
    pub(super) seconds: f64,
    pub(super) segments: &'a [Segment],
}

impl Timed<'_> {
    pub(super) fn response(&self, format: Format, usage: &TranscriptUsage) -> Response {
        // A translation is English, whatever is spoken.
        let language = match self.task {
            Task::Transcribe => self.language,
            Task::Translate => "english",
        };
        let verbose = Verbose::new(self.task.name(), language, self.seconds, self.segments);
        match format {
            Format::Srt => plain(srt(self.segments)),
            Format::Vtt => plain(vtt(self.segments)),
            Format::VerboseJson => {
                let mut object = json!(verbose);
                object["usage"] = json!({ "type": "duration", "seconds": self.seconds });
                Json(object).into_response()
            }
            Format::Json | Format::Text => of_text(verbose.text, format, usage),
        }
    }
}

/// The response with a text that has no times.
pub(super) fn of_text(text: String, format: Format, usage: &TranscriptUsage) -> Response {
    match format {
        Format::Text => plain(text + "\n"),
        _ => Json(json!({ "text": text, "usage": usage.json() })).into_response(),
    }
}

fn plain(text: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, text).into_response()
}

/// The events of a transcript.
#[derive(Default)]
pub(super) struct TranscriptEvents {
    text: String,
    /// Rows of sound in the prompt.
    n_audio: usize,
}

impl TranscriptEvents {
    /// The events of a prompt with so many rows of sound.
    pub(super) fn of(n_audio: usize) -> Self {
        Self {
            n_audio,
            ..Self::default()
        }
    }

    pub(super) fn delta(&mut self, text: &str, out: &mut SseEvents) {
        // The text has no blanks before it.
        let text = match self.text.is_empty() {
            true => text.trim_start(),
            false => text,
        };
        if !text.is_empty() {
            self.text.push_str(text);
            out.push(&json!({ "type": "transcript.text.delta", "delta": text }));
        }
    }

    pub(super) fn done(&self, usage: &TranscriptUsage, out: &mut SseEvents) {
        let text = self.text.trim();
        out.push(&json!({ "type": "transcript.text.done", "text": text, "usage": usage.json() }));
    }
}

impl StreamWriter for TranscriptEvents {
    const HAS_DONE: bool = false;

    fn write(&mut self, _: u32, event: StreamEvent<'_>, out: &mut SseEvents) {
        match event {
            StreamEvent::Piece(CompletionDelta::Content(text, _)) => self.delta(&text, out),
            StreamEvent::Done(usage) => {
                let usage = TranscriptUsage {
                    audio: self.n_audio,
                    text: usage.prompt_tokens.saturating_sub(self.n_audio),
                    output: usage.completion_tokens,
                };
                self.done(&usage, out);
            }
            StreamEvent::Failed(error) => out.push(&error.body()),
            _ => {}
        }
    }
}
