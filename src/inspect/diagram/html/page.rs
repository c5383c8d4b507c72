//! The HTML page of a drawing: its frame, its style, its script, and the parts as JSON, with amounts in words.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Serialize, Serializer};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::super::ids::WHOLE;
use super::super::svg::{self, escape};
use super::super::{BoxNote, Drawing, Kept, UnitBox, WeightCost};
use super::views;

/// The concatenated files, and their SHA-256 sum in the form of a content security policy.
fn with_sum(files: &[&str]) -> (String, String) {
    let text = files.concat();
    let sum = BASE64_STANDARD.encode(Sha256::digest(text.as_bytes()));
    (text, sum)
}

static STYLE: LazyLock<(String, String)> =
    LazyLock::new(|| with_sum(&[svg::SHEET, include_str!("page.css")]));

static SCRIPT: LazyLock<(String, String)> = LazyLock::new(|| {
    with_sum(&[
        include_str!("page.js"),
        include_str!("panel.js"),
        include_str!("search.js"),
        include_str!("keys.js"),
    ])
});

pub fn page(drawing: &Drawing) -> String {
    let ((style, style_sum), (script, script_sum)) = (&*STYLE, &*SCRIPT);
    format!(
        include_str!("page.html"),
        name = escape(&drawing.name),
        arch = escape(&drawing.arch),
        facts = facts(drawing),
        levels = levels(drawing),
        views = views::views(drawing),
        data = data(drawing),
        style_sum = style_sum,
        script_sum = script_sum,
        style = style,
        script = script,
    )
}

/// The properties of the whole model, as list items.
fn facts(drawing: &Drawing) -> String {
    let known = drawing.facts.iter();
    let known = known.map(|(name, value)| format!("{name} {value}"));
    let note = "no model file: sizes are parameters, T tokens".to_owned();
    let facts = known.chain(drawing.is_symbolic.then_some(note));
    let items = facts.map(|fact| format!("<li>{}</li>", escape(&fact)));
    items.collect()
}

/// Links to the stack and to each kind of layers.
fn levels(drawing: &Drawing) -> String {
    let mut out = format!("<a href=\"#{WHOLE}\">Stack</a>\n");
    for kind in &drawing.kinds {
        let (at, label, badge) = (&kind.id, escape(&kind.label), badge(&kind.letter));
        out += &format!("<a href=\"#{at}\" title=\"{label}\">{badge}<span>{label}</span></a>\n");
    }
    out
}

pub(super) fn badge(letter: &str) -> String {
    format!("<b class=\"letter\">{}</b>", escape(letter))
}

/// The parts with their operations and weights as JSON, without characters that are special in markup. Properties of a
/// kind of layers are in its picture instead.
fn data(drawing: &Drawing) -> String {
    let value = json!({
        "name": drawing.name,
        "symbolic": drawing.is_symbolic,
        "measured": drawing.overlay.as_ref().map(|legend| &legend.title),
        "parts": drawing.parts().collect::<Vec<&UnitBox>>(),
    });
    let known = ['<', '>', '&', '\u{2028}', '\u{2029}'];
    known.into_iter().fold(value.to_string(), |text, c| {
        text.replace(c, &format!("\\u{:04x}", c as u32))
    })
}

impl Serialize for WeightCost {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&svg::cost_text(self))
    }
}

impl Serialize for Kept {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq([self.text.clone(), self.amounts()].concat())
    }
}

impl Serialize for BoxNote {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.sentence())
    }
}
