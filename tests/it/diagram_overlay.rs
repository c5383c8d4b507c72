//! Measurements on diagrams: every number is in one box, times add up to those of the pass, a fault is
//! marked where it is, and hostile files are refused.
//!
//! The box of each number is compared with its path, which is all that is known here of where it belongs.

use std::path::Path;
use std::time::Duration;

use lab_base::util::measure::thread_time;
use lab_inspect::diagram::overlay::{
    BoxId, BoxInLayer, FirstDifference, Measurement, Overlay, OverlayError,
};
use lab_inspect::diagram::{BoxNote, Drawing, LEVELS, Slot, svg};
use serde_json::{Value, json};

use crate::diagrams::{Case, cases, check_layout};
use crate::faults;
use crate::goldens::{EXACT, golden, library};
use crate::support::command::{bench, check_refused, made_up, printed, scratch, text};

fn put(case: &Case, overlay: &Overlay) -> Result<Drawing, OverlayError> {
    let mut drawing = case.drawings[0].clone();
    overlay.apply(&mut drawing, &case.samples[0], &case.golden.name)?;
    Ok(drawing)
}

/// The box of each number.
fn places(case: &Case, overlay: &Overlay) -> Vec<Option<BoxInLayer>> {
    overlay.places(&case.drawings[0], &case.samples[0])
}

/// Both pictures, in which texts do not meet.
fn check_pictures(name: &str, drawing: &Drawing) -> [svg::Fragment; 2] {
    let pieces = [svg::stack(drawing), svg::layers(drawing)];
    pieces.iter().for_each(|piece| check_layout(name, piece));
    pieces
}

/// The unit of a legend, in seconds.
fn unit(title: &str) -> f64 {
    match title.rsplit(' ').next() {
        Some("s") => 1.0,
        Some("ms") => 1e-3,
        Some("\u{b5}s") => 1e-6,
        other => panic!("{other:?} is not a unit of time"),
    }
}

/// The seconds that a note tells, with three digits.
fn seconds(note: &BoxNote, title: &str) -> f64 {
    let unit = unit(title);
    match note.short.as_str() {
        "" | "< 0.001" => 0.0,
        short => unit * short.parse::<f64>().unwrap_or_else(|_| panic!("{short}")),
    }
}

/// Experts and windows, a scan alongside attention, inputs of each layer.
const PROFILED: [&str; 3] = ["gpt-oss", "falcon-h1", "gemma4-small"];

/// The profiles of passes, as the program measures them.
fn profiles(file: &Path) -> Vec<(Overlay, f64)> {
    let arguments = ["perf", "-m", text(file), "-p", "9", "-n", "2", "-r", "1"];
    let report = printed(&[&arguments[..], &["--profile", "--json"]].concat());
    let json: Value = serde_json::from_str(&report).unwrap();
    let all = json["runs"][0]["profiles"].as_array().unwrap().iter();
    let overlay = |profile: &Value| {
        let quantity = format!("time of {}", profile["what"].as_str().unwrap());
        let overlay = Overlay::read(report.as_bytes(), Some(&quantity)).unwrap();
        (overlay, profile["seconds_in_operations"].as_f64().unwrap())
    };
    all.map(overlay).collect()
}

#[test]
fn times_of_boxes_add_up_to_those_of_the_pass() {
    let scratch = scratch();
    for golden in PROFILED.map(golden) {
        let case = Case::of(&golden.name);
        for (overlay, total) in profiles(&golden.write(scratch.path())) {
            let drawing = put(case, &overlay).unwrap();
            check_times(&golden.name, &drawing, &overlay, total);
            for (number, place) in overlay.numbers.iter().zip(places(case, &overlay)) {
                check_place(case, number, place);
            }
        }
    }
}

/// The numbers that are shown, and what is told as outside, are the whole.
fn check_times(name: &str, drawing: &Drawing, overlay: &Overlay, total: f64) {
    let legend = drawing.overlay.as_ref().unwrap();
    let told = |note: &BoxNote| seconds(note, &legend.title);
    let slots = drawing.kinds.iter().flat_map(|kind| &kind.slots);
    // Each number is rounded to three digits, and to the thousandth of the unit.
    let n_numbers = drawing.parts().count() + slots.clone().count() + legend.layers.len();
    let rounding = 0.001 * unit(&legend.title) * n_numbers as f64;
    let is_sum = |parts: &[f64], whole: f64| {
        let sum: f64 = parts.iter().sum();
        let is_near = (sum - whole).abs() <= 0.01 * sum.max(whole) + rounding;
        assert!(is_near, "{name}: {parts:?} {whole}");
    };
    let parts: f64 = drawing.parts().map(|part| told(&part.note)).sum();
    let joins: f64 = slots.map(|slot| told(&slot.note)).sum();
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
        let is_within = ops <= told(&part.note) * 1.01 + 1e-9;
        assert!(is_within, "{name}: {}", part.path);
    }
    let lines = legend.lines.join("\n");
    assert!(lines.contains("a pass takes "), "{name}: {lines}");
    let is_told = lines.contains("in no box");
    assert_eq!(is_told, outside > 0.0, "{name}: {lines}");
}

