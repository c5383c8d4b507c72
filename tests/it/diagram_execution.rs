//! What pictures say about execution, against the model that runs: its graph, its attention, its memory.
//!
//! Who writes and reads what is kept is read off the operations that ran, windows off the plan, bytes off
//! the loaded model.

use std::collections::{BTreeMap, BTreeSet};

use lab_base::ggml::{GraphOp, OpSource};
use lab_core::arch::{Mode, ResolvedOption};
use lab_core::model::{Options, STATE_PIECES};
use lab_core::plan::{KeyTokens, Pooling};
use lab_inspect::describe::weight_shares;
use lab_inspect::diagram::svg;
use lab_inspect::diagram::svg::DrawItem;
use lab_inspect::diagram::{
    BytesHeld, BytesRead, MASK_TOKENS, SMALL_WINDOW, Scene, ScenePicture, TEXT_TOKENS,
};

use crate::diagrams::{Case, after_pass, as_drawn, cases, check_layout, is_seen, window};
use crate::goldens::model;
use crate::support::behind;

impl Case {
    /// Bytes of weights and operations of a pass over `n` tokens in a model that keeps what it can.
    fn steps(&self, n: usize) -> (u64, Vec<GraphOp>) {
        let model = after_pass(self.golden, n, false);
        (model.weight_bytes_read(), model.steps())
    }

    /// The rule and the size of the window of each layer that has one.
    fn windows(&self) -> BTreeMap<usize, (&'static str, u64)> {
        let layers = self.plan().layers.iter().enumerate();
        let blocks = layers.flat_map(|(at, layer)| {
            let branches = layer.slots.iter().flat_map(|slot| &slot.branches);
            branches.map(move |branch| (at, &branch.block))
        });
        let windows = blocks.filter_map(|(at, block)| {
            let rows = block.key_values()?;
            let cache = &self.plan().caches[rows.cache];
            cache.window().map(|_| (at, window(cache)))
        });
        windows.collect()
    }

    fn layers(&self, kinds: &[usize]) -> BTreeSet<usize> {
        let all = &self.drawings[0].kinds;
        let layers = kinds.iter().flat_map(|kind| &all[*kind].layers);
        layers.copied().collect()
    }

    fn is_causal(&self) -> bool {
        self.plan().mode == Mode::Causal
    }
}

fn is_view(step: &GraphOp) -> bool {
    step.is_view
}

/// The name of what is kept, if an operation writes it, and the rows that make one of it there: large states are cut.
fn written(steps: &[GraphOp], step: &GraphOp) -> Option<(String, u64)> {
    let leaves = step.sources.iter();
    let leaves = leaves.filter_map(|source| match behind(steps, source, is_view) {
        OpSource::Leaf(name) => Some(name),
        _ => None,
    });
    let leaves: Vec<String> = leaves.collect();
    let n = match leaves.iter().any(|name| name.ends_with(".pieces")) {
        true => STATE_PIECES,
        false => 1,
    };
    let mut kept = leaves.into_iter();
    let kept = kept.rfind(|name| name.contains(".cache_") || name.contains(".state_"));
    kept.filter(|_| step.op == "SET_ROWS").map(|name| (name, n))
}

