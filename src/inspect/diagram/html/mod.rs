//! A drawing as one HTML file with three levels: stack, layer, block.
//!
//! Everything is laid out by `svg`; the script shows, hides, magnifies and marks, and lays nothing out.
//! The file asks nobody for anything: its policy forbids every source but the style and the script that
//! it holds, which it names by their SHA-256 sums. Pictures, data and the address in the browser meet by
//! the names of `ids`. What comes from models and definitions is text in it, never markup.

mod data;
mod views;

pub(super) use data::{n_of, shape};

use sha2::{Digest, Sha256};

use super::Drawing;
use super::ids::WHOLE;
use super::svg::{self, escape};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = concat!(
    include_str!("page.js"),
    include_str!("told.js"),
    include_str!("search.js"),
    include_str!("keys.js")
);

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
        let style = format!("{}{STYLE}", svg::SHEET);
        format!(
            include_str!("page.html"),
            name = escape(&drawing.name),
            arch = escape(&drawing.arch),
            facts = facts(drawing),
            levels = levels(drawing),
            views = views::views(drawing),
            data = data::quoted(&data::data(self)),
            style_sum = sum(&style),
            script_sum = sum(SCRIPT),
            style = style,
            script = SCRIPT,
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

/// The SHA-256 sum of a text as a policy names it.
fn sum(text: &str) -> String {
    base64::encode(Sha256::digest(text.as_bytes()))
}
