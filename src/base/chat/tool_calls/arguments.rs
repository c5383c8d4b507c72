//! Parses the arguments of a call while text arrives.
//!
//! Arguments leave as valid JSON, unless the output is cut off within them. A call counts once its arguments are
//! complete or have [`HELD`] bytes; until then its text is held back, and becomes content if the arguments turn out to
//! be malformed. After that they leave as they arrive, and a fault completes them.

use std::sync::Arc;

use super::format::CallFormat;
use super::header::ArgumentForm;
use super::json::{JsonScan, quoted, unquoted};
use super::json_repair::{JsonRepair, RepairStep, repaired};
use super::notation;
use super::open_call::{ArgumentState, OpenCall, PendingHeader};
use super::parameter::ParameterSearch;
use super::parser::{OutputParser, OutputPart, ParserState, boundary};
use super::tool_schema::ToolSchema;

/// The number of bytes of JSON arguments that are held back until they are complete.
const HELD: usize = 1 << 10;

/// The state after the arguments, which `depth` objects enclose.
fn after(call: Box<OpenCall>, depth: usize) -> ParserState {
    match depth {
        0 => ParserState::Between,
        _ => ParserState::Call(Box::new(OpenCall {
            state: ArgumentState::Outer { depth, scan: None },
            ..*call
        })),
    }
}

/// Whether a text begins with the mark of the end of a call; `None` if more text is needed.
fn is_end(text: &str, format: Option<&Arc<CallFormat>>, is_last: bool) -> Option<bool> {
    let format = format?;
    let mut marks = [format.close.trim(), format.section.close.trim()]
        .into_iter()
        .filter(|mark| !mark.is_empty());
    match marks.clone().any(|mark| text.starts_with(mark)) {
        true => Some(true),
        false if !is_last && marks.any(|mark| mark.starts_with(text)) => None,
        false => Some(false),
    }
}

impl OutputParser {
    pub(super) fn start(&mut self, pending: PendingHeader) {
        let name = &pending.header.name;
        let Some(tool) = self.tools.iter().position(|tool| tool.name == *name) else {
            return;
        };
        let mut call = Box::new(OpenCall::new(self.n_calls, pending, tool));
        let known = call
            .pending
            .as_mut()
            .map(|pending| &mut pending.header.arguments);
        match known {
            Some(ArgumentForm::Known(text)) => {
                let text = std::mem::take(text);
                self.commit(&mut call);
                self.say(OutputPart::Arguments {
                    index: call.index,
                    text,
                });
                self.state = ParserState::Between;
            }
            Some(ArgumentForm::Parameters) => {
                self.commit(&mut call);
                self.state = ParserState::Call(call);
            }
            _ => self.state = ParserState::Call(call),
        }
    }

    /// Tells that there is a call.
    fn commit(&mut self, call: &mut OpenCall) {
        let Some(PendingHeader { space, header, .. }) = call.pending.take() else {
            return;
        };
        self.begins_call(space);
        self.silent(space);
        let (index, id, name) = (call.index, header.id, header.name);
        self.n_calls += 1;
        self.take(header.used, |_| Some(OutputPart::Call { index, id, name }));
    }

    /// Takes the header of a call back: its text is content.
    fn reject(&mut self, call: Box<OpenCall>) {
        let Some(pending) = call.pending else {
            self.state = ParserState::Between;
            return;
        };
        if self.channels().is_some() {
            self.silent(pending.space + pending.header.used);
            self.resume(ParserState::Content);
            return;
        }
        self.no_call(pending.space, pending.is_next);
    }

    fn send(&mut self, index: u32, bytes: usize, text: String) {
        let part = OutputPart::Arguments { index, text };
        let has_text = !matches!(&part, OutputPart::Arguments { text, .. } if text.is_empty());
        match bytes {
            0 if has_text => self.say(part),
            0 => {}
            bytes => self.take(bytes, |_| has_text.then_some(part)),
        }
    }

    /// Continues a call. Returns whether it consumed or produced anything.
    pub(super) fn call(&mut self, is_last: bool) -> bool {
        let ParserState::Call(call) = std::mem::replace(&mut self.state, ParserState::Between)
        else {
            return false;
        };
        match &call.state {
            ArgumentState::Json { .. } => self.json(call, is_last),
            ArgumentState::Quoted { .. } => self.quoted(call, is_last),
            ArgumentState::Notation(_) => self.notation(call, is_last),
            ArgumentState::Outer { .. } => self.outer(call, is_last),
            ArgumentState::Parameters { .. } => self.parameter(call, is_last),
        }
    }

