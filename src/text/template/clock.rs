//! A date and time of day without a zone, and Python's `strftime` in the C locale.
//!
//! The caller says what time it is; nothing here reads a clock. Invariant: every [`Moment`] is a
//! real date of the Gregorian calendar.

use std::fmt::Write;
use std::str::FromStr;

/// A local date and time, to the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    year: i64,
    month: u32,
    day: u32,
    hour: u32,
    minute: u32,
    second: u32,
}

/// A text that is not `YYYY-MM-DDThh:mm:ss`, or not a real date.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is not a date and time like `2026-07-26T12:00:00`")]
pub struct NotAMoment(String);

const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

impl FromStr for Moment {
    type Err = NotAMoment;

    /// Reads `YYYY-MM-DDThh:mm:ss`; a space may stand for the `T`, and a fraction of the second
    /// is dropped.
    fn from_str(text: &str) -> Result<Self, NotAMoment> {
        let parse = || {
            let (date, time) = text.split_once(['T', ' '])?;
            let [year, month, day] = numbers(date, '-')?;
            let [hour, minute, second] = numbers(time.split('.').next()?, ':')?;
            let is_real = (1..=9999).contains(&year)
                && (1..=12).contains(&month)
                && (1..=days_in_month(i64::from(year), month)).contains(&day)
                && hour < 24
                && minute < 60
                && second < 60;
            is_real.then_some(Self {
                year: i64::from(year),
                month,
                day,
                hour,
                minute,
                second,
            })
        };
        parse().ok_or_else(|| NotAMoment(text.to_owned()))
    }
}

fn numbers(text: &str, separator: char) -> Option<[u32; 3]> {
    let mut parts = text.split(separator).map(|part| part.parse().ok());
    let numbers = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(numbers)
}

fn is_leap(year: i64) -> bool {
    (year % 4 == 0 && year % 100 != 0) || year % 400 == 0
}

fn days_in_month(year: i64, month: u32) -> u32 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap(year) => 29,
        2 => 28,
        _ => 31,
    }
}

