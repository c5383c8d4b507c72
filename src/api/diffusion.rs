//! `diffusion` of a request: options of text diffusion, and its steps in a stream.

use serde_json::{Map, Value, json};

use crate::engine::{Diffusion, Fixed, Remasking};
use crate::text::tokenizer::Tokenizer;

use super::error::Error;

/// Names of the fields.
const FIELDS: [&str; 6] = [
    "steps",
    "block_length",
    "remasking",
    "cfg_scale",
    "threshold",
    "approximate_cache",
];

/// Reads the object; null sets nothing.
///
/// # Errors
/// A field that nobody knows or that has the wrong kind of value, by its name.
pub(super) fn parse(object: &Map<String, Value>) -> Result<Diffusion, Error> {
    let mut out = Diffusion::default();
    for (name, value) in object.iter().filter(|(_, value)| !value.is_null()) {
        let field = Field { name, value };
        match name.as_str() {
            "steps" => out.steps = Some(field.count()?),
            "block_length" => out.block_length = Some(field.count()?),
            "remasking" => out.remasking = Some(field.rule()?),
            "cfg_scale" => out.cfg_scale = Some(field.number()?),
            "threshold" => out.threshold = Some(field.number()?),
            "approximate_cache" => out.approximate_cache = Some(field.flag()?),
            _ => return Err(field.fault(&format!("is no field; known: {}", FIELDS.join(", ")))),
        }
    }
    Ok(out)
}

struct Field<'a> {
    name: &'a str,
    value: &'a Value,
}

impl Field<'_> {
    fn fault(&self, message: &str) -> Error {
        let name = format!("diffusion.{}", self.name);
        Error::value(&name, format!("`{name}` {message}"))
    }

    fn count(&self) -> Result<usize, Error> {
        let n = self.value.as_u64().and_then(|n| usize::try_from(n).ok());
        n.ok_or_else(|| self.fault("is no whole number"))
    }

    fn number(&self) -> Result<f64, Error> {
        let x = self.value.as_f64();
        x.ok_or_else(|| self.fault("is no number"))
    }

    fn flag(&self) -> Result<bool, Error> {
        let flag = self.value.as_bool();
        flag.ok_or_else(|| self.fault("is neither true nor false"))
    }

    fn rule(&self) -> Result<Remasking, Error> {
        let text = self
            .value
            .as_str()
            .ok_or_else(|| self.fault("is no text"))?;
        let fault = |expected: String| self.fault(&format!("is `{text}`, {expected}"));
        text.parse().map_err(fault)
    }
}

/// A denoising step of completion `index`.
pub(super) fn step_json(
    index: u32,
    step: usize,
    n_masked: usize,
    fixed: &[Fixed],
    tokenizer: &Tokenizer,
) -> Value {
    let fixed = fixed.iter().map(|f| {
        let bytes = tokenizer.piece(f.token);
        json!({
            "position": f.position, "token": String::from_utf8_lossy(bytes), "bytes": bytes,
            "id": f.token, "logprob": f.logprob, "confidence": f.logprob.exp(),
        })
    });
    json!({ "index": index, "step": step, "masked": n_masked, "fixed": fixed.collect::<Value>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(value: &Value) -> Result<Diffusion, String> {
        let object = value.as_object().expect("an object");
        parse(object).map_err(|error| error.to_string())
    }

    #[test]
    fn every_field_is_read() {
        let all = json!({
            "steps": 8, "block_length": 4, "remasking": "entropy", "cfg_scale": 1.5, "threshold": 0.9,
            "approximate_cache": true,
        });
        let expected = Diffusion {
            steps: Some(8),
            block_length: Some(4),
            remasking: Some(Remasking::Entropy),
            cfg_scale: Some(1.5),
            threshold: Some(0.9),
            approximate_cache: Some(true),
        };
        assert_eq!(parsed(&all), Ok(expected));
        assert_eq!(all.as_object().map(Map::len), Some(FIELDS.len()));
        assert_eq!(parsed(&json!({ "steps": null })), Ok(Diffusion::default()));
    }

    #[test]
    fn faults_name_the_field() {
        for (value, expected) in [
            (json!({ "step": 1 }), "`diffusion.step` is no field"),
            (
                json!({ "steps": -1 }),
                "`diffusion.steps` is no whole number",
            ),
            (
                json!({ "steps": 1.5 }),
                "`diffusion.steps` is no whole number",
            ),
            (
                json!({ "cfg_scale": "1" }),
                "`diffusion.cfg_scale` is no number",
            ),
            (
                json!({ "remasking": "best" }),
                "expected one of low_confidence, margin",
            ),
            (
                json!({ "approximate_cache": 1 }),
                "is neither true nor false",
            ),
        ] {
            let error = parsed(&value).expect_err("a fault");
            assert!(error.contains(expected), "{error}");
        }
    }
}
