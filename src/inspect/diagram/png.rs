//! SVG to PNG, with the same bits on every machine: the fonts are part of the program, and a character
//! that they do not have is drawn as their box for that, and the renderer warns of it.

use std::sync::Arc;

use resvg::{tiny_skia, usvg};

/// What texts are drawn with, and what they are drawn with where that has no glyph.
const FONTS: [&[u8]; 2] = [
    epaint_default_fonts::UBUNTU_LIGHT,
    epaint_default_fonts::HACK_REGULAR,
];
/// Pixels for each unit of the drawing.
const SCALE: f32 = 1.5;
/// More pixels than any drawing of a sound model has.
const MAX_PIXELS: f32 = 3e8;
/// The font has one weight: what is bold in the drawing gets a thin border here.
const BOLD: &str = ".th,.tt,.tn{stroke:#1c2330;stroke-width:.5}</style>";

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

/// A drawing as PNG.
///
/// # Errors
/// What is no SVG, or too large.
pub fn png(svg: &str) -> Result<Vec<u8>, Error> {
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
    let tree = usvg::Tree::from_str(&svg.replacen("</style>", BOLD, 1), &options)?;
    let [w, h] = [tree.size().width(), tree.size().height()].map(|n| (n * SCALE).ceil());
    let size = Error::Size(w as u32, h as u32);
    if w * h > MAX_PIXELS {
        return Err(size);
    }
    let mut pixels = tiny_skia::Pixmap::new(w as u32, h as u32).ok_or(size)?;
    let transform = tiny_skia::Transform::from_scale(SCALE, SCALE);
    resvg::render(&tree, transform, &mut pixels.as_mut());
    let bytes = pixels.encode_png();
    bytes.map_err(|error| Error::Write(error.to_string()))
}
