//! A drawing as one HTML file with three levels: stack, layer, block.
//!
//! Everything is laid out by `svg`; the script shows, hides, magnifies and marks, and lays nothing out.
//! The file asks nobody for anything: its policy forbids every source but the style and the script that
//! it holds, which it names by their SHA-256 sums. Pictures, data and the address in the browser meet by
//! the names of `ids`. What comes from models and definitions is text in it, never markup.

mod data;
mod views;

pub(super) use data::{n_of, shape};

use std::sync::LazyLock;

use sha2::{Digest, Sha256};

use super::Drawing;
use super::ids::WHOLE;
use super::svg::{self, escape};

/// A text that a page holds, and its SHA-256 sum as a policy names it.
struct Own {
    text: String,
    sum: String,
}

impl Own {
    fn new(text: String) -> Self {
        let sum = base64::encode(Sha256::digest(text.as_bytes()));
        Self { text, sum }
    }
}

static STYLE: LazyLock<Own> =
    LazyLock::new(|| Own::new([svg::SHEET, include_str!("page.css")].concat()));
static SCRIPT: LazyLock<Own> = LazyLock::new(|| {
    let files = [
        include_str!("page.js"),
        include_str!("told.js"),
        include_str!("search.js"),
        include_str!("keys.js"),
    ];
    Own::new(files.concat())
});

/// A page that is to be written.
pub struct Page<'d> {
    /// What it shows.
    pub drawing: &'d Drawing,
    /// Where the definition is.
    pub path: &'d str,
    /// The text of the definition.
    pub definition: &'d str,
}

impl Page<'_> {
    /// The page as a file.
    pub fn to_html(&self) -> String {
        let drawing = self.drawing;
        format!(
            include_str!("page.html"),
            name = escape(&drawing.name),
            arch = escape(&drawing.arch),
            facts = facts(drawing),
            levels = levels(drawing),
            views = views::views(drawing),
            data = data::quoted(&data::data(self)),
            style_sum = STYLE.sum,
            script_sum = SCRIPT.sum,
            style = STYLE.text,
            script = SCRIPT.text,
        )
    }
}

/// What holds for the whole model, as items of a list.
fn facts(drawing: &Drawing) -> String {
    let known = drawing
        .facts
        .iter()
        .map(|(name, value)| format!("{name} {value}"));
    let mut facts: Vec<String> = known.collect();
    if drawing.is_symbolic {
        facts.push("no model file: sizes are parameters, T tokens".into());
    }
    let items = facts
        .iter()
        .map(|fact| format!("<li>{}</li>", escape(fact)));
    items.collect()
}

/// Links to the stack and to each kind of layers.
fn levels(drawing: &Drawing) -> String {
    let mut out = format!("<a href=\"#{WHOLE}\">Stack</a>\n");
    for kind in &drawing.kinds {
        let at = &kind.id;
        let label = escape(&kind.label);
        let badge = badge(&kind.letter);
        out.push_str(&format!(
            "<a href=\"#{at}\" title=\"{label}\">{badge}<span>{label}</span></a>\n"
        ));
    }
    out
}

fn badge(letter: &str) -> String {
    format!("<b class=\"letter\">{}</b>", escape(letter))
}
