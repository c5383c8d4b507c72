//! Numbers of a schema: exact decimal bounds, and the expressions over the JSON texts of the numbers between them.
//!
//! The library computes with `f64`, which keeps 53 bits; here every digit counts. Multiples are left to the library
//! ([`NumberRules::library_schema`]), as far as it is exact.

use std::cmp::Ordering;

use llguidance::derivre::RegexAst;
use serde_json::{Value, json};

/// A decimal number without an exponent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decimal {
    is_negative: bool,
    /// Digits before the point: no leading zero but a single one.
    whole: String,
    /// Digits after the point: no trailing zero.
    fraction: String,
}

impl Decimal {
    /// The number in JSON text. Integers of up to 64 bits have all their digits in a parsed document, others not.
    pub(super) fn of(value: &Value) -> Result<Self, String> {
        let Some(number) = value.as_number() else {
            return Err("expected a number".into());
        };
        // 2^64 and above: an integer of more than 64 bits has lost its digits.
        if number.is_f64()
            && number
                .as_f64()
                .is_none_or(|v| v.abs() >= 18_446_744_073_709_551_616.0)
        {
            return Err("integers beyond 64 bits cannot be enforced exactly".into());
        }
        let text = number.to_string();
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().map_err(|_| "expected a number")?;
        let (is_negative, mantissa) = match mantissa.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, mantissa),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{fraction}");
        let point = whole.len() as i32 + exponent;
        let (whole, fraction) = match usize::try_from(point) {
            Ok(point) if point <= digits.len() => {
                let (whole, fraction) = digits.split_at(point);
                (whole.to_owned(), fraction.to_owned())
            }
            Ok(point) => (format!("{digits:0<point$}"), String::new()),
            Err(_) => (
                String::new(),
                "0".repeat(point.unsigned_abs() as usize) + &digits,
            ),
        };
        Ok(Self::new(is_negative, &whole, &fraction))
    }

    fn new(is_negative: bool, whole: &str, fraction: &str) -> Self {
        let whole = match whole.trim_start_matches('0') {
            "" => "0",
            whole => whole,
        };
        let fraction = fraction.trim_end_matches('0');
        Self {
            is_negative: is_negative && !(whole == "0" && fraction.is_empty()),
            whole: whole.to_owned(),
            fraction: fraction.to_owned(),
        }
    }

    pub(super) fn is_whole(&self) -> bool {
        self.fraction.is_empty()
    }

    fn is_zero(&self) -> bool {
        self.whole == "0" && self.is_whole()
    }

    /// The nearest integer that is not below (`is_above`) or not above; with `is_next` it is another number.
    fn integer(&self, is_above: bool, is_next: bool) -> Self {
        if self.is_whole() && !is_next {
            return self.clone();
        }
        if self.is_zero() && !is_above {
            return Self::new(true, "1", "");
        }
        let mut digits: Vec<u8> = self.whole.bytes().collect();
        // Towards zero, the digits before the point are the integer, unless the number is one.
        let is_larger = is_above != self.is_negative;
        if is_larger || self.is_whole() {
            step(&mut digits, is_larger);
        }
        Self::new(self.is_negative, &String::from_utf8_lossy(&digits), "")
    }

    fn divides(&self, multiples: &[Self]) -> Option<bool> {
        let scale = |number: &Self, n: usize| {
            let digits = format!("{}{:0<n$}", number.whole, number.fraction);
            digits.parse::<u128>().ok()
        };
        for multiple in multiples {
            let n = self.fraction.len().max(multiple.fraction.len());
            let (value, step) = (scale(self, n)?, scale(multiple, n)?);
            if value.checked_rem(step)? != 0 {
                return Some(false);
            }
        }
        Some(true)
    }

    /// The number as the library reads it, if it reads it exactly.
    fn exact(&self) -> Option<Value> {
        let text = self.to_string();
        let value: Value = serde_json::from_str(&text).ok()?;
        let is_exact = !self.is_whole() || value.as_f64()?.abs() < 9_007_199_254_740_992.0;
        (is_exact && Self::of(&value).ok()? == *self).then_some(value)
    }
}

/// Adds one to a number of digits, or subtracts one.
fn step(digits: &mut Vec<u8>, is_up: bool) {
    let (full, over) = if is_up { (b'9', b'0') } else { (b'0', b'9') };
    for digit in digits.iter_mut().rev() {
        if *digit != full {
            *digit = if is_up { *digit + 1 } else { *digit - 1 };
            return;
        }
        *digit = over;
    }
    digits.insert(0, b'1');
}

impl std::fmt::Display for Decimal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sign = if self.is_negative { "-" } else { "" };
        let point = if self.is_whole() { "" } else { "." };
        write!(f, "{sign}{}{point}{}", self.whole, self.fraction)
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        let size = |this: &Self| (this.whole.len(), this.whole.clone(), this.fraction.clone());
        match (self.is_negative, other.is_negative) {
            (false, false) => size(self).cmp(&size(other)),
            (true, true) => size(other).cmp(&size(self)),
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
        }
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) value: Decimal,
    pub(super) is_exclusive: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NumberRules {
    pub(super) is_integer: bool,
    pub(super) low: Option<Bound>,
    pub(super) high: Option<Bound>,
    pub(super) multiples: Vec<Decimal>,
}

