//! Two drawings, compared: nothing differs from itself, one edit is told as that edit, the order of the
//! two does not matter, and every part of both is there once.

use std::path::Path;
use std::time::{Duration, Instant};

use lab_bench::arch::{ArchDef, Library};
use lab_bench::files::synth::{Request, design};
use lab_bench::inspect::diagram::compare::{Comparison, Finding, Level, summary};
use lab_bench::inspect::diagram::{Drawing, Sample, svg, variants};

use crate::command::{Ran, bench, scratch, text};
use crate::diagrams::{all_variants, cases, check_layout};
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

/// A variant of a definition by the name of its picture.
fn drawing(name: &str) -> Drawing {
    let mut all = all_variants().iter().map(|own| &own.drawing);
    all.find(|own| own.name == name).expect("a variant").clone()
}

/// Every part of both is in one pair, and exchanging the two exchanges the sides and nothing else.
fn check(name: &str, a: &Drawing, b: &Drawing) -> Comparison {
    let comparison = Comparison::new(a, b);
    for (side, drawing) in [a, b].into_iter().enumerate() {
        let mut found: Vec<usize> = comparison.parts.iter().filter_map(|p| p[side]).collect();
        found.sort_unstable();
        let all: Vec<usize> = (0..drawing.parts().count()).collect();
        assert_eq!(found, all, "{name}: parts of side {side}");
    }
    let mut other = Comparison::new(b, a).swapped();
    let mut own = (comparison.findings.clone(), comparison.parts.clone());
    for (findings, parts) in [&mut own, &mut other] {
        findings
            .iter_mut()
            .for_each(|finding| finding.places.sort());
        findings.sort_by(|a, b| (&a.what, &a.of).cmp(&(&b.what, &b.of)));
        parts.sort_unstable();
    }
    assert_eq!(own, other, "{name}");
    comparison
}

#[test]
fn nothing_differs_from_itself_and_a_model_computes_what_its_definition_says() {
    for case in cases() {
        let [numbers, symbols] = &case.drawings;
        for [a, b] in [[numbers, numbers], [symbols, symbols], [numbers, symbols]] {
            let comparison = check(&case.name, a, b);
            assert_eq!(comparison.findings, Vec::<Finding>::new(), "{}", case.name);
            assert!(summary(&comparison).contains("Both compute the same."));
        }
    }
}

/// One edit of a definition: what is replaced by what, and the words of the one thing that differs then.
struct Edit {
    arch: String,
    from: String,
    to: String,
    with: Vec<String>,
    told: Vec<String>,
}

/// Edits as lines `ARCH | FROM | TO | TOLD`: `FROM` is the begin of a line of the definition or a part of
/// one, `\n` ends a line in `TO`, and `; ` is between the words that are told.
const EDITS: &str = r#"
qwen3  | act = "silu"           | act = "gelu"             | MLP; `silu` in A, `gelu` in B
qwen3  | qk_norm = "head"       | qk_norm = "full"         | attn, attention; `head` in A, `full` in B
qwen3  | , qk_norm = "head"     |                          | `qk_norm`; `head` in A, `none` in B
qwen3  | kind = "neox"          | kind = "norm"            | `kind`; `neox` in A, `norm` in B
qwen3  | [cache.full]           | [cache.full]\nsize = 64  | `size`; `0` in A, `64` in B
qwen3  | pre    = "ffn_norm"\n  |                          | Ffn: norms: before in A, none in B
qwen3  | pre    = "ffn_norm"    | post   = "ffn_norm"      | Ffn: norms: before in A, after in B
qwen3  | pre    = "ffn_norm"    | pre    = "norm_before"   | Tensors: name: ; ffn_norm; norm_before
qwen3  | name   = "ffn"         | name   = "ffn"\nscale  = 0.5     | Ffn: scale of the result: none in A, 0.5 in B
qwen3  | name   = "ffn"         | name   = "ffn"\njoin   = "set"   | added to the hidden state in A, in place of the hidden state in B
qwen3  | kind = "rms"           | kind = "layer"           | `kind`; `rms` in A, `layer` in B
qwen3  | [[stack]]\n            | [embed]\nscale = "sqrt(n_embd)"\n\n[[stack]]\n | token embedding; `scale`; `sqrt(n_embd)` in B
qwen3  | norm = "output_norm"   | norm = "output_norm"\nsoftcap = 30.0 | head: `softcap`; `30.0` in B
qwen3  | norm = "output_norm"   |                          | After the layers: block: only in A
qwen3  | cache = "full",        | cache = "full", scale = 0.25, | `scale`; `0.25` in B
qwen3  | { block = "ffn", act = "silu" } | { block = "ffn", act = "silu" }, { block = "linear", weights = { weight = "extra.weight" } } | Ffn: block: only in B: Linear map
gemma3 | size = "n_swa"         | size = 0                 | Kind 1; `size`; `0` in B
mamba2 | block = "mamba2"       | block = "short_conv"     | block; Short convolution in B
"#;

