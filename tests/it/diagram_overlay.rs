//! Measurements on diagrams: every number is in one box, times add up to those of the pass, a fault is
//! marked where it is, and hostile files are refused.
//!
//! The box of each number is compared with its path, which is all that is known here of where it belongs.

use std::path::Path;
use std::rc::Rc;

use lab_bench::arch::Mode;
use lab_bench::inspect::diagram::overlay::{
    First, Home, LEVELS, Number, Operation, Overlay, Place, Problem, Rule,
};
use lab_bench::inspect::diagram::{Drawing, Note, Part, Slot, svg};
use lab_bench::model::{Batch, Model};
use lab_bench::plan::Plan;
use serde_json::{Value, json};

use crate::command::{bench, printed, scratch, text};
use crate::diagrams::{Drawn, as_drawn, check_layout};
use crate::faults;
use crate::goldens::{EXACT, Golden, goldens, library};

fn put(drawn: &Drawn, overlay: &Overlay) -> Result<Drawing, Problem> {
    let mut drawing = drawn.drawing.clone();
    overlay.put(&mut drawing, &drawn.sample, drawn.sample.name())?;
    Ok(drawing)
}

fn one(name: &str) -> Drawn {
    let scratch = scratch();
    let golden = goldens(scratch.path(), |n| n == name).remove(0);
    Drawn::new(&library(), &golden)
}

/// The profiles of a model, as the program measures them.
fn perf(file: &Path) -> (Vec<u8>, Value) {
    let arguments = ["perf", "-m", text(file), "-p", "9", "-n", "2", "-r", "1"];
    let report = printed(&[&arguments[..], &["--profile", "--json"]].concat());
    let json = serde_json::from_str(&report).unwrap();
    (report.into_bytes(), json)
}

/// Both pictures, in which texts do not meet.
fn check_pictures(name: &str, drawing: &Drawing) -> [svg::Piece; 2] {
    let pieces = [svg::stack(drawing), svg::layers(drawing)];
    pieces.iter().for_each(|piece| check_layout(name, piece));
    pieces
}

fn slots(drawing: &Drawing) -> impl Iterator<Item = &Slot> {
    drawing.kinds.iter().flat_map(|kind| &kind.slots)
}

fn layers_with_numbers(drawing: &Drawing) -> Vec<usize> {
    let notes = &drawing.overlay.as_ref().expect("a legend").layers;
    (0..notes.len())
        .filter(|at| notes[*at].level.is_some())
        .collect()
}

/// The seconds that a note tells, with three digits.
fn seconds(note: &Note, title: &str) -> f64 {
    let unit = match title.rsplit(' ').next() {
        Some("s") => 1.0,
        Some("ms") => 1e-3,
        Some("\u{b5}s") => 1e-6,
        other => panic!("{other:?} is not a unit of time"),
    };
    match note.short.as_str() {
        "" | "< 0.001" => 0.0,
        short => unit * short.parse::<f64>().unwrap_or_else(|_| panic!("{short}")),
    }
}

fn near(a: f64, b: f64, bound: f64) -> bool {
    (a - b).abs() <= bound * a.abs().max(b.abs())
}

const PROFILED: [&str; 9] = [
    "llama",
    "gpt-oss",
    "falcon-h1",
    "gemma4-moe",
    "gemma4-small",
    "bert",
    "mamba2",
    "deepseek2",
    "qwen35moe",
];

/// What passes of a prompt and of a further token take, operation by operation.
fn profiles(golden: &Golden, plan: &Plan) -> Vec<Overlay> {
    let mut model = Model::load(plan.clone(), &golden.weights, as_drawn(), &mut |_, _| {}).unwrap();
    let (prompt, further) = golden.tokens.split_at(golden.tokens.len() - 1);
    let passes = [(prompt, 0), (further, prompt.len() as u32)];
    let n_passes = if plan.mode == Mode::Causal { 2 } else { 1 };
    let profile = |(tokens, begin): (&[u32], u32)| {
        let mut batch = Batch::default();
        for (at, token) in tokens.iter().enumerate() {
            batch.push(*token, 0, begin + at as u32, at + 1 == tokens.len());
        }
        model.start_profile();
        model.forward(&batch).unwrap();
        let profile = model.end_profile().unwrap();
        let numbers = profile.places().iter().flat_map(|place| {
            let all: Rc<[String]> = place.ops.iter().map(|(name, _)| name.clone()).collect();
            let ops = place.ops.iter().enumerate();
            ops.map(move |(at, (_, cost))| Number {
                path: place.path.clone(),
                value: cost.time.as_secs_f64(),
                op: Some(Operation {
                    kind: place.kind.to_owned(),
                    nth: place.nth.into(),
                    at,
                    all: all.clone(),
                }),
            })
        });
        Overlay {
            rule: Rule::Time,
            numbers: numbers.collect(),
            ..largest(Vec::new())
        }
    };
    passes.into_iter().take(n_passes).map(profile).collect()
}

