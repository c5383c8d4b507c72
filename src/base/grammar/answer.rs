//! Grammars of whole answers: reasoning, then content or tool calls as a model writes them.
//!
//! The marks come from the model's format of calls (`tools/`). A mark that is a control token of the vocabulary is that
//! token in the grammar; any other mark is text. Not here: reading answers.

use std::fmt::Write as _;

use serde_json::Value;

use crate::chat::tool_calls::{CallBody, CallFormat, Tool, ToolSchema};
use crate::tokenizer::Tokenizer;

use super::deadline::Deadline;
use super::lark_regex;
use super::properties::{Properties, is_bounded, properties, with_definitions};
use super::schema;
use super::{AnswerSpec, Constraint, ContentRule, Error, ReasoningRule};

pub(super) fn to_lark(
    answer: &AnswerSpec,
    tokenizer: &Tokenizer,
    deadline: &Deadline,
) -> Result<String, Error> {
    let mut writer = AnswerWriter {
        answer,
        format: &answer.format,
        tokenizer,
        deadline,
        rules: String::new(),
        n: 0,
    };
    let thought = writer.thought();
    let body = writer.body()?;
    Ok(format!("start: {thought} {body}\n{}", writer.rules))
}

struct AnswerWriter<'a> {
    answer: &'a AnswerSpec,
    format: &'a CallFormat,
    tokenizer: &'a Tokenizer,
    deadline: &'a Deadline,
    rules: String,
    n: usize,
}

/// A text as a literal; nothing for the empty text.
fn quoted(text: &str) -> String {
    match text {
        "" => String::new(),
        text => lark_regex::quoted(text),
    }
}

fn one_of(values: &[Value]) -> String {
    let (empty, others): (Vec<&str>, Vec<&str>) = values
        .iter()
        .filter_map(Value::as_str)
        .partition(|value| value.is_empty());
    if others.is_empty() {
        return String::new();
    }
    let others: Vec<String> = others.into_iter().map(quoted).collect();
    let is_optional = if empty.is_empty() { "" } else { "?" };
    format!("({}){is_optional}", others.join(" | "))
}

fn escaped(text: &str) -> String {
    let text = regex_syntax::escape(text);
    text.replace('/', "\\/").replace('\n', "\\n")
}

