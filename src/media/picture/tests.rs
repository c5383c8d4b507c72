//! Tests of pictures: files of each format and mode against PIL's pixels, resampling against Pillow's bytes, rules, layouts, and damaged
//! files.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::layout::{Piece, Prepared, RowSource};

/// Files of `tests/media/pictures`, each with what PIL makes of it (`NAME.rgb`: height, width, bytes), and the largest difference that
/// another decoder of a lossy format may have. JPEG leaves open how colours of less resolution are enlarged.
const FILES: [(&str, u8); 20] = [
    ("bit.png", 0),
    ("grey-alpha.png", 0),
    ("grey.png", 0),
    ("grey16.png", 0),
    ("palette.png", 0),
    ("rgb.png", 0),
    ("rgb16.png", 0),
    ("rgba.png", 0),
    ("rgb.bmp", 0),
    ("palette.gif", 0),
    ("two.gif", 0),
    ("rgb.webp", 0),
    ("rgba.webp", 0),
    ("lossy.webp", 1),
    ("rgb.jpg", 3),
    ("turned.jpg", 3),
    ("progressive.jpg", 3),
    ("subsampled.jpg", 12),
    ("grey.jpg", 3),
    ("cmyk.jpg", 3),
];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/media/pictures")
}

fn file(name: &str) -> Vec<u8> {
    fs::read(folder().join(name)).expect("the file is part of the repository")
}

fn rules(text: &str) -> PictureRules {
    toml::from_str(text).unwrap_or_else(|error| panic!("{error}"))
}

/// A picture whose pixels differ.
fn picture(height: u32, width: u32) -> Picture {
    let bytes = (0..height * width * 3).map(|i| (i * 7 % 251) as u8);
    let side = |side| std::num::NonZeroU32::new(side).expect("not 0");
    Picture::new(side(height), side(width), bytes.collect()).expect("three bytes a pixel")
}

fn prepared(rules: &PictureRules, height: u32, width: u32) -> Prepared {
    let limits = PictureLimits::default();
    prepare(&picture(height, width), rules, 0, &limits).unwrap_or_else(|error| panic!("{error}"))
}

/// The text of a layout, with a star for each row and a plus for each learned one.
fn text(prepared: &Prepared) -> String {
    let star = |row: &RowSource| {
        if matches!(row, RowSource::Learned(_)) {
            "+"
        } else {
            "*"
        }
    };
    let pieces = prepared.layout.iter().map(|piece| match piece {
        Piece::Text(text) => text.clone(),
        Piece::Rows { rows, .. } => rows.iter().map(star).collect(),
    });
    pieces.collect()
}

#[test]
fn files_of_each_mode_have_the_pixels_of_pil() {
    for (name, most) in FILES {
        let found = decode(&file(name), &PictureLimits::default());
        let found = found.unwrap_or_else(|error| panic!("{name}: {error}"));
        let expected = file(&format!("{name}.rgb"));
        let side = |at: usize| u32::from_le_bytes(expected[at..at + 4].try_into().expect("4"));
        let size = found.size();
        assert_eq!(
            [size.height.get(), size.width.get()],
            [side(0), side(4)],
            "{name}"
        );
        let pairs = found.bytes().iter().zip(&expected[8..]);
        let worst = pairs.map(|(a, b)| a.abs_diff(*b)).max();
        assert!(worst <= Some(most), "{name}: differs by {worst:?}");
    }
}

#[test]
fn a_picture_over_the_limit_is_refused_before_it_is_decoded() {
    // A header of 60 000 by 60 000 pixels, without any.
    let mut bytes = file("rgb.png");
    bytes.truncate(33);
    bytes[16..24].copy_from_slice(&[0, 0, 0xea, 0x60, 0, 0, 0xea, 0x60]);
    let damaged = decode(&bytes, &PictureLimits::default());
    assert!(damaged.is_err(), "a wrong checksum");
    let limits = PictureLimits {
        max_pixels: 69,
        ..PictureLimits::default()
    };
    let error = decode(&file("rgb.png"), &limits).expect_err("70 pixels");
    assert_eq!(
        error.to_string(),
        "the picture has 10 by 7 pixels, more than 69"
    );
    let error = decode(b"<svg/>", &limits).expect_err("no picture");
    assert_eq!(
        error.to_string(),
        "no picture: expected PNG, JPEG, WebP, GIF or BMP"
    );
}