    fn json(&mut self, mut call: Box<OpenCall>, is_last: bool) -> bool {
        let before = call.before();
        let index = call.index;
        let is_pending = call.pending.is_some();
        let ArgumentState::Json {
            object,
            n,
            out,
            outer,
        } = &mut call.state
        else {
            return false;
        };
        let outer = *outer;
        loop {
            let mut rest = &self.held[before + *n..];
            // The place where arguments begin to leave does not depend on the pieces in which the text comes.
            let is_long = is_pending && *n + rest.len() > HELD;
            if is_long {
                rest = &rest[..boundary(rest, HELD - *n)];
            }
            match object.read(rest, out) {
                RepairStep::End(end) => {
                    let (bytes, text) = (*n + end, std::mem::take(out));
                    self.commit(&mut call);
                    self.send(index, bytes, text);
                    self.state = after(call, outer);
                    return true;
                }
                RepairStep::More if is_last && !is_long => {
                    *n += rest.len();
                    if self.is_cut {
                        out.push_str(&object.rest());
                    } else if is_pending && !object.lacks_only_ends() {
                        self.reject(call);
                        return true;
                    } else {
                        object.complete(out);
                    }
                    break;
                }
                RepairStep::More => {
                    *n += rest.len();
                    if is_pending && !is_long {
                        self.state = ParserState::Call(call);
                        return false;
                    }
                    let (bytes, text) = (std::mem::take(n), std::mem::take(out));
                    self.commit(&mut call);
                    self.send(index, bytes, text);
                    self.state = ParserState::Call(call);
                    return true;
                }
                RepairStep::Fault(at) => {
                    *n += at;
                    let lacks_ends = object.lacks_only_ends();
                    let rest = &self.held[before + *n..];
                    let is_end = match lacks_ends {
                        true => is_end(rest, self.format.as_ref(), is_last),
                        false => Some(false),
                    };
                    match is_end {
                        None => {
                            self.state = ParserState::Call(call);
                            return false;
                        }
                        Some(false) if object.reopen(out) => continue,
                        Some(false) if is_pending => {
                            self.reject(call);
                            return true;
                        }
                        // Brackets are missing before the mark of the end, or what was sent is to be valid JSON.
                        _ => object.complete(out),
                    }
                    break;
                }
            }
        }
        let (bytes, text) = (*n, std::mem::take(out));
        self.commit(&mut call);
        self.send(index, bytes, text);
        self.state = ParserState::Between;
        true
    }

    fn quoted(&mut self, mut call: Box<OpenCall>, is_last: bool) -> bool {
        let before = call.before();
        let ArgumentState::Quoted { scan, n, outer } = &mut call.state else {
            return false;
        };
        let outer = *outer;
        let text = &self.held[before..];
        let end = scan.end(&text[*n..]).map(|end| *n + end);
        *n = text.len();
        let (found, bytes) = match end {
            Some(end) => {
                let inner = unquoted(&text[..end]);
                let found = inner.and_then(|inner| match inner.trim() {
                    "" => Some("{}".to_owned()),
                    inner => repaired(inner, false),
                });
                (found, end)
            }
            None if !is_last => {
                self.state = ParserState::Call(call);
                return false;
            }
            None if self.is_cut => {
                // The cut may have left the start of an escape.
                let ends = (0..=6).filter_map(|n| text.get(..text.len().checked_sub(n)?));
                let inner = ends
                    .filter_map(|text| unquoted(&format!("{text}\"")))
                    .next();
                let found = inner.map(|inner| {
                    let (mut object, mut out) = (JsonRepair::default(), String::new());
                    object.read_whole(&inner, &mut out);
                    out + &object.rest()
                });
                (found, text.len())
            }
            None => (None, 0),
        };
        let Some(found) = found else {
            self.reject(call);
            return true;
        };
        self.commit(&mut call);
        self.send(call.index, bytes, found);
        self.state = after(call, outer);
        true
    }

    fn notation(&mut self, mut call: Box<OpenCall>, is_last: bool) -> bool {
        let before = call.before();
        let format = self.format.clone();
        let notation = format.as_ref().and_then(|format| format.notation.as_ref());
        let (ArgumentState::Notation(scan), Some(notation)) = (&mut call.state, notation) else {
            return false;
        };
        let text = &self.held[before..];
        let end = scan.end(text, notation);
        if end.is_none() && !is_last {
            self.state = ParserState::Call(call);
            return false;
        }
        let schema = ToolSchema::of_tool(&self.tools[call.tool].parameters);
        let found = end.and_then(|end| notation::arguments(&text[..end], notation, schema.names()));
        let (Some(bytes), Some(found)) = (end, found) else {
            self.reject(call);
            return true;
        };
        self.commit(&mut call);
        self.send(call.index, bytes, found);
        self.state = ParserState::Between;
        true
    }

