//! What was heard in a sound, as text with times: SubRip (`srt`), WebVTT (`vtt`), and the object that `verbose_json` names in OpenAI's API.
//!
//! Times are written as that API and ffmpeg write them: to the millisecond, with at least two digits of hours. In the text of a segment
//! nothing can be taken for the beginning of another one.

use std::fmt::Write;

use serde::Serialize;

/// A part of a transcript.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Segment {
    /// The first frame of the window that it was heard in, in hundredths of a second.
    pub seek: usize,
    /// In seconds from the beginning of the sound.
    pub start: f64,
    /// In seconds from the beginning of the sound.
    pub end: f64,
    /// What was said.
    pub text: String,
    /// The tokens of the text, times included.
    pub tokens: Vec<u32>,
    /// The temperature at which they were drawn.
    pub temperature: f64,
    /// The mean of the log-probabilities of the tokens of the window.
    pub avg_logprob: f64,
    /// How many times shorter the text of the window is once compressed; a large number tells of repetitions.
    pub compression_ratio: f64,
    /// The probability that nothing is said in the window.
    pub no_speech_prob: f64,
}

/// A time with a sign between seconds and milliseconds. What is no time is the beginning.
fn time(seconds: f64, sign: char) -> String {
    // Rounds half to even, as the implementation does whose output this is.
    let total = (seconds.max(0.0) * 1000.0).round_ties_even() as u64;
    let (hours, minutes) = (total / 3_600_000, total / 60_000 % 60);
    let (seconds, milliseconds) = (total / 1000 % 60, total % 1000);
    format!("{hours:02}:{minutes:02}:{seconds:02}{sign}{milliseconds:03}")
}

/// The lines of a text. An empty one would end the segment, an arrow would begin the times of another.
fn lines(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("\n").replace("-->", "->")
}

/// SubRip.
pub fn srt(segments: &[Segment]) -> String {
    let mut text = String::new();
    for (segment, number) in segments.iter().zip(1..) {
        let (start, end) = (time(segment.start, ','), time(segment.end, ','));
        let _ = write!(
            text,
            "{number}\n{start} --> {end}\n{}\n\n",
            lines(&segment.text)
        );
    }
    text
}

/// WebVTT. Characters that begin its marks are escaped.
pub fn vtt(segments: &[Segment]) -> String {
    let mut text = "WEBVTT\n\n".to_owned();
    for segment in segments {
        let (start, end) = (time(segment.start, '.'), time(segment.end, '.'));
        let escaped = lines(&segment.text)
            .replace('&', "&amp;")
            .replace('<', "&lt;");
        let _ = write!(text, "{start} --> {end}\n{escaped}\n\n");
    }
    text
}

/// The object of `verbose_json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verbose<'a> {
    /// `transcribe` or `translate`.
    pub task: &'a str,
    /// The language of the sound, in English.
    pub language: &'a str,
    /// The length of the sound, in seconds.
    pub duration: f64,
    /// The whole text.
    pub text: String,
    /// Its parts, numbered from 0.
    pub segments: Vec<Numbered<'a>>,
}

/// A part with its number.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Numbered<'a> {
    /// The number, from 0.
    pub id: usize,
    /// The part.
    #[serde(flatten)]
    pub segment: &'a Segment,
}

impl<'a> Verbose<'a> {
    /// The object of segments; the whole text is theirs, without blanks around it.
    pub fn new(task: &'a str, language: &'a str, duration: f64, segments: &'a [Segment]) -> Self {
        let text: String = segments
            .iter()
            .map(|segment| segment.text.as_str())
            .collect();
        Self {
            task,
            language,
            duration,
            text: text.trim().to_owned(),
            segments: segments
                .iter()
                .enumerate()
                .map(|(id, segment)| Numbered { id, segment })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(start: f64, end: f64, text: &str) -> Segment {
        Segment {
            start,
            end,
            text: text.to_owned(),
            ..Segment::default()
        }
    }

    #[test]
    fn times_have_hours_and_milliseconds() {
        for (seconds, expected) in [
            (0.0, "00:00:00,000"),
            (3.32, "00:00:03,320"),
            (59.9996, "00:01:00,000"),
            (3599.9994, "00:59:59,999"),
            (360_000.0, "100:00:00,000"),
            (0.0005, "00:00:00,000"),
            (0.0015, "00:00:00,002"),
            (-1.0, "00:00:00,000"),
            (f64::NAN, "00:00:00,000"),
        ] {
            assert_eq!(time(seconds, ','), expected, "{seconds}");
        }
    }

    #[test]
    fn subtitles_are_numbered_and_end_with_an_empty_line() {
        let segments = [
            segment(0.0, 3.32, " The sea is"),
            segment(3.32, 4.5, " wide."),
        ];
        let expected = "1\n00:00:00,000 --> 00:00:03,320\nThe sea is\n\n2\n00:00:03,320 --> 00:00:04,500\nwide.\n\n";
        assert_eq!(srt(&segments), expected);
        let expected = "WEBVTT\n\n00:00:00.000 --> 00:00:03.320\nThe sea is\n\n00:00:03.320 --> 00:00:04.500\nwide.\n\n";
        assert_eq!(vtt(&segments), expected);
        assert_eq!((srt(&[]).as_str(), vtt(&[]).as_str()), ("", "WEBVTT\n\n"));
    }

    #[test]
    fn text_cannot_begin_another_segment() {
        let forged = segment(
            0.0,
            1.0,
            " a\r\n\r\n2\n00:00:00,000 --> 00:00:01,000\n\n<b> & c",
        );
        let expected =
            "1\n00:00:00,000 --> 00:00:01,000\na\n2\n00:00:00,000 -> 00:00:01,000\n<b> & c\n\n";
        assert_eq!(srt(std::slice::from_ref(&forged)), expected);
        assert!(vtt(&[forged]).ends_with("\n&lt;b> &amp; c\n\n"));
    }

    #[test]
    fn the_object_has_the_whole_text_and_its_parts() {
        let segments = [
            segment(0.0, 3.32, " The sea is"),
            segment(3.32, 4.5, " wide."),
        ];
        let object = serde_json::to_value(Verbose::new("transcribe", "english", 4.5, &segments))
            .expect("an object");
        let expected = serde_json::json!({
            "task": "transcribe", "language": "english", "duration": 4.5, "text": "The sea is wide.",
            "segments": [
                {"id": 0, "start": 0.0, "end": 3.32, "text": " The sea is"},
                {"id": 1, "start": 3.32, "end": 4.5, "text": " wide."},
            ],
        });
        let mut shown = object;
        let mut n_numbers = 0;
        for segment in shown["segments"].as_array_mut().expect("an array") {
            let fields = segment.as_object_mut().expect("an object");
            for name in [
                "seek",
                "tokens",
                "temperature",
                "avg_logprob",
                "compression_ratio",
                "no_speech_prob",
            ] {
                n_numbers += usize::from(fields.remove(name).is_some());
            }
        }
        assert_eq!((shown, n_numbers), (expected, 12));
    }
}