#[test]
fn resampling_gives_the_bytes_of_pillow() {
    // `Image.resize((3, 4), n)` and `(13, 9)` of the file rgb.png with Pillow 11: sums of the bytes, each times its index from 1.
    for (filter, expected) in GOLDEN {
        let filter = resample::Filter::try_from(filter).expect("known");
        let picture = decode(&file("rgb.png"), &PictureLimits::default()).expect("a picture");
        let sums = [(4, 3), (9, 13)].map(|(height, width)| {
            let size = Extent::of(height.into(), width.into()).expect("not 0");
            let bytes = picture.resized(size, filter);
            let bytes = bytes.bytes().iter().zip(1u64..);
            bytes.map(|(byte, i)| u64::from(*byte) * i).sum::<u64>()
        });
        assert_eq!(sums, expected, "filter {filter:?}");
    }
}

const GOLDEN: [(u8, [u64; 2]); 5] = [
    (1, [84297, 7713642]),
    (2, [83598, 7694523]),
    (3, [83946, 7712671]),
    (4, [84894, 7713396]),
    (5, [83997, 7683978]),
];

const PLAIN: &str = "marker = 'I'\nrow_token = '*'\nfilter = 3\n\
    values = { scale = 0.00392156862745098, normalise = { mean = [0.5, 0.25, 0], std = [0.5, 1, 2] }, order = 'c Y X' }\n";

#[test]
fn values_are_scaled_normalised_and_in_the_order_of_their_axes() {
    let size =
        "whole.size.exact = { height = 4, width = 6 }\nrows.patches = { patch = 2, merge = 1 }\n";
    let planes = prepared(&rules(&format!("{PLAIN}{size}")), 4, 6);
    let [view] = planes.views.as_slice() else {
        panic!("one view")
    };
    assert_eq!(
        (view.shape.as_slice(), view.grid),
        ([3, 4, 6].as_slice(), [1, 2, 3])
    );
    let of = picture(4, 6);
    let byte =
        |channel: usize, row: usize, column: usize| of.bytes()[(row * 6 + column) * 3 + channel];
    let value = |channel: usize, row: usize, column: usize| {
        let byte = f32::from(byte(channel, row, column)) / 255.0;
        let (mean, std) = ([0.5, 0.25, 0.0][channel], [0.5, 1.0, 2.0][channel]);
        (byte - mean) / std
    };
    let near = |a: f32, b: f32| assert!((a - b).abs() < 1e-6, "{a} and {b}");
    near(view.values[0], value(0, 0, 0));
    near(view.values[24 + 2 * 6 + 5], value(1, 2, 5));

    let text =
        format!("{PLAIN}{size}").replace("'c Y X'", "'(Y X) (c t i j)', patch = 2, frames = 2");
    let patches = prepared(&rules(&text), 4, 6);
    let view = &patches.views[0];
    assert_eq!(
        (view.shape.as_slice(), view.patches),
        ([6, 24].as_slice(), [1, 2, 3])
    );
    // Patch 4 is in the second line and the second column; of it channel 2, frame 1, row 1, column 0.
    near(view.values[4 * 24 + 2 * 8 + 4 + 2], value(2, 3, 2));
    for wrong in ["'(Y X) (c c)'", "'(Y X'", "'Y X)'", "'Y Q'", "''"] {
        let text = format!("{PLAIN}{size}").replace("'c Y X'", wrong);
        assert!(toml::from_str::<PictureRules>(&text).is_err(), "{wrong}");
    }
    let text = format!("{PLAIN}{size}").replace("'c Y X'", "'Y X'");
    let error = prepare(&of, &rules(&text), 0, &PictureLimits::default()).expect_err("no channel");
    assert_eq!(
        error.to_string(),
        "the rules of the processor: the order misses the axis c"
    );
}

