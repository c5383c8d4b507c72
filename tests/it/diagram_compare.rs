//! Two drawings, compared: nothing differs from itself, one edit is told as that edit, the order of the
//! two does not matter, and everything of both is there once.
//!
//! What is there is counted from the drawings alone; what an edit changes is said by the test.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use lab_bench::arch::{ArchDef, Library};
use lab_bench::diagram::compare::{Comparison, Finding, KindPair, Level, Side, Told, summary};
use lab_bench::diagram::{Drawing, Part, Sample, svg, variants};
use lab_bench::synth::{Request, design};

use crate::command::{Ran, bench, scratch, text};
use crate::diagrams::{Case, cases, check_layout};
use crate::goldens::library;

/// Pairs that are told apart by very different things.
const PAIRS: [[&str; 2]; 12] = [
    ["llama", "qwen3"],
    ["llama", "gptneox"],
    ["llama", "llama-moe"],
    ["gemma3", "gemma4"],
    ["mamba", "mamba2"],
    ["bert", "llama"],
    ["deepseek2", "llama-moe"],
    ["falcon-h1", "granitehybrid"],
    ["llada", "llama"],
    ["gpt-oss", "qwen3moe"],
    ["qwen35moe", "kimi-linear"],
    ["gemma4-moe", "gemma4"],
];

fn drawing_of(name: &str, def: &ArchDef, source: &str, request: &Request) -> Drawing {
    let sample = Sample::of_definition(name, def, request).expect("it can be drawn");
    Drawing::new(def, source, &sample)
}

/// A definition, or a variant by the name of its picture.
fn drawing(library: &Library, name: &str) -> Drawing {
    let is_known = |name: &str| library.sources().any(|(known, _)| known == name);
    let (arch, tag) = match is_known(name) {
        true => (name, ""),
        false => name.rsplit_once('-').expect("a variant"),
    };
    let def = library.get(arch).expect("sound");
    let source = &library.source(arch).expect("built in").text;
    let all = variants(&def).expect("a model by default");
    let found = all.into_iter().find(|(known, _)| known == tag);
    let (_, request) = found.expect("a variant");
    drawing_of(name, &def, source, &request)
}

/// Every golden with the numbers of its file, and with symbols.
fn goldens() -> &'static [(String, [Drawing; 2])] {
    static ALL: OnceLock<Vec<(String, [Drawing; 2])>> = OnceLock::new();
    ALL.get_or_init(|| {
        let all = cases(&library());
        let drawn = |case: &Case| case.samples().map(|sample| case.drawing(&sample));
        all.iter()
            .map(|case| (case.name.clone(), drawn(case)))
            .collect()
    })
}

#[test]
fn nothing_differs_from_itself() {
    for (name, drawings) in goldens() {
        for drawing in drawings {
            let comparison = Comparison::new(drawing, drawing);
            assert_eq!(comparison.findings(), Vec::<Finding>::new(), "{name}");
            let level = comparison.parts().map(|pair| pair.level()).max();
            assert_eq!(level, Some(Level::Same), "{name}");
            let kinds = comparison.kinds.iter().map(|kind| kind.level()).max();
            assert_eq!(kinds, Some(Level::Same), "{name}");
            assert!(summary(&comparison).contains("both compute the same"));
            check_whole(name, &comparison);
        }
    }
}

/// A made-up model and its definition: numbers and symbols cannot be compared, all else is the same.
#[test]
fn a_model_computes_what_its_definition_says() {
    for (name, [numbers, symbols]) in goldens() {
        let comparison = Comparison::new(numbers, symbols);
        assert_eq!(comparison.findings(), Vec::<Finding>::new(), "{name}");
        check_whole(name, &comparison);
    }
}

/// One edit of a definition: what is replaced by what, and the words of the one thing that differs then.
struct Edit {
    arch: &'static str,
    from: &'static str,
    to: &'static str,
    with: &'static [&'static str],
    told: &'static [&'static str],
}

fn edit(
    arch: &'static str,
    from: &'static str,
    to: &'static str,
    told: &'static [&'static str],
) -> Edit {
    Edit {
        arch,
        from,
        to,
        with: &[],
        told,
    }
}

