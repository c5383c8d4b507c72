//! What pictures say about execution, against the model that runs: its graph, its attention, its memory.
//!
//! Who writes and reads what is kept is read off the operations that ran; what is seen off the attention
//! itself; bytes off the loaded model and the stored weights.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{LazyLock, OnceLock};

use lab_bench::arch::Mode;
use lab_bench::ggml::{Origin, Step};
use lab_bench::inspect::diagram::svg::{self, Item};
use lab_bench::inspect::diagram::{Drawing, MASK, Picture, SMALL, Scene, WINDOW};
use lab_bench::model::{Batch, Model, Options, Value};
use lab_bench::plan::{Plan, Pooling};

use crate::command::scratch;
use crate::diagrams::{Drawn, as_drawn, cases, check_layout};
use crate::goldens::{Golden, goldens, library, options, run};
use crate::support::behind;

/// Tokens of a text that is longer than every window of the goldens.
const LONG: usize = 256;

/// A golden, drawn with its numbers, and what its model did.
struct Seen {
    golden: Golden,
    plan: Plan,
    drawing: Drawing,
    single: OnceLock<(u64, Vec<Step>)>,
    views: OnceLock<Views>,
}

/// For each layer with attention the keys that each token of a text sees, by any head.
type Views = BTreeMap<usize, Vec<Vec<bool>>>;

fn all() -> &'static [Seen] {
    static ALL: LazyLock<Vec<Seen>> = LazyLock::new(|| {
        let (scratch, library) = (scratch(), library());
        let seen = |golden: Golden| {
            let drawn = Drawn::new(&library, &golden);
            Seen {
                plan: drawn.sample.plan().clone(),
                drawing: drawn.drawing,
                golden,
                single: OnceLock::new(),
                views: OnceLock::new(),
            }
        };
        let all = goldens(scratch.path(), |_| true).into_iter();
        all.map(seen).collect()
    });
    &ALL
}

/// The scenes with a picture of this form, or the only one.
macro_rules! pick {
    ($seen:ident.$which:ident, $form:pat => $value:expr) => {
        $seen.$which(|picture| match picture {
            $form => Some($value),
            _ => None,
        })
    };
}

impl Seen {
    fn model(&self, options: Options) -> Model {
        let plan = self.plan.clone();
        Model::load(plan, &self.golden.weights, options, &mut |_, _| {}).expect("it loads")
    }

    /// Bytes of weights and operations of a pass over `n` tokens in a model that keeps what it can.
    fn steps(&self, n: usize) -> (u64, Vec<Step>) {
        let mut model = self.model(as_drawn());
        let mut batch = Batch::default();
        for (at, token) in (0..).zip(&self.golden.tokens[..n]) {
            batch.push(*token, 0, at, at as usize + 1 == n);
        }
        model.forward(&batch).expect("the pass runs");
        (model.weight_bytes_read(), model.steps())
    }

    /// The same of a pass over one token.
    fn single(&self) -> &(u64, Vec<Step>) {
        self.single.get_or_init(|| self.steps(1))
    }

    /// What each token of a text sees that is longer than every window.
    fn views(&self) -> &Views {
        self.views.get_or_init(|| self.captured())
    }

    fn captured(&self) -> Views {
        let n = match self.plan.n_ctx_train as usize {
            0 => LONG,
            longest => longest.min(LONG),
        };
        let mut model = self.model(Options {
            n_ctx: 0,
            n_batch: n,
            capture: true,
            ..options()
        });
        let text: Vec<u32> = (0..n).map(|i| (i * 37 + i / 5) as u32 % 96).collect();
        run(&mut model, &text, 0, 0);
        let values = model.values().expect("captured");
        let mut all = Views::new();
        let weights = |value: &&Value| !value.is_per_token && value.path.ends_with(".weights");
        for value in values.iter().filter(weights) {
            let layer = self.layer(&value.path).expect("a layer looks");
            assert_eq!(value.shape[..2], [n as u64, n as u64], "{}", value.path);
            let mut rows = vec![vec![false; n]; n];
            for (at, weight) in value.elements.iter().enumerate() {
                rows[at / n % n][at % n] |= *weight > 0.0;
            }
            all.insert(layer, rows);
        }
        all
    }

