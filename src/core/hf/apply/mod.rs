//! Applies a map to a configuration and stored tensors, which gives metadata and tensors of an architecture.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use serde_json::Value as Json;

use crate::arch::expr::Expr;
use crate::arch::{ArchDef, Diagnostic, Span, Spanned};
use lab_base::weights::safetensors::{Checkpoint, StoredTensor};
use lab_base::weights::{Metadata, TensorData, TensorEntry, TensorType, Value as Meta};

use super::computed::ComputedTensor;
use super::config::{Config, ConfigScope, NameRoot, fill_expressions, fill_indices};
use super::definition::{
    Composition, ElementSlice, Map, PartRule, TensorGroup, TensorOrigin, TensorRule,
};
use super::packed::{PackedMatrices, Packing};
use super::rearrange::View;
use super::recipe::{ELEMENT, INDEX, Recipe, RecipePart};
use super::unit_rows::UnitRows;

mod unused;

pub(super) use unused::Unmapped;
use unused::{is_ignored, unused};

/// The endings that are searched for a rule whose name has no ending.
const ENDINGS: [&str; 2] = [".weight", ".bias"];

pub(super) struct MapResult {
    pub(super) metadata: Metadata,
    pub(super) entries: Vec<TensorEntry>,
    /// The stored tensors and configuration keys that were not used.
    pub(super) unmapped: Unmapped,
    /// The parts of the model that are left out, and their numbers of tensors.
    pub(super) left_out: Vec<(String, usize)>,
    /// The stored tensors of which each tensor is made, by the tensor's name, and the absent keys of which a parameter
    /// would be made, by its metadata key; for messages.
    pub(super) origins: HashMap<String, String>,
    /// What the configuration files of a folder with a processor would say, by the map.
    pub(super) processor: Json,
}

/// Problems in the map, in those that it extends, and in the part that all maps share.
pub(super) type Problems = Vec<Vec<Diagnostic>>;

/// The result of trying a map that may not fit a folder.
pub(super) struct MapAttempt {
    pub(super) metadata: Metadata,
    pub(super) entries: Vec<TensorEntry>,
    pub(super) problems: Problems,
    /// The stored tensors and configuration keys that were not used.
    pub(super) unmapped: Unmapped,
}

/// Applies a map to the configuration that it reads. `common` is the part that all maps share.
pub(super) fn apply(
    map: &Map,
    common: &Map,
    def: &ArchDef,
    config: &Config<'_>,
    packed: &PackedMatrices,
) -> Result<MapResult, Problems> {
    let work = MapApplication::done(map, common, def, config, packed);
    if work.problems.iter().any(|problems| !problems.is_empty()) {
        return Err(work.problems);
    }
    let ignored = |key: &str| is_ignored(map, key);
    let conflicts = config.conflicts(ignored);
    if !conflicts.is_empty() {
        tracing::warn!(
            "{} has two keys of the same meaning with different values: {}",
            map.configuration,
            conflicts.join("; ")
        );
    }
    let keys = config.unread(ignored);
    let (tensors, left_out) = unused(map, config, &work.used.into_inner());
    if !keys.inert.is_empty() {
        tracing::debug!(
            keys = keys.inert.join(", "),
            "config.json keys without effect"
        );
    }
    Ok(MapResult {
        metadata: work.metadata,
        entries: work.entries,
        unmapped: Unmapped {
            tensors,
            keys: keys.refused,
        },
        left_out,
        origins: work.origins,
        processor: Json::Object(work.processor),
    })
}

/// Applies those rules of a map that fit.
pub(super) fn attempt(
    map: &Map,
    common: &Map,
    def: &ArchDef,
    config: &Config<'_>,
    packed: &PackedMatrices,
) -> MapAttempt {
    let work = MapApplication::done(map, common, def, config, packed);
    let keys = config.unread(|key| is_ignored(map, key)).refused;
    let (tensors, _) = unused(map, config, &work.used.into_inner());
    MapAttempt {
        metadata: work.metadata,
        entries: work.entries,
        problems: work.problems,
        unmapped: Unmapped { tensors, keys },
    }
}

/// A tensor of the architecture: its shape, slowest axis first, and its data.
struct MadeTensor {
    shape: Vec<u64>,
    ty: TensorType,
    data: TensorData,
    /// The stored tensors of which it is made; none if it is computed.
    origin: Option<String>,
}

