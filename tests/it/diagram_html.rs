//! The page of a model: everything drawn is in it, by names that lead there, and it needs nothing else.
//!
//! What must be in a page is walked here from the drawing; pages are read by an XML parser and their
//! sums computed anew. How a page behaves is for `scripts/drive_page.py`, in a browser.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use lab_bench::inspect::diagram::html::Page;
use lab_bench::inspect::diagram::{Drawing, Part};
use roxmltree::{Document, Node};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::command::{bench, printed, scratch};
use crate::diagrams::{self, all_variants};
use crate::goldens::library;

/// A drawing with its page.
struct Case {
    drawing: &'static Drawing,
    path: String,
    text: String,
    page: String,
}

/// Every definition with symbols, in all variants, and every golden with numbers.
fn cases() -> &'static [Case] {
    static CASES: OnceLock<Vec<Case>> = OnceLock::new();
    CASES.get_or_init(|| {
        let library = library();
        let case = |drawing: &'static Drawing| {
            let source = library.source(&drawing.arch).unwrap();
            Case {
                drawing,
                path: source.path.clone(),
                text: source.text.clone(),
                page: page(drawing, &source.path, &source.text),
            }
        };
        let symbolic = all_variants().iter().map(|own| &own.drawing);
        let numbers = diagrams::cases().iter().map(|case| &case.drawings[0]);
        let cases: Vec<Case> = symbolic.chain(numbers).map(case).collect();
        assert!(cases.len() > 150);
        cases
    })
}

fn page(drawing: &Drawing, path: &str, definition: &str) -> String {
    let page = Page {
        drawing,
        path,
        definition,
    };
    page.to_html()
}

fn between<'t>(text: &'t str, begin: &str, end: &str) -> &'t str {
    let (_, rest) = text.split_once(begin).expect(begin);
    rest.split_once(end).expect(end).0
}

fn data(page: &str) -> Value {
    let begin = "<script type=\"application/json\" id=\"data\">";
    serde_json::from_str(between(page, begin, "</script>")).expect("JSON")
}

/// The body as XML: HTML closes some elements and attributes by itself.
fn body_text(page: &str) -> String {
    let (_, rest) = page.split_once("<body>").expect("a body");
    let (body, _) = rest.split_once("</body>").expect("its end");
    let body = body.replace(" hidden>", " hidden=\"\">");
    let (before, input) = body.split_once("<input ").expect("a search");
    let input = input.replacen("\">", "\"/>", 1);
    format!("<body>{before}<input {input}</body>")
}

fn read(body: &str) -> Document<'_> {
    Document::parse(body).unwrap_or_else(|e| panic!("{e}"))
}

fn has_class(node: &Node<'_, '_>, class: &str) -> bool {
    let classes = node.attribute("class").unwrap_or_default();
    classes.split(' ').any(|own| own == class)
}

/// The view of a name, and the pictures of a class in it.
fn pictures<'a, 'd>(view: Node<'a, 'd>, class: &str) -> Vec<Node<'a, 'd>> {
    let all = view.descendants().filter(|node| node.has_tag_name("svg"));
    all.filter(|node| has_class(node, class)).collect()
}

fn views<'a, 'd>(body: &'a Document<'d>) -> BTreeMap<&'a str, Node<'a, 'd>> {
    let all = body.descendants().filter(|node| has_class(node, "view"));
    all.map(|node| (node.attribute("data-view").unwrap(), node))
        .collect()
}

fn named<'a, 'd>(within: &[Node<'a, 'd>], at: &str) -> Option<Node<'a, 'd>> {
    let all = within.iter().flat_map(|node| node.descendants());
    let mut all = all.filter(|node| node.attribute("data-at") == Some(at));
    all.next()
}

fn texts(node: Node<'_, '_>) -> String {
    let texts = node.descendants().filter(|n| n.has_tag_name("text"));
    let texts: Vec<&str> = texts.filter_map(|n| n.text()).collect();
    texts.join("\n")
}

/// Every part with its kind of layers, in the order of execution.
fn parts(drawing: &Drawing) -> Vec<(Option<usize>, &Part)> {
    let begin = drawing.begin.iter().map(|part| (None, part));
    let kinds = drawing.kinds.iter().enumerate();
    let inside = kinds.flat_map(|(at, kind)| {
        let parts = kind.slots.iter().flat_map(|slot| slot.parts());
        parts.map(move |part| (Some(at), part))
    });
    let end = drawing.end.iter().map(|part| (None, part));
    begin.chain(inside).chain(end).collect()
}

