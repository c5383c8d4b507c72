//! Parses answers that consist of messages, each with a header that says what the message is.

use super::format::ChannelMarks;
use super::header::{ArgumentForm, CallHeader};
use super::open_call::PendingHeader;
use super::parser::{OutputParser, ParserState, start_of_any};

const MAX_HEADER: usize = 1 << 10;

impl OutputParser {
    pub(super) fn channels(&self) -> Option<&ChannelMarks> {
        self.format.as_ref()?.channels.as_ref()
    }

    /// Continues in the header of a message. Returns whether it made progress.
    pub(super) fn message_header(&mut self, is_last: bool) -> bool {
        let Some(channels) = self.channels().cloned() else {
            self.resume(ParserState::Content);
            return true;
        };
        let text = self.held.as_str();
        if let Some(end) = channels
            .ends
            .iter()
            .find(|end| text.starts_with(end.as_str()))
        {
            let length = end.len();
            self.silent(length);
            return true;
        }
        let trimmed = text.trim_start();
        let words = [&channels.start, &channels.channel, &channels.recipient];
        let words = words.into_iter().chain(&channels.others);
        let mut words = words.chain([&channels.message]);
        let is_header = words.clone().any(|word| trimmed.starts_with(word.as_str()));
        let is_short = text.len() <= MAX_HEADER;
        let at = text.find(&channels.message);
        let Some(at) = at.filter(|at| is_header && *at <= MAX_HEADER) else {
            let marks = words.by_ref().chain(&channels.ends);
            let mut marks = marks.map(String::as_str);
            let may_be = is_header || marks.any(|mark| mark.starts_with(trimmed));
            if may_be && is_short && !is_last {
                return false;
            }
            // Text without a header is content, and so is text that only looked like a header.
            let first = text.chars().next().map_or(0, char::len_utf8);
            self.state = ParserState::Content;
            self.keeps_space();
            if is_header {
                self.say_content(first);
            }
            return true;
        };
        let header = text[..at].to_owned();
        let used = at + channels.message.len();
        let word_after = |mark: &str| {
            let (_, rest) = header.split_once(mark)?;
            let is_part = |c: char| c.is_alphanumeric() || "_-.".contains(c);
            let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            Some(rest[..end].to_owned())
        };
        let channel = word_after(&channels.channel).unwrap_or_default();
        let recipient = word_after(&channels.recipient).unwrap_or_default();
        let prefix = self.format.as_ref().map_or("", |f| f.name_prefix.as_str());
        let name = recipient.strip_prefix(prefix).unwrap_or(&recipient);
        if !name.is_empty() && self.offers(name) {
            let is_object = self.held[used..].trim_start().starts_with('{');
            let is_blank = self.held[used..].trim().is_empty();
            if is_blank && !is_last {
                return false;
            }
            if is_object {
                let rest = &self.held[used..];
                let space = rest.len() - rest.trim_start().len();
                let header = CallHeader {
                    used: used + space,
                    name: name.to_owned(),
                    id: None,
                    arguments: ArgumentForm::Json { outer: 0 },
                };
                self.start(PendingHeader {
                    space: 0,
                    header,
                    is_next: false,
                });
                return true;
            }
        }
        let is_reasoning = channels.reasoning.contains(&channel);
        if !is_reasoning {
            self.begins_call(0);
        }
        self.silent(used);
        self.resume(match is_reasoning {
            true => ParserState::Reasoning,
            false => ParserState::Content,
        });
        true
    }

    /// Continues in the text of a message. Returns whether it made progress.
    pub(super) fn message(&mut self, is_last: bool, is_reasoning: bool) -> bool {
        let Some(channels) = self.channels() else {
            return false;
        };
        let marks = channels.ends.iter().chain([&channels.start]);
        let end = marks
            .clone()
            .filter_map(|mark| Some((self.held.find(mark.as_str())?, mark)));
        let end = end.min_by_key(|(at, _)| *at);
        // A start mark is left in the text, because it belongs to the next header.
        let end = end.map(|(at, mark)| {
            (
                at,
                if *mark == channels.start {
                    0
                } else {
                    mark.len()
                },
            )
        });
        let partial = start_of_any(&self.held, marks.map(String::as_str));
        let before = self.held.len();
        let (at, mark) = match end {
            Some((at, mark)) => (at, Some(mark)),
            None if is_last => (before, None),
            None => (before - partial, None),
        };
        match is_reasoning {
            true => self.say_reasoning(is_last || mark.is_some(), at),
            false => self.say_content(at),
        }
        if let Some(mark) = mark {
            self.silent(mark);
            self.state = ParserState::Header;
        }
        mark.is_some() || self.held.len() < before
    }
}
