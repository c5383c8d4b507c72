//! Makes a random model of any architecture and size, from its definition alone.
//!
//! Random models test an architecture: another engine computes the same file, and its logits are stored. The same seed
//! gives the same file on every machine: values come from a counter-based integer generator and from operations for
//! which IEEE 754 defines one rounding.

mod vocabulary;

use std::collections::BTreeMap;
use std::io;

use crate::arch::expr::Value;
use crate::arch::{ArchDef, ParamSource, Presence, WeightRole, fits_pattern, nearest};
use crate::models::drafters::HEAD;
use crate::plan::{self, Plan, TensorPlan, TensorSet};
use lab_base::ggml;
use lab_base::util::atomic_file::OutputPath;
use lab_base::util::parallel;
use lab_base::util::random;
use lab_base::util::random::scatter;
use lab_base::weights;
use lab_base::weights::gguf;
use lab_base::weights::gguf::NewTensor;
use lab_base::weights::{Array, Metadata, TensorType, Value as Meta};

/// The parameter that a copied vocabulary sets.
const VOCAB_SIZE: &str = "vocab_size";

/// Description of a random model.
#[derive(Clone, Debug)]
pub struct SynthRequest {
    /// Seed of the weights.
    pub seed: u64,
    /// Parameters by name, or metadata by key, with their values as text.
    pub set: Vec<(String, String)>,
    /// Metadata by key that the definition does not read.
    pub meta: Vec<(String, String)>,
    /// Optional tensors to include: a name without the layer's prefix and `.weight` for every layer that may have it,
    /// or the full name of one tensor. `*` stands for any characters.
    pub with: Vec<String>,
    /// Element type of matrices and tables.
    pub ty: TensorType,
    /// Metadata of a file whose vocabulary and chat template are copied; without it, tokens are numbers. A larger
    /// `vocab_size` pads the vocabulary with tokens that no text contains.
    pub vocabulary: Option<Metadata>,
    /// The drafter whose weights are added, if the numbers of the model say that it has one.
    pub drafter: Option<ArchDef>,
}

impl Default for SynthRequest {
    /// The defaults of the definition, in f32, with seed 0.
    fn default() -> Self {
        Self {
            seed: 0,
            set: Vec::new(),
            meta: Vec::new(),
            with: Vec::new(),
            ty: TensorType::F32,
            vocabulary: None,
            drafter: None,
        }
    }
}

/// The reason why a random model could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The architecture does not have the parameter.
    #[error("`{name}` is not a parameter of `{arch}`{}", or_list(.near.as_deref(), arch))]
    Parameter {
        name: String,
        arch: String,
        near: Option<String>,
    },
    /// The parameter follows from others.
    #[error(
        "`{name}` of `{arch}` follows from its other parameters ({from}), so no value can be given for it"
    )]
    Derived {
        name: String,
        arch: String,
        /// The expression that gives its value.
        from: String,
    },
    /// A model with the other given values does not read the parameter.
    #[error("nothing in a model of `{arch}` with these parameters reads `{name}`")]
    Unread { name: String, arch: String },
    /// The architecture may have the tensor, but not with the other given values.
    #[error(
        "`{name}` is a tensor of `{arch}`, but a model with these parameters has none of this name"
    )]
    Unused { name: String, arch: String },
    /// The architecture does not have the optional tensor.
    #[error("`{name}` is not an optional tensor of `{arch}`{}", hint(.near.as_deref()))]
    Tensor {
        name: String,
        arch: String,
        near: Option<String>,
    },
    /// The numbers contradict each other.
    #[error(transparent)]
    Plan(#[from] plan::Error),
    /// The given vocabulary cannot be used.
    #[error("the vocabulary {message}")]
    Vocabulary { message: String },
    /// A tensor's type does not fit its shape.
    #[error("tensor `{tensor}`: {source}")]
    Quantize { tensor: String, source: ggml::Error },
    /// The file could not be written.
    #[error(transparent)]
    Write(#[from] weights::Error),
}

/// The nearest name, or where the names are.
fn or_list(near: Option<&str>, arch: &str) -> String {
    match near {
        Some(near) => {
            format!("; did you mean `{near}`? (`bench arch show {arch}` lists its parameters)")
        }
        None => format!("; `bench arch show {arch}` lists its parameters"),
    }
}

fn hint(near: Option<&str>) -> String {
    near.map(|near| format!("; did you mean `{near}`?"))
        .unwrap_or_default()
}

/// Makes a random model of `def` and writes it.
///
/// # Errors
/// A name does not exist, numbers do not fit each other, or the file cannot be written.
pub fn synth<'p>(
    def: &ArchDef,
    request: &SynthRequest,
    target: impl Into<OutputPath<'p>>,
) -> Result<Plan, Error> {
    let (metadata, plan, heads) = design_with_drafter(def, request)?;
    let mut planned: Vec<&TensorPlan> = plan.tensors.iter().collect();
    for tensor in heads.iter().flat_map(|of| &of.tensors) {
        if planned.iter().all(|of| of.name != tensor.name) {
            planned.push(tensor);
        }
    }
    let tensors: Vec<NewTensor> = planned
        .iter()
        .map(|tensor| NewTensor {
            name: tensor.name.clone(),
            ty: stored_type(tensor, request.ty),
            shape: tensor.shape.clone(),
        })
        .collect();
    let mut failed = None;
    let written = gguf::write(target, &metadata, &tensors, |i| {
        fill(planned[i], tensors[i].ty, request.seed).map_err(|source| {
            failed = Some(Error::Quantize {
                tensor: tensors[i].name.clone(),
                source,
            });
            io::Error::other("quantisation failed")
        })
    });
    match (written, failed) {
        (_, Some(error)) => Err(error),
        (Err(error), None) => Err(error.into()),
        (Ok(()), None) => Ok(plan),
    }
}