const FFN: &str = "[[stack.slot]]\nname   = \"ffn\"\npre    = \"ffn_norm\"\nbranch = [{ block = \"ffn\", act = \"silu\", weights = { gate = true } }]\n";
const ATTN: &str = "[[stack.slot]]\nname   = \"attn\"\npre    = \"attn_norm\"\nbranch = [{ block = \"attention\", rope = \"std\", cache = \"full\", qk_norm = \"head\" }]\n";

fn edits() -> Vec<Edit> {
    let mut all = vec![
        edit(
            "qwen3",
            "act = \"silu\"",
            "act = \"gelu\"",
            &["Feed-forward network", "SiLU", "GELU"],
        ),
        edit(
            "qwen3",
            "qk_norm = \"head\"",
            "qk_norm = \"full\"",
            &["Attention", "per head", "all heads together"],
        ),
        edit(
            "qwen3",
            ", qk_norm = \"head\"",
            "",
            &[
                "normalises queries and keys per head",
                "as they are projected",
            ],
        ),
        edit(
            "qwen3",
            "kind = \"neox\"",
            "kind = \"norm\"",
            &["Attention", "neighbouring pairs"],
        ),
        edit(
            "qwen3",
            "[cache.full]",
            "[cache.full]\nsize = 64",
            &["Attention: only B", "window", "64"],
        ),
        edit(
            "qwen3",
            "pre    = \"ffn_norm\"\n",
            "",
            &["Feed-forward network: only A", "normalises what goes in"],
        ),
        edit(
            "qwen3",
            "pre    = \"ffn_norm\"",
            "post   = \"ffn_norm\"",
            &["normalises what goes in", "normalises what comes out"],
        ),
        edit(
            "qwen3",
            "name   = \"ffn\"",
            "name   = \"ffn\"\nscale  = 0.5",
            &[
                "Feed-forward network: only B",
                "multiplies the result by 0.5",
            ],
        ),
        edit(
            "qwen3",
            "name   = \"ffn\"",
            "name   = \"ffn\"\njoin   = \"set\"",
            &["is added to the stream", "takes the place of the stream"],
        ),
        edit(
            "qwen3",
            "kind = \"rms\"",
            "kind = \"layer\"",
            &["Every norm", "mean square", "mean and variance"],
        ),
        edit(
            "qwen3",
            "[embed]",
            "[embed]\nscale = \"sqrt(n_embd)\"",
            &["Token embedding: only B", "multiplies by `sqrt(n_embd)`"],
        ),
        edit(
            "qwen3",
            "norm = \"output_norm\"",
            "norm = \"output_norm\"\nsoftcap = 30.0",
            &["Head: only B", "bounds its scores"],
        ),
        edit(
            "qwen3",
            "norm = \"output_norm\"",
            "",
            &["Only A normalises the stream behind the layers"],
        ),
        edit(
            "qwen3",
            "cache = \"full\", ",
            "cache = \"full\", scale = 0.25, ",
            &["factor of the scores", "0.25"],
        ),
        edit(
            "qwen3",
            "branch = [{ block = \"ffn\", act = \"silu\", weights = { gate = true } }]",
            "branch = [{ block = \"ffn\", act = \"silu\", weights = { gate = true } }, { block = \"linear\", weights = { weight = \"extra.weight\" } }]",
            &["Only B has a linear map beside the feed-forward network"],
        ),
        edit(
            "qwen3",
            "[embed]\n\n[[stack]]\n\n[[stack.slot]]\nname   = \"attn\"\npre    = \"attn_norm\"\nbranch = [{ block = \"attention\", rope = \"std\", cache = \"full\"",
            "[cache.local]\nsize = 64\n\n[embed]\n\n[[stack]]\n\n[[stack.slot]]\nname   = \"attn\"\npre    = \"attn_norm\"\nbranch = [{ block = \"attention\", rope = \"std\", cache = \"if(il % 2 == 0, 'local', 'full')\"",
            &[
                "Only B has a further kind of layers",
                "unlike kind 1 it sees a window of `64`",
            ],
        ),
        edit(
            "gemma3",
            "size = \"n_swa\"",
            "size = 0",
            &["Attention of kind 1: only A sees a window"],
        ),
        edit(
            "mamba2",
            "block = \"mamba2\"",
            "block = \"short_conv\"",
            &["state-space scan", "short convolution"],
        ),
    ];
    all.push(Edit {
        with: &["attn_q.bias", "attn_k.bias"],
        ..edit(
            "qwen3",
            "",
            "",
            &["Attention: only B adds offsets: `q.bias` and `k.bias`"],
        )
    });
    all
}

