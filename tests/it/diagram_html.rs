//! The page of a model: everything drawn is in it, by names that lead there, and it needs nothing else.
//!
//! What must be in a page is walked here from the drawing; pages are read by an XML parser and their
//! sums computed anew. How a page behaves is for `scripts/drive_page.py`, in a browser.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::OnceLock;

use lab_bench::inspect::diagram::html::Page;
use lab_bench::inspect::diagram::{Drawing, OpShape, Part, Slot};
use roxmltree::{Document, Node};
use serde_json::Value;
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

fn views<'a, 'd>(body: &'a Document<'d>) -> BTreeMap<&'a str, Node<'a, 'd>> {
    let all = body.descendants().filter(|node| has_class(node, "view"));
    all.map(|node| (node.attribute("data-view").unwrap(), node))
        .collect()
}

/// The groups of a view by their names, in its pictures of one class.
fn groups<'a, 'd>(view: Node<'a, 'd>, class: &str) -> HashMap<&'a str, Node<'a, 'd>> {
    let pictures = view.descendants().filter(|node| node.has_tag_name("svg"));
    let pictures = pictures.filter(|node| has_class(node, class));
    let all = pictures.flat_map(|node| node.descendants());
    all.filter_map(|node| Some((node.attribute("data-at")?, node)))
        .collect()
}

fn texts(node: Node<'_, '_>) -> String {
    let texts = node.descendants().filter(|n| n.has_tag_name("text"));
    let texts: Vec<&str> = texts.filter_map(|n| n.text()).collect();
    texts.join("\n")
}

/// Whether a line of a definition is one from which a part can come.
fn check_line(case: &Case, part: &Part, line: usize) {
    let all: Vec<&str> = case.text.lines().collect();
    let line = all[line - 1].trim();
    let place = format!("{} {} `{line}`", case.drawing.name, part.path);
    assert!(!line.is_empty() && !line.starts_with('#'), "{place}");
    if part.kind == "norm" {
        let words = ["norm", "pre", "post", "after", "[[stack.slot", "[head]"];
        assert!(words.iter().any(|word| line.contains(word)), "{place}");
    }
}

/// What is known to a page, its pictures, and the names that were met so far.
struct Reader<'a, 'd> {
    case: &'a Case,
    views: BTreeMap<&'a str, Node<'a, 'd>>,
    whole: HashMap<&'a str, Node<'a, 'd>>,
    known: BTreeSet<&'a str>,
}

impl<'a> Reader<'a, '_> {
    /// A name that is plain and new.
    fn learn(&mut self, at: &'a str) {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._@~-".contains(c);
        let name = &self.case.drawing.name;
        assert!(at.chars().all(is_plain), "{name}: {at}");
        assert!(self.known.insert(at), "{name}: {at} is two things");
    }

    /// Parts that are seen in one view, each with its operations and weights.
    fn parts(&mut self, view: &str, is_kind: bool, parts: Vec<&'a Part>) {
        let name = &self.case.drawing.name;
        let view = self.views[view];
        let [opened, closed] = ["opened", "closed"].map(|class| groups(view, class));
        for part in parts {
            let at = part.id.as_str();
            self.learn(at);
            let group = opened.get(at);
            let group = group.unwrap_or_else(|| panic!("{name}: {at} is not drawn"));
            assert!(self.whole.contains_key(at), "{name}: {at}");
            assert_eq!(closed.contains_key(at), is_kind, "{name}: {at}");
            assert!(!part.formula.is_empty(), "{name}: {at} has no formula");
            match part.source_line {
                Some(line) => check_line(self.case, part, line),
                // What a definition leaves to a default has no line.
                None => assert!(!is_kind && !self.case.text.contains("[embed]"), "{at}"),
            }
            let is_single = part.kind == "norm" && part.ops.len() == 1;
            for op in &part.ops {
                self.learn(&op.id);
                let own = opened.get(op.id.as_str()).or(is_single.then_some(group));
                let own = own.unwrap_or_else(|| panic!("{name}: {} is not drawn", op.id));
                let own = texts(*own);
                let weights = op.weights.iter().map(|at| &part.weights[*at].name);
                let title = (!matches!(op.shape, OpShape::Sign(_))).then_some(&op.title);
                for text in weights.chain(title) {
                    let lead: String = text.chars().take(12).collect();
                    assert!(own.contains(&lead), "{name}: {} is `{own}`", op.id);
                }
            }
            part.weights
                .iter()
                .for_each(|weight| self.learn(&weight.id));
        }
    }
}

