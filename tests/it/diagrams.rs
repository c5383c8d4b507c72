//! What is drawn is what runs: every operation, weight and addition once, in order, and nothing else.
//!
//! The graphs are walked here by rules of their own: what the drawing folds is told by a list of
//! operations, and a weight belongs to whoever reads it, through whatever lies between.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::LazyLock;

use lab_base::ggml::{GraphOp, OpSource};
use lab_base::weights::TensorType;
use lab_core::arch::{ArchDef, Join, Mode, ResolvedOption};
use lab_core::model::{Batch, Model, Options, trace};
use lab_core::models::synth::SynthRequest;
use lab_core::plan::{CachePlan, Plan};
use lab_inspect::diagram::svg::{DrawItem, Fragment};
use lab_inspect::diagram::{
    Drawing, EdgeSource, Slot, SourceRows, TracedPlan, UnitBox, gallery, svg, variants,
};

use crate::goldens::{Golden, all_goldens, library, model, options};
use crate::support::behind;
use crate::support::command::{definitions, printed, scratch, text};

/// A golden, drawn with its numbers and with symbols.
pub(crate) struct Case {
    pub(crate) golden: &'static Golden,
    pub(crate) samples: [TracedPlan; 2],
    pub(crate) drawings: [Drawing; 2],
}

impl Case {
    fn new(golden: &'static Golden) -> Self {
        let samples = [false, true].map(|is_symbolic| {
            TracedPlan::new(&golden.name, golden.plan.clone(), is_symbolic).expect("a graph")
        });
        Self {
            golden,
            drawings: samples.each_ref().map(|s| Drawing::new(&golden.def, s)),
            samples,
        }
    }

    /// The case of a golden.
    pub(crate) fn of(name: &str) -> &'static Self {
        let mut all = cases().iter();
        all.find(|case| case.golden.name == name).expect("a golden")
    }

    pub(crate) fn plan(&self) -> &'static Plan {
        &self.golden.plan
    }

    /// The layer that a path is within.
    pub(crate) fn layer(&self, path: &str) -> Option<usize> {
        let is_in = |layer: &str| path.strip_prefix(layer).is_some_and(|p| p.starts_with('.'));
        let mut layers = self.plan().layers.iter();
        layers.position(|layer| is_in(&layer.path))
    }

    pub(crate) fn both(&self) -> impl Iterator<Item = (&TracedPlan, &Drawing)> {
        self.samples.iter().zip(&self.drawings)
    }
}

/// The rule of a window and its size.
pub(crate) fn window(cache: &CachePlan) -> (&'static str, u64) {
    let Some(ResolvedOption::Choice(rule)) = cache.unit.option("window") else {
        panic!("{}: a window has a rule", cache.name);
    };
    (rule, cache.window().unwrap_or(u64::MAX))
}

/// Whether a token at `q` attends to one at `k`, by the words of a definition.
pub(crate) fn is_seen((rule, size): (&str, u64), q: u64, k: u64) -> bool {
    match rule {
        "standard" => k > q || q - k < size,
        "chunked" => k / size >= q / size,
        "symmetric" => q.abs_diff(k) <= size / 2,
        other => panic!("no rule `{other}`"),
    }
}

/// Every golden.
pub(crate) fn cases() -> &'static [Case] {
    static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| all_goldens().map(Case::new).collect());
    &CASES
}

/// A definition's model and its drawing.
pub(crate) struct Drawn {
    pub(crate) def: ArchDef,
    pub(crate) sample: TracedPlan,
    pub(crate) drawing: Drawing,
}

/// Every variant of every definition, drawn with symbols.
pub(crate) fn all_variants() -> &'static [Drawn] {
    static ALL: LazyLock<Vec<Drawn>> = LazyLock::new(|| {
        let library = library();
        let of_definition = library.sources().flat_map(|(arch, _)| {
            let def = library.get(arch).expect("sound");
            let all = variants(&def).into_iter();
            let one = all.map(|(tag, request): (String, SynthRequest)| {
                let name = format!("{arch}-{tag}");
                let name = name.trim_end_matches('-');
                let sample = TracedPlan::of_definition(name, &def, &request).expect("a graph");
                Drawn {
                    drawing: Drawing::new(&def, &sample),
                    def: def.clone(),
                    sample,
                }
            });
            one.collect::<Vec<_>>()
        });
        of_definition.collect()
    });
    &ALL
}