/// A stored tensor of a rule.
pub(super) struct StoredSource<'r> {
    pub(super) name: String,
    taken: &'r ElementSlice,
    pub(super) stored: &'r StoredTensor,
    pub(super) packing: Packing,
}

/// A rule where it is applied.
#[derive(Clone, Copy)]
pub(super) struct RuleAt<'r, 'c> {
    pub(super) group: &'r TensorGroup,
    pub(super) rule: &'r TensorRule,
    pub(super) at: &'r ConfigScope<'c>,
    /// What names without an ending get.
    pub(super) ending: &'r str,
}

/// The stored tensors of a rule; none if the folder stores none of them.
pub(super) type StoredSources<'r> = Result<Option<Vec<StoredSource<'r>>>, String>;

pub(super) struct MapApplication<'a> {
    pub(super) map: &'a Map,
    pub(super) def: &'a ArchDef,
    pub(super) checkpoint: &'a Checkpoint,
    packed: &'a PackedMatrices,
    pub(super) config: &'a Config<'a>,
    pub(super) metadata: Metadata,
    /// The parameters that the map mentions, whether it sets them or not.
    pub(super) params: BTreeSet<String>,
    /// What the configuration files of a folder with a processor would say.
    pub(super) processor: serde_json::Map<String, Json>,
    entries: Vec<TensorEntry>,
    /// Names of tensors that are made already.
    names: BTreeSet<String>,
    pub(super) origins: HashMap<String, String>,
    /// The stored tensors that are used.
    pub(super) used: RefCell<BTreeSet<String>>,
    pub(super) problems: Problems,
    /// Index into the problems: whose rules are applied.
    pub(super) at: usize,
}

impl<'a> MapApplication<'a> {
    /// Applies all rules of a map and of the part that all maps share.
    fn done(
        map: &'a Map,
        common: &Map,
        def: &'a ArchDef,
        config: &'a Config<'a>,
        packed: &'a PackedMatrices,
    ) -> Self {
        let mut work = Self {
            map,
            def,
            checkpoint: config.checkpoint,
            packed,
            config,
            metadata: Metadata::default(),
            params: BTreeSet::new(),
            processor: serde_json::Map::new(),
            entries: Vec::new(),
            names: BTreeSet::new(),
            origins: HashMap::new(),
            used: RefCell::default(),
            problems: Problems::default(),
            at: 0,
        };
        let arch = Meta::Str(def.name.clone());
        work.metadata.insert("general.architecture", arch);
        for (at, part) in map.chain().chain([common]).enumerate() {
            work.at = at;
            work.problems.push(Vec::new());
            work.rules(part);
            work.notes(part);
            work.targets(part);
            work.processor(part);
            for group in &part.groups {
                work.group(group);
            }
        }
        work
    }
}