/// An operation is in the part or slot of its path, and in its layer.
fn check_place(case: &Case, number: &Measurement, place: Option<BoxInLayer>) {
    let (name, path) = (&case.golden.name, &number.path);
    let op = number.op.as_ref().expect("a profile has operations");
    let Some((home, layer)) = place else {
        assert_eq!((op.kind.as_str(), path.as_str()), ("wiring", ""), "{name}");
        return;
    };
    let (part, own) = match home {
        BoxId::Op(part, own) => (part, Some(own)),
        BoxId::Part(part) => (part, None),
        BoxId::Slot(..) => return assert_eq!(op.kind, "wiring", "{name}: {path}"),
        other => panic!("{name}: {path} is in {other:?}"),
    };
    let part = case.drawings[0].parts().nth(part).unwrap();
    if part.kind == "per_layer_input" {
        return;
    }
    let is_own = part.paths.contains(path) && part.kind == op.kind;
    assert!(is_own, "{name}: {path} in {}", part.path);
    let drawn_ops = own.map(|own| &part.ops[own].ops);
    let is_drawn = drawn_ops.is_none_or(|ops| ops.contains(&op.all[op.at]));
    assert!(is_drawn, "{name}: {path}: {} in {home:?}", op.all[op.at]);
    assert_eq!(layer, case.layer(path), "{name}: {path}");
}

fn largest(numbers: Vec<(String, f64)>) -> Overlay {
    let number = |(path, value)| Measurement {
        path,
        op: None,
        value,
    };
    Overlay {
        quantity: "norm".into(),
        numbers: numbers.into_iter().map(number).collect(),
        ..Overlay::default()
    }
}

#[test]
fn every_watched_value_has_a_box() {
    let mut n_values = 0;
    for case in cases() {
        let golden = case.golden;
        let mut values = faults::values(&golden.def, golden);
        // Tokens in the place of rows are read in comparisons alone, and are not drawn.
        let source = case.plan().source.as_ref();
        if source.is_some_and(|source| source.is_rows) {
            values.retain(|value| !value.path.starts_with("source.embed"));
        }
        n_values += values.len();
        let norm = |elements: &[f32]| {
            let finite = elements.iter().filter(|e| e.is_finite());
            finite.map(|e| f64::from(*e).powi(2)).sum::<f64>().sqrt()
        };
        let numbers = values.iter().map(|v| (v.path.clone(), norm(&v.elements)));
        let mut overlay = largest(numbers.collect());
        overlay.first = Some(FirstDifference {
            path: values[values.len() / 2].path.clone(),
            tolerance: Some(1e-6),
        });
        let drawing = put(case, &overlay).unwrap();
        let legend = drawing.overlay.as_ref().unwrap();
        let outside = legend.lines.iter().find(|line| line.contains("in no box"));
        assert_eq!(outside, None, "{}", golden.name);
        // A layer may do nothing at all.
        for (layer, note) in case.plan().layers.iter().zip(&legend.layers) {
            let is_empty = layer.slots.is_empty();
            assert_eq!(note.level.is_none(), is_empty, "{}", layer.path);
        }
        check_pictures(&golden.name, &drawing);
        for (value, place) in values.iter().zip(places(case, &overlay)) {
            check_value(case, &value.path, place.unwrap());
        }
    }
    assert!(n_values > 3000, "{n_values}");
}