    fn layer(&self, path: &str) -> Option<usize> {
        let is_in = |layer: &str| {
            path.strip_prefix(layer)
                .is_some_and(|rest| rest.starts_with('.'))
        };
        self.plan.layers.iter().position(|layer| is_in(&layer.path))
    }

    fn layers(&self, kinds: &[usize]) -> BTreeSet<usize> {
        let kinds = kinds.iter().map(|kind| &self.drawing.kinds[*kind].layers);
        kinds.flatten().copied().collect()
    }

    fn scenes<'s, T>(&'s self, pick: impl Fn(&'s Picture) -> Option<T>) -> Vec<(&'s Scene, T)> {
        let scenes = self.drawing.scenes.iter();
        scenes
            .filter_map(|scene| Some((scene, pick(&scene.picture)?)))
            .collect()
    }

    fn only<'s, T>(&'s self, pick: impl Fn(&'s Picture) -> Option<T>) -> Option<(&'s Scene, T)> {
        let mut found = self.scenes(pick);
        assert!(found.len() < 2, "{}: a scene twice", self.golden.name);
        found.pop()
    }
}

fn is_view(step: &Step) -> bool {
    step.is_view
}

/// The name of what is kept, if an operation writes it.
fn written(step: &Step) -> Option<&str> {
    let mut names = step.sources.iter().filter_map(|source| match source {
        Origin::Leaf(name) if name.contains(".cache_") || name.contains(".state_") => {
            Some(name.as_str())
        }
        _ => None,
    });
    names.next_back().filter(|_| step.op == "SET_ROWS")
}

/// Who writes and who reads what is kept, by layers.
#[derive(Default)]
struct Traffic {
    /// Elements of a row of keys, of values, of each part of a state.
    keys: BTreeMap<usize, u64>,
    values: BTreeMap<usize, u64>,
    states: BTreeMap<usize, Vec<u64>>,
    /// Layers that read keys, and whose.
    reads: BTreeMap<usize, usize>,
    state_reads: BTreeSet<usize>,
    /// Elements of what attention gives for each head.
    heads: BTreeMap<usize, u64>,
}

fn traffic(seen: &Seen, steps: &[Step]) -> Traffic {
    let mut all = Traffic::default();
    for step in steps {
        let Some(layer) = seen.layer(&step.path) else {
            continue;
        };
        if let Some(name) = written(step) {
            let owner = seen.layer(name).expect("a layer keeps it");
            assert_eq!(owner, layer, "{}: {name}", seen.golden.name);
            let size = step.shape[0];
            match name.rsplit('.').next().expect("a name") {
                "cache_k" => assert_eq!(all.keys.insert(layer, size), None),
                "cache_v" => assert_eq!(all.values.insert(layer, size), None),
                _ => all.states.entry(layer).or_default().push(size),
            }
            continue;
        }
        for source in &step.sources {
            match behind(steps, source, is_view) {
                Origin::Step(at) if !step.is_view => {
                    if let Some(name) = written(&steps[at]).filter(|name| name.contains(".cache_"))
                    {
                        all.reads.insert(layer, seen.layer(name).expect("a layer"));
                        all.heads.insert(layer, step.shape[0]);
                    }
                }
                Origin::Leaf(name) if name.contains(".state_") && step.op == "GET_ROWS" => {
                    all.state_reads.insert(layer);
                }
                _ => {}
            }
        }
    }
    all
}

fn set<T: Copy + Ord, V>(map: &BTreeMap<T, V>) -> BTreeSet<T> {
    map.keys().copied().collect()
}

#[test]
fn scenes_tell_who_writes_and_reads_what_is_kept() {
    let mut counts = BTreeMap::new();
    for seen in all() {
        check_traffic(seen, &mut counts);
    }
    assert!(
        counts.len() == 4 && counts.values().all(|n| *n > 0),
        "{counts:?}"
    );
}