/// Whether an operation only looks at what it reads in another way.
fn is_layout(step: &GraphOp) -> bool {
    const LAYOUT: &str = "RESHAPE VIEW PERMUTE TRANSPOSE CONT REPEAT CPY";
    let no_bound = step.op == "CLAMP" && step.params[..2] == [f32::MIN, f32::MAX];
    LAYOUT.split(' ').any(|op| op == step.op) || no_bound
}

fn weights_read<'s>(steps: &[GraphOp], of: impl IntoIterator<Item = &'s usize>) -> BTreeSet<usize> {
    let sources = of.into_iter().flat_map(|at| &steps[*at].sources);
    let weights = sources.filter_map(|source| match behind(steps, source, is_layout) {
        OpSource::Weight(weight) => Some(weight),
        _ => None,
    });
    weights.collect()
}

/// Operations that run are drawn, each once.
fn check_operations(place: &str, parts: &[&UnitBox], wiring: &[usize], run: &BTreeSet<usize>) {
    let ops = parts.iter().flat_map(|part| &part.ops);
    let mut drawn: Vec<usize> = ops.flat_map(|op| op.steps.clone()).collect();
    drawn.extend(wiring);
    drawn.sort_unstable();
    let run: Vec<usize> = run.iter().copied().collect();
    assert_eq!(drawn, run, "{place}: what is drawn is not what runs");
}

/// Each weight in the boxes that read it, and in one part unless it is shared.
fn check_weights(place: &str, steps: &[GraphOp], parts: &[&UnitBox], run: &BTreeSet<usize>) {
    let mut listed = BTreeSet::new();
    for part in parts {
        for op in &part.ops {
            let drawn = op.weights.iter().map(|at| part.weights[*at].tensors[0]);
            let drawn: BTreeSet<usize> = drawn.collect();
            assert_eq!(drawn, weights_read(steps, &op.steps), "{place}: {}", op.id);
        }
        for weight in &part.weights {
            let is_new = listed.insert(weight.tensors[0]);
            assert!(is_new || weight.is_shared, "{place}: {} twice", weight.id);
        }
    }
    assert_eq!(listed, weights_read(steps, run), "{place}: weights");
}

/// Arrows of a part are those of the graph, and go from what comes first to what comes later.
fn check_arrows(name: &str, steps: &[GraphOp], part: &UnitBox) {
    let mut box_of = BTreeMap::new();
    let mut expected = BTreeSet::new();
    for (to, op) in part.ops.iter().enumerate() {
        box_of.extend(op.steps.iter().map(|at| (*at, to)));
        for source in op.steps.iter().flat_map(|at| &steps[*at].sources) {
            if let OpSource::Op(at) = behind(steps, source, is_layout) {
                expected.insert((box_of.get(&at).copied(), to));
            }
        }
        expected.remove(&(Some(to), to));
    }
    let found = part.edges.iter().map(|edge| match &edge.from {
        EdgeSource::Op(from) => (Some(*from), edge.to),
        EdgeSource::Outside(_) => (None, edge.to),
    });
    let found: BTreeSet<(Option<usize>, usize)> = found.collect();
    assert_eq!(found, expected, "{name}: {}: arrows", part.path);
    let starts = part.ops.iter().map(|op| op.steps[0]);
    assert!(starts.is_sorted(), "{name}: {}: another order", part.path);
}

/// Every slot that adds does so to what the slot before it left.
fn check_stream(name: &str, steps: &[GraphOp], slots: &[Slot]) {
    let last = |part: &UnitBox| part.ops.last().map(|op| op.steps[op.steps.len() - 1]);
    let mut stream: Option<usize> = None;
    for slot in slots {
        if slot.join == Join::Add {
            let place = format!("{name}: {}", slot.path);
            let joined = slot.joined.unwrap_or_else(|| panic!("{place} adds"));
            assert_eq!(steps[joined].op, "ADD", "{place}");
            let read = behind(steps, &steps[joined].sources[0], is_layout);
            if let Some(stream) = stream {
                assert_eq!(read, OpSource::Op(stream), "{place}");
            }
        }
        let block = slot.branches.last().and_then(|branch| last(&branch.block));
        let scaled = slot.scale.as_ref().map(|scale| scale.step);
        let post = slot.post.as_ref().and_then(last);
        let after = slot.after.as_ref().and_then(last);
        let summed = slot.sums.last().copied();
        let result = slot.joined.or(scaled).or(post).or(summed).or(block);
        stream = after.or(result).or(stream);
    }
}

