//! Scenes about some layers: what they see, keep, share and pick.

use std::collections::{BTreeMap, BTreeSet};

use super::super::words;
use super::{Loan, Picture, SMALL, Scene, Stage, View, WINDOW, has_keys, is_recurrent, scene};
use crate::blocks::cache::{Cache, Window};

use crate::plan::{BLOCK_LEN, CachePlan, KeyValuePlan, StatePlan, Unit};

/// Tokens at the end of the text whose views are drawn.
const VIEWS: u32 = 4;

impl Stage<'_, '_> {
    /// One scene for each group of layers that sees a window.
    pub(super) fn windows(&self) -> Vec<Scene> {
        let caches = self.maker.plan.caches.iter().enumerate();
        let windows = caches.filter(|(_, cache)| cache.window().is_some());
        let scenes = windows.filter_map(|(at, cache)| {
            let kinds = self.kinds(|unit| rows(unit).is_some_and(|rows| rows.cache == at));
            (!kinds.is_empty()).then(|| self.window(cache, kinds))
        });
        scenes.collect()
    }

    fn window(&self, cache: &CachePlan, kinds: Vec<usize>) -> Scene {
        let plan = self.maker.plan;
        let rule = words::rule(plan, &cache.unit);
        let small = words::small(plan, &cache.unit, SMALL);
        let views = (WINDOW - VIEWS..WINDOW).map(|query| View {
            query,
            keys: small.visible(query, WINDOW),
        });
        let (title, name) = match rule.window {
            Window::Standard => ("Sliding window", "standard"),
            Window::Chunked => ("Chunks", "chunked"),
            Window::Symmetric => ("Window to both sides", "symmetric"),
        };
        let lets_go = self.goes_on() && rule.causal;
        let mut facts = Vec::new();
        if lets_go {
            facts.push(format!("keys are let go of in blocks of {BLOCK_LEN}"));
        }
        if plan.caches.len() > 1 {
            facts.push(format!("group of layers: {}", cache.name));
        }
        let picture = Picture::Window {
            rule: name,
            lets_go,
            views: views.collect(),
        };
        Scene {
            facts,
            kinds,
            ..scene(
                title,
                sees(&rule, &self.size_text(cache, &rule), lets_go),
                picture,
            )
        }
    }

    /// The positions of a window, of a band those on each side.
    fn size_text(&self, cache: &CachePlan, rule: &Cache) -> String {
        match (rule.window, self.number(rule.size)) {
            (Window::Symmetric, Some(size)) => (size / 2).to_string(),
            (Window::Symmetric, None) => format!("{}/2", self.maker.size(&cache.unit, "size")),
            (_, Some(size)) => size.to_string(),
            (_, None) => self.maker.size(&cache.unit, "size"),
        }
    }

    /// Whether all such blocks keep as much.
    fn are_alike(&self, is_such: impl Fn(&Unit) -> bool) -> bool {
        let sizes = |unit: &Unit| match unit.state.as_ref() {
            Some(StatePlan::KeyValue(rows)) => vec![rows.k, rows.v],
            Some(StatePlan::Recurrent(parts)) => parts.iter().map(|part| part.size).collect(),
            None => Vec::new(),
        };
        let mut units = self.units().filter(|(_, unit)| is_such(unit));
        let first = units.next().map(|(_, unit)| sizes(unit));
        units.all(|(_, unit)| Some(sizes(unit)) == first)
    }

    /// A number of the file, if there is one.
    fn number(&self, n: u64) -> Option<u64> {
        Some(n).filter(|_| !self.maker.is_symbolic)
    }