/// The definition before and after an edit, drawn as `A` and `B`.
fn edited(library: &Library, edit: &Edit) -> [Drawing; 2] {
    let source = library.source(edit.arch).expect("built in").text.clone();
    assert!(source.contains(edit.from), "{}: {}", edit.arch, edit.from);
    let after = match edit.from {
        "" => source.clone(),
        from => source.replacen(from, edit.to, 1),
    };
    let draw = |name: &str, text: &str, with: &[&str]| {
        let checked = library.check("edited.arch.toml", text);
        let def = checked.unwrap_or_else(|e| panic!("{}: {e:?}\n{text}", edit.to));
        let mut request = match edit.arch {
            "gemma3" => variants(&def).expect("a model").remove(0).1,
            _ => Request::default(),
        };
        request.with = with.iter().map(|name| (*name).to_owned()).collect();
        drawing_of(name, &def, text, &request)
    };
    [draw("A", &source, &[]), draw("B", &after, edit.with)]
}

#[test]
fn one_edit_is_told_as_that_edit() {
    let library = library();
    for edit in edits() {
        let [a, b] = edited(&library, &edit);
        let comparison = Comparison::new(&a, &b);
        check_whole(edit.to, &comparison);
        check_symmetry(edit.to, &a, &b);
        let names = comparison.names();
        let told: Vec<String> = comparison
            .findings()
            .iter()
            .filter(|finding| finding.level > Level::Names)
            .map(|finding| finding.sentence(&names))
            .collect();
        assert_eq!(told.len(), 1, "{} -> {}: {told:#?}", edit.from, edit.to);
        for part in edit.told {
            assert!(told[0].contains(part), "`{part}` is not in `{}`", told[0]);
        }
    }
}

#[test]
fn slots_in_another_order_are_told_as_moved() {
    let library = library();
    let source = library.source("qwen3").expect("built in").text.clone();
    let both = format!("{ATTN}\n{FFN}");
    assert!(source.contains(&both));
    let after = source.replace(&both, &format!("{FFN}\n{ATTN}"));
    let [a, b] = [("A", &source), ("B", &after)].map(|(name, text)| {
        let def = library.check("edited.arch.toml", text).expect("sound");
        drawing_of(name, &def, text, &Request::default())
    });
    let comparison = Comparison::new(&a, &b);
    check_whole("moved", &comparison);
    let findings = comparison.findings();
    assert_eq!(findings.len(), 1, "{findings:#?}");
    let order = [
        "attention, then feed-forward network",
        "feed-forward network, then attention",
    ];
    let expected = Told::Has("order of the sublayers".into(), order.map(str::to_owned));
    assert_eq!(findings[0].told, expected);
}

#[test]
fn another_name_is_no_other_computation() {
    let library = library();
    let source = library.source("qwen3").expect("built in").text.clone();
    let after = source.replace("\"ffn_norm\"", "\"norm_before_ffn\"");
    let [a, b] = [("A", &source), ("B", &after)].map(|(name, text)| {
        let def = library.check("edited.arch.toml", text).expect("sound");
        drawing_of(name, &def, text, &Request::default())
    });
    let findings = Comparison::new(&a, &b).findings().to_vec();
    assert_eq!(findings.len(), 1, "{findings:#?}");
    assert_eq!(findings[0].level, Level::Names);
}