/// The same of the program's report, which has the sums.
fn reported(file: &Path) -> Vec<Overlay> {
    let (bytes, report) = perf(file);
    let profiles = report["runs"][0]["profiles"].as_array().unwrap();
    let overlay = |profile: &Value| {
        let quantity = format!("time of {}", profile["what"].as_str().unwrap());
        let overlay = Overlay::read(&bytes, Some(&quantity)).unwrap();
        let total: f64 = overlay.numbers.iter().map(|number| number.value).sum();
        let of_pass = profile["seconds_in_operations"].as_f64().unwrap();
        assert!(near(total, of_pass, 1e-6), "{total} {of_pass}");
        overlay
    };
    profiles.iter().map(overlay).collect()
}

#[test]
fn times_of_boxes_add_up_to_those_of_the_pass() {
    let scratch = scratch();
    for golden in goldens(scratch.path(), |name| PROFILED.contains(&name)) {
        let drawn = Drawn::new(&library(), &golden);
        let mut all = profiles(&golden, drawn.sample.plan());
        if golden.name == "llama" {
            all.extend(reported(&scratch.path().join("llama.gguf")));
        }
        for overlay in all {
            let total = overlay.numbers.iter().map(|number| number.value).sum();
            let drawing = put(&drawn, &overlay).unwrap();
            check_times(&golden.name, &drawing, &overlay, total);
            let places = overlay.places(&drawn.drawing, &drawn.sample);
            for (number, place) in overlay.numbers.iter().zip(places) {
                check_place(&golden.name, &drawn, number, place);
            }
        }
    }
}

/// The numbers that are shown, and what is told as outside, are the whole.
fn check_times(name: &str, drawing: &Drawing, overlay: &Overlay, total: f64) {
    let legend = drawing.overlay.as_ref().unwrap();
    let told = |note: &Note| seconds(note, &legend.title);
    let is_sum = |parts: &[f64], whole: f64| {
        assert!(
            near(parts.iter().sum(), whole, 0.01),
            "{name}: {parts:?} {whole}"
        );
    };
    let parts: f64 = drawing.parts().map(|part| told(&part.note)).sum();
    let joins: f64 = slots(drawing).map(|slot| told(&slot.note)).sum();
    let outside = overlay.numbers.iter().filter(|n| n.path.is_empty());
    let outside: f64 = outside.map(|n| n.value).sum();
    is_sum(&[parts, joins, outside], total);
    let stages = drawing.begin.iter().chain(&drawing.end);
    let stages: f64 = stages.map(|part| told(&part.note)).sum();
    let layers: f64 = legend.layers.iter().map(told).sum();
    is_sum(&[stages, layers, outside], total);
    let kinds: Vec<f64> = drawing.kinds.iter().map(|kind| told(&kind.note)).collect();
    is_sum(&kinds, layers);
    for part in drawing.parts() {
        let ops: f64 = part.ops.iter().map(|op| told(&op.note)).sum();
        assert!(
            ops <= told(&part.note) * 1.01 + 1e-9,
            "{name}: {}",
            part.path
        );
    }
    let says = |text: &str| legend.lines.iter().any(|line| line.contains(text));
    assert_eq!(
        says("in no box"),
        outside > 0.0,
        "{name}: {:?}",
        legend.lines
    );
    assert!(!says("other operations"), "{name}: {:?}", legend.lines);
}

/// The layer that a path is within.
fn layer_above(drawn: &Drawn, path: &str) -> Option<usize> {
    let layers = &drawn.sample.plan().layers;
    let mut all = 0..layers.len();
    all.find(|at| path.starts_with(&format!("{}.", layers[*at].path)))
}

