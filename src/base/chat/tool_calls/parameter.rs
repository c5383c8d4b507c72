//! Finds the parameters of a call whose marks stand around each of them, in text that arrives.
//!
//! A value may contain the marks of its format. A closing mark ends it only if another parameter or the end of the call
//! follows, or the text ends. Where it is missing, a mark that begins a line ends the value: that of another parameter
//! of the tool, or that of the end of the call. What cannot be decided before the end of the text is decided there.

use super::format::{CallFormat, ParameterMarks};

const MAX_KEY: usize = 512;
/// Maximum number of marks after a value that are looked at.
const MAX_ENDS: usize = 6;

#[derive(Debug)]
pub(super) struct Parameter<'a> {
    pub(super) key: &'a str,
    /// The value; `None` if the name stands alone.
    pub(super) value: Option<&'a str>,
    /// Whether the marks say that the value is a string; `None` if they do not tell.
    pub(super) is_string: Option<bool>,
    pub(super) used: usize,
}

/// The search for the end of a parameter. Each byte is searched once.
#[derive(Clone, Debug, Default)]
pub(super) struct ParameterSearch {
    /// The number of bytes of the value that were searched.
    at: usize,
    /// The number of bytes after the mark at `at` that are white space.
    space: usize,
    /// The last closing mark that another text follows.
    last_close: Option<usize>,
    /// The first mark of the end of the call that begins a line.
    first_end: Option<usize>,
}

enum Boundary {
    /// The end of the value; the parameter has so many bytes more after it.
    End(usize),
    Text,
    Undecided,
}

/// The start of a parameter: its name, and the length of the text before the value.
struct ParameterHead<'a> {
    key: &'a str,
    is_string: Option<bool>,
    has_value: bool,
    used: usize,
}

/// The marks that matter in and after a value.
struct ParameterBounds<'a> {
    marks: &'a ParameterMarks,
    open: &'a str,
    close: &'a str,
    ends: Vec<&'a str>,
    starts: Vec<&'a str>,
}

impl<'a> ParameterBounds<'a> {
    fn of(format: &'a CallFormat, marks: &'a ParameterMarks) -> Self {
        let ends = [format.close.trim(), format.section.close.trim()];
        Self {
            marks,
            open: marks.open.trim(),
            close: marks.close.trim(),
            ends: ends.into_iter().filter(|mark| !mark.is_empty()).collect(),
            starts: format.starts().collect(),
        }
    }

