//! Parses the arguments of a call while text arrives.

use serde_json::Value;

use super::format::ParameterMarks;
use super::header::Arguments;
use super::json::{Found, Scan, string};
use super::notation::plain;
use super::parser::{Parser, Part, State};

/// A call whose arguments are being parsed.
#[derive(Clone, Debug)]
pub(super) struct Call {
    index: u32,
    stage: Stage,
    /// JSON Schema of the arguments.
    schema: Value,
}

#[derive(Clone, Debug)]
enum Stage {
    Json {
        scan: Scan,
        outer: usize,
    },
    Quoted {
        outer: usize,
        searched: Scan,
        n: usize,
    },
    /// The rest of the objects around the arguments.
    Outer(Scan),
    /// One parameter after another: `n` were parsed, and `searched` bytes of the next were searched for its end.
    Parameters {
        n: usize,
        searched: usize,
    },
}

impl Call {
    pub(super) fn new(index: u32, arguments: &Arguments, schema: Value) -> Self {
        let stage = match arguments {
            Arguments::Quoted { outer } => Stage::Quoted {
                outer: *outer,
                searched: Scan::default(),
                n: 0,
            },
            Arguments::Parameters => Stage::Parameters { n: 0, searched: 0 },
            Arguments::Json { outer } => Stage::Json {
                scan: Scan::default(),
                outer: *outer,
            },
            Arguments::None | Arguments::Known(_) => Stage::Outer(Scan::default()),
        };
        Self {
            index,
            stage,
            schema,
        }
    }

    /// The state after the arguments, which `outer` objects enclose.
    fn after(self, outer: usize) -> State {
        match outer {
            0 => State::Between,
            _ => State::Call(Self {
                stage: Stage::Outer(Scan::within(outer)),
                ..self
            }),
        }
    }
}

impl Parser {
    /// Continues a call. Returns whether it consumed or produced anything.
    pub(super) fn call(&mut self, is_last: bool) -> bool {
        let State::Call(mut call) = std::mem::replace(&mut self.state, State::Between) else {
            return false;
        };
        let index = call.index;
        match &mut call.stage {
            Stage::Json { scan, outer } => {
                let (end, outer) = (scan.end(&self.held), *outer);
                let length = end.unwrap_or(self.held.len());
                self.take(length, |text| Some(Part::Arguments { index, text }));
                self.state = match end {
                    Some(_) => call.after(outer),
                    None => State::Call(call),
                };
                true
            }
            Stage::Quoted { outer, searched, n } => {
                let (end, outer) = (searched.end(&self.held[*n..]), *outer);
                let length = end.map(|end| *n + end);
                *n = self.held.len();
                let Some(length) = length.or(is_last.then_some(*n)) else {
                    self.state = State::Call(call);
                    return false;
                };
                self.take(length, |text| match string(&text) {
                    Found::Yes((text, _)) => Some(Part::Arguments { index, text }),
                    _ => None,
                });
                self.state = call.after(outer);
                true
            }
            Stage::Outer(scan) => {
                let end = scan.end(&self.held);
                self.silent(end.unwrap_or(self.held.len()));
                if end.is_none() {
                    self.state = State::Call(call);
                }
                true
            }
            Stage::Parameters { .. } => self.parameter(call, is_last),
        }
    }

    fn parameter(&mut self, mut call: Call, is_last: bool) -> bool {
        let Stage::Parameters { n, searched } = &mut call.stage else {
            return false;
        };
        let index = call.index;
        let format = self.format.clone();
        let Some((format, marks)) = format
            .as_ref()
            .and_then(|f| Some((f, f.parameter.as_ref()?)))
        else {
            return false;
        };
        let space = self.held.len() - self.held.trim_start().len();
        let rest = &self.held[space..];
        let open = marks.open.trim();
        if rest.starts_with(open) {
            return match read(rest, marks, searched) {
                Some(read) => {
                    let piece = piece(*n, &read, &call.schema);
                    *n += 1;
                    *searched = 0;
                    let used = space + read.used;
                    self.take(used, |_| Some(Part::Arguments { index, text: piece }));
                    self.state = State::Call(call);
                    true
                }
                None if is_last => {
                    let all = self.held.len();
                    self.silent(all);
                    self.state = State::Call(call);
                    true
                }
                None => {
                    self.state = State::Call(call);
                    false
                }
            };
        }
        let mut marks = format.closers().chain([open]);
        if !is_last && marks.any(|mark| mark.len() > rest.len() && mark.starts_with(rest)) {
            self.state = State::Call(call);
            return false;
        }
        // The arguments end here, or text follows that is not a parameter.
        let text = if *n == 0 { "{}" } else { "}" };
        self.silent(space);
        self.say(Part::Arguments {
            index,
            text: text.into(),
        });
        self.state = State::Between;
        true
    }
}

