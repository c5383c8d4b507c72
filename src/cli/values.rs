//! Values of options: what their texts mean, and what is said about others. Names and notations of other programs that
//! mean one thing here are understood.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::str::FromStr;
use std::time::Duration;

use lab_base::ggml::{CACHE_TYPES, MADE_TYPES};
use lab_base::weights::TensorType;
use lab_core::arch::nearest;
use lab_core::models::quantise::Mix;

pub(super) fn positive(text: &str) -> Result<usize, String> {
    let found = text.parse().ok().filter(|n| *n > 0);
    found.ok_or_else(|| format!("expected a number, 1 or more, found `{text}`"))
}

/// Parses a number of tokens, plain or in units of 1024, such as `4k` or `128K`.
pub(super) fn tokens(text: &str) -> Result<usize, String> {
    let found = with_unit(text, &["k", "m"]).and_then(|n| usize::try_from(n).ok());
    found.ok_or_else(|| {
        format!("expected a number of tokens such as 4096 or 4k, which is the same, found `{text}`")
    })
}

/// [`tokens`], 1 or more.
pub(super) fn some_tokens(text: &str) -> Result<usize, String> {
    match tokens(text)? {
        0 => Err(format!(
            "expected a number of tokens, 1 or more, found `{text}`"
        )),
        n => Ok(n),
    }
}

/// Maximum number of tokens to generate; none: as many as fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MaxTokens(pub(super) Option<usize>);

impl FromStr for MaxTokens {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            // -2 is llama.cpp's word for the rest of the context.
            "-1" | "-2" => Ok(Self(None)),
            _ => tokens(text).map(|n| Self(Some(n))),
        }
    }
}

/// Parses the seed of a sampler. A seed of -1 is a random one.
pub(super) fn seed(text: &str) -> Result<u64, String> {
    match text {
        // Below 2^63, so that it is the same number as a field of a request.
        "-1" => Ok(RandomState::new().build_hasher().finish() >> 1),
        _ => text.parse().map_err(|_| {
            format!("expected 0 to 2^64 - 1, or -1 for a random seed, found `{text}`")
        }),
    }
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let found = text
        .parse()
        .ok()
        .and_then(|s| Duration::try_from_secs_f64(s).ok());
    found.ok_or_else(|| format!("expected a number of seconds, found `{text}`"))
}

/// Parses a number of bytes, plain or with a unit of powers of 1024: `512M`, `4G`, also `4g`, `4GB` and `4GiB`.
pub(super) fn byte_count(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let stem = ["ib", "b"].iter().find_map(|end| lower.strip_suffix(end));
    let found = with_unit(stem.unwrap_or(&lower), &["k", "m", "g", "t"]);
    found.ok_or_else(|| format!("expected a number of bytes such as 512M or 4G, found `{text}`"))
}

/// A whole number, with one of the units at its end, which are powers of 1024 from the first on.
fn with_unit(text: &str, units: &[&str]) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let unit = (1u32..)
        .zip(units)
        .find_map(|(power, unit)| Some((lower.strip_suffix(unit)?, 10 * power)));
    let (number, shift) = unit.unwrap_or((&lower, 0));
    number.trim().parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Names of other programs for types that are the same here.
const SAME: [(&str, TensorType); 3] = [
    ("fp32 float32 float", TensorType::F32),
    ("fp16 float16 half", TensorType::F16),
    ("bfloat16", TensorType::BF16),
];

/// Names of other programs for types that are not the same here, each with the types that come near, the best first.
const NEAR: [(&str, &[TensorType]); 7] = [
    ("q4_k_l", &[TensorType::Q4_K]),
    ("q5_k_l", &[TensorType::Q5_K]),
    ("q6_k_l", &[TensorType::Q6_K]),
    ("q4 int4", &[TensorType::Q4_K, TensorType::Q4_0]),
    ("q5", &[TensorType::Q5_K, TensorType::Q5_0]),
    ("q6", &[TensorType::Q6_K, TensorType::Q8_0]),
    ("q8 int8 fp8 fp8_e4m3 fp8_e5m2", &[TensorType::Q8_0]),
];

/// Parses an element type for matrices, or the name of one of llama-quantize's mixes of such types.
pub(super) fn mix(text: &str) -> Result<Mix, String> {
    if let Some(mix) = Mix::named(text) {
        return Ok(mix);
    }
    let names = Mix::names().into_iter().map(str::to_ascii_lowercase);
    let names: Vec<String> = names.collect();
    let plain = [TensorType::F32, TensorType::F16, TensorType::BF16];
    let known = [&plain[..], &MADE_TYPES].concat();
    one_of(text, &known).map(Mix::from).map_err(|_| {
        let near = near(text, &known, names.iter().map(String::as_str));
        let near = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
        format!("expected one of {}{near}", names.join(", "))
    })
}

