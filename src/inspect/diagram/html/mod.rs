//! A drawing as one HTML file with three levels: stack, layer, block.
//!
//! Everything is laid out by `svg`; the script shows, hides, magnifies and marks, and lays nothing out.
//! The file asks nobody for anything: its policy forbids every source but the style and the script that
//! it holds, which it names by their SHA-256 sums. Pictures, data and the address in the browser meet by
//! the names of `ids`. What comes from models and definitions is text in it, never markup.

mod data;
mod views;

use sha2::{Digest, Sha256};

use super::Drawing;
use super::ids::WHOLE;
use super::svg::{self, escape};
use views::Views;

const FRAME: &str = include_str!("page.html");
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
        let views = Views::new(drawing);
        let definition = (self.path, self.definition);
        let data = data::data(drawing, &views.rects, definition);
        let style = format!("{}{STYLE}", svg::SHEET);
        filled(FRAME, &|key| match key {
            "name" => escape(&drawing.name),
            "arch" => escape(&drawing.arch),
            "facts" => facts(drawing),
            "levels" => levels(drawing),
            "views" => views.html.clone(),
            "data" => data::quoted(&data),
            "style" => style.clone(),
            "script" => SCRIPT.to_owned(),
            "style-sum" => sum(&style),
            "script-sum" => sum(SCRIPT),
            _ => String::new(),
        })
    }
}

/// A text in which each `{{key}}` is what `value` gives for it; what is put in is not looked at again.
fn filled(frame: &str, value: &dyn Fn(&str) -> String) -> String {
    let mut pieces = frame.split("{{");
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (key, rest) = piece.split_once("}}").unwrap_or((piece, ""));
        out.push_str(&value(key));
        out.push_str(rest);
    }
    out
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

/// The SHA-256 sum of a text as a policy names it, in base 64.
fn sum(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let sum = Sha256::digest(text.as_bytes());
    let digits = sum.chunks(3).flat_map(|three| {
        let bytes = [0, 1, 2].map(|at| u32::from(three.get(at).copied().unwrap_or(0)));
        let bits = bytes[0] << 16 | bytes[1] << 8 | bytes[2];
        let digit = move |at: usize| char::from(DIGITS[(bits >> (18 - 6 * at) & 63) as usize]);
        let n = three.len();
        (0..4).map(move |at| if at <= n { digit(at) } else { '=' })
    });
    digits.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_that_of_the_standard() {
        // FIPS 180-2, B.1, in base 64.
        assert_eq!(sum("abc"), "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
    }

    #[test]
    fn what_is_filled_in_is_not_filled_again() {
        let text = filled("<{{a}}|{{b}}>", &|key| format!("{{{{{key}}}}}{key}"));
        assert_eq!(text, "<{{a}}a|{{b}}b>");
    }
}
