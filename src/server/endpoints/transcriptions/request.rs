//! The form of a request for a transcript.

use axum::body::Bytes;
use axum::http::HeaderMap;
use serde_json::{Map, Value};

use crate::http::context::RequestContext;
use crate::http::error::{Error, quoted, refuse};
use crate::http::form;
use crate::request::fields::{BodyFields, FieldDoc, RequestPart as _, fields};
use crate::served::DEFAULT_MODEL;

/// What is made of a sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// The text in the language that is spoken.
    Transcribe,
    /// The text in English.
    Translate,
}

impl Task {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Transcribe => "transcribe",
            Self::Translate => "translate",
        }
    }
}

/// The shape of a transcript.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Text,
    Srt,
    VerboseJson,
    Vtt,
}

const FORMATS: [(&str, Format); 5] = [
    ("json", Format::Json),
    ("text", Format::Text),
    ("srt", Format::Srt),
    ("verbose_json", Format::VerboseJson),
    ("vtt", Format::Vtt),
];

impl Format {
    pub(super) fn name(self) -> &'static str {
        let found = FORMATS.iter().find(|(_, format)| *format == self);
        found.map_or("", |(name, _)| name)
    }

    /// Whether the transcript has times.
    pub(super) fn has_times(self) -> bool {
        !matches!(self, Self::Json | Self::Text)
    }
}

fields! {
    struct TranscriptFields {
        model: Option<String>,
        /// The language that is spoken: its code (ISO 639-1) or its name in English. Without it the language is detected.
        language: Option<String>,
        /// Text that the transcript continues; of a model that takes sounds in conversations, the instruction.
        prompt: Option<String>,
        /// `json`, `text`, `srt`, `verbose_json` or `vtt`.
        response_format: Option<String>,
        /// From 0 to 1. With 0, the default, it rises where a transcript repeats itself or is improbable.
        temperature: Option<f64>,
        seed: Option<i64>,
        /// `segment`; times of words are refused. Only for `verbose_json`.
        timestamp_granularities: Option<Vec<Value>>,
        stream: Option<bool>,
        /// Refused: log-probabilities.
        include: Option<Vec<Value>>,
        /// Has no effect: the server cuts long sounds.
        chunking_strategy: Option<Value>,
    }
}

pub(crate) fn fields() -> Vec<FieldDoc> {
    let file = FieldDoc {
        name: "file",
        ty: "String".into(),
        doc: "The bytes of a sound: WAV, FLAC, MP3, Ogg Vorbis or M4A.".into(),
    };
    let own = TranscriptFields::documented();
    [file].into_iter().chain(own).collect()
}

/// A checked request.
#[derive(Debug)]
pub(super) struct TranscriptRequest {
    pub(super) model: String,
    pub(super) file: Bytes,
    pub(super) task: Task,
    pub(super) language: Option<String>,
    pub(super) prompt: Option<String>,
    pub(super) format: Format,
    pub(super) temperature: f64,
    pub(super) seed: u64,
    pub(super) is_streamed: bool,
}

/// A part of a form as JSON: the text of a field that is a number or a truth is one.
fn json_of(name: &str, text: String) -> Value {
    let is_plain = ["temperature", "seed", "stream"].contains(&name);
    let parsed = is_plain.then(|| text.trim().to_ascii_lowercase().parse().ok());
    parsed.flatten().unwrap_or(Value::String(text))
}

impl TranscriptRequest {
    pub(super) async fn read(headers: &HeaderMap, body: Bytes, task: Task) -> Result<Self, Error> {
        let (mut file, mut fields) = (None, Map::new());
        for part in form::parts(headers, body).await? {
            if part.name == "file" {
                file = Some(part.data);
                continue;
            }
            let text = part.text()?;
            match part.name.strip_suffix("[]").unwrap_or(&part.name) {
                name @ ("timestamp_granularities" | "include") => {
                    let list = fields
                        .entry(name)
                        .or_insert_with(|| Value::Array(Vec::new()));
                    list.as_array_mut()
                        .into_iter()
                        .for_each(|list| list.push(text.as_str().into()));
                }
                // A field without text is one that is not set.
                _ if text.is_empty() => {}
                _ => {
                    let value = json_of(&part.name, text);
                    fields.insert(part.name, value);
                }
            }
        }
        let fields: TranscriptFields = BodyFields::new(fields).whole()?;
        let file = file.ok_or_else(|| Error::missing("file"))?;
        if file.is_empty() {
            return refuse("file", ": the file is empty");
        }
        fields.checked(file, task)
    }
}

impl TranscriptFields {
    fn checked(self, file: Bytes, task: Task) -> Result<TranscriptRequest, Error> {
        let format = match self.response_format.as_deref() {
            None => Format::Json,
            Some(name) => {
                let found = FORMATS.iter().find(|(own, _)| *own == name);
                let known = FORMATS.map(|(name, _)| name).join("`, `");
                let Some((_, format)) = found else {
                    let name = quoted(name);
                    let message = format!(" is `{name}`, expected one of `{known}`");
                    return refuse("response_format", message);
                };
                *format
            }
        };
        let is_streamed = self.stream == Some(true);
        if is_streamed && format != Format::Json {
            return refuse(
                "response_format",
                format!(
                    " is `{}`, expected `json` where `stream` is true",
                    format.name()
                ),
            );
        }
        let granularities = self.timestamp_granularities.unwrap_or_default();
        let param = "timestamp_granularities";
        for wanted in &granularities {
            match wanted.as_str().unwrap_or_default() {
                "segment" => {}
                "word" => {
                    let message = format!(
                        "`{param}`: times of words are not supported, only those of segments"
                    );
                    return Err(Error::unsupported(param, message));
                }
                other => {
                    let other = quoted(other);
                    return refuse(param, format!(" has `{other}`, expected `segment`"));
                }
            }
        }
        if !granularities.is_empty() && format != Format::VerboseJson {
            return refuse(param, " needs `response_format` to be `verbose_json`");
        }
        if self.include.is_some_and(|include| !include.is_empty()) {
            let message = "`include`: log-probabilities of transcripts are not supported";
            return Err(Error::unsupported("include", message));
        }
        if self.chunking_strategy.is_some() {
            RequestContext::current().ignore("chunking_strategy");
        }
        let temperature = self.temperature.unwrap_or(0.0);
        if !(0.0..=1.0).contains(&temperature) {
            return refuse("temperature", format!(" is {temperature}, expected 0 to 1"));
        }
        let some = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
        Ok(TranscriptRequest {
            model: self.model.unwrap_or_else(|| DEFAULT_MODEL.to_owned()),
            file,
            task,
            language: some(self.language),
            prompt: some(self.prompt),
            format,
            temperature,
            seed: self.seed.unwrap_or(0).cast_unsigned(),
            is_streamed,
        })
    }
}
