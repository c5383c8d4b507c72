//! The quantisation config of a folder.
//!
//! It is in `config.json` under one of several keys, or in a separate file. It only names the method and gives the
//! facts that do not follow from the stored tensors (bits, group sizes, versions). Which tensors are packed, and how,
//! follows from the tensors.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value as Json;

use lab_base::weights::Error;
use lab_base::weights::safetensors::{is_named, read_small};

/// The supported methods, with their names in configs.
const METHODS: [(&str, &[&str]); 9] = [
    ("AWQ", &["awq"]),
    ("GPTQ", &["gptq"]),
    (
        "AutoRound",
        &["auto-round", "auto_round", "intel/auto-round"],
    ),
    (
        "compressed-tensors",
        &["compressed-tensors", "compressed_tensors"],
    ),
    (
        "bitsandbytes",
        &["bitsandbytes", "bitsandbytes_4bit", "bitsandbytes_8bit"],
    ),
    ("ModelOpt", &["modelopt", "modelopt_fp4", "modelopt_fp8"]),
    ("MLX", &["mlx"]),
    ("fp8", &["fp8", "fbgemm_fp8"]),
    ("MXFP4", &["mxfp4"]),
];
/// Keys of `config.json` that contain a quantisation config; the last one is MLX's.
const KEYS: [&str; 3] = ["quantization_config", "compression_config", "quantization"];
/// Files that contain a quantisation config, the key within, and the method if the file names none.
const FILES: [(&str, Option<&str>, &str); 3] = [
    ("hf_quant_config.json", Some("quantization"), "modelopt"),
    ("quantize_config.json", None, "gptq"),
    ("quant_config.json", None, "awq"),
];
const MAX_BYTES: u64 = 16 << 20;

#[derive(Clone, Debug, Default)]
pub(super) struct QuantConfig {
    record: Json,
    /// Name of the method, as its authors write it; none if the folder has no quantisation config.
    pub(super) method: Option<String>,
    pub(super) is_known: bool,
}

/// Settings of MLX for one matrix, or for all.
#[derive(Clone, Copy, Debug)]
pub(super) struct MlxGrouping {
    pub(super) bits: u64,
    pub(super) group: u64,
}

impl QuantConfig {
    /// Takes the quantisation config out of a configuration, or reads it from a file next to it.
    pub(super) fn take(json: &mut Json, folder: &Path) -> Result<Self, Error> {
        let mut found = None;
        let mut objects = vec![&mut *json];
        while let Some(object) = objects.pop() {
            let Json::Object(fields) = object else {
                continue;
            };
            for key in KEYS {
                let record = fields.get(key).is_some_and(Json::is_object);
                let record = record.then(|| fields.remove(key)).flatten();
                let name = if key == "quantization" { "mlx" } else { "" };
                found = found.or(record.map(|record| (record, name)));
            }
            // A text model within another model has its own quantisation config.
            objects.extend(
                fields
                    .iter_mut()
                    .filter_map(|(key, value)| key.ends_with("_config").then_some(value)),
            );
        }
        for (name, key, method) in FILES {
            let path = folder.join(name);
            if found.is_some() || !is_named(&path) {
                continue;
            }
            let fault = |message: String| Error::File {
                path: path.clone(),
                message,
            };
            let bytes = read_small(&path, MAX_BYTES)?;
            let mut record: Json =
                serde_json::from_slice(&bytes).map_err(|error| fault(error.to_string()))?;
            if let Some(key) = key {
                record = record.get_mut(key).map(Json::take).unwrap_or_default();
            }
            if !record.is_object() {
                return Err(fault(
                    "expected an object with a quantisation config".into(),
                ));
            }
            found = Some((record, method));
        }
        Ok(found.map_or_else(Self::default, |(record, name)| Self::new(record, name)))
    }

    fn new(record: Json, implied: &str) -> Self {
        let named = record.get("quant_method").and_then(Json::as_str);
        let is_mlx = record.get("bits").is_some() && record.get("group_size").is_some();
        let name = match (named, implied) {
            (Some(name), _) => name,
            (None, "") if is_mlx => "mlx",
            (None, "") => "unnamed",
            (None, implied) => implied,
        };
        let lower = name.to_ascii_lowercase();
        let known = METHODS
            .iter()
            .find(|(_, names)| names.contains(&lower.as_str()));
        Self {
            method: Some(known.map_or(name, |(name, _)| name).to_owned()),
            is_known: known.is_some(),
            record,
        }
    }

