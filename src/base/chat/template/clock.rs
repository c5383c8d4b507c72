//! A date and time of day without a zone, and Python's `strftime` in the C locale.
//!
//! The caller passes the time; nothing here reads a clock. Invariant: the year of every [`Moment`] has at most four
//! digits.

use std::str::FromStr;

use chrono::{DateTime, Datelike, NaiveDateTime, Timelike};

/// A local date and time, to the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment(NaiveDateTime);

/// The error of a text that is not `YYYY-MM-DDThh:mm:ss`, or not a real date.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is not a date and time like `2026-07-26T12:00:00`")]
pub struct InvalidDateTime(String);

/// Directives that the date crate formats the same way; those with `-` before them are not padded.
const TEXTS: &str = "aAbBhcDFnprRtTxX%Y";
const NUMBERS: &str = "CdeHIjmMSuUwWy";

impl FromStr for Moment {
    type Err = InvalidDateTime;

    /// Parses `YYYY-MM-DDThh:mm:ss`. A space may replace the `T`, and a fraction of a second is dropped.
    fn from_str(text: &str) -> Result<Self, InvalidDateTime> {
        let parsed = text.replacen(' ', "T", 1).parse::<NaiveDateTime>().ok();
        parsed
            // The crate represents a leap second as a fraction above one.
            .filter(|time| (1..=9999).contains(&time.year()) && time.nanosecond() < 1_000_000_000)
            .and_then(|time| time.with_nanosecond(0))
            .map(Self)
            .ok_or_else(|| InvalidDateTime(text.to_owned()))
    }
}

impl Moment {
    /// The moment `seconds` after 1970-01-01T00:00:00. Add a zone's offset for local time.
    pub fn from_unix_seconds(seconds: i64) -> Self {
        // Times outside the range of four-digit years are clamped to it.
        let seconds = seconds.clamp(-62_135_596_800, 253_402_300_799);
        let time = DateTime::from_timestamp(seconds, 0);
        Self(time.expect("the range is the crate's, too").naive_utc())
    }

    /// `datetime.strftime(format)`. A directive that C does not know is copied unchanged.
    pub(super) fn strftime(&self, format: &str) -> String {
        let mut out = String::new();
        let mut rest = format;
        while let Some((head, tail)) = rest.split_once('%') {
            out.push_str(head);
            // glibc's flag `-` omits the padding (`%-d`).
            let unflagged = tail.strip_prefix('-').unwrap_or(tail);
            let Some(letter) = unflagged.chars().next() else {
                return out + "%" + tail;
            };
            let length = tail.len() - unflagged.len() + letter.len_utf8();
            let written = &tail[..length];
            match letter {
                _ if NUMBERS.contains(letter) => self.write(&mut out, written),
                _ if TEXTS.contains(letter) => self.write(&mut out, &unflagged[..1]),
                'f' => out.push_str("000000"),
                // A moment without a zone has neither a zone name nor an offset.
                'z' | 'Z' => {}
                _ => out.extend(["%", written]),
            }
            rest = &tail[length..];
        }
        out + rest
    }

    /// Appends one directive that the date crate knows.
    fn write(&self, out: &mut String, directive: &str) {
        out.push_str(&self.0.format(&format!("%{directive}")).to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_print_as_in_the_c_locale() {
        let noon = "2026-07-26T12:00:00";
        let all = "%a %b %h %I %p %j %y %C %u %w %f";
        for (moment, format, expected) in [
            (
                noon,
                "%A, %B %d, %Y %H:%M:%S",
                "Sunday, July 26, 2026 12:00:00",
            ),
            (noon, all, "Sun Jul Jul 12 PM 207 26 20 7 0 000000"),
            (noon, "%c|%r", "Sun Jul 26 12:00:00 2026|12:00:00 PM"),
            (noon, "%x|%X", "07/26/26|12:00:00"),
            (noon, "%F %T", "2026-07-26 12:00:00"),
            (noon, "%D %R%n%t%%%z%Z", "07/26/26 12:00\n\t%"),
            (noon, "%U %W %e", "30 29 26"),
            (
                "2024-01-05T03:04:09",
                "%-d %-m %-H %-I %-j %e %-a",
                "5 1 3 3 5  5 Fri",
            ),
            (
                "2024-12-31 00:00:00.5",
                "%A %j %U %W %I",
                "Tuesday 366 52 53 12",
            ),
            (noon, "%Q é %-Q %é %+ %.3f %", "%Q é %-Q %é %+ %.3f %"),
            (noon, "100%-", "100%-"),
        ] {
            let moment: Moment = moment.parse().expect("a moment");
            assert_eq!(moment.strftime(format), expected);
        }
    }

    #[test]
    fn only_real_dates_are_read() {
        let days = [
            "2026-02-29T00:00:00",
            "2026-13-01T00:00:00",
            "2026-01-01",
            "x",
        ];
        let times =
            ["24:00:00", "00:00:60", "00:00:00:00"].map(|time| format!("2026-01-01T{time}"));
        for text in days.into_iter().chain(times.iter().map(String::as_str)) {
            assert!(text.parse::<Moment>().is_err(), "{text}");
        }
    }

    #[test]
    fn unix_seconds_give_the_date() {
        for (seconds, expected) in [
            (-1, "1969-12-31T23:59:59"),
            (951_782_400, "2000-02-29T00:00:00"),
            (1_785_067_200, "2026-07-26T12:00:00"),
            (i64::MIN, "0001-01-01T00:00:00"),
            (i64::MAX, "9999-12-31T23:59:59"),
        ] {
            let moment = Moment::from_unix_seconds(seconds);
            assert_eq!(expected.parse(), Ok(moment));
        }
    }
}