#[test]
fn tiles_come_line_by_line_with_the_texts_between_them() {
    let text_of = |height, width, tiles_first| {
        let rules = rules(&format!(
            "{PLAIN}whole.size.exact = {{ height = 8, width = 8 }}\nrows.fixed = 1\n\
            tiles = {{ grid = {{ nearest_ratio = {{ min = 1, max = 4 }} }}, size.exact = {{ height = 8, width = 8 }}, whole = 'last' }}\n\
            layout = {{ before = '<', after = '>', whole = ['w', ''], tile = ['{{row}}{{column}}', ''], columns = '|', line = ';', \
            lines = '/', between = '-', tiles_first = {tiles_first} }}"
        ));
        text(&prepared(&rules, height, width))
    };
    assert_eq!(text_of(32, 32, true), "<11*|12*;/21*|22*;-w*>");
    assert_eq!(text_of(32, 32, false), "<w*-11*|12*;/21*|22*;>");
    assert_eq!(text_of(8, 24, true), "<11*|12*|13*;-w*>");
    assert_eq!(text_of(3, 3, true), "<w*>");
}

#[test]
fn lines_of_rows_end_in_text() {
    let rules = rules(&format!(
        "{PLAIN}whole.size.within = {{ height = 16, width = 16, multiple = 4 }}\nrows.patches = {{ patch = 4, merge = 1 }}\n\
        layout = {{ row_lines = '/', after = '.' }}"
    ));
    assert_eq!(text(&prepared(&rules, 7, 9)), "***/***.");
    // 40 by 20 becomes 16 by 8.
    assert_eq!(text(&prepared(&rules, 20, 40)), "****/****.");
}

#[test]
fn rows_of_tiles_form_one_picture_without_its_padding() {
    let of = |height, width, max: &str| {
        let rules = rules(&format!(
            "{PLAIN}whole.size.exact = {{ height = 8, width = 8 }}\nrows.patches = {{ patch = 2, merge = 1 }}\n\
            tiles = {{ grid = {{ most_kept = [[8, 16], [16, 16]] }}, size.exact = {{ height = 8, width = 8 }}, fill = 'centre', \
            single = 'both', whole = 'first' }}\nlayout.mosaic = {{ line_row = 'end'{max} }}"
        ));
        prepared(&rules, height, width)
    };
    // 8 lines of 2 tiles of 4 rows, of which a picture of half the height leaves 4 lines, fill one line of tiles.
    let wide = of(4, 8, "");
    assert_eq!(
        text(&wide),
        format!("{}{}", "*".repeat(16), "********+".repeat(4))
    );
    let Some(Piece::Rows { rows, grid }) = wide.layout.last() else {
        panic!("rows")
    };
    assert_eq!(grid, &[1, 4, 9]);
    assert!(
        matches!(rows[4], RowSource::View { view: 2, row: 0 }),
        "{:?}",
        rows[4]
    );
    assert!(matches!(&rows[8], RowSource::Learned(name) if name == "end"));
    // A square has 8 by 8 rows, which are interpolated to those of one tile.
    let square = of(16, 16, ", max_tiles = 1");
    let Some(Piece::Rows { rows, grid }) = square.layout.last() else {
        panic!("rows")
    };
    assert_eq!(grid, &[1, 4, 5]);
    let RowSource::Mixed(mixed) = &rows[0] else {
        panic!("{:?}", rows[0])
    };
    assert_eq!(
        mixed.as_slice(),
        [(1, 0, 0.25), (1, 1, 0.25), (1, 4, 0.25), (1, 5, 0.25)]
    );
}

