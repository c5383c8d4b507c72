//! Parses the start of a call, up to its arguments.
//!
//! A header is parsed again each time text arrives, so its size is limited.

use super::cursor::{Cursor, get};
use super::format::{Body, Format};
use super::json::{self, Found, string, unquoted};
use super::object::mended;

/// Maximum size of a header, in bytes.
pub(super) const MAX: usize = 16 << 10;

/// The header of a call: its name is known, and where its arguments begin.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Header {
    /// Number of bytes up to the arguments.
    pub(super) used: usize,
    pub(super) name: String,
    /// The id of the call, if the model wrote one.
    pub(super) id: Option<String>,
    pub(super) arguments: Arguments,
}

/// The form in which the arguments follow.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Arguments {
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
pub(super) fn header(text: &str, format: &Format, is_next: bool) -> Found<Header> {
    let mut cursor = Cursor::new(text);
    let section = format.section.open.trim();
    if !section.is_empty() {
        match cursor.mark(section) {
            Found::Yes(()) => {}
            Found::More => return Found::More,
            // Some models omit the section mark if each call has a mark of its own.
            Found::No if is_next || !format.opens.is_empty() => {}
            Found::No => return Found::No,
        }
    }
    if format.list && (!is_next || cursor.at > 0) {
        let found = cursor.mark("[");
        // A single call may be written without its list.
        if found == Found::More || (found == Found::No && format.bare) {
            return found.map(|()| Header::default());
        }
    }
    if !format.opens.is_empty() {
        match cursor.any(&format.opens) {
            Found::No if format.bare => {}
            found => get!(found),
        }
    }
    cursor.space();
    let found = match format.body {
        Body::Object => object(&mut cursor, format),
        Body::Map => map(&mut cursor),
        Body::Named | Body::Parameters => named(&mut cursor, format),
        Body::Notation => in_notation(&mut cursor, format),
        Body::Channels => Found::No,
    };
    found.map(|header| Header {
        used: cursor.at,
        ..header
    })
}

/// Parses `{"name": ..., "arguments": ...}`, with the keys in any order, or the same object as the value of `function`.
fn object(cursor: &mut Cursor<'_>, format: &Format) -> Found<Header> {
    let (mut name, mut id, mut arguments) = (None, None, None);
    let mut outer = 1;
    get!(cursor.mark("{"));
    loop {
        match cursor.mark("}") {
            Found::Yes(()) => {
                outer -= 1;
                if outer > 0 {
                    let _ = cursor.mark(",");
                    continue;
                }
                let Some(name) = name else { return Found::No };
                let arguments = arguments.unwrap_or_else(|| "{}".to_owned());
                return Found::Yes(Header {
                    name,
                    id,
                    arguments: Arguments::Known(arguments),
                    used: 0,
                });
            }
            Found::More => return Found::More,
            Found::No => {}
        }
        let (key, length) = get!(string(cursor.rest()));
        cursor.at += length;
        get!(cursor.mark(":"));
        cursor.space();
        let is = |keys: &[String]| keys.contains(&key);
        let first = cursor.rest().bytes().next();
        if first.is_none() {
            return Found::More;
        }
        if is(&format.arguments_keys) && name.is_some() {
            let arguments = match first {
                Some(b'{') => Some(Arguments::Json { outer }),
                Some(b'"') => Some(Arguments::Quoted { outer }),
                _ => None,
            };
            if let Some(arguments) = arguments {
                return Found::Yes(Header {
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
                return Found::No;
            };
            arguments = Some(known);
        } else if key == format.id_key {
            id = serde_json::from_str::<String>(value).ok();
        }
        cursor.at += length;
        if cursor.mark(",") == Found::More {
            return Found::More;
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
        Some(text) => mended(&text, false),
        None => mended(value, false),
    }
}

/// Parses `{"NAME": {...}}`.
fn map(cursor: &mut Cursor<'_>) -> Found<Header> {
    get!(cursor.mark("{"));
    cursor.space();
    let (name, length) = get!(string(cursor.rest()));
    cursor.at += length;
    get!(cursor.mark(":"));
    cursor.space();
    json_follows(cursor).map(|()| Header {
        name,
        arguments: Arguments::Json { outer: 1 },
        ..Header::default()
    })
}

fn json_follows(cursor: &Cursor<'_>) -> Found<()> {
    match cursor.rest().bytes().next() {
        None => Found::More,
        Some(b'{') => Found::Yes(()),
        Some(_) => Found::No,
    }
}

/// Parses the name and the mark after it, followed by JSON or parameters.
fn named(cursor: &mut Cursor<'_>, format: &Format) -> Found<Header> {
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
        return Found::More;
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
        return Found::No;
    }
    let arguments = match format.body {
        Body::Parameters => Arguments::Parameters,
        _ => {
            cursor.space();
            get!(json_follows(cursor));
            Arguments::Json { outer: 0 }
        }
    };
    Found::Yes(Header {
        used: 0,
        name: name.to_owned(),
        id: id
            .map(|id| id.trim().to_owned())
            .filter(|id| !id.is_empty()),
        arguments,
    })
}

/// Parses the name before arguments in the format's notation.
fn in_notation(cursor: &mut Cursor<'_>, format: &Format) -> Found<Header> {
    let Some(notation) = &format.notation else {
        return Found::No;
    };
    let rest = cursor.rest();
    let is_name = |c: char| c.is_alphanumeric() || "_-.".contains(c);
    let Some(end) = rest.find(|c| !is_name(c)) else {
        return Found::More;
    };
    if end == 0 {
        return Found::No;
    }
    cursor.at += end;
    cursor.space();
    if !cursor.rest().starts_with(notation.open.as_str()) {
        return match notation.open.starts_with(cursor.rest()) {
            true => Found::More,
            false => Found::No,
        };
    }
    Found::Yes(Header {
        used: 0,
        name: rest[..end].to_owned(),
        id: None,
        arguments: Arguments::Notation,
    })
}