/// An operation is in the part or slot of its path, and in its layer.
fn check_place(name: &str, drawn: &Drawn, number: &Number, place: Option<Place>) {
    let path = &number.path;
    let op = number.op.as_ref().expect("a profile has operations");
    let Some((home, layer)) = place else {
        assert_eq!((op.kind.as_str(), path.as_str()), ("wiring", ""), "{name}");
        return;
    };
    let (part, own) = match home {
        Home::Op(part, own) => (part, Some(own)),
        Home::Part(part) => (part, None),
        Home::Slot(..) => return assert_eq!(op.kind, "wiring", "{name}: {path}"),
        other => panic!("{name}: {path} is in {other:?}"),
    };
    let part = drawn.drawing.parts().nth(part).unwrap();
    if part.kind == "per_layer_input" {
        return;
    }
    let is_own = part.paths.contains(path) && part.kind == op.kind;
    assert!(is_own, "{name}: {path} in {}", part.path);
    let drawn_ops = own.map(|own| &part.ops[own].ops);
    let is_drawn = drawn_ops.is_none_or(|ops| ops.contains(&op.all[op.at]));
    assert!(is_drawn, "{name}: {path}: {} in {home:?}", op.all[op.at]);
    assert_eq!(layer, layer_above(drawn, path), "{name}: {path}");
}

fn largest(numbers: Vec<(String, f64)>) -> Overlay {
    let number = |(path, value)| Number {
        path,
        op: None,
        value,
    };
    Overlay {
        quantity: "norm".into(),
        rule: Rule::Largest,
        numbers: numbers.into_iter().map(number).collect(),
        of: None,
        first: None,
    }
}

#[test]
fn every_watched_value_has_a_box() {
    let scratch = scratch();
    let mut n_values = 0;
    for golden in goldens(scratch.path(), |_| true) {
        let drawn = Drawn::new(&library(), &golden);
        let values = faults::values(&drawn.def, &golden);
        n_values += values.len();
        let norm = |elements: &[f32]| {
            let finite = elements.iter().filter(|e| e.is_finite());
            finite.map(|e| f64::from(*e).powi(2)).sum::<f64>().sqrt()
        };
        let numbers = values.iter().map(|v| (v.path.clone(), norm(&v.elements)));
        let mut overlay = largest(numbers.collect());
        overlay.first = Some(First {
            path: values[values.len() / 2].path.clone(),
            tolerance: Some(1e-6),
        });
        let drawing = put(&drawn, &overlay).unwrap();
        let legend = drawing.overlay.as_ref().unwrap();
        let outside = legend.lines.iter().find(|line| line.contains("in no box"));
        assert_eq!(outside, None, "{}", golden.name);
        // A layer may do nothing at all.
        let layers = &drawn.sample.plan().layers;
        let has_slots = |at: &usize| !layers[*at].slots.is_empty();
        let computing: Vec<usize> = (0..layers.len()).filter(has_slots).collect();
        assert_eq!(layers_with_numbers(&drawing), computing, "{}", golden.name);
        check_pictures(&golden.name, &drawing);
        for (value, place) in values
            .iter()
            .zip(overlay.places(&drawn.drawing, &drawn.sample))
        {
            check_value(&golden.name, &drawn, &value.path, place.unwrap());
        }
    }
    assert!(n_values > 3000, "{n_values}");
}

/// A value is in the box of the path that it begins with, or in the norm or join that makes it.
fn check_value(name: &str, drawn: &Drawn, path: &str, (home, layer): Place) {
    let (above, value) = path.rsplit_once('.').unwrap();
    // What a layer only takes over is made before it.
    assert!(layer <= layer_above(drawn, path), "{name}: {path}");
    let is_wiring = matches!(value, "in" | "out" | "x" | "norm");
    match home {
        Home::Op(part, _) | Home::Part(part) => {
            let part = drawn.drawing.parts().nth(part).unwrap();
            let is_own = part.paths.iter().any(|own| own == above);
            assert!(is_own || is_wiring, "{name}: {path} in {}", part.path);
            assert!(value != "in" || part.kind == "norm", "{name}: {path}");
        }
        Home::Slot(kind, slot) => {
            let slot = &drawn.drawing.kinds[kind].slots[slot].name;
            assert!(above.ends_with(&format!(".{slot}")), "{name}: {path}");
            assert!(matches!(value, "out" | "x"), "{name}: {path} at {slot}");
        }
        other => panic!("{name}: {path} is in {other:?}"),
    }
}