impl AnswerWriter<'_> {
    fn rule(&mut self, options: &str, body: &str) -> String {
        self.n += 1;
        let name = format!("r{}", self.n);
        // Writing to a `String` cannot fail.
        let _ = writeln!(self.rules, "{name}{options}: {body}");
        name
    }

    /// A mark as grammar: control tokens by their ids, the rest as text.
    fn mark(&self, text: &str) -> String {
        match self.tokens_of(text) {
            None => quoted(text),
            Some(parts) => parts.join(" "),
        }
    }

    /// The parts of a mark, if it contains control tokens.
    fn tokens_of(&self, text: &str) -> Option<Vec<String>> {
        let ids = self.tokenizer.encode(text, false, true).ok()?;
        if ids.iter().all(|id| self.tokenizer.is_text(*id)) {
            return None;
        }
        let (mut parts, mut plain) = (Vec::new(), Vec::new());
        for id in ids {
            if self.tokenizer.is_text(id) {
                plain.extend_from_slice(self.tokenizer.piece(id));
                continue;
            }
            let before = std::mem::take(&mut plain);
            parts.push(quoted(&String::from_utf8_lossy(&before)));
            parts.push(format!("<[{id}]>"));
        }
        parts.push(quoted(&String::from_utf8_lossy(&plain)));
        Some(parts)
    }

    /// Any text up to a mark, followed by the mark.
    fn text_until(&mut self, mark: &str) -> String {
        let (mark, space) = mark.split_at(mark.trim_end().len());
        let space = quoted(space);
        match self.tokens_of(mark) {
            None => {
                let rule = self.rule("[lazy]", &format!("/(?s:.*)/ {}", quoted(mark)));
                format!("{rule} {space}")
            }
            Some(parts) => {
                // One regular expression matches any text together with the text before the first control token: a
                // separate lexeme for any text would also take the text of the mark.
                let (before, rest) = parts.split_first().map_or(("", &[][..]), |(a, b)| (a, b));
                let before: String = serde_json::from_str(before).unwrap_or_default();
                format!("/(?s:.*){}/ {} {space}", escaped(&before), rest.join(" "))
            }
        }
    }

    fn thought(&mut self) -> String {
        if let Some(channels) = self.format.channels.clone() {
            let Some(name) = channels.reasoning.first() else {
                return String::new();
            };
            if self.answer.reasoning == ReasoningRule::None {
                return String::new();
            }
            let header = format!("{}{name}{}", channels.channel, channels.message);
            let open = self.mark(&header);
            let end = channels.ends.first().map_or("", String::as_str);
            let rest = self.text_until(end);
            let next = self.mark(&format!("{}assistant", channels.start));
            return format!("({open} {rest} {next})?");
        }
        match self.answer.reasoning.clone() {
            ReasoningRule::None => String::new(),
            ReasoningRule::Open(marks) => {
                let rest = self.text_until(&marks.close);
                format!("{rest} /\\s{{0,2}}/")
            }
            ReasoningRule::Optional(marks) => {
                let (open, rest) = (self.mark(&marks.open), self.text_until(&marks.close));
                format!("({open} {rest} /\\s{{0,2}}/)?")
            }
        }
    }

    fn body(&mut self) -> Result<String, Error> {
        let has_tools = !self.answer.tools.is_empty();
        let content = match self.answer.content.clone() {
            ContentRule::None => None,
            ContentRule::Any if has_tools => return self.text_or_calls(),
            ContentRule::Any => Some("/(?s:.*)/".to_owned()),
            ContentRule::Fits(constraint) => Some(self.fitting(*constraint)?),
        };
        let header = self
            .format
            .channels
            .as_ref()
            .map(|channels| self.mark(&channels.answer));
        let content = content.map(|content| format!("{} {content}", header.unwrap_or_default()));
        if !has_tools {
            return Ok(content.unwrap_or_default());
        }
        let calls = self.calls(false)?;
        Ok(match content {
            Some(content) => self.rule("", &format!("{content} | {calls}")),
            None => self.rule("", &calls),
        })
    }

    fn fitting(&mut self, constraint: Constraint) -> Result<String, Error> {
        Ok(match constraint {
            Constraint::JsonSchema(schema) => self.json(&schema)?,
            Constraint::Regex(regex) => {
                let literal = lark_regex::lark_literal(&regex);
                self.rule("", &literal)
            }
            _ => {
                return Err(Error::Grammar {
                    message: "a grammar cannot be combined with tools".into(),
                });
            }
        })
    }

    fn json(&mut self, schema: &Value) -> Result<String, Error> {
        let grammar = schema::to_lark(schema, self.deadline)?;
        Ok(self.rule("", &format!("%lark {{\n{grammar}}}")))
    }

    /// The arguments of a call: an object, also where the schema allows other values.
    fn arguments(&mut self, tool: &Tool) -> Result<String, Error> {
        let any = Value::Bool(true);
        let schema = match &tool.parameters {
            Value::Null => &any,
            schema => schema,
        };
        let grammar = schema::object_to_lark(schema, self.deadline)?;
        Ok(self.rule("", &format!("%lark {{\n{grammar}}}")))
    }

    fn first_mark(&self) -> &str {
        let section = self.format.section.open.as_str();
        match section {
            "" => self.format.opens.first().map_or("", String::as_str),
            section => section,
        }
    }

    /// Text; once it contains the first mark of calls, calls follow.
    fn text_or_calls(&mut self) -> Result<String, Error> {
        let mark = self.first_mark().to_owned();
        let mark = mark.trim_end();
        if mark.is_empty() || self.format.channels.is_some() {
            return Err(Error::Grammar {
                message: "this model's calls of tools have no mark, so that only `required` or a named tool can be enforced".into(),
            });
        }
        let calls = self.calls(true)?;
        let before = self.text_until(mark);
        let plain = match self.tokens_of(mark) {
            Some(_) => "/(?s:.*)/".to_owned(),
            None => {
                let mark = escaped(mark);
                let _ = writeln!(self.rules, "PLAIN: /(?s:.*)/ & ~/(?s:.*){mark}(?s:.*)/");
                "PLAIN".into()
            }
        };
        Ok(self.rule("", &format!("{plain} | {before} {calls}")))
    }

    fn calls(&mut self, is_marked: bool) -> Result<String, Error> {
        let format = self.format;
        let first = self.first_mark();
        let start = match is_marked {
            true => quoted(&first[first.trim_end().len()..]),
            false => self.mark(first),
        };
        // Calls that may be written without marks are written so.
        let (start, open, close) = match format.bare {
            true => (String::new(), "", ""),
            false => {
                let open = format.opens.first().map_or("", String::as_str);
                (start, open, format.close.as_str())
            }
        };
        let mut bodies = Vec::new();
        for tool in &self.answer.tools {
            bodies.push(self.call(tool)?);
        }
        let bodies = self.rule("", &bodies.join(" | "));
        // In a format without sections, the first mark is that of the first call.
        let has_section = !format.section.open.is_empty();
        let first_open = self.mark(if has_section { open } else { "" });
        let section_close = format.section.close.as_str();
        let (next, close, section_close) = match format.own_sections {
            true => (
                format!("{}{open}", format.section.open),
                format!("{close}{section_close}"),
                "",
            ),
            false => (open.to_owned(), close.to_owned(), section_close),
        };
        let close = self.mark(&close);
        let next = match (format.list, format.separator.as_str(), next.as_str()) {
            (_, separator, _) if !separator.is_empty() => self.mark(&format!("{separator}{next}")),
            (true, _, _) => self.mark(&format!(", {next}")),
            (false, _, "") => "\"\\n\"?".into(),
            // The line end is part of the mark: what ends the calls may begin with the same character.
            (false, _, next) => format!(
                "({} | {})",
                self.mark(next),
                self.mark(&format!("\n{next}"))
            ),
        };
        let more = match self.answer.parallel_calls && format.body != CallBody::Channels {
            true => format!("({next} {bodies} {close})*"),
            false => String::new(),
        };
        let (list, end) = if format.list {
            ("\"[\"", "\"]\"")
        } else {
            ("", "")
        };
        let section_close = self.mark(section_close);
        let start = if format.body == CallBody::Channels {
            String::new()
        } else {
            start
        };
        Ok(format!(
            "{start} {list} {first_open} {bodies} {close} {more} {end} {section_close}"
        ))
    }

    fn call(&mut self, tool: &Tool) -> Result<String, Error> {
        let format = self.format;
        let name = Value::from(tool.name.as_str()).to_string();
        let first =
            |keys: &[String]| Value::from(keys.first().map_or("", String::as_str)).to_string();
        let head = match format.body {
            CallBody::Object => {
                let number = match format.index_key.as_str() {
                    "" => quoted("{"),
                    key => format!(
                        "{} /[0-9]{{1,2}}/ {}",
                        quoted(&format!("{{{}: \"", Value::from(key))),
                        quoted("\", ")
                    ),
                };
                let keys = (first(&format.name_keys), first(&format.arguments_keys));
                let rest = quoted(&format!("{}: {name}, {}: ", keys.0, keys.1));
                let json = self.arguments(tool)?;
                return Ok(self.rule("", &format!("{number} {rest} {json} \"}}\"")));
            }
            CallBody::Map => {
                let json = self.arguments(tool)?;
                let head = quoted(&format!("{{{name}: "));
                return Ok(self.rule("", &format!("{head} {json} \"}}\"")));
            }
            CallBody::Channels => {
                let header = format
                    .channels
                    .as_ref()
                    .map(|channels| channels.call.replace("{name}", &tool.name));
                self.mark(&header.unwrap_or_default())
            }
            CallBody::Named | CallBody::Parameters | CallBody::Notation => {
                let written = quoted(&format!("{}{}", format.name_prefix, tool.name));
                let number = match format.number_mark.as_str() {
                    "" => String::new(),
                    mark => format!("{} /[0-9]{{1,3}}/", quoted(mark)),
                };
                let end = self.mark(format.name_ends.first().map_or("", String::as_str));
                format!("{written} {number} {end}")
            }
        };
        let arguments = match format.body {
            CallBody::Parameters => self.parameters(&tool.parameters)?,
            CallBody::Notation => self.notation(&tool.parameters)?,
            _ => self.arguments(tool)?,
        };
        Ok(self.rule("", &format!("{head} {arguments}")))
    }

    /// The rule of one of these, some of which may be empty.
    fn either(&mut self, mut all: Vec<String>) -> String {
        if all.len() == 1 {
            return all.remove(0);
        }
        let n_all = all.len();
        all.retain(|one| !one.trim().is_empty());
        if all.is_empty() {
            return String::new();
        }
        let is_optional = if all.len() < n_all { "?" } else { "" };
        format!("{}{is_optional}", self.rule("", &all.join(" | ")))
    }

    fn parameters(&mut self, schema: &Value) -> Result<String, Error> {
        let ways = properties(schema);
        let ways = ways.iter().map(|way| self.parameters_of(way, schema));
        let ways = ways.collect::<Result<_, _>>()?;
        Ok(self.either(ways))
    }

    fn parameters_of(&mut self, way: &Properties, schema: &Value) -> Result<String, Error> {
        let Some(marks) = self.format.parameter.clone() else {
            return Ok(String::new());
        };
        let mut all = Vec::new();
        for (key, own, is_required) in way {
            let head = |is_string: bool| {
                let kind = match is_string {
                    true => &marks.string_mark,
                    false => &marks.other_mark,
                };
                let stop = if kind.is_empty() {
                    ""
                } else {
                    marks.key_stop.as_str()
                };
                format!("{}{key}{stop}{kind}{}", marks.open, marks.key_end)
            };
            let [text_head, other_head] = [true, false].map(head).map(|head| self.mark(&head));
            let close = self.mark(&marks.close);
            let mut ways = Vec::new();
            // A text is a string wherever the schema allows one, and is written without quotes.
            let argument = ToolSchema::of_tool(schema).argument(key);
            let is_string = argument.allows_strings() == Some(true);
            let texts = argument.texts();
            match &texts {
                Some(texts) if is_string => {
                    ways.push(format!("{text_head} {} {close}", one_of(texts)));
                }
                _ if is_string => {
                    ways.push(format!("{text_head} {}", self.text_until(&marks.close)))
                }
                _ => {}
            }
            let is_only_string = own["type"] == "string" || (is_string && texts.is_none());
            if !is_only_string || (own["type"] != "string" && !marks.other_mark.is_empty()) {
                let own = self.json(&with_definitions(own, schema))?;
                ways.push(format!("{other_head} {own} {close}"));
            }
            let rule = self.rule("", &ways.join(" | "));
            all.push(if *is_required {
                rule
            } else {
                format!("{rule}?")
            });
        }
        Ok(all.join(" "))
    }

    /// Arguments in the format's notation: the required ones, then others. A value has the type of its schema. Of
    /// strings also `enum` is enforced, of numbers also range and allowed values, nothing else.
    fn notation(&mut self, schema: &Value) -> Result<String, Error> {
        let Some(notation) = self.format.notation.clone() else {
            return Ok(String::new());
        };
        let quote = notation.quotes.first().cloned().unwrap_or_default();
        let rest = match notation.is_python {
            true => format!(r"/([^'\\\n]|\\['\\n])*/ {}", self.mark(&quote)),
            false => self.text_until(&quote),
        };
        let quote = self.mark(&quote);
        let string = self.rule("", &format!("{quote} {rest}"));
        let [yes, no, separator, colon] = match notation.is_python {
            true => ["True", "False", "\", \"", "\": \""],
            false => ["true", "false", "\",\"", "\":\""],
        };
        let word = format!("\"{yes}\" | \"{no}\"");
        let number = r"/-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?/";
        let key = match notation.is_python {
            true => string.clone(),
            false => "/[A-Za-z_][A-Za-z0-9_]*/".into(),
        };
        let n = self.n + 1;
        let pair = format!("{key} {colon} r{n}");
        let list = format!("\"[\" (r{n} ({separator} r{n})*)? \"]\"");
        let object = format!("\"{{\" ({pair} ({separator} {pair})*)? \"}}\"");
        let any = self.rule(
            "",
            &format!("{string} | {number} | {word} | {list} | {object}"),
        );
        let typed = |kind: &Value| match kind.as_str() {
            Some("string") => string.clone(),
            Some("integer") => "/-?(0|[1-9][0-9]{0,17})/".into(),
            Some("number") => number.into(),
            Some("boolean") => format!("({word})"),
            Some("array") => list.clone(),
            Some("object") => object.clone(),
            _ => any.clone(),
        };
        let mut ways = Vec::new();
        for way in properties(schema) {
            let (mut required, mut others) = (Vec::new(), Vec::new());
            for (key, own, is_required) in &way {
                let value = match own["enum"].as_array().filter(|_| own["type"] == "string") {
                    Some(values) => {
                        format!("{quote} {} {quote}", one_of(values))
                    }
                    // Numbers are written as in JSON.
                    None if is_bounded(own) => self.json(own)?,
                    None => typed(&own["type"]),
                };
                let pair = format!("{} {value}", quoted(&format!("{key}{}", notation.assign)));
                let rules = if *is_required {
                    &mut required
                } else {
                    &mut others
                };
                rules.push(self.rule("", &pair));
            }
            let other = others.join(" | ");
            let more = format!("({separator} ({other}))*");
            let required = required.join(&format!(" {separator} "));
            ways.push(match (required.is_empty(), others.is_empty()) {
                (_, true) => required,
                (true, false) => format!("(({other}) {more})?"),
                (false, false) => format!("{required} {more}"),
            });
        }
        let pairs = self.either(ways);
        let (open, close) = (quoted(&notation.open), quoted(&notation.close));
        Ok(format!("{open} {pairs} {close}"))
    }
}
