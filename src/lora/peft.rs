//! The folder of an adapter as PEFT writes it: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! Modules have the names of the model's class in transformers; which of our tensors they update, and
//! in which order of rows and columns, follows from the map of the model (`crate::stmap::update`). A
//! key that would change the result and is not served is refused by name; so is one that is not known
//! and has a value. Reference: `LoraConfig` of PEFT.

use std::collections::BTreeMap;
use std::path::Path;

use regex_automata::meta::Regex;
use serde_json::{Map, Value as Json};

use crate::arch::WeightRole;
use crate::arch::expr::Value;
use crate::plan::Plan;
use crate::stmap::Maps;
use crate::stmap::update::{Factor, Module, Updated, has_our_names, updates};
use crate::weights::safetensors::{Checkpoint, Dtype, Stored, read_small};
use crate::weights::{Metadata, Weights};

use super::Error;

const CONFIG: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";
/// Bytes of a configuration that no sensible one reaches.
const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// What stands before all names.
const PREFIX: &str = "base_model.model.";

/// The model that an adapter is for.
pub struct Base<'a> {
    /// Its plan.
    pub plan: &'a Plan,
    /// Parameters of its architecture, for names of modules where it is no folder.
    pub params: &'a BTreeMap<String, Value>,
    /// Its folder, if it was opened from one.
    pub folder: Option<&'a Path>,
    /// Maps of folders to architectures.
    pub maps: &'a Maps,
}

/// Keys that say how the adapter was made, or what its tensors and other keys say as well.
const INERT: &[&str] = &[
    "peft_version",
    "auto_mapping",
    "base_model_name_or_path",
    "revision",
    "task_type",
    "inference_mode",
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "lora_dropout",
    "rank_pattern",
    "loftq_config",
    "eva_config",
    "megatron_config",
    "megatron_core",
    "qalora_group_size",
    "runtime_config",
    "ensure_weight_tying",
    "save_embedding_layers",
];

/// Keys that are read.
const READ: &[&str] = &[
    "peft_type",
    "r",
    "lora_alpha",
    "alpha_pattern",
    "use_rslora",
    "fan_in_fan_out",
    "bias",
    "init_lora_weights",
];

/// What keys mean that are not served.
const MEANINGS: &[(&str, &str)] = &[
    ("use_dora", "magnitudes of its own for each row (DoRA)"),
    ("lora_bias", "biases of its own"),
    ("modules_to_save", "whole modules in place of the model's"),
    (
        "target_parameters",
        "updates of parameters that are no modules",
    ),
    (
        "trainable_token_indices",
        "rows of its own in the token table",
    ),
    (
        "alora_invocation_tokens",
        "an adapter that begins within a text",
    ),
    ("layer_replication", "layers that the model does not have"),
    ("use_qalora", "groups of inputs"),
    ("corda_config", "a change of the model's weights"),
];

/// How matrices may have begun; others change the weights of the model as well.
const INITS: &[&str] = &["gaussian", "eva", "orthogonal"];

/// The updates of a folder, under our names.
pub(super) fn open(path: &Path, base: &Base<'_>) -> Result<Weights, Error> {
    let refuse = |message: String| Error::Unfit {
        path: path.to_owned(),
        message,
    };
    let file = path.join(CONFIG);
    if !file.is_file() {
        return Err(refuse(format!(
            "the folder has no {CONFIG}, so it is none that PEFT wrote"
        )));
    }
    let text = read_small(&file, MAX_CONFIG_BYTES)?;
    let json: Map<String, Json> =
        serde_json::from_slice(&text).map_err(|error| refuse(format!("{CONFIG}: {error}")))?;
    let config = Config::read(&json).map_err(|error| refuse(format!("{CONFIG}: {error}")))?;
    let file = path.join(TENSORS);
    if !file.is_file() {
        return Err(refuse(format!(
            "the folder has no {TENSORS}; PEFT writes it with safe_serialization=True"
        )));
    }
    let checkpoint = Checkpoint::open(&file)?;
    let modules = modules(&checkpoint, &config).map_err(refuse)?;
    let plan = base.plan;
    let updated = match base.folder {
        Some(folder) if !has_our_names(folder) => Updated::Folder(folder),
        _ => Updated::Arch(&plan.arch, base.params),
    };
    let shape_of = |name: &str| {
        let tensor = plan.tensors.iter().find(|tensor| tensor.name == name)?;
        Some((tensor.shape.clone(), tensor.role == WeightRole::Table))
    };
    let entries = updates(path, &updated, base.maps, &modules, &shape_of)?;
    let label = path.display().to_string();
    Ok(Weights::of(label, Metadata::default(), entries)?)
}