impl Moment {
    /// The moment `seconds` after 1970-01-01T00:00:00; add a zone's offset to get local time.
    pub fn from_unix_seconds(seconds: i64) -> Self {
        // Far outside the range of four-digit years there is nothing sensible to print.
        let seconds = seconds.clamp(-62_135_596_800, 253_402_300_799);
        let (days, of_day) = (
            seconds.div_euclid(86_400),
            seconds.rem_euclid(86_400) as u32,
        );

        // Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms": civil_from_days, with
        // years that begin in March, so that the leap day comes last.
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let of_era = shifted.rem_euclid(146_097);
        let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * of_year + 2) / 153;
        let day = (of_year - (153 * month_from_march + 2) / 5 + 1) as u32;
        let month = (if month_from_march < 10 {
            month_from_march + 3
        } else {
            month_from_march - 9
        }) as u32;
        Self {
            year: year_of_era + era * 400 + i64::from(month <= 2),
            month,
            day,
            hour: of_day / 3600,
            minute: of_day / 60 % 60,
            second: of_day % 60,
        }
    }

    /// Day of the year, from 0.
    fn day_of_year(&self) -> u32 {
        (1..self.month)
            .map(|month| days_in_month(self.year, month))
            .sum::<u32>()
            + self.day
            - 1
    }

    /// Day of the week, Sunday 0.
    fn weekday(&self) -> u32 {
        let years = self.year - 1;
        // 0001-01-01 was a Monday.
        let days =
            years * 365 + years / 4 - years / 100 + years / 400 + i64::from(self.day_of_year());
        ((days + 1) % 7) as u32
    }

    /// `datetime.strftime(format)`. A directive that C does not know stays as it is written.
    pub(super) fn strftime(&self, format: &str) -> String {
        let mut out = String::new();
        let mut rest = format;
        while let Some(at) = rest.find('%') {
            out.push_str(&rest[..at]);
            let directive = &rest[at..];
            // glibc's flag `-` leaves out the padding (`%-d`).
            let is_padded = !directive.starts_with("%-");
            let letter_at = if is_padded { 1 } else { 2 };
            let Some(letter) = directive[letter_at..].chars().next() else {
                out.push_str(directive);
                return out;
            };
            let length = letter_at + letter.len_utf8();
            if !self.write_directive(&mut out, letter, is_padded) {
                out.push_str(&directive[..length]);
            }
            rest = &directive[length..];
        }
        out + rest
    }

    /// Appends one directive; false if there is none of that letter.
    fn write_directive(&self, out: &mut String, letter: char, is_padded: bool) -> bool {
        let hour12 = (self.hour + 11) % 12 + 1;
        let (weekday, day_of_year) = (self.weekday(), self.day_of_year());
        let (number, width) = match letter {
            'd' => (self.day, 2),
            'H' => (self.hour, 2),
            'I' => (hour12, 2),
            'j' => (day_of_year + 1, 3),
            'm' => (self.month, 2),
            'M' => (self.minute, 2),
            'S' => (self.second, 2),
            'f' => (0, 6),
            'u' => ((weekday + 6) % 7 + 1, 1),
            'w' => (weekday, 1),
            'y' => ((self.year % 100) as u32, 2),
            'C' => ((self.year / 100) as u32, 2),
            // Weeks begin on Sunday (U) or Monday (W); days before the first are week 0.
            'U' => ((day_of_year + 7 - weekday) / 7, 2),
            'W' => ((day_of_year + 7 - (weekday + 6) % 7) / 7, 2),
            _ => return self.write_text(out, letter),
        };
        let _ = if is_padded {
            write!(out, "{number:0width$}")
        } else {
            write!(out, "{number}")
        };
        true
    }

    fn write_text(&self, out: &mut String, letter: char) -> bool {
        let day = DAYS[self.weekday() as usize];
        let month = MONTHS[self.month as usize - 1];
        match letter {
            'a' => out.push_str(&day[..3]),
            'A' => out.push_str(day),
            'b' | 'h' => out.push_str(&month[..3]),
            'B' => out.push_str(month),
            'Y' => {
                let _ = write!(out, "{}", self.year);
            }
            'e' => {
                let _ = write!(out, "{:2}", self.day);
            }
            'p' => out.push_str(if self.hour < 12 { "AM" } else { "PM" }),
            'c' => out.push_str(&self.strftime("%a %b %e %H:%M:%S %Y")),
            'D' | 'x' => out.push_str(&self.strftime("%m/%d/%y")),
            'F' => out.push_str(&self.strftime("%Y-%m-%d")),
            'R' => out.push_str(&self.strftime("%H:%M")),
            'r' => out.push_str(&self.strftime("%I:%M:%S %p")),
            'T' | 'X' => out.push_str(&self.strftime("%H:%M:%S")),
            // A moment without a zone has neither name nor offset.
            'z' | 'Z' => {}
            'n' => out.push('\n'),
            't' => out.push('\t'),
            '%' => out.push('%'),
            _ => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(moment: &str, format: &str, expected: &str) {
        let moment: Moment = moment.parse().expect("a moment");
        assert_eq!(moment.strftime(format), expected);
    }

    #[test]
    fn directives_print_as_in_the_c_locale() {
        let noon = "2026-07-26T12:00:00";
        check(noon, "%d %b %Y", "26 Jul 2026");
        check(noon, "%A, %B %d, %Y", "Sunday, July 26, 2026");
        check(noon, "%Y-%m-%d %H:%M:%S", "2026-07-26 12:00:00");
        check(noon, "%a %I %p %j %y %u %w", "Sun 12 PM 207 26 7 0");
        check(
            noon,
            "%c|%x|%X|%F|%T|%D",
            "Sun Jul 26 12:00:00 2026|07/26/26|12:00:00|2026-07-26|12:00:00|07/26/26",
        );
        check(noon, "%U %W %e %%", "30 29 26 %");
        check(
            "2024-01-05T03:04:09",
            "%-d %-m %-H %-I %-j %e",
            "5 1 3 3 5  5",
        );
        check(
            "2024-12-31T00:00:00",
            "%A %j %U %W %I",
            "Tuesday 366 52 53 12",
        );
    }

    #[test]
    fn unknown_directives_stay() {
        check("2026-07-26T12:00:00", "%Q é %-Q %", "%Q é %-Q %");
        check("2026-07-26T12:00:00", "100%-", "100%-");
    }

    #[test]
    fn only_real_dates_are_read() {
        for text in [
            "2026-02-29T00:00:00",
            "2026-13-01T00:00:00",
            "2026-01-01",
            "2026-01-01T24:00:00",
            "x",
            "2026-01-01T00:00:00:00",
        ] {
            assert!(text.parse::<Moment>().is_err(), "{text}");
        }
        assert!("2024-02-29 23:59:59.5".parse::<Moment>().is_ok());
    }

    #[test]
    fn unix_seconds_give_the_date() {
        let check = |seconds, expected: &str| {
            let moment = Moment::from_unix_seconds(seconds);
            assert_eq!(moment.strftime("%Y-%m-%dT%H:%M:%S"), expected);
            assert_eq!(expected.parse(), Ok(moment));
        };
        check(0, "1970-01-01T00:00:00");
        check(-1, "1969-12-31T23:59:59");
        check(951_782_400, "2000-02-29T00:00:00");
        check(1_785_067_200, "2026-07-26T12:00:00");
        check(253_402_300_799, "9999-12-31T23:59:59");
        Moment::from_unix_seconds(i64::MAX);
        Moment::from_unix_seconds(i64::MIN);
    }
}
