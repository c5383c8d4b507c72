//! `keep_alive`: how long a model stays loaded without being used.
//!
//! The pool of the server keeps the time. An engine process tells it in a header, which no client sees.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use serde_json::Value;

use crate::Pool;
use crate::http::context::RequestContext;
use crate::http::error::Error;
use crate::pool::HostMode;
use crate::request::json_access::malformed;

const FIELD: &str = "keep_alive";
/// The time in milliseconds, from an engine process to the server.
const HEADER: HeaderName = HeaderName::from_static("x-bench-keep-alive");
/// Units of Go's durations, in seconds. A unit comes before those that it starts with.
const UNITS: [(&str, f64); 7] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("\u{b5}s", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];

/// A time from JSON: seconds, or a duration such as `1h30m`. Below 0 it is forever, which is `Duration::MAX`.
pub(super) fn parse(value: &Value) -> Result<Duration, Error> {
    let seconds = match value {
        Value::String(text) => seconds(text.trim()),
        value => value.as_f64(),
    };
    let seconds = seconds.filter(|seconds| !seconds.is_nan());
    let expected = "seconds, or a duration such as `5m` or `1h30m`; below 0 = forever";
    let seconds = seconds.ok_or_else(|| malformed(FIELD, expected))?;
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

fn seconds(text: &str) -> Option<f64> {
    if let Ok(number) = text.parse::<f64>() {
        return Some(number);
    }
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    let mut total = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        let (unit, length) = UNITS
            .iter()
            .find(|(unit, _)| rest[end..].starts_with(unit))?;
        total += number * length;
        rest = &rest[end + unit.len()..];
    }
    Some(sign * total)
}

/// Sets the time of a model that answered a request with `response`.
pub(super) fn apply(
    pool: &Pool,
    name: &str,
    time: Option<Duration>,
    mut response: Response,
) -> Response {
    match time {
        None => {}
        Some(time) if pool.config.mode == HostMode::EngineProcess => {
            let time = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            response.headers_mut().insert(HEADER, time.into());
        }
        Some(time) => set(pool, name, time),
    }
    response
}

/// Sets the time that the engine process of a model tells in its response.
pub(crate) fn take(pool: &Pool, name: &str, response: &mut Response) {
    let time = response.headers_mut().remove(HEADER);
    let time = time.as_ref().map(HeaderValue::to_str);
    if let Some(time) = time.and_then(|time| time.ok()?.parse().ok()) {
        let is_forever = time == u64::MAX;
        let time = Duration::from_millis(time);
        set(pool, name, if is_forever { Duration::MAX } else { time });
    }
}

fn set(pool: &Pool, name: &str, time: Duration) {
    match pool.config.is_managed && RequestContext::current().manages() {
        true => pool.keep_alive(name, time),
        false => RequestContext::current().ignore(FIELD),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_are_seconds_or_durations() {
        let of = |value: Value| RequestContext::detached().enter(|| parse(&value).ok());
        for (value, seconds) in [
            (json!(0), 0.0),
            (json!("0"), 0.0),
            (json!(2.5), 2.5),
            (json!("5m"), 300.0),
            (json!("1h30m"), 5400.0),
            (json!("1.5h"), 5400.0),
            (json!("300ms"), 0.3),
            (json!("24h0m0s"), 86_400.0),
        ] {
            let found = of(value.clone()).map(|time| (time.as_secs_f64() * 1e6).round());
            assert_eq!(found, Some(seconds * 1e6), "{value}");
        }
        for value in [json!(-1), json!("-1"), json!("-1m"), json!(1e300)] {
            assert_eq!(of(value.clone()), Some(Duration::MAX), "{value}");
        }
        for value in [
            json!("soon"),
            json!("5 m"),
            json!(true),
            json!("1.2.3s"),
            json!("5x"),
        ] {
            assert_eq!(of(value.clone()), None, "{value}");
        }
    }
}