fn shape(dims: &[String]) -> String {
    let said: Vec<&str> = dims
        .iter()
        .map(String::as_str)
        .filter(|d| *d != "1")
        .collect();
    match said.is_empty() {
        true => "1".into(),
        false => said.join(" × "),
    }
}

/// Whether a line of a definition is one from which a part can come.
fn check_line(case: &Case, part: &Part, line: u64) {
    let all: Vec<&str> = case.text.lines().collect();
    let line = all[usize::try_from(line).unwrap() - 1].trim();
    let place = format!("{} {} `{line}`", case.drawing.name, part.path);
    assert!(!line.is_empty() && !line.starts_with('#'), "{place}");
    if part.kind == "norm" {
        let words = ["norm", "pre", "post", "after", "[[stack.slot", "[head]"];
        assert!(words.iter().any(|word| line.contains(word)), "{place}");
    }
}

#[test]
fn everything_drawn_is_told() {
    for case in cases() {
        let (name, data) = (&case.drawing.name, data(&case.page));
        let definition = json!({ "path": case.path, "text": case.text });
        assert_eq!(data["definition"], definition, "{name}");
        let told = data["parts"].as_array().unwrap();
        let drawn = parts(case.drawing);
        assert_eq!(told.len(), drawn.len(), "{name}");
        for ((kind, part), told) in drawn.into_iter().zip(told) {
            let place = format!("{name} {}", part.path);
            let check = |told: &Value, known: Value| {
                for (key, value) in known.as_object().unwrap() {
                    assert_eq!(told[key], *value, "{place}: {key}");
                }
            };
            assert!(!part.formula.is_empty(), "{place} has no formula");
            let known = json!({ "title": part.title, "formula": part.formula, "kind": kind });
            check(told, known);
            // What a definition leaves to a default has no line.
            match told["source"].as_u64() {
                Some(line) => check_line(case, part, line),
                None => assert!(kind.is_none() && !case.text.contains("[embed]"), "{place}"),
            }
            let list = |key: &str| told[key].as_array().unwrap().clone();
            let n = [list("ops").len(), list("weights").len()];
            assert_eq!(n, [part.ops.len(), part.weights.len()], "{place}");
            for (told, op) in list("ops").iter().zip(&part.ops) {
                let (title, ops, weights) = (&op.title, &op.ops, &op.weights);
                let shape = shape(&op.result);
                check(
                    told,
                    json!({ "title": title, "shape": shape, "ops": ops, "weights": weights }),
                );
            }
            for (told, weight) in list("weights").iter().zip(&part.weights) {
                // No number that only a file can give.
                let n = (!case.drawing.is_symbolic).then_some(weight.tensors.len());
                let (name, shape, types) = (&weight.name, shape(&weight.shape), &weight.types);
                check(
                    told,
                    json!({ "name": name, "shape": shape, "types": types, "tensors": n }),
                );
                assert_eq!(told["cost"].is_string(), weight.cost.is_some(), "{place}");
            }
        }
    }
}

