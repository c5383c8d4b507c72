//! Which files of a repository a model consists of: one quantisation of GGUF files, or a folder of safetensors with what describes it.

use std::collections::BTreeMap;

use crate::HubError;

/// The files of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Paths in the repository, sorted.
    pub files: Vec<String>,
    /// The GGUF file to open (the first of its shards); none: the folder itself is opened.
    pub gguf: Option<String>,
    /// What names this model in its repository (`Q4_K_M`); none for folders.
    pub variant: Option<String>,
    /// The GGUF file with the towers for pictures and sounds, which all quantisations of a model share.
    pub projector: Option<String>,
}

/// The order in which the element type of a projector is taken.
const PROJECTORS: [&str; 5] = ["F16", "FP16", "BF16", "Q8_0", "F32"];

/// The name of a GGUF file without its ending.
fn gguf_stem(file: &str) -> Option<&str> {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.strip_suffix(".gguf")
}

/// Whether a file has the towers of a model, by its name.
fn is_projector(file: &str) -> bool {
    gguf_stem(file).is_some_and(|stem| stem.to_lowercase().contains("mmproj"))
}

/// The projector for a GGUF file: of the file's folder, or else of one above it.
fn projector_of(files: &[String], model: &str) -> Option<String> {
    let folder = |file: &str| {
        file.rsplit_once('/')
            .map_or(String::new(), |(folder, _)| format!("{folder}/"))
    };
    let rank = |file: &&String| {
        let label = gguf_stem(file).and_then(quantisation);
        let of_type = PROJECTORS
            .iter()
            .position(|ty| Some(*ty) == label.as_deref());
        let depth = file.matches('/').count();
        (usize::MAX - depth, of_type.unwrap_or(PROJECTORS.len()))
    };
    let above = |file: &&String| is_projector(file) && model.starts_with(&folder(file));
    files.iter().filter(above).min_by_key(rank).cloned()
}

/// The order in which a quantisation is taken where none is asked for.
const PREFERRED: [&str; 12] = [
    "Q4_K_M",
    "UD-Q4_K_XL",
    "Q4_K_S",
    "Q5_K_M",
    "Q4_0",
    "IQ4_XS",
    "MXFP4",
    "MXFP4_MOE",
    "Q6_K",
    "Q8_0",
    "BF16",
    "F16",
];

/// `name-00002-of-00005` without its shard.
fn without_shard(stem: &str) -> &str {
    let digits = |s: &str| s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit());
    let parts = stem.rsplit_once("-of-").filter(|(_, total)| digits(total));
    let shard = parts
        .and_then(|(head, _)| head.rsplit_once('-'))
        .filter(|(_, n)| digits(n));
    shard.map_or(stem, |(name, _)| name)
}

/// The quantisation at the end of a file's name: `Q4_K_M` of `x-8B-Q4_K_M`, `UD-Q4_K_XL` of `x-UD-Q4_K_XL`.
fn quantisation(stem: &str) -> Option<String> {
    let from = stem.rfind(['-', '.']).map_or(0, |at| at + 1);
    let label = stem[from..].to_uppercase();
    let after = ["IQ", "TQ", "Q"].iter().find_map(|p| label.strip_prefix(p));
    let is_number = after.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    if !(is_number
        || ["F16", "F32", "BF16", "FP16", "MXFP4", "MXFP4_MOE", "NVFP4"].contains(&label.as_str()))
    {
        return None;
    }
    let is_dynamic = stem[..from].to_uppercase().ends_with("-UD-");
    Some(if is_dynamic {
        format!("UD-{label}")
    } else {
        label
    })
}

/// The models in GGUF files by their label, each with its files in the order of the shards. Projectors and calibration data are no models.
fn gguf_models(files: &[String]) -> BTreeMap<String, Vec<&String>> {
    let mut models: BTreeMap<String, Vec<&String>> = BTreeMap::new();
    for file in files {
        let Some(stem) = gguf_stem(file) else {
            continue;
        };
        if is_projector(file) || stem.contains("imatrix") {
            continue;
        }
        let stem = without_shard(stem);
        let label = quantisation(stem).unwrap_or_else(|| stem.to_owned());
        models.entry(label).or_default().push(file);
    }
    models.values_mut().for_each(|files| files.sort());
    models
}

/// Whether a file describes a model in a folder: its configuration, tokenizer, templates, and the modules of sentence transformers.
fn describes(file: &str) -> bool {
    let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
    let is_weights_index = name.ends_with(".bin.index.json")
        || name.ends_with(".h5.index.json")
        || name.ends_with(".msgpack.index.json");
    match folder {
        "" => {
            matches!(name, "vocab.txt" | "merges.txt")
                || (!is_weights_index
                    && [".json", ".model", ".jinja", ".tiktoken"]
                        .iter()
                        .any(|end| name.ends_with(end)))
        }
        "additional_chat_templates" => name.ends_with(".jinja"),
        module => {
            module.starts_with(|c: char| c.is_ascii_digit())
                && !module.contains('/')
                && (name == "config.json" || name.ends_with(".safetensors"))
        }
    }
}