/// The kind of part in which each of [`faults::FIRST`] is, and the layer.
const WHERE: [(&str, Option<usize>); 8] = [
    ("embed", None),
    ("attention", Some(0)),
    ("attention", Some(0)),
    ("attention", Some(0)),
    ("norm", Some(0)),
    ("ffn", Some(0)),
    ("attention", Some(3)),
    ("head", None),
];

#[test]
fn a_fault_is_marked_at_its_block_and_layer() {
    let scratch = scratch();
    let library = library();
    assert_eq!(faults::FIRST.len(), WHERE.len());
    for ((on, edits, path), (kind, layer)) in faults::FIRST.iter().zip(WHERE) {
        let golden = goldens(scratch.path(), |name| name == *on).remove(0);
        let report = faults::compared(&library, &golden, edits);
        let numbers = report.values.iter().map(|v| (v.path.clone(), v.nmse));
        let mut overlay = largest(numbers.collect());
        overlay.first = report.divergence(EXACT).map(|found| First {
            path: found.path.clone(),
            tolerance: Some(EXACT),
        });
        let drawing = put(&Drawn::new(&library, &golden), &overlay).unwrap();
        check_marks(&drawing, kind, layer);
        for piece in check_pictures(on, &drawing) {
            let texts: Vec<&str> = piece.texts().map(|(_, text)| text).collect();
            assert!(texts.contains(&"\u{25b2} first difference"), "{on}: {path}");
        }
    }
}

fn check_marks(drawing: &Drawing, kind: &str, layer: Option<usize>) {
    let marked = |notes: Vec<&Note>| {
        let notes = notes.into_iter().enumerate();
        let marked = notes.filter(|(_, note)| note.first.is_some());
        marked.map(|(at, _)| at).collect::<Vec<usize>>()
    };
    let parts: Vec<&Part> = drawing.parts().collect();
    let of_parts = marked(parts.iter().map(|part| &part.note).collect());
    let of_parts: Vec<&str> = of_parts.into_iter().map(|at| parts[at].kind).collect();
    assert_eq!(of_parts, [kind]);
    let legend = drawing.overlay.as_ref().unwrap();
    assert_eq!(
        marked(legend.layers.iter().collect()),
        Vec::from_iter(layer)
    );
    let kinds = marked(drawing.kinds.iter().map(|kind| &kind.note).collect());
    assert_eq!(kinds, Vec::from_iter(layer.map(|at| drawing.layers[at])));
}

/// The files of `golden` and of a model with one number of one weight changed.
fn damaged(scratch: &Path, name: &str, weight: &str) -> [String; 2] {
    let golden = goldens(scratch, |n| n == name).remove(0);
    let file = scratch.join(format!("{name}.gguf"));
    let mut bytes = std::fs::read(&file).unwrap();
    let tensor = golden.weights.tensor(weight).unwrap();
    let data = golden.weights.data(tensor).unwrap();
    let mut places = bytes
        .windows(data.len())
        .enumerate()
        .filter(|(_, w)| *w == &*data);
    let (at, _) = places.next().unwrap();
    assert!(places.next().is_none());
    bytes[at..at + 4].copy_from_slice(&9.0f32.to_le_bytes());
    let other = scratch.join("damaged.gguf");
    std::fs::write(&other, bytes).unwrap();
    [file, other].map(|file| file.display().to_string())
}