fn edits(library: &Library) -> Vec<Edit> {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let edit = |[arch, from, to, told]: [&str; 4]| Edit {
        arch: arch.to_owned(),
        from: from.replace("\\n", "\n"),
        to: to.replace("\\n", "\n"),
        with: Vec::new(),
        told: owned(&told.split("; ").collect::<Vec<_>>()),
    };
    let lines = EDITS.lines().filter(|line| !line.is_empty());
    let columns = lines.map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    let mut all: Vec<Edit> = columns
        .map(|of| edit(of.try_into().expect("four")))
        .collect();
    let source = &library.source("qwen3").expect("built in").text;
    let (_, slots) = source.split_once("[[stack]]\n").expect("a stack");
    let (slots, _) = slots.split_once("\n[head]").expect("a head");
    let ends = slots.rfind("[[stack.slot]]").expect("two slots");
    let (attn, ffn) = slots.split_at(ends);
    all.push(Edit {
        from: slots.to_owned(),
        to: format!("{ffn}\n{attn}"),
        ..edit([
            "qwen3",
            "",
            "",
            "order of the slots: attn, then ffn in A, ffn, then attn in B",
        ])
    });
    // Layers of which every second one has a window are of two kinds.
    let window = "cache = \"if(il % 2 == 0, 'local', 'full')\"";
    all.push(Edit {
        from: slots.to_owned(),
        to: slots.replacen("cache = \"full\"", window, 1) + "\n[cache.local]\nsize = 64\n",
        ..edit(["qwen3", "", "", "a further kind: only in B"])
    });
    all.push(Edit {
        with: owned(&["attn_q.bias", "attn_k.bias"]),
        ..edit(["qwen3", "", "", "weights: only in B: `q.bias` and `k.bias`"])
    });
    all
}

/// The definition before and after an edit, drawn as `A` and `B`.
fn edited(library: &Library, edit: &Edit) -> [Drawing; 2] {
    let source = &library.source(&edit.arch).expect("built in").text;
    assert!(source.contains(&edit.from), "{}: {}", edit.arch, edit.from);
    let after = match edit.from.as_str() {
        "" => source.clone(),
        from => source.replacen(from, &edit.to, 1),
    };
    let draw = |name: &str, text: &str, with: &[String]| {
        let checked = library.check("edited.arch.toml", text);
        let def = checked.unwrap_or_else(|e| panic!("{}: {e:?}\n{text}", edit.to));
        let mut request = match edit.arch.as_str() {
            "gemma3" => variants(&def).expect("a model").remove(0).1,
            _ => Request::default(),
        };
        request.with = with.to_vec();
        drawing_of(name, &def, text, &request)
    };
    [draw("A", source, &[]), draw("B", &after, &edit.with)]
}

