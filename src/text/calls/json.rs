//! Finds the end of a JSON value in text that may be incomplete.

/// The result of parsing text that may be incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found<T> {
    /// More text is needed.
    More,
    /// The text does not match.
    No,
    /// The text matches.
    Yes(T),
}

impl<T> Found<T> {
    pub(super) fn map<U>(self, f: impl FnOnce(T) -> U) -> Found<U> {
        match self {
            Self::More => Found::More,
            Self::No => Found::No,
            Self::Yes(value) => Found::Yes(f(value)),
        }
    }
}

/// Scans an object, an array or a string byte by byte.
#[derive(Clone, Debug, Default)]
pub(super) struct Scan {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
}

impl Scan {
    /// A scan that starts inside `depth` open brackets.
    pub(super) fn within(depth: usize) -> Self {
        Self {
            depth,
            ..Self::default()
        }
    }

    /// Scans a byte. Returns whether the value ends with it.
    pub(super) fn ends_with(&mut self, byte: u8) -> bool {
        if self.in_string {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => {
                    self.in_string = false;
                    return self.depth == 0;
                }
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }

    /// Number of bytes up to the end of the value, if the text contains it.
    pub(super) fn end(&mut self, text: &str) -> Option<usize> {
        let at = text.bytes().position(|byte| self.ends_with(byte));
        at.map(|at| at + 1)
    }
}

/// The length of the value at the start of a text.
pub(super) fn value(text: &str) -> Found<usize> {
    match text.bytes().next() {
        None => Found::More,
        Some(b'{' | b'[' | b'"') => match Scan::default().end(text) {
            Some(end) => Found::Yes(end),
            None => Found::More,
        },
        Some(byte) if byte.is_ascii_alphanumeric() || byte == b'-' => {
            let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
            match text.bytes().position(|byte| !is_part(byte)) {
                Some(end) => Found::Yes(end),
                None => Found::More,
            }
        }
        Some(_) => Found::No,
    }
}

/// The complete JSON string at the start of a text, and its length.
pub(super) fn string(text: &str) -> Found<(String, usize)> {
    if text.is_empty() {
        return Found::More;
    }
    if !text.starts_with('"') {
        return Found::No;
    }
    match value(text) {
        Found::Yes(end) => match serde_json::from_str(&text[..end]) {
            Ok(string) => Found::Yes((string, end)),
            Err(_) => Found::No,
        },
        _ => Found::More,
    }
}