fn check_traffic(seen: &Seen, counts: &mut BTreeMap<&'static str, usize>) {
    let name = &seen.golden.name;
    let (_, steps) = seen.steps(seen.golden.tokens.len());
    let run = traffic(seen, &steps);
    let same = |told: BTreeSet<usize>, run: BTreeSet<usize>, what: &str| {
        assert_eq!(told, run, "{name}: {what}");
    };
    let prefill = pick!(seen.only, Picture::Prefill { keys, states } => (keys, states));
    let decode = pick!(seen.only, Picture::Decode { keys, states } => (keys, states));
    let is_causal = seen.plan.mode == Mode::Causal;
    assert_eq!(
        [prefill.is_some(), decode.is_some()],
        [is_causal; 2],
        "{name}"
    );
    if let (Some((_, written)), Some((_, read))) = (prefill, decode) {
        same(seen.layers(written.0), set(&run.keys), "keys written");
        same(seen.layers(written.1), set(&run.states), "states written");
        same(seen.layers(read.0), set(&run.reads), "keys read");
        same(seen.layers(read.1), run.state_reads.clone(), "states read");
        *counts.entry("causal").or_default() += 1;
    }
    let states = pick!(seen.scenes, Picture::State => ());
    let with_states = states
        .iter()
        .flat_map(|(scene, ())| seen.layers(&scene.kinds));
    same(with_states.collect(), set(&run.states), "states");
    for (scene, ()) in &states {
        let mut said: Vec<u64> = scene.facts.iter().flat_map(|fact| numbers(fact)).collect();
        said.sort_unstable();
        for layer in seen.layers(&scene.kinds) {
            let mut kept = run.states[&layer].clone();
            kept.sort_unstable();
            assert_eq!(said, kept, "{name}: a state in layer {layer}");
        }
    }
    *counts.entry("states").or_default() += states.len();
    let loans = pick!(seen.only, Picture::Shared(loans) => loans);
    let told = loans.iter().flat_map(|(_, loans)| loans.iter());
    let told = told.flat_map(|loan| loan.readers.iter().map(|reader| (*reader, loan.owner)));
    let mut borrowed = run.reads.clone();
    borrowed.retain(|reader, owner| reader != owner);
    assert_eq!(told.collect::<BTreeMap<_, _>>(), borrowed, "{name}: shared");
    if let Some((scene, _)) = &loans {
        let kinds = seen.layers(&scene.kinds);
        assert!(kinds.is_superset(&set(&borrowed)), "{name}");
        *counts.entry("shared").or_default() += 1;
    }
    let latent = pick!(seen.only, Picture::Latent { row } => row);
    let mut no_values = run.keys.clone();
    no_values.retain(|layer, _| !run.values.contains_key(layer));
    let said = latent.map(|(scene, _)| seen.layers(&scene.kinds));
    same(said.unwrap_or_default(), set(&no_values), "latent");
    if let Some((_, row)) = latent {
        for (layer, k) in &no_values {
            assert_eq!(*row, Some((*k, run.heads[layer])), "{name}: a latent row");
        }
        *counts.entry("latent").or_default() += 1;
    }
}

#[test]
fn scenes_tell_how_many_experts_run() {
    let mut n_found = 0;
    for seen in all() {
        let name = &seen.golden.name;
        let (_, steps) = seen.single();
        let mut run: BTreeSet<(usize, (u64, u64))> = BTreeSet::new();
        for step in steps.iter().filter(|step| step.op == "MUL_MAT_ID") {
            let Origin::Weight(weight) = behind(steps, &step.sources[0], is_view) else {
                panic!("{name}: experts are weights");
            };
            let numbers = (step.shape[1], seen.plan.tensors[weight].shape[2]);
            run.insert((seen.layer(&step.path).expect("a layer has them"), numbers));
        }
        let scenes =
            pick!(seen.scenes, Picture::Experts { numbers } => numbers.expect("there is a file"));
        let said = scenes.iter().flat_map(|(scene, numbers)| {
            let layers = seen.layers(&scene.kinds).into_iter();
            layers.map(|layer| (layer, *numbers))
        });
        assert_eq!(said.collect::<BTreeSet<_>>(), run, "{name}");
        n_found += scenes.len();
    }
    assert!(n_found > 5);
}