fn check_drawing(name: &str, sample: &TracedPlan, drawing: &Drawing) {
    let (steps, layers) = (sample.steps(), &sample.plan().layers);
    assert_eq!(drawing.unplaced, Vec::<usize>::new(), "{name}: not drawn");
    assert_eq!(drawing.layers.len(), layers.len(), "{name}");
    let computed = (0..steps.len()).filter(|at| !is_layout(&steps[*at]));
    let mut rest: BTreeSet<usize> = computed.collect();
    for kind in &drawing.kinds {
        let of_layers = kind.layers.iter().map(|at| {
            let below = format!("{}.", layers[*at].path);
            let is_below = |at: &usize| steps[*at].path.starts_with(&below);
            let (own, others) = std::mem::take(&mut rest).into_iter().partition(is_below);
            rest = others;
            own
        });
        let of_layers: Vec<BTreeSet<usize>> = of_layers.collect();
        // A layer of a kind does what all of its kind do.
        let mut ops = of_layers.iter().map(|run| {
            let mut ops: Vec<&str> = run.iter().map(|at| steps[*at].op.as_str()).collect();
            ops.sort_unstable();
            ops
        });
        let first = ops.next();
        assert!(ops.all(|ops| Some(ops) == first), "{name}: {}", kind.id);
        let parts: Vec<&UnitBox> = kind.slots.iter().flat_map(Slot::parts).collect();
        let wiring: Vec<usize> = kind.slots.iter().flat_map(Slot::wiring).collect();
        let place = format!("{name}: {}", kind.id);
        check_operations(&place, &parts, &wiring, &of_layers[0]);
        check_weights(&place, steps, &parts, &of_layers[0]);
        check_stream(name, steps, &kind.slots);
    }
    let stages: Vec<&UnitBox> = drawing.begin.iter().chain(&drawing.end).collect();
    check_operations(name, &stages, &[], &rest);
    check_weights(name, steps, &stages, &rest);
    for part in drawing.parts() {
        check_arrows(name, steps, part);
    }
}

#[test]
fn drawn_operations_equal_the_graph() {
    for case in cases() {
        for (sample, drawing) in case.both() {
            check_drawing(&case.golden.name, sample, drawing);
        }
    }
}

/// As the graph of a drawing is.
pub(crate) fn as_drawn(n_ctx: usize, n_seqs: usize) -> Options {
    Options {
        n_ctx,
        n_seqs,
        k_type: TensorType::F16,
        v_type: TensorType::F16,
        flash_attn: true,
        ..options()
    }
}

/// The model of a golden after a pass over its first `n` tokens, with logits of all of them or of the last one.
pub(crate) fn after_pass(golden: &Golden, n: usize, is_all: bool) -> Model {
    let options = Options {
        n_batch: golden.tokens.len(),
        ..as_drawn(n.next_multiple_of(16).max(64), 1)
    };
    let mut model = model(golden, options);
    let mut batch = Batch::default();
    for (at, token) in (0..).zip(&golden.tokens[..n]) {
        batch.push(*token, 0, at, is_all || at as usize + 1 == n);
    }
    model.forward(&batch).expect("the pass runs");
    model
}

/// The operations that a loaded model ran are those that are drawn.
#[test]
fn what_is_built_is_what_runs() {
    for golden in all_goldens() {
        let n = golden.tokens.len();
        let drawn = trace(&golden.plan, n).unwrap();
        let model = after_pass(golden, n, true);
        // A source was read before, in a pass of its own.
        let run = model.steps();
        let n_before = drawn.len() - run.len();
        assert_eq!(n_before > 0, model.reads_source(), "{}", golden.name);
        let run: Vec<_> = run.into_iter().map(|step| step.after(n_before)).collect();
        for (drawn, run) in drawn[n_before..].iter().zip(&run) {
            assert_eq!(
                (&drawn.op, &drawn.path, &drawn.sources, drawn.ty),
                (&run.op, &run.path, &run.sources, run.ty),
                "{}",
                golden.name
            );
        }
    }
}

