//! What strangers may send: files that were changed anywhere, and rules with any number in them.

use proptest::prelude::*;
use proptest::sample::Index;

use super::files::files;
use super::*;

/// A change of a file: some bytes replaced, removed or inserted.
#[derive(Clone, Debug)]
struct Change {
    at: Index,
    removed: usize,
    inserted: Vec<u8>,
}

fn change() -> impl Strategy<Value = Change> {
    let bytes = proptest::collection::vec(prop_oneof![any::<u8>(), Just(0), Just(0xff)], 0..8);
    // Most in the headers, where a byte does most.
    (any::<Index>(), 0usize..8, bytes).prop_map(|(at, removed, inserted)| Change {
        at,
        removed,
        inserted,
    })
}

fn sources() -> Vec<Vec<u8>> {
    let samples: Vec<u8> = (0..4000u32)
        .flat_map(|i| ((i * i % 60_013) as u16).to_le_bytes())
        .collect();
    let floats: Vec<u8> = (0..1000u16)
        .flat_map(|i| (f32::from(i) / 1000.0).to_le_bytes())
        .collect();
    let mut sources: Vec<Vec<u8>> = files().map(|file| file.bytes).collect();
    sources.push(wav(1, 16, 2, 44_100, &samples));
    sources.push(wav(1, 24, 1, 8_000, &samples[..3999]));
    sources.push(wav(3, 32, 1, 16_000, &floats));
    sources
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_changed_file_is_a_sound_or_an_error(
        source in any::<Index>(),
        changes in proptest::collection::vec((change(), any::<bool>()), 1..6),
        end in prop_oneof![3 => Just(None), 1 => any::<Index>().prop_map(Some)],
    ) {
        let sources = sources();
        let mut bytes = sources[source.index(sources.len())].clone();
        for (change, in_header) in changes {
            let room = if in_header { bytes.len().min(200) } else { bytes.len() };
            let at = change.at.index(room);
            let removed = at..(at + change.removed).min(bytes.len());
            bytes.splice(removed, change.inserted);
        }
        if let Some(end) = end {
            bytes.truncate(end.index(bytes.len() + 1));
        }
        let limits = SoundLimits { samples: 100_000 };
        if let Ok(sound) = decode(&bytes, &limits) {
            prop_assert!(!sound.samples.is_empty() && sound.samples.len() <= limits.samples);
            prop_assert!(sound.samples.iter().all(|sample| sample.is_finite()));
            let made = resample(&sound, 16_000, &limits);
            prop_assert!(made.is_err() || made.unwrap().len() <= limits.samples);
        }
    }
}

/// The numbers in a value, as places that can be changed.
fn numbers<'a>(value: &'a mut toml::Value, found: &mut Vec<&'a mut toml::Value>) {
    match value {
        toml::Value::Table(table) => table
            .iter_mut()
            .for_each(|(_, value)| numbers(value, found)),
        toml::Value::Array(array) => array.iter_mut().for_each(|value| numbers(value, found)),
        toml::Value::Integer(_) | toml::Value::Float(_) => found.push(value),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rules_with_any_number_prepare_a_sound_or_are_an_error(
        case in any::<Index>(),
        place in any::<Index>(),
        number in prop_oneof![
            prop::sample::select(vec![-1, 0, 1, 2, 3, 7, 1 << 16, 1 << 26, 1 << 40, i64::MAX, i64::MIN]).prop_map(toml::Value::Integer),
            prop::sample::select(vec![0.0, -1.0, 1e-300, 1e300, f64::NAN, f64::INFINITY]).prop_map(toml::Value::Float),
        ],
        length in prop_oneof![Just(0usize), Just(1), 2usize..600, 600usize..3000],
    ) {
        let mut cases = cases();
        let index = case.index(cases.len());
        let mut case = cases.swap_remove(index);
        // A long piece of silence takes a second to prepare.
        if let Some(samples) = case.rules.get_mut("samples") {
            let mut lengths = Vec::new();
            numbers(samples, &mut lengths);
            lengths.into_iter().for_each(|length| *length = toml::Value::Integer(1600));
        }
        let mut places = Vec::new();
        numbers(&mut case.rules, &mut places);
        let index = place.index(places.len());
        *places[index] = number;
        // The largest sounds that are allowed take seconds.
        let small = |rules: &SoundRules| {
            let samples = &rules.samples;
            samples.pad_to.max(samples.min_length).max(samples.pad_to_multiple_of) < 1 << 20
        };
        let samples = (0..length).map(|i| (i as f32 * 0.1).sin()).collect();
        let sound = Sound { rate: 16_000, samples };
        if let Ok(rules) = case.rules.try_into::<SoundRules>()
            && small(&rules)
            && let Ok(prepared) = prepare(&sound, &rules, &LIMITS)
        {
            for view in &prepared.views {
                prop_assert_eq!(view.values.len(), view.shape.iter().product::<usize>());
            }
        }
    }
}

#[test]
fn a_rule_out_of_its_range_is_named_with_its_value() {
    let mut rules = cases()[0].rules();
    rules.spectrogram.as_mut().unwrap().hop_length = 0;
    let sound = Sound {
        rate: 16_000,
        samples: vec![0.0; 1000],
    };
    let error = prepare(&sound, &rules, &LIMITS).unwrap_err().to_string();
    assert_eq!(
        error,
        "the processor's `spectrogram.hop_length` is 0, expected 1 to 134217728"
    );
}

#[test]
fn rules_that_make_a_huge_sound_are_refused_before_it_is_made() {
    let sound = Sound {
        rate: 16_000,
        samples: vec![0.1; 200_000],
    };
    type Fault = fn(&mut SoundRules);
    let faults: &[(&str, Fault)] = &[
        ("`samples`", |rules| {
            (rules.samples.truncate, rules.samples.split) = (0, 1)
        }),
        ("`samples`", |rules| {
            (rules.samples.split, rules.samples.pad_to_multiple_of) = (1000, MAX_VALUES)
        }),
        ("hop_length", |rules| {
            let spectrogram = rules.spectrogram.as_mut().unwrap();
            (spectrogram.hop_length, spectrogram.n_fft) = (1, 65_536);
        }),
        ("`frames`", |rules| {
            rules.frames.pad_to_multiple_of = MAX_VALUES
        }),
        ("`rows`", |rules| {
            let (window, pad_to_multiple_of) = (1, MAX_VALUES);
            rules.rows = Rows {
                window,
                pad_to_multiple_of,
                ..Rows::default()
            };
        }),
    ];
    for (key, fault) in faults {
        let mut rules = cases()[0].rules();
        fault(&mut rules);
        let error = prepare(&sound, &rules, &LIMITS).unwrap_err();
        assert!(error.to_string().contains(key), "{key}: {error}");
    }
}

#[test]
fn a_sound_too_short_for_a_frame_is_refused_with_the_length_that_is_needed() {
    for case in cases() {
        let rules = case.rules();
        for length in 0..700 {
            let sound = Sound {
                rate: 16_000,
                samples: vec![0.1; length],
            };
            match prepare(&sound, &rules, &LIMITS) {
                Ok(_) => assert!(length > 0),
                Err(SoundError::TooShort { found, least, .. }) => {
                    assert!(found < least, "{}: {found} {least}", case.name)
                }
                Err(SoundError::Empty(_)) => {}
                Err(error) => panic!("{}: {error}", case.name),
            }
        }
    }
}