#[test]
fn the_program_shows_where_two_models_part() {
    let scratch = scratch();
    let [a, b] = damaged(scratch.path(), "llama", "blk.1.ffn_down.weight");
    let ran = bench(&["compare", &a, &b, "--tokens", "1,2,3,4", "--json"]);
    assert!(!ran.is_fine());
    let report = ran.out.as_bytes();
    let json: Value = serde_json::from_slice(report).unwrap();
    assert_eq!(json["first_divergence"], "layers.1.ffn.out");
    assert_eq!(json["tolerance"], 1e-6);
    let value = |path: &str| {
        let values = json["values"].as_array().unwrap();
        values.iter().find(|v| v["path"] == path).unwrap().clone()
    };
    let rms = |path: &str| ["rms_a", "rms_b"].map(|key| value(path)[key].as_f64().unwrap());
    let [before, after] = [rms("layers.1.ffn.in"), rms("layers.1.ffn.out")];
    assert!(before[0] > 0.0 && before[0] == before[1] && after[0] < after[1]);
    let drawn = one("llama");
    let drawing = put(&drawn, &Overlay::read(report, None).unwrap()).unwrap();
    check_marks(&drawing, "ffn", Some(1));
    let norms = Overlay::read(report, Some("norm of B")).unwrap();
    let of_out = |n: &&Number| n.path == "layers.1.ffn.out";
    assert_eq!(norms.numbers.iter().find(of_out).unwrap().value, after[1]);

    let file = scratch.path().join("compare.json").display().to_string();
    std::fs::write(&file, report).unwrap();
    let out = scratch.path().join("out").display().to_string();
    let draw = ["diagram", a.as_str(), "--overlay", &file, "-o", &out];
    printed(&draw);
    for ending in ["arch", "layers"] {
        let picture = Path::new(&out).join(format!("llama.{ending}.svg"));
        let text = std::fs::read_to_string(picture).unwrap();
        roxmltree::Document::parse(&text).unwrap();
        assert!(text.contains("first value that differs by more than 1e-6:"));
        assert!(text.contains("layers.1.ffn.out"));
    }
    let other = [&draw[..], &["--quantity", "time"]].concat();
    let refused: [(&[&str], &str); 4] = [
        (
            &["diagram", "llama", "--overlay", &file, "-o", &out],
            "`llama` is the name of a definition",
        ),
        (&other, "(`error`, `norm of A`, `norm of B`), found `time`"),
        (&["diagram", &a, "--quantity", "error"], "--overlay"),
        (&["diagram", &a, "--overlay", &out, "-o", &out], "directory"),
    ];
    for (arguments, part) in refused {
        let ran = bench(arguments);
        assert!(
            !ran.is_fine() && ran.err.contains(part),
            "{arguments:?}: {}",
            ran.err
        );
    }
}

/// A legend and the numbers of parts and kinds of layers.
fn told(drawing: &Drawing) -> String {
    let legend = drawing.overlay.as_ref().expect("a legend");
    let parts = drawing.parts().map(|part| (&part.id, &part.note));
    let kinds = drawing.kinds.iter().map(|kind| (&kind.id, &kind.note));
    let notes = kinds.chain(parts).filter(|(_, note)| note.level.is_some());
    let notes = notes.map(|(id, note)| format!("{id}: {} ({:?})", note.text, note.level));
    let shades = legend.shades.iter().map(|shade| shade.text.clone());
    let shades = shades.collect::<Vec<_>>().join(", ");
    let lines = legend.lines.iter().cloned().chain(legend.first.clone());
    let all = [legend.title.clone(), shades]
        .into_iter()
        .chain(lines)
        .chain(notes);
    all.collect::<Vec<_>>().join("\n")
}

/// Files with the name of the model on which their numbers are shown: of other models, as far as one can know,
/// and with what is no number.
const FILES: &str = r#"
llama {"layers.70.attn.q":1}
llama {"layers.0.attn.q":1,"layers.1.attn.q":2,"vision.0.q":1,"vision.1.q":1}
llama {"layers.0.attn.q":1,"layers.1.attn.q":2,"a":1,"b":1,"c":1,"d":1,"e":1}
llama {"model":"llama","runs":[{"profiles":[{"what":"p","places":[{"kind":"ffn","path":"layers.0.ffn","use":0,"operations":[{"name":"ADD","seconds":1}]}]}]}]}
x {"model":"llama","runs":[{"profiles":[{"what":"p","places":[{"kind":"ffn","path":"layers.0.ffn","use":0,"operations":[{"name":"ADD","seconds":1}]}]}]}]}
llama {"first_divergence":"layers.0.attn.q","values":[{"path":"embed.x","nmse":0},{"path":"layers.0.attn.q","nmse":null}]}
"#;

#[test]
fn files_are_told_in_words_with_what_is_doubtful() {
    let drawn = one("llama");
    let mut all = String::new();
    for line in FILES.lines().filter(|line| !line.is_empty()) {
        let (model, file) = line.split_once(' ').expect("a name");
        let overlay = Overlay::read(file.as_bytes(), None).unwrap();
        let mut drawing = drawn.drawing.clone();
        let text = match overlay.put(&mut drawing, &drawn.sample, model) {
            Ok(doubts) => format!("{}\nwarnings: {doubts:?}", told(&drawing)),
            Err(problem) => problem.to_string(),
        };
        all += &format!("{line}\n{text}\n\n");
    }
    insta::assert_snapshot!("overlay_files", all);
    for unknown in [
        "",
        ".",
        "layers",
        "layers.0x.attn",
        "layers.00.attn",
        "embedded.x",
        "layers.0.conv.q",
    ] {
        let overlay = largest(vec![(unknown.to_owned(), 1.0)]);
        assert!(put(&drawn, &overlay).is_err(), "{unknown}");
    }
}