#[test]
fn every_name_leads_to_a_picture_and_to_what_is_told_of_it() {
    for case in cases() {
        let (name, drawing, data) = (&case.drawing.name, case.drawing, data(&case.page));
        assert_eq!(data["definition"]["path"], case.path.as_str(), "{name}");
        assert_eq!(data["definition"]["text"], case.text.as_str(), "{name}");
        let parts: Vec<&Part> = drawing.parts().collect();
        assert_eq!(data["parts"], serde_json::json!(parts), "{name}");
        let text = body_text(&case.page);
        let body = read(&text);
        let views = views(&body);
        let mut reader = Reader {
            case,
            whole: groups(views["stack"], "whole"),
            views,
            known: BTreeSet::from(["stack"]),
        };
        for kind in &drawing.kinds {
            reader.learn(&kind.id);
            let is_shown = reader.whole.contains_key(kind.id.as_str());
            assert!(is_shown, "{name}: {} has no picture", kind.id);
            let inside = kind.slots.iter().flat_map(Slot::parts).collect();
            reader.parts(&kind.id, true, inside);
        }
        for part in drawing.begin.iter().chain(&drawing.end) {
            reader.parts(&part.id, false, vec![part]);
        }
        for node in body.descendants() {
            let link = node.attribute("href");
            let link = link.map(|link| link.strip_prefix('#').expect("inside"));
            for at in node.attribute("data-at").into_iter().chain(link) {
                let is_known = reader.known.contains(at);
                assert!(is_known, "{name}: {at} is shown and not told");
            }
        }
        check_scenes(drawing, reader.views["stack"]);
    }
}

/// How the model is executed stands below its stack.
fn check_scenes(drawing: &Drawing, stack: Node<'_, '_>) {
    let section = stack.children().rfind(Node::is_element).unwrap();
    assert!(has_class(&section, "execution"), "{}", drawing.name);
    let said = texts(section).replace(char::is_whitespace, "");
    assert!(!drawing.scenes.is_empty());
    for scene in &drawing.scenes {
        for sentence in [&scene.title, &scene.line].into_iter().chain(&scene.facts) {
            let words = sentence.replace(char::is_whitespace, "");
            assert!(said.contains(&words), "{}: {sentence}", drawing.name);
        }
    }
}

/// What a page tells of a weight and of an operation, as its script reads it.
#[test]
fn scripts_of_a_page_find_what_they_read() {
    let is_tiny = |case: &&Case| case.drawing.name == "llama" && !case.drawing.is_symbolic;
    let case = cases().iter().find(is_tiny).expect("a golden");
    let parts = data(&case.page)["parts"].take();
    let part = parts
        .as_array()
        .unwrap()
        .iter()
        .find(|p| p["block"] == "ffn");
    let mut part = part.expect("an MLP").clone();
    for list in ["ops", "weights"] {
        part[list].as_array_mut().unwrap().truncate(1);
    }
    insta::assert_snapshot!("page_data", serde_json::to_string_pretty(&part).unwrap());
}

#[test]
fn a_page_asks_nobody() {
    const FOREIGN: &str =
        "http: https: //cdn src= url( @import fetch( XMLHttp WebSocket style= onclick onload eval(";
    let policy = |page| {
        between(
            page,
            "http-equiv=\"Content-Security-Policy\" content=\"",
            "\"",
        )
    };
    let texts = |page| {
        let text = |tag: &str| between(page, &format!("<{tag}>"), &format!("</{tag}>"));
        ["style", "script"].map(text)
    };
    let first = &cases()[0].page;
    assert!(policy(first).starts_with("default-src 'none'; "));
    for (key, text) in ["style-src", "script-src"].iter().zip(texts(first)) {
        let known = between(policy(first), &format!("{key} 'sha256-"), "'");
        assert!(text.len() > 5000);
        assert_eq!(
            known,
            base64::encode(Sha256::digest(text.as_bytes())),
            "{key}"
        );
    }
    for case in cases() {
        let (name, page) = (&case.drawing.name, &case.page);
        assert_eq!(policy(page), policy(first), "{name}");
        assert_eq!(texts(page), texts(first), "{name}");
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
    let mut sizes: Vec<usize> = cases().iter().map(|case| case.page.len()).collect();
    sizes.sort_unstable();
    let (middle, largest) = (sizes[sizes.len() / 2], sizes[sizes.len() - 1]);
    assert!(middle < 120_000 && largest < 270_000, "{middle}, {largest}");
    for case in cases().iter().step_by(8) {
        let again = page(case.drawing, &case.path, &case.text);
        assert_eq!(case.page, again, "{}", case.drawing.name);
    }
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

/// A drawing in which texts of models and definitions are this one.
pub(crate) fn with_texts(drawing: &Drawing, text: &str) -> Drawing {
    let mut drawing = drawing.clone();
    let own = || text.to_owned();
    drawing.name = own();
    drawing.arch = own();
    for kind in &mut drawing.kinds {
        kind.label = own();
        for slot in &mut kind.slots {
            slot.name = own();
            for branch in &mut slot.branches {
                branch.save = Some(own());
                let part = &mut branch.block;
                (part.title, part.facts) = (own(), vec![own()]);
                for weight in &mut part.weights {
                    (weight.key, weight.name) = (own(), own());
                }
                part.ops.iter_mut().for_each(|op| op.value = Some(own()));
            }
        }
    }
    drawing
}

#[test]
fn hostile_texts_stay_text() {
    const HOSTILE: &str =
        "</script><script>alert(1)</script>{{data}}<!--\u{1}\u{2028}\"'&</style><img/>";
    let drawing = cases()[0].drawing;
    let page_of = |text: &str| page(&with_texts(drawing, text), text, &format!("# {text}"));
    let plain = page_of(&"x".repeat(HOSTILE.len()));
    let hostile = page_of(HOSTILE);
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
