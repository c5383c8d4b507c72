//! The output of a chat: answers and calls on stdout, reasoning and notes on stderr.
//!
//! Colours are used only if the stream is a terminal with colours and `NO_COLOR` is not set. All text of a model is
//! escaped here.

use std::io::{self, IsTerminal as _, Write as _};

use crate::cli::Failure;
use crate::cli::output::{self, escape_controls};
use lab_core::engine::AnswerToken;

/// The part of an answer that is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerPart {
    Content,
    Reasoning,
    Call,
}

/// The terminal, or the streams in its place.
pub(super) struct Screen {
    pub(super) has_colours: bool,
    /// Whether stderr has colours.
    has_dim: bool,
    part: Option<AnswerPart>,
    is_line_open: bool,
}

const PLAIN: &str = "\x1b[0m";
const DIM: &str = "\x1b[2m";
const BOLD: &str = "\x1b[1m";

/// The colour of a token by its probability: green for certain, red for improbable.
fn colour(logprob: f64) -> &'static str {
    match logprob.exp() {
        p if p >= 0.9 => "\x1b[38;5;34m",
        p if p >= 0.6 => "\x1b[38;5;106m",
        p if p >= 0.3 => "\x1b[38;5;178m",
        p if p >= 0.1 => "\x1b[38;5;208m",
        _ => "\x1b[38;5;196m",
    }
}

impl Screen {
    pub(super) fn new() -> Self {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let may = !is_set("NO_COLOR") && !is_dumb;
        Self {
            has_colours: may && io::stdout().is_terminal(),
            has_dim: may && io::stderr().is_terminal(),
            part: None,
            is_line_open: false,
        }
    }

    /// Writes text of the answer. It is coloured by the probabilities of its tokens, if they have any.
    pub(super) fn content(&mut self, text: &str, tokens: &[AnswerToken]) -> Result<(), Failure> {
        if !self.has_colours || tokens.iter().all(|token| token.chosen.is_none()) {
            return self.write(AnswerPart::Content, text, "");
        }
        let (mut bytes, mut least) = (Vec::new(), 0.0_f64);
        for (i, token) in tokens.iter().enumerate() {
            bytes.extend_from_slice(&token.bytes);
            least = token
                .chosen
                .map_or(least, |chosen| least.min(chosen.logprob));
            // A character may consist of several tokens.
            if i + 1 == tokens.len() || std::str::from_utf8(&bytes).is_ok() {
                let own = String::from_utf8_lossy(&bytes).into_owned();
                self.write(AnswerPart::Content, &own, colour(least))?;
                (bytes, least) = (Vec::new(), 0.0);
            }
        }
        Ok(())
    }

    pub(super) fn reasoning(&mut self, text: &str) -> Result<(), Failure> {
        self.write(AnswerPart::Reasoning, text, DIM)
    }

    /// Writes the start of a tool call.
    pub(super) fn call(&mut self, name: &str) -> Result<(), Failure> {
        self.finish_line()?;
        self.write(AnswerPart::Call, &format!("call {name} "), BOLD)
    }

    /// Writes text of a call's arguments.
    pub(super) fn arguments(&mut self, text: &str) -> Result<(), Failure> {
        self.write(AnswerPart::Call, text, "")
    }

    /// Ends an answer with one line feed.
    pub(super) fn end(&mut self) -> Result<(), Failure> {
        if self.part == Some(AnswerPart::Reasoning) {
            self.finish_line()?;
        }
        self.is_line_open = false;
        self.part = None;
        output::bytes(b"\n")
    }

    /// Writes a note that is not from the model.
    pub(super) fn note(&mut self, text: &str) -> Result<(), Failure> {
        self.finish_line()?;
        let (start, end) = match self.has_dim {
            true => (DIM, PLAIN),
            false => ("", ""),
        };
        writeln!(
            io::stderr().lock(),
            "{start}[{}]{end}",
            escape_controls(text)
        )?;
        Ok(())
    }

    pub(super) fn error(failure: &Failure) -> Result<(), Failure> {
        writeln!(
            io::stderr().lock(),
            "error: {}",
            escape_controls(&failure.to_string())
        )?;
        Ok(())
    }

    fn write(&mut self, part: AnswerPart, text: &str, style: &str) -> Result<(), Failure> {
        if text.is_empty() {
            return Ok(());
        }
        if self.part != Some(part) {
            self.finish_line()?;
            self.part = Some(part);
        }
        self.is_line_open = !text.ends_with('\n');
        let is_out = part != AnswerPart::Reasoning;
        let has_style = if is_out {
            self.has_colours
        } else {
            self.has_dim
        };
        let text = match has_style && !style.is_empty() {
            true => format!("{style}{}{PLAIN}", escape_controls(text)),
            false => escape_controls(text),
        };
        if is_out {
            return output::bytes(text.as_bytes());
        }
        let mut err = io::stderr().lock();
        err.write_all(text.as_bytes())?;
        err.flush()?;
        Ok(())
    }

    /// Ends the current line, if there is one.
    fn finish_line(&mut self) -> Result<(), Failure> {
        if !std::mem::take(&mut self.is_line_open) {
            return Ok(());
        }
        if self.part == Some(AnswerPart::Reasoning) {
            io::stderr().lock().write_all(b"\n")?;
            return Ok(());
        }
        output::bytes(b"\n")
    }
}
