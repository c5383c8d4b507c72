//! Two drawings, compared: nothing differs from itself, one edit is told as that edit, the order of the
//! two does not matter, and every part of both is there once.

use std::path::Path;
use std::time::{Duration, Instant};

use lab_core::arch::{ArchDef, Library};
use lab_core::models::synth::{SynthRequest, design};
use lab_inspect::diagram::compare::{Comparison, DifferenceLevel, summary};
use lab_inspect::diagram::{Drawing, TracedPlan, svg, variants};

use crate::diagram_html::with_texts;
use crate::diagrams::{all_variants, cases, check_layout};
use crate::goldens::library;
use crate::support::command::{Ran, bench, made_up, scratch, text};

/// Pairs that are told apart by very different things.
const PAIRS: &str = "llama qwen3, llama gptneox, llama llama-moe, gemma3 gemma4, mamba mamba2, bert llama, \
    deepseek2 llama-moe, falcon-h1 granitehybrid, llada llama, gpt-oss qwen3moe, qwen35moe kimi-linear, \
    gemma4-moe gemma4";

fn drawing_of(name: &str, def: &ArchDef, request: &SynthRequest) -> Drawing {
    let sample = TracedPlan::of_definition(name, def, request).expect("it can be drawn");
    Drawing::new(def, &sample)
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
    let mut other = Comparison::new(b, a);
    other.findings.iter_mut().for_each(|f| f.of.swap(0, 1));
    other.parts.iter_mut().for_each(|pair| pair.swap(0, 1));
    let [own, other] = [&comparison, &other].map(|own| {
        // Their kinds of layers have the numbers of the first model.
        let findings = own.findings.iter();
        let findings = findings.map(|f| (&f.what, &f.of, f.level, f.places.len()));
        let (mut findings, mut parts) = (Vec::from_iter(findings), own.parts.clone());
        findings.sort_unstable();
        parts.sort_unstable();
        (findings, parts)
    });
    assert_eq!(own, other, "{name}");
    comparison
}

#[test]
fn nothing_differs_from_itself_and_a_model_computes_what_its_definition_says() {
    for case in cases() {
        let (name, [numbers, symbols]) = (&case.golden.name, &case.drawings);
        for [a, b] in [[numbers, numbers], [symbols, symbols], [numbers, symbols]] {
            let comparison = check(name, a, b);
            assert_eq!(comparison.findings, [], "{name}");
            assert!(summary(&comparison).contains("Both compute the same."));
        }
    }
}

/// Edits of a definition, of which each makes one difference, as lines `ARCH | FROM | TO`: `FROM` is the start
/// of a line or a part of one, and `\n` ends a line in both.
const EDITS: &str = r#"
qwen3  | act = "silu"           | act = "gelu"
qwen3  | qk_norm = "head"       | qk_norm = "full"
qwen3  | , qk_norm = "head"     |
qwen3  | rope = "neox"          | rope = "norm"
qwen3  | [[stack]]\n            | [cache.full]\nsize = 64\n\n[[stack]]\n
qwen3  | pre    = "ffn_norm"\n  |
qwen3  | pre    = "ffn_norm"    | post   = "ffn_norm"
qwen3  | name   = "ffn"         | name   = "ffn"\nscale  = 0.5
qwen3  | name   = "ffn"         | name   = "ffn"\njoin   = "set"
qwen3  | [[stack]]\n            | [norm.default]\nkind = "layer"\neps = "rms_eps"\n\n[[stack]]\n
qwen3  | [[stack]]\n            | [embed]\nscale = "sqrt(n_embd)"\n\n[[stack]]\n
qwen3  | norm = "output_norm"   | norm = "output_norm"\nsoftcap = 30.0
qwen3  | norm = "output_norm"   |
qwen3  | rope = "neox",         | rope = "neox", scale = 0.25,
qwen3  | { block = "ffn", act = "silu" } | { block = "ffn", act = "silu" }, { block = "linear", weights = { weight = "extra.weight" } }
gemma3 | [[stack]]\n            | [cache.local]\nsize = 0\n\n[[stack]]\n
mamba2 | block = "mamba2"       | block = "short_conv"
"#;