/// Models of one definition that differ in sizes: numbers, and only with files.
#[test]
fn other_sizes_are_numbers_of_files() {
    let library = library();
    let def = library.get("llama").expect("sound");
    let source = &library.source("llama").expect("built in").text;
    let requests = ["2", "3"].map(|layers| {
        let set = [
            ("block_count", layers),
            (
                "feed_forward_length",
                if layers == "2" { "64" } else { "96" },
            ),
        ];
        let set = set.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Request {
            set: set.to_vec(),
            ..Request::default()
        }
    });
    let files = requests.each_ref().map(|request| {
        let (_, plan) = design(&def, request).expect("it can be made");
        let sample = Sample::of_model("m", &plan).expect("a graph");
        Drawing::new(&def, source, &sample)
    });
    let comparison = Comparison::new(&files[0], &files[1]);
    let levels: Vec<Level> = comparison.findings().iter().map(|f| f.level).collect();
    assert!(
        !levels.is_empty() && levels.iter().all(|level| *level == Level::Numbers),
        "{levels:?}"
    );
    let text = summary(&comparison);
    assert!(text.contains("| layers | 2 | 3 |"), "{text}");
    assert!(text.contains("both compute the same"), "{text}");
    let symbols = requests.map(|request| drawing_of("m", &def, source, &request));
    let comparison = Comparison::new(&symbols[0], &symbols[1]);
    assert_eq!(comparison.findings(), Vec::<Finding>::new());
}

/// How often each part, weight and operation of a side is in a comparison, by its address.
fn counted(comparison: &Comparison<'_>, side: Side) -> BTreeMap<usize, usize> {
    fn of<T: Copy>(side: Side, pair: (Option<T>, Option<T>)) -> Option<T> {
        match side {
            Side::A => pair.0,
            Side::B => pair.1,
        }
    }
    let mut times = BTreeMap::new();
    let mut add = |at: Option<usize>| {
        if let Some(at) = at {
            *times.entry(at).or_default() += 1;
        }
    };
    for pair in comparison.parts() {
        let part = of(side, (pair.part.a, pair.part.b));
        add(part.map(|part| std::ptr::from_ref(part) as usize));
        for row in &pair.weights {
            let weight = of(side, (row.weight.a, row.weight.b));
            add(weight.map(|weight| std::ptr::from_ref(weight) as usize));
        }
        for row in &pair.ops {
            let op = of(side, (row.op.a, row.op.b));
            add(op.map(|op| std::ptr::from_ref(op) as usize));
        }
    }
    times
}

/// Every part, weight and operation of both drawings, once.
fn check_whole(name: &str, comparison: &Comparison<'_>) {
    for side in [Side::A, Side::B] {
        let mut expected = BTreeMap::new();
        for part in comparison.drawing(side).parts() {
            let weights = part.weights.iter().map(|w| std::ptr::from_ref(w) as usize);
            let ops = part.ops.iter().map(|op| std::ptr::from_ref(op) as usize);
            let own = std::ptr::from_ref(part) as usize;
            expected.extend(
                [own]
                    .into_iter()
                    .chain(weights)
                    .chain(ops)
                    .map(|at| (at, 1)),
            );
        }
        assert!(!expected.is_empty());
        let found = counted(comparison, side);
        let twice = found.values().filter(|n| **n > 1).count();
        assert_eq!(
            (found.len(), twice),
            (expected.len(), 0),
            "{name}: {side:?}"
        );
        assert!(
            found == expected,
            "{name}: {side:?}: other parts than those drawn"
        );
    }
}

/// Exchanging the two exchanges the sides, in the tree, the words and the order of the words.
fn check_symmetry(name: &str, a: &Drawing, b: &Drawing) {
    let one = Comparison::new(a, b);
    let other = Comparison::new(b, a);
    let swapped: Vec<(Level, Vec<String>, Told)> = one
        .findings()
        .iter()
        .map(|f| (f.level, f.places.clone(), f.told.clone().swapped()))
        .collect();
    let found: Vec<(Level, Vec<String>, Told)> = other
        .findings()
        .iter()
        .map(|f| (f.level, f.places.clone(), f.told.clone()))
        .collect();
    assert_eq!(found, swapped, "{name}");
    assert_eq!(
        format!("{:?}", one.swapped()),
        format!("{other:?}"),
        "{name}"
    );
}

/// A release build takes a sixth of this; the machine of a test may be busy.
const COMPARED_WITHIN: Duration = Duration::from_millis(600);

