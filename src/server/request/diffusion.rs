//! `diffusion` of a request: options of text diffusion.

use serde_json::{Map, Value};

use lab_core::engine::DiffusionOptions;

use super::fields::{BodyFields, fields};
use crate::http::error::Error;

fields! {
    struct DiffusionFields {
        steps: Option<usize>,
        block_length: Option<usize>,
        remasking: Option<String>,
        cfg_scale: Option<f64>,
        threshold: Option<f64>,
        approximate_cache: Option<bool>,
    }
}

pub(crate) fn parse(object: Map<String, Value>) -> Result<DiffusionOptions, Error> {
    let options: DiffusionFields = BodyFields::nested("diffusion", object).whole()?;
    let remasking = options.remasking.as_deref().map(str::parse).transpose();
    let fault = |expected: String| {
        let param = "diffusion.remasking";
        let found = options.remasking.as_deref().unwrap_or_default();
        Error::invalid_value(param, format!("`{param}` is `{found}`, {expected}"))
    };
    Ok(DiffusionOptions {
        steps: options.steps,
        block_length: options.block_length,
        remasking: remasking.map_err(fault)?,
        cfg_scale: options.cfg_scale,
        threshold: options.threshold,
        approximate_cache: options.approximate_cache,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::http::context::RequestContext;
    use crate::request::fields::RequestPart;
    use lab_core::engine::Remasking;

    fn parsed(value: &Value) -> Result<DiffusionOptions, String> {
        let object = value.as_object().expect("an object").clone();
        let parsed = RequestContext::detached().enter(|| parse(object));
        parsed.map_err(|error| error.to_string())
    }

    #[test]
    fn every_field_is_read() {
        let all = json!({
            "steps": 8, "block_length": 4, "remasking": "entropy", "cfg_scale": 1.5, "threshold": 0.9,
            "approximate_cache": true,
        });
        let expected = DiffusionOptions {
            steps: Some(8),
            block_length: Some(4),
            remasking: Some(Remasking::Entropy),
            cfg_scale: Some(1.5),
            threshold: Some(0.9),
            approximate_cache: Some(true),
        };
        assert_eq!(parsed(&all), Ok(expected));
        assert_eq!(
            all.as_object().map(Map::len),
            Some(DiffusionFields::documented().len())
        );
        assert_eq!(
            parsed(&json!({ "steps": null })),
            Ok(DiffusionOptions::default())
        );
    }

    #[test]
    fn faults_name_the_field() {
        let cases = json!([
            [{ "step": 1 }, "unknown parameter: `diffusion.step`; did you mean `diffusion.steps`?"],
            [{ "user": 1 }, "unknown parameter: `diffusion.user`"],
            [{ "steps": -1 }, "`diffusion.steps`: invalid value"],
            [{ "steps": 1.5 }, "`diffusion.steps`: invalid type"],
            [{ "cfg_scale": "1" }, "`diffusion.cfg_scale`: invalid type"],
            [{ "remasking": "best" }, "expected one of low_confidence, margin"],
            [{ "approximate_cache": 1 }, "`diffusion.approximate_cache`: invalid type"],
        ]);
        for case in cases.as_array().expect("an array") {
            let error = parsed(&case[0]).expect_err("a fault");
            assert!(
                error.contains(case[1].as_str().expect("a text")),
                "{case}: {error}"
            );
        }
    }
}
