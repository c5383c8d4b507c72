//! Selects the scenes that are true for a model, and fills them with data.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::{BytesHeld, BytesRead, MASK_TOKENS, SMALL_WINDOW, Scene, ScenePicture, TEXT_TOKENS};
use crate::describe::pooling_phrase;
use crate::diagram::context::DrawContext;
use crate::diagram::kinds::is_within;
use crate::diagram::words;
use lab_base::util::wording;
use lab_base::weights::TensorType;
use lab_core::arch::{Mode, ParamSource};
use lab_core::blocks::cache::{CacheOptions, Window};
use lab_core::engine::Remasking;
use lab_core::model::Options;
use lab_core::plan::{BLOCK_LEN, CachePlan, KeyTokens, Pooling, StatePlan, Unit};

/// Number of tokens at the end of the text whose keys are drawn.
const VIEWS: u32 = 4;

fn is_recurrent(unit: &Unit) -> bool {
    matches!(&unit.state, Some(StatePlan::Recurrent(_)))
}

/// The number of experts that a unit uses per token, and the number it has.
fn picked(unit: &Unit) -> Option<(u64, u64)> {
    unit.option_int("used").zip(unit.option_int("stored"))
}

/// The memory that passes write or read, after `before`; empty if there is none.
fn memory(before: &str, [keys, states]: &[Vec<usize>; 2]) -> String {
    let what = match (keys.is_empty(), states.is_empty()) {
        (false, true) => "the KV cache",
        (true, false) => "the recurrent states",
        (false, false) => "the KV cache and the recurrent states",
        (true, true) => return String::new(),
    };
    format!("{before}{what}")
}

impl<'p> DrawContext<'p> {
    pub(in crate::diagram) fn scenes(&self) -> Vec<Scene> {
        let mut all = match self.plan.mode {
            Mode::Causal => vec![self.prefill(), self.decode()],
            Mode::Encoder => vec![self.encoding()],
            Mode::Diffusion => vec![self.whole_pass(), self.denoising()],
        };
        all.extend(self.windows());
        all.extend(self.shared());
        all.extend(self.latent());
        all.extend(self.states());
        all.extend(self.experts());
        all.extend(self.reads());
        all.extend(self.keeps());
        all
    }

