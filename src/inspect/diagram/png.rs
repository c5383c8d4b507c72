//! SVG to PNG, with the same bits on every machine: the fonts are part of the program, and a character
//! that they do not have is drawn as a box.

use std::sync::Arc;

use resvg::{tiny_skia, usvg};
use skrifa::{FontRef, MetadataProvider};

use crate::common::wording::listed;

/// What texts are drawn with, and what they are drawn with where that has no glyph.
const FONTS: [&[u8]; 2] = [
    epaint_default_fonts::UBUNTU_LIGHT,
    epaint_default_fonts::HACK_REGULAR,
];
/// What stands for a character without a glyph.
const BOX: char = '\u{25a1}';
/// Characters without a glyph that are named, at most.
const NAMED: usize = 5;

/// Pixels for each unit of the drawing.
const SCALE: f32 = 1.5;
/// More pixels than any drawing of a sound model has.
const MAX_PIXELS: f32 = 3e8;
/// The font has one weight: what is bold in the drawing gets a thin border here.
const BOLD: &str = "<style>.th,.tt,.tn{stroke:#1c2330;stroke-width:.5}</style>";

/// Why there is no PNG.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was passed is no SVG.
    #[error("the drawing is no SVG: {0}")]
    Svg(#[from] usvg::Error),
    /// Too large.
    #[error("a picture of {0} x {1} pixels is too large")]
    Size(u32, u32),
    /// It could not be written.
    #[error("the picture could not be written: {0}")]
    Write(String),
}

/// A picture.
#[derive(Clone, Debug)]
pub struct Png {
    /// The file.
    pub bytes: Vec<u8>,
    /// What could not be drawn as it is, in one sentence, if anything.
    pub problem: Option<String>,
}

/// Characters that are drawn and that no font has, each once, in the order in which they come.
fn missing(drawing: &str) -> Vec<char> {
    let fonts = FONTS.map(|font| FontRef::new(font).map(|font| font.charmap()));
    let has_glyph = |c: char| {
        let mut fonts = fonts.iter().flatten();
        fonts.any(|font| font.map(c).is_some())
    };
    let texts = drawing.split("<text").skip(1);
    let texts = texts.filter_map(|text| text.split_once('>')?.1.split("</text>").next());
    let mut out = Vec::new();
    for c in texts.flat_map(str::chars) {
        // What is shown as nothing has no glyph.
        let is_shown = !c.is_ascii() && !c.is_control() && !is_ignored(c);
        if is_shown && !has_glyph(c) && !out.contains(&c) {
            out.push(c);
        }
    }
    out
}

/// Whether a character only says how others are drawn.
fn is_ignored(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{feff}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}')
}

/// That characters have no glyph.
fn problem(missing: &[char]) -> Option<String> {
    let mut named: Vec<String> = missing.iter().take(NAMED).map(char::to_string).collect();
    match missing.len() {
        0 => return None,
        n if n > NAMED => named.push(format!("{} more", n - NAMED)),
        _ => {}
    }
    let count = match missing.len() {
        1 => "1 character is drawn as a box, since no font has it".to_owned(),
        n => format!("{n} characters are drawn as boxes, since no font has them"),
    };
    Some(format!("{count}: {}", listed(&named)))
}

/// The drawing without its dark colours, which end its style sheet.
fn light(drawing: &str) -> String {
    match drawing.split_once("</style>") {
        Some((head, rest)) => format!("{}</style>{BOLD}{rest}", super::svg::light(head)),
        None => drawing.to_owned(),
    }
}

/// A drawing as PNG, with light colours.
///
/// # Errors
/// What is no SVG, or too large.
pub fn png(svg: &str) -> Result<Png, Error> {
    let missing = missing(svg);
    let mut svg = light(svg);
    if !missing.is_empty() {
        svg = svg.replace(missing.as_slice(), BOX.encode_utf8(&mut [0; 4]));
    }
    let mut fonts = usvg::fontdb::Database::new();
    for font in FONTS {
        fonts.load_font_source(usvg::fontdb::Source::Binary(Arc::new(font)));
    }
    let family = fonts.faces().next().and_then(|face| face.families.first());
    let family = family.map(|(name, _)| name.clone()).unwrap_or_default();
    fonts.set_sans_serif_family(family);
    let select_fallback: usvg::FallbackSelectionFn<'_> = Box::new(|_, used, fonts| {
        let mut faces = fonts.faces().map(|face| face.id);
        faces.find(|id| !used.contains(id))
    });
    let options = usvg::Options {
        fontdb: Arc::new(fonts),
        font_resolver: usvg::FontResolver {
            select_fallback,
            ..usvg::FontResolver::default()
        },
        ..usvg::Options::default()
    };
    let tree = usvg::Tree::from_str(&svg, &options)?;
    let [w, h] = [tree.size().width(), tree.size().height()].map(|n| (n * SCALE).ceil());
    let size = Error::Size(w as u32, h as u32);
    if w * h > MAX_PIXELS {
        return Err(size);
    }
    let mut pixels = tiny_skia::Pixmap::new(w as u32, h as u32).ok_or(size)?;
    let transform = tiny_skia::Transform::from_scale(SCALE, SCALE);
    resvg::render(&tree, transform, &mut pixels.as_mut());
    let bytes = pixels.encode_png();
    Ok(Png {
        bytes: bytes.map_err(|error| Error::Write(error.to_string()))?,
        problem: problem(&missing),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(text: &str) -> Png {
        let begin = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 200 30\" font-family=\"sans-serif\">";
        let svg = format!("{begin}<desc>\u{4e00}</desc><text x=\"5\" y=\"20\">{text}</text></svg>");
        png(&svg).expect("a picture")
    }

    #[test]
    fn characters_without_a_glyph_are_told_once_and_drawn_as_boxes() {
        assert_eq!(drawn("a \u{d7} b \u{25a1}").problem, None);
        // Joiners and selectors are shown as nothing.
        assert_eq!(drawn("a\u{200d}\u{fe0f}\u{202e}").problem, None);
        let png = drawn("\u{6f22}\u{5b57}\u{6f22}");
        let told = "2 characters are drawn as boxes, since no font has them: \u{6f22} and \u{5b57}";
        assert_eq!(png.problem.as_deref(), Some(told));
        assert_eq!(png.bytes, drawn("\u{25a1}\u{25a1}\u{25a1}").bytes);
        assert_ne!(png.bytes, drawn("").bytes);
        let many: String = ('\u{4e01}'..'\u{4e20}').collect();
        let told = drawn(&many).problem.expect("a problem");
        assert!(told.ends_with("\u{4e05} and 26 more"), "{told}");
        assert!(told.starts_with("31 characters are"), "{told}");
    }
}