#[test]
fn without_a_file_no_size_is_a_number() {
    // 1 is one everywhere; time mixing has 5 or 6 inputs and a mix 2 multipliers, whatever their sizes.
    let is_number = |text: &&String| matches!(text.parse::<u64>(), Ok(2..=4 | 7..));
    for case in cases() {
        let drawing = &case.drawings[1];
        for part in drawing.parts() {
            let multipliers = ("mix", "scale");
            let sized = part.weights.iter();
            let sized = sized.filter(|w| (part.kind, w.key.as_str()) != multipliers);
            let weights = sized.flat_map(|w| &w.shape);
            let results = part.ops.iter().flat_map(|op| &op.result);
            let edges = part.edges.iter().flat_map(|edge| &edge.shape);
            let number = weights.chain(results).chain(edges).find(is_number);
            let found = (number, part.cost);
            assert_eq!(found, (None, None), "{}: {}", case.golden.name, part.path);
        }
        assert_eq!((drawing.cost, drawing.kept.per_token), (None, None));
    }
}

#[test]
fn numbers_of_a_file_add_up() {
    for case in cases() {
        let (sample, drawing, name) = (&case.samples[0], &case.drawings[0], &case.golden.name);
        let plan = sample.plan();
        let mut tensors = BTreeSet::new();
        for part in drawing.parts() {
            let own = part.weights.iter().flat_map(|w| w.tensors.iter().copied());
            let own: BTreeSet<usize> = own.collect();
            let bytes: u64 = own.iter().map(|at| plan.tensors[*at].bytes).sum();
            assert_eq!(part.cost.unwrap().bytes, bytes, "{name}: {}", part.path);
            tensors.extend(own);
        }
        // Of two tables for short and long contexts a pass reads one.
        let all: Vec<usize> = (0..sample.steps().len()).collect();
        assert_eq!(tensors, weights_read(sample.steps(), &all), "{name}");
        let mut options = drawing.parts().flat_map(|part| &part.options);
        let has_open = options.any(|option| option.is_open);
        assert!(!has_open, "{name}: a file decides");
        let kept = &drawing.kept;
        let told = [kept.per_token, kept.in_window, kept.per_sequence];
        if plan.mode != Mode::Causal {
            assert_eq!(told, [None; 3], "{name}");
            continue;
        }
        let own = plan.key_values().filter(|(_, rows)| rows.owner.is_none());
        let rows = own.map(|(_, rows)| {
            // Keys of spans lie among those of positions; what they are made of is f32.
            let keys = plan.caches[rows.cache].layout().rows(2 * 16 * rows.k) / 16;
            let pooled = rows.pooled.as_ref().map_or(0, |of| 4 * of.width);
            2 * (rows.width() - rows.k) + keys + pooled
        });
        let [token, window, sequence] = told.map(|bytes| bytes.unwrap_or(0));
        assert_eq!(token + window, rows.sum::<u64>(), "{name}");
        assert_eq!(sequence, plan.recurrent_bytes(1).unwrap(), "{name}");
    }
}

pub(crate) fn check_layout(name: &str, piece: &Fragment) {
    let mut texts: Vec<(svg::Rect, &str)> = piece.texts().collect();
    texts.sort_by(|(a, _), (b, _)| a.y.total_cmp(&b.y));
    let is_inside =
        |r: &svg::Rect| r.x >= 0.0 && r.y >= 0.0 && r.x + r.w <= piece.w && r.y + r.h <= piece.h;
    for (i, (rect, text)) in texts.iter().enumerate() {
        assert!(is_inside(rect), "{name}: `{text}` at {rect:?} is outside");
        let below = texts[i + 1..].iter();
        let mut near = below.take_while(|(other, _)| other.y <= rect.y + rect.h);
        let met = near.find(|(other, _)| rect.meets(other));
        assert_eq!(met, None, "{name}: `{text}` at {rect:?} meets another text");
    }
    for item in &piece.items {
        if let DrawItem::Box(rect, ..) = item {
            assert!(is_inside(rect), "{name}: a box at {rect:?} is outside");
        }
    }
}