/// The edits, each with a definition before and after it.
fn edits(library: &Library) -> Vec<(String, &'static str, [String; 2])> {
    let source = |arch: &str| library.source(arch).expect("built in").text.clone();
    let edited = |what: &str, arch: &'static str, from: &str, to: &str| {
        let before = source(arch);
        assert!(before.contains(from), "{what}");
        let after = before.replacen(from, to, 1);
        (what.to_owned(), arch, [before, after])
    };
    let of_line = |line: &'static str| {
        let columns: Vec<&str> = line.split('|').map(str::trim).collect();
        let [from, to] = [columns[1], columns[2]].map(|text| text.replace("\\n", "\n"));
        edited(&format!("{from} -> {to}"), columns[0], &from, &to)
    };
    let lines = EDITS.lines().filter(|line| !line.is_empty());
    let mut all: Vec<_> = lines.map(of_line).collect();
    let text = source("qwen3");
    let (_, slots) = text.split_once("[[stack]]\n").expect("a stack");
    let (slots, _) = slots.split_once("\n[head]").expect("a head");
    let (attn, ffn) = slots.split_at(slots.rfind("[[stack.slot]]").expect("two slots"));
    // Layers of which every second one has a window are of two kinds.
    let window = "cache = \"if(il % 2 == 0, 'local', 'full')\"";
    let windowed = slots.replacen("rope = \"neox\"", &format!("rope = \"neox\", {window}"), 1)
        + "\n[cache.local]\nsize = 64\n";
    let swapped = format!("{ffn}\n{attn}");
    all.push(edited("slots swapped", "qwen3", slots, &swapped));
    all.push(edited("a window", "qwen3", slots, &windowed));
    all.push(edited("biases", "qwen3", "", ""));
    all
}

#[test]
fn one_edit_of_a_definition_is_reported_as_that_edit() {
    let library = library();
    let mut all = String::new();
    for (what, arch, texts) in edits(&library) {
        let draw = |side: usize| {
            let checked = library.check("edited.arch.toml", &texts[side]);
            let def = checked.unwrap_or_else(|e| panic!("{what}: {e:?}\n{}", texts[side]));
            let mut request = match arch {
                "gemma3" => variants(&def).remove(0).1,
                _ => SynthRequest::default(),
            };
            if what == "biases" && side == 1 {
                request.with = ["attn_q.bias", "attn_k.bias"].map(str::to_owned).into();
            }
            drawing_of(["A", "B"][side], &def, &request)
        };
        let comparison = check(&what, &draw(0), &draw(1));
        let [finding] = comparison.findings.as_slice() else {
            panic!("{what}: {:#?}", comparison.findings)
        };
        let mut marks = comparison.drawings.iter().flat_map(|drawing| {
            let slots = drawing.kinds.iter().flat_map(|kind| &kind.slots);
            let notes = slots.map(|slot| &slot.note);
            notes.chain(drawing.parts().map(|part| &part.note))
        });
        let is_marked = marks.any(|note| !note.text.is_empty());
        let (level, told) = (finding.level, finding.sentence(["A", "B"]));
        all += &format!("{what}\n  {level:?}, marked: {is_marked}: {told}\n");
    }
    insta::assert_snapshot!("edits", all);
}

/// Models of one definition that differ in sizes: numbers, and only with files.
#[test]
fn other_sizes_are_numbers_of_files() {
    let def = library().get("llama").expect("sound");
    let requests = [("2", "64"), ("3", "96")].map(|(layers, width)| {
        let set = [("block_count", layers), ("feed_forward_length", width)];
        SynthRequest {
            set: set.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            ..SynthRequest::default()
        }
    });
    let [a, b] = requests.each_ref().map(|request| {
        let (_, plan) = design(&def, request).expect("it can be made");
        Drawing::new(&def, &TracedPlan::new("m", plan, false).expect("a graph"))
    });
    let comparison = check("sizes", &a, &b);
    let mut levels = comparison.findings.iter().map(|finding| finding.level);
    assert!(levels.len() > 1 && levels.all(|level| level == DifferenceLevel::Sizes));
    let text = summary(&comparison);
    assert!(text.contains("| layers | 2 | 3 |"), "{text}");
    assert!(text.contains("Both compute the same."), "{text}");
    let [a, b] = requests.map(|request| drawing_of("m", &def, &request));
    assert_eq!(Comparison::new(&a, &b).findings, []);
}

/// A release build takes a sixth of this; the machine of a test may be busy.
const COMPARED_WITHIN: Duration = Duration::from_millis(600);