/// The whole numbers of a sentence that stand for themselves.
fn numbers(text: &str) -> Vec<u64> {
    let words = text.split([' ', ',', ':', ';']);
    words.filter_map(|word| word.parse().ok()).collect()
}

/// The positions of a window, as its sentence tells them.
fn told_size(scene: &Scene) -> u64 {
    let told = numbers(&scene.line);
    let [n] = told[..] else {
        panic!("one number: {}", scene.line);
    };
    n
}

/// Whether a token at `q` sees one at `k`, by the words of a definition.
fn is_seen(rule: &str, size: usize, q: usize, k: usize) -> bool {
    match rule {
        "standard" => k > q || q - k < size,
        "chunked" => k / size >= q / size,
        "symmetric" => q.abs_diff(k) <= size / 2,
        other => panic!("no rule `{other}`"),
    }
}

#[test]
fn windows_are_those_of_the_attention_that_ran() {
    let mut rules = BTreeSet::new();
    for seen in all() {
        check_windows(seen, &mut rules);
    }
    assert_eq!(rules, BTreeSet::from(["chunked", "standard", "symmetric"]));
}

fn check_windows(seen: &Seen, rules: &mut BTreeSet<&'static str>) {
    let name = &seen.golden.name;
    let is_causal = seen.plan.mode == Mode::Causal;
    let scenes =
        pick!(seen.scenes, Picture::Window { rule, evicts, views, } => (*rule, *evicts, views));
    let mut windows = BTreeMap::new();
    for (scene, (rule, evicts, views)) in &scenes {
        let size = told_size(scene) as usize;
        assert_eq!(*evicts, is_causal, "{name}");
        // The picture follows the same rule.
        let small = size.min(SMALL as usize);
        for view in views.iter() {
            let q = view.query as usize;
            let sees = |k: &usize| (*k <= q || !is_causal) && is_seen(rule, small, q, *k);
            let keys: Vec<usize> = (0..WINDOW as usize).filter(sees).collect();
            let drawn: Vec<usize> = view.keys.clone().map(|k| k as usize).collect();
            assert_eq!(drawn, keys, "{name}: {view:?}");
        }
        for layer in seen.layers(&scene.kinds) {
            let known = windows.insert(layer, (*rule, size));
            assert_eq!(known, None, "{name}: layer {layer}");
        }
        rules.insert(*rule);
    }
    for (layer, rows) in seen.views() {
        for (q, keys) in rows.iter().enumerate() {
            let rule = windows.get(layer);
            let in_window = |k: usize| rule.is_none_or(|(rule, size)| is_seen(rule, *size, q, k));
            let sees = |k: usize| (k <= q || !is_causal) && in_window(k);
            let expected: Vec<bool> = (0..rows.len()).map(sees).collect();
            assert_eq!(*keys, expected, "{name}: layer {layer}, token {q}");
        }
    }
    let mut layers = windows.keys();
    assert!(
        layers.all(|layer| seen.views().contains_key(layer)),
        "{name}"
    );
    check_encoding(seen);
}

