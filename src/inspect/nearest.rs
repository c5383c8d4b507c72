//! Finds the definitions that best fit a model file of an unknown architecture, and drafts a definition.
//!
//! Every definition is planned for the file as if the file named its architecture. The differences show the choices
//! that remain for the author of the port: what the plan lacks, which tensors and keys it leaves unused, and what
//! neither of these determines.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use lab_base::weights::{Metadata, TensorType, Value, Weights};
use lab_core::arch::{ArchDef, Library, LibraryError, Mode, OptionKind, ParamSource, SHIFT_LOGITS};
use lab_core::hf::{self, MapFit, Maps};
use lab_core::plan::{Plan, TensorSet};

const ARCHITECTURE: &str = "general.architecture";

/// How a definition fits a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefinitionFit {
    pub arch: String,
    /// Requirements that the file does not meet, listed once for all layers.
    pub problems: Vec<String>,
    /// Tensors of the file that the definition does not use, with `{il}` for the layer.
    pub unused: BTreeSet<String>,
    /// Required tensors that the file lacks, with `{il}` for the layer.
    pub missing: BTreeSet<String>,
    /// Metadata keys of the file that the definition does not read, relative to the architecture; empty if there are
    /// problems.
    pub unread: Vec<String>,
    /// Optional tensors that the file lacks, with `{il}` for the layer.
    pub absent: BTreeSet<String>,
}

impl DefinitionFit {
    /// The sort key: mismatched tensors first, then problems and unread keys, then the number of optional tensors.
    fn distance(&self) -> (usize, usize, usize) {
        let tensors = self.unused.len() + self.missing.len();
        let others = self.problems.len() + self.unread.len();
        (tensors, others, self.absent.len())
    }

    /// Whether the file has what the definition needs, and nothing more.
    fn is_exact(&self) -> bool {
        matches!(self.distance(), (0, 0, _))
    }
}

/// The tensors of a file, with a record of the requested names.
struct RecordedTensors<'a> {
    weights: &'a Weights,
    /// The requested names, each with whether it was required.
    names: RefCell<BTreeMap<String, bool>>,
}

impl TensorSet for RecordedTensors<'_> {
    fn has(&self, name: &str, required: bool) -> bool {
        *self.names.borrow_mut().entry(name.to_owned()).or_default() |= required;
        self.weights.has(name, required)
    }

    fn stored(&self, name: &str) -> Option<(TensorType, &[u64], u64)> {
        self.weights.stored(name)
    }

    fn names(&self) -> Vec<&str> {
        TensorSet::names(self.weights)
    }

    fn is_file(&self) -> bool {
        true
    }
}

/// The metadata of a file with its architecture renamed.
fn renamed(metadata: &Metadata, arch: &str) -> Metadata {
    let own = metadata.str(ARCHITECTURE).unwrap_or_default();
    let mut out = Metadata::default();
    for (key, value) in metadata.iter() {
        let rest = key.strip_prefix(own);
        match rest.and_then(|rest| rest.strip_prefix('.')) {
            _ if key == ARCHITECTURE => out.insert(key, Value::Str(arch.to_owned())),
            Some(rest) if !own.is_empty() => out.insert(format!("{arch}.{rest}"), value.clone()),
            _ => out.insert(key, value.clone()),
        }
    }
    out
}

/// The name of a tensor, with `{il}` instead of the number of its layer.
fn without_layer_number(name: &str) -> String {
    let number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts = name.split('.');
    let mut is_found = false;
    let parts = parts.map(|part| match !is_found && number(&part) {
        true => {
            is_found = true;
            "{il}"
        }
        false => part,
    });
    parts.collect::<Vec<_>>().join(".")
}

fn fit(def: &ArchDef, weights: &Weights) -> DefinitionFit {
    let metadata = renamed(weights.metadata(), &def.name);
    let prefix = format!("{}.", def.name);
    let asked = RecordedTensors {
        weights,
        names: RefCell::default(),
    };
    let found = Plan::new(def, &metadata, &asked);
    let asked = asked.names.into_inner();
    let (problems, unused, unread) = match found {
        Ok(plan) => (Vec::new(), plan.unclaimed, plan.unread),
        Err(error) => {
            let names = weights.tensors().iter().map(|tensor| &tensor.name);
            let unused = names.filter(|name| !asked.contains_key(*name)).cloned();
            (error.once(), unused.collect(), Vec::new())
        }
    };
    let lacking = |wanted: bool| {
        let own = asked.iter().filter(|(_, required)| **required == wanted);
        let lacking = own.filter(|(name, _)| weights.tensor(name).is_none());
        lacking
            .map(|(name, _)| without_layer_number(name))
            .collect()
    };
    let unused = unused.iter().map(|name| without_layer_number(name));
    let relative = |key: &String| key.strip_prefix(&prefix).unwrap_or(key).to_owned();
    DefinitionFit {
        arch: def.name.clone(),
        problems,
        unused: unused.collect(),
        missing: lacking(true),
        unread: unread.iter().map(relative).collect(),
        absent: lacking(false),
    }
}