#[test]
fn hostile_texts_stay_text() {
    let drawn = one("llama");
    let hostile = format!("<script>&\u{1}{}", "W".repeat(9000));
    let numbers = [hostile.as_str(), "layers.0.attn.q"];
    let mut overlay = largest(numbers.map(|path| (path.to_owned(), 1.0)).into());
    overlay.quantity = hostile;
    let drawing = put(&drawn, &overlay).unwrap();
    for piece in check_pictures("hostile", &drawing) {
        let text = svg::document(&drawing, &piece, "a picture");
        let xml = roxmltree::Document::parse(&text).unwrap();
        assert!(!xml.descendants().any(|node| node.has_tag_name("script")));
    }
}

/// A file may have texts of any length wherever it has one, and they are one word each.
#[test]
fn long_words_of_a_file_are_cut() {
    let drawn = one("llama");
    let long = |begin: &str| format!("{begin}{}", "W".repeat(1 << 20));
    let outside = [long("a"), long("b")];
    let first = long("layers.0.attn.");
    let value = |path: &String| json!({ "path": path, "nmse": 1.0 });
    let compared = json!({
        "first_divergence": first,
        "values": outside.iter().chain([&first]).map(value).collect::<Vec<_>>(),
    });
    let op = json!([{ "name": long("ADD"), "seconds": 1.0 }]);
    let place = |path: &str| json!({ "kind": "ffn", "path": path, "use": 0, "operations": op });
    let places = [place("layers.0.ffn"), place(&outside[0])];
    let profile = json!({ "what": long(""), "places": places });
    let profiled = json!({ "model": long("m"), "runs": [{ "profiles": [profile] }] });
    for file in [compared, profiled] {
        let begin = std::time::Instant::now();
        let overlay = Overlay::read(file.to_string().as_bytes(), None).unwrap();
        let drawing = put(&drawn, &overlay).unwrap();
        for piece in check_pictures("long words", &drawing) {
            let text = svg::document(&drawing, &piece, "a picture");
            assert!(text.len() < 1 << 19, "{} bytes", text.len());
        }
        assert!(begin.elapsed().as_secs() < 10, "{:?}", begin.elapsed());
        let refused = Overlay::read(file.to_string().as_bytes(), Some("none"));
        assert!(refused.unwrap_err().to_string().len() < 400);
    }
    let elsewhere = put(&drawn, &largest(vec![(long("x"), 1.0)]));
    assert!(elsewhere.unwrap_err().to_string().len() < 400);
}