#[test]
fn pairs_are_whole_symmetric_legible_and_quick() {
    let library = library();
    for [a, b] in PAIRS {
        let name = format!("{a} and {b}");
        let [a, b] = [a, b].map(|name| drawing(&library, name));
        let start = Instant::now();
        let comparison = Comparison::new(&a, &b);
        let text = summary(&comparison);
        let picture = svg::comparison(&comparison, &name);
        let took = start.elapsed();
        assert!(took < COMPARED_WITHIN, "{name}: {took:?}");
        check_whole(&name, &comparison);
        check_symmetry(&name, &a, &b);
        check_layout(&name, &svg::compared(&comparison));
        let again = Comparison::new(&a, &b);
        assert_eq!(svg::comparison(&again, &name), picture, "{name}");
        assert_eq!(summary(&again), text, "{name}");
        let xml = roxmltree::Document::parse(&picture).expect("XML");
        assert!(xml.root_element().has_attribute("viewBox"));
    }
}

/// Definitions that differ in blocks of one title.
const ALIKE: [[&str; 2]; 17] = [
    ["llama", "deepseek2"],
    ["llama", "qwen2moe"],
    ["llama", "arctic"],
    ["llama", "dbrx"],
    ["llama-moe", "arctic"],
    ["llama-moe", "llama4"],
    ["gemma4", "gemma4-moe"],
    ["gemma4", "gemma4-input"],
    ["gemma4-moe", "gemma4-input"],
    ["gemma3", "gemma4-moe"],
    ["deepseek2", "qwen35moe"],
    ["kimi-linear", "qwen35moe"],
    ["qwen2moe", "qwen3moe"],
    ["grok", "grok-ffn"],
    ["granitehybrid", "granitehybrid-moe"],
    ["falcon-h1", "jamba"],
    ["nomic-bert", "nomic-bert-moe"],
];

/// Neighbours in the list of definitions, near and far, and those that are alike.
#[test]
fn what_only_one_side_has_is_not_on_the_other() {
    let library = library();
    let names: Vec<&str> = library.sources().map(|(name, _)| name).collect();
    let more = ALIKE.iter().flatten().copied();
    let drawings: BTreeMap<&str, Drawing> = names
        .iter()
        .copied()
        .chain(more)
        .map(|name| (name, drawing(&library, name)))
        .collect();
    let near = names.windows(2).map(|pair| [pair[0], pair[1]]);
    let far = names.iter().zip(&names[7..]).map(|(a, b)| [*a, *b]);
    let mut n_told = 0;
    for [a, b] in near.chain(far).chain(ALIKE) {
        let comparison = Comparison::new(&drawings[a], &drawings[b]);
        n_told += check_only(&format!("{a} and {b}"), &comparison);
    }
    assert!(n_told > 50, "{n_told}");
}

/// Of what is told that only one side has: the other has no block of that title, in the kinds of layers
/// that are named or, if none is, in any. How much is told.
fn check_only(name: &str, comparison: &Comparison<'_>) -> usize {
    let mut n_told = 0;
    for finding in comparison.findings() {
        let Told::Only(side, text) = &finding.told else {
            continue;
        };
        let Some(what) = text.strip_prefix("has ") else {
            continue;
        };
        let title = what.split(':').next().unwrap_or_default();
        let title = title.split(" beside the ").next().unwrap_or_default();
        let article = ["a ", "an "].iter().find_map(|a| title.strip_prefix(a));
        let title = article.unwrap_or(title);
        let other = side.other();
        let numbers: Vec<usize> = finding
            .places
            .iter()
            .filter_map(|place| place.strip_prefix("kind ")?.parse().ok())
            .collect();
        let named = (1..).zip(&comparison.kinds);
        let named = named.filter(|(n, _)| numbers.is_empty() || numbers.contains(n));
        let kinds = named.filter_map(|(_, pair)| match other {
            Side::A => pair.kind.a,
            Side::B => pair.kind.b,
        });
        let slots = kinds.flat_map(|kind| &kind.slots);
        let blocks = slots.flat_map(|slot| &slot.branches).map(|b| &b.block);
        let same = blocks.filter(|block| block.title.eq_ignore_ascii_case(title));
        assert_eq!(same.count(), 0, "{name}: {text}: {:?}", finding.places);
        n_told += 1;
    }
    n_told
}