/// What layers write and read of what is kept, by what it is and by layer: elements of a row of `keys` and
/// `values`, of each part of a `state`; the layer whose keys it `reads`, and elements of what attention gives for
/// each head; nothing for a state that it reads (`recurs`).
type Traffic = BTreeMap<(&'static str, usize), Vec<u64>>;

fn traffic(case: &Case, steps: &[GraphOp]) -> Traffic {
    let mut all = Traffic::new();
    for step in steps {
        let Some(layer) = case.layer(&step.path) else {
            continue;
        };
        if let Some((name, n_pieces)) = written(steps, step) {
            assert_eq!(case.layer(&name), Some(layer), "{name}");
            let what = match name.rsplit('.').next() {
                Some("cache_k") => "keys",
                Some("cache_v") => "values",
                Some("cache_index") => "index",
                Some("cache_pooled") => "pooled",
                _ => "state",
            };
            let size = step.shape[0] * n_pieces;
            all.entry((what, layer)).or_default().push(size);
            continue;
        }
        for source in step.sources.iter().filter(|_| !step.is_view) {
            match behind(steps, source, is_view) {
                OpSource::Op(at) => {
                    let is_row =
                        |name: &String| name.ends_with(".cache_k") || name.ends_with(".cache_v");
                    let name = written(steps, &steps[at]).map(|(name, _)| name);
                    let owner = name.filter(is_row).and_then(|name| case.layer(&name));
                    let reads = owner.map(|owner| vec![owner as u64, step.shape[0]]);
                    all.extend(reads.map(|reads| (("reads", layer), reads)));
                }
                OpSource::Leaf(name) if name.contains(".state_") => {
                    all.insert(("recurs", layer), vec![]);
                }
                _ => {}
            }
        }
    }
    all
}

/// What layers do, by scenes or by operations that ran: what, the layer, numbers of it.
type Shown = BTreeSet<(&'static str, usize, Vec<u64>)>;

fn facts_told(case: &Case) -> Shown {
    let mut facts = Shown::new();
    let mut tell = |what, layers: BTreeSet<usize>, numbers: &[u64]| {
        for layer in layers {
            let is_new = facts.insert((what, layer, numbers.to_vec()));
            assert!(is_new, "{}: {what} in layer {layer}", case.golden.name);
        }
    };
    // A layer may have states of several blocks.
    let mut states = BTreeMap::<usize, Vec<u64>>::new();
    for scene in &case.drawings[0].scenes {
        let own = case.layers(&scene.kinds);
        match &scene.picture {
            ScenePicture::Prefill([keys, states]) => {
                tell("writes keys", case.layers(keys), &[]);
                tell("writes a state", case.layers(states), &[]);
            }
            ScenePicture::Decode([keys, states]) => {
                tell("reads keys", case.layers(keys), &[]);
                tell("reads a state", case.layers(states), &[]);
            }
            ScenePicture::State => {
                let sizes: Vec<u64> = scene.facts.iter().flat_map(|f| numbers(f)).collect();
                own.into_iter()
                    .for_each(|at| states.entry(at).or_default().extend(&sizes));
            }
            ScenePicture::Shared(loans) => {
                for (owner, readers) in loans {
                    let readers = readers.iter().copied().collect();
                    assert!(own.is_superset(&readers), "{}", case.golden.name);
                    tell("borrows", readers, &[*owner as u64]);
                }
            }
            ScenePicture::Latent(row) => {
                let (k, v) = row.expect("there is a file");
                tell("latent", own, &[k, v]);
            }
            ScenePicture::Experts(numbers) => {
                let (used, all) = numbers.expect("there is a file");
                tell("experts", own, &[used, all]);
            }
            _ => {}
        }
    }
    for (layer, sizes) in states {
        tell("state", [layer].into(), &sorted(sizes));
    }
    facts
}

fn facts_run(case: &Case) -> Shown {
    let (_, steps) = case.steps(case.golden.tokens.len());
    let run = traffic(case, &steps);
    let mut facts = Shown::new();
    for ((what, layer), numbers) in &run {
        let mut add = |what, numbers| facts.insert((what, *layer, numbers));
        match *what {
            "keys" => {
                add("writes keys", vec![]);
                assert_eq!(numbers.len(), 1, "{}", case.golden.name);
                if !run.contains_key(&("values", *layer)) {
                    add("latent", vec![numbers[0], run[&("reads", *layer)][1]]);
                }
            }
            "reads" => {
                add("reads keys", vec![]);
                if numbers[0] != *layer as u64 {
                    add("borrows", vec![numbers[0]]);
                }
            }
            "state" => {
                add("writes a state", vec![]);
                add("state", sorted(numbers.clone()));
            }
            "recurs" => {
                add("reads a state", vec![]);
            }
            _ => {}
        }
    }
    for step in steps.iter().filter(|step| step.op == "MUL_MAT_ID") {
        let OpSource::Weight(weight) = behind(&steps, &step.sources[0], is_view) else {
            panic!("{}: experts are weights", case.golden.name);
        };
        if case.plan().tensors[weight].name.contains(".lora_") {
            continue;
        }
        let result = steps.iter().rfind(|other| other.path == step.path);
        let n_tokens = result.expect("it is one of them").shape[1];
        let n_of_token = step.shape[1] * step.shape[2] / n_tokens;
        let numbers = vec![n_of_token, case.plan().tensors[weight].shape[2]];
        let layer = case.layer(&step.path).expect("a layer has them");
        facts.insert(("experts", layer, numbers));
    }
    facts
}

fn sorted(mut all: Vec<u64>) -> Vec<u64> {
    all.sort_unstable();
    all
}

#[test]
fn scenes_tell_what_layers_do() {
    let mut known = BTreeSet::new();
    for case in cases().iter().filter(|case| case.is_causal()) {
        let (told, run) = (facts_told(case), facts_run(case));
        assert_eq!(told, run, "{}", case.golden.name);
        known.extend(run.into_iter().map(|(what, ..)| what));
    }
    assert_eq!(known.len(), 8, "{known:?}");
}

/// The whole numbers of a sentence that stand for themselves.
fn numbers(text: &str) -> Vec<u64> {
    let words = text.split([' ', ',', ':', ';']);
    words.filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn windows_are_those_of_the_plan() {
    let mut rules = BTreeSet::new();
    for case in cases() {
        let (name, is_causal) = (&case.golden.name, case.is_causal());
        let mut told = BTreeMap::new();
        for scene in &case.drawings[0].scenes {
            let ScenePicture::Window { rule, evicts, rows } = &scene.picture else {
                continue;
            };
            assert_eq!(*evicts, is_causal, "{name}");
            let size = numbers(&scene.line)[0];
            // The picture follows the same rule.
            let small = (*rule, size.min(SMALL_WINDOW.into()));
            for (query, seen) in rows {
                let q = (*query).into();
                let sees = |k: &u64| (*k <= q || !is_causal) && is_seen(small, q, *k);
                let keys = (0..TEXT_TOKENS.into()).filter(sees);
                let is_right = keys.eq(seen.clone().map(u64::from));
                assert!(is_right, "{name}: {query}: {seen:?}");
            }
            let layers = case.layers(&scene.kinds).into_iter();
            told.extend(layers.map(|layer| (layer, (*rule, size))));
            rules.insert(*rule);
        }
        assert_eq!(told, case.windows(), "{name}");
    }
    assert_eq!(rules, BTreeSet::from(["chunked", "standard", "symmetric"]));
}

/// That every token attends to all others is stated where it is so, and what becomes the vector of a text.
#[test]
fn what_is_read_at_once_is_told_with_what_becomes_of_it() {
    for case in cases() {
        let (name, plan) = (&case.golden.name, case.plan());
        let is_whole = |scene: &&Scene| matches!(scene.picture, ScenePicture::Whole { .. });
        let n_whole = case.drawings[0].scenes.iter().filter(is_whole).count();
        assert_eq!(n_whole, usize::from(!case.is_causal()), "{name}");
        for scene in &case.drawings[0].scenes {
            let ScenePicture::Whole { seen, pooling } = &scene.picture else {
                continue;
            };
            let is_all = case.windows().len() < plan.layers.len();
            let is_drawn = seen.iter().all(|keys| *keys == (0..MASK_TOKENS));
            let is_told = scene.line.contains("attends to all others");
            assert_eq!([is_drawn, is_told], [is_all; 2], "{name}");
            let expected = (plan.mode == Mode::Encoder).then(|| plan.pooling());
            assert_eq!(*pooling, expected, "{name}");
            let word = match pooling {
                Some(Pooling::Mean) => "mean",
                Some(Pooling::First) => "first",
                Some(Pooling::Last) => "last",
                Some(other) => panic!("no golden pools by {other:?}"),
                None => continue,
            };
            assert!(scene.facts[0].contains(word), "{name}");
        }
    }
}

#[test]
fn bytes_read_and_kept_per_token_equal_those_of_the_loaded_model() {
    let mut n_compared = 0;
    for case in cases() {
        let kept = &case.drawings[0].kept;
        let is_nothing = [kept.per_token, kept.per_sequence] == [None; 2];
        assert!(case.is_causal() || is_nothing, "{}", case.golden.name);
        for scene in &case.drawings[0].scenes {
            match &scene.picture {
                ScenePicture::Keeps(held) => check_keeps(case, held),
                ScenePicture::Reads(told) => {
                    check_reads(case, told);
                    n_compared += 1;
                }
                _ => {}
            }
        }
    }
    assert!(n_compared > 50, "{n_compared}");
}

fn check_reads(case: &Case, told: &BytesRead) {
    let (name, plan) = (&case.golden.name, case.plan());
    let (read, steps) = case.steps(1);
    let sum: u64 = told.weights.iter().map(|(_, bytes)| bytes).sum();
    if plan.caches.iter().any(|cache| cache.span().is_some()) {
        // The token at which a block ends reads what keys of spans are made with too.
        assert!(sum >= read, "{name}: weights");
        return;
    }
    assert_eq!(sum, read, "{name}: weights");
    // Of experts and of tables some rows are read, of others all, once for each run of a layer; divisors of rope by each
    // product that they are for, routers of mixes by reading and by writing. Of `time mixing` files hold more than is read.
    let shares = weight_shares(plan);
    let is_looped = plan.layers.iter().any(|of| of.depth != of.il);
    // A norm that two slots have is read by each.
    let slots = plan.layers.iter().flat_map(|layer| &layer.slots);
    let norms = slots.filter_map(|slot| slot.pre.as_ref()?.weight);
    let norms: Vec<usize> = norms.collect();
    let is_shared = norms.iter().collect::<BTreeSet<_>>().len() < norms.len();
    let is_tied = plan.tensors.iter().all(|t| t.name != "output.weight");
    let has_updates = plan.units().any(|unit| !unit.updates.is_empty());
    for (what, bytes) in &told.weights {
        let share = shares.iter().find(|share| share.what == *what);
        let is_right = share.is_none_or(|share| match what.as_str() {
            // The token table as the head is a share of its own.
            "head" if is_tied => *bytes >= share.bytes,
            // A source was read before.
            _ if plan.source.is_some() => *bytes <= share.bytes,
            // Of adapters in the file those of the tokens.
            _ if has_updates => *bytes <= share.bytes,
            "token table" | "inputs of layers" | "n-gram memory" => *bytes < share.bytes,
            what if what.ends_with("experts") => *bytes < share.bytes,
            "first time mixing" => *bytes <= share.bytes,
            "norms" if is_shared => *bytes >= share.bytes,
            "mix of hidden states" => *bytes >= share.bytes,
            what if is_looped || what.ends_with("attention") => *bytes >= share.bytes,
            _ => *bytes == share.bytes,
        });
        assert!(is_right, "{name}: {bytes} of {what}, stored are {share:?}");
    }
    let run = traffic(case, &steps);
    let of = |own: &str| {
        let own = own.to_owned();
        run.iter().filter(move |((what, _), _)| *what == own)
    };
    let sizes: u64 = of("state").flat_map(|(_, sizes)| sizes).sum();
    assert_eq!(told.states, sizes * 4, "{name}: states");
    assert_eq!(told.keys.is_empty(), of("reads").next().is_none(), "{name}");
    let windows = case.windows();
    let selection = plan.selections.first();
    let option = |name| selection?.option_int(name);
    let few_of = |n: u64| {
        let (top, span) = (option("top")?, option("span")?);
        let tail = match selection?.option("pooled") {
            Some(ResolvedOption::Bool(true)) => n % span,
            _ => 0,
        };
        (n - tail > top * span).then_some(top * span + tail)
    };
    for (n, bytes) in &told.keys {
        let read = of("reads").map(|((_, layer), numbers)| {
            let size = |what| run.get(&(what, numbers[0] as usize)).into_iter().flatten();
            let [row, index] = [vec!["keys", "values"], vec!["index"]]
                .map(|of| of.into_iter().flat_map(size).sum::<u64>());
            let rule = windows.get(layer);
            let sees = |k: &u64| rule.is_none_or(|rule| is_seen(*rule, n - 1, *k));
            let n = (0..*n).filter(sees).count() as u64;
            // Latent layers may use the selection of an earlier one.
            let selects = index > 0 || size("values").next().is_none();
            let few = few_of(n).filter(|_| selects);
            let index = option("d").map_or(0, |d| d.min(index));
            2 * few.map_or(n * row, |few| few * row + n * index)
        });
        // Keys of a source were written by an earlier pass.
        let kept = plan.key_values().map(|(_, rows)| rows);
        let kept = kept.filter(|rows| plan.caches[rows.cache].keys == KeyTokens::Source);
        let of_source: u64 = kept.map(|rows| 2 * n * (rows.k + rows.v)).sum();
        let read = read.sum::<u64>() + of_source;
        assert_eq!(*bytes, read, "{name}: keys of {n}");
    }
}

fn check_keeps(case: &Case, held: &[BytesHeld]) {
    let name = &case.golden.name;
    let bytes = |n_ctx: usize, n_seqs: usize| {
        let model = model(case.golden, as_drawn(n_ctx, n_seqs));
        model.memory().cache
    };
    let window = case.windows().values().next().map_or(0, |(_, size)| *size);
    // Alongside the state of each sequence there is one of zeros, and a block of 16 is the least.
    let state = bytes(16, 2) - bytes(16, 1);
    let first_block = bytes(16, 1) - 2 * state;
    // Windows have all their slots long before this.
    let long = (4 * window + 1024).next_multiple_of(16);
    let grown = (bytes(2 * long as usize, 1) - bytes(long as usize, 1)) / long;
    let of_window = (first_block - grown * 16) / 16;
    for held in held {
        let n = held.tokens;
        let told = [held.state, held.all, held.window];
        let mut kept = [state, grown * n, of_window * n.min(window)];
        if case.plan().caches.iter().any(|of| of.span().is_some()) {
            // Windows differ in length: that of keys, and those of what keys of spans are made of.
            kept[2] = held.window;
        }
        assert_eq!(told, kept, "{name}: states, keys and windows of {n}");
        let capacity = bytes(n.next_multiple_of(16) as usize, 1);
        assert!(held.bytes() <= capacity, "{name}");
    }
}

/// Without a file no scene has a number of the model's; pictures and sentences have symbols.
#[test]
fn without_a_file_scenes_have_symbols() {
    for case in cases() {
        for scene in &case.drawings[1].scenes {
            let has_number = match &scene.picture {
                ScenePicture::Latent(numbers) | ScenePicture::Experts(numbers) => numbers.is_some(),
                ScenePicture::Reads(_) | ScenePicture::Keeps(_) => true,
                _ => false,
            };
            assert!(!has_number, "{}: {}", case.golden.name, scene.title);
            // The program's own constants are not numbers of the model.
            let own = [Options::N_BATCH.to_string(), "16".to_owned()];
            let texts = [&scene.line].into_iter().chain(&scene.facts);
            let words = texts.flat_map(|text| text.split([' ', ',', '.', ':', ';']));
            let mut numbers = words.filter(|word| word.parse::<u64>().is_ok_and(|n| n > 1));
            let number = numbers.find(|word| !own.iter().any(|own| own == word));
            assert_eq!(number, None, "{}: {}", case.golden.name, scene.line);
        }
    }
}

#[test]
fn cards_of_scenes_hold_their_texts() {
    for case in cases() {
        for drawing in &case.drawings {
            assert!(drawing.scenes.iter().all(|scene| !scene.line.is_empty()));
            for room in [300.0, 640.0, 1000.0, 1700.0] {
                let piece = svg::execution(drawing, room);
                check_layout(&case.golden.name, &piece);
                let cards = piece.items.iter().filter_map(|item| match item {
                    DrawItem::Box(rect, _, "frame") => Some(*rect),
                    _ => None,
                });
                let cards: Vec<svg::Rect> = cards.collect();
                assert_eq!(cards.len(), drawing.scenes.len(), "{}", case.golden.name);
                for (text, words) in piece.texts() {
                    let holds = |card: &svg::Rect| {
                        let (right, bottom) = (card.x + card.w, card.y + card.h);
                        let is_below = card.x <= text.x && card.y <= text.y;
                        is_below && text.x + text.w <= right && text.y + text.h <= bottom
                    };
                    assert!(cards.iter().any(holds), "{}: `{words}`", case.golden.name);
                    assert!(text.h >= 11.0, "{}: `{words}` is small", case.golden.name);
                }
            }
        }
    }
}