/// All definitions, the best fit first. Of those that fit exactly, that of the file's own architecture is the best.
pub fn definition_fits(
    library: &Library,
    weights: &Weights,
) -> Result<Vec<DefinitionFit>, LibraryError> {
    let mut fits = Vec::new();
    for (name, _) in library.sources() {
        let def = library.get(name)?;
        // A definition with several names is tried once.
        if def.names.first() == Some(&def.name) {
            fits.push(fit(&def, weights));
        }
    }
    let own = weights.metadata().str(ARCHITECTURE).unwrap_or_default();
    let own = library.get(own).map(|def| def.names).unwrap_or_default();
    let is_own = |fit: &DefinitionFit| fit.is_exact() && own.contains(&fit.arch);
    fits.sort_by_key(|fit| (!is_own(fit), fit.distance()));
    Ok(fits)
}

/// How well a map, and its definition, fit a folder.
#[derive(Debug)]
pub struct FolderFit {
    /// The fit of the map to the folder.
    pub map: MapFit,
    /// The fit of the definition to the result of the map.
    pub fit: DefinitionFit,
}

impl FolderFit {
    /// Whether the folder has what the map and its definition need, and nothing more.
    pub fn is_exact(&self) -> bool {
        let map = &self.map;
        let n_left = map.unused.len() + map.problems.len() + map.unread.len();
        n_left == 0 && self.fit.is_exact()
    }

    /// The number of tensors of which the folder or the definition knows nothing, and the number of those that the
    /// folder only names otherwise.
    ///
    /// A plan that fails does not ask for all tensors. So the tensors of active rules count then too, unless the plan asked
    /// for them as optional ones.
    fn mismatched(&self) -> (usize, usize) {
        let (map, fit) = (&self.map, &self.fit);
        let bare = |name: &str| {
            let ends = [".weight", ".bias"];
            let bare = ends.iter().find_map(|end| name.strip_suffix(end));
            bare.unwrap_or(name).to_owned()
        };
        // A tensor of some layers is no tensor of another kind.
        let there = map.weights.tensors().iter();
        let there: BTreeSet<String> = there
            .map(|tensor| bare(&without_layer_number(&tensor.name)))
            .collect();
        let mut lacking: BTreeSet<String> = fit.missing.iter().map(|name| bare(name)).collect();
        if !fit.problems.is_empty() {
            let optional: BTreeSet<String> = fit.absent.iter().map(|name| bare(name)).collect();
            let unmade = map.unmade.iter();
            let unmade =
                unmade.filter(|(name, tensor)| !tensor.is_inactive && !optional.contains(*name));
            lacking.extend(unmade.map(|(name, _)| name.clone()));
        }
        let is_renamed = |name: &String| {
            let unmade = map.unmade.get(name);
            there.contains(name) || unmade.is_some_and(|tensor| tensor.is_renamed)
        };
        let n_renamed = lacking.iter().filter(|name| is_renamed(name)).count();
        (
            map.unused.len() - map.n_renamed + fit.unused.len() + lacking.len() - n_renamed,
            map.n_renamed + n_renamed,
        )
    }
}

/// Whether a class computes the logits of the next token.
fn is_causal(class: &str) -> bool {
    class.ends_with("ForCausalLM")
}