#[test]
fn pictures_are_legible_sound_and_the_same_each_time_and_say_what_they_show() {
    for case in cases() {
        let name = &case.golden.name;
        for (sample, drawing) in case.both() {
            let again = Drawing::new(&case.golden.def, sample);
            for picture in [svg::stack, svg::layers] {
                let piece = picture(drawing);
                check_layout(name, &piece);
                let text = svg::document(drawing, &piece, "the whole model");
                let same = svg::document(&again, &picture(&again), "the whole model");
                assert_eq!(text, same, "{name}");
                let xml = roxmltree::Document::parse(&text);
                let xml = xml.unwrap_or_else(|e| panic!("{name}: {e}"));
                let own = |tag: &str| {
                    let mut all = xml.root_element().children();
                    let found = all.find(|node| node.tag_name().name() == tag);
                    found.and_then(|node| node.text()).expect(tag).to_owned()
                };
                assert!(!own("title").is_empty());
                check_words(drawing, &own("desc"));
            }
        }
    }
}

/// The description of a picture says what the model is.
fn check_words(drawing: &Drawing, told: &str) {
    let mode = match drawing.mode {
        Mode::Causal => "an autoregressive model. The whole model: ",
        Mode::Diffusion => "a text diffusion model. The whole model: ",
        Mode::Encoder => "an encoder. The whole model: ",
        Mode::Tower => "a tower, which makes rows for another model. The whole model: ",
    };
    let labels = drawing.kinds.iter().map(|kind| kind.label.as_str());
    for part in labels.chain([mode, &drawing.name]) {
        assert!(told.contains(part), "{part}: {told}");
    }
    let n_layers = format!(" Layers: {}.", drawing.layers.len());
    assert_eq!(told.contains(&n_layers), !drawing.is_symbolic, "{told}");
}

#[cfg(feature = "png")]
#[test]
fn a_png_is_a_picture_of_its_size() {
    use lab_inspect::diagram::png::png;
    let drawing = &cases()[0].drawings[0];
    let piece = svg::stack(drawing);
    let text = svg::document(drawing, &piece, "a picture");
    let bytes = png(&text).unwrap();
    assert_eq!(&bytes[..8], b"\x89PNG\r\n\x1a\n");
    let size = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let expected = [piece.w, piece.h].map(|n| (n.ceil() * 1.5).ceil() as u32);
    assert_eq!([size(16), size(20)], expected);
    assert_eq!(bytes, png(&text).unwrap());
    assert!(png("<svg").is_err());
}

/// Characters that the fonts do not have are named, and nothing else.
#[cfg(feature = "png")]
#[test]
fn characters_without_a_glyph_are_named() {
    use crate::support::command::{bench, scratch, text};
    let scratch = scratch();
    let draw = |name: &str| {
        let folder = text(scratch.path());
        let ran = bench(&["diagram", "bert", "--png", "--name", name, "-o", folder]);
        assert!(ran.is_fine(), "{}", ran.err);
        ran.err
    };
    assert_eq!(draw("plain \u{e9}"), "");
    let said = draw("\u{6f22}\u{5b57}\u{6f22} \u{1f600}");
    for code in ["U+6F22", "U+5B57", "U+1F600"] {
        assert!(said.contains(code), "{said}");
    }
}

#[test]
fn the_gallery_is_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/diagrams");
    let files = gallery(&library()).expect("every definition can be drawn");
    let mut stored = BTreeMap::new();
    for entry in std::fs::read_dir(&folder).expect("the gallery is there") {
        let entry = entry.expect("readable");
        let text = std::fs::read_to_string(entry.path()).expect("text");
        stored.insert(entry.file_name().into_string().expect("a name"), text);
    }
    for (name, text) in files {
        let is_same = stored.remove(&name) == Some(text);
        assert!(is_same, "docs/diagrams/{name} is stale: make diagrams");
    }
    let names: Vec<String> = stored.into_keys().collect();
    assert!(names.is_empty(), "{names:?} are of nothing: make diagrams");
}

