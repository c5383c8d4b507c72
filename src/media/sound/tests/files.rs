//! Files of every format against the samples that libsndfile and ffmpeg decode. `scripts/make_sounds.py` writes both.

use super::*;

/// A file with the samples that another program decodes of it.
pub(super) struct File {
    pub(super) name: &'static str,
    pub(super) bytes: Vec<u8>,
    expected: Vec<f32>,
    /// Samples that precede the sound, which the library does not take off.
    lead: usize,
    /// The largest difference of a sample.
    bound: f32,
}

pub(super) fn files() -> impl Iterator<Item = File> {
    let files = [
        ("stereo.flac", 0, 0.0),
        ("stereo.mp3", 0, 2e-5),
        ("stereo.ogg", 0, 2e-5),
        ("stereo.m4a", 1024, 2e-4),
    ];
    files.into_iter().map(|(name, lead, bound)| File {
        name,
        bytes: std::fs::read(stored(name)).unwrap(),
        expected: read_array(&stored(&format!("{name}.npy"))).elements,
        lead,
        bound,
    })
}

impl File {
    /// The number of samples, all of which equal those of the other program.
    fn decoded(&self, bytes: &[u8]) -> usize {
        let name = self.name;
        let sound = decode(bytes, &LIMITS).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(sound.rate, 22_050, "{name}");
        let pairs = sound.samples[self.lead..].iter().zip(&self.expected);
        let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= self.bound, "{name}: {worst:e}");
        sound.samples.len() - self.lead
    }
}

#[test]
fn compressed_files_are_decoded_as_other_programs_decode_them() {
    for file in files() {
        assert_eq!(
            file.decoded(&file.bytes),
            file.expected.len(),
            "{}",
            file.name
        );
    }
}

#[test]
fn samples_of_every_width_are_parts_of_one() {
    let numbers = [-1.0, -0.5, 0.0, 0.25, 0.5];
    let of = |code, bits, bytes: Vec<u8>| {
        decode(&wav(code, bits, 1, 8000, &bytes), &LIMITS)
            .unwrap()
            .samples
    };
    let integers = |bits: u32| {
        numbers.iter().flat_map(move |x| {
            ((x * 2f64.powi(bits as i32 - 1)) as i32).to_le_bytes()[..bits as usize / 8].to_vec()
        })
    };
    let eight = numbers.iter().map(|x| (x * 128.0 + 128.0) as u8).collect();
    let expected: Vec<f32> = numbers.iter().map(|&x| x as f32).collect();
    assert_eq!(of(1, 8, eight), expected);
    for bits in [16, 24, 32] {
        assert_eq!(
            of(1, bits, integers(bits.into()).collect()),
            expected,
            "{bits}"
        );
    }
    assert_eq!(
        of(
            3,
            32,
            numbers
                .iter()
                .flat_map(|&x| (x as f32).to_le_bytes())
                .collect()
        ),
        expected
    );
    assert_eq!(
        of(
            3,
            64,
            numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
        ),
        expected
    );
}

#[test]
fn channels_are_averaged() {
    let frames = [[0.5f32, 0.25, 0.0], [1.0, -1.0, 0.75]];
    let data: Vec<u8> = frames
        .as_flattened()
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    let sound = decode(&wav(3, 32, 3, 16_000, &data), &LIMITS).unwrap();
    assert_eq!(sound.samples, [0.25, 0.25]);
}

#[test]
fn a_truncated_file_is_the_sound_before_its_end() {
    // The index of an M4A file is at its end. Of an Ogg file whole pages are read, and this one has a single page of sound.
    for file in files().take(2) {
        let found = file.decoded(&file.bytes[..file.bytes.len() * 7 / 8]);
        assert!(
            found > file.expected.len() / 2 && found < file.expected.len(),
            "{}: {found}",
            file.name
        );
    }
    let whole = wav(1, 16, 1, 16_000, &[1; 2000]);
    assert_eq!(decode(&whole[..1044], &LIMITS).unwrap().samples.len(), 500);
    // What a program writes that does not know the length beforehand.
    let mut streamed = whole;
    streamed[4..8].fill(0xff);
    streamed[40..44].fill(0xff);
    assert_eq!(decode(&streamed, &LIMITS).unwrap().samples.len(), 1000);
}

#[test]
fn what_is_no_sound_is_refused_with_the_reason() {
    let refused = |bytes: &[u8]| decode(bytes, &LIMITS).unwrap_err().to_string();
    assert!(refused(b"").contains("no sound"), "{}", refused(b""));
    assert!(
        refused(&[7; 5000]).contains("WAV, FLAC, MP3"),
        "{}",
        refused(&[7; 5000])
    );
    assert!(refused(b"\x89PNG\r\n\x1a\n").contains("no sound"));
    let empty = wav(1, 16, 1, 16_000, &[]);
    assert!(refused(&empty).contains("empty"), "{}", refused(&empty));
    for rate in [0, 999, 768_001] {
        let error = decode(&wav(1, 16, 1, rate, &[0; 100]), &LIMITS).unwrap_err();
        assert!(
            matches!(error, SoundError::Rate { .. } | SoundError::Format(_)),
            "{error}"
        );
    }
    let infinite: Vec<u8> = [0.0, f32::INFINITY]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    assert!(matches!(
        decode(&wav(3, 32, 1, 16_000, &infinite), &LIMITS),
        Err(SoundError::NoSample(1))
    ));
    // Cut within its header.
    for file in files() {
        assert!(decode(&file.bytes[..20], &LIMITS).is_err(), "{}", file.name);
    }
}

#[test]
fn more_samples_than_allowed_are_refused_before_and_while_decoding() {
    for file in files() {
        let samples = file.expected.len() - 1;
        let error = decode(&file.bytes, &SoundLimits { samples }).unwrap_err();
        assert!(
            matches!(error, SoundError::TooLong { limit, .. } if limit == samples),
            "{}: {error}",
            file.name
        );
    }
    let mut claims = std::fs::read(stored("stereo.flac")).unwrap();
    // The number of samples in the header, of 36 bits.
    claims[21] |= 0x0f;
    let error = decode(&claims, &LIMITS).unwrap_err();
    assert!(
        matches!(error, SoundError::TooLong { found, .. } if found > 60_000_000_000),
        "{error}"
    );
}