#[test]
fn pairs_are_whole_symmetric_legible_and_quick() {
    let mut out = String::new();
    let named = PAIRS.split(", ").map(|pair| {
        let (a, b) = pair.split_once(' ').expect("two");
        [a, b].map(drawing)
    });
    let with_numbers = cases().windows(2).step_by(7);
    let with_numbers = with_numbers.map(|pair| [0, 1].map(|at| pair[at].drawings[at].clone()));
    for (at, [a, b]) in named.chain(with_numbers).enumerate() {
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
    let [a, b] = ["llama", "deepseek2"].map(|name| {
        let mut drawing = with_texts(&drawing(name), hostile);
        drawing.is_symbolic = false;
        drawing.facts.push((hostile.into(), name.into()));
        drawing
    });
    let comparison = Comparison::new(&a, &b);
    let text = summary(&comparison);
    let is_obeyed = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
    assert!(!text.contains(is_obeyed), "{text:?}");
    let is_escaped = text.contains("\\u{1b}[2J") && text.contains("\\u{202e}");
    assert!(is_escaped, "{text}");
    assert!(!text.lines().any(|line| line.starts_with('y')), "{text}");
    let alone = svg::document(&a, &svg::stack(&a), hostile);
    for picture in [svg::comparison(&comparison, hostile), alone] {
        let xml = roxmltree::Document::parse(&picture).expect("XML");
        assert!(!xml.descendants().any(|node| node.has_tag_name("script")));
    }
    check_layout("hostile", &svg::compared(&comparison));
}

/// The program, told to write into a folder.
fn drawn(folder: &Path, arguments: &str) -> Ran {
    let begin = ["diagram", "-o", text(folder)].into_iter();
    bench(&Vec::from_iter(begin.chain(arguments.split_whitespace())))
}

/// Arguments, the name of the picture, and words about the differences.
const COMPARED: &str = "
llama llama-moe => llama-vs-llama-moe => Mixture of experts in llama-moe
llama llama --set n_swa=4 => llama-vs-llama => `n_swa` in llama (A), `0` in llama (B)
llama qwen3 --name mine PNG => mine => `none` in llama, `head` in qwen3
qwen3 MODEL --name file => file => Both compute the same
";

#[test]
fn the_program_writes_a_picture_and_prints_words() {
    let scratch = scratch();
    let model = made_up(scratch.path(), "qwen3", &[]);
    let png = if cfg!(feature = "png") { "--png" } else { "" };
    let lines = COMPARED.replace("MODEL", text(&model)).replace("PNG", png);
    for line in lines.lines().filter(|line| !line.is_empty()) {
        let columns: Vec<&str> = line.split(" => ").collect();
        let [arguments, name, words] = columns.try_into().expect("three columns");
        let Ran { code, out, err } = drawn(scratch.path(), &format!("--compare {arguments}"));
        assert_eq!((code, err.as_str()), (0, ""), "{arguments}");
        let is_told = out.starts_with("# ") && out.contains(words);
        assert!(is_told, "{arguments}: {out}");
        assert!(scratch.path().join(format!("{name}.svg")).exists());
    }
    let has_png = scratch.path().join("mine.png").exists();
    assert_eq!(has_png, cfg!(feature = "png"));
}

/// A variant by its name is drawn as it is with the others of its definition.
#[test]
fn names_mean_the_same_with_one_and_with_all() {
    let [own, all] = [scratch(), scratch()];
    let Ran { code, out, err } = drawn(own.path(), "llama-moe");
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(drawn(all.path(), "llama").code, 0);
    let begin = text(own.path()).len() + 1;
    let files: Vec<&str> = out.lines().map(|line| &line[begin..]).collect();
    assert_eq!(files, ["llama-moe.arch.svg", "llama-moe.layers.svg"]);
    for file in files {
        let read = |folder: &Path| std::fs::read(folder.join(file)).expect("it is written");
        assert_eq!(read(own.path()), read(all.path()), "{file}");
    }
}

/// Arguments and a part of the reason why they are refused.
const REFUSED: &str = "
llama-none => variants of `llama`: moe
llama-moe --set n_expert=2 => llama-moe is a variant
MODEL --set n_expert=2 => apply only to a definition
MODEL --with output => apply only to a definition
llama qwen3 => --compare
--compare llama-none llama => variants of `llama`: moe
--compare llama-moe llama --set n_expert=2 => llama-moe is a variant
--compare MODEL llama --set n_expert=2 => apply only to a definition
--compare MODEL llama --with output => apply only to a definition
--compare llama => `--compare` takes two models or definitions, found 1
--compare llama qwen3 bert => `--compare` takes two models or definitions, found 3
--compare --all => cannot be used with
--compare llama nothing => nothing
--compare llama mamba-x => variants of `mamba`:
";

#[test]
fn names_and_requests_that_mean_nothing_are_refused() {
    let scratch = scratch();
    for line in REFUSED.lines().filter(|line| !line.is_empty()) {
        let line = line.replace("MODEL", "models/tiny-chat.gguf");
        let (arguments, expected) = line.split_once(" => ").expect("a reason");
        let Ran { code, err, .. } = drawn(scratch.path(), arguments);
        assert!(code != 0 && err.contains(expected), "{arguments}: {err}");
    }
}