/// Metadata and plan of a random model.
///
/// # Errors
/// A name does not exist, or numbers do not fit each other.
pub fn design(def: &ArchDef, request: &SynthRequest) -> Result<(Metadata, Plan), Error> {
    design_with_drafter(def, request).map(|(metadata, plan, _)| (metadata, plan))
}

/// [`design`], and the plans of the heads of the drafter.
fn design_with_drafter(
    def: &ArchDef,
    request: &SynthRequest,
) -> Result<(Metadata, Plan, Vec<Plan>), Error> {
    let params = params(def, request)?;
    let n_vocab = params.iter().find(|(name, ..)| *name == VOCAB_SIZE);
    let n_vocab = n_vocab.and_then(|(.., value)| value.as_i64()).unwrap_or(0);

    let mut metadata = Metadata::default();
    metadata.insert("general.architecture", Meta::Str(def.name.clone()));
    // The name does not contain a family's name: with one, some engines look for the tokens of its vocabulary.
    metadata.insert(
        "general.name",
        Meta::Str(format!("made up from seed {}", request.seed)),
    );
    match &request.vocabulary {
        Some(vocabulary) => vocabulary::copy(vocabulary, n_vocab, &mut metadata),
        None => vocabulary::numbers(n_vocab, &mut metadata),
    }
    for (_, key, value) in &params {
        metadata.insert(key.clone(), value.clone());
    }
    let chosen = RequestedTensors {
        with: &request.with,
    };
    let plan = Plan::new(def, &metadata, &chosen)?;
    let mut heads: Vec<Plan> = Vec::new();
    if let Some(of) = &request.drafter {
        let mut metadata = metadata.clone();
        loop {
            let head = Plan::new(of, &metadata, &chosen)?;
            let n_heads = head.target.as_ref().map_or(1, |target| target.n_heads);
            if head.layers.is_empty() {
                break;
            }
            heads.push(head);
            if heads.len() as u64 >= n_heads {
                break;
            }
            metadata.insert(HEAD, Meta::U32(heads.len() as u32));
        }
    }
    let is_read = |key: &str| {
        let of_drafter = heads.iter().any(|of| of.keys.contains(key));
        of_drafter || plan.keys.contains(key)
    };
    let plans: Vec<&Plan> = std::iter::once(&plan).chain(&heads).collect();
    check_with(def, &plans, request)?;
    check_set(def, &plans, request)?;

    // Keys that are not read are omitted, unless they give the size of the vocabulary.
    let mut lean = Metadata::default();
    for (key, value) in metadata.iter() {
        let param = params.iter().find(|(_, k, _)| k == key);
        if param.is_none_or(|(name, ..)| *name == VOCAB_SIZE) || is_read(key) {
            lean.insert(key, value.clone());
        }
    }
    for (key, text) in &request.meta {
        lean.insert(key.as_str(), parse(text));
    }
    Ok((lean, plan, heads))
}