#[test]
fn one_edit_is_told_as_that_edit() {
    let library = library();
    for edit in edits(&library) {
        let [a, b] = edited(&library, &edit);
        let comparison = check(&edit.to, &a, &b);
        let level = match edit.told[0].starts_with("Tensors") {
            true => Level::Names,
            false => Level::Computation,
        };
        let told = comparison.sentences(level);
        assert_eq!(
            told.len(),
            comparison.findings.len(),
            "{:#?}",
            comparison.findings
        );
        assert_eq!(told.len(), 1, "{} -> {}: {told:#?}", edit.from, edit.to);
        let said = told[0].1.to_lowercase();
        for part in &edit.told {
            assert!(
                said.contains(&part.to_lowercase()),
                "`{part}` is not in `{said}`"
            );
        }
        let mut marks = comparison.drawings.iter().flat_map(|drawing| {
            let slots = drawing.kinds.iter().flat_map(|kind| &kind.slots);
            let notes = slots.map(|slot| &slot.note);
            notes.chain(drawing.parts().map(|part| &part.note))
        });
        let is_marked = marks.any(|note| !note.text.is_empty());
        let is_of_a_box = level == Level::Computation && !said.contains("order of the slots");
        assert_eq!(is_marked, is_of_a_box, "{}", edit.to);
    }
}

/// Models of one definition that differ in sizes: numbers, and only with files.
#[test]
fn other_sizes_are_numbers_of_files() {
    let library = library();
    let def = library.get("llama").expect("sound");
    let source = &library.source("llama").expect("built in").text;
    let requests = [("2", "64"), ("3", "96")].map(|(layers, width)| {
        let set = [("block_count", layers), ("feed_forward_length", width)];
        Request {
            set: set
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .to_vec(),
            ..Request::default()
        }
    });
    let files = requests.each_ref().map(|request| {
        let (_, plan) = design(&def, request).expect("it can be made");
        let sample = Sample::of_model("m", &plan).expect("a graph");
        Drawing::new(&def, source, &sample)
    });
    let comparison = check("sizes", &files[0], &files[1]);
    let mut levels = comparison.findings.iter().map(|finding| finding.level);
    assert!(levels.len() > 1 && levels.all(|level| level == Level::Sizes));
    let text = summary(&comparison);
    assert!(text.contains("| layers | 2 | 3 |"), "{text}");
    assert!(text.contains("Both compute the same."), "{text}");
    let [a, b] = requests.map(|request| drawing_of("m", &def, source, &request));
    assert_eq!(Comparison::new(&a, &b).findings, Vec::<Finding>::new());
}

/// A release build takes a sixth of this; the machine of a test may be busy.
const COMPARED_WITHIN: Duration = Duration::from_millis(600);

#[test]
fn pairs_are_whole_symmetric_legible_and_quick() {
    let mut out = String::new();
    let named = PAIRS.map(|pair| pair.map(drawing));
    let with_numbers = cases().windows(2).step_by(7);
    let with_numbers = with_numbers.map(|pair| [0, 1].map(|at| pair[at].drawings[at].clone()));
    for (at, [a, b]) in named.into_iter().chain(with_numbers).enumerate() {
        let name = format!("{} and {}", a.name, b.name);
        let start = Instant::now();
        let comparison = Comparison::new(&a, &b);
        let text = summary(&comparison);
        let picture = svg::comparison(&comparison, &name);
        let took = start.elapsed();
        assert!(took < COMPARED_WITHIN, "{name}: {took:?}");
        let again = check(&name, &a, &b);
        assert_eq!(svg::comparison(&again, &name), picture, "{name}");
        let piece = svg::compared(&comparison);
        check_layout(&name, &piece);
        let texts: Vec<&str> = piece.texts().map(|(_, text)| text).collect();
        for n in (1..=comparison.findings.len()).map(|n| format!("{n}.")) {
            assert!(texts.contains(&n.as_str()), "{name}: difference {n}");
        }
        let xml = roxmltree::Document::parse(&picture).expect("XML");
        assert!(xml.root_element().has_attribute("viewBox"));
        if at < 8 {
            out = out + &text + "\n";
        }
    }
    insta::assert_snapshot!("diagram_compare", out);
}

/// A definition may have thousands of slots and hundreds of kinds; each with each would take for ever.
#[test]
fn thousands_of_sublayers_are_compared_in_time() {
    let mut drawings = ["qwen3", "gptneox"].map(drawing);
    for drawing in &mut drawings {
        let slots = drawing.kinds[0].slots.clone();
        drawing.kinds[0].slots = slots.iter().cycle().take(3000).cloned().collect();
    }
    let mut kind = drawings[1].kinds[0].clone();
    kind.slots.truncate(40);
    drawings[1].kinds.extend(vec![kind; 200]);
    let start = Instant::now();
    let comparison = Comparison::new(&drawings[0], &drawings[1]);
    assert!(!summary(&comparison).is_empty());
    let took = start.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
}