#[test]
fn every_name_leads_to_a_picture() {
    for case in cases() {
        let name = &case.drawing.name;
        let data = data(&case.page);
        let text = body_text(&case.page);
        let body = read(&text);
        let views = views(&body);
        let stack = views["stack"];
        let list = |value: &Value| value.as_array().unwrap().clone();
        let mut known = BTreeSet::from(["stack".to_owned()]);
        let mut learn = |told: &Value| {
            let at = told["at"].as_str().unwrap().to_owned();
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "._@~-".contains(c);
            assert!(at.chars().all(is_plain), "{name}: {at}");
            assert!(known.insert(at.clone()), "{name}: {at} is two things");
            at
        };
        let kinds: Vec<String> = list(&data["kinds"]).iter().map(&mut learn).collect();
        for at in &kinds {
            let is_shown = named(&[stack], at).is_some() && views.contains_key(at.as_str());
            assert!(is_shown, "{name}: {at} has no picture");
        }
        for ((kind, part), told) in parts(case.drawing).into_iter().zip(list(&data["parts"])) {
            let at = learn(&told);
            let view = views[kind.map_or(at.as_str(), |kind| kinds[kind].as_str())];
            let group = named(&pictures(view, "opened"), &at);
            let group = group.unwrap_or_else(|| panic!("{name}: {at} is not drawn"));
            assert!(
                named(&pictures(stack, "whole"), &at).is_some(),
                "{name}: {at}"
            );
            let has_card = named(&pictures(view, "closed"), &at).is_some();
            assert_eq!(has_card, kind.is_some(), "{name}: {at}");
            check_rect(name, &at, group, &told["rect"]);
            let is_single = part.kind == "norm" && part.ops.len() == 1;
            for (op, told) in part.ops.iter().zip(list(&told["ops"])) {
                let at = learn(&told);
                let own = named(&[group], &at).or(is_single.then_some(group));
                let own = texts(own.unwrap_or_else(|| panic!("{name}: {at} is not drawn")));
                let lead = |text: &str| text.chars().take(12).collect::<String>();
                let sign = matches!(op.shape, lab_bench::inspect::diagram::OpShape::Sign(_));
                assert!(
                    sign || own.contains(&lead(&op.title)),
                    "{name}: {at} is `{own}`"
                );
                for weight in op.weights.iter().map(|at| &part.weights[*at]) {
                    assert!(own.contains(&lead(&weight.name)), "{name}: {at} is `{own}`");
                }
            }
            list(&told["weights"])
                .iter()
                .for_each(|weight| drop(learn(weight)));
        }
        let shown = body
            .descendants()
            .filter_map(|node| node.attribute("data-at"));
        let links = body.descendants().filter_map(|node| node.attribute("href"));
        for at in shown.chain(links.map(|link| link.strip_prefix('#').expect("inside"))) {
            assert!(known.contains(at), "{name}: {at} is shown and not told");
        }
    }
}

/// Where a page looks for a part is where the part's frame is.
fn check_rect(name: &str, at: &str, group: Node<'_, '_>, told: &Value) {
    let told: Vec<f64> = told
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_f64().unwrap())
        .collect();
    let frame = group.children().find(Node::is_element).unwrap();
    if !frame.has_tag_name("rect") {
        assert!(told[2] > 10.0 && told[3] > 10.0, "{name}: {at} at {told:?}");
        return;
    }
    let number = |key: &str| frame.attribute(key).unwrap().parse::<f64>().unwrap();
    for (told, key) in told.iter().zip(["x", "y", "width", "height"]) {
        assert!(
            (told - number(key)).abs() <= 1.0,
            "{name}: {at}: {key} is {}, not {told}",
            number(key)
        );
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bits: Vec<u8> = Vec::new();
    bytes
        .iter()
        .for_each(|byte| bits.extend((0..8).rev().map(|at| byte >> at & 1)));
    bits.resize(bits.len().next_multiple_of(6), 0);
    let digits = bits
        .chunks(6)
        .map(|six| six.iter().fold(0, |all, bit| all << 1 | bit));
    let text: String = digits
        .map(|digit| char::from(DIGITS[usize::from(digit)]))
        .collect();
    let padding = text.len().next_multiple_of(4) - text.len();
    text + &"=".repeat(padding)
}

#[test]
fn a_page_asks_nobody() {
    const FOREIGN: &str =
        "http: https: //cdn src= url( @import fetch( XMLHttp WebSocket style= onclick onload eval(";
    for case in cases() {
        let (name, page) = (&case.drawing.name, &case.page);
        let policy = between(
            page,
            "http-equiv=\"Content-Security-Policy\" content=\"",
            "\"",
        );
        assert!(policy.starts_with("default-src 'none'; "), "{policy}");
        for (key, tag) in [("style-src", "style"), ("script-src", "script")] {
            let sum = between(policy, &format!("{key} 'sha256-"), "'");
            let text = between(page, &format!("<{tag}>"), &format!("</{tag}>"));
            assert!(text.len() > 5000);
            assert_eq!(
                sum,
                base64(&Sha256::digest(text.as_bytes())),
                "{name}: {tag}"
            );
        }
        // Definitions may speak of addresses; nothing else does.
        let data = between(page, "id=\"data\">", "</script>");
        let page = page.replace(data, "");
        let foreign = FOREIGN.split(' ').find(|word| page.contains(word));
        assert_eq!(foreign, None, "{name}");
        let counts = ["<script", "<style"].map(|tag| page.matches(tag).count());
        assert_eq!(counts, [2, 1], "{name}");
    }
}

