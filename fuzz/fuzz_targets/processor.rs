//! How a folder prepares media: up to the first zero byte its `config.json`, then its `processor_config.json`. A picture and a sound
//! are prepared by what is read.
#![no_main]

use std::num::NonZeroU32;

use lab_media::picture::{self, Picture, PictureLimits};
use lab_media::sound::{self, Sound, SoundLimits};

const PICTURES: PictureLimits = PictureLimits {
    max_pixels: 1 << 16,
    max_view_pixels: 1 << 20,
};
const SOUNDS: SoundLimits = SoundLimits { samples: 1 << 20 };

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let end = bytes.iter().position(|byte| *byte == 0);
    let (config, processor) = bytes.split_at(end.unwrap_or(bytes.len()));
    fuzz::file("config.json", config);
    fuzz::file("processor_config.json", processor.get(1..).unwrap_or_default());
    let processors = &fuzz::definitions().processors;
    if let Ok(Some(rules)) = processors.pictures(fuzz::folder()) {
        let [height, width] = [7, 10].map(|side| NonZeroU32::new(side).expect("not zero"));
        let picture = Picture::new(height, width, vec![127; 3 * 7 * 10]).expect("its size");
        let _ = picture::prepare(&picture, &rules, 0, &PICTURES);
    }
    if let Ok(Some(rules)) = processors.sounds(fuzz::folder()) {
        let sound = Sound {
            rate: 16_000,
            samples: vec![0.25; 4000],
        };
        let _ = sound::prepare(&sound, &rules, &SOUNDS);
    }
});
