//! Features and rows against those of transformers: the folders of references, each sound of each case.

use serde_json::Value;

use super::*;
use crate::{Piece, Prepared};

/// Folders of references with sounds, and their sounds. There may be more, and never fewer.
const FOLDERS: usize = 8;
const SOUNDS: usize = 30;

/// Of features of sounds at the rate of the tower, and of others, where the resamplers differ: three good ones differ from each other by
/// 1e-6 to 2e-2.
const BOUND: f64 = 1e-6;
const BOUND_RESAMPLED: f64 = 5e-4;

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The files of sounds in the messages of a case, in order.
fn sounds(case: &Value) -> Vec<String> {
    let contents = case["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|message| message["content"].as_array());
    let parts = contents.flatten().filter(|part| part["type"] == "audio");
    parts
        .map(|part| part["path"].as_str().unwrap().to_owned())
        .collect()
}

/// The id of a special token.
fn id(folder: &Path, token: &str) -> f32 {
    let tokenizer = json(&folder.join("tokenizer.json"));
    let tokens = tokenizer["added_tokens"].as_array().unwrap();
    let found = tokens.iter().find(|found| found["content"] == token);
    found.unwrap_or_else(|| panic!("no token {token}"))["id"]
        .as_u64()
        .unwrap() as f32
}

/// Whether the views equal `expected`, of which they are the next ones. Its views may be longer: those of a batch are.
fn compare(
    place: &str,
    prepared: &Prepared,
    rules: &SoundRules,
    expected: &Array,
    next: &mut usize,
    bound: f64,
) {
    for view in &prepared.views {
        let [_, first, second] = expected.shape[..] else {
            panic!("{:?}", expected.shape)
        };
        let theirs = &expected.elements[*next * first * second..][..first * second];
        *next += 1;
        if rules.frames.order == Order::Bands {
            assert_eq!(view.shape, [first, second], "{place}");
            let error = nmse(&view.values, theirs);
            assert!(error <= bound, "{place}: {error:e}");
            continue;
        }
        assert_eq!(view.shape[1], second, "{place}");
        let frames = view.shape[0];
        if rules.samples.pad_to_longest {
            assert_eq!(frames, first, "{place}");
        }
        let error = nmse(&view.values[..frames * second], &theirs[..frames * second]);
        assert!(error <= bound, "{place}: {error:e}");
    }
}

#[test]
fn features_and_rows_equal_those_of_transformers() {
    let Some(folder) = references() else {
        return;
    };
    let (mut folders, mut compared) = (0, 0);
    for case in cases() {
        let Some(name) = &case.folder else { continue };
        folders += 1;
        let rules = case.rules();
        let model = folder.join("given").join(name);
        let references = folder.join("given").join(format!("{name}.ref"));
        for entry in ["sound", "sounds", "long", "stereo", "mixed"] {
            let file = references.join(format!("{entry}.json"));
            if !file.exists() {
                continue;
            }
            let archive = file.with_extension("npz");
            let place = format!("{name}: {entry}");
            let features = read_archive(&archive, "proc.input_features");
            let ids = read_archive(&archive, "input_ids").elements;
            let (mut next, mut position) = (0, 0);
            let read = |path: &String| {
                let bytes = std::fs::read(folder.join("inputs").join(path)).unwrap();
                decode(&bytes, &LIMITS).unwrap()
            };
            let all: Vec<Sound> = sounds(&json(&file)).iter().map(read).collect();
            let length =
                |sound: &Sound| resample(sound, rules.sampling_rate, &LIMITS).unwrap().len();
            let longest = all.iter().map(length).max().unwrap_or(0);
            for sound in all {
                let bound = if sound.rate == rules.sampling_rate {
                    BOUND
                } else {
                    BOUND_RESAMPLED
                };
                let prepared = prepare_beside(&sound, longest, &rules, &LIMITS).unwrap();
                compare(&place, &prepared, &rules, &features, &mut next, bound);
                compared += 1;
                match rules.row_token.as_str() {
                    "" => assert_eq!(
                        prepared.views[0].grid[0],
                        read_archive(&archive, "audio_tower").shape[1],
                        "{place}"
                    ),
                    token => {
                        let expected =
                            expanded(&prepared, &|text| id(&model, text), id(&model, token));
                        let found = (position..=ids.len() - expected.len())
                            .find(|&i| ids[i..].starts_with(&expected));
                        position = found
                            .unwrap_or_else(|| panic!("{place}: no {expected:?} in {ids:?}"))
                            + expected.len();
                        // There are no more placeholders than rows.
                        assert_ne!(ids[position], id(&model, token), "{place}");
                    }
                }
            }
            assert_eq!(next, features.shape[0], "{place}");
        }
    }
    assert!(
        folders >= FOLDERS && compared >= SOUNDS,
        "{folders} folders, {compared} sounds"
    );
}

/// The tokens in place of a sound.
fn expanded(prepared: &Prepared, id: &dyn Fn(&str) -> f32, placeholder: f32) -> Vec<f32> {
    let tokens = prepared.layout.iter().flat_map(|piece| match piece {
        Piece::Text(text) => vec![id(text)],
        Piece::Rows { rows, .. } => vec![placeholder; rows.len()],
    });
    tokens.collect()
}

#[test]
fn the_bound_distinguishes_a_wrong_rule() {
    let Some(folder) = references() else {
        return;
    };
    let bytes = std::fs::read(folder.join("inputs/s.wav")).unwrap();
    let sound = decode(&bytes, &LIMITS).unwrap();
    let right = cases()[0].rules();
    let expected = prepare(&sound, &right, &LIMITS).unwrap();
    let faults: &[fn(&mut Spectrogram)] = &[
        |rules| rules.periodic = false,
        |rules| rules.window = Window::Hamming,
        |rules| rules.mel.scale = MelScale::Htk,
        |rules| rules.mel.equal_areas = false,
        |rules| rules.pad_mode = PadMode::Constant,
        |rules| rules.spectrum = Spectrum::Magnitude,
        |rules| rules.log.decimal = false,
        |rules| rules.log.mel_floor = 1e-4,
        |rules| rules.dynamic_range = Some(7.0),
        |rules| rules.preemphasis = 0.01,
        |rules| rules.mel.max_frequency = 7900.0,
        |rules| (rules.pad_left, rules.pad_right) = (199, 201),
        |rules| rules.scale = 1.01,
    ];
    for (i, fault) in faults.iter().enumerate() {
        let mut wrong = right.clone();
        fault(wrong.spectrogram.as_mut().unwrap());
        let found = prepare(&sound, &wrong, &LIMITS).unwrap();
        let error = nmse(&found.views[0].values, &expected.views[0].values);
        assert!(error > BOUND, "fault {i}: {error:e}");
    }
}

#[test]
fn long_sounds_are_cut_as_the_rules_say() {
    let sound = Sound {
        rate: 16_000,
        samples: vec![0.1; 150_000],
    };
    let views = |samples: &str, frames: &str| {
        let mut case = cases().swap_remove(0);
        let parse = |text: &str| toml::from_str::<toml::Value>(text).unwrap();
        let rules = case.rules.as_table_mut().unwrap();
        rules.insert("samples".to_owned(), parse(samples));
        rules.insert("frames".to_owned(), parse(frames));
        let prepared = prepare(&sound, &case.rules(), &LIMITS).unwrap();
        prepared
            .views
            .iter()
            .map(|view| (view.shape[0], view.patches[0]))
            .collect::<Vec<_>>()
    };
    // 937.5 hops of 160 samples.
    assert_eq!(views("", ""), [(937, 937)]);
    assert_eq!(views("truncate = 64000", ""), [(400, 400)]);
    assert_eq!(views("pad_to = 160000", "real = 'begun'"), [(1000, 938)]);
    assert_eq!(
        views("pad_to = 160000", "real = 'completed'"),
        [(1000, 937)]
    );
    assert_eq!(
        views("split = 64000\npad_to = 64000", "real = 'begun'"),
        [(400, 400), (400, 400), (400, 138)]
    );
    assert_eq!(
        views("pad_to_multiple_of = 64000", "split = 400\nreal = 'begun'"),
        [(400, 400), (400, 400), (400, 138)]
    );
    assert_eq!(
        views("", "stack = 4\npad_to_multiple_of = 10\nreal = 'begun'"),
        [(235, 234)]
    );
}

#[test]
fn a_sound_beside_a_longer_one_has_its_frames_and_its_own_rows() {
    let case = cases()
        .into_iter()
        .find(|case| case.name == "granite-speech");
    let mut rules = case.unwrap().rules();
    let sound = Sound {
        rate: 16_000,
        samples: (0..20_000).map(|i| (i as f32 / 9.0).sin()).collect(),
    };
    let alone = prepare(&sound, &rules, &LIMITS).unwrap();
    let beside = prepare_beside(&sound, 40_000, &rules, &LIMITS).unwrap();
    let shape = |prepared: &Prepared| (prepared.views[0].shape[0], prepared.views[0].grid);
    assert_eq!(shape(&alone), (63, [15, 1, 1]));
    assert_eq!(shape(&beside), (125, [15, 1, 1]));
    // The tower reads all frames as sound.
    let read = rules.tower_rows(&beside.views[0], 160).unwrap();
    assert_eq!((read.1, read.2), ([1, 1, 125], None));
    let shorter = prepare_beside(&sound, 10_000, &rules, &LIMITS).unwrap();
    assert_eq!(shorter.views[0].values, alone.views[0].values);
    rules.samples.pad_to_longest = false;
    let other = prepare_beside(&sound, 40_000, &rules, &LIMITS).unwrap();
    assert_eq!(shape(&other), shape(&alone));
}

#[test]
fn windows_of_a_sound_are_parts_of_its_spectrogram() {
    let sound = Sound {
        rate: 16_000,
        samples: (0..150_000)
            .map(|i| (i as f32 / 7.0).sin() * (0.2 + i as f32 / 2e5))
            .collect(),
    };
    let rules = cases()[0].rules();
    let windows = SoundWindows::new(&sound, &rules, &LIMITS).unwrap();
    assert_eq!((windows.n_frames(), windows.n_of_window()), (937, 400));
    assert!((windows.frame_seconds() - 0.01).abs() < 1e-12 && !windows.is_one());
    // Frames of the whole sound, as it is prepared without windows.
    let mut whole = rules.clone();
    whole.samples = Samples {
        pad_to: 150_000 + 64_000,
        ..Samples::default()
    };
    let whole = prepare(&sound, &whole, &LIMITS).unwrap();
    let n_all = whole.views[0].shape[1];
    for from in [0, 137, 900, 937] {
        let window = windows.at(from).unwrap();
        let view = &window.views[0];
        assert_eq!(
            (view.shape.as_slice(), view.grid),
            (&[80, 400][..], [200, 1, 1])
        );
        for band in 0..80 {
            let expected = &whole.views[0].values[band * n_all + from..][..400];
            assert_eq!(&view.values[band * 400..][..400], expected, "{from} {band}");
        }
    }
    // A sound that fits is prepared as such.
    let short = Sound {
        samples: sound.samples[..50_000].to_vec(),
        ..sound
    };
    let windows = SoundWindows::new(&short, &rules, &LIMITS).unwrap();
    let (found, expected) = (
        windows.at(0).unwrap(),
        prepare(&short, &rules, &LIMITS).unwrap(),
    );
    assert_eq!(found.views[0].values, expected.views[0].values);
    assert_eq!(windows.at(300).unwrap().views[0].shape, [80, 400]);
    let mut endless = rules;
    endless.samples.truncate = 0;
    assert!(SoundWindows::new(&short, &endless, &LIMITS).is_err());
}

#[test]
fn a_dropped_frame_has_no_part_in_the_largest_value() {
    let mut samples = vec![0.0; 64_000];
    samples[63_990..].fill(0.9);
    let prepared = prepare(
        &Sound {
            rate: 16_000,
            samples,
        },
        &cases()[0].rules(),
        &LIMITS,
    )
    .unwrap();
    let values = &prepared.views[0].values;
    let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let least = values.iter().copied().fold(f32::INFINITY, f32::min);
    assert!((most - least - 8.0 / 4.0).abs() < 1e-6, "{most} {least}");
}
