//! The page of a model: everything drawn is in it, by names that lead there, and it needs nothing else.
//!
//! What must be in a page is walked here from the drawing; pages are read by an XML parser and their
//! sums computed anew. How a page behaves is for `scripts/drive_page.py`, in a browser.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::LazyLock;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use lab_inspect::diagram::html::page;
use lab_inspect::diagram::{Drawing, OpShape, Slot, UnitBox};
use roxmltree::{Document, Node};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::diagrams::{Case, all_variants, cases};
use crate::support::command::{check_refused, printed, scratch, text};

/// Every definition with symbols, in all variants, and every golden with numbers; each with its page.
static CASES: LazyLock<Vec<(&Drawing, String)>> = LazyLock::new(|| {
    let symbolic = all_variants().iter().map(|own| &own.drawing);
    let numbers = cases().iter().map(|case| &case.drawings[0]);
    let all = symbolic.chain(numbers);
    let cases: Vec<_> = all.map(|drawing| (drawing, page(drawing))).collect();
    assert!(cases.len() > 150);
    cases
});

fn between<'t>(text: &'t str, begin: &str, end: &str) -> &'t str {
    let (_, rest) = text.split_once(begin).expect(begin);
    rest.split_once(end).expect(end).0
}

/// The body as XML: HTML closes some elements and attributes by itself.
fn body_of(page: &str) -> String {
    let body = between(page, "<body>", "</body>").replace(" hidden>", " hidden=\"\">");
    let (before, input) = body.split_once("<input ").expect("a search");
    let input = input.replacen("\">", "\"/>", 1);
    format!("<body>{before}<input {input}</body>")
}

fn data(body: &Document<'_>) -> Value {
    let mut all = body.descendants();
    let data = all.find(|node| node.attribute("id") == Some("data"));
    serde_json::from_str(data.and_then(|node| node.text()).expect("data")).expect("JSON")
}

fn has_class(node: &Node<'_, '_>, class: &str) -> bool {
    let classes = node.attribute("class").unwrap_or_default();
    classes.split(' ').any(|own| own == class)
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
    texts.filter_map(|n| n.text()).collect()
}

/// What is known to a page, its pictures, and the names that were met so far.
struct Reader<'a, 'd> {
    name: &'a str,
    views: BTreeMap<&'a str, Node<'a, 'd>>,
    whole: HashMap<&'a str, Node<'a, 'd>>,
    known: BTreeSet<&'a str>,
}

impl<'a> Reader<'a, '_> {
    /// A name that is plain and new.
    fn learn(&mut self, at: &'a str) {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._@~-".contains(c);
        let name = self.name;
        assert!(at.chars().all(is_plain), "{name}: {at}");
        assert!(self.known.insert(at), "{name}: {at} is two things");
    }

    /// A part that is seen in a view, with its operations and weights.
    fn part(&mut self, view: &str, part: &'a UnitBox) {
        let (name, at) = (self.name, part.id.as_str());
        let opened = groups(self.views[view], "opened");
        self.learn(at);
        assert!(self.whole.contains_key(at), "{name}: {at}");
        assert!(!part.formula.is_empty(), "{name}: {at} has no formula");
        let is_single = part.kind == "norm" && part.ops.len() == 1;
        for op in &part.ops {
            self.learn(&op.id);
            let group = opened.get(op.id.as_str());
            let group = group.or(opened.get(at).filter(|_| is_single));
            let own = texts(*group.unwrap_or_else(|| panic!("{name}: {} is not drawn", op.id)));
            let weights = op.weights.iter().map(|at| &part.weights[*at].name);
            let title = (!matches!(op.shape, OpShape::Sign(_))).then_some(&op.title);
            for text in weights.chain(title) {
                let lead: String = text.chars().take(12).collect();
                assert!(own.contains(&lead), "{name}: {} is `{own}`", op.id);
            }
        }
        part.weights.iter().for_each(|w| self.learn(&w.id));
    }
}