/// Name, metadata key and value of each parameter that a key gives.
fn params<'d>(
    def: &'d ArchDef,
    request: &SynthRequest,
) -> Result<Vec<(&'d str, String, Meta)>, Error> {
    let mut given: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, value) in &request.set {
        given.insert(param_of(def, name)?, value);
    }
    let mut params = Vec::new();
    for (name, param) in &def.params {
        let ParamSource::Key { synth, .. } = &param.source else {
            continue;
        };
        let text = given.get(name.as_str());
        let synth = synth
            .as_ref()
            .and_then(|synth| to_meta(synth.as_literal()?));
        let value = match (&request.vocabulary, text) {
            (Some(vocabulary), _) if name == VOCAB_SIZE => {
                let n = text.map(|text| parse(text).as_i64().unwrap_or(-1));
                Some(Meta::U32(vocabulary::size(vocabulary, n)?))
            }
            (_, Some(text)) => Some(parse(text)),
            (_, None) => synth,
        };
        if let Some(value) = value {
            let key = keys_of(def, name).into_iter().next().unwrap_or_default();
            params.push((name.as_str(), key, value));
        }
    }
    Ok(params)
}

/// The full metadata keys that give a parameter.
fn keys_of(def: &ArchDef, param: &str) -> Vec<String> {
    match &def.params[param].source {
        ParamSource::Key { keys, absolute, .. } if *absolute => keys.clone(),
        ParamSource::Key { keys, .. } => {
            let full = |key| format!("{}.{key}", def.name);
            keys.iter().map(full).collect()
        }
        _ => Vec::new(),
    }
}

/// Refuses values of parameters that the model does not read.
fn check_set(def: &ArchDef, plans: &[&Plan], request: &SynthRequest) -> Result<(), Error> {
    for (name, _) in &request.set {
        let param = param_of(def, name)?;
        let is_read = keys_of(def, param)
            .iter()
            .any(|key| plans.iter().any(|plan| plan.keys.contains(key)));
        if param != VOCAB_SIZE && !is_read {
            return Err(Error::Unread {
                name: name.clone(),
                arch: def.name.clone(),
            });
        }
    }
    Ok(())
}

/// The parameter of a name or a metadata key.
fn param_of<'d>(def: &'d ArchDef, name: &str) -> Result<&'d str, Error> {
    let relative = name
        .strip_prefix(&def.name)
        .and_then(|rest| rest.strip_prefix('.'))
        .unwrap_or(name);
    let keyed = def.params.iter().filter_map(|(param, p)| match &p.source {
        ParamSource::Key { keys, .. } => Some((param.as_str(), keys)),
        ParamSource::Derived(_) => None,
    });
    if let Some((param, _)) = keyed
        .clone()
        .find(|(param, keys)| *param == name || keys.iter().any(|k| k == relative))
    {
        return Ok(param);
    }
    if let Some(ParamSource::Derived(from)) = def.params.get(name).map(|p| &p.source) {
        return Err(Error::Derived {
            name: name.to_owned(),
            arch: def.name.clone(),
            from: from.to_string(),
        });
    }
    let names = keyed
        .clone()
        .flat_map(|(param, keys)| keys.iter().map(String::as_str).chain([param]));
    let near = nearest(relative, names).map(str::to_owned);
    Err(Error::Parameter {
        name: name.to_owned(),
        arch: def.name.clone(),
        near,
    })
}

/// A value in the notation of the command line: `4`, `0.5`, `true`, `yarn`, `1,0,1`, `1u64,0u64`, `[a, b]`.
fn parse(text: &str) -> Meta {
    let bracketed = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    let items = bracketed.unwrap_or(text).trim();
    let items = items.split(',').map(str::trim);
    let items: Vec<&str> = items.filter(|_| bracketed != Some("")).collect();
    let array = match bracketed {
        Some(_) => array(&items).or_else(|| Some(Array::Str(items.iter().collect()))),
        None => array(&items).filter(|_| items.len() > 1),
    };
    match array {
        Some(array) => Meta::Array(array),
        None => scalar(text).unwrap_or_else(|| Meta::Str(text.to_owned())),
    }
}

/// A number or a boolean.
fn scalar(text: &str) -> Option<Meta> {
    let float = || text.parse::<f32>().ok().filter(|v| v.is_finite());
    let integer = text.parse().map(Meta::U32);
    let integer = integer.or_else(|_| text.parse().map(Meta::I32)).ok();
    let value = integer.or_else(|| float().map(Meta::F32));
    value.or_else(|| text.parse().ok().map(Meta::Bool))
}

