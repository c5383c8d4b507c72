//! Layers that are equal but for their index, and the pattern they make.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use crate::arch::{Resolved, StateSpec};
use crate::ggml::{GraphOp, Origin};
use crate::plan::{LayerPlan, Plan, StatePlan};

/// A piece of the stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Run {
    /// Layers of one kind, one after the other.
    Layers {
        /// The kind.
        kind: usize,
        /// How many.
        count: usize,
    },
    /// Pieces that follow each other several times.
    Repeat {
        /// How often.
        count: usize,
        /// What.
        of: Vec<Self>,
    },
}

/// The kind of each layer: equal numbers for layers that are equal but for their index and their factors.
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

/// The weights that several layers of the file use: no index in their names is that of a layer.
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

/// The operations of a layer with what they read.
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
                // What other layers give is as far away as it happens to be.
                Origin::Op(at) => {
                    write!(out, " {:?}", own.binary_search(at).map(|at| op - at).ok())
                }
                Origin::Leaf(_) => write!(out, " leaf"),
                Origin::Weight(at) if shared.contains(at) => {
                    write!(out, " {}", plan.tensors[*at].name)
                }
                Origin::Weight(at) => {
                    write!(out, " {}", without_index(&plan.tensors[*at].name, layer.il))
                }
            };
        }
    }
    out
}

/// What the blocks of a layer choose and keep, without factors.
fn choices_text(layer: &LayerPlan) -> String {
    let mut out = String::new();
    for unit in layer
        .slots
        .iter()
        .flat_map(|slot| &slot.branches)
        .map(|b| &b.block)
    {
        let contract = unit.contract.0;
        let layer_option = match contract.state {
            StateSpec::KeyValue { layer, .. } => layer,
            _ => None,
        };
        for (spec, option) in contract.options.iter().zip(&unit.options) {
            if !matches!(option, Resolved::Float(_)) && Some(spec.name) != layer_option {
                let _ = write!(out, " {option:?}");
            }
        }
        if let Some(StatePlan::KeyValue(rows)) = &unit.state {
            let _ = write!(out, " {:?}", (rows.cache, rows.owner.is_some()));
        }
    }
    out
}

/// Whether a path is another one or lies below it.
pub(super) fn is_within(path: &str, of: &str) -> bool {
    path.strip_prefix(of)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// A name without the index of its layer.
pub(super) fn without_index(name: &str, il: u64) -> String {
    let own = format!(".{il}.");
    if let Some(start) = name.strip_suffix(&format!(".{il}")) {
        return format!("{start}.{{il}}");
    }
    name.replacen(&own, ".{il}.", 1)
}

/// Runs of equal kinds, and repetitions of runs, counted.
pub(super) fn pattern(kinds: &[usize]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for kind in kinds {
        match runs.last_mut() {
            Some(Run::Layers { kind: last, count }) if last == kind => *count += 1,
            _ => runs.push(Run::Layers {
                kind: *kind,
                count: 1,
            }),
        }
    }
    // Repetitions of repetitions, until nothing changes.
    loop {
        let shorter = repeats(&runs);
        if shorter.len() == runs.len() {
            return runs;
        }
        runs = shorter;
    }
}

/// Longest repeated period: more would be no pattern that a reader sees.
const MAX_PERIOD: usize = 16;

fn repeats(runs: &[Run]) -> Vec<Run> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < runs.len() {
        let rest = &runs[at..];
        let times = |period: usize| {
            let chunks = rest.chunks_exact(period);
            chunks.take_while(|c| *c == &rest[..period]).count()
        };
        // The most runs covered; of those the shortest period.
        let best = (1..=MAX_PERIOD.min(rest.len() / 2))
            .map(|period| (period, times(period)))
            .filter(|(_, count)| *count > 1)
            .max_by_key(|(period, count)| (period * count, usize::MAX - period));
        match best {
            Some((period, count)) => {
                out.push(Run::Repeat {
                    count,
                    of: rest[..period].to_vec(),
                });
                at += period * count;
            }
            None => {
                out.push(rest[0].clone());
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(runs: &[Run]) -> String {
        let one = |run: &Run| match run {
            Run::Layers { kind, count } => format!("{count}{}", (b'A' + *kind as u8) as char),
            Run::Repeat { count, of } => format!("{count}x[{}]", show(of)),
        };
        runs.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    fn check(kinds: &[usize], expected: &str) {
        assert_eq!(show(&pattern(kinds)), expected);
    }

    /// The layers that a pattern stands for.
    fn expand(runs: &[Run]) -> Vec<usize> {
        runs.iter()
            .flat_map(|run| match run {
                Run::Layers { kind, count } => vec![*kind; *count],
                Run::Repeat { count, of } => expand(of).repeat(*count),
            })
            .collect()
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
            let kinds: Vec<usize> = (0..n)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 30) as usize
                })
                .collect();
            assert_eq!(expand(&pattern(&kinds)), kinds);
        }
    }

    #[test]
    fn only_the_index_of_the_layer_is_left_out() {
        assert_eq!(without_index("layers.3.attn.q", 3), "layers.{il}.attn.q");
        assert_eq!(without_index("layers.3", 3), "layers.{il}");
        assert_eq!(
            without_index("blk.3.ffn.3.weight", 3),
            "blk.{il}.ffn.3.weight"
        );
        assert_eq!(without_index("blk.13.up", 3), "blk.13.up");
    }
}
