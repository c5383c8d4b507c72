//! A sound, in the format that its first bytes tell, prepared by the rules of a processor.
#![no_main]

use std::sync::LazyLock;

use lab_media::sound::{SoundLimits, SoundRules, decode, prepare};

/// A minute of 16 kHz.
const LIMITS: SoundLimits = SoundLimits { samples: 960_000 };

static RULES: LazyLock<SoundRules> = LazyLock::new(|| {
    let folder = fuzz::repository().join("tests/media/qwen2-audio");
    let rules = fuzz::definitions().processors.sounds(&folder);
    rules.expect("a sound folder").expect("it takes sounds")
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(sound) = decode(bytes, &LIMITS) else {
        return;
    };
    assert!(!sound.samples.is_empty() && sound.samples.len() <= LIMITS.samples);
    let _ = prepare(&sound, &RULES, &LIMITS);
});