/// That everybody sees everybody is said where it is so, and what becomes the vector of a text.
fn check_encoding(seen: &Seen) {
    let name = &seen.golden.name;
    let scene = pick!(seen.only, Picture::Whole { seen, pooling } => (seen, pooling));
    assert_eq!(scene.is_some(), seen.plan.mode != Mode::Causal, "{name}");
    let Some((scene, (drawn, pooling))) = scene else {
        return;
    };
    let all = seen
        .views()
        .values()
        .any(|rows| !rows.concat().contains(&false));
    assert_eq!(drawn.iter().all(|keys| *keys == (0..MASK)), all, "{name}");
    assert_eq!(scene.line.contains("sees all others"), all, "{name}");
    let word = match pooling {
        Some(Pooling::Mean) => "mean",
        Some(Pooling::First) => "first",
        Some(Pooling::Last) => "last",
        Some(other) => panic!("no golden pools by {other:?}"),
        None => return assert_eq!(seen.plan.mode, Mode::Diffusion, "{name}"),
    };
    assert_eq!(
        (seen.plan.mode, *pooling),
        (Mode::Encoder, Some(seen.plan.pooling())),
        "{name}"
    );
    assert!(scene.facts[0].contains(word), "{name}");
}

/// Bytes of weights that an operation reads, by their dimensions.
fn weight_bytes(seen: &Seen, steps: &[Step], step: &Step) -> u64 {
    let elements = |shape: &[u64]| shape.iter().product::<u64>();
    let read = |source: &Origin| {
        let Origin::Weight(at) = behind(steps, source, is_view) else {
            return 0;
        };
        let tensor = &seen.plan.tensors[at];
        let all = elements(&tensor.shape);
        let part = match (source, step.op.as_str()) {
            (_, "GET_ROWS") => elements(&step.shape).min(all),
            (_, "MUL_MAT_ID") => {
                let n_all = *tensor.shape.get(2).unwrap_or(&1);
                all / n_all * (step.shape[1] * step.shape[2]).min(n_all)
            }
            (Origin::Step(view), _) => elements(&steps[*view].shape),
            _ => all,
        };
        let bytes = u128::from(tensor.bytes) * u128::from(part) / u128::from(all);
        bytes as u64
    };
    step.sources
        .iter()
        .filter(|_| !step.is_view)
        .map(read)
        .sum()
}

#[test]
fn what_a_token_reads_is_what_its_pass_reads() {
    let found: Vec<usize> = all().iter().filter_map(check_reads).collect();
    assert!(found.len() > 50 && found.iter().sum::<usize>() > 2 * found.len());
}

/// How many contexts were compared, if bytes are told.
fn check_reads(seen: &Seen) -> Option<usize> {
    let name = &seen.golden.name;
    let scene =
        pick!(seen.only, Picture::Reads { weights, keys, states, } => (weights, keys, states));
    assert_eq!(scene.is_some(), seen.plan.mode == Mode::Causal, "{name}");
    let (_, (weights, keys, states)) = scene?;
    let (read, steps) = seen.single();
    let said: u64 = weights.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(said, *read, "{name}: weights");
    let mut by_kind: BTreeMap<&str, u64> = BTreeMap::new();
    for step in steps {
        *by_kind.entry(step.kind).or_default() += weight_bytes(seen, steps, step);
    }
    for (kind, what) in [
        ("attention", &["attention"][..]),
        ("ffn", &["MLP", "shared MLP", "per_layer MLP"]),
        ("moe", &["experts"]),
        ("head", &["head"]),
        ("norm", &["norms"]),
    ] {
        let told = weights.iter().filter(|(name, _)| what.contains(&&**name));
        let told: u64 = told.map(|(_, bytes)| bytes).sum();
        let run = by_kind.get(kind).copied().unwrap_or(0);
        assert_eq!(told, run, "{name}: {what:?}");
    }
    let run = traffic(seen, steps);
    let sizes: u64 = run.states.values().flatten().sum();
    assert_eq!(*states, sizes * 4, "{name}: states");
    assert_eq!(keys.is_empty(), run.reads.is_empty(), "{name}");
    let short: Vec<_> = keys.iter().filter(|(n, _)| *n <= LONG as u64).collect();
    for (n, bytes) in &short {
        let of = |(layer, owner): (&usize, &usize)| {
            let sizes = [run.keys.get(owner), run.values.get(owner)];
            let row: u64 = sizes.into_iter().flatten().sum();
            let seen = seen.views()[layer][*n as usize - 1]
                .iter()
                .filter(|key| **key);
            seen.count() as u64 * row * 2
        };
        let read: u64 = run.reads.iter().map(of).sum();
        assert_eq!(*bytes, read, "{name}: keys of {n}");
    }
    Some(short.len())
}