/// The time that a file takes grows with its length alone.
#[test]
fn many_numbers_are_read_and_put_in_time() {
    const N: usize = 200_000;
    let drawn = one("llama");
    let each = |of: &dyn Fn(usize) -> String| (0..N).map(of).collect::<Vec<_>>().join(",");
    let paths = each(&|at| format!(r#""layers.{}.attn.value.{at}":{at}"#, at % 2));
    let values = each(&|at| format!(r#"{{"path":"layers.0.ffn.{at}","nmse":{at}}}"#));
    let ops = each(&|at| format!(r#"{{"name":"ADD","seconds":{at}}}"#));
    let last = format!("layers.0.ffn.{}", N - 1);
    let compared = format!(r#"{{"values":[{values}],"first_divergence":"{last}"}}"#);
    for file in [format!("{{{paths}}}"), compared, profiled(&op_list(&ops))] {
        let begin = std::time::Instant::now();
        let overlay = Overlay::read(file.as_bytes(), None).unwrap();
        assert_eq!(overlay.numbers.len(), N);
        let drawing = put(&drawn, &overlay).unwrap();
        svg::stack(&drawing);
        assert!(begin.elapsed().as_secs() < 10, "{:?}", begin.elapsed());
    }
}

/// A place of a profile with these operations.
fn op_list(ops: &str) -> String {
    format!(r#"{{"kind":"ffn","path":"layers.0.ffn","use":0,"operations":[{ops}]}}"#)
}

/// A profile with these places.
fn profiled(places: &str) -> String {
    format!(r#"{{"runs":[{{"profiles":[{{"what":"p","places":[{places}]}}]}}]}}"#)
}

/// Relative luminance of `#rgb` or `#rrggbb`, as WCAG defines it.
fn luminance(colour: &str) -> f64 {
    let digits = colour.trim_start_matches('#');
    let n = digits.len() / 3;
    let channel = |at: usize| {
        let text = digits[at * n..(at + 1) * n].repeat(3 - n);
        match f64::from(u8::from_str_radix(&text, 16).unwrap()) / 255.0 {
            c if c <= 0.03928 => c / 12.92,
            c => ((c + 0.055) / 1.055).powf(2.4),
        }
    };
    0.2126 * channel(0) + 0.7152 * channel(1) + 0.0722 * channel(2)
}

fn contrast(a: &str, b: &str) -> f64 {
    let mut both = [a, b].map(luminance);
    both.sort_by(f64::total_cmp);
    (both[1] + 0.05) / (both[0] + 0.05)
}

#[test]
fn text_is_readable_on_every_colour() {
    let (table, _) = svg::SHEET.split_once('}').unwrap();
    let colour = |name: &str| -> [String; 2] {
        let (_, rest) = table.split_once(&format!("{name}:light-dark(")).unwrap();
        let (light, rest) = rest.split_once(',').unwrap();
        let (dark, _) = rest.split_once(')').unwrap();
        [light.to_owned(), dark.to_owned()]
    };
    let names: Vec<String> = (0..LEVELS).map(|level| format!("--o{level}")).collect();
    for scheme in 0..2 {
        let of = |name: &str| colour(name)[scheme].clone();
        for name in names.iter().map(String::as_str).chain(["--cold"]) {
            assert!(contrast(&of("--ink"), &of(name)) >= 4.5, "{name} {scheme}");
        }
        // Each colour is further from the paper than the one before it.
        let steps: Vec<f64> = names
            .iter()
            .map(|name| contrast(&of(name), &of("--paper")))
            .collect();
        assert!(steps.is_sorted_by(|a, b| a < b), "{steps:?}");
    }
}

/// Files that are refused, and a part of the reason; `OP(..)` is a profile with an operation, and `PLACE(..)` one
/// with a place.
const REFUSED: &str = r#"
{ => EOF
[] => expected a map
{} => without numbers
{"a":NaN} => expected
{"a":1e999} => number out of range
{"a":1e301} => at `a`: expected a number of at most 1e300
{"a":"1"} => expected f64 at line 1
{"a":1,"a":1} => found `a` twice at line 1
{"runs":[]} => which has no profiles
{"runs":[{}]} => missing field `profiles`
{"runs":[{"profiles":[{"what":7}]}]} => expected a string
{"runs":[{"profiles":[]}]} => found one of `bench perf --json`
{"positions":1,"mean":null,"same_top":1} => found one of `bench compare --kl --json`
PLACE() => without operations
PLACE({"kind":"ffn","path":"a","use":-1}) => expected u64
OP({"name":"ADD"}) => missing field `seconds`
OP({"name":"ADD","seconds":-1}) => a time that is not negative, found -1
{"values":[]} => without values
{"values":[{"path":"a","nmse":1}],"first_divergence":"b"} => found `b`
"#;

/// Files of anything else are refused with what was expected.
#[test]
fn hostile_files_are_refused() {
    let written = |file: &str| {
        let within = |name: &str| file.strip_prefix(name)?.strip_suffix(')');
        match (within("OP("), within("PLACE(")) {
            (Some(op), _) => profiled(&op_list(op)),
            (_, Some(place)) => profiled(place),
            _ => file.to_owned(),
        }
    };
    let lines = REFUSED.lines().filter(|line| !line.is_empty());
    let lines = lines.map(|line| line.split_once(" => ").expect("a reason"));
    let mut cases: Vec<(String, &str)> = lines.map(|(f, part)| (written(f), part)).collect();
    let deep = "[".repeat(100_000);
    cases.push((format!("{{\"a\":{deep}"), "EOF"));
    cases.extend([(deep, "expected a map"), (String::new(), "EOF")]);
    for (file, part) in cases {
        let refused = Overlay::read(file.as_bytes(), None).unwrap_err();
        let message = refused.to_string();
        assert!(message.contains(part), "{file:.80}: {message}");
        assert!(message.len() < 400, "{message}");
    }
}