/// A value is in the box of the path that it begins with, or in the norm or join that makes it.
fn check_value(case: &Case, path: &str, (home, layer): BoxInLayer) {
    let (name, drawing) = (&case.golden.name, &case.drawings[0]);
    let (above, value) = path.rsplit_once('.').unwrap();
    // What a layer only takes over is made before it.
    let is_before = path.starts_with("head.") || layer <= case.layer(path);
    assert!(is_before, "{name}: {path}");
    let is_wiring = matches!(value, "in" | "out" | "x" | "norm");
    match home {
        BoxId::Op(part, _) | BoxId::Part(part) => {
            let part = drawing.parts().nth(part).unwrap();
            let is_own = part.paths.iter().any(|own| own == above);
            assert!(is_own || is_wiring, "{name}: {path} in {}", part.path);
            assert!(value != "in" || part.kind == "norm", "{name}: {path}");
        }
        BoxId::Slot(kind, slot) => {
            let slots = &drawing.kinds[kind].slots;
            let is_of = |slot: &Slot| above.ends_with(&format!(".{}", slot.name));
            let has = |slot: &Slot| above.contains(&format!(".{}.", slot.name));
            // A block without the weight that it is for passes on what another slot made.
            let is_empty = |slot: &Slot| slot.branches.iter().any(|b| b.block.ops.is_empty());
            let own = slots.iter().find(|slot| is_of(slot) || has(slot));
            let slot = &slots[slot];
            // A factor of a branch is part of the join.
            let is_out = value == "out" && (has(slot) || own.is_some_and(is_empty));
            assert!(is_of(slot) || is_out, "{name}: {path}");
            let is_joined = matches!(value, "out" | "sum" | "x");
            assert!(is_joined, "{name}: {path} at {}", slot.name);
        }
        other => panic!("{name}: {path} is in {other:?}"),
    }
}

#[test]
fn a_fault_is_marked_at_its_block_and_layer() {
    let mut all = String::new();
    for (on, edits, path) in faults::FIRST {
        let case = Case::of(on);
        let report = faults::compared(&library(), case.golden, edits);
        let numbers = report.values.iter().map(|v| (v.path.clone(), v.nmse));
        let mut overlay = largest(numbers.collect());
        overlay.first = report.divergence(EXACT).map(|found| FirstDifference {
            path: found.path.clone(),
            tolerance: Some(EXACT),
        });
        let drawing = put(case, &overlay).unwrap();
        for piece in check_pictures(on, &drawing) {
            let texts: Vec<&str> = piece.texts().map(|(_, text)| text).collect();
            assert!(texts.contains(&"\u{25b2} first difference"), "{on}: {path}");
        }
        let layers = drawing.overlay.iter().flat_map(|legend| &legend.layers);
        let layers = layers.enumerate().map(|(at, note)| (at.to_string(), note));
        let parts = drawing.parts().map(|part| (part.id.clone(), &part.note));
        let kinds = drawing.kinds.iter();
        let kinds = kinds.map(|kind| (kind.id.clone(), &kind.note));
        let marked = parts.chain(kinds).chain(layers);
        let marked = marked.filter(|(_, note)| note.first.is_some());
        let marked: Vec<String> = marked.map(|(id, _)| id).collect();
        all += &format!("{on}: {path} is marked at {}\n", marked.join(", "));
    }
    insta::assert_snapshot!("marks", all);
}