pub(super) fn cache_type(text: &str) -> Result<TensorType, String> {
    one_of(text, &CACHE_TYPES)
}

/// The type of this name among the known ones.
fn one_of(text: &str, known: &[TensorType]) -> Result<TensorType, String> {
    let name = text.to_ascii_lowercase();
    let has = |names: &str| names.split(' ').any(|own| own == name);
    let same = SAME.iter().find(|(others, _)| has(others));
    let found = same.map(|(_, ty)| *ty).or_else(|| name.parse().ok());
    if let Some(ty) = found.filter(|ty| known.contains(ty)) {
        return Ok(ty);
    }
    let names: Vec<_> = known.iter().map(|ty| ty.name()).collect();
    let near = near(text, known, names.iter().copied());
    let near = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
    Err(format!("expected one of {}{near}", names.join(", ")))
}

/// What a name that there is not probably means: one of the known types, or else one of the names.
fn near<'n>(
    text: &str,
    known: &[TensorType],
    names: impl Iterator<Item = &'n str>,
) -> Option<&'n str> {
    let name = text.to_ascii_lowercase();
    let has = |names: &str| names.split(' ').any(|own| own == name);
    let kin = NEAR.iter().find(|(others, _)| has(others));
    let kin = kin.and_then(|(_, kin)| kin.iter().find(|ty| known.contains(ty)));
    match kin {
        Some(ty) => Some(ty.name()),
        None => nearest(&name, names),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_tokens_and_bytes_have_units() {
        assert_eq!(tokens("4096"), Ok(4096));
        assert_eq!(tokens("4k"), Ok(4096));
        assert_eq!(tokens("128K"), Ok(131_072));
        assert_eq!(tokens("1M"), Ok(1 << 20));
        for wrong in [
            "",
            "k",
            "4kk",
            "-1",
            "4.5k",
            "99999999999999999999",
            "18014398509481984k",
        ] {
            assert!(tokens(wrong).is_err(), "{wrong}");
        }
        assert_eq!(some_tokens("1"), Ok(1));
        assert!(some_tokens("0").is_err());
        for text in ["4G", "4g", "4GB", "4GiB", "4 G"] {
            assert_eq!(byte_count(text), Ok(4 << 30), "{text}");
        }
        assert_eq!(byte_count("512"), Ok(512));
        assert_eq!(byte_count("512B"), Ok(512));
        for wrong in ["", "G", "4X", "-4G", "9999999999T"] {
            assert!(byte_count(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn minus_one_is_no_limit_and_a_random_seed() {
        assert_eq!("-1".parse(), Ok(MaxTokens(None)));
        assert_eq!("1k".parse(), Ok(MaxTokens(Some(1024))));
        assert!("-3".parse::<MaxTokens>().is_err());
        assert_eq!(seed("7"), Ok(7));
        assert_ne!(seed("-1"), seed("-1"));
        assert!(seed("-2").is_err());
    }

    #[test]
    fn types_have_the_names_of_other_programs() {
        let name = |text: &str| mix(text).map(|mix| mix.to_string());
        for (text, expected) in [
            ("Q4_K_M", "Q4_K_M"),
            ("q4_k", "Q4_K_M"),
            ("q2_k_s", "Q2_K_S"),
            ("mxfp4", "MXFP4"),
            ("fp16", "F16"),
        ] {
            assert_eq!(name(text).as_deref(), Ok(expected));
        }
        assert_eq!(cache_type("BF16"), Ok(TensorType::BF16));
        for (refused, near) in [
            (name("q4_k_l"), "did you mean q4_k?"),
            (name("int8"), "did you mean q8_0?"),
            (name("q8_o"), "did you mean q8_0?"),
            (name("iq2_n"), "did you mean iq2_"),
            (
                cache_type("int4").map(|ty| ty.to_string()),
                "did you mean q4_0?",
            ),
            (
                cache_type("fp8").map(|ty| ty.to_string()),
                "did you mean q8_0?",
            ),
        ] {
            let message = refused.expect_err("it is another type");
            assert!(message.contains(near), "{message}");
        }
        let message = cache_type("i8").expect_err("no cache has it");
        assert!(!message.contains("i32"), "{message}");
    }
}