/// The weights of a folder, by name: `model*.safetensors` where there are any, then those of an adapter, then all that lie beside `config.json`.
fn folder_weights(files: &[String]) -> Vec<String> {
    let all = || {
        files
            .iter()
            .filter(|f| !f.contains('/') && f.ends_with(".safetensors"))
    };
    let of = |start: &str| {
        all()
            .filter(|f| f.starts_with(start))
            .cloned()
            .collect::<Vec<_>>()
    };
    let named = ["model", "adapter_model"]
        .into_iter()
        .map(of)
        .find(|found| !found.is_empty());
    named.unwrap_or_else(|| all().cloned().collect())
}

/// Whether a variant is the tag that programs of other registries append to a name without one.
pub(crate) fn is_latest(variant: &str) -> bool {
    variant.eq_ignore_ascii_case("latest")
}

/// Chooses the files of a model among those of a repository (or of a snapshot in the cache). The variant `latest` is none, unless a file is called
/// so.
///
/// # Errors
/// [`HubError::NoModel`]: the variant does not exist, several fit, or the repository has no weights in a format that is read.
pub fn select(repo: &str, files: &[String], variant: Option<&str>) -> Result<Selection, HubError> {
    let models = gguf_models(files);
    let none = |reason: String| HubError::NoModel {
        repo: repo.to_owned(),
        reason,
        available: models.keys().cloned().collect(),
    };
    let all = files;
    let of_label = |label: &str| {
        let files: Vec<String> = models[label].iter().map(|f| (*f).clone()).collect();
        Selection {
            gguf: files.first().cloned(),
            projector: files.first().and_then(|model| projector_of(all, model)),
            variant: Some(label.to_owned()),
            files,
        }
    };
    if let Some(wanted) = variant {
        if let Some((label, _)) = models
            .iter()
            .find(|(_, files)| files.iter().any(|f| *f == wanted))
        {
            return Ok(of_label(label));
        }
        let fits = |label: &str| label.eq_ignore_ascii_case(wanted);
        let ends = |label: &str| {
            label.len() > wanted.len()
                && label
                    .to_uppercase()
                    .ends_with(&format!("-{}", wanted.to_uppercase()))
        };
        let exact: Vec<&String> = models.keys().filter(|l| fits(l)).collect();
        let found = if exact.is_empty() {
            models.keys().filter(|l| ends(l)).collect()
        } else {
            exact
        };
        return match found[..] {
            [label] => Ok(of_label(label)),
            [] if is_latest(wanted) => select(repo, files, None),
            [] => Err(none(format!("no GGUF file of `{wanted}`"))),
            _ => Err(none(format!("several GGUF files of `{wanted}`"))),
        };
    }
    let weights = folder_weights(files);
    if !weights.is_empty() {
        let mut chosen: Vec<String> = files.iter().filter(|f| describes(f)).cloned().collect();
        chosen.extend(weights);
        chosen.sort();
        chosen.dedup();
        return Ok(Selection {
            files: chosen,
            gguf: None,
            variant: None,
            projector: None,
        });
    }
    let preferred = PREFERRED
        .iter()
        .find(|label| models.contains_key(**label))
        .copied();
    let only = || {
        models
            .keys()
            .next()
            .filter(|_| models.len() == 1)
            .map(String::as_str)
    };
    match preferred.or_else(only) {
        Some(label) => Ok(of_label(label)),
        None if models.is_empty() => {
            Err(none("no weights in safetensors or GGUF files".to_owned()))
        }
        None => Err(none(
            "several models and no usual quantisation: name one after a colon".to_owned(),
        )),
    }
}

/// Whether files of a selection miss shards, by the numbers in their names or by what an index lists. `index` reads `model.safetensors.index.json`.
pub(crate) fn is_complete(selection: &Selection, index: Option<&serde_json::Value>) -> bool {
    if let Some(first) = &selection.gguf {
        let total = first
            .strip_suffix(".gguf")
            .and_then(|s| s.rsplit_once("-of-"))
            .and_then(|(_, n)| n.parse::<usize>().ok());
        return total.is_none_or(|n| n == selection.files.len());
    }
    let has = |name: &str| selection.files.iter().any(|f| f == name);
    let map = index
        .and_then(|i| i.get("weight_map"))
        .and_then(serde_json::Value::as_object);
    map.is_none_or(|map| map.values().filter_map(serde_json::Value::as_str).all(has))
}

/// The variants under which models of a snapshot can be asked for; none stands for the folder.
pub(crate) fn labels(files: &[String]) -> Vec<Option<String>> {
    let folder = (!folder_weights(files).is_empty()).then_some(None);
    folder
        .into_iter()
        .chain(gguf_models(files).into_keys().map(Some))
        .collect()
}