/// Of two blocks of one title where the other side has one, one is told, as a further one.
#[test]
fn a_second_block_of_a_title_is_a_further_one() {
    let library = library();
    let plain = drawing(&library, "llama");
    let mut twice = plain.clone();
    let slots = &mut twice.kinds[0].slots;
    slots.push(slots.last().expect("slots").clone());
    twice.name = "twice".into();
    let comparison = Comparison::new(&plain, &twice);
    let names = comparison.names();
    let told = comparison.findings().iter();
    let told: Vec<String> = told.map(|finding| finding.sentence(&names)).collect();
    assert!(
        told.len() == 1 && told[0].starts_with("Only twice has a further feed-forward network: "),
        "{told:?}"
    );
}

/// A block that the other side has in other layers is told with the number of its kind of layers.
#[test]
fn what_the_other_side_has_elsewhere_is_told_with_its_place() {
    let library = library();
    let [a, b] = ["nemotron", "nemotron_h"].map(|name| drawing(&library, name));
    let comparison = Comparison::new(&a, &b);
    let names = comparison.names();
    let told = comparison.findings().iter();
    let told: Vec<String> = told.map(|finding| finding.sentence(&names)).collect();
    let has = |begin: &str| told.iter().any(|text| text.starts_with(begin));
    assert!(
        has("Kind 1: only nemotron has a feed-forward network"),
        "{told:?}"
    );
}

/// Neighbours in the index of the goldens, with their numbers.
#[test]
fn models_with_numbers_are_whole_and_legible() {
    for pair in goldens().windows(2).step_by(7) {
        let name = format!("{} and {}", pair[0].0, pair[1].0);
        let [a, b] = [&pair[0].1[0], &pair[1].1[0]];
        let comparison = Comparison::new(a, b);
        check_whole(&name, &comparison);
        check_symmetry(&name, a, b);
        check_layout(&name, &svg::compared(&comparison));
    }
}

/// Models of one name differ in one number or one word deep inside: which of the two comes first changes
/// nothing of what is told, and the number is told.
#[test]
fn models_of_one_name_are_told_the_same_from_both_sides() {
    fn last(drawing: &mut Drawing) -> &mut Part {
        let slots = drawing.kinds.iter_mut().flat_map(|kind| &mut kind.slots);
        let blocks = slots.flat_map(|slot| &mut slot.branches);
        let blocks = blocks.map(|branch| &mut branch.block);
        let is_whole = |block: &&mut Part| !block.weights.is_empty() && !block.options.is_empty();
        blocks
            .filter(is_whole)
            .last()
            .expect("a block with weights")
    }
    type Edited = fn(&mut Drawing);
    let edits: [(&str, Edited, bool); 4] = [
        (
            "size",
            |d| last(d).weights.last_mut().unwrap().shape[0].push('7'),
            false,
        ),
        (
            "operation",
            |d| last(d).ops.last_mut().unwrap().title.push_str(" 7"),
            true,
        ),
        (
            "choice",
            |d| last(d).options.last_mut().unwrap().value.push('7'),
            false,
        ),
        (
            // Two of which either may be matched with the one of the other side.
            "twice",
            |d| {
                let slots = &mut d.kinds.last_mut().unwrap().slots;
                slots.push(slots.last().unwrap().clone());
            },
            true,
        ),
    ];
    let of_files = goldens().iter().map(|(_, drawings)| &drawings[0]);
    for plain in of_files.step_by(5) {
        for (what, edit, is_told) in &edits {
            let name = format!("{}: {what}", plain.name);
            let mut other = plain.clone();
            edit(&mut other);
            check_symmetry(&name, plain, &other);
            let comparison = Comparison::new(plain, &other);
            check_whole(&name, &comparison);
            let has_findings = !comparison.findings().is_empty();
            assert!(has_findings || !is_told, "{name}");
        }
    }
}