impl NumberRules {
    pub(super) fn constant(value: &Value) -> Result<Self, String> {
        let bound = Bound {
            value: Decimal::of(value)?,
            is_exclusive: false,
        };
        Ok(Self {
            is_integer: value.is_i64() || value.is_u64(),
            low: Some(bound.clone()),
            high: Some(bound),
            multiples: Vec::new(),
        })
    }

    pub(super) fn both(&self, other: &Self) -> Self {
        let tighter = |a: &Option<Bound>, b: &Option<Bound>, is_tighter: Ordering| match (a, b) {
            (Some(a), Some(b)) => {
                let order = b.value.cmp(&a.value);
                let takes_b = order == is_tighter || (order.is_eq() && b.is_exclusive);
                Some(if takes_b { b } else { a }.clone())
            }
            (a, b) => a.clone().or_else(|| b.clone()),
        };
        let mut multiples = self.multiples.clone();
        for multiple in &other.multiples {
            if !multiples.contains(multiple) {
                multiples.push(multiple.clone());
            }
        }
        Self {
            is_integer: self.is_integer || other.is_integer,
            low: tighter(&self.low, &other.low, Ordering::Greater),
            high: tighter(&self.high, &other.high, Ordering::Less),
            multiples,
        }
    }

    /// The bounds; those of integers are integers of the range.
    fn bounds(&self) -> [Option<Bound>; 2] {
        let whole = |bound: &Option<Bound>, is_above: bool| {
            let bound = bound.clone()?;
            match self.is_integer {
                true => Some(Bound {
                    value: bound.value.integer(is_above, bound.is_exclusive),
                    is_exclusive: false,
                }),
                false => Some(bound),
            }
        };
        [whole(&self.low, true), whole(&self.high, false)]
    }

    /// Whether no number fits. One number that fits has no multiples from then on.
    pub(super) fn settle(&mut self) -> bool {
        if let (Some(low), Some(high)) = (&self.low, &self.high)
            && low.value == high.value
            && let Some(fits) = low.value.divides(&self.multiples)
        {
            self.multiples.clear();
            return !fits || self.is_empty();
        }
        self.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        let [Some(low), Some(high)] = self.bounds() else {
            return false;
        };
        match low.value.cmp(&high.value) {
            Ordering::Less => false,
            Ordering::Equal => low.is_exclusive || high.is_exclusive,
            Ordering::Greater => true,
        }
    }

    pub(super) fn texts(&self) -> RegexAst {
        let [low, high] = self.bounds();
        let is_one = matches!((&low, &high), (Some(low), Some(high)) if low.value == high.value);
        if let (true, Some(low)) = (is_one, &low) {
            return RegexAst::Regex(one(&low.value, self.is_integer));
        }
        let digits = "(?:0|[1-9][0-9]*)";
        let rest = match (self.is_integer, &low, &high) {
            (true, ..) => "",
            (false, None, None) => r"(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?",
            _ => FRACTION,
        };
        let mut all = vec![RegexAst::Regex(format!("-?{digits}{rest}"))];
        let mut within = |bound: &Option<Bound>, is_low: bool| {
            if let Some(bound) = bound {
                all.push(RegexAst::Regex(beyond(bound, is_low)));
            }
        };
        within(&low, true);
        within(&high, false);
        match all.len() {
            1 => all.remove(0),
            _ => RegexAst::And(all),
        }
    }

    /// The schema that the library enforces instead, if there are multiples.
    pub(super) fn library_schema(&self) -> Result<Option<Value>, String> {
        if self.multiples.is_empty() {
            return Ok(None);
        }
        let inexact = "`multipleOf` with so many digits cannot be enforced exactly";
        let mut schema = json!({ "type": if self.is_integer { "integer" } else { "number" } });
        let mut product = 1u64;
        for multiple in &self.multiples {
            let digits = format!("{}{}", multiple.whole, multiple.fraction);
            let digits: u64 = digits.parse().map_err(|_| inexact)?;
            let scale = u32::try_from(multiple.fraction.len()).map_err(|_| inexact)?;
            let power = 10u64.checked_pow(scale).ok_or(inexact)?;
            product = product.saturating_mul(digits.max(power));
            // The library multiplies by ten until nothing is left after the point.
            let mut value: f64 = multiple.to_string().parse().map_err(|_| inexact)?;
            for _ in 0..scale {
                value *= 10.0;
            }
            if multiple.is_negative
                || digits == 0
                || value != digits as f64
                || product > u32::MAX.into()
            {
                return Err(inexact.into());
            }
        }
        let all = self
            .multiples
            .iter()
            .map(|multiple| json!({ "multipleOf": multiple.exact() }));
        schema["allOf"] = all.collect();
        let together = "this bound and `multipleOf` cannot be enforced together";
        for (key, exclusive, bound) in [
            ("minimum", "exclusiveMinimum", &self.low),
            ("maximum", "exclusiveMaximum", &self.high),
        ] {
            if let Some(bound) = bound {
                let key = if bound.is_exclusive { exclusive } else { key };
                schema[key] = bound.value.exact().ok_or(together)?;
            }
        }
        Ok(Some(schema))
    }
}