fn check_keeps(seen: &Seen) {
    let name = &seen.golden.name;
    let scene = pick!(seen.only, Picture::Keeps(held) => held);
    let bytes = |n_ctx: usize, n_seqs: usize| {
        let room = Options {
            n_ctx,
            n_seqs,
            ..as_drawn()
        };
        seen.model(room).memory().cache
    };
    if seen.plan.mode != Mode::Causal {
        let kept = &seen.drawing.kept;
        let told = [kept.per_token, kept.per_sequence];
        assert_eq!(
            (scene.is_some(), told),
            (false, [None; 2]),
            "{name} keeps nothing"
        );
        return;
    }
    let (_, held) = scene.expect("something is kept");
    let windows = pick!(seen.scenes, Picture::Window { rule, .. } => *rule);
    let window = windows.first();
    let window = window.map_or(0, |(scene, _)| told_size(scene));
    // Beside the state of each text there is one of zeros, and a block of 16 is the least.
    let state = bytes(16, 2) - bytes(16, 1);
    let first_block = bytes(16, 1) - 2 * state;
    // Windows have all their room long before this.
    let long = (4 * window + 1024).next_multiple_of(16);
    let grown = (bytes(2 * long as usize, 1) - bytes(long as usize, 1)) / long;
    let of_window = (first_block - grown * 16) / 16;
    for held in held {
        let n = held.tokens;
        let told = [held.state, held.all, held.window];
        let kept = [state, grown * n, of_window * n.min(window)];
        assert_eq!(told, kept, "{name}: states, keys and windows of {n}");
        let room = bytes(n.next_multiple_of(16) as usize, 1);
        assert!(held.bytes() <= room, "{name}");
    }
}

#[test]
fn what_a_text_keeps_is_what_the_loaded_model_has_room_for() {
    all().iter().for_each(check_keeps);
}

/// Without a file no scene has a number of the model's; pictures and sentences have symbols.
#[test]
fn without_a_file_scenes_have_symbols() {
    for case in cases() {
        for scene in &case.drawings[1].scenes {
            let has_number = match &scene.picture {
                Picture::Latent { row } => row.is_some(),
                Picture::Experts { numbers } => numbers.is_some(),
                Picture::Reads { .. } | Picture::Keeps(_) => true,
                _ => false,
            };
            assert!(!has_number, "{}: {}", case.name, scene.title);
            // The program's own constants are not numbers of the model.
            let own = [Options::N_BATCH.to_string(), "16".to_owned()];
            let texts = [&scene.line].into_iter().chain(&scene.facts);
            let words = texts.flat_map(|text| text.split([' ', ',', '.', ':', ';']));
            let mut numbers = words.filter(|word| word.parse::<u64>().is_ok_and(|n| n > 1));
            let number = numbers.find(|word| !own.iter().any(|own| own == word));
            assert_eq!(number, None, "{}: {}", case.name, scene.line);
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
                check_layout(&case.name, &piece);
                let cards = piece.items.iter().filter_map(|item| match item {
                    Item::Box(rect, _, "frame") => Some(*rect),
                    _ => None,
                });
                let cards: Vec<svg::Rect> = cards.collect();
                assert_eq!(cards.len(), drawing.scenes.len(), "{}", case.name);
                for (text, words) in piece.texts() {
                    let holds = |card: &svg::Rect| {
                        let (right, bottom) = (card.x + card.w, card.y + card.h);
                        let is_below = card.x <= text.x && card.y <= text.y;
                        is_below && text.x + text.w <= right && text.y + text.h <= bottom
                    };
                    assert!(cards.iter().any(holds), "{}: `{words}`", case.name);
                    assert!(text.h >= 11.0, "{}: `{words}` is small", case.name);
                }
            }
        }
    }
}