/// A definition may have thousands of slots; each compared with each would take for ever.
#[test]
fn thousands_of_sublayers_are_compared_in_time() {
    let library = library();
    let mut drawings = ["qwen3", "gptneox"].map(|name| drawing(&library, name));
    for drawing in &mut drawings {
        let slots = drawing.kinds[0].slots.clone();
        drawing.kinds[0].slots = slots.iter().cycle().take(3000).cloned().collect();
    }
    // As many kinds as there may be layers.
    let mut kind = drawings[1].kinds[0].clone();
    kind.slots.truncate(3);
    drawings[1].kinds.extend(vec![kind; 200]);
    let start = Instant::now();
    let comparison = Comparison::new(&drawings[0], &drawings[1]);
    assert!(!summary(&comparison).is_empty());
    let took = start.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    check_whole("many", &comparison);
}

/// Tables of kinds that only one side has are paid for as all others: sixty of them are no more work.
#[test]
fn dozens_of_long_kinds_are_compared_in_time() {
    let library = library();
    let mut drawings = ["qwen3", "gptneox"].map(|name| drawing(&library, name));
    let slots = drawings[1].kinds[0].slots.clone();
    let mut kind = drawings[1].kinds[0].clone();
    kind.slots = slots.iter().cycle().take(400).cloned().collect();
    drawings[1].kinds.extend(vec![kind; 60]);
    let start = Instant::now();
    let comparison = Comparison::new(&drawings[0], &drawings[1]);
    let took = start.elapsed();
    let is_told = |pair: &KindPair<'_>| !pair.unlike.is_empty();
    assert!(comparison.kinds.iter().filter(|pair| is_told(pair)).count() >= 59);
    assert!(took < Duration::from_secs(10), "{took:?}");
    check_whole("long", &comparison);
}

#[test]
fn hostile_names_stay_text() {
    let library = library();
    let mut a = drawing(&library, "llama");
    let mut b = drawing(&library, "qwen3");
    a.name = "<script>|\u{1}&\"'</svg>".into();
    b.name = "b\n| c".into();
    let comparison = Comparison::new(&a, &b);
    let picture = svg::comparison(&comparison, "x");
    let xml = roxmltree::Document::parse(&picture).expect("XML");
    assert!(!xml.descendants().any(|node| node.has_tag_name("script")));
    let desc = xml.descendants().find(|node| node.has_tag_name("desc"));
    let desc = desc.and_then(|node| node.text()).expect("a description");
    assert!(desc.contains(" side by side: "), "{desc}");
    assert!(desc.contains("in what is computed"), "{desc}");
    check_layout("hostile", &svg::compared(&comparison));
}

/// Texts of definitions and files are printed: none moves the cursor, and each stays in its row.
#[test]
fn hostile_texts_do_not_reach_the_terminal() {
    let library = library();
    let hostile = "x\u{1b}[2J|\u{7}\u{9b}1m\u{202e}\r\ny";
    let mut a = drawing(&library, "llama");
    let mut b = drawing(&library, "deepseek2");
    a.name = hostile.into();
    for drawing in [&mut a, &mut b] {
        drawing.is_symbolic = false;
        drawing.facts.push((hostile.into(), drawing.arch.clone()));
        for kind in &mut drawing.kinds {
            kind.label = hostile.into();
            for slot in &mut kind.slots {
                slot.name = hostile.into();
                for branch in &mut slot.branches {
                    branch.block.title = hostile.into();
                    branch.block.line = hostile.into();
                    branch.save = Some(format!("{hostile}{}", drawing.arch));
                }
            }
        }
    }
    let text = summary(&Comparison::new(&a, &b));
    let is_obeyed = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
    assert!(!text.contains(is_obeyed), "{text:?}");
    assert!(
        text.contains("\\u{1b}[2J") && text.contains("\\u{202e}"),
        "{text}"
    );
    let is_begun = |line: &str| line.starts_with('y');
    assert!(!text.lines().any(is_begun), "{text}");
}

#[test]
fn differences_in_words() {
    let library = library();
    let mut out = String::new();
    for [a, b] in &PAIRS[..8] {
        let [a, b] = [a, b].map(|name| drawing(&library, name));
        out.push_str(&summary(&Comparison::new(&a, &b)));
        out.push('\n');
    }
    insta::assert_snapshot!("diagram_compare", out);
}

