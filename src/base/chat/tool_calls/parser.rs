//! Splits text into reasoning, content and tool calls, while it arrives.
//!
//! Text that does not parse as a call of an offered tool is content. A block of reasoning that is never closed may end
//! with calls.

use std::sync::Arc;

use serde_json::Value;

use super::format::{CallBody, CallFormat, MarkPair};
use super::header;
use super::json::Parsed;
use super::open_call::{OpenCall, PendingHeader};

#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    pub name: String,
    /// JSON Schema of the arguments.
    pub parameters: Value,
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputPart {
    /// Text for the user.
    Content(String),
    Reasoning(String),
    /// The start of a call.
    Call {
        /// Number of the call, from 0.
        index: u32,
        /// The id of the call, if the model wrote one.
        id: Option<String>,
        /// The name of the tool.
        name: String,
    },
    /// Text of a call's arguments, which are JSON.
    Arguments {
        /// Number of the call.
        index: u32,
        /// The added text.
        text: String,
    },
}

/// Consecutive bytes of the text with their meaning; `None` for marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputSpan {
    pub bytes: usize,
    /// The part that the bytes mean. For content it is exactly these bytes; without bytes, it is white space between
    /// texts that only marks separate.
    pub part: Option<OutputPart>,
    /// Whether the bytes are in a block of reasoning.
    pub is_reasoning: bool,
}

#[derive(Clone, Debug)]
pub(super) enum ParserState {
    /// Content, or text that may become something else.
    Content,
    Reasoning,
    /// The arguments of a call.
    Call(Box<OpenCall>),
    Between,
    /// The header of a message.
    Header,
}

/// Parses one answer.
#[derive(Clone, Debug)]
pub struct OutputParser {
    pub(super) format: Option<Arc<CallFormat>>,
    pub(super) tools: Arc<Vec<Tool>>,
    pub(super) reasoning: Option<MarkPair>,
    pub(super) state: ParserState,
    /// Text whose meaning is not decided yet.
    pub(super) held: String,
    pub(super) out: Vec<OutputSpan>,
    /// Whether only white space and reasoning came so far.
    is_start: bool,
    /// Whether white space is dropped, as it is after a mark.
    pub(super) drops_space: bool,
    /// Whether there was content other than white space.
    has_said: bool,
    /// The white space between the last content and the next, if marks separate them.
    joint: Option<String>,
    pub(super) n_calls: u32,
    /// The text of an open block of reasoning that may be calls.
    pub(super) trial: Option<Box<TrialParser>>,
    /// Whether the text was cut off at its end.
    pub(super) is_cut: bool,
}

/// The text of a block of reasoning that may be calls.
#[derive(Clone, Debug)]
pub(super) struct TrialParser {
    pub(super) parser: OutputParser,
    pub(super) spans: Vec<OutputSpan>,
    /// The number of held bytes that it has read.
    pub(super) n: usize,
}

#[derive(Clone, Copy)]
enum MarkHit {
    Think(usize),
    Call,
    Silent(usize),
}

impl OutputParser {
    /// A parser; `is_reasoning` says whether the prompt has opened a block of reasoning.
    pub fn new(
        format: Option<Arc<CallFormat>>,
        tools: Arc<Vec<Tool>>,
        reasoning: Option<MarkPair>,
        is_reasoning: bool,
    ) -> Self {
        let has_channels = format
            .as_ref()
            .is_some_and(|f| f.body == CallBody::Channels);
        let state = match (is_reasoning, has_channels) {
            (true, _) => ParserState::Reasoning,
            (false, true) => ParserState::Header,
            _ => ParserState::Content,
        };
        Self {
            format,
            tools,
            reasoning,
            drops_space: is_reasoning,
            state,
            held: String::new(),
            out: Vec::new(),
            is_start: true,
            has_said: false,
            joint: None,
            n_calls: 0,
            trial: None,
            is_cut: false,
        }
    }

    /// Adds text. Returns the spans whose meaning is decided.
    pub fn push(&mut self, text: &str) -> Vec<OutputSpan> {
        self.held.push_str(text);
        while self.step(false) {}
        std::mem::take(&mut self.out)
    }

    /// The remaining spans at the end of the text. `is_cut`: it ends because the output was cut off; then JSON arguments
    /// stay cut off, too.
    pub fn finish(&mut self, is_cut: bool) -> Vec<OutputSpan> {
        self.is_cut = is_cut;
        while (!self.held.is_empty() || matches!(self.state, ParserState::Call(_)))
            && self.step(true)
        {}
        let rest = self.held.len();
        self.silent(rest);
        std::mem::take(&mut self.out)
    }

