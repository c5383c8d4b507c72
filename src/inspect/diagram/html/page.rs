//! The HTML page of a drawing: its frame, its style and its script.

use std::sync::LazyLock;

use sha2::{Digest, Sha256};

use super::super::Drawing;
use super::super::ids::WHOLE;
use super::super::svg::{self, escape};
use super::{data, views};

/// The concatenated files, and their SHA-256 sum in the form of a content security policy.
fn with_sum(files: &[&str]) -> (String, String) {
    let text = files.concat();
    let sum = base64::encode(Sha256::digest(text.as_bytes()));
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

/// The HTML page of a drawing.
pub fn page(drawing: &Drawing) -> String {
    let ((style, style_sum), (script, script_sum)) = (&*STYLE, &*SCRIPT);
    format!(
        include_str!("page.html"),
        name = escape(&drawing.name),
        arch = escape(&drawing.arch),
        facts = facts(drawing),
        levels = levels(drawing),
        views = views::views(drawing),
        data = data::data(drawing),
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