/// Items of one type, none of them text.
fn array(items: &[&str]) -> Option<Array> {
    fn all<T: std::str::FromStr>(items: &[&str]) -> Option<Vec<T>> {
        items.iter().map(|item| item.parse().ok()).collect()
    }
    let of_64_bits = |item: &&str| item.strip_suffix("u64")?.parse().ok();
    let wide: Option<Vec<u64>> = items.iter().map(of_64_bits).collect();
    if let Some(wide) = wide.filter(|wide| !wide.is_empty()) {
        return Some(Array::U64(wide));
    }
    let integers = all(items).map(Array::U32);
    let integers = integers.or_else(|| all(items).map(Array::I32));
    let finite = |values: &Vec<f32>| values.iter().all(|value| value.is_finite());
    let numbers = integers.or_else(|| all(items).filter(finite).map(Array::F32));
    numbers.or_else(|| all(items).map(Array::Bool))
}

fn to_meta(value: &Value) -> Option<Meta> {
    Some(match value {
        Value::Int(v) => Meta::U32(u32::try_from(*v).ok()?),
        Value::Float(v) => Meta::F32(*v as f32),
        Value::Bool(v) => Meta::Bool(*v),
        Value::Str(v) => Meta::Str(v.clone()),
        Value::List(_) => parse(&value.to_string()),
    })
}

/// The tensors of a random model: the required ones and the requested ones.
struct RequestedTensors<'a> {
    with: &'a [String],
}

/// A tensor's name without its layer and without `.weight`.
fn short(name: &str) -> &str {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let mut dots = name.match_indices('.').map(|(at, _)| at);
    let mut last = 0;
    let layer = dots.find(|dot| is_number(&name[std::mem::replace(&mut last, dot + 1)..*dot]));
    let name = layer.map_or(name, |dot| &name[dot + 1..]);
    name.strip_suffix(".weight").unwrap_or(name)
}

/// Whether a tensor has the given name: its full name, or its name in all layers; `*` stands for any characters.
fn is_named(given: &str, name: &str) -> bool {
    let of_layers = given.strip_suffix(".weight").unwrap_or(given);
    fits_pattern(given, name) || fits_pattern(of_layers, short(name))
}

impl TensorSet for RequestedTensors<'_> {
    fn has(&self, name: &str, required: bool) -> bool {
        required || self.with.iter().any(|with| is_named(with, name))
    }

    fn stored(&self, _: &str) -> Option<(TensorType, &[u64], u64)> {
        None
    }

    fn names(&self) -> Vec<&str> {
        Vec::new()
    }

    fn is_file(&self) -> bool {
        false
    }
}

fn check_with(def: &ArchDef, plans: &[&Plan], request: &SynthRequest) -> Result<(), Error> {
    let tensors = || plans.iter().flat_map(|plan| &plan.tensors);
    let has = |given: &&String| tensors().any(|t| is_named(given, &t.name));
    let Some(given) = request.with.iter().find(|given| !has(given)) else {
        return Ok(());
    };
    let blocks = def
        .stacks
        .iter()
        .flat_map(|s| &s.slots)
        .flat_map(|s| &s.branches)
        .map(|b| &b.block);
    let resources = def.resources.values();
    let stages = [&def.embed]
        .into_iter()
        .chain(&def.per_layer)
        .chain(def.head.as_ref().map(|head| &head.unit));
    let weights = blocks
        .chain(resources)
        .chain(stages)
        .flat_map(|instance| &instance.weights)
        .filter(|weight| weight.presence != Presence::Forbidden);
    let known: Vec<&str> = weights.map(|w| short(&w.tensor)).collect();
    let (name, arch) = (given.clone(), def.name.clone());
    if known
        .iter()
        .any(|known| is_named(given, known) || is_named(short(given), known))
    {
        return Err(Error::Unused { name, arch });
    }
    let near = nearest(given, known).map(str::to_owned);
    Err(Error::Tensor { name, arch, near })
}

fn stored_type(tensor: &TensorPlan, ty: TensorType) -> TensorType {
    match tensor.role {
        WeightRole::Matrix | WeightRole::Table => ty,
        WeightRole::Scale
        | WeightRole::Bias
        | WeightRole::Factors
        | WeightRole::Convolution
        | WeightRole::Decay => TensorType::F32,
        WeightRole::Ids(_) => TensorType::I32,
    }
}

/// Number of rows that are made at a time.
const ROWS_AT_ONCE: usize = 1024;

