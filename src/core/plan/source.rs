//! Plans the source of sequences: the layers that read it, and the blocks that attend to the result of these layers.

use std::collections::HashMap;

use super::facts::LayerScope;
use super::planner::{Planned, Planner};
use super::{KeyTokens, LayerPlan, SourcePlan, StatePlan, Unit};
use crate::arch::expr::Value;
use crate::arch::{Branch, ResolvedOption, START_TOKEN, TAPS};

impl Planner<'_> {
    /// The width of the second input of a branch: a tap, or a value that the layers that read the source saved.
    pub(super) fn side(&mut self, branch: &Branch, path: &str, width: u64) -> Planned<u64> {
        let tap = branch.side.as_ref();
        let of_source = tap.and_then(|tap| self.source_taps.get(&tap.value).copied());
        match of_source.filter(|_| branch.block.contract.takes_source()) {
            Some(width) => {
                self.source_keys.insert(path.to_owned());
                Ok(width)
            }
            None => self.tap(tap, path, width),
        }
    }

    /// Ends the layers that read the source: only blocks that make keys of the source may read the values that these
    /// layers saved.
    pub(super) fn end_of_source(&mut self, n_embd: u64) {
        let own: HashMap<String, u64> = ["layer_in", "embd"]
            .into_iter()
            .map(|tap| (tap.to_owned(), n_embd))
            .collect();
        let is_saved = |tap: &String| !TAPS.contains(&tap.as_str());
        let all = std::mem::replace(&mut self.taps, own);
        self.source_taps = all.into_iter().filter(|(tap, _)| is_saved(tap)).collect();
    }

    /// The source of sequences, which `n_layers` layers read. Each group of keys belongs to the sequence or to the
    /// source.
    pub(super) fn source(
        &mut self,
        layers: &[LayerPlan],
        (n_layers, embed): (usize, &Unit),
        scope: &LayerScope<'_>,
    ) -> Planned<SourcePlan> {
        let mut known: HashMap<usize, KeyTokens> = HashMap::new();
        for (at, layer) in layers.iter().enumerate() {
            let branches = layer.slots.iter().flat_map(|slot| &slot.branches);
            for unit in branches.map(|branch| &branch.block) {
                let path = &unit.path;
                let rows = match &unit.state {
                    None => continue,
                    Some(StatePlan::KeyValue(rows)) => rows,
                    Some(StatePlan::Recurrent(_)) => {
                        self.report(format!(
                            "{path}: a model that reads a source keeps no recurrent states"
                        ));
                        continue;
                    }
                };
                let keys = match at < n_layers {
                    true => KeyTokens::Pass,
                    false if self.source_keys.contains(path) => KeyTokens::Source,
                    false => KeyTokens::Tokens,
                };
                let cache = &self.caches[rows.cache];
                let (name, has_window) = (
                    cache.name.clone(),
                    cache.window().or(cache.span()).is_some(),
                );
                let rule = ["size", "alibi"].map(|option| cache.unit.option(option).cloned());
                let is_whole = rule
                    == [
                        Some(ResolvedOption::Int(0)),
                        Some(ResolvedOption::Float(0.0)),
                    ];
                let is_causal = cache.unit.option("causal") == Some(&ResolvedOption::Bool(true));
                if *known.entry(rows.cache).or_insert(keys) != keys {
                    self.report(format!(
                        "{path}: the cache `{name}` is also one of other tokens: keys of the source, those \
                         of the layers that read it and those of the sequence each have a cache of their own"
                    ));
                }
                let problem = match keys {
                    KeyTokens::Pass if is_causal => {
                        "the layers that read the source attend to all of it: their cache is not causal"
                    }
                    KeyTokens::Source if is_causal || !is_whole => {
                        "queries attend to all keys of the source: their cache is not causal, and has no window and no ALiBi"
                    }
                    KeyTokens::Source if rows.index > 0 || rows.owner.is_some() || rows.v_in_k => {
                        "keys of the source are made by the block itself, and queries attend to all of them"
                    }
                    KeyTokens::Tokens if has_window => {
                        "a cache of a model that reads a source has no window and no keys of spans"
                    }
                    _ => continue,
                };
                self.report(format!("{path}: {problem}"));
            }
        }
        for (cache, keys) in known {
            self.caches[cache].keys = keys;
        }
        let n_vocab = self.number(scope, "n_vocab")?;
        match self.facts.param(START_TOKEN, scope, false) {
            Ok(Value::Int(start)) if (0..n_vocab as i64).contains(&start) => Ok(SourcePlan {
                embed: Unit {
                    path: format!("source.{}", embed.path),
                    ..embed.clone()
                },
                start: start as u32,
                is_rows: self.facts.def.reads_rows(),
                n_layers,
            }),
            Ok(other) => self.problem(format!(
                "`{START_TOKEN}` is {other}, expected a token below {n_vocab}"
            )),
            Err(error) => self.problem(error),
        }
    }
}
