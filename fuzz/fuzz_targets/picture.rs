//! A picture, in the format that its first bytes tell, prepared by the rules of a processor.
#![no_main]

use std::sync::LazyLock;

use lab_media::picture::{PictureLimits, PictureRules, decode, prepare};

/// So many that every format is decoded, and few enough that an input takes no time.
const LIMITS: PictureLimits = PictureLimits {
    max_pixels: 1 << 16,
    max_view_pixels: 1 << 18,
};

static RULES: LazyLock<PictureRules> = LazyLock::new(|| {
    let folder = fuzz::repository().join("tests/media/qwen2.5-vl");
    let rules = fuzz::definitions().processors.pictures(&folder);
    rules.expect("a sound folder").expect("it takes pictures")
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(picture) = decode(bytes, &LIMITS) else {
        return;
    };
    assert!(picture.bytes().len() as u64 <= 3 * LIMITS.max_pixels);
    if let Ok(prepared) = prepare(&picture, &RULES, 0, &LIMITS) {
        for view in &prepared.views {
            assert_eq!(view.values.len(), view.shape.iter().product::<usize>());
        }
    }
});
