//! Groups layers that are equal except for their index, finds the pattern that they form, and labels the groups.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Write;

use super::context::DrawContext;
use super::{LayerKind, Slot};
use lab_base::ggml::{GraphOp, OpSource};
use lab_core::arch::{ResolvedOption, StateSpec, WeightRole};
use lab_core::plan::{BranchPlan, LayerPlan, Plan, StatePlan};

/// Consecutive layers of a stack, or a sequence of them that repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayerPattern {
    /// Consecutive layers of one kind.
    Layers { kind: usize, count: usize },
    /// A sequence of fragments that repeats.
    Repeat { count: usize, of: Vec<Self> },
}

/// The kind of each layer: layers have equal numbers if they are equal except for their index and their factors.
pub(super) fn kinds(plan: &Plan, steps: &[GraphOp]) -> Vec<usize> {
    let mut known: HashMap<String, usize> = HashMap::new();
    let shared = shared(plan);
    let of_layer = |layer: &LayerPlan| {
        let text = graph_text((plan, &shared), layer, steps) + &choices_text(layer);
        let next = known.len();
        *known.entry(text).or_insert(next)
    };
    plan.layers.iter().map(of_layer).collect()
}

/// The weights that several layers use. Their names contain no index of a layer.
fn shared(plan: &Plan) -> HashSet<usize> {
    let mut users: HashMap<usize, HashSet<(usize, u64)>> = HashMap::new();
    for layer in &plan.layers {
        let branches = layer.slots.iter().flat_map(|slot| &slot.branches);
        for weight in branches.flat_map(|branch| branch.block.weights.iter().flatten()) {
            let of_weight = users.entry(*weight).or_default();
            of_weight.insert((layer.stack, layer.il));
        }
    }
    let several = users.into_iter().filter(|(_, layers)| layers.len() > 1);
    several.map(|(weight, _)| weight).collect()
}

/// The operations of a layer with their sources, as text.
fn graph_text(
    (plan, shared): (&Plan, &HashSet<usize>),
    layer: &LayerPlan,
    steps: &[GraphOp],
) -> String {
    let own = (0..steps.len()).filter(|at| is_within(&steps[*at].path, &layer.path));
    let own: Vec<usize> = own.collect();
    let mut out = String::new();
    for (op, step) in own.iter().map(|at| &steps[*at]).enumerate() {
        let path = without_index(&step.path, layer.depth);
        let _ = write!(out, "{}{:?}{}{path}", step.op, step.shape, step.kind);
        for source in &step.sources {
            let _ = match source {
                // Values from other layers are written without their distance, which depends on the graph.
                OpSource::Op(at) => {
                    write!(out, " {:?}", own.binary_search(at).map(|at| op - at).ok())
                }
                OpSource::Leaf(_) => write!(out, " leaf"),
                OpSource::Weight(at) if shared.contains(at) => {
                    write!(out, " {}", plan.tensors[*at].name)
                }
                OpSource::Weight(at) => {
                    write!(out, " {}", without_index(&plan.tensors[*at].name, layer.il))
                }
            };
        }
    }
    out
}

/// The slots of a layer, and the options and states of its blocks, as text without factors. A slot may have no operation.
fn choices_text(layer: &LayerPlan) -> String {
    let mut out = String::new();
    for slot in &layer.slots {
        let _ = write!(out, " {}", without_index(&slot.path, layer.depth));
    }
    for branch in layer.slots.iter().flat_map(|slot| &slot.branches) {
        let (unit, contract) = (&branch.block, branch.block.contract.0);
        let layer_option = match contract.state {
            StateSpec::KeyValue { layer, .. } => layer,
            _ => None,
        };
        for (spec, option) in contract.options.iter().zip(&unit.options) {
            if !matches!(option, ResolvedOption::Float(_)) && Some(spec.name) != layer_option {
                let _ = write!(out, " {option:?}");
            }
        }
        if let Some(StatePlan::KeyValue(rows)) = &unit.state {
            let _ = write!(out, " {:?}", (rows.cache, rows.owner.is_some()));
        }
    }
    out
}

/// Whether a path equals another one or lies below it.
pub(super) fn is_within(path: &str, of: &str) -> bool {
    path.strip_prefix(of)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

pub(super) fn without_index(name: &str, il: u64) -> String {
    match name.strip_suffix(&format!(".{il}")) {
        Some(start) => format!("{start}.{{il}}"),
        None => name.replacen(&format!(".{il}."), ".{il}.", 1),
    }
}

/// The pattern of kinds: runs of equal kinds, and repetitions of runs, with their counts.
pub(super) fn pattern(kinds: &[usize]) -> Vec<LayerPattern> {
    let alike = kinds.chunk_by(|a, b| a == b);
    let runs = alike.map(|of| (of[0], of.len()));
    let runs = runs.map(|(kind, count)| LayerPattern::Layers { kind, count });
    let mut runs: Vec<LayerPattern> = runs.collect();
    // Repetitions may contain repetitions, so this runs until nothing changes.
    loop {
        let shorter = repeats(&runs);
        if shorter.len() == runs.len() {
            return runs;
        }
        runs = shorter;
    }
}

/// Maximum period of a repetition: a longer one is not recognisable as a pattern.
const MAX_PERIOD: usize = 16;

fn repeats(runs: &[LayerPattern]) -> Vec<LayerPattern> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < runs.len() {
        let rest = &runs[at..];
        let times = |period: usize| {
            let chunks = rest.chunks_exact(period);
            chunks.take_while(|c| *c == &rest[..period]).count()
        };
        // The repetition that covers the most runs; of equal ones, the shortest period.
        let best = (1..=MAX_PERIOD.min(rest.len() / 2))
            .map(|period| (period, times(period)))
            .filter(|(_, count)| *count > 1)
            .max_by_key(|(period, count)| (period * count, usize::MAX - period));
        let (run, n) = match best {
            Some((period, count)) => {
                let of = rest[..period].to_vec();
                (LayerPattern::Repeat { count, of }, period * count)
            }
            None => (rest[0].clone(), 1),
        };
        out.push(run);
        at += n;
    }
    out
}