    /// Parses the start of a parameter; `Ok(None)` if it is none, an error if more text is needed.
    fn head<'t>(&self, text: &'t str, is_last: bool) -> Result<Option<ParameterHead<'t>>, ()> {
        let Some(inner) = text.strip_prefix(self.open) else {
            return Ok(None);
        };
        let mut words = self.marks.key_end.split_whitespace();
        let first = words.next().unwrap_or_default();
        let Some(end) = inner.find(first).filter(|end| *end <= MAX_KEY) else {
            return if inner.len() > MAX_KEY || is_last {
                Ok(None)
            } else {
                Err(())
            };
        };
        let (key, is_string) = self.kind(&inner[..end]);
        let mut rest = &inner[end + first.len()..];
        let mut has_value = true;
        for word in words {
            let next = rest.trim_start();
            if let Some(after) = next.strip_prefix(word) {
                rest = after;
                continue;
            }
            let is_near = rest.len() - next.len() <= MAX_KEY;
            if word.starts_with(next) && is_near {
                if !is_last {
                    return Err(());
                }
                has_value = false;
                rest = "";
                break;
            }
            // The mark before the value is missing, or the value itself is.
            let mut others = self.ends.iter().chain([&self.open]).chain(&self.starts);
            has_value = !next.is_empty() && !others.clone().any(|mark| next.starts_with(mark));
            if has_value && !is_last && others.any(|mark| mark.starts_with(next)) {
                return Err(());
            }
            rest = match has_value {
                true => rest.strip_prefix('\n').unwrap_or(rest),
                false => next,
            };
            break;
        }
        Ok(Some(ParameterHead {
            key: key.trim(),
            is_string,
            has_value,
            used: text.len() - rest.len(),
        }))
    }

    /// The name of a parameter, and whether its type mark says that it is a string.
    fn kind<'t>(&self, key: &'t str) -> (&'t str, Option<bool>) {
        let stop = self.marks.key_stop.as_str();
        match key.split_once(stop).filter(|_| !stop.is_empty()) {
            Some((key, rest)) => {
                let is = |mark: &str| !mark.is_empty() && rest.trim() == mark.trim();
                let known = is(&self.marks.string_mark) || is(&self.marks.other_mark);
                (key, known.then(|| is(&self.marks.string_mark)))
            }
            None => (key, None),
        }
    }

    /// What a place of a value is. `space` bytes after a closing mark are known to be white space.
    fn place(
        &self,
        value: &str,
        search: &mut ParameterSearch,
        may_follow: &dyn Fn(&str) -> bool,
        is_last: bool,
    ) -> Boundary {
        let at = search.at;
        let rest = &value[at..];
        if let Some(after) = rest.strip_prefix(self.close) {
            let after = &after[search.space..];
            let next = after.trim_start();
            search.space += after.len() - next.len();
            let mut marks = self.ends.iter().chain([&self.open]).chain(&self.starts);
            let is_end = marks.clone().any(|mark| next.starts_with(mark));
            if is_end || (is_last && marks.clone().any(|mark| mark.starts_with(next))) {
                return Boundary::End(self.close.len());
            }
            if marks.any(|mark| mark.starts_with(next)) {
                return Boundary::Undecided;
            }
            search.last_close = Some(at);
            return Boundary::Text;
        }
        let line = value[..at].trim_end_matches([' ', '\t']);
        let begins_line = line.is_empty() || line.ends_with('\n');
        if begins_line && rest.starts_with(self.open) {
            return match self.head(rest, is_last) {
                Err(()) => Boundary::Undecided,
                Ok(Some(head)) if may_follow(head.key) => Boundary::End(0),
                Ok(_) => Boundary::Text,
            };
        }
        if begins_line && self.ends.iter().any(|mark| rest.starts_with(mark)) {
            let mut next = rest;
            for _ in 0..MAX_ENDS {
                let end = self.ends.iter().find_map(|mark| next.strip_prefix(mark));
                let Some(after) = end else { break };
                next = after.trim_start();
            }
            let starts = |next: &str| self.starts.iter().any(|mark| next.starts_with(mark));
            if starts(next) {
                return Boundary::End(0);
            }
            let mut marks = self.ends.iter().chain(&self.starts);
            let is_near = rest.len() - next.len() <= MAX_KEY;
            if !is_last && is_near && marks.any(|mark| mark.starts_with(next)) {
                return Boundary::Undecided;
            }
            search.first_end.get_or_insert(at);
            return Boundary::Text;
        }
        let mut marks = self.ends.iter().chain([&self.open, &self.close]);
        match !is_last && marks.any(|mark| mark.len() > rest.len() && mark.starts_with(rest)) {
            true => Boundary::Undecided,
            false => Boundary::Text,
        }
    }

    /// Where a value ends that the text does not end in the regular way: its length, and that of what belongs to it.
    fn last(&self, value: &str, search: &ParameterSearch) -> (usize, usize) {
        let mut rest = value.trim_end();
        let all = self.ends.iter().chain([&self.close, &self.open]);
        let partial = all.filter_map(|mark| {
            let lengths = (2..mark.len()).rev();
            lengths
                .filter(|n| mark.is_char_boundary(*n))
                .find(|n| rest.ends_with(&mark[..*n]))
        });
        let cut = partial.max().unwrap_or(0);
        rest = rest[..rest.len() - cut].trim_end();
        let mut has_ends = false;
        while let Some(before) = self.ends.iter().find_map(|mark| rest.strip_suffix(mark)) {
            rest = before.trim_end();
            has_ends = true;
        }
        if has_ends {
            let after = value[rest.len()..].trim_start();
            return (value.len() - after.len(), 0);
        }
        if let Some(at) = search.last_close {
            return (at, self.close.len());
        }
        if let Some(at) = search.first_end {
            return (at, 0);
        }
        let kept = match cut {
            0 => value.len(),
            cut => value.trim_end().len() - cut,
        };
        (kept, value.len() - kept)
    }
}

impl ParameterSearch {
    /// Parses the parameter at the start of a text, whose marks are `marks`; `None` if it is not complete. The text may
    /// only grow. `may_follow` says whether a parameter of this name may follow.
    pub(super) fn read<'t>(
        &mut self,
        text: &'t str,
        format: &CallFormat,
        marks: &ParameterMarks,
        may_follow: &dyn Fn(&str) -> bool,
        is_last: bool,
    ) -> Option<Parameter<'t>> {
        let bounds = ParameterBounds::of(format, marks);
        let head = bounds.head(text, is_last).ok()??;
        let parameter = |value, used| Parameter {
            key: head.key,
            value,
            is_string: head.is_string,
            used,
        };
        if !head.has_value {
            return Some(parameter(None, head.used));
        }
        let value = &text[head.used..];
        let all = bounds.ends.iter().chain([&bounds.open, &bounds.close]);
        let firsts: Vec<char> = all.filter_map(|mark| mark.chars().next()).collect();
        let (length, more) = loop {
            let Some(at) = value[self.at..].find(firsts.as_slice()) else {
                self.at = value.len();
                if !is_last {
                    return None;
                }
                break bounds.last(value, self);
            };
            self.at += at;
            let may_follow = |key: &str| key != head.key && may_follow(key);
            match bounds.place(value, self, &may_follow, is_last) {
                Boundary::End(more) => break (self.at, more),
                Boundary::Undecided => return None,
                Boundary::Text => {
                    self.at += value[self.at..].chars().next().map_or(1, char::len_utf8);
                    self.space = 0;
                }
            }
        };
        let own = &value[..length];
        let is_closed = more > 0;
        // Line ends next to the value belong to the marks where the format has them, and to a mark that is missing.
        let own = match marks.key_end.ends_with('\n') {
            true => own.strip_prefix('\n').unwrap_or(own),
            false => own,
        };
        let begins_line = !is_closed && length < value.len();
        let end = match begins_line {
            true => own.trim_end_matches([' ', '\t']).strip_suffix('\n'),
            false => own
                .strip_suffix('\n')
                .filter(|_| marks.close.starts_with('\n')),
        };
        let own = end.unwrap_or(own);
        Some(parameter(Some(own), head.used + length + more))
    }
}