/// All maps with their definitions, the best fit for a folder first.
///
/// Exact fits come first. Of the others, those with the fewest tensors that only one side has; of equal ones those that
/// compute what the folder's class says, then those whose names and keys are the folder's. Of equal ones, an architecture
/// that many maps have is more likely than a special one that does without a part.
///
/// # Errors
/// A definition of the library has problems.
pub fn folder_fits(
    library: &Library,
    folder: &hf::UnknownFolder,
    maps: Vec<MapFit>,
) -> Result<Vec<FolderFit>, LibraryError> {
    let is_causal = folder.classes.iter().any(|class| is_causal(class));
    let mut fits = Vec::new();
    let mut n_maps: BTreeMap<String, usize> = BTreeMap::new();
    for map in maps {
        let def = library.get(&map.arch)?;
        let fit = fit(&def, &map.weights);
        *n_maps.entry(fit.arch.clone()).or_default() += 1;
        let is_other_mode = is_causal && def.mode != Mode::Causal;
        fits.push((is_other_mode, FolderFit { map, fit }));
    }
    fits.sort_by_cached_key(|(is_other_mode, of)| {
        let (tensors, renamed) = of.mismatched();
        let (_, others, absent) = of.fit.distance();
        let others = of.map.problems.len() + of.map.unread.len() + others;
        let n_maps = n_maps.get(&of.fit.arch).copied();
        // Keys say little where names differ: how much is renamed depends on defaults such as the number of layers.
        let has_other_names = renamed > 0;
        let keys = if has_other_names { 0 } else { others };
        (
            (
                !of.is_exact(),
                tensors,
                *is_other_mode,
                has_other_names,
                keys,
            ),
            (
                !of.map.is_named,
                Reverse(n_maps),
                // The map that is named like its definition is the plain one.
                of.map.map != of.fit.arch,
                renamed,
                others,
                absent,
            ),
        )
    });
    Ok(fits.into_iter().map(|(_, fit)| fit).collect())
}

/// The text of a draft map for an architecture `name`, based on the first of these fits; `None` if there are none. A map
/// that fits exactly is extended, with its own architecture.
pub fn draft_map(
    maps: &Maps,
    name: &str,
    folder: &hf::UnknownFolder,
    fits: &[FolderFit],
) -> Option<String> {
    let best = fits.first()?;
    if best.is_exact() {
        let base = &best.map.map;
        let title =
            format!("# `{base}` fits the folder: everything but the classes is in that map.\n\n");
        return Some(title + &hf::draft_extending_map(base, folder));
    }
    let next = fits.iter().skip(1).take(4).map(|fit| fit.map.map.as_str());
    let next = next.collect::<Vec<_>>().join(", ");
    let (map, fit) = (&best.map, &best.fit);
    let (base, arch) = (&map.map, &fit.arch);
    let mut out = format!(
        "# Begun from `{base}`. Of the other maps, the nearest to the folder are: {next}.\n"
    );
    let lacking = "It needs what the folder does not have like this:";
    let problems: BTreeSet<&String> = map.problems.iter().collect();
    comment(&mut out, lacking, problems);
    let unused = "Stored tensors that no rule uses yet, with the shape of one:";
    comment(&mut out, unused, &map.unused);
    let unread = "Keys of config.json that nothing reads yet:";
    comment(&mut out, unread, &map.unread);
    let missing = format!("Tensors that `{arch}` requires and no rule gives yet:");
    comment(&mut out, &missing, &fit.missing);
    out.push('\n');
    let source = maps.source(&best.map.map)?;
    Some(out + &hf::draft_map(&source.text, name, folder))
}

/// Adds a comment with a heading and one line per item.
fn comment<T: AsRef<str>>(out: &mut String, heading: &str, items: impl IntoIterator<Item = T>) {
    let mut items = items.into_iter().peekable();
    if items.peek().is_none() {
        return;
    }
    out.push_str(&format!("#\n# {heading}\n"));
    for item in items {
        for line in item.as_ref().lines() {
            out.push_str(&format!("#   {line}\n"));
        }
    }
}

/// How the whole model computes, which no tensor shows: the mode, the mask and the place of the logits.
fn modes(def: &ArchDef, metadata: &Metadata) -> Vec<String> {
    let modes = Mode::NAMES.map(|(name, _)| format!("\"{name}\""));
    let mut found = vec![format!(
        "mode = \"{}\"; one of {}: completions that grow at the end, text diffusion, or an embedding of the whole text",
        def.mode.name(),
        modes.join(", ")
    )];
    let own = metadata.str(ARCHITECTURE).unwrap_or_default();
    let mut add = |name: &str, doc: &str| {
        let Some(ParamSource::Key {
            keys,
            absolute,
            default,
            ..
        }) = def.params.get(name).map(|param| &param.source)
        else {
            return;
        };
        let stated = keys.iter().find_map(|key| match absolute {
            true => metadata.bool(key),
            false => metadata.bool(&format!("{own}.{key}")),
        });
        let default = || default.as_ref().map(|default| default.source().to_owned());
        if let Some(value) = stated.map(|value| value.to_string()).or_else(default) {
            found.push(format!("{name} = {value} (parameter); {doc}"));
        }
    };
    add(
        "causal",
        "whether a token attends only to itself and earlier tokens",
    );
    if def.mode == Mode::Diffusion {
        let doc = "whether the logits at a position predict the token of the next one";
        add(SHIFT_LOGITS, doc);
    }
    found
}