    /// Every block with its layer, in the order of execution.
    fn units(&self) -> impl Iterator<Item = (usize, &'p Unit)> + use<'p> {
        let layers = self.plan.layers.iter().enumerate();
        let slots = layers.flat_map(|(at, layer)| layer.slots.iter().map(move |slot| (at, slot)));
        slots.flat_map(|(at, slot)| slot.branches.iter().map(move |branch| (at, &branch.block)))
    }

    /// The kinds of layers that contain a block for which `holds` is true.
    fn kinds(&self, holds: impl Fn(&Unit) -> bool) -> Vec<usize> {
        let units = self.units().filter(|(_, unit)| holds(unit));
        let kinds: BTreeSet<usize> = units.map(|(at, _)| self.of_layer[at]).collect();
        kinds.into_iter().collect()
    }

    fn prefill(&self) -> Scene {
        let kinds = self.kept_kinds(false);
        let (title, tokens) = match self.plan.source {
            None => ("Prefill", "The tokens of a prompt go through all layers"),
            Some(_) => (
                "Source, then tokens",
                "The whole source goes through the layers that read it in one pass, and the keys and values of it \
                 that other layers attend to are kept. Tokens go through those layers",
            ),
        };
        let line = format!(
            "{tokens} together, at most {} in a pass{}.",
            Options::N_BATCH,
            memory(", and write ", &kinds)
        );
        Scene::new(title, line, ScenePicture::Prefill(kinds))
    }

    /// The kinds of layers that write or read keys that are kept between passes, and of those that have a state.
    fn kept_kinds(&self, is_read: bool) -> [Vec<usize>; 2] {
        let is_kept = |cache: usize| self.plan.caches[cache].keys != KeyTokens::Pass;
        let keys = self.kinds(|unit| {
            let rows = unit.key_values();
            rows.is_some_and(|rows| (is_read || rows.owner.is_none()) && is_kept(rows.cache))
        });
        [keys, self.kinds(is_recurrent)]
    }

    fn decode(&self) -> Scene {
        let kinds = self.kept_kinds(true);
        let line = format!(
            "Each pass generates one token: it reads the weights that the token uses{}.",
            memory(", and ", &kinds)
        );
        Scene::new("Decode", line, ScenePicture::Decode(kinds))
    }

    /// The picture of a pass over a whole text, and the tokens that each one attends to in words.
    fn whole(&self, pooling: Option<Pooling>) -> (ScenePicture, &'static str) {
        let plan = self.plan;
        let seen = (0..MASK_TOKENS).map(|query| {
            let caches = plan.caches.iter();
            let rules = caches.map(|cache| words::small(plan, &cache.unit, MASK_TOKENS / 2));
            let views = rules.map(|rule| rule.visible(query, MASK_TOKENS));
            let all = views.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
            all.unwrap_or_default()
        });
        let seen: Vec<Range<u32>> = seen.collect();
        let whom = match seen.iter().all(|keys| *keys == (0..MASK_TOKENS)) {
            true => "all others, before and after it",
            false => "those around it, before and after it",
        };
        (ScenePicture::Whole { seen, pooling }, whom)
    }

    fn encoding(&self) -> Scene {
        let pooling = self.plan.pooling();
        let (picture, whom) = self.whole(Some(pooling));
        let param = self.def.params.get("pooling");
        let is_key = param.is_some_and(|p| matches!(p.source, ParamSource::Key { .. }));
        let by = match self.is_symbolic && is_key {
            true => "by `pooling` of the file, here ",
            false => "",
        };
        let line = format!(
            "The whole text goes through all layers in one pass: every token attends to {whom}."
        );
        Scene::new("Encoding", line, picture)
            .with_facts([format!(
                "embedding of the text: {by}{}",
                pooling_phrase(pooling)
            )])
            .with_facts(["nothing is kept between passes"])
    }

    fn whole_pass(&self) -> Scene {
        let (picture, whom) = self.whole(None);
        let line = format!(
            "The whole text goes through all layers at once: every token attends to {whom}, and each mask \
             gets logits."
        );
        let shift = self.plan.diffusion.filter(|plan| plan.shift_logits);
        Scene::new("One denoising step", line, picture)
            .with_facts(shift.map(|_| "logits of a token are of the token after it"))
    }

    fn denoising(&self) -> Scene {
        let line = "The answer starts as masks. Each denoising step reads all of the text again and unmasks \
                    some positions, block after block.";
        let diffusion = self.plan.diffusion;
        let rule = diffusion.map(|plan| match Remasking::usual(plan.shift_logits) {
            Remasking::LowConfidence => "unmasked first: the highest probability",
            Remasking::Margin => "unmasked first: the largest margin over the second token",
            Remasking::Entropy => "unmasked first: the lowest entropy",
            Remasking::Random => "unmasked in random order",
            Remasking::None => "each mask is unmasked at random by itself",
        });
        let kept = "nothing is kept between steps, unless approximate_cache is set";
        Scene::new("Text diffusion", line, ScenePicture::Denoising)
            .with_facts(rule)
            .with_facts([kept])
    }

    /// One scene for each group of layers that attends to a window.
    fn windows(&self) -> Vec<Scene> {
        let caches = self.plan.caches.iter().enumerate();
        let scenes = caches.filter_map(|(at, cache)| {
            cache.window()?;
            let kinds = self.kinds(|unit| unit.key_values().is_some_and(|rows| rows.cache == at));
            self.window(cache).of(kinds)
        });
        scenes.collect()
    }

    fn window(&self, cache: &CachePlan) -> Scene {
        let plan = self.plan;
        let rule = words::small(plan, &cache.unit, SMALL_WINDOW);
        let last = TEXT_TOKENS - VIEWS..TEXT_TOKENS;
        let rows = last.map(|query| (query, rule.visible(query, TEXT_TOKENS)));
        let (title, name) = match rule.window {
            Window::Standard => ("Sliding window", "standard"),
            Window::Chunked => ("Chunked attention", "chunked"),
            Window::Symmetric => ("Two-sided window", "symmetric"),
        };
        let blocks = format!("earlier keys are evicted in blocks of {BLOCK_LEN}");
        let group = format!("group of layers: {}", cache.name);
        let picture = ScenePicture::Window {
            rule: name,
            evicts: rule.causal,
            rows: rows.collect(),
        };
        let line = format!("A token attends to {}.", self.seen(cache));
        Scene::new(title, line, picture)
            .with_facts(rule.causal.then_some(blocks))
            .with_facts((plan.caches.len() > 1).then_some(group))
    }

    fn shared(&self) -> Option<Scene> {
        let mut loans: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let layers = &self.plan.layers;
        for (at, unit) in self.units() {
            let owner = unit.key_values().and_then(|rows| rows.owner.as_deref());
            let of = |path: &str| layers.iter().position(|layer| is_within(path, &layer.path));
            if let Some(owner) = owner.and_then(of) {
                loans.entry(owner).or_default().push(at);
            }
        }
        let kinds = loans.values().flatten().map(|at| self.of_layer[*at]);
        let kinds: BTreeSet<usize> = kinds.collect();
        let known = loans.iter().filter(|_| !self.is_symbolic);
        let facts = known.map(|(owner, readers)| {
            let n = readers.len();
            format!("read the KV cache of layer {owner}: {n}")
        });
        let facts: Vec<String> = facts.collect();
        let line =
            "These layers write no keys and values: they read the KV cache of an earlier layer.";
        let scene = Scene::new("Shared KV cache", line, ScenePicture::Shared(loans));
        scene.with_facts(facts).of(kinds.into_iter().collect())
    }

    /// One scene for each size of the row that all heads share as keys and values.
    fn latent(&self) -> Vec<Scene> {
        let size = |unit: &Unit| unit.key_values().filter(|r| r.v_in_k).map(|r| (r.k, r.v));
        let found: BTreeSet<(u64, u64)> = self.units().filter_map(|(_, unit)| size(unit)).collect();
        let line = "Each token has one latent row instead of keys and values per head: all heads read the \
                    whole row as keys and its first elements as values.";
        let fact = |(k, v)| format!("{k} elements per token and layer, {v} of them also values");
        let scene = |of: (u64, u64)| {
            let row = self.known(of);
            let scene = Scene::new("Latent KV cache", line, ScenePicture::Latent(row));
            let facts = scene.with_facts(row.map(fact));
            facts.of(self.kinds(|unit| size(unit) == Some(of)))
        };
        found.into_iter().filter_map(scene).collect()
    }

    /// One scene for each kind of block that carries a state.
    fn states(&self) -> Vec<Scene> {
        let mut found: BTreeMap<&'static str, BTreeMap<Vec<u64>, &Unit>> = BTreeMap::new();
        for (_, unit) in self.units() {
            if let Some(StatePlan::Recurrent(parts)) = &unit.state {
                let sizes = parts.iter().map(|part| part.size).collect();
                let own = found.entry(unit.contract.0.name).or_default();
                own.entry(sizes).or_insert(unit);
            }
        }
        let scene = |(name, by_size): (&'static str, BTreeMap<Vec<u64>, &Unit>)| {
            // Sizes are stated if all blocks have the same.
            let alike = by_size.values().next().filter(|_| by_size.len() == 1);
            let facts = alike.map(|unit| self.kept(unit, 1).text);
            let line = "A layer has one state of fixed size for each sequence, which every token reads and \
                        changes.";
            let title = format!("Recurrent state: {}", words::purpose(name));
            Scene::new(title, line, ScenePicture::State)
                .with_facts(facts.unwrap_or_default())
                .of(self.kinds(|unit| is_recurrent(unit) && unit.contract.0.name == name))
        };
        found.into_iter().filter_map(scene).collect()
    }

    /// One scene for each pair of used and stored numbers of experts.
    fn experts(&self) -> Vec<Scene> {
        let found = self.units().filter_map(|(_, unit)| picked(unit));
        let found: BTreeSet<(u64, u64)> = found.collect();
        let scenes = found.into_iter().filter_map(|(used, all)| {
            let is_such = |unit: &Unit| picked(unit) == Some((used, all));
            let (_, unit) = self.units().find(|(_, unit)| is_such(unit))?;
            let [n_used, n_all] = ["used", "stored"].map(|name| self.size(unit, name));
            let line = format!(
                "For each token a router selects {n_used} of {n_all} experts; the weights of the others are \
                 not read."
            );
            let picture = ScenePicture::Experts(self.known((used, all)));
            Scene::new("Mixture of experts", line, picture).of(self.kinds(is_such))
        });
        scenes.collect()
    }

    fn reads(&self) -> Option<Scene> {
        let steps = self.sample.single.as_ref()?;
        let plan = self.plan;
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for step in steps.iter().filter(|step| step.weight_bytes > 0) {
            let purpose = self.purpose(step.kind, &step.path);
            *sums.entry(purpose).or_default() += step.weight_bytes;
        }
        let mut weights: Vec<(String, u64)> = sums.into_iter().collect();
        weights.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let has_keys = plan.key_values().next().is_some();
        let read =
            |n: u64| plan.cache_bytes_read(n.saturating_sub(1), TensorType::F16, TensorType::F16);
        let contexts = self.contexts().into_iter().filter(|_| has_keys);
        let keys = contexts.map(|n| (n, read(n).unwrap_or(u64::MAX)));
        // If the embedding is also the head, the row of the token counts twice: it is read for both.
        let all = weights.iter().map(|(_, bytes)| bytes).sum();
        let [read, stored] = [all, plan.weight_bytes()].map(wording::bytes);
        let line = "Each new token reads the weights that it uses, the keys and values that it attends to, and the states.";
        let picture = ScenePicture::Reads(BytesRead {
            weights,
            keys: keys.collect(),
            states: self.state_bytes(),
        });
        let scene = Scene::new("Bytes read per token", line, picture)
            .with_facts([format!(
                "{read} of weights per token, {stored} in the model"
            )])
            .with_facts(has_keys.then_some("KV cache of 16 bits"));
        Some(scene)
    }

    /// The scene of the bytes that contexts of some lengths keep; `None` if nothing is kept or there is no file.
    fn keeps(&self) -> Option<Scene> {
        let held: Vec<BytesHeld> = self.contexts().into_iter().map(|n| self.held(n)).collect();
        let first = *held.first().filter(|held| held.bytes() > 0)?;
        let bytes = wording::bytes(self.all_kept().per_token.unwrap_or(0));
        let fact = format!("KV cache: {bytes} per token");
        let line = "What a sequence keeps between passes, by the length of its context.";
        let scene = Scene::new("Memory per sequence", line, ScenePicture::Keeps(held));
        Some(scene.with_facts((first.all > 0).then_some(fact)))
    }

    fn contexts(&self) -> Vec<u64> {
        let mut contexts: Vec<u64> = match self.plan.n_ctx_train {
            0 => vec![2048, 8192, 32768],
            // Positions are 32-bit.
            longest => [16, 4, 1]
                .map(|part| longest.div_ceil(part).min(u64::from(u32::MAX)))
                .into(),
        };
        contexts.dedup();
        contexts
    }

    fn held(&self, n: u64) -> BytesHeld {
        let plan = self.plan;
        let per_token = self.all_kept().per_token.unwrap_or(0);
        let mut held = BytesHeld {
            tokens: n,
            all: per_token.saturating_mul(n),
            window: 0,
            state: self.state_bytes(),
        };
        for (unit, rows) in plan.key_values() {
            // At most the keys that one token can attend to. A cache without a window also has the keys from which
            // those of blocks are made.
            let cache = rows.pooled.as_ref().map_or(rows.cache, |of| of.cache);
            let rule = CacheOptions::read(&plan.caches[cache].unit.options);
            let stay = match rule.window {
                Window::Symmetric => n.min(rule.size / 2 + 1),
                Window::Standard | Window::Chunked => n.min(rule.size),
            };
            let bytes = self.kept(unit, 1).in_window.unwrap_or(0);
            held.window = held.window.saturating_add(bytes.saturating_mul(stay));
        }
        held
    }

    fn state_bytes(&self) -> u64 {
        self.all_kept().per_sequence.unwrap_or(0)
    }
}
