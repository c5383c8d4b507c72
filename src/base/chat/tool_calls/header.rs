//! Parses the start of a call, up to its arguments.
//!
//! A header is parsed again each time text arrives, so its size is limited.

use super::cursor::{Cursor, get};
use super::format::{CallBody, CallFormat};
use super::json::{self, Parsed, string, unquoted};
use super::json_repair::repaired;

pub(super) const MAX: usize = 16 << 10;

/// The header of a call: its name is known, and where its arguments begin.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CallHeader {
    /// Number of bytes up to the arguments.
    pub(super) used: usize,
    pub(super) name: String,
    /// The id of the call, if the model wrote one.
    pub(super) id: Option<String>,
    pub(super) arguments: ArgumentForm,
}

/// The form in which the arguments follow.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum ArgumentForm {
    /// The complete arguments, which were part of the header, as JSON.
    Known(String),
    /// A JSON object, then the ends of `outer` objects around it.
    Json { outer: usize },
    /// A JSON object in a JSON string, then the ends of `outer` objects around it.
    Quoted { outer: usize },
    /// Arguments in the format's notation.
    Notation,
    /// One parameter after another.
    #[default]
    Parameters,
}

/// Parses the header at the start of a text. `is_next`: the call follows another one.
pub(super) fn header(text: &str, format: &CallFormat, is_next: bool) -> Parsed<CallHeader> {
    let mut cursor = Cursor::new(text);
    let section = format.section.open.trim();
    if !section.is_empty() {
        match cursor.mark(section) {
            Parsed::Yes(()) => {}
            Parsed::More => return Parsed::More,
            // Some models omit the section mark if each call has a mark of its own.
            Parsed::No if is_next || !format.opens.is_empty() => {}
            Parsed::No => return Parsed::No,
        }
    }
    if format.list && (!is_next || cursor.at > 0) {
        let found = cursor.mark("[");
        // A single call may be written without its list.
        if found == Parsed::More || (found == Parsed::No && format.bare) {
            return found.map(|()| CallHeader::default());
        }
    }
    if !format.opens.is_empty() {
        match cursor.any(&format.opens) {
            Parsed::No if format.bare => {}
            found => get!(found),
        }
    }
    cursor.space();
    let found = match format.body {
        CallBody::Object => object(&mut cursor, format),
        CallBody::Map => map(&mut cursor),
        CallBody::Named | CallBody::Parameters => named(&mut cursor, format),
        CallBody::Notation => in_notation(&mut cursor, format),
        CallBody::Channels => Parsed::No,
    };
    found.map(|header| CallHeader {
        used: cursor.at,
        ..header
    })
}

/// Parses `{"name": ..., "arguments": ...}`, with the keys in any order, or the same object as the value of `function`.
fn object(cursor: &mut Cursor<'_>, format: &CallFormat) -> Parsed<CallHeader> {
    let (mut name, mut id, mut arguments) = (None, None, None);
    let mut outer = 1;
    get!(cursor.mark("{"));
    loop {
        match cursor.mark("}") {
            Parsed::Yes(()) => {
                outer -= 1;
                if outer > 0 {
                    let _ = cursor.mark(",");
                    continue;
                }
                let Some(name) = name else { return Parsed::No };
                let arguments = arguments.unwrap_or_else(|| "{}".to_owned());
                return Parsed::Yes(CallHeader {
                    name,
                    id,
                    arguments: ArgumentForm::Known(arguments),
                    used: 0,
                });
            }
            Parsed::More => return Parsed::More,
            Parsed::No => {}
        }
        let (key, length) = get!(string(cursor.rest()));
        cursor.at += length;
        get!(cursor.mark(":"));
        cursor.space();
        let is = |keys: &[String]| keys.contains(&key);
        let first = cursor.rest().bytes().next();
        if first.is_none() {
            return Parsed::More;
        }
        if is(&format.arguments_keys) && name.is_some() {
            let arguments = match first {
                Some(b'{') => Some(ArgumentForm::Json { outer }),
                Some(b'"') => Some(ArgumentForm::Quoted { outer }),
                _ => None,
            };
            if let Some(arguments) = arguments {
                return Parsed::Yes(CallHeader {
                    used: 0,
                    name: name.unwrap_or_default(),
                    id,
                    arguments,
                });
            }
        }
        if key == "function" && first == Some(b'{') {
            cursor.at += 1;
            outer += 1;
            continue;
        }
        let length = get!(json::value(cursor.rest()));
        let value = &cursor.rest()[..length];
        if is(&format.name_keys) {
            name = serde_json::from_str::<String>(value).ok();
        } else if is(&format.arguments_keys) {
            let Some(known) = known(value) else {
                return Parsed::No;
            };
            arguments = Some(known);
        } else if key == format.id_key {
            id = serde_json::from_str::<String>(value).ok();
        }
        cursor.at += length;
        if cursor.mark(",") == Parsed::More {
            return Parsed::More;
        }
    }
}