/// A complete parameter.
struct Parameter<'a> {
    key: &'a str,
    value: &'a str,
    /// Whether the marks say that the value is a string; `None` if they do not tell.
    is_string: Option<bool>,
    used: usize,
}

/// Parses the parameter at the start of a text; `None` if it is not complete.
fn read<'a>(text: &'a str, marks: &ParameterMarks, searched: &mut usize) -> Option<Parameter<'a>> {
    let inner = &text[marks.open.trim().len()..];
    let (key, value) = split_at_mark(inner, &marks.key_end)?;
    let (key, is_string) = match marks.key_stop.as_str() {
        "" => (key, None),
        stop => match key.split_once(stop) {
            Some((key, rest)) => {
                let is = |mark: &str| !mark.is_empty() && rest.trim() == mark.trim();
                let known = is(&marks.string_mark) || is(&marks.other_mark);
                (key, known.then(|| is(&marks.string_mark)))
            }
            None => (key, None),
        },
    };
    let before = text.len() - value.len();
    let close = marks.close.trim();
    // The last searched bytes may be the start of the closing mark.
    let mut from = (*searched)
        .saturating_sub(before + close.len())
        .min(value.len());
    while !value.is_char_boundary(from) {
        from -= 1;
    }
    let end = value[from..].find(close).map(|at| from + at);
    *searched = text.len();
    let end = end?;
    Some(Parameter {
        key: key.trim(),
        value: &value[..end],
        is_string,
        used: before + end + close.len(),
    })
}

/// The texts before and after a mark. White space within and around the mark may differ.
fn split_at_mark<'a>(text: &'a str, mark: &str) -> Option<(&'a str, &'a str)> {
    let mut words = mark.split_whitespace();
    let first = words.next()?;
    let (before, mut rest) = text.split_once(first)?;
    for word in words {
        rest = rest.trim_start().strip_prefix(word)?;
    }
    Some((before, rest))
}

/// The text that a parameter adds to the JSON of the arguments.
fn piece(n: usize, parameter: &Parameter<'_>, schema: &Value) -> String {
    let key = Value::from(parameter.key);
    let value = typed(parameter, &schema["properties"][parameter.key]);
    let start = if n == 0 { "{" } else { ", " };
    format!("{start}{key}: {value}")
}

/// The value of a parameter: of the type in its schema, otherwise of the type that it looks like.
fn typed(parameter: &Parameter<'_>, schema: &Value) -> Value {
    let text = parameter.value;
    // One line break on each side belongs to the marks.
    let text = text.strip_prefix('\n').unwrap_or(text);
    let text = text.strip_suffix('\n').unwrap_or(text);
    let takes = |kind: &str| match &schema["type"] {
        Value::String(own) => own == kind,
        Value::Array(all) => all.iter().any(|own| own == kind),
        _ => false,
    };
    let is_string = parameter.is_string.unwrap_or_else(|| {
        let enums = schema["enum"].as_array();
        let only_strings = enums.is_some_and(|all| all.iter().all(Value::is_string));
        takes("string") && !takes("null") || (schema["type"].is_null() && only_strings)
    });
    match is_string {
        true => text.into(),
        false => match plain(text.trim()) {
            Some(value) if !takes("string") || is_of(&value, &takes) => value,
            _ => text.into(),
        },
    }
}

/// Whether a value is of a type that a schema names.
fn is_of(value: &Value, takes: &dyn Fn(&str) -> bool) -> bool {
    match value {
        Value::Null => takes("null"),
        Value::Bool(_) => takes("boolean"),
        Value::Number(n) => takes("number") || takes("integer") && (n.is_i64() || n.is_u64()),
        Value::String(_) => takes("string"),
        Value::Array(_) => takes("array"),
        Value::Object(_) => takes("object"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_has_a_type_that_its_schema_names() {
        let value = |text: &str, schema: Value| {
            let parameter = Parameter {
                key: "k",
                value: text,
                is_string: None,
                used: 0,
            };
            typed(&parameter, &schema)
        };
        let text_or_null = json!({ "type": ["string", "null"] });
        assert_eq!(value("12345", text_or_null.clone()), json!("12345"));
        assert_eq!(value("null", text_or_null.clone()), Value::Null);
        assert_eq!(value("[1]", text_or_null), json!("[1]"));
        assert_eq!(value("12345", json!({ "type": "integer" })), json!(12345));
        assert_eq!(value("12345", json!({})), json!(12345));
        let number_or_null = json!({ "type": ["number", "null"] });
        assert_eq!(value("1.5", number_or_null), json!(1.5));
    }
}