/// The data of a tensor.
fn fill(tensor: &TensorPlan, ty: TensorType, seed: u64) -> Result<Vec<u8>, ggml::Error> {
    let row = tensor.shape.first().copied().unwrap_or(1) as usize;
    let rows = (tensor.shape.iter().product::<u64>() / row as u64) as usize;
    let (mean, spread) = match tensor.role {
        // Somewhat more than the spread that keeps the variance, so that attention is not uniform.
        WeightRole::Matrix => (0.0, 1.4 / (row as f64).sqrt()),
        WeightRole::Table => (0.0, 1.0),
        WeightRole::Scale => (1.0, 0.1),
        WeightRole::Bias => (0.0, 0.2),
        WeightRole::Factors => (2.0, 0.5),
        WeightRole::Convolution => (0.0, 1.0 / (row as f64).sqrt()),
        // Far enough from zero that no value is positive.
        WeightRole::Decay => (-1.0, 0.15),
        WeightRole::Ids(_) => return Ok(ids(tensor, row, hash(seed, &tensor.name))),
    };
    let stream = hash(seed, &tensor.name);
    let make = |piece: usize| {
        let start = piece * ROWS_AT_ONCE;
        let n = ROWS_AT_ONCE.min(rows - start);
        let first = (start * row) as u64;
        let places = first..first + (n * row) as u64;
        let values = random::normals(stream, places, mean, spread);
        ggml::quantize(&values, row, ty)
    };
    let mut out = Vec::new();
    parallel::in_order(rows.div_ceil(ROWS_AT_ONCE), make, |piece| {
        out.extend_from_slice(&piece);
        Ok(())
    })?;
    Ok(out)
}

/// Ids as i32; those of a row differ if there are enough ids.
fn ids(tensor: &TensorPlan, row: usize, stream: u64) -> Vec<u8> {
    let below = tensor.below.unwrap_or(1).max(1);
    let n = tensor.shape.iter().product::<u64>();
    let mut ids: Vec<u64> = Vec::with_capacity(n as usize);
    for i in 0..n {
        let in_row = ids.len() % row;
        let others = ids.len() - in_row..;
        let mut id = scatter(stream ^ scatter(i)) % below;
        while in_row < below as usize && ids[others.clone()].contains(&id) {
            id = (id + 1) % below;
        }
        ids.push(id);
    }
    ids.iter()
        .flat_map(|id| (*id as i32).to_le_bytes())
        .collect()
}

fn hash(seed: u64, name: &str) -> u64 {
    name.bytes()
        .fold(scatter(seed), |h, b| scatter(h ^ u64::from(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_have_no_layer_and_no_ending() {
        assert_eq!(short("blk.12.attn_q.bias"), "attn_q.bias");
        assert_eq!(short("blk.0.attn_q.weight"), "attn_q");
        assert_eq!(short("enc.blk.3.attn_q.weight"), "attn_q");
        assert_eq!(short("rope_freqs.weight"), "rope_freqs");
        assert_eq!(short("output.bias"), "output.bias");
    }

    #[test]
    fn tensors_are_asked_for_in_all_layers_or_by_their_whole_name() {
        for given in [
            "attn_q.bias",
            "blk.1.attn_q.bias",
            "attn_*.bias",
            "*.bias",
            "blk.1.*",
        ] {
            assert!(is_named(given, "blk.1.attn_q.bias"), "{given}");
        }
        for given in [
            "attn_q",
            "attn_q.weight",
            "blk.1.attn_q.weight",
            "attn_*",
            "*",
        ] {
            assert!(is_named(given, "blk.1.attn_q.weight"), "{given}");
        }
        for given in [
            "attn_q",
            "blk.0.attn_q.bias",
            "blk.1.attn_q",
            "bias",
            "",
            "ffn_*",
            "blk.0.*",
        ] {
            assert!(!is_named(given, "blk.1.attn_q.bias"), "{given}");
        }
    }

    #[test]
    fn values_have_the_types_of_their_texts() {
        let texts = ["full", "local"].iter().collect();
        let cases = [
            ("4", Meta::U32(4)),
            ("-4", Meta::I32(-4)),
            ("0.5", Meta::F32(0.5)),
            ("false", Meta::Bool(false)),
            ("yarn", Meta::Str("yarn".into())),
            ("a, b", Meta::Str("a, b".into())),
            ("nan", Meta::Str("nan".into())),
            ("1,0,1", Meta::Array(Array::U32(vec![1, 0, 1]))),
            ("[7]", Meta::Array(Array::U32(vec![7]))),
            ("[]", Meta::Array(Array::U32(Vec::new()))),
            ("[1, -1]", Meta::Array(Array::I32(vec![1, -1]))),
            ("[1, 0.5]", Meta::Array(Array::F32(vec![1.0, 0.5]))),
            ("[true, false]", Meta::Array(Array::Bool(vec![true, false]))),
            ("[full, local]", Meta::Array(Array::Str(texts))),
        ];
        for (text, value) in cases {
            assert_eq!(parse(text), value, "{text}");
        }
    }
}
