//! Reads the folder of an adapter as PEFT writes it: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! Modules have the names of the model's class in transformers. The map of the model decides which tensors they update,
//! and in which order of rows and columns (`crate::hf::update`). An unsupported key that would change the result is
//! refused by name, and so is an unknown key with a value. Reference: `LoraConfig` of PEFT.

use std::collections::BTreeMap;
use std::path::Path;

use regex_automata::meta::Regex;
use regex_automata::util::syntax;
use serde_json::{Map, Value as Json};

use crate::arch::WeightRole;
use crate::arch::expr::Value;
use crate::hf::update::{
    AdapterMatrix, BaseModel, ModuleUpdate, UpdateTarget, has_our_names, updates,
};
use crate::hf::{MAP_KEY, Maps};
use crate::plan::Plan;
use lab_base::weights::safetensors::{Checkpoint, Dtype, StoredTensor, read_small};
use lab_base::weights::{Metadata, Weights};

use super::Error;

const CONFIG: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";
const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// The rank of a configuration that does not state one.
const USUAL_RANK: f64 = 8.0;
/// Maximum number of regular expressions among the patterns of a key, and maximum bytes of one.
const MAX_REGEXES: usize = 256;
const MAX_REGEX_BYTES: usize = 1 << 18;
/// Prefix of all names.
const PREFIX: &str = "base_model.model.";

/// The model to which an adapter belongs.
pub struct AdaptedModel<'a> {
    /// The plan of the model.
    pub plan: &'a Plan,
    /// Parameters of the architecture, for names of modules if the model is not a folder.
    pub params: &'a BTreeMap<String, Value>,
    /// The metadata of the model's file.
    pub metadata: &'a Metadata,
    /// The folder of the model, if it was opened from one.
    pub folder: Option<&'a Path>,
    /// The maps of folders to architectures.
    pub maps: &'a Maps,
}

/// Keys that describe how the adapter was trained, or repeat facts of its tensors and other keys.
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
    "loftq_config",
    "eva_config",
    "megatron_config",
    "megatron_core",
    "qalora_group_size",
    "runtime_config",
    "save_embedding_layers",
];

/// Keys that are read.
const READ: &[&str] = &[
    "peft_type",
    "r",
    "lora_alpha",
    "alpha_pattern",
    "rank_pattern",
    "ensure_weight_tying",
    "use_rslora",
    "fan_in_fan_out",
    "bias",
    "init_lora_weights",
];

/// The meaning of unsupported keys.
const MEANINGS: &[(&str, &str)] = &[
    ("use_dora", "magnitudes of its own for each row (DoRA)"),
    ("lora_bias", "biases of its own"),
    ("modules_to_save", "whole modules in place of the model's"),
    (
        "target_parameters",
        "updates of parameters that are not modules",
    ),
    (
        "trainable_token_indices",
        "rows of its own in the token table",
    ),
    ("alora_invocation_tokens", "activation by tokens (aLoRA)"),
    ("layer_replication", "layers that the model does not have"),
    ("use_qalora", "groups of inputs"),
    ("corda_config", "a change of the model's weights"),
];

/// Supported initialisations of the matrices; others also change the weights of the model.
const INITS: &[&str] = &["gaussian", "eva", "orthogonal"];