impl MapApplication<'_> {
    /// Records a problem. Only the first one at each place is kept, because layers tend to repeat it.
    pub(super) fn report(&mut self, span: &Span, message: impl Into<String>) {
        let problems = &mut self.problems[self.at];
        if problems.iter().all(|problem| problem.span != *span) {
            problems.push(Diagnostic::new(span.clone(), message));
        }
    }

    fn group(&mut self, group: &TensorGroup) {
        let plain = self.config.plain();
        let Some((count, first)) = &group.layers else {
            for rule in &group.tensors {
                self.rule(group, rule, &plain);
            }
            return;
        };
        let end = match self.n_layers(&count.value) {
            Ok(end) => end,
            Err(error) => return self.report(&count.span, format!("`count`: {error}")),
        };
        let start = match first
            .as_ref()
            .map(|first| (plain.size(&first.value), first))
        {
            None => 0,
            Some((Ok(start), _)) => start,
            Some((Err(error), first)) => {
                return self.report(&first.span, format!("`first`: {error}"));
            }
        };
        for il in start..end {
            let at = plain.with("il", il);
            for rule in &group.tensors {
                self.rule(group, rule, &at);
            }
        }
    }

    fn rule(&mut self, group: &TensorGroup, rule: &TensorRule, at: &ConfigScope<'_>) {
        let name =
            fill_expressions(&group.prefix, at) + &fill_indices(&rule.name.value, &at.indices);
        let has_ending =
            rule.name.value.contains('.') || matches!(rule.made, TensorOrigin::Computed(_));
        let endings: &[&str] = if has_ending { &[""] } else { &ENDINGS };
        let names = endings.iter().map(|ending| format!("{name}{ending}"));
        let names: Vec<String> = names.collect();
        // An earlier rule of the same name made the tensor, so it is neither absent nor tied.
        if rule.otherwise.is_some() && names.iter().any(|name| self.names.contains(name)) {
            return;
        }
        let of = RuleAt {
            group,
            rule,
            at,
            ending: "",
        };
        match self.is_made(of) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => return self.report(&rule.name.span, error),
        }
        for (name, ending) in names.into_iter().zip(endings) {
            if self.names.contains(&name) {
                continue;
            }
            let of = RuleAt { ending, ..of };
            match self.made(of) {
                Ok(None) => self.note_absence(of, &name),
                Ok(Some(product)) => self.add(rule, name, product),
                Err(error) => self.report(&rule.name.span, format!("`{name}`: {error}")),
            }
        }
    }

    /// Whether this rule makes a tensor.
    fn is_made(&self, of: RuleAt<'_, '_>) -> Result<bool, String> {
        let when = of.rule.when.as_ref();
        let is_active = when.map_or(Ok(true), |when| of.at.truth(when))?;
        match &of.rule.otherwise {
            None => Ok(is_active),
            Some(tied_to) if is_active => self.is_there(of, tied_to),
            Some(tied_to) => self.is_untied(of, tied_to),
        }
    }

    /// Records the stored tensors of which a missing tensor would be made.
    fn note_absence(&mut self, of: RuleAt<'_, '_>, name: &str) {
        let (TensorOrigin::Of(made), Some(root)) = (&of.rule.made, self.map.roots.first()) else {
            return;
        };
        if let Some(part) = made.parts.first() {
            let from = fill_expressions(&of.group.from, of.at);
            let stored = format!("{root}{from}{}{}", part.from.value, of.ending);
            let stored = fill_indices(&fill_indices(&stored, &of.at.indices), &[("e", 0)]);
            let origin = || format!("the folder has no `{stored}`");
            self.origins.entry(name.to_owned()).or_insert_with(origin);
        }
    }

    fn add(&mut self, rule: &TensorRule, name: String, product: MadeTensor) {
        let mut shape = product.shape;
        shape.reverse();
        if shape.len() > lab_base::weights::MAX_DIMS {
            let of = product.origin.map(|of| format!("; {of}"));
            let message = format!(
                "`{name}` has {} axes, expected at most {}{}",
                shape.len(),
                lab_base::weights::MAX_DIMS,
                of.unwrap_or_default()
            );
            return self.report(&rule.name.span, message);
        }
        if shape.is_empty() {
            shape.push(1);
        }
        self.names.insert(name.clone());
        if let Some(origin) = product.origin {
            self.origins.insert(name.clone(), origin);
        }
        self.entries.push(TensorEntry {
            name,
            ty: product.ty,
            shape,
            data: product.data,
        });
    }

    /// The tensor of a rule; none if the folder stores none of its parts.
    fn made(&self, of: RuleAt<'_, '_>) -> Result<Option<MadeTensor>, String> {
        match &of.rule.made {
            TensorOrigin::Computed(shape) => computed(shape, of).map(Some),
            TensorOrigin::Of(made) => self.composed(of, made),
        }
    }

    fn composed(
        &self,
        of: RuleAt<'_, '_>,
        made: &Composition,
    ) -> Result<Option<MadeTensor>, String> {
        let RuleAt { rule, at, .. } = of;
        let count = made.repeat.as_ref().map(|repeat| at.size(&repeat.count));
        let count = count.transpose()?;
        let first = made
            .repeat
            .as_ref()
            .and_then(|repeat| repeat.first.as_ref());
        let first = first.map_or(Ok(0), |first| at.size(first))?;
        let numbers = first..first.saturating_add(count.unwrap_or(1));
        let Some(stored) = self.stored(of, &made.parts, numbers)? else {
            return Ok(None);
        };
        let n_stacked = count.filter(|_| made.is_stack());
        let is_beside = made.is_beside && n_stacked.is_none();
        let origin = self.origin(&stored);
        let mut parts = Vec::with_capacity(stored.len());
        let mut shape: Option<Vec<u64>> = None;
        for source in stored {
            let place = self.place(&source.name, source.stored);
            let view = view(source.taken, &source.stored.shape, at)
                .map_err(|error| format!("{place}: {error}"))?;
            let mut own = view.shape();
            if own.is_empty() && made.parts.len() > 1 && n_stacked.is_none() {
                // Numbers without an axis become a vector.
                own = vec![1];
            }
            shape = Some(match shape {
                None => own,
                Some(all) if n_stacked.is_some() && all == own => all,
                Some(mut all) if is_beside && all.len() == own.len() && all.len() > 1 => {
                    let (width, rows) = all.split_last_mut().ok_or("a number has no rows")?;
                    if *rows != own[..own.len() - 1] {
                        return Err(format!(
                            "{place} has the shape {own:?}, the part before it {all:?}"
                        ));
                    }
                    *width += own[own.len() - 1];
                    all
                }
                Some(mut all)
                    if n_stacked.is_none()
                        && !is_beside
                        && !all.is_empty()
                        && all.get(1..) == own.get(1..) =>
                {
                    all[0] += own[0];
                    all
                }
                Some(all) => {
                    return Err(format!(
                        "{place} has the shape {own:?}, the part before it {all:?}"
                    ));
                }
            });
            parts.push(self.part(source, view)?);
        }
        let mut shape = shape.ok_or("it is not made of stored tensors")?;
        if let Some(n) = n_stacked {
            shape.insert(0, n);
        }
        let times = match &made.times {
            Some(times) => Some(self.factors(of, times, &shape)?),
            None => None,
        };
        let each = rule.each.as_ref();
        let each = each
            .map(|each| at.bind(each, &[ELEMENT, INDEX]))
            .transpose()?;
        let (ty, data) = match rule.unit_rows {
            true => UnitRows::data(parts, is_beside, &shape, times, each)?,
            false => {
                let recipe = Recipe::new(parts, is_beside, &shape, times, each)?;
                let ty = recipe.ty();
                match recipe.in_place() {
                    Some((bytes, offset)) => (ty, TensorData::Mapped(bytes.clone(), offset)),
                    None => (ty, TensorData::Lazy(Arc::new(recipe))),
                }
            }
        };
        Ok(Some(MadeTensor {
            shape,
            ty,
            data,
            origin: Some(origin),
        }))
    }

    /// The elements of a stored tensor that the view selects. The tensor is recorded as used.
    fn part(&self, source: StoredSource<'_>, view: View) -> Result<RecipePart, String> {
        let stored = source.stored;
        let file = self.checkpoint.files().nth(stored.file);
        let part = RecipePart {
            file: file.ok_or("a file is missing")?.clone(),
            offset: stored.offset,
            bytes: stored.bytes,
            dtype: stored.dtype,
            packing: source.packing,
            view,
        };
        part.ty()
            .map_err(|error| format!("{}: {error}", self.place(&source.name, stored)))?;
        self.used.borrow_mut().insert(source.name);
        Ok(part)
    }

    /// The stored factors of the elements, for a tensor of this shape.
    fn factors(
        &self,
        of: RuleAt<'_, '_>,
        times: &Spanned<String>,
        shape: &[u64],
    ) -> Result<RecipePart, String> {
        let whole = [PartRule {
            from: times.clone(),
            taken: ElementSlice::default(),
        }];
        let stored = self.stored(of, &whole, 0..1)?;
        let source = stored.and_then(|mut stored| stored.pop());
        let source = source.ok_or_else(|| {
            let from = fill_expressions(&of.group.from, of.at);
            let name = format!("{from}{}{}", times.value, of.ending);
            let name = fill_indices(&name, &of.at.indices);
            format!("`times`: there is no tensor `{name}`")
        })?;
        let own = source.stored.shape.clone();
        if own.iter().product::<u64>() != shape.iter().product::<u64>() {
            return Err(format!(
                "`times`: {} has the shape {own:?}, expected as many elements as {shape:?} has",
                self.place(&source.name, source.stored)
            ));
        }
        self.part(source, View::whole(&own))
    }

    /// Name of a stored tensor and of its file, for messages.
    fn place(&self, name: &str, stored: &StoredTensor) -> String {
        let file = self.checkpoint.path(stored).file_name();
        let name = self.checkpoint.stored_name(name);
        format!("`{name}` in {}", file.unwrap_or_default().display())
    }

    /// The stored tensors of which a tensor is made, for messages.
    fn origin(&self, stored: &[StoredSource<'_>]) -> String {
        match stored {
            [] => "it is not made of stored tensors".into(),
            [one] => format!("it is made of {}", self.place(&one.name, one.stored)),
            [first, others @ ..] => format!(
                "it is made of {} and {} more",
                self.place(&first.name, first.stored),
                others.len()
            ),
        }
    }

    /// The stored tensors of a rule with their names, in which `{e}` runs over these numbers; none if the folder stores none of
    /// them.
    pub(super) fn stored<'r>(
        &'r self,
        of: RuleAt<'_, '_>,
        parts: &'r [PartRule],
        numbers: Range<u64>,
    ) -> StoredSources<'r> {
        for root in self.config.roots() {
            let found = self.stored_under(root, of, parts, numbers.clone())?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn stored_under<'r>(
        &'r self,
        root: NameRoot<'_>,
        of: RuleAt<'_, '_>,
        parts: &'r [PartRule],
        numbers: Range<u64>,
    ) -> StoredSources<'r> {
        let mut found = Vec::new();
        let mut missing = None;
        let from = fill_expressions(&of.group.from, of.at);
        for part in parts {
            let template = format!("{from}{}{}", part.from.value, of.ending);
            let template = self.config.name_under(root, &template);
            let template = fill_indices(&template, &of.at.indices);
            for e in numbers.clone() {
                let name = fill_indices(&template, &[("e", e)]);
                match self.checkpoint.get(&name) {
                    Some(stored) if stored.shape.contains(&0) => {
                        return Err(format!("{name} has the shape {:?}", stored.shape));
                    }
                    Some(stored) => found.push(StoredSource {
                        packing: self.packed.packing(&name)?,
                        name,
                        taken: &part.taken,
                        stored,
                    }),
                    None => missing = missing.or(Some(name)),
                }
                // A count larger than the folder's number ends at the first missing tensor.
                if missing.is_some() {
                    break;
                }
            }
        }
        match (found.first(), missing) {
            (None, _) => Ok(None),
            (Some(one), Some(missing)) => Err(format!(
                "{} is stored, but `{missing}` is not",
                self.place(&one.name, one.stored)
            )),
            (Some(_), None) => Ok(Some(found)),
        }
    }
}

