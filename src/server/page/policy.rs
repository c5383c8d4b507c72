//! What browsers let the page do: its `Content-Security-Policy`.
//!
//! An origin in it is checked, so that no text of a setting can add another directive.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use axum::http::{HeaderValue, Uri};

/// An origin of the web, such as `https://mcp.example:8443`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageOrigin(String);

impl FromStr for PageOrigin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || {
            format!(
                "expected an origin such as https://mcp.example or http://localhost:8000, found `{}`",
                text.escape_debug()
            )
        };
        let uri = Uri::from_str(text).map_err(|_| refused())?;
        let scheme = uri.scheme_str().filter(|s| ["http", "https"].contains(s));
        let host = uri.host().unwrap_or_default().to_ascii_lowercase();
        // Policies cannot name addresses of IPv6.
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if host.is_empty() || !host.bytes().all(is_name) {
            return Err(refused());
        }
        let mut origin = format!("{}://{host}", scheme.ok_or_else(refused)?);
        if let Some(port) = uri.port_u16() {
            let _ = write!(origin, ":{port}");
        }
        // Nothing else may be in it: no user, no path, no port out of range.
        match text.strip_suffix('/').unwrap_or(text) {
            own if own.eq_ignore_ascii_case(&origin) => Ok(Self(origin)),
            _ => Err(refused()),
        }
    }
}

impl fmt::Display for PageOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The policy of the page, as the header of its responses.
#[derive(Clone, Debug)]
pub struct PagePolicy(HeaderValue);

impl PagePolicy {
    /// The policy of a page that may ask its own server and these origins.
    pub fn new(origins: &[PageOrigin]) -> Self {
        let others: String = origins.iter().map(|origin| format!(" {origin}")).collect();
        // Diagrams are `blob:` images that the page makes from responses it fetched with the key. Pictures and sounds of
        // messages are `data:`, which asks nobody.
        let policy = format!(
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'{others}; \
            img-src 'self' blob: data:; media-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        );
        Self(HeaderValue::from_str(&policy).expect("origins are visible ASCII"))
    }

    pub(super) fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

impl Default for PagePolicy {
    fn default() -> Self {
        Self::new(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_have_a_scheme_a_name_and_perhaps_a_port() {
        for (text, origin) in [
            ("https://mcp.example", "https://mcp.example"),
            ("https://MCP.example/", "https://mcp.example"),
            ("http://localhost:8000", "http://localhost:8000"),
            ("http://127.0.0.1:1", "http://127.0.0.1:1"),
            ("http://a_b.local:65535", "http://a_b.local:65535"),
        ] {
            assert_eq!(text.parse(), Ok(PageOrigin(origin.into())), "{text}");
        }
    }

    #[test]
    fn nothing_else_comes_into_the_policy() {
        for bad in [
            "",
            "*",
            "mcp.example",
            "//mcp.example",
            "ftp://mcp.example",
            "data:",
            "https://",
            "https://*",
            "https://*.example",
            "https://mcp.example/mcp",
            "https://mcp.example//",
            "https://mcp.example?x",
            "https://mcp.example#x",
            "https://user@mcp.example",
            "https://mcp.example:",
            "https://mcp.example:99999",
            "https://mcp.example:080",
            "https://mcp.example:*",
            "https://[::1]:8000",
            "https://mcp.example; script-src *",
            "https://mcp.example;script-src",
            "https://mcp.example,x",
            "https://mcp.example 'unsafe-inline'",
            "https://mcp.example\r\nx: y",
            "https://bücher.example",
            "https://mcp.example https://b.example",
        ] {
            let refused = bad.parse::<PageOrigin>().expect_err(bad);
            assert!(
                refused.starts_with("expected an origin"),
                "{bad}: {refused}"
            );
            assert!(!refused.contains(['\r', '\n']), "{bad:?}");
        }
    }

    #[test]
    fn the_policy_lists_the_origins() {
        let origins = ["https://a.example", "http://localhost:8000"];
        let origins = origins.map(|text| text.parse().expect(text));
        let policy = PagePolicy::new(&origins).header();
        let policy = policy.to_str().expect("text");
        assert!(policy.contains("; connect-src 'self' https://a.example http://localhost:8000; "));
        let own = PagePolicy::default().header();
        assert!(own.to_str().expect("text").contains("connect-src 'self';"));
    }
}