/// The updates of a folder, under the architecture's names.
pub(super) fn open(path: &Path, base: &AdaptedModel<'_>) -> Result<Weights, Error> {
    let refuse = |message: String| Error::Unfit {
        path: path.to_owned(),
        message,
    };
    let file = path.join(CONFIG);
    if !file.is_file() {
        return Err(refuse(format!(
            "the folder has no {CONFIG}, so PEFT did not write it"
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
        Some(folder) if !has_our_names(folder) => UpdateTarget::Folder(folder),
        _ => UpdateTarget::Arch(origin(base, &json)),
    };
    let shape_of = |name: &str| {
        let tensor = plan.tensors.iter().find(|tensor| tensor.name == name)?;
        Some((tensor.shape.clone(), tensor.role == WeightRole::Table))
    };
    let entries = updates(path, &updated, base.maps, &modules, &shape_of)?;
    let label = path.display().to_string();
    let weights = Weights::of(label, Metadata::default(), entries)?;
    Ok(weights.with_files(checkpoint.files().cloned()))
}

/// Keys of a file that name its model or the model on which it is based.
const NAMES: &[&str] = &[
    "general.name",
    "general.basename",
    "general.finetune",
    "general.base_model.0.name",
    "general.base_model.0.repo_url",
    "general.source.url",
    "general.source.huggingface.repository",
];

/// The known facts about the folder from which a GGUF file was converted.
fn origin<'a>(base: &AdaptedModel<'a>, json: &'a Map<String, Json>) -> BaseModel<'a> {
    let text = |key: &str| json.get(key).and_then(Json::as_str);
    // Only `OWNER/NAME` counts: folders further up the path do not describe the model.
    let name = text("base_model_name_or_path").map(|path| {
        let cut = path.trim_end_matches('/').rmatch_indices('/').nth(1);
        cut.map_or(path, |(at, _)| &path[at + 1..])
    });
    let class = json.get("auto_mapping");
    let class = class.and_then(|mapping| mapping.get("base_model_class"));
    let own = NAMES.iter().filter_map(|key| base.metadata.str(key));
    BaseModel {
        arch: &base.plan.arch,
        params: base.params,
        map: base.metadata.str(MAP_KEY),
        class: class.and_then(Json::as_str),
        names: name.into_iter().chain(own).collect(),
    }
}

struct Config {
    alpha: f64,
    alphas: Patterns,
    rank: f64,
    ranks: Patterns,
    by_root: bool,
    fan_in_fan_out: bool,
    /// Whether an update of the token table also updates a tied head.
    ties: bool,
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
                    format!("`{key}`: {meaning} is not supported")
                }
                None => format!("unknown setting `{key}` = {value}"),
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
        Ok(Self {
            alpha,
            alphas: Patterns::read(json, "alpha_pattern")?,
            rank: number(json, "r")?.unwrap_or(USUAL_RANK),
            ranks: Patterns::read(json, "rank_pattern")?,
            by_root: flag(json, "use_rslora")?,
            fan_in_fan_out: flag(json, "fan_in_fan_out")?,
            ties: flag(json, "ensure_weight_tying")?,
        })
    }

    /// Factor of the update of a module.
    fn factor(&self, module: &str, rank: u64) -> Result<f64, String> {
        let rank = rank as f64;
        let expected = self.ranks.of(module).unwrap_or(self.rank);
        if expected != rank {
            return Err(format!(
                "module `{module}`: its matrices have the rank {rank}, {CONFIG} says {expected}"
            ));
        }
        let alpha = self.alphas.of(module).unwrap_or(self.alpha);
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

fn flag(fields: &Map<String, Json>, key: &str) -> Result<bool, String> {
    match fields.get(key) {
        None | Some(Json::Null) => Ok(false),
        Some(Json::Bool(value)) => Ok(*value),
        Some(value) => Err(format!("`{key}` is {value}, expected true or false")),
    }
}

/// Numbers by patterns of module names. A match is the whole name, or follows a dot.
#[derive(Default)]
struct Patterns {
    all: Vec<(Pattern, f64)>,
}

enum Pattern {
    /// A pattern without repetitions: its characters; none matches any character.
    Plain(Vec<Option<u8>>),
    Regex(Box<Regex>),
}

impl Patterns {
    fn read(json: &Map<String, Json>, key: &str) -> Result<Self, String> {
        let mut all = Vec::new();
        let fields = match json.get(key) {
            None | Some(Json::Null) => return Ok(Self::default()),
            Some(Json::Object(fields)) => fields,
            Some(value) => return Err(format!("`{key}` is {value}, expected an object")),
        };
        let mut n_regexes = 0;
        for name in fields.keys() {
            let fault = |error: String| format!("`{key}`: `{name}`: {error}");
            let pattern = Pattern::read(name).map_err(fault)?;
            n_regexes += usize::from(matches!(pattern, Pattern::Regex(_)));
            if n_regexes > MAX_REGEXES {
                return Err(format!(
                    "`{key}`: more than {MAX_REGEXES} regular expressions"
                ));
            }
            let value = number(fields, name).map_err(fault)?;
            let value = value.ok_or_else(|| fault("it has no value".into()))?;
            all.push((pattern, value));
        }
        Ok(Self { all })
    }

    /// The number of a module, if it has one: that of the first pattern that fits, as in PEFT.
    fn of(&self, module: &str) -> Option<f64> {
        let mut all = self.all.iter();
        let found = all.find(|(pattern, _)| pattern.fits(module));
        found.map(|(_, value)| *value)
    }
}

impl Pattern {
    fn read(text: &str) -> Result<Self, String> {
        let mut bytes = text.bytes().peekable();
        let mut plain = Vec::with_capacity(text.len());
        while let Some(byte) = bytes.next() {
            plain.push(match byte {
                b'.' => None,
                b'\\' if bytes.next_if_eq(&b'.').is_some() => Some(b'.'),
                b'_' | b'-' => Some(byte),
                _ if byte.is_ascii_alphanumeric() => Some(byte),
                _ => {
                    // The expressions are limited and have no caches, since there may be many of them.
                    let limits = Regex::config()
                        .nfa_size_limit(Some(MAX_REGEX_BYTES))
                        .hybrid(false)
                        .dfa(false)
                        .onepass(false)
                        .backtrack(false);
                    let whole = format!(r"^(?:.*\.)?(?:{text})$");
                    syntax::parse(text).map_err(|error| error.to_string())?;
                    let regex = Regex::builder().configure(limits).build(&whole);
                    let regex = regex.map_err(|_| "the regular expression is too large")?;
                    return Ok(Self::Regex(Box::new(regex)));
                }
            });
        }
        Ok(Self::Plain(plain))
    }

    fn fits(&self, module: &str) -> bool {
        let plain = match self {
            Self::Regex(regex) => return regex.is_match(module),
            Self::Plain(plain) => plain,
        };
        let module = module.as_bytes();
        let Some(begin) = module.len().checked_sub(plain.len()) else {
            return false;
        };
        let mut pairs = plain.iter().zip(&module[begin..]);
        let is_whole = begin == 0 || module[begin - 1] == b'.';
        is_whole && pairs.all(|(expected, byte)| expected.is_none_or(|e| e == *byte))
    }
}

/// The two matrices of a module.
#[derive(Default)]
struct Halves<'c> {
    down: Option<&'c StoredTensor>,
    up: Option<&'c StoredTensor>,
    is_table: bool,
}

/// The modules of an adapter.
fn modules(checkpoint: &Checkpoint, config: &Config) -> Result<Vec<ModuleUpdate>, String> {
    let mut found: BTreeMap<&str, Halves<'_>> = BTreeMap::new();
    for (name, stored) in checkpoint.tensors() {
        let part = part_of(name).ok_or_else(|| {
            format!(
                "tensor `{name}` is not a low-rank update: expected names such as `{PREFIX}MODULE.lora_A.weight`"
            )
        })?;
        let halves = found.entry(part.module).or_default();
        halves.is_table = part.is_table;
        let half = if part.is_up {
            &mut halves.up
        } else {
            &mut halves.down
        };
        if half.replace(stored).is_some() {
            let module = part.module;
            return Err(format!("module `{module}` has two updates in the folder"));
        }
    }
    if found.is_empty() {
        return Err(format!("{TENSORS} has no tensors"));
    }
    let module = |(name, halves): (&str, Halves<'_>)| {
        if halves.is_table && config.ties {
            return Err(format!(
                "`ensure_weight_tying`: tying the adapter of the head to `{name}` is not supported"
            ));
        }
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
        Ok(ModuleUpdate {
            factor: config.factor(name, rank)?,
            name: name.to_owned(),
            down,
            up,
            is_transposed: halves.is_table || config.fan_in_fan_out,
        })
    };
    found.into_iter().map(module).collect()
}

/// One of the two matrices of an update, by the name of its tensor.
struct UpdatePart<'n> {
    module: &'n str,
    /// Whether the module is a table whose rows are looked up.
    is_table: bool,
    /// Whether it is the matrix that is multiplied second.
    is_up: bool,
}

/// The part of an update with this name, which may include the name of the adapter.
fn part_of(name: &str) -> Option<UpdatePart<'_>> {
    let name = name.strip_prefix(PREFIX)?;
    let kinds = [
        (".lora_A.", false, false),
        (".lora_B.", false, true),
        (".lora_embedding_A", true, false),
        (".lora_embedding_B", true, true),
    ];
    kinds.into_iter().find_map(|(mark, is_table, is_up)| {
        let (module, rest) = name.rsplit_once(mark)?;
        let is_whole = match is_table {
            true => rest.is_empty() || rest.starts_with('.'),
            false => rest == "weight" || rest.ends_with(".weight"),
        };
        is_whole.then_some(UpdatePart {
            module,
            is_table,
            is_up,
        })
    })
}

fn factor(checkpoint: &Checkpoint, stored: &StoredTensor) -> Result<AdapterMatrix, String> {
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
    Ok(AdapterMatrix {
        file: bytes.ok_or("a file is missing")?.clone(),
        offset: stored.offset,
        dtype: stored.dtype,
        shape,
    })
}