#[test]
fn every_name_in_a_page_has_a_picture_and_data() {
    for (drawing, page) in &*CASES {
        let (name, text) = (&drawing.name, body_of(page));
        let body = Document::parse(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        let data = data(&body);
        let parts: Vec<&UnitBox> = drawing.parts().collect();
        assert_eq!(data["parts"], serde_json::json!(parts), "{name}");
        let views = body.descendants().filter(|node| has_class(node, "view"));
        let views = views.map(|node| (node.attribute("data-view").unwrap(), node));
        let views: BTreeMap<&str, Node<'_, '_>> = views.collect();
        let mut reader = Reader {
            name,
            whole: groups(views["stack"], "whole"),
            views,
            known: BTreeSet::from(["stack"]),
        };
        for kind in &drawing.kinds {
            reader.learn(&kind.id);
            let is_shown = reader.whole.contains_key(kind.id.as_str());
            assert!(is_shown, "{name}: {} has no picture", kind.id);
            let inside = kind.slots.iter().flat_map(Slot::parts);
            inside.for_each(|part| reader.part(&kind.id, part));
        }
        for part in drawing.begin.iter().chain(&drawing.end) {
            reader.part(&part.id, part);
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
    assert!(!drawing.scenes.is_empty());
    let told = texts(section).replace(char::is_whitespace, "");
    let sentences = drawing.scenes.iter();
    let sentences = sentences.flat_map(|s| [&s.title, &s.line].into_iter().chain(&s.facts));
    for sentence in sentences {
        let words = sentence.replace(char::is_whitespace, "");
        assert!(told.contains(&words), "{}: {sentence}", drawing.name);
    }
}

/// What a page tells of a weight and of an operation, as its script reads it.
#[test]
fn scripts_of_a_page_find_what_they_read() {
    let mut parts = Case::of("llama").drawings[0].parts();
    let mut part = parts.find(|part| part.kind == "ffn").cloned().unwrap();
    part.ops.truncate(1);
    part.weights.truncate(1);
    let part = serde_json::to_value(&part).unwrap();
    insta::assert_snapshot!("page_data", serde_json::to_string_pretty(&part).unwrap());
}

#[test]
fn a_page_loads_nothing_from_elsewhere() {
    const FOREIGN: &str =
        "http: https: //cdn src= url( @import fetch( XMLHttp WebSocket style= onclick onload eval(";
    let head = |(drawing, page): &(&Drawing, String)| {
        let (head, _) = page.split_once("<body>").expect("a body");
        let title = format!("<title>{}</title>", drawing.name);
        head.replacen(&title, "", 1)
    };
    let first = head(&CASES[0]);
    let policy = between(&first, "Content-Security-Policy\" content=\"", "\"");
    assert!(policy.starts_with("default-src 'none'; "));
    for tag in ["style", "script"] {
        let text = between(&first, &format!("<{tag}>"), &format!("</{tag}>"));
        let sum = BASE64_STANDARD.encode(Sha256::digest(text.as_bytes()));
        let allowed = format!("{tag}-src 'sha256-{sum}'");
        assert!(text.len() > 5000 && policy.contains(&allowed), "{tag}");
    }
    for case in &*CASES {
        let (name, page) = (&case.0.name, &case.1);
        assert_eq!(head(case), first, "{name}");
        // Definitions may speak of addresses; nothing else does.
        let page = page.replace(between(page, "id=\"data\">", "</script>"), "");
        let foreign = FOREIGN.split(' ').find(|word| page.contains(word));
        assert_eq!(foreign, None, "{name}");
        let counts = ["<script", "<style"].map(|tag| page.matches(tag).count());
        assert_eq!(counts, [2, 1], "{name}");
    }
}

#[test]
fn pages_are_small() {
    let mut sizes: Vec<usize> = CASES.iter().map(|(_, page)| page.len()).collect();
    sizes.sort_unstable();
    let (middle, largest) = (sizes[sizes.len() / 2], sizes[sizes.len() - 1]);
    assert!(middle < 120_000 && largest < 280_000, "{middle}, {largest}");
}

/// A drawing in which texts of models and definitions are this one.
pub(crate) fn with_texts(drawing: &Drawing, text: &str) -> Drawing {
    let mut drawing = drawing.clone();
    let own = || text.to_owned();
    (drawing.name, drawing.arch) = (own(), own());
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
    let drawing = CASES[0].0;
    let pages = [&"x".repeat(HOSTILE.len()), HOSTILE].map(|text| page(&with_texts(drawing, text)));
    let [plain, hostile] = pages.each_ref().map(|page| body_of(page));
    let [plain, hostile] = [&plain, &hostile].map(|body| Document::parse(body).expect("XML"));
    let tags = |body: &Document<'_>| -> Vec<String> {
        let elements = body.descendants().filter(Node::is_element);
        elements.map(|n| n.tag_name().name().to_owned()).collect()
    };
    assert_eq!(tags(&hostile), tags(&plain));
    for word in ["<script", "</script", "<style", "</style", "<!--", "<img"] {
        let [a, b] = pages.each_ref().map(|page| page.matches(word).count());
        assert_eq!(a, b, "{word}");
    }
    let data = data(&hostile);
    assert_eq!(data["name"], HOSTILE);
    let ops = drawing.parts().flat_map(|part| &part.ops);
    let names: Vec<&str> = ops.map(|op| op.id.as_str()).collect();
    let parts = data["parts"].as_array().unwrap().iter();
    let found = parts.flat_map(|part| part["ops"].as_array().unwrap());
    assert!(found.map(|op| &op["at"]).eq(names));
}

#[test]
fn the_command_writes_one_file_for_each_variant() {
    let folder = scratch();
    let at = text(folder.path());
    let model = "models/tiny-chat.gguf";
    let told = printed(&["diagram", model, "--html", "-o", at]);
    assert!(told.trim().ends_with("tiny-chat.html"), "{told}");
    assert_eq!(std::fs::read_dir(at).unwrap().count(), 1);
    let body = body_of(&std::fs::read_to_string(told.trim()).unwrap());
    let weight = &data(&Document::parse(&body).expect("XML"))["parts"][0]["weights"][0];
    assert_eq!(weight["name"], "token_embd.weight");
    assert!(weight["cost"].as_str().unwrap().contains("iB"));
    for other in [&["--png", model][..], &["--all"]] {
        let all = [&["diagram", "--html", "-o", at][..], other].concat();
        check_refused(&all, 2, &["cannot be used with"]);
    }
}