/// What a definition can be is drawn: every slot and branch occurs in some variant.
#[test]
fn variants_show_what_definitions_can_be() {
    let (mut all, mut drawn) = (BTreeSet::new(), BTreeSet::new());
    for own in all_variants() {
        let name = &own.def.name;
        for (stack, of) in own.def.stacks.iter().enumerate() {
            for (slot, of) in of.slots.iter().enumerate() {
                let branches = 0..of.branches.len();
                all.extend(branches.map(|branch| (name, stack, slot, branch)));
            }
        }
        for layer in &own.sample.plan().layers {
            for slot in &layer.slots {
                let branches = slot.branches.iter();
                drawn.extend(branches.map(|branch| (name, layer.stack, slot.at, branch.at)));
            }
        }
    }
    assert_eq!(all, drawn);
}

/// Words of a formula and the operations they stand for. Attention bounds its scores and experts normalise
/// within other operations, and a convolution's result is activated too.
#[test]
fn formulas_match_the_graph() {
    const WORDS: [(&str, &[&str], &[&str]); 4] = [
        ("rope(", &["ROPE"], &["attention"]),
        (
            "norm(",
            &["RMS_NORM", "NORM"],
            &["attention", "embed", "ffn", "mamba"],
        ),
        ("softcap(", &["TANH"], &["head"]),
        ("silu(", &["SILU", "SWIGLU"], &["ffn", "moe"]),
    ];
    let mut seen = BTreeSet::new();
    let drawings = cases().iter().flat_map(|case| &case.drawings);
    for part in drawings.flat_map(|drawing| drawing.parts()) {
        for (word, names, kinds) in WORDS {
            let is_open = part.options.iter().any(|o| o.name == "act" && o.is_open);
            if !kinds.contains(&part.kind) || is_open && word == "silu(" {
                continue;
            }
            let mut ops = part.ops.iter().flat_map(|op| &op.ops);
            let is_done = ops.any(|op| names.contains(&op.as_str()));
            let is_told = part.formula.contains(word);
            assert_eq!(is_told, is_done, "{}: {}", part.path, part.formula);
            seen.insert((word, is_told));
        }
    }
    assert_eq!(seen.len(), 2 * WORDS.len());
}

/// What a file decides is open in a drawing without one.
#[test]
fn choices_of_a_file_are_open_without_one() {
    let mut all = BTreeSet::new();
    for own in all_variants() {
        for part in own.drawing.parts() {
            let open = part.options.iter().filter(|option| option.is_open);
            let name = &own.drawing.name;
            all.extend(open.map(|o| format!("{name}: {}: {} = {}", part.kind, o.name, o.value)));
        }
    }
    let all: Vec<String> = all.into_iter().collect();
    insta::assert_snapshot!("open_choices", all.join("\n"));
}

#[test]
fn a_drafter_is_drawn_with_what_it_reads_of_its_target() {
    let with = definitions();
    let mut n_with_rows = 0;
    for (name, _) in with.drafters.sources() {
        let def = with.drafters.get(name).expect("it is built in");
        for (tag, request) in variants(&def) {
            let sample = TracedPlan::of_definition(name, &def, &request).expect("a graph");
            let drawing = Drawing::new(&def, &sample);
            assert_eq!(drawing.source_rows, SourceRows::Target, "{name} {tag}");
            let left = drawing.unplaced.iter();
            let left: Vec<&str> = left.map(|at| &*sample.steps()[*at].op).collect();
            assert!(left.is_empty(), "{name} {tag}: {left:?}");
            let titles: Vec<&str> = drawing
                .scenes
                .iter()
                .map(|scene| scene.title.as_str())
                .collect();
            assert_eq!(titles[..2], ["What was read", "Draft"], "{name} {tag}");
            // Rows come from layers of their own, or a slot reads them.
            let slots = drawing.kinds.iter().flat_map(|kind| &kind.slots);
            let is_read = slots
                .clone()
                .any(|slot| slot.from.as_deref() == Some("target"));
            n_with_rows += usize::from(!drawing.source.is_empty());
            assert!(!drawing.source.is_empty() || is_read, "{name} {tag}");
        }
    }
    assert!(n_with_rows > 1);
    let folder = scratch();
    for name in ["eagle3", "eagle3.drafter", "dflash-windows"] {
        printed(&["diagram", name, "-o", text(folder.path())]);
        let picture = folder.path().join(format!("{name}.arch.svg"));
        let picture = std::fs::read_to_string(picture).expect("a picture");
        assert!(
            picture.contains("hidden states of the model that is drafted for: T rows"),
            "{name}"
        );
    }
}