const FRACTION: &str = r"(?:\.[0-9]+)?";

fn one(value: &Decimal, is_integer: bool) -> String {
    let text = regex_syntax::escape(&value.to_string());
    if is_integer {
        return text;
    }
    if value.is_whole() {
        return format!(r"{text}(?:\.0+)?");
    }
    // Small numbers are also written with an exponent.
    let digits = value.fraction.trim_start_matches('0');
    let n_zeros = value.fraction.len() - digits.len();
    if value.whole != "0" || n_zeros < 4 {
        return format!("{text}0*");
    }
    let sign = if value.is_negative { "-" } else { "" };
    let (first, rest) = digits.split_at(1);
    let rest = if rest.is_empty() {
        String::new()
    } else {
        format!(r"\.{rest}")
    };
    format!("(?:{text}0*|{sign}{first}{rest}[eE]-0?{})", n_zeros + 1)
}

/// The texts of the numbers on one side of a bound, among texts without an exponent.
fn beyond(bound: &Bound, is_low: bool) -> String {
    let Bound {
        value,
        is_exclusive,
    } = bound;
    let any = format!("[0-9]+{FRACTION}");
    // Above a negative bound are the negative numbers of smaller size and all others, and so on.
    let is_smaller = is_low == value.is_negative;
    let side = match is_smaller {
        true => smaller(value, *is_exclusive),
        false => larger(value, *is_exclusive),
    };
    let sign = if value.is_negative { "-" } else { "" };
    let own = side.map(|side| format!("{sign}(?:{side})"));
    let other = match (is_low, value.is_negative) {
        (true, true) => Some(any),
        // Minus zero is not below zero.
        (false, false) if value.is_zero() => larger(value, true).map(|side| format!("-(?:{side})")),
        (false, false) => Some(format!("-{any}")),
        _ => None,
    };
    let ways: Vec<String> = own.into_iter().chain(other).collect();
    format!("(?:{})", ways.join("|"))
}

/// Unsigned texts of at least this size.
fn larger(value: &Decimal, is_exclusive: bool) -> Option<String> {
    let (whole, fraction) = (&value.whole, &value.fraction);
    let mut ways = vec![format!("[1-9][0-9]{{{},}}{FRACTION}", whole.len())];
    for (i, digit) in whole.bytes().enumerate().filter(|(_, digit)| *digit < b'9') {
        let rest = whole.len() - i - 1;
        let next = char::from(digit + 1);
        ways.push(format!(
            "{}[{next}-9][0-9]{{{rest}}}{FRACTION}",
            &whole[..i]
        ));
    }
    let mut tails = Vec::new();
    for (i, digit) in fraction
        .bytes()
        .enumerate()
        .filter(|(_, digit)| *digit < b'9')
    {
        tails.push(format!(
            "{}[{}-9][0-9]*",
            &fraction[..i],
            char::from(digit + 1)
        ));
    }
    match (fraction.is_empty(), is_exclusive) {
        (true, false) => ways.push(format!("{whole}{FRACTION}")),
        (_, true) => tails.push(format!("{fraction}[0-9]*[1-9][0-9]*")),
        (false, false) => tails.push(format!("{fraction}[0-9]*")),
    }
    if !tails.is_empty() {
        ways.push(format!(r"{whole}\.(?:{})", tails.join("|")));
    }
    Some(ways.join("|"))
}

/// Unsigned texts of at most this size; `None` if there are none.
fn smaller(value: &Decimal, is_exclusive: bool) -> Option<String> {
    let (whole, fraction) = (&value.whole, &value.fraction);
    let mut ways = Vec::new();
    if let n @ 1.. = whole.len() - 1 {
        ways.push(format!("(?:0|[1-9][0-9]{{0,{}}}){FRACTION}", n - 1));
    }
    for (i, digit) in whole.bytes().enumerate() {
        let lowest = if i == 0 && whole.len() > 1 {
            b'1'
        } else {
            b'0'
        };
        if digit > lowest {
            let rest = whole.len() - i - 1;
            let range = format!("[{}-{}]", char::from(lowest), char::from(digit - 1));
            ways.push(format!("{}{range}[0-9]{{{rest}}}{FRACTION}", &whole[..i]));
        }
    }
    let mut tails = Vec::new();
    for (i, digit) in fraction.bytes().enumerate() {
        if digit > b'0' {
            tails.push(format!(
                "{}[0-{}][0-9]*",
                &fraction[..i],
                char::from(digit - 1)
            ));
        }
        if i > 0 {
            tails.push(fraction[..i].to_owned());
        }
    }
    if !is_exclusive {
        tails.push(match fraction.is_empty() {
            true => "0+".to_owned(),
            false => format!("{fraction}0*"),
        });
    }
    if !fraction.is_empty() || !is_exclusive {
        let tails = tails.join("|");
        ways.push(format!(r"{whole}(?:\.(?:{tails}))?"));
    }
    (!ways.is_empty()).then(|| ways.join("|"))
}
