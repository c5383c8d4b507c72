//! Scenes about bytes: what one token reads, what is kept of a text.
//!
//! Weights are those that the operations of a pass of one token read. Keys and values are 16-bit, as
//! everywhere in a drawing; states are f32.

use std::collections::BTreeMap;

use super::super::parts::CACHE_ELEMENT;
use super::super::words;
use super::layers::rows;
use super::{Held, Picture, Scene, Stage, scene};
use crate::blocks::cache::{Cache, Window};
use crate::plan::KeyValuePlan;
use crate::weights::TensorType;
use crate::wording;

/// Contexts that are shown of a model whose file says none.
const CONTEXTS: [u64; 3] = [2048, 8192, 32768];
/// Parts of the longest context that are shown.
const PARTS: [u64; 3] = [16, 4, 1];

impl Stage<'_, '_> {
    /// Bytes that a token reads.
    pub(super) fn reads(&self) -> Option<Scene> {
        let steps = self.maker.single?;
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for step in steps.iter().filter(|step| step.weight_bytes > 0) {
            let purpose = self.maker.purpose(step.kind, &step.path);
            *sums.entry(purpose).or_default() += step.weight_bytes;
        }
        let mut weights: Vec<(String, u64)> = sums.into_iter().collect();
        weights.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let has_keys = self.units().any(|(_, unit)| rows(unit).is_some());
        let contexts = self.contexts().into_iter().filter(|_| has_keys);
        let keys: Vec<(u64, u64)> = contexts.map(|n| (n, self.keys_read(n))).collect();
        let states = self.state_bytes();
        let grows = keys.first().zip(keys.last());
        let grows = grows.is_some_and(|(first, last)| last.1 > first.1);
        let same = if states > 0 {
            "weights and states"
        } else {
            "weights"
        };
        let line = match (has_keys, grows) {
            (true, true) => format!(
                "Each new token reads the same {same}, and the keys and values it sees: the longer the \
                 text, the more."
            ),
            (true, false) => format!(
                "Each new token reads the same {same}, and the keys and values it sees: no more of \
                 them in longer texts."
            ),
            (false, _) => format!("Each new token reads the same {same}, however long the text."),
        };
        let all: u64 = weights.iter().map(|(_, bytes)| bytes).sum();
        let stored = self.maker.plan.weight_bytes();
        // A row of a table that is the head as well is read for both.
        let mut facts = vec![match (wording::bytes(all), wording::bytes(stored)) {
            (_, stored_text) if all > stored => {
                format!("all {stored_text} of weights, some of them twice")
            }
            (all, stored) => format!("{all} of weights, of {stored} in the model"),
        }];
        if has_keys {
            facts.push("keys and values of 16 bits".into());
        }
        let picture = Picture::Reads {
            weights,
            keys,
            states,
        };
        Some(Scene {
            facts,
            ..scene("What one token reads", line, picture)
        })
    }

    /// Bytes that are kept of texts of some lengths.
    pub(super) fn keeps(&self) -> Option<Scene> {
        if self.maker.is_symbolic || !self.goes_on() {
            return None;
        }
        let held: Vec<Held> = self.contexts().into_iter().map(|n| self.held(n)).collect();
        let first = held.first().filter(|held| held.bytes() > 0)?;
        let grows = held.last()?.all > first.all;
        let line = match (first.all > 0, first.window > 0, first.state > 0) {
            (true, false, false) => {
                "Keys and values of every token are kept as long as the text lives."
            }
            (true, true, false) => {
                "Layers that see all keep keys and values of every token, those with a window only of \
                 the last ones."
            }
            (false, true, false) => "Only keys and values in the window are kept.",
            (true, _, true) => "Keys and values grow with the text, states do not.",
            (false, _, true) => "What is kept does not grow with the text.",
            (false, false, false) => return None,
        };
        let mut facts = Vec::new();
        if let (true, Some(per_token)) = (grows, self.per_token()) {
            facts.push(format!(
                "{} more with each token",
                wording::bytes(per_token)
            ));
        }
        if first.all + first.window > 0 {
            facts.push("keys and values of 16 bits".into());
        }
        Some(Scene {
            facts,
            ..scene("What a text keeps", line.into(), Picture::Keeps(held))
        })
    }

    /// Lengths of texts that are shown.
    fn contexts(&self) -> Vec<u64> {
        let mut contexts = match self.maker.plan.n_ctx_train {
            0 => CONTEXTS.to_vec(),
            longest => PARTS.map(|part| longest.div_ceil(part)).to_vec(),
        };
        // Positions are 32-bit.
        contexts
            .iter_mut()
            .for_each(|n| *n = (*n).min(u64::from(u32::MAX)));
        contexts.dedup();
        contexts
    }

    /// Bytes of keys and values that the last token of a text of `n` tokens reads.
    fn keys_read(&self, n: u64) -> u64 {
        let plan = self.maker.plan;
        plan.cache_bytes_read(n.saturating_sub(1), TensorType::F16, TensorType::F16)
            .unwrap_or(u64::MAX)
    }

    /// Keys that are kept of a text: at most those that one token can see.
    fn stay(&self, rows: &KeyValuePlan, n: u64) -> u64 {
        let rule = self.rule(rows);
        match (rule.size, rule.window) {
            (0, _) => n,
            (size, Window::Standard | Window::Chunked) => n.min(size),
            (size, Window::Symmetric) => n.min(size / 2 + 1),
        }
    }

    fn rule(&self, rows: &KeyValuePlan) -> Cache {
        let plan = self.maker.plan;
        words::rule(plan, &plan.caches[rows.cache].unit)
    }

    fn held(&self, n: u64) -> Held {
        let mut held = Held {
            tokens: n,
            all: 0,
            window: 0,
            state: self.state_bytes(),
        };
        for (_, rows) in self.maker.plan.key_values() {
            let bytes = row_bytes(rows).saturating_mul(self.stay(rows, n));
            let sum = match self.rule(rows).size {
                0 => &mut held.all,
                _ => &mut held.window,
            };
            *sum = sum.saturating_add(bytes);
        }
        held
    }

    /// Bytes that each token adds where all is seen.
    fn per_token(&self) -> Option<u64> {
        let grows = |rows: &&KeyValuePlan| self.rule(rows).size == 0;
        let own = self
            .maker
            .plan
            .key_values()
            .map(|(_, rows)| rows)
            .filter(grows);
        own.map(row_bytes).reduce(u64::saturating_add)
    }

    fn state_bytes(&self) -> u64 {
        self.maker.plan.recurrent_bytes(1).unwrap_or(u64::MAX)
    }
}

/// Bytes of a token's keys and values in one layer.
fn row_bytes(rows: &KeyValuePlan) -> u64 {
    let values = if rows.v_in_k { 0 } else { rows.v };
    rows.k.saturating_add(values).saturating_mul(CACHE_ELEMENT)
}
