//! Blocks of reasoning, which may end with calls if they are never closed.
//!
//! Text from a mark of calls on is held back while it may be calls, up to the end of the block or of the text.

use super::format::CallBody;
use super::parser::{
    OutputParser, OutputPart, OutputSpan, ParserState, TrialParser, boundary, start_of_any,
};

impl TrialParser {
    fn of(parser: &OutputParser) -> Self {
        let mut own = OutputParser::new(parser.format.clone(), parser.tools.clone(), None, false);
        own.drops_space = true;
        own.n_calls = parser.n_calls;
        Self {
            parser: own,
            spans: Vec::new(),
            n: 0,
        }
    }

    /// Reads the rest of the held text. Returns whether all of the text may be calls.
    fn may_be(&mut self, held: &str) -> bool {
        let spans = self.parser.push(&held[self.n..]);
        self.n = held.len();
        self.spans.extend(spans);
        let is_content = |span: &OutputSpan| matches!(&span.part, Some(OutputPart::Content(text)) if !text.trim().is_empty());
        !self.spans.iter().any(is_content)
    }

    /// Whether all of the text is calls, of which the last one is complete.
    fn is_calls(&self, n_before: u32) -> bool {
        self.parser.n_calls > n_before && matches!(self.parser.state, ParserState::Between)
    }
}

impl OutputParser {
    /// Continues in a block of reasoning. Returns whether it made progress.
    pub(super) fn reasoning(&mut self, is_last: bool) -> bool {
        let Some(marks) = self.reasoning.clone() else {
            self.state = ParserState::Content;
            return true;
        };
        let close = marks.close.as_str();
        let read = self.trial.as_ref().map_or(0, |trial| trial.n);
        let from = boundary(&self.held, read.saturating_sub(close.len()));
        if let Some(end) = self.held[from..].find(close) {
            self.trial = None;
            self.say_reasoning(true, from + end);
            self.silent(close.len());
            self.resume(ParserState::Content);
            return true;
        }
        if let Some(mut trial) = self.trial.take() {
            let may_be = trial.may_be(&self.held);
            if may_be && !is_last {
                self.trial = Some(trial);
                return false;
            }
            if may_be && trial.is_calls(self.n_calls) {
                self.end_with(*trial);
                return true;
            }
            let space = self.held.len() - self.held.trim_start().len();
            let first = self.held[space..].chars().next().map_or(0, char::len_utf8);
            self.say_reasoning(false, space + first);
            return true;
        }
        let before = self.held.len();
        let format = self.format.clone();
        let format = format.filter(|f| f.body != CallBody::Channels && !self.tools.is_empty());
        let starts = || format.iter().flat_map(|format| format.starts());
        if let Some(at) = starts().filter_map(|mark| self.held.find(mark)).min() {
            self.say_reasoning(false, at);
            if self.held.len() == before {
                self.trial = Some(Box::new(TrialParser::of(self)));
            }
            return true;
        }
        let end = match is_last {
            true => before,
            false => before - start_of_any(&self.held, starts().chain([close])),
        };
        self.say_reasoning(is_last, end);
        self.held.len() < before
    }

    /// Ends the text with the calls that a trial has found.
    fn end_with(&mut self, mut trial: TrialParser) {
        let rest = trial.parser.finish(self.is_cut);
        let spans = trial.spans.into_iter().chain(rest);
        self.out.extend(spans.map(|span| match span.part {
            Some(OutputPart::Content(_)) => OutputSpan { part: None, ..span },
            _ => span,
        }));
        self.n_calls = trial.parser.n_calls;
        self.held.clear();
        self.state = ParserState::Between;
    }
}
