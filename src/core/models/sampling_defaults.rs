//! The sampling parameters that a model's authors recommend: metadata `general.sampling.*`, as llama.cpp writes it. A folder
//! states them in `generation_config.json`.

use std::path::Path;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value as Json};

use lab_base::weights::safetensors::{is_named, read_small};
use lab_base::weights::{Metadata, Value};
use lab_sampling::{NumberKind, PARAMETERS, Parameter, Params};

/// The file of a folder that has them.
const FILE: &str = "generation_config.json";
/// Maximum size of the file in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Parameters with their names in metadata, after `general.sampling.`, and in `generation_config.json`.
const NAMES: [(&str, &str, &str); 11] = [
    ("temperature", "temp", "temperature"),
    ("top_k", "top_k", "top_k"),
    ("top_p", "top_p", "top_p"),
    ("min_p", "min_p", "min_p"),
    ("xtc_probability", "xtc_probability", ""),
    ("xtc_threshold", "xtc_threshold", ""),
    ("repeat_last_n", "penalty_last_n", ""),
    ("repeat_penalty", "penalty_repeat", "repetition_penalty"),
    ("mirostat", "mirostat", ""),
    ("mirostat_tau", "mirostat_tau", ""),
    ("mirostat_eta", "mirostat_eta", ""),
];
const PREFIX: &str = "general.sampling.";

/// Sampling parameters in place of the neutral ones, for requests that do not set them.
#[derive(Clone, Debug, Default)]
pub struct SamplingDefaults(Vec<(&'static Parameter<Params>, f64)>);

impl SamplingDefaults {
    /// Those in the metadata of a model. A value out of range is logged and left out.
    pub fn of(metadata: &Metadata) -> Self {
        let mut all = Vec::new();
        for (name, key, _) in NAMES {
            let value = match metadata.get(&format!("{PREFIX}{key}")) {
                // The decimal that was meant: 0.6 and not 0.6000000238.
                Some(Value::F32(value)) => value.to_string().parse().ok(),
                value => value.and_then(Value::as_f64),
            };
            let parameter = PARAMETERS.iter().find(|p| p.name == name);
            let (Some(value), Some(parameter)) = (value, parameter) else {
                continue;
            };
            let value = match parameter.kind {
                // Some files turn counts off with -1.
                NumberKind::Count => value.max(0.0),
                _ => value,
            };
            match parameter.check(value, &parameter.api) {
                Ok(()) => all.push((parameter, value)),
                Err(error) => {
                    tracing::warn!(%error, key, "a sampling default of the model is not used")
                }
            }
        }
        Self(all)
    }

    /// Whether the model states none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The parameters, each with its value.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Parameter<Params>, f64)> {
        self.0.iter().copied()
    }

    /// Whether the model states this parameter.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(parameter, _)| parameter.name == name)
    }

    /// Those that do not read the tokens so far, which text diffusion has in no order.
    pub fn memoryless(mut self) -> Self {
        self.0.retain(|(parameter, _)| !parameter.needs_history);
        self
    }

    /// Sets the parameters that `is_given` does not name and whose stages run. Contrastive search has no other stages.
    pub fn apply(&self, params: &mut Params, is_given: impl Fn(&str) -> bool) {
        if params.penalty_alpha != 0.0 {
            return;
        }
        for (parameter, value) in self.iter().filter(|(p, _)| !is_given(p.name)) {
            let mut stages = params.order.iter();
            // At no stage: the temperature 0, which picks the likeliest token.
            if stages.any(|stage| stage.technique() == parameter.technique) {
                parameter.set(params, value);
            }
        }
    }
}

impl Serialize for SamplingDefaults {
    /// An object of the parameters' names and values.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(parameter, value)| {
            let value = match parameter.kind {
                NumberKind::Real => Json::from(value),
                NumberKind::Count | NumberKind::Integer => Json::from(value as i64),
            };
            (parameter.name, value)
        }))
    }
}

/// The metadata of a folder's recommended parameters; empty if it states none. A file that cannot be read is logged.
pub(super) fn of_folder(folder: &Path) -> Metadata {
    let path = folder.join(FILE);
    if !is_named(&path) {
        return Metadata::default();
    }
    let read = read_small(&path, MAX_BYTES).map_err(|error| error.to_string());
    let parsed: Result<Map<String, Json>, String> = read.and_then(|text| {
        serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", path.display()))
    });
    let config = parsed.unwrap_or_else(|error| {
        tracing::warn!(error, "the sampling defaults of the folder are not used");
        Map::new()
    });
    let mut metadata = Metadata::default();
    for (_, key, field) in NAMES {
        if let Some(value) = config.get(field).and_then(Json::as_f64) {
            let value = match key == "top_k" {
                true => Value::I32(value as i32),
                false => Value::F32(value as f32),
            };
            metadata.insert(format!("{PREFIX}{key}"), value);
            // In transformers the penalty is over all tokens.
            if key == "penalty_repeat" {
                metadata.insert(format!("{PREFIX}penalty_last_n"), Value::I32(-1));
            }
        }
    }
    metadata
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameters_of_a_folder_are_those_of_its_generation_config() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05, "min_p": 7}"#;
        std::fs::write(folder.path().join(FILE), text).expect("a file");
        let defaults = SamplingDefaults::of(&of_folder(folder.path()));
        let mut params = Params::default();
        defaults.apply(&mut params, |name| name == "top_k");
        assert!((params.temperature - 0.6).abs() < 1e-6);
        assert!((params.top_p - 0.95).abs() < 1e-6);
        assert_eq!((params.top_k, params.repeat_last_n), (0, -1));
        assert!((params.repeat_penalty - 1.05).abs() < 1e-6);
        // 7 is out of range.
        assert_eq!(params.min_p.to_bits(), Params::default().min_p.to_bits());
    }

    #[test]
    fn a_file_that_is_no_object_states_no_parameters() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join(FILE), "[1]").expect("a file");
        assert!(SamplingDefaults::of(&of_folder(folder.path())).is_empty());
    }
}
