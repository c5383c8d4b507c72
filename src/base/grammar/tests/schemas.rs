//! Which texts a JSON Schema allows: the cases of `schemas.toml`, and random bounds of numbers.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::*;

pub(super) static COMPILER: LazyLock<Arc<Compiler>> =
    LazyLock::new(|| Arc::new(Compiler::without_forcing(byte_level())));

pub(super) fn compiled(schema: &Value) -> CompiledConstraint {
    let compiled = COMPILER.compile(Constraint::JsonSchema(schema.clone()));
    compiled.unwrap_or_else(|error| panic!("{error}: {schema}"))
}

pub(super) fn allows_text(compiled: &CompiledConstraint, text: &str) -> bool {
    let mut matcher = compiled.matcher();
    for byte in text.bytes() {
        if matcher.is_stopped() || !allows(&matcher.mask().expect("a mask"), token(byte)) {
            return false;
        }
        matcher.accept(token(byte)).expect("the mask allows it");
    }
    matcher.may_stop().expect("alive")
}

fn token(byte: u8) -> u32 {
    static TOKENS: LazyLock<Vec<u32>> = LazyLock::new(|| {
        let tokenizer = &COMPILER.tokenizer;
        let of = |byte: u8| (0..256).find(|id| tokenizer.piece(*id) == [byte]);
        (0..=255).map(|byte| of(byte).expect("a token")).collect()
    });
    TOKENS[byte as usize]
}

pub(super) fn check<T: AsRef<str>>(schema: &str, fits: &[T], others: &[T]) {
    let schema: Value = serde_json::from_str(schema).expect("JSON");
    let compiled = compiled(&schema);
    for (texts, expected) in [(fits, true), (others, false)] {
        for text in texts {
            let text = text.as_ref();
            assert_eq!(allows_text(&compiled, text), expected, "{text:?}: {schema}");
        }
    }
}

pub(super) fn refuse(schema: &str, place: &str) {
    let schema: Value = serde_json::from_str(schema).expect("JSON");
    let error = COMPILER.compile(Constraint::JsonSchema(schema.clone()));
    let error = error
        .err()
        .unwrap_or_else(|| panic!("{schema}"))
        .to_string();
    assert!(error.starts_with(&format!("schema{place}: ")), "{error}");
}

/// Random bounds and numbers, compared as integers of thousandths.
#[test]
fn numbers_are_within_their_bounds() {
    let mut random = 7u64;
    let mut below = |n: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) % n
    };
    let text = |thousandths: i64| {
        let sign = if thousandths < 0 { "-" } else { "" };
        let size = thousandths.unsigned_abs();
        format!("{sign}{}.{:03}", size / 1000, size % 1000)
    };
    for _ in 0..60 {
        let scale = [1, 10, 1000, 250][below(4) as usize];
        let mut bound = || (below(4001) as i64 - 2000) * scale;
        let (low, high) = (bound(), bound());
        let (low, high) = (low.min(high), low.max(high));
        let [is_open_low, is_open_high] = [below(2) == 1, below(2) == 1];
        if low == high {
            continue;
        }
        let number = |v: i64| serde_json::from_str::<Value>(&text(v)).expect("JSON");
        let keys = [
            ["minimum", "exclusiveMinimum"][usize::from(is_open_low)],
            ["maximum", "exclusiveMaximum"][usize::from(is_open_high)],
        ];
        let schema = json!({ "type": "number", keys[0]: number(low), keys[1]: number(high) });
        let compiled = compiled(&schema);
        let near = |v: i64| [v - 1000, v - 1, v, v + 1, v + 1000, v * 10, v / 10];
        let far = (0..8).map(|_| below(8_000_001) as i64 - 4_000_000);
        for value in near(low).into_iter().chain(near(high)).chain(far) {
            let fits = if is_open_low {
                value > low
            } else {
                value >= low
            } && if is_open_high {
                value < high
            } else {
                value <= high
            };
            assert_eq!(
                allows_text(&compiled, &text(value)),
                fits,
                "{value}: {schema}"
            );
            if value % 1000 == 0 && value != 0 {
                let whole = (value / 1000).to_string();
                assert_eq!(allows_text(&compiled, &whole), fits, "{whole}: {schema}");
            }
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    schema: String,
    #[serde(default)]
    fits: Vec<String>,
    #[serde(default)]
    others: Vec<String>,
    refused: Option<String>,
}

#[test]
fn schemas_allow_what_the_specification_says() {
    let groups: BTreeMap<String, Vec<Case>> =
        toml::from_str(include_str!("schemas.toml")).expect("the file is of this form");
    for (name, case) in groups
        .iter()
        .flat_map(|(name, all)| all.iter().map(move |case| (name, case)))
    {
        assert_ne!(
            case.refused.is_none(),
            case.fits.is_empty(),
            "{name}: {}",
            case.schema
        );
        match &case.refused {
            Some(place) => refuse(&case.schema, place),
            None => check(&case.schema, &case.fits, &case.others),
        }
    }
}
