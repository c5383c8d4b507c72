//! Converts SVG to PNG, with the same bits on every machine: the fonts are built in. A character without a glyph is
//! drawn as the font's box for it, and the renderer logs a warning.

use std::sync::Arc;

use resvg::{tiny_skia, usvg};

/// The font for text, and the fallback for characters without a glyph.
const FONTS: [&[u8]; 2] = [
    epaint_default_fonts::UBUNTU_LIGHT,
    epaint_default_fonts::HACK_REGULAR,
];
/// Pixels per unit of the drawing.
const SCALE: f32 = 1.5;
/// Maximum number of pixels, more than any drawing of a valid model has.
const MAX_PIXELS: f32 = 3e8;
/// The font has a single weight, so bold text gets a thin border.
const BOLD: &str = ".th,.tt,.tn{stroke:#1c2330;stroke-width:.5}</style>";

/// The reason why there is no PNG.
#[derive(Debug, thiserror::Error)]
pub enum PngError {
    #[error("the drawing is not an SVG: {0}")]
    Svg(#[from] usvg::Error),
    #[error("a picture of {0} x {1} pixels is too large")]
    Size(u32, u32),
    #[error("the picture could not be written: {0}")]
    Write(String),
}

/// The PNG of an SVG drawing.
///
/// # Errors
/// The input is not valid SVG, or too large.
pub fn png(svg: &str) -> Result<Vec<u8>, PngError> {
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
    let size = PngError::Size(w as u32, h as u32);
    if w * h > MAX_PIXELS {
        return Err(size);
    }
    let mut pixels = tiny_skia::Pixmap::new(w as u32, h as u32).ok_or(size)?;
    let transform = tiny_skia::Transform::from_scale(SCALE, SCALE);
    resvg::render(&tree, transform, &mut pixels.as_mut());
    let bytes = pixels.encode_png();
    bytes.map_err(|error| PngError::Write(error.to_string()))
}