    /// Layers that read what others keep.
    pub(super) fn shared(&self) -> Option<Scene> {
        let mut loans: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, unit) in self.units() {
            let owner = rows(unit).and_then(|rows| rows.owner.as_deref());
            if let Some(owner) = owner.and_then(|path| self.layer_of(path)) {
                loans.entry(owner).or_default().push(at);
            }
        }
        let readers = loans.values().flatten().map(|at| self.of_layer[*at]);
        let kinds: BTreeSet<usize> = readers.collect();
        let loans = loans.into_iter();
        let loans: Vec<Loan> = loans
            .map(|(owner, readers)| Loan { owner, readers })
            .collect();
        if loans.is_empty() {
            return None;
        }
        let line = "These layers keep no keys and values of their own: they read those of an earlier \
                    layer, so less is kept and less computed.";
        let facts = loans
            .iter()
            .filter(|_| !self.maker.is_symbolic)
            .map(|loan| {
                let (n, owner) = (loan.readers.len(), loan.owner);
                match n {
                    1 => format!("one layer reads what layer {owner} keeps"),
                    n => format!("{n} layers read what layer {owner} keeps"),
                }
            });
        Some(Scene {
            facts: facts.collect(),
            kinds: kinds.into_iter().collect(),
            ..scene("Shared keys", line.into(), Picture::Shared(loans))
        })
    }

    /// Layers that keep one row for keys and values of all heads.
    pub(super) fn latent(&self) -> Option<Scene> {
        let is_latent = |unit: &Unit| rows(unit).is_some_and(|rows| rows.v_in_k);
        let (_, unit) = self.units().find(|(_, unit)| is_latent(unit))?;
        let rows = rows(unit)?;
        let is_known = self.are_alike(is_latent);
        let line = match self.goes_on() {
            true => {
                "Of each token one short row is kept instead of keys and values for every head: \
                     all heads read it, whole as keys, its begin as values."
            }
            false => {
                "Each token has one short row instead of keys and values for every head: all \
                      heads read it, whole as keys, its begin as values."
            }
        };
        let row = self.number(rows.k).zip(self.number(rows.v));
        let row = row.filter(|_| is_known);
        let mut facts = Vec::new();
        if let Some((k, v)) = row {
            facts.push(format!(
                "{k} numbers a token and layer, {v} of them also values"
            ));
        }
        let picture = Picture::Latent { row };
        Some(Scene {
            facts,
            kinds: self.kinds(is_latent),
            ..scene("Latent rows", line.into(), picture)
        })
    }

    /// One scene for each kind of block that carries a state.
    pub(super) fn states(&self) -> Vec<Scene> {
        let mut names: Vec<&'static str> = Vec::new();
        for (_, unit) in self.units().filter(|(_, unit)| is_recurrent(unit)) {
            if !names.contains(&unit.contract.0.name) {
                names.push(unit.contract.0.name);
            }
        }
        names
            .into_iter()
            .filter_map(|name| self.state(name))
            .collect()
    }

    fn state(&self, name: &'static str) -> Option<Scene> {
        let is_such = |unit: &Unit| is_recurrent(unit) && unit.contract.0.name == name;
        let (_, unit) = self.units().find(|(_, unit)| is_such(unit))?;
        let kinds = self.kinds(is_such);
        let with_keys = self.kinds(has_keys);
        let line = match kinds.iter().any(|kind| with_keys.contains(kind)) {
            true => {
                "Beside its keys, which grow with the text, a layer has one state of fixed size for \
                     each text, which every token reads and changes."
            }
            false => {
                "Instead of keys that grow with the text, a layer has one state of fixed size for \
                      each text, which every token reads and changes."
            }
        };
        let is_known = self.maker.is_symbolic || self.are_alike(is_such);
        let each = self.maker.kept(unit, &[unit]).text;
        let facts = each
            .iter()
            .filter(|_| is_known)
            .map(|text| format!("each layer {text}"));
        Some(Scene {
            facts: facts.collect(),
            kinds,
            ..scene(
                &format!("Recurrent state: {}", words::purpose(name)),
                line.into(),
                Picture::State,
            )
        })
    }

    /// One scene for each choice of so many of so many networks.
    pub(super) fn experts(&self) -> Vec<Scene> {
        let mut found: Vec<(u64, u64)> = Vec::new();
        for numbers in self.units().filter_map(|(_, unit)| picked(unit)) {
            if !found.contains(&numbers) {
                found.push(numbers);
            }
        }
        let scenes = found.into_iter().filter_map(|(used, all)| {
            let is_such = |unit: &Unit| picked(unit) == Some((used, all));
            let (_, unit) = self.units().find(|(_, unit)| is_such(unit))?;
            let of = |name: &str| self.maker.size(unit, name);
            let line = format!(
                "For each token a router picks {} of {} small networks; the weights of the others are \
                 not read for it.",
                of("used"),
                of("experts")
            );
            Some(Scene {
                kinds: self.kinds(is_such),
                ..scene(
                    "Experts",
                    line,
                    Picture::Experts {
                        numbers: self.number(used).zip(self.number(all)),
                    },
                )
            })
        });
        scenes.collect()
    }
}

/// What a unit keeps of each token, its own or another's.
pub(super) fn rows(unit: &Unit) -> Option<&KeyValuePlan> {
    match unit.state.as_ref()? {
        StatePlan::KeyValue(rows) => Some(rows),
        StatePlan::Recurrent(_) => None,
    }
}

/// Networks that a unit picks, and those it picks from.
fn picked(unit: &Unit) -> Option<(u64, u64)> {
    let is_moe = unit.contract.0.name == "moe";
    let numbers = unit.option_int("used").zip(unit.option_int("experts"));
    numbers.filter(|_| is_moe)
}

/// What is seen, in a sentence.
fn sees(rule: &Cache, n: &str, lets_go: bool) -> String {
    let seen = match (rule.window, rule.causal) {
        (Window::Standard, true) => {
            format!("A token sees only the last {n} tokens, itself included")
        }
        (Window::Standard, false) => {
            format!("A token sees the last {n} tokens, itself included, and all that follow")
        }
        (Window::Chunked, true) => {
            format!(
                "Texts are cut into chunks of {n} tokens: a token sees back to where its chunk begins"
            )
        }
        (Window::Chunked, false) => {
            format!(
                "Texts are cut into chunks of {n} tokens: a token sees its chunk and all that follow"
            )
        }
        (Window::Symmetric, true) => format!("A token sees itself and the {n} tokens before it"),
        (Window::Symmetric, false) => {
            format!("A token sees itself and at most {n} tokens to each side")
        }
    };
    match lets_go {
        true => format!("{seen}; keys further back are let go of."),
        false => format!("{seen}."),
    }
}