    /// Consumes the ends of the objects around arguments, and their other members.
    fn outer(&mut self, mut call: Box<OpenCall>, is_last: bool) -> bool {
        let ArgumentState::Outer { depth, scan } = &mut call.state else {
            return false;
        };
        if let Some(own) = scan {
            let end = own.end(&self.held);
            self.silent(end.unwrap_or(self.held.len()));
            if end.is_none() {
                self.state = ParserState::Call(call);
            }
            return true;
        }
        let text = self.held.trim_start();
        let used = self.held.len() - text.len() + 1;
        match text.bytes().next() {
            Some(b'}') => {
                self.silent(used);
                self.state = after_end(call);
                true
            }
            Some(b',') => {
                let next = text[1..].trim_start();
                if next.is_empty() && !is_last {
                    self.state = ParserState::Call(call);
                    return false;
                }
                if next.starts_with('"') {
                    *scan = Some(JsonScan::within(*depth));
                    self.state = ParserState::Call(call);
                }
                true
            }
            None if !is_last => {
                self.state = ParserState::Call(call);
                false
            }
            // The ends are missing.
            _ => true,
        }
    }

    fn parameter(&mut self, mut call: Box<OpenCall>, is_last: bool) -> bool {
        let index = call.index;
        let ArgumentState::Parameters { keys, search } = &mut call.state else {
            return false;
        };
        let format = self.format.clone();
        let Some((format, marks)) = format
            .as_ref()
            .and_then(|f| Some((f, f.parameter.as_ref()?)))
        else {
            return false;
        };
        let space = self.held.len() - self.held.trim_start().len();
        let rest = &self.held[space..];
        let (open, close) = (marks.open.trim(), marks.close.trim());
        if rest.starts_with(open) {
            let schema = ToolSchema::of_tool(&self.tools[call.tool].parameters);
            let is_known = |key: &str| {
                let mut names = schema.names().peekable();
                names.peek().is_none() || names.any(|name| name == key)
            };
            let may_follow = |key: &str| {
                let is_name = !key.is_empty() && !key.contains(char::is_whitespace);
                is_name && is_known(key) && !keys.iter().any(|own| own == key)
            };
            let read = search.read(rest, format, marks, &may_follow, is_last);
            let Some(read) = read else {
                if is_last {
                    let all = self.held.len();
                    self.silent(all);
                }
                self.state = ParserState::Call(call);
                return is_last;
            };
            let text = read.value.map_or_else(String::new, |value| {
                let value = match read.is_string {
                    Some(true) => quoted(value),
                    Some(false) => {
                        super::tool_schema::typed(value.trim()).unwrap_or_else(|| quoted(value))
                    }
                    None => schema.argument(read.key).json(value),
                };
                let start = if keys.is_empty() { "{" } else { ", " };
                format!("{start}{}: {value}", quoted(read.key))
            });
            let used = space + read.used;
            if read.value.is_some() {
                keys.push(read.key.to_owned());
            }
            *search = ParameterSearch::default();
            self.send(index, used, text);
            self.state = ParserState::Call(call);
            return true;
        }
        if rest.starts_with(close) {
            // A closing mark without a value.
            self.silent(space + close.len());
            self.state = ParserState::Call(call);
            return true;
        }
        let mut marks = format.closers().chain([open, close]);
        if (!is_last || !rest.is_empty())
            && marks.any(|mark| mark.len() > rest.len() && mark.starts_with(rest))
        {
            if is_last {
                // A mark that is cut off.
                let all = self.held.len();
                self.silent(all);
            }
            self.state = ParserState::Call(call);
            return is_last;
        }
        // The arguments end here, or text follows that is not a parameter.
        self.silent(space);
        self.end_parameters(&call);
        self.state = ParserState::Between;
        true
    }

    fn end_parameters(&mut self, call: &OpenCall) {
        if let ArgumentState::Parameters { keys, .. } = &call.state {
            let text = if keys.is_empty() { "{}" } else { "}" };
            self.send(call.index, 0, text.into());
        }
    }
}

/// The state after the end of an object around the arguments.
fn after_end(call: Box<OpenCall>) -> ParserState {
    match call.state {
        ArgumentState::Outer { depth, .. } => after(call, depth.saturating_sub(1)),
        _ => ParserState::Between,
    }
}