/// What a configuration says of the sizes of updates.
struct Config {
    alpha: f64,
    /// By patterns of names of modules.
    alphas: Vec<(String, Regex, f64)>,
    by_root: bool,
    fan_in_fan_out: bool,
}

impl Config {
    fn read(json: &Map<String, Json>) -> Result<Self, String> {
        let is_nothing = |value: &Json| match value {
            Json::Null | Json::Bool(false) => true,
            Json::Array(items) => items.is_empty(),
            Json::Object(fields) => fields.is_empty(),
            _ => false,
        };
        for (key, value) in json.iter().filter(|(_, value)| !is_nothing(value)) {
            if INERT.contains(&key.as_str()) || READ.contains(&key.as_str()) {
                continue;
            }
            let meaning = MEANINGS.iter().find(|(name, _)| name == key);
            return Err(match meaning {
                Some((_, meaning)) => {
                    format!("`{key}` asks for {meaning}, which is not served")
                }
                None => format!("`{key}` is {value}, and what it means is not known"),
            });
        }
        match json.get("peft_type").and_then(Json::as_str) {
            Some("LORA") => {}
            found => {
                let found = found.unwrap_or("missing");
                return Err(format!("`peft_type` is `{found}`, expected `LORA`"));
            }
        }
        match json.get("bias") {
            None | Some(Json::Null) => {}
            Some(Json::String(bias)) if bias == "none" => {}
            Some(bias) => {
                return Err(format!(
                    "`bias` is {bias}, and biases of adapters are not served"
                ));
            }
        }
        match json.get("init_lora_weights") {
            None | Some(Json::Null | Json::Bool(_)) => {}
            Some(Json::String(init)) if INITS.contains(&init.as_str()) => {}
            Some(init) => {
                return Err(format!(
                    "`init_lora_weights` is {init}, which changes the weights of the model as well; PEFT converts such an adapter with path_initial_model_for_weight_conversion"
                ));
            }
        }
        let alpha = number(json, "lora_alpha")?.ok_or("`lora_alpha` is missing")?;
        let flag = |key: &str| json.get(key).and_then(Json::as_bool) == Some(true);
        Ok(Self {
            alpha,
            alphas: patterns(json)?,
            by_root: flag("use_rslora"),
            fan_in_fan_out: flag("fan_in_fan_out"),
        })
    }

    /// What the update of a module is multiplied by.
    fn factor(&self, module: &str, rank: u64) -> Result<f64, String> {
        let fits = self
            .alphas
            .iter()
            .filter(|(_, regex, _)| regex.is_match(module));
        let fits: Vec<_> = fits.collect();
        if let Some(pair) = fits.windows(2).find(|pair| pair[0].2 != pair[1].2) {
            return Err(format!(
                "`alpha_pattern`: `{}` and `{}` both fit `{module}`",
                pair[0].0, pair[1].0
            ));
        }
        let alpha = fits.first().map_or(self.alpha, |(_, _, alpha)| *alpha);
        let rank = rank as f64;
        Ok(alpha / if self.by_root { rank.sqrt() } else { rank })
    }
}

fn number(fields: &Map<String, Json>, key: &str) -> Result<Option<f64>, String> {
    match fields.get(key) {
        None | Some(Json::Null) => Ok(None),
        Some(value) => match value.as_f64() {
            Some(number) => Ok(Some(number)),
            None => Err(format!("`{key}` is {value}, expected a number")),
        },
    }
}