/// Complete arguments as JSON: an object, an object in a string, or nothing; `None` if they are something else.
fn known(value: &str) -> Option<String> {
    if value == "null" {
        return Some("{}".into());
    }
    match unquoted(value) {
        Some(text) if text.trim().is_empty() => Some("{}".into()),
        Some(text) => repaired(&text, false),
        None => repaired(value, false),
    }
}

/// Parses `{"NAME": {...}}`.
fn map(cursor: &mut Cursor<'_>) -> Parsed<CallHeader> {
    get!(cursor.mark("{"));
    cursor.space();
    let (name, length) = get!(string(cursor.rest()));
    cursor.at += length;
    get!(cursor.mark(":"));
    cursor.space();
    json_follows(cursor).map(|()| CallHeader {
        name,
        arguments: ArgumentForm::Json { outer: 1 },
        ..CallHeader::default()
    })
}

fn json_follows(cursor: &Cursor<'_>) -> Parsed<()> {
    match cursor.rest().bytes().next() {
        None => Parsed::More,
        Some(b'{') => Parsed::Yes(()),
        Some(_) => Parsed::No,
    }
}

/// Parses the name and the mark after it, followed by JSON or parameters.
fn named(cursor: &mut Cursor<'_>, format: &CallFormat) -> Parsed<CallHeader> {
    let rest = cursor.rest();
    let ends = format.name_ends.iter().map(|end| match end.trim() {
        "" => (end.as_str(), end.len()),
        mark => (mark, mark.len()),
    });
    // These marks also end a name, but are not part of the header.
    let stops = match &format.parameter {
        Some(marks) => vec![marks.open.trim(), format.close.trim()],
        None => vec!["{"],
    };
    let all = ends.chain(stops.into_iter().map(|stop| (stop, 0)));
    let all: Vec<_> = all.filter(|(mark, _)| !mark.is_empty()).collect();
    let found = all
        .iter()
        .filter_map(|(mark, used)| Some((rest.find(mark)?, *used)));
    let Some((end, used)) = found.min_by_key(|(at, used)| (*at, std::cmp::Reverse(*used))) else {
        return Parsed::More;
    };
    // The next text may complete a mark that makes the header longer.
    let written = rest[..end].trim();
    cursor.at += end + used;
    let (name, id) = match format.id_mark.as_str() {
        "" => (written, None),
        mark => match written.split_once(mark) {
            Some((name, id)) => (name, Some(id)),
            None => (written, None),
        },
    };
    let (name, id) = match format.number_mark.as_str() {
        "" => (name, id),
        mark => match name.rsplit_once(mark) {
            Some((name, _)) => (name, Some(written)),
            None => (name, id),
        },
    };
    let name = name.trim();
    let name = name.strip_prefix(&format.name_prefix).unwrap_or(name);
    if name.is_empty() || name.contains(char::is_whitespace) {
        return Parsed::No;
    }
    let arguments = match format.body {
        CallBody::Parameters => ArgumentForm::Parameters,
        _ => {
            cursor.space();
            get!(json_follows(cursor));
            ArgumentForm::Json { outer: 0 }
        }
    };
    Parsed::Yes(CallHeader {
        used: 0,
        name: name.to_owned(),
        id: id
            .map(|id| id.trim().to_owned())
            .filter(|id| !id.is_empty()),
        arguments,
    })
}

/// Parses the name before arguments in the format's notation.
fn in_notation(cursor: &mut Cursor<'_>, format: &CallFormat) -> Parsed<CallHeader> {
    let Some(notation) = &format.notation else {
        return Parsed::No;
    };
    let rest = cursor.rest();
    let is_name = |c: char| c.is_alphanumeric() || "_-.".contains(c);
    let Some(end) = rest.find(|c| !is_name(c)) else {
        return Parsed::More;
    };
    if end == 0 {
        return Parsed::No;
    }
    cursor.at += end;
    cursor.space();
    if !cursor.rest().starts_with(notation.open.as_str()) {
        return match notation.open.starts_with(cursor.rest()) {
            true => Parsed::More,
            false => Parsed::No,
        };
    }
    Parsed::Yes(CallHeader {
        used: 0,
        name: rest[..end].to_owned(),
        id: None,
        arguments: ArgumentForm::Notation,
    })
}
