//! `traceparent`: the span of a client for which a request is, as W3C's Trace Context writes it.
//!
//! A header that is malformed counts as none, as the specification demands.

/// The span of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TraceParent {
    /// 32 hexadecimal digits.
    pub(crate) trace_id: String,
    /// The id of the span, 16 hexadecimal digits.
    pub(crate) parent_id: String,
    /// Whether the client records the trace.
    pub(crate) is_sampled: bool,
}

impl TraceParent {
    pub(crate) fn of(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let mut digits = |n: usize| {
            let part = parts.next()?;
            let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            (part.len() == n && part.bytes().all(is_digit)).then_some(part)
        };
        let (version, trace_id, parent_id, flags) =
            (digits(2)?, digits(32)?, digits(16)?, digits(2)?);
        // Later versions may have more parts.
        let is_known = match version {
            "ff" => false,
            "00" => parts.next().is_none(),
            _ => true,
        };
        let is_set = |id: &str| id.bytes().any(|byte| byte != b'0');
        let flags = u8::from_str_radix(flags, 16).ok()?;
        (is_known && is_set(trace_id) && is_set(parent_id)).then(|| Self {
            trace_id: trace_id.to_owned(),
            parent_id: parent_id.to_owned(),
            is_sampled: flags & 1 == 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_a_trace_and_an_id() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let found = TraceParent::of(text).expect("it is well-formed");
        assert_eq!(found.trace_id, "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(found.parent_id, "00f067aa0ba902b7");
        assert!(found.is_sampled);
        assert!(
            !TraceParent::of(&text.replace("-01", "-00"))
                .expect("the same")
                .is_sampled
        );
        // A later version may say more.
        assert!(TraceParent::of(&format!("cc{}-what-else", &text[2..])).is_some());
        for bad in [
            String::new(),
            format!("{text}-more"),
            format!("ff{}", &text[2..]),
            text.to_uppercase(),
            text.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            text.replace("00f067aa0ba902b7", &"0".repeat(16)),
            text[1..].to_owned(),
            text[..text.len() - 1].to_owned(),
            text.replace('-', "_"),
            "00-4bf92f3577b34da6a3ce929d0e0e473\u{e9}-00f067aa0ba902b7-01".to_owned(),
        ] {
            assert_eq!(TraceParent::of(&bad), None, "{bad}");
        }
    }
}