/// The sizes of updates by patterns of names, each of which is whole or follows a dot.
fn patterns(json: &Map<String, Json>) -> Result<Vec<(String, Regex, f64)>, String> {
    let fields = json.get("alpha_pattern").and_then(Json::as_object);
    let mut out = Vec::new();
    for key in fields.into_iter().flatten().map(|(key, _)| key) {
        let fault = |error: String| format!("`alpha_pattern`: `{key}`: {error}");
        let regex = Regex::new(&format!(r"^(?:.*\.)?(?:{key})$"));
        let regex = regex.map_err(|error| fault(error.to_string()))?;
        let alpha = fields.and_then(|fields| number(fields, key).transpose());
        let alpha = alpha.ok_or_else(|| fault("it has no value".into()))??;
        out.push((key.clone(), regex, alpha));
    }
    Ok(out)
}

/// The two matrices of a module.
#[derive(Default)]
struct Halves<'c> {
    down: Option<&'c Stored>,
    up: Option<&'c Stored>,
    is_table: bool,
}

/// The modules of an adapter.
fn modules(checkpoint: &Checkpoint, config: &Config) -> Result<Vec<Module>, String> {
    let mut found: BTreeMap<&str, Halves<'_>> = BTreeMap::new();
    for (name, stored) in checkpoint.tensors() {
        let (module, is_table, is_up) = part_of(name).ok_or_else(|| {
            format!(
                "tensor `{name}` is no update of low rank: expected names such as `{PREFIX}MODULE.lora_A.weight`"
            )
        })?;
        let halves = found.entry(module).or_default();
        halves.is_table = is_table;
        let half = if is_up {
            &mut halves.up
        } else {
            &mut halves.down
        };
        if half.replace(stored).is_some() {
            return Err(format!("module `{module}` has two updates in the folder"));
        }
    }
    if found.is_empty() {
        return Err(format!("{TENSORS} has no tensors"));
    }
    let module = |(name, halves): (&str, Halves<'_>)| {
        let missing = |half: &str| format!("module `{name}` has no `{half}`");
        let down = halves.down.ok_or_else(|| missing("lora_A"))?;
        let up = halves.up.ok_or_else(|| missing("lora_B"))?;
        let (down, up) = (factor(checkpoint, down)?, factor(checkpoint, up)?);
        let rank = down.shape[0];
        if up.shape[1] != rank {
            return Err(format!(
                "module `{name}`: `lora_A` {:?} and `lora_B` {:?} have different ranks",
                down.shape, up.shape
            ));
        }
        Ok(Module {
            factor: config.factor(name, rank)?,
            name: name.to_owned(),
            down,
            up,
            is_turned: halves.is_table || config.fan_in_fan_out,
        })
    };
    found.into_iter().map(module).collect()
}

/// The module that a tensor is of, whether it is a table, and whether it is the second matrix; none
/// if it is no matrix of an update. The name of the adapter may stand in it.
fn part_of(name: &str) -> Option<(&str, bool, bool)> {
    let name = name.strip_prefix(PREFIX)?;
    let kinds = [
        (".lora_A.", false, false),
        (".lora_B.", false, true),
        (".lora_embedding_A", true, false),
        (".lora_embedding_B", true, true),
    ];
    kinds.iter().find_map(|(mark, is_table, is_up)| {
        let (module, rest) = name.rsplit_once(mark)?;
        let is_whole = match is_table {
            true => rest.is_empty() || rest.starts_with('.'),
            false => rest == "weight" || rest.ends_with(".weight"),
        };
        is_whole.then_some((module, *is_table, *is_up))
    })
}

fn factor(checkpoint: &Checkpoint, stored: &Stored) -> Result<Factor, String> {
    let file = checkpoint.path(stored).display();
    let is_float = matches!(
        stored.dtype,
        Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::F64
    );
    let shape: [u64; 2] = stored.shape.as_slice().try_into().unwrap_or_default();
    if !is_float || shape.contains(&0) {
        return Err(format!(
            "a tensor of {file} has the shape {:?} and the type {:?}, expected a matrix of floats",
            stored.shape, stored.dtype
        ));
    }
    let bytes = checkpoint.files().nth(stored.file);
    Ok(Factor {
        file: bytes.ok_or("a file is missing")?.clone(),
        offset: stored.offset,
        dtype: stored.dtype,
        shape,
    })
}