/// The choices between named values that neither tensors nor keys determine: the option, its value here, all values.
fn choices(def: &ArchDef) -> BTreeSet<String> {
    let declared = def.resources.iter();
    let declared = declared.map(|((_, name), resource)| (name.as_str(), resource));
    // The kind of a resource that is named by its kind is no open choice.
    let declared = declared.filter(|(name, own)| own.contract.bare_kind(name).is_none());
    let slots = def.stacks.iter().flat_map(|stack| &stack.slots);
    let branches = slots.flat_map(|slot| &slot.branches);
    let branches = branches.map(|branch| (branch.name.as_str(), &branch.block));
    let mut found = BTreeSet::new();
    for (name, instance) in declared.chain(branches) {
        let contract = instance.contract;
        for (spec, setting) in contract.options.iter().zip(&instance.options) {
            if !matches!(spec.kind, OptionKind::Choice(_)) || spec.is_derived {
                continue;
            }
            let (kind, option, value, doc) = (contract.name, spec.name, &setting.expr, spec.doc);
            found.insert(format!("{name} ({kind}): {option} = {value}; {doc}"));
        }
    }
    found
}

/// The text of a draft definition for a file's architecture, based on the best fit.
pub fn draft_definition(
    library: &Library,
    weights: &Weights,
    name: &str,
    fits: &[DefinitionFit],
) -> Result<String, LibraryError> {
    let Some(best) = fits.first() else {
        return Err(LibraryError::Unknown {
            name: name.to_owned(),
            near: None,
        });
    };
    let def = library.get(&best.arch)?;
    let source = &library.source(&best.arch)?.text;
    let next = fits.iter().skip(1).take(4).map(|fit| fit.arch.as_str());
    let (base, next) = (&best.arch, next.collect::<Vec<_>>().join(", "));
    let mut out =
        format!("# Begun from `{base}`, the definition nearest to the file. Next come: {next}.\n");
    let lacking = "It needs what the file does not have like this:";
    comment(&mut out, lacking, &best.problems);
    let shape = |pattern: &String| {
        let mut tensors = weights.tensors().iter();
        let like = tensors.find(|t| without_layer_number(&t.name) == *pattern);
        let shape = like.map(|t| &t.shape[..]).unwrap_or_default();
        format!("{pattern} {shape:?}")
    };
    let heading = "Tensors of the file that nothing uses yet:";
    comment(&mut out, heading, best.unused.iter().map(shape));
    let metadata = weights.metadata();
    let own = metadata.str(ARCHITECTURE).unwrap_or_default();
    let value = |key: &String| match metadata.get(&format!("{own}.{key}")) {
        Some(Value::Array(array)) => format!("{key}: {} values", array.len()),
        Some(value) => match (value.as_str(), value.as_bool(), value.as_f64()) {
            (Some(text), ..) => format!("{key} = {text:?}"),
            (_, Some(truth), _) => format!("{key} = {truth}"),
            (.., number) => format!("{key} = {}", number.unwrap_or_default()),
        },
        None => key.clone(),
    };
    let unread = best.unread.iter().map(value);
    comment(&mut out, "Keys of the file that nothing reads yet:", unread);
    let open = "Neither tensors nor keys tell these. Settle each from the published code, then remove this list:";
    comment(
        &mut out,
        open,
        modes(&def, metadata).into_iter().chain(choices(&def)),
    );
    out.push('\n');
    // The first comment is about the other architecture, whose name is in the first line that is not a comment.
    let is_before = |line: &&str| line.starts_with('#') || line.trim().is_empty();
    let mut is_named = false;
    for line in source.lines().skip_while(is_before) {
        let key = line.split('=').next().unwrap_or_default();
        let is_name = !is_named && key.trim() == "name";
        match is_name {
            true => out.push_str(&format!("name = \"{name}\"")),
            false => out.push_str(line),
        }
        is_named |= is_name;
        out.push('\n');
    }
    Ok(out)
}