#[test]
fn the_program_writes_a_picture_and_prints_words() {
    let scratch = scratch();
    let folder = scratch.path().to_str().expect("UTF-8");
    let model = scratch.path().join("m.gguf");
    let model = model.to_str().expect("UTF-8");
    assert_eq!(bench(&["synth", "qwen3", "-o", model]).code, 0);
    let cases: [(&[&str], &str, &str); 4] = [
        (
            &["llama", "llama-moe"],
            "llama-vs-llama-moe",
            "mixture of experts",
        ),
        (
            &["llama", "llama", "--set-b", "n_swa=4"],
            "llama-vs-llama",
            "only llama (B) sees a window",
        ),
        (
            &["llama", "qwen3", "--name", "mine", "--png"],
            "mine",
            "per head",
        ),
        (
            &["qwen3", model, "--name", "file"],
            "file",
            "both compute the same",
        ),
    ];
    for (arguments, name, words) in cases {
        let all = [&["diagram", "--compare", "-o", folder], arguments].concat();
        let Ran { code, out, err } = bench(&all);
        assert_eq!((code, err.as_str()), (0, ""), "{arguments:?}");
        assert!(
            out.starts_with("# ") && out.contains(words),
            "{arguments:?}: {out}"
        );
        let picture = scratch.path().join(format!("{name}.svg"));
        assert!(picture.exists(), "{arguments:?}");
    }
    assert!(scratch.path().join("mine.png").exists());
}

/// What a name stands for does not depend on whether it is compared.
#[test]
fn names_and_requests_mean_the_same_with_one_and_with_two() {
    let own = scratch();
    let folder = text(own.path());
    let Ran { code, out, err } = bench(&["diagram", "llama-moe", "-o", folder]);
    assert_eq!((code, err.as_str()), (0, ""));
    let files: Vec<&str> = out.lines().map(|line| &line[folder.len() + 1..]).collect();
    assert_eq!(files, ["llama-moe.arch.svg", "llama-moe.layers.svg"]);
    let of_all = scratch();
    let all = text(of_all.path());
    assert_eq!(bench(&["diagram", "llama", "-o", all]).code, 0);
    for file in files {
        let read = |folder: &Path| std::fs::read(folder.join(file)).expect("it is written");
        assert_eq!(read(own.path()), read(of_all.path()), "{file}");
    }
    let model = "models/tiny-chat.gguf";
    let cases: [(&[&str], &str); 4] = [
        (&["llama-none"], "those of `llama` are `llama-moe`"),
        (
            &["llama-moe", "--set", "n_expert=2"],
            "llama-moe is a variant",
        ),
        (&[model, "--set", "n_expert=2"], "no parameters to set"),
        (&[model, "--with", "output"], "no parameters to set"),
    ];
    for (arguments, expected) in cases {
        for more in [&[][..], &["llama", "--compare"]] {
            let all = [&["diagram", "-o", folder], arguments, more].concat();
            let Ran { code, err, .. } = bench(&all);
            assert!(code != 0 && err.contains(expected), "{all:?}: {err}");
        }
    }
}

#[test]
fn comparing_other_than_two_is_refused() {
    let cases: [(&[&str], &str); 7] = [
        (
            &["llama"],
            "`--compare` takes two models or definitions, found 1",
        ),
        (
            &["llama", "qwen3", "bert"],
            "`--compare` takes two models or definitions, found 3",
        ),
        (&["--all"], "cannot be used with"),
        (&["llama", "llama-none"], "those of `llama` are `llama-moe`"),
        (&["llama", "nothing"], "nothing"),
        (
            &["llama-moe", "llama", "--set", "n_expert=2"],
            "llama-moe is a variant",
        ),
        (&["llama", "mamba-x"], "`mamba` has none"),
    ];
    for (arguments, expected) in cases {
        let all = [&["diagram", "--compare"], arguments].concat();
        let Ran { code, err, .. } = bench(&all);
        assert!(code != 0 && err.contains(expected), "{arguments:?}: {err}");
    }
    let Ran { code, err, .. } = bench(&["diagram", "llama", "qwen3"]);
    assert!(code != 0 && err.contains("--compare"), "{err}");
}