/// A tensor whose elements follow from their indices.
fn computed(shape: &[Expr], RuleAt { rule, at, .. }: RuleAt<'_, '_>) -> Result<MadeTensor, String> {
    let each = rule
        .each
        .as_ref()
        .ok_or("`each`, which gives the elements, is missing")?;
    let sizes = shape.iter().map(|size| at.size(size));
    let shape = sizes.collect::<Result<Vec<u64>, String>>()?;
    let computed = ComputedTensor::new(&shape, each, at)?;
    Ok(MadeTensor {
        shape,
        ty: TensorType::F32,
        data: TensorData::Lazy(Arc::new(computed)),
        origin: None,
    })
}

/// The view of a stored tensor's elements that a rule takes.
pub(super) fn view(
    taken: &ElementSlice,
    shape: &[u64],
    at: &ConfigScope<'_>,
) -> Result<View, String> {
    let mut shape = shape.to_vec();
    let mut begin = 0;
    if let Some((from, to)) = &taken.rows {
        let part = View::whole(&shape).slice(at.size(from)?, at.size(to)?)?;
        begin = part.offset;
        shape = part.shape();
    }
    let mut view = match &taken.rearrange {
        Some(pattern) => {
            let sizes = taken.sizes.iter();
            let sizes = sizes.map(|(name, size)| Ok((name.as_str(), at.size(size)?)));
            let sizes = sizes.collect::<Result<_, String>>()?;
            let take = taken.take.iter();
            let take =
                take.map(|(name, (from, to))| Ok((name.as_str(), (at.size(from)?, at.size(to)?))));
            let take = take.collect::<Result<_, String>>()?;
            pattern.value.view(&shape, &sizes, &take)?
        }
        None => View::whole(&shape),
    };
    view.offset += begin;
    if let Some(index) = &taken.at {
        view = view.at(at.size(index)?)?;
    }
    if let Some((begin, end)) = &taken.slice {
        view = view.slice(at.size(begin)?, at.size(end)?)?;
    }
    Ok(view)
}