    pub(super) fn known() -> String {
        METHODS.map(|(name, _)| name).join(", ")
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.record.get(key).and_then(Json::as_str)
    }

    /// The name of a form of a known method whose tensors have another layout.
    pub(super) fn foreign(&self) -> Option<String> {
        let method = self.method.as_deref()?;
        let plain: &[&str] = match method {
            "AWQ" => &["gemm", "gemv", "gptq", "awq"],
            "GPTQ" => &["gptq", "gptq_v2"],
            _ => return None,
        };
        let keys = ["version", "format", "checkpoint_format"];
        let mut forms = keys.iter().filter_map(|key| self.text(key));
        let form = forms.find(|form| !plain.contains(&form.to_ascii_lowercase().as_str()));
        form.map(|form| format!("{method} in the form `{form}`"))
    }

    /// Whether zero points are stored as they are, not reduced by one.
    pub(super) fn is_second_version(&self) -> bool {
        self.text("checkpoint_format") == Some("gptq_v2") || self.text("format") == Some("gptq_v2")
    }

    /// Whether each of AWQ's words holds codes of one row of the matrix.
    pub(super) fn is_gemv(&self) -> bool {
        let version = self.text("version").or(self.text("format"));
        version.is_some_and(|version| version.eq_ignore_ascii_case("gemv"))
    }

    /// Number of bits of a code, if the config has one number for all matrices.
    pub(super) fn bits(&self) -> Option<u64> {
        let keys = ["bits", "w_bit", "num_bits"];
        let plain = keys.iter().find_map(|key| self.record.get(key)?.as_u64());
        plain.or_else(|| {
            let groups = self.record.get("config_groups")?.as_object()?;
            let bits = |group: &Json| group.get("weights")?.get("num_bits")?.as_u64();
            let mut all = groups.values().filter_map(bits);
            let first = all.next()?;
            all.all(|other| other == first).then_some(first)
        })
    }

    /// Number of columns that share a scale, if the config has one number for all matrices.
    pub(super) fn group(&self) -> Option<u64> {
        let keys = ["group_size", "q_group_size"];
        keys.iter().find_map(|key| self.record.get(key)?.as_u64())
    }

    /// Number of rows and columns of an 8-bit matrix that share a scale.
    pub(super) fn block(&self) -> Option<[u64; 2]> {
        let sizes = self.record.get("weight_block_size")?.as_array()?;
        match sizes.as_slice() {
            [rows, columns] => Some([rows.as_u64()?, columns.as_u64()?]),
            _ => None,
        }
    }

    /// MLX: the mode, bits and group size of a matrix, which may have its own settings.
    pub(super) fn grouping(&self, base: &str) -> (&str, Option<MlxGrouping>) {
        let own = self.record.get(base).filter(|own| own.is_object());
        let record = own.unwrap_or(&self.record);
        let number = |key: &str| record.get(key).and_then(Json::as_u64);
        let mode = record.get("mode").and_then(Json::as_str);
        let grouping = number("bits").zip(number("group_size"));
        (
            mode.unwrap_or("affine"),
            grouping.map(|(bits, group)| MlxGrouping { bits, group }),
        )
    }
}

/// The number of matrices that become each type, and whether they are rounded.
pub(super) type TypeCounts = BTreeMap<(String, bool), usize>;

/// One line about the types that a folder's matrices become, and whether numbers are rounded.
pub(super) fn line(settings: &QuantConfig, tally: &TypeCounts) -> (String, bool) {
    let parts = tally.iter().map(|((ty, is_rounded), n)| {
        let how = if *is_rounded { " (rounded)" } else { "" };
        format!("{n} become {ty}{how}")
    });
    let parts: Vec<String> = parts.collect();
    let is_rounded = tally.keys().any(|(_, is_rounded)| *is_rounded);
    let hint = match is_rounded {
        true => "; `--type f32` or another type takes the stored numbers",
        false => "",
    };
    let method = settings.method.as_deref().unwrap_or("packed weights");
    let text = format!(
        "quantised with {method}: of the matrices {}{hint}",
        parts.join(", ")
    );
    (text, is_rounded)
}