#[test]
fn pages_are_small_and_the_same_each_time() {
    for case in cases() {
        let (name, size) = (&case.drawing.name, case.page.len());
        assert!(size < 270_000, "{name}: {size}");
        let again = page(case.drawing, &case.path, &case.text);
        assert_eq!(case.page, again, "{name}");
    }
    let mut sizes: Vec<usize> = cases().iter().map(|case| case.page.len()).collect();
    sizes.sort_unstable();
    let middle = sizes[sizes.len() / 2];
    assert!(middle < 120_000, "{middle}");
}

/// Elements by name, with how many there are.
fn elements(page: &str) -> BTreeMap<String, usize> {
    let text = body_text(page);
    let body = read(&text);
    let mut all = BTreeMap::new();
    for node in body.descendants().filter(Node::is_element) {
        *all.entry(node.tag_name().name().to_owned()).or_default() += 1;
    }
    all
}

/// A page in which texts of models and definitions are this one.
fn page_of(drawing: &Drawing, text: &str) -> String {
    let mut drawing = drawing.clone();
    let own = || text.to_owned();
    drawing.name = own();
    drawing.arch = own();
    let slots = drawing.kinds.iter_mut().flat_map(|kind| &mut kind.slots);
    for slot in slots {
        slot.name = own();
        for part in slot.branches.iter_mut().map(|branch| &mut branch.block) {
            part.title = own();
            part.facts = vec![own()];
            part.weights.iter_mut().for_each(|weight| {
                weight.key = own();
                weight.name = own();
            });
            part.ops.iter_mut().for_each(|op| op.value = Some(own()));
        }
    }
    page(&drawing, text, &format!("# {text}"))
}

#[test]
fn hostile_texts_stay_text() {
    const HOSTILE: &str =
        "</script><script>alert(1)</script>{{data}}<!--\u{1}\u{2028}\"'&</style><img/>";
    let drawing = cases()[0].drawing;
    let plain = page_of(drawing, &"x".repeat(HOSTILE.len()));
    let hostile = page_of(drawing, HOSTILE);
    assert_eq!(elements(&hostile), elements(&plain));
    for word in ["<script", "</script", "<style", "</style", "<!--", "<img"] {
        let n = |page: &str| page.matches(word).count();
        assert_eq!(n(&hostile), n(&plain), "{word}");
    }
    let data = data(&hostile);
    assert_eq!(data["name"], Value::from(HOSTILE));
    let text = format!("# {HOSTILE}");
    assert_eq!(data["definition"]["text"], Value::from(text));
    let parts = data["parts"].as_array().unwrap().iter();
    let ops = parts.flat_map(|part| part["ops"].as_array().unwrap());
    let names: Vec<&str> = ops.map(|op| op["at"].as_str().unwrap()).collect();
    let unique: BTreeSet<&&str> = names.iter().collect();
    assert_eq!(unique.len(), names.len());
}

#[test]
fn how_a_model_is_executed_stands_below_the_stack() {
    for case in cases() {
        let text = body_text(&case.page);
        let body = read(&text);
        let stack = views(&body)["stack"];
        let section = stack.children().rfind(Node::is_element).unwrap();
        assert!(has_class(&section, "execution"), "{}", case.drawing.name);
        let said = texts(section).replace(char::is_whitespace, "");
        assert!(!case.drawing.scenes.is_empty());
        for scene in &case.drawing.scenes {
            for sentence in [&scene.title, &scene.line].into_iter().chain(&scene.facts) {
                let words = sentence.replace(char::is_whitespace, "");
                assert!(said.contains(&words), "{}: {sentence}", case.drawing.name);
            }
        }
    }
}

#[test]
fn the_command_writes_one_file_for_each_variant() {
    let folder = scratch();
    let at = folder.path().to_str().unwrap();
    let model = "models/tiny-chat.gguf";
    let said = printed(&["diagram", model, "--html", "-o", at]);
    assert!(said.trim().ends_with("tiny-chat.html"), "{said}");
    let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(files.len(), 1);
    let text = std::fs::read_to_string(said.trim()).unwrap();
    let weight = &data(&text)["parts"][0]["weights"][0];
    assert_eq!(weight["name"], Value::from("token_embd.weight"));
    assert!(weight["cost"].as_str().unwrap().contains("iB"));
    for other in [&["--png", model][..], &["--all"]] {
        let ran = bench(&[&["diagram", "--html", "-o", at][..], other].concat());
        let is_refused = !ran.is_fine() && ran.err.contains("cannot be used with");
        assert!(is_refused, "{}", ran.err);
    }
}