    /// Whether the parser is in a block of reasoning.
    pub fn is_reasoning(&self) -> bool {
        matches!(self.state, ParserState::Reasoning)
    }

    /// Number of calls so far.
    pub fn n_calls(&self) -> u32 {
        self.n_calls
    }

    fn step(&mut self, is_last: bool) -> bool {
        if self.held.is_empty() && !is_last {
            return false;
        }
        match self.state {
            ParserState::Content if self.channels().is_some() => self.message(is_last, false),
            ParserState::Reasoning if self.channels().is_some() => self.message(is_last, true),
            ParserState::Header => self.message_header(is_last),
            ParserState::Content => self.content(is_last),
            ParserState::Reasoning => self.reasoning(is_last),
            ParserState::Between => self.between(is_last),
            ParserState::Call(_) => self.call(is_last),
        }
    }

    pub(super) fn silent(&mut self, bytes: usize) {
        self.take(bytes, |_| None);
    }

    pub(super) fn take(&mut self, bytes: usize, part: impl FnOnce(String) -> Option<OutputPart>) {
        if bytes == 0 {
            return;
        }
        let text: String = self.held.drain(..bytes).collect();
        let part = part(text);
        let is_reasoning = matches!(part, Some(OutputPart::Reasoning(_)));
        self.out.push(OutputSpan {
            bytes,
            part,
            is_reasoning,
        });
    }

    /// Adds a part to which no bytes of the text correspond.
    pub(super) fn say(&mut self, part: OutputPart) {
        self.out.push(OutputSpan {
            bytes: 0,
            part: Some(part),
            is_reasoning: false,
        });
    }

    pub(super) fn say_content(&mut self, bytes: usize) {
        if bytes > 0 {
            self.drops_space = false;
            let joint = self.joint.take();
            if let Some(joint) = joint.filter(|_| !self.held.starts_with(char::is_whitespace)) {
                self.say(OutputPart::Content(joint));
            }
            self.has_said |= !self.held[..bytes].trim().is_empty();
            self.take(bytes, |text| Some(OutputPart::Content(text)));
        }
    }

    /// Consumes reasoning up to `end`; white space around it is dropped.
    pub(super) fn say_reasoning(&mut self, is_last: bool, end: usize) {
        if self.drops_space {
            let space = self.held[..end].len() - self.held[..end].trim_start().len();
            self.silent(space);
            return self.say_more_reasoning(is_last, end - space);
        }
        self.say_more_reasoning(is_last, end);
    }

    fn say_more_reasoning(&mut self, is_last: bool, end: usize) {
        let said = self.held[..end].trim_end().len();
        if said > 0 {
            self.drops_space = false;
            self.take(said, |text| Some(OutputPart::Reasoning(text)));
        }
        if is_last {
            self.silent(end - said);
        }
    }

    /// Continues in a state after a mark. White space is dropped.
    pub(super) fn resume(&mut self, state: ParserState) {
        self.state = state;
        self.drops_space = true;
    }

    /// Notes that a call or a message begins after `space` bytes of white space, so that the texts before and after it
    /// stay apart.
    pub(super) fn begins_call(&mut self, space: usize) {
        if self.has_said && self.joint.is_none() {
            self.joint = Some(match space {
                0 => "\n".to_owned(),
                space => self.held[..space].to_owned(),
            });
        }
    }

    pub(super) fn keeps_space(&mut self) {
        self.drops_space = false;
    }

    fn content(&mut self, is_last: bool) -> bool {
        let text = self.held.as_str();
        let space = text.len() - text.trim_start().len();
        if self.drops_space && space > 0 {
            // White space before content that follows other content is content.
            if self.joint.is_none() || (is_last && space == text.len()) {
                self.silent(space);
                return true;
            }
            if space == text.len() {
                return false;
            }
        }
        if let Some((at, hit)) = self.hit() {
            return self.found(at, hit, is_last);
        }
        // A possible start of a mark is held back, and white space before it.
        let mut end = match is_last {
            true => text.len(),
            false => text.len() - self.partial(),
        };
        if !is_last && (self.format.is_some() || self.is_start) {
            end = text[..end].trim_end().len();
        }
        self.is_start &= text[..end].trim().is_empty();
        self.say_content(end);
        end > 0
    }

