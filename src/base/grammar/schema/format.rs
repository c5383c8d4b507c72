//! Formats of strings that are enforced, as patterns of ECMA-262. All others are annotations, as the specification says.

/// The patterns that a string of this format matches; none if the format is an annotation.
pub(super) fn patterns(name: &str) -> Vec<String> {
    let full = |pattern: &str| format!("^(?:{pattern})$");
    match name {
        "date" => vec![full(DATE)],
        "time" => vec![full(TIME)],
        "date-time" => vec![full(&format!("(?:{DATE})[tT]{TIME}"))],
        "duration" => vec![full(DURATION)],
        "email" => vec![full(&format!(r"{ATOM}(?:\.{ATOM})*@(?:{HOST}|\[{IPV4}\])"))],
        "hostname" => vec![full(HOST), full(".{1,253}")],
        "ipv4" => vec![full(IPV4)],
        "ipv6" => vec![full(&ipv6())],
        "uuid" => vec![full("[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")],
        "uri" => vec![full(&uri())],
        _ => Vec::new(),
    }
}

const DATE: &str = "[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)\
    |02-(?:0[1-9]|1[0-9]|2[0-8]))\
    |(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29";
/// RFC 3339. A leap second exists on some days only.
const TIME: &str = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
/// RFC 3339, appendix A.
const DURATION: &str = "P(?:(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)\
    (?:T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))?\
    |T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)|[0-9]+W)";
const ATOM: &str = r"[a-zA-Z0-9!#$%&'*+\-/=?\^_`{|}~]+";
const HOST: &str = r"[a-zA-Z0-9](?:[a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])?)*";
const IPV4: &str = "(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";

/// Eight groups, or fewer around `::`.
fn ipv6() -> String {
    const GROUP: &str = "[0-9a-fA-F]{1,4}";
    let groups = |n: usize| match n {
        0 => String::new(),
        n => format!("{GROUP}(?::{GROUP}){{0,{}}}", n - 1),
    };
    let mut ways = vec![format!("(?:{GROUP}:){{7}}{GROUP}")];
    for before in 0..=7 {
        let head = match before {
            0 => String::new(),
            n => format!("(?:{GROUP}:){{{}}}{GROUP}", n - 1),
        };
        let tail = groups(7 - before);
        ways.push(match tail.is_empty() {
            true => format!("{head}::"),
            false => format!("{head}::(?:{tail})?"),
        });
    }
    format!("(?:{})", ways.join("|"))
}

/// RFC 3986.
fn uri() -> String {
    const CHAR: &str = r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{2})";
    const NAME: &str = r"(?:[A-Za-z0-9\-._~!$&'()*+,;=]|%[0-9A-Fa-f]{2})*";
    const USER: &str = r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:]|%[0-9A-Fa-f]{2})*";
    let host = format!(r"(?:\[{}\]|{NAME})", ipv6());
    let path = format!("{CHAR}+(?:/{CHAR}*)*");
    let authority = format!("//(?:{USER}@)?{host}(?::[0-9]*)?(?:/{CHAR}*)*");
    format!(
        r"[A-Za-z][A-Za-z0-9+.\-]*:(?:{authority}|/(?:{path})?|{path}|)(?:\?(?:{CHAR}|[/?])*)?(?:#(?:{CHAR}|[/?])*)?"
    )
}
