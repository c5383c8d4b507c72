//! References within a schema: its resources, their URIs (`$id`), anchors and JSON pointers.
//!
//! A schema with an `$id` is a resource of its own, whose references are relative to it (JSON Schema 2020-12, 8.2).
//! Nothing is fetched.

use std::collections::HashMap;

use serde_json::Value;

/// A schema, and the number of the URI that its references are relative to.
pub(super) type Located<'a> = (&'a Value, usize);

/// What has a URI in one document.
pub(super) struct Resources<'a> {
    uris: Vec<String>,
    numbers: HashMap<String, usize>,
    /// Resources by their URI, anchors by URI and name with `#` between them.
    known: HashMap<String, Located<'a>>,
}

/// Keywords whose values are names and the schemas that they have.
const MAPS: &[&str] = &[
    "$defs",
    "definitions",
    "dependentSchemas",
    "patternProperties",
    "properties",
];

impl<'a> Resources<'a> {
    pub(super) fn new(root: &'a Value) -> Self {
        let mut this = Self {
            uris: vec![String::new()],
            numbers: HashMap::from([(String::new(), 0)]),
            known: HashMap::from([(String::new(), (root, 0))]),
        };
        this.scan(root, 0);
        this
    }

    /// The number of the URI that references in a schema are relative to.
    pub(super) fn base_of(&mut self, schema: &Value, outer: usize) -> usize {
        let id = schema.get("$id").and_then(Value::as_str);
        // In older drafts `#name` is an anchor.
        let Some(id) = id.filter(|id| !id.starts_with('#')) else {
            return outer;
        };
        let uri = join(&self.uris[outer], id);
        let uri = uri.split('#').next().unwrap_or_default().to_owned();
        let next = self.uris.len();
        let number = *self.numbers.entry(uri.clone()).or_insert(next);
        if number == next {
            self.uris.push(uri);
        }
        number
    }

    fn scan(&mut self, schema: &'a Value, outer: usize) {
        let mut open = vec![(schema, outer)];
        while let Some((schema, outer)) = open.pop() {
            match schema {
                Value::Array(all) => open.extend(all.iter().map(|schema| (schema, outer))),
                Value::Object(fields) => {
                    let base = self.base_of(schema, outer);
                    let uri = self.uris[base].clone();
                    if base != outer {
                        self.known.entry(uri.clone()).or_insert((schema, base));
                    }
                    let old = fields.get("$id").and_then(Value::as_str);
                    let old = old.and_then(|id| id.strip_prefix('#'));
                    let anchors = ["$anchor", "$dynamicAnchor"]
                        .iter()
                        .map(|key| fields.get(*key));
                    let anchors = anchors.filter_map(|anchor| anchor?.as_str()).chain(old);
                    for anchor in anchors {
                        let name = format!("{uri}#{anchor}");
                        self.known.entry(name).or_insert((schema, base));
                    }
                    for (key, value) in fields {
                        match value {
                            Value::Object(all) if MAPS.contains(&key.as_str()) => {
                                open.extend(all.values().map(|schema| (schema, base)));
                            }
                            _ if matches!(
                                key.as_str(),
                                "const" | "enum" | "default" | "examples"
                            ) => {}
                            value => open.push((value, base)),
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// The target of a reference, and its place as a JSON pointer.
    pub(super) fn target(
        &mut self,
        reference: &str,
        base: usize,
    ) -> Result<(Located<'a>, String), String> {
        let full = join(&self.uris[base], reference);
        let (uri, fragment) = full.split_once('#').unwrap_or((&full, ""));
        let missing = || format!("there is no `{reference}`");
        let Some(&(root, base)) = self.known.get(uri) else {
            return Err(format!(
                "`{reference}` is not inside the schema, expected `#/...`"
            ));
        };
        let fragment = decoded(fragment).ok_or_else(missing)?;
        if !fragment.is_empty() && !fragment.starts_with('/') {
            let anchor = self.known.get(&format!("{uri}#{fragment}"));
            return anchor
                .map(|found| (*found, reference.to_owned()))
                .ok_or_else(missing);
        }
        let pointer = match fragment.as_str() {
            "/" if root.get("").is_none() => "",
            pointer => pointer,
        };
        let (mut target, mut base) = (root, base);
        for part in pointer.split('/').skip(1) {
            let part = part.replace("~1", "/").replace("~0", "~");
            target = match target {
                Value::Array(all) => part.parse().ok().and_then(|at: usize| all.get(at)),
                other => other.get(&part),
            }
            .ok_or_else(missing)?;
            base = self.base_of(target, base);
        }
        let at = match uri {
            "" => pointer.to_owned(),
            uri => format!("({uri}){pointer}"),
        };
        let is_root = self
            .known
            .get("")
            .is_some_and(|(whole, _)| std::ptr::eq(*whole, root));
        Ok((
            (target, base),
            if is_root { pointer.to_owned() } else { at },
        ))
    }
}

/// A reference relative to a URI (RFC 3986, section 5.2).
fn join(base: &str, reference: &str) -> String {
    let has_scheme = |uri: &str| {
        uri.split_once(':').is_some_and(|(scheme, _)| {
            let is_part = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
            scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(is_part)
        })
    };
    let base = base.split('#').next().unwrap_or_default();
    if reference.is_empty() || reference.starts_with('#') {
        return format!("{base}{reference}");
    }
    if has_scheme(reference) {
        return reference.to_owned();
    }
    let scheme = if has_scheme(base) {
        base.find(':').map_or(0, |at| at + 1)
    } else {
        0
    };
    let after = &base[scheme..];
    if reference.starts_with("//") {
        return format!("{}{reference}", &base[..scheme]);
    }
    let authority = match after.strip_prefix("//") {
        Some(rest) => 2 + rest.find('/').unwrap_or(rest.len()),
        None => 0,
    };
    let (head, path) = base.split_at(scheme + authority);
    let (reference, fragment) = match reference.find(['?', '#']) {
        Some(at) => reference.split_at(at),
        None => (reference, ""),
    };
    let path = path.split('?').next().unwrap_or_default();
    let whole = match (reference.starts_with('/'), path.rfind('/')) {
        (true, _) => reference.to_owned(),
        (false, Some(at)) => format!("{}{reference}", &path[..=at]),
        (false, None) if authority > 0 => format!("/{reference}"),
        (false, None) => reference.to_owned(),
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in whole.split('/') {
        match part {
            "." => {}
            ".." if parts.len() > 1 => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    if whole.ends_with("/.") || whole.ends_with("/..") {
        parts.push("");
    }
    format!("{head}{}{fragment}", parts.join("/"))
}

/// Text with percent-encoding (RFC 3986, section 2.1).
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        bytes.push(match byte {
            b'%' => {
                let (digits, after) = rest.split_at_checked(2)?;
                rest = after;
                u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_relative_to_a_uri() {
        for (base, reference, expected) in [
            ("", "#/a", "#/a"),
            ("http://e.org/r", "x", "http://e.org/x"),
            ("http://e.org", "x", "http://e.org/x"),
            ("http://e.org/a/b?q", "../c/./d#e", "http://e.org/c/d#e"),
            ("http://e.org/a/b", "/c", "http://e.org/c"),
            ("http://e.org/a", "urn:x:y", "urn:x:y"),
            ("http://e.org/a", "//f.org/b", "http://f.org/b"),
            ("dir/a.json", "b.json#/c", "dir/b.json#/c"),
            ("http://e.org/a#b", "#c", "http://e.org/a#c"),
        ] {
            assert_eq!(join(base, reference), expected, "{base} {reference}");
        }
    }
}