#[test]
fn unsound_rules_are_refused() {
    let refused = |text: &str, height, width| {
        let rules = rules(&format!("{PLAIN}rows.fixed = 1\n{text}"));
        let limits = PictureLimits::default();
        let error = prepare(&picture(height, width), &rules, 0, &limits).expect_err(text);
        error.to_string()
    };
    let huge = "whole.size.exact = { height = 60000, width = 60000 }";
    assert_eq!(
        refused(huge, 2, 2),
        "the rules of the processor make 3600000000 pixels of it, more than 32000000"
    );
    let area = "whole.size.area = { multiple = 8, min = 64, max = 6400, max_ratio = 200 }";
    assert_eq!(
        refused(area, 1, 300),
        "the picture does not fit the rules of the processor: one side is 300 times the other one, expected at most 200"
    );
    let tiles = "whole.size.exact = { height = 8, width = 8 }\n\
        tiles = { grid = { nearest_ratio = { min = 9, max = 4 } }, size.exact = { height = 8, width = 8 }, whole = 'last' }";
    assert_eq!(
        refused(tiles, 9, 9),
        "the rules of the processor: no grid of tiles is allowed"
    );
    let many = tiles.replace("min = 9, max = 4", "min = 1, max = 100000");
    assert_eq!(
        refused(&many, 9, 9),
        "the rules of the processor: 100000 tiles, expected at most 1024"
    );
    // A line becomes as wide as the result before it is as low.
    let tall = rules(&format!(
        "{PLAIN}rows.fixed = 1\nwhole.size.exact = {{ height = 1, width = 30000000 }}"
    ));
    let error = prepare(&picture(300, 1), &tall, 0, &PictureLimits::default()).expect_err("wide");
    assert!(matches!(error, PictureError::TooMany { .. }), "{error}");
    let zero = format!("{PLAIN}rows.fixed = 1\nwhole.size.exact = {{ height = 0, width = 8 }}");
    assert!(toml::from_str::<PictureRules>(&zero).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn damaged_files_are_errors_or_pictures(
        which in 0..FILES.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
        end in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let mut bytes = file(FILES[which].0);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if is_cut {
            bytes.truncate(end.index(bytes.len()));
        }
        let limits = PictureLimits { max_pixels: 10_000, ..PictureLimits::default() };
        if let Ok(picture) = decode(&bytes, &limits) {
            prop_assert!(picture.bytes().len() as u64 <= limits.max_pixels * 3);
        }
    }

    #[test]
    fn any_size_is_prepared_or_refused(
        (height, width) in prop_oneof![
            9 => (1u32..400, 1u32..400), 1 => (Just(10_000), 1u32..4), 1 => (1u32..4, Just(10_000)),
        ],
        size in prop::sample::select(vec![
            "shorter_side = 20", "longer_side = { length = 30, rounding = 'even' }",
            "longer_side = { length = 30, rounding = 'nearest', least = 4 }", "within = { height = 30, width = 40, multiple = 6 }",
            "within_patches = { patch = 2, max = 50, max_side = 20 }", "multiple = 12",
            "area = { multiple = 6, min = 100, max = 900, small = 'at_least' }",
            "area = { multiple = 6, min = 100, max = 900, small = 'enlarge' }",
            "area = { multiple = 6, min = 100, max = 900, small = 'enlarge_nearest', max_ratio = 200 }",
            "fill_patches = { patch = 2, pool = 3, max_rows = 20 }", "proportional = { side = 24, multiple = 4 }",
        ]),
    ) {
        let rules = rules(&format!("{PLAIN}whole.size = {{ {size} }}\nrows.fixed = 1\n"));
        let limits = PictureLimits::default();
        if let Ok(made) = prepare(&picture(height, width), &rules, 0, &limits) {
            let view = &made.views[0];
            prop_assert_eq!(view.values.len(), view.shape.iter().product::<usize>());
            prop_assert!(view.values.iter().all(|value| value.is_finite()));
        }
    }
}