/// Texts of definitions and files are drawn and printed: none ends an element, moves the cursor, or leaves
/// its row.
#[test]
fn hostile_texts_stay_text() {
    let hostile = "<script>&\"'</svg>\u{1b}[2J|\u{7}\u{9b}1m\u{202e}\r\ny";
    let mut a = drawing("llama");
    let mut b = drawing("deepseek2");
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
                    branch.save = Some(format!("{hostile}{}", drawing.arch));
                }
            }
        }
    }
    let comparison = Comparison::new(&a, &b);
    let text = summary(&comparison);
    let is_obeyed = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
    assert!(!text.contains(is_obeyed), "{text:?}");
    assert!(
        text.contains("\\u{1b}[2J") && text.contains("\\u{202e}"),
        "{text}"
    );
    assert!(!text.lines().any(|line| line.starts_with('y')), "{text}");
    let alone = svg::document(&a, &svg::stack(&a), hostile);
    for picture in [svg::comparison(&comparison, hostile), alone] {
        let xml = roxmltree::Document::parse(&picture).expect("XML");
        assert!(!xml.descendants().any(|node| node.has_tag_name("script")));
    }
    check_layout("hostile", &svg::compared(&comparison));
}

#[test]
fn the_program_writes_a_picture_and_prints_words() {
    let scratch = scratch();
    let folder = scratch.path().to_str().expect("UTF-8");
    let model = scratch.path().join("m.gguf");
    let model = model.to_str().expect("UTF-8");
    assert_eq!(bench(&["synth", "qwen3", "-o", model]).code, 0);
    let png = if cfg!(feature = "png") { " --png" } else { "" };
    let cases = [
        (
            "llama llama-moe",
            "llama-vs-llama-moe",
            "Mixture of experts in llama-moe",
        ),
        (
            "llama llama --set-b n_swa=4",
            "llama-vs-llama",
            "`0` in llama (A), `n_swa` in llama (B)",
        ),
        (
            &format!("llama qwen3 --name mine{png}"),
            "mine",
            "`none` in llama, `head` in qwen3",
        ),
        (
            &format!("qwen3 {model} --name file"),
            "file",
            "Both compute the same",
        ),
    ];
    for (arguments, name, words) in cases {
        let own: Vec<&str> = arguments.split(' ').collect();
        let all = [&["diagram", "--compare", "-o", folder][..], &own].concat();
        let Ran { code, out, err } = bench(&all);
        assert_eq!((code, err.as_str()), (0, ""), "{arguments:?}");
        assert!(
            out.starts_with("# ") && out.contains(words),
            "{arguments:?}: {out}"
        );
        let picture = scratch.path().join(format!("{name}.svg"));
        assert!(picture.exists(), "{arguments:?}");
    }
    let has_png = scratch.path().join("mine.png").exists();
    assert_eq!(has_png, cfg!(feature = "png"));
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
    let cases = [
        (
            "llama",
            "`--compare` takes two models or definitions, found 1",
        ),
        (
            "llama qwen3 bert",
            "`--compare` takes two models or definitions, found 3",
        ),
        ("--all", "cannot be used with"),
        ("llama llama-none", "those of `llama` are `llama-moe`"),
        ("llama nothing", "nothing"),
        ("llama-moe llama --set n_expert=2", "llama-moe is a variant"),
        ("llama mamba-x", "`mamba` has none"),
    ];
    for (arguments, expected) in cases {
        let own: Vec<&str> = arguments.split(' ').collect();
        let Ran { code, err, .. } = bench(&[&["diagram", "--compare"][..], &own].concat());
        assert!(code != 0 && err.contains(expected), "{arguments:?}: {err}");
    }
    let Ran { code, err, .. } = bench(&["diagram", "llama", "qwen3"]);
    assert!(code != 0 && err.contains("--compare"), "{err}");
}