    /// The first mark in the text.
    fn hit(&self) -> Option<(usize, MarkHit)> {
        let text = self.held.as_str();
        let first = text.len() - text.trim_start().len();
        let think = self.reasoning.as_ref().filter(|_| self.is_start);
        let think = think.filter(|marks| text[first..].starts_with(marks.open.as_str()));
        if let Some(marks) = think {
            return Some((first, MarkHit::Think(marks.open.len())));
        }
        let format = self.format.as_ref()?;
        let is_bare = format.bare && self.is_start && text[first..].starts_with(['{', '[']);
        let bare = is_bare.then_some((first, MarkHit::Call));
        let calls = format.starts().filter_map(|mark| text.find(mark));
        let calls = calls.map(|at| (at, MarkHit::Call));
        let silent = format.silent.iter();
        let silent = silent
            .filter_map(|mark| Some((text.find(mark.as_str())?, MarkHit::Silent(mark.len()))));
        bare.into_iter()
            .chain(calls)
            .chain(silent)
            .min_by_key(|(at, _)| *at)
    }

    /// Length of the longest suffix of the text that may become a mark.
    fn partial(&self) -> usize {
        let think = self.reasoning.iter().filter(|_| self.is_start);
        let think = think.map(|marks| marks.open.as_str());
        let format = self.format.iter();
        let marks = format.flat_map(|f| f.starts().chain(f.silent.iter().map(String::as_str)));
        start_of_any(&self.held, think.chain(marks))
    }

    fn found(&mut self, at: usize, hit: MarkHit, is_last: bool) -> bool {
        let space = at - self.held[..at].trim_end().len();
        match hit {
            MarkHit::Think(length) => {
                self.silent(at + length);
                self.resume(ParserState::Reasoning);
            }
            MarkHit::Silent(length) => {
                match self.drops_space && at == space {
                    true => self.silent(at),
                    false => self.say_content(at),
                }
                self.silent(length);
                self.drops_space |= self.is_start;
            }
            MarkHit::Call => {
                if at > space {
                    self.is_start = false;
                    self.say_content(at - space);
                    return true;
                }
                return self.try_call(at, false, is_last);
            }
        }
        true
    }

    /// Parses the header of a call after `space` bytes of white space, which are content if there is no call.
    fn try_call(&mut self, space: usize, is_next: bool, is_last: bool) -> bool {
        let Some(format) = self.format.clone() else {
            return false;
        };
        let text = &self.held[space..];
        let found = match header::header(text, &format, is_next) {
            Parsed::More if is_last || text.len() > header::MAX => Parsed::No,
            found => found,
        };
        match found {
            Parsed::Yes(header) if self.offers(&header.name) => {
                self.start(PendingHeader {
                    space,
                    header,
                    is_next,
                });
                true
            }
            Parsed::More => false,
            _ => {
                self.no_call(space, is_next);
                true
            }
        }
    }

    /// Continues where no call follows after `space` bytes of white space.
    pub(super) fn no_call(&mut self, space: usize, is_next: bool) {
        self.is_start = false;
        if is_next {
            self.resume(ParserState::Content);
            return;
        }
        self.state = ParserState::Content;
        let first = self.held[space..].chars().next().map_or(0, char::len_utf8);
        self.say_content(space + first);
    }

    pub(super) fn offers(&self, name: &str) -> bool {
        self.tools.iter().any(|tool| tool.name == name)
    }

    fn between(&mut self, is_last: bool) -> bool {
        let text = self.held.trim_start();
        let space = self.held.len() - text.len();
        // White space before content that follows other content is kept.
        if space > 0 && (self.joint.is_none() || (is_last && text.is_empty())) {
            self.silent(space);
            return true;
        }
        let Some(format) = self.format.clone().filter(|_| !text.is_empty()) else {
            return false;
        };
        let closer = format.closers().filter(|mark| text.starts_with(mark));
        if let Some(length) = closer.map(str::len).max() {
            self.silent(space + length);
            return true;
        }
        let may_close = format.closers().any(|mark| mark.starts_with(text));
        if may_close && is_last {
            // A mark that is cut off.
            let all = self.held.len();
            self.silent(all);
            return true;
        }
        if may_close {
            return false;
        }
        if format.body == CallBody::Channels {
            self.silent(space);
            self.state = ParserState::Header;
            return true;
        }
        self.try_call(space, true, is_last)
    }
}

/// Length of the longest suffix of a text that is a proper prefix of one of these marks.
pub(super) fn start_of_any<'a>(text: &str, marks: impl Iterator<Item = &'a str>) -> usize {
    let of_mark = |mark: &str| {
        let longest = mark.len().saturating_sub(1).min(text.len());
        let is_start = |n: &usize| {
            text.is_char_boundary(text.len() - n) && mark.starts_with(&text[text.len() - n..])
        };
        (1..=longest).rev().find(is_start).unwrap_or(0)
    };
    marks.map(of_mark).max().unwrap_or(0)
}

/// The last boundary between characters up to a place.
pub(super) fn boundary(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}