impl DrawContext<'_> {
    pub(super) fn tell_apart(&self, kinds: &mut [LayerKind]) {
        /// Maximum number of distinguishing facts in a label.
        const SHOWN: usize = 2;
        let layer = |kind: &LayerKind| &self.plan.layers[kind.layers[0]];
        let mut labels: Vec<String> = kinds.iter().map(|kind| self.label(layer(kind))).collect();
        let plain = labels.clone();
        for (at, label) in labels.iter_mut().enumerate() {
            let likes = (0..kinds.len()).filter(|other| plain[*other] == plain[at]);
            let likes: Vec<&LayerKind> = likes.map(|other| &kinds[other]).collect();
            if likes.len() < 2 {
                continue;
            }
            let own = traits(&kinds[at]);
            let common = likes.iter().map(|kind| traits(kind));
            let common = common.reduce(|a, b| &a & &b).unwrap_or_default();
            let special: Vec<&str> = own.difference(&common).map(String::as_str).collect();
            if !special.is_empty() {
                let shown = &special[..special.len().min(SHOWN)];
                label.push_str(&format!(", {}", shown.join(", ")));
            }
        }
        for (kind, label) in kinds.iter_mut().zip(labels) {
            kind.label = label;
        }
    }

    fn label(&self, layer: &LayerPlan) -> String {
        let block = |branch: &BranchPlan| {
            let name = branch.short();
            let Some(StatePlan::KeyValue(rows)) = &branch.block.state else {
                return name;
            };
            let group = match self.plan.caches.len() {
                0 | 1 => String::new(),
                _ => format!("{} ", self.plan.caches[rows.cache].name),
            };
            let shared = match rows.owner {
                Some(_) => " with a shared KV cache",
                None => "",
            };
            format!("{group}{name}{shared}")
        };
        // A block without matrices only scales and adds, so labels leave it out.
        let is_factor = |branch: &BranchPlan| {
            let weights = branch.block.contract.0.weights;
            weights.iter().all(|spec| spec.role != WeightRole::Matrix)
        };
        let slots = layer.slots.iter();
        let slots = slots.filter(|slot| !slot.branches.iter().all(is_factor));
        let slots = slots.map(|slot| {
            let blocks: Vec<String> = slot.branches.iter().map(block).collect();
            blocks.join(" alongside ")
        });
        let slots: Vec<String> = slots.collect();
        match slots.is_empty() {
            true => "nothing".into(),
            false => slots.join(" + "),
        }
    }
}

/// The facts about a kind that may distinguish it from others.
fn traits(kind: &LayerKind) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    for part in kind.slots.iter().flat_map(Slot::parts) {
        out.extend(part.facts.iter().cloned());
        out.extend(part.weights.iter().map(|w| format!("with {}", w.key)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(runs: &[LayerPattern]) -> String {
        let one = |run: &LayerPattern| match run {
            LayerPattern::Layers { kind, count } => {
                format!("{count}{}", (b'A' + *kind as u8) as char)
            }
            LayerPattern::Repeat { count, of } => format!("{count}x[{}]", show(of)),
        };
        runs.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    fn check(kinds: &[usize], expected: &str) {
        assert_eq!(show(&pattern(kinds)), expected);
    }

    fn expand(runs: &[LayerPattern]) -> Vec<usize> {
        let one = |run: &LayerPattern| match run {
            LayerPattern::Layers { kind, count } => vec![*kind; *count],
            LayerPattern::Repeat { count, of } => expand(of).repeat(*count),
        };
        runs.iter().flat_map(one).collect()
    }

    #[test]
    fn runs_and_periods_are_counted() {
        check(&[0; 32], "32A");
        check(&[0, 1, 1], "1A 2B");
        let six = [0, 0, 0, 0, 0, 1].repeat(6);
        check(&six, "6x[5A 1B]");
        let with_rest = [six, vec![0, 0]].concat();
        check(&with_rest, "6x[5A 1B] 2A");
        check(&[2, 2, 2, 0, 1, 0, 1], "3C 2x[1A 1B]");
    }

    #[test]
    fn a_pattern_stands_for_its_layers() {
        let mut state = 7u32;
        for n in 1..120 {
            let mut kind = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 30) as usize
            };
            let kinds: Vec<usize> = (0..n).map(|_| kind()).collect();
            assert_eq!(expand(&pattern(&kinds)), kinds);
        }
    }

    #[test]
    fn only_the_index_of_the_layer_is_left_out() {
        let check = |name: &str, left: &str| assert_eq!(without_index(name, 3), left);
        check("layers.3.attn.q", "layers.{il}.attn.q");
        check("layers.3", "layers.{il}");
        check("blk.3.ffn.3.weight", "blk.{il}.ffn.3.weight");
        check("blk.13.up", "blk.13.up");
    }
}