#[test]
fn the_program_shows_where_two_models_part() {
    let [scratch, other, out] = [scratch(), scratch(), scratch()];
    let a = made_up(scratch.path(), "llama", &[]);
    let b = made_up(other.path(), "llama", &["--set", "rms_eps=0.5"]);
    let files = ["compare", text(&a), text(&b)];
    let ran = bench(&[&files[..], &["--tokens", "1,2,3,4", "--json"]].concat());
    assert!(!ran.is_fine());
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    let first = "layers.0.attn.in";
    assert_eq!(json["first_divergence"], first);
    let values = json["values"].as_array().unwrap();
    let value = |path: &str| values.iter().find(|v| v["path"] == path).unwrap();
    let rms = |path: &str| ["rms_a", "rms_b"].map(|key| value(path)[key].as_f64().unwrap());
    let [before, after] = [rms("embed.x"), rms(first)];
    assert!(before[0] > 0.0 && before[0] == before[1] && after[0] > after[1]);
    let norms = Overlay::read(ran.out.as_bytes(), Some("norm of B")).unwrap();
    let mut numbers = norms.numbers.iter();
    assert_eq!(numbers.find(|n| n.path == first).unwrap().value, after[1]);

    let (file, out) = (scratch.path().join("compare.json"), text(out.path()));
    std::fs::write(&file, &ran.out).unwrap();
    let (file, a) = (text(&file), text(&a));
    let draw = ["diagram", a, "--force", "--overlay", file, "-o", out];
    printed(&draw);
    for ending in ["arch", "layers"] {
        let picture = Path::new(out).join(format!("llama.{ending}.svg"));
        let picture = std::fs::read_to_string(picture).unwrap();
        roxmltree::Document::parse(&picture).unwrap();
        for told in ["first value that differs by more than 1e-6:", first] {
            assert!(picture.contains(told), "{ending}");
        }
    }
    let other = [&draw[..], &["--quantity", "time"]].concat();
    check_refused(
        &other,
        1,
        &["(`error`, `norm of A`, `norm of B`), found `time`"],
    );
    check_refused(&["diagram", a, "--quantity", "error"], 2, &["--overlay"]);
    check_refused(
        &["diagram", a, "--overlay", out, "-o", out],
        1,
        &["directory"],
    );
    let of_definition = ["diagram", "llama", "--overlay", file, "-o", out];
    check_refused(&of_definition, 1, &["`llama` is the name of a definition"]);
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
/// with what is no number, and files that are refused. `OP(..)` is a profile with an operation, and `PLACE(..)`
/// one with a place.
const FILES: &str = r#"
llama {"layers.70.attn.q":1}
llama {"layers.0.attn.q":1,"layers.1.attn.q":2,"vision.0.q":1,"vision.1.q":1}
llama {"layers.0.attn.q":1,"layers.1.attn.q":2,"a":1,"b":1,"c":1,"d":1,"e":1}
llama {"model":"llama","runs":[{"profiles":[{"what":"p","places":[{"kind":"ffn","path":"layers.0.ffn","use":0,"operations":[{"name":"ADD","seconds":1}]}]}]}]}
x {"model":"llama","runs":[{"profiles":[{"what":"p","places":[{"kind":"ffn","path":"layers.0.ffn","use":0,"operations":[{"name":"ADD","seconds":1}]}]}]}]}
llama {"first_divergence":"layers.0.attn.q","values":[{"path":"embed.x","nmse":0},{"path":"layers.0.attn.q","nmse":null}]}
llama {"":1}
llama {"layers.0.conv.q":1}
llama {
llama []
llama {}
llama {"a":NaN}
llama {"a":1e999}
llama {"a":1e301}
llama {"a":"1"}
llama {"a":1,"a":1}
llama {"runs":[]}
llama {"runs":[{}]}
llama {"runs":[{"profiles":[{"what":7}]}]}
llama {"runs":[{"profiles":[]}]}
llama PLACE()
llama PLACE({"kind":"ffn","path":"a","use":-1})
llama OP({"name":"ADD"})
llama OP({"name":"ADD","seconds":-1})
llama {"values":[]}
llama {"values":[{"path":"a","nmse":1}],"first_divergence":"b"}
"#;

/// Files are told in words with what is doubtful, or refused with what was expected.
#[test]
fn files_are_told_in_words() {
    let case = Case::of("llama");
    let put = |file: &str, model: &str| {
        let overlay = Overlay::read(file.as_bytes(), None)?;
        let mut drawing = case.drawings[0].clone();
        let doubt = overlay.apply(&mut drawing, &case.samples[0], model)?;
        Ok(format!("{}\nwarning: {doubt:?}", told(&drawing)))
    };
    let mut all = String::new();
    for line in FILES.lines().filter(|line| !line.is_empty()) {
        let (model, file) = line.split_once(' ').expect("a name");
        let within = |name: &str| file.strip_prefix(name)?.strip_suffix(')');
        let file = match (within("OP("), within("PLACE(")) {
            (Some(op), _) => profiled(&op_list(op)),
            (_, Some(place)) => profiled(place),
            _ => file.to_owned(),
        };
        let text = put(&file, model).unwrap_or_else(|problem: OverlayError| problem.to_string());
        all += &format!("{line}\n{text}\n\n");
    }
    insta::assert_snapshot!("overlay_files", all);
    let deep = "[".repeat(100_000);
    for file in [String::new(), format!("{{\"a\":{deep}"), deep] {
        assert!(put(&file, "llama").unwrap_err().to_string().len() < 400);
    }
}

/// A file may have texts of any length wherever it has one, and they are one word each; they are cut, and stay
/// text.
#[test]
fn hostile_words_of_a_file_are_cut_and_stay_text() {
    let case = Case::of("llama");
    let long = |begin: &str| format!("{begin}<script>&\u{1}{}", "W".repeat(1 << 20));
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
        let begin = thread_time();
        let overlay = Overlay::read(file.to_string().as_bytes(), None).unwrap();
        let drawing = put(case, &overlay).unwrap();
        for piece in check_pictures("long words", &drawing) {
            let text = svg::document(&drawing, &piece, "a picture");
            assert!(text.len() < 1 << 19, "{} bytes", text.len());
            let xml = roxmltree::Document::parse(&text).unwrap();
            assert!(!xml.descendants().any(|node| node.has_tag_name("script")));
        }
        let took = thread_time() - begin;
        assert!(took < WITHIN, "{took:?}");
        let refused = Overlay::read(file.to_string().as_bytes(), Some("none"));
        assert!(refused.unwrap_err().to_string().len() < 400);
    }
    let elsewhere = put(case, &largest(vec![(long("x"), 1.0)]));
    assert!(elsewhere.unwrap_err().to_string().len() < 400);
}

/// Most that reading and drawing may take.
const WITHIN: Duration = Duration::from_secs(10);

/// The time that a file takes grows with its length alone.
#[test]
fn many_numbers_are_read_and_put_in_time() {
    const N: usize = 200_000;
    let case = Case::of("llama");
    let each = |of: &dyn Fn(usize) -> String| (0..N).map(of).collect::<Vec<_>>().join(",");
    let paths = each(&|at| format!(r#""layers.{}.attn.value.{at}":{at}"#, at % 2));
    let values = each(&|at| format!(r#"{{"path":"layers.0.ffn.{at}","nmse":{at}}}"#));
    let ops = each(&|at| format!(r#"{{"name":"ADD","seconds":{at}}}"#));
    let last = format!("layers.0.ffn.{}", N - 1);
    let compared = format!(r#"{{"values":[{values}],"first_divergence":"{last}"}}"#);
    for file in [format!("{{{paths}}}"), compared, profiled(&op_list(&ops))] {
        let begin = thread_time();
        let overlay = Overlay::read(file.as_bytes(), None).unwrap();
        assert_eq!(overlay.numbers.len(), N);
        let drawing = put(case, &overlay).unwrap();
        svg::stack(&drawing);
        let took = thread_time() - begin;
        assert!(took < WITHIN, "{took:?}");
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

/// Contrast of two colours `#rgb` or `#rrggbb`, as WCAG defines it.
fn contrast(colours: [&str; 2]) -> f64 {
    let mut both = colours.map(|colour| {
        let n = (colour.len() - 1) / 3;
        let channel = |at: usize| {
            let text = colour[1 + at * n..][..n].repeat(3 - n);
            match f64::from(u8::from_str_radix(&text, 16).unwrap()) / 255.0 {
                c if c <= 0.03928 => c / 12.92,
                c => ((c + 0.055) / 1.055).powf(2.4),
            }
        };
        0.2126 * channel(0) + 0.7152 * channel(1) + 0.0722 * channel(2)
    });
    both.sort_by(f64::total_cmp);
    (both[1] + 0.05) / (both[0] + 0.05)
}

/// Colours of boxes with text.
const PAPERS: &str =
    "--paper --panel --run --pill --mix --rec --net --moe --nrm --end --kept --tap";

#[test]
fn text_is_readable_on_every_colour() {
    let colours = |name: &str| {
        let begin = format!("{name}:light-dark(");
        let (_, rest) = svg::SHEET.split_once(&begin).unwrap();
        rest.split_once(')').unwrap().0.split_once(',').unwrap()
    };
    let warm = (0..LEVELS).map(|level| format!("--o{level}"));
    let cool = (1..LEVELS).map(|level| format!("--u{level}"));
    let scales: [Vec<String>; 2] = [warm.collect(), cool.collect()];
    for side in [|(light, _)| light, |(_, dark)| dark] as [fn((_, _)) -> &'static str; 2] {
        let on = |a: &str, b: &str| contrast([a, b].map(|name| side(colours(name))));
        let names = scales.iter().flatten().map(String::as_str);
        for name in names.chain(["--cold"]) {
            assert!(on("--ink", name) >= 4.5, "text on {name}");
        }
        for name in PAPERS.split(' ') {
            let least = on("--ink", name).min(on("--quiet", name));
            assert!(least >= 4.5, "text on {name}");
        }
        // Each colour is further from the paper than the one before it.
        for names in &scales {
            let steps = names.iter().map(|name| on(name, "--paper"));
            assert!(steps.is_sorted_by(|a, b| a < b));
        }
    }
}
