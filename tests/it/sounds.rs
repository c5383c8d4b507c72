//! Towers of sounds give the rows that transformers gives for the same values, and a model whose source is such rows its logits.

use std::path::Path;

use lab_base::weights::TensorType;
use lab_core::model::{Batch, Model, Options, Tower, TowerInput};
use lab_core::models::{Definitions, ModelSource, open, towers};
use lab_core::plan::Media;

use crate::support::{nmse, read_npz, shared};

/// A bound far above the noise of float32, which is 1e-12 here, and far below the effect of any mistake.
const EXACT: f64 = 1e-9;

/// The frames of a case that the tower is given.
#[derive(Clone, Copy, PartialEq)]
enum Frames {
    /// All of them, which are valid.
    All,
    /// All of them, of which the mask says how many are valid.
    Padded,
    /// The valid ones alone.
    Valid,
}

/// Folder, case, number of sounds, bands, whether its values are bands of each frame (or frames of each band), the frames, and the array
/// of the reference.
type Case = (
    &'static str,
    &'static str,
    usize,
    usize,
    bool,
    Frames,
    &'static str,
);

const CASES: [Case; 17] = [
    ("whisper", "sound", 1, 80, false, Frames::All, "audio_tower"),
    ("whisper", "long", 1, 80, false, Frames::All, "audio_tower"),
    (
        "qwen2-audio",
        "sound",
        1,
        128,
        false,
        Frames::Padded,
        "media_embeds",
    ),
    (
        "qwen2-audio",
        "sounds",
        2,
        128,
        false,
        Frames::Padded,
        "media_embeds",
    ),
    (
        "voxtral",
        "sound",
        1,
        128,
        false,
        Frames::All,
        "media_embeds",
    ),
    (
        "voxtral",
        "sounds",
        2,
        128,
        false,
        Frames::All,
        "media_embeds",
    ),
    (
        "glm-asr",
        "sound",
        1,
        128,
        false,
        Frames::Padded,
        "media_embeds",
    ),
    (
        "glm-asr",
        "long",
        1,
        128,
        false,
        Frames::Padded,
        "media_embeds",
    ),
    (
        "qwen2.5-omni",
        "sound",
        1,
        128,
        false,
        Frames::Valid,
        "media_embeds",
    ),
    (
        "qwen2.5-omni",
        "sounds",
        2,
        128,
        false,
        Frames::Valid,
        "media_embeds",
    ),
    (
        "qwen2.5-omni",
        "mixed",
        1,
        128,
        false,
        Frames::Valid,
        "audio_tower",
    ),
    (
        "qwen3-asr",
        "sound",
        1,
        128,
        false,
        Frames::Padded,
        "media_embeds",
    ),
    (
        "qwen3-asr",
        "long",
        1,
        128,
        false,
        Frames::Padded,
        "media_embeds",
    ),
    ("gemma4", "sound", 1, 128, true, Frames::All, "media_embeds"),
    (
        "gemma4",
        "mixed",
        1,
        128,
        true,
        Frames::All,
        "audio_projected",
    ),
    (
        "granite-speech",
        "sound",
        1,
        160,
        true,
        Frames::All,
        "media_embeds",
    ),
    (
        "granite-speech",
        "stereo",
        1,
        160,
        true,
        Frames::All,
        "media_embeds",
    ),
];

fn floats(values: Vec<f64>) -> Vec<f32> {
    values.into_iter().map(|v| v as f32).collect()
}

fn array(path: &Path, name: &str) -> Vec<f64> {
    let found = read_npz(path, name);
    found
        .unwrap_or_else(|| panic!("{} has no `{name}`", path.display()))
        .values
}

/// The values of each sound of a case, the bands of each frame, and its number of valid frames.
fn sounds(path: &Path, &(_, _, n, bands, by_frame, frames, _): &Case) -> Vec<(Vec<f32>, usize)> {
    let all = floats(array(path, "proc.input_features"));
    let n_frames = all.len() / n / bands;
    let mask = match frames {
        Frames::All => vec![1.0; n * n_frames],
        _ => {
            ["proc.feature_attention_mask", "proc.input_features_mask"]
                .iter()
                .find_map(|name| read_npz(path, name))
                .expect("a mask")
                .values
        }
    };
    let sound = |(values, mask): (&[f32], &[f64])| {
        let rows: Vec<f32> = match by_frame {
            true => values.to_vec(),
            false => {
                let at = |frame: usize, band: usize| values[band * n_frames + frame];
                (0..n_frames)
                    .flat_map(|frame| (0..bands).map(move |band| at(frame, band)))
                    .collect()
            }
        };
        (rows, mask.iter().filter(|m| **m > 0.0).count())
    };
    let sounds = all
        .chunks_exact(n_frames * bands)
        .zip(mask.chunks_exact(n_frames));
    sounds.map(sound).collect()
}

fn tower(folder: &Path, flash_attn: bool) -> Tower {
    let with = Definitions::open(&[]).expect("the built-in definitions are readable");
    let all = towers::open_towers(&ModelSource::File(folder.into()), &with);
    let all = all.unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let of_sounds = all.into_iter().find(|tower| tower.media == Media::Audio);
    let opened = of_sounds.expect("a tower of sounds");
    let options = Options {
        flash_attn,
        ..Options::plain(0, 1)
    };
    Tower::load(opened.plan, &opened.weights, options, &mut |_, _| {}).expect("it loads")
}

/// The rows of all sounds of a case.
fn rows_of(tower: &mut Tower, path: &Path, case: &Case) -> Vec<f32> {
    let (bands, frames) = (case.3, case.5);
    let mut all = Vec::new();
    for (mut rows, valid) in sounds(path, case) {
        if frames == Frames::Valid {
            rows.truncate(valid * bands);
        }
        let n_frames = (rows.len() / bands) as u64;
        let cells = match tower.input_width() {
            1 => [1, n_frames, bands as u64],
            _ => [1, 1, n_frames],
        };
        let input = TowerInput {
            rows: &rows,
            cells,
            valid: (frames == Frames::Padded).then_some(valid as u64),
        };
        let found = tower.run(&[input]).expect("it runs");
        all.extend(found.into_iter().flat_map(|result| result.rows));
    }
    all
}

#[test]
fn rows_of_sounds_are_those_of_transformers() {
    let Some(given) = shared("media/given") else {
        return;
    };
    for case in &CASES {
        let path = given.join(format!("{}.ref/{}.npz", case.0, case.1));
        for flash_attn in [true, false] {
            let mut tower = tower(&given.join(case.0), flash_attn);
            let found = rows_of(&mut tower, &path, case);
            let error = nmse(&found, &array(&path, case.6));
            println!("{} {} {error:.1e}", case.0, case.1);
            assert!(error <= EXACT, "{} {}: {error:.1e}", case.0, case.1);
        }
    }
}

/// Logits of the tokens of a sequence, in passes of at most `step` tokens.
fn logits(model: &mut Model, sequence: u32, tokens: &[u32], step: usize) -> Vec<f32> {
    let mut out = Vec::new();
    let first = model.next(sequence) as usize;
    for (at, part) in tokens[first..].chunks(step).enumerate() {
        let mut batch = Batch::default();
        for (position, token) in (first + at * step..).zip(part) {
            batch.push(*token, sequence, position as u32, true);
        }
        out.extend_from_slice(model.forward(&batch).expect("the pass runs"));
    }
    out
}

#[test]
fn a_decoder_reads_the_rows_of_a_tower_as_its_source() {
    let Some(given) = shared("media/given") else {
        return;
    };
    let folder = given.join("whisper");
    let with = Definitions::open(&[]).expect("the built-in definitions are readable");
    for flash_attn in [true, false] {
        let mut encoder = tower(&folder, flash_attn);
        let mut of_cases = CASES[..2].iter().map(|case| {
            let path = given.join(format!("{}.ref/{}.npz", case.0, case.1));
            let tokens = array(&path, "input_ids")
                .iter()
                .map(|id| *id as u32)
                .collect();
            let rows = rows_of(&mut encoder, &path, case);
            (rows, tokens, array(&path, "logits"))
        });
        let cases: [(Vec<f32>, Vec<u32>, Vec<f64>); 2] = [
            of_cases.next().expect("two cases"),
            of_cases.next().expect("two cases"),
        ];
        for n_ctx in [0, 1024] {
            let opened = open(&ModelSource::File(folder.clone()), &with).expect("it opens");
            let options = Options {
                n_seqs: 2,
                k_type: TensorType::F32,
                v_type: TensorType::F32,
                flash_attn,
                ..Options::plain(n_ctx, 256)
            };
            let model = Model::load(opened.plan, &opened.weights, options, &mut |_, _| {});
            let mut model = model.expect("it loads");
            assert!(model.reads_source() && model.reads_rows());
            for (id, (rows, tokens, expected)) in (0..).zip(&cases) {
                model.set_source_rows(id, rows).expect("they are sound");
                let step = if n_ctx == 0 { tokens.len() } else { 3 };
                let error = nmse(&logits(&mut model, id, tokens, step), expected);
                assert!(error <= EXACT, "{error:.1e}");
            }
            if n_ctx == 0 {
                continue;
            }
            // What was computed is known again after the same rows, and after no others.
            let (rows, tokens, expected) = &cases[0];
            model.release(0);
            model.set_source_rows(0, rows).expect("they are sound");
            let known = model.resume(0, tokens);
            assert_eq!((known.n_cached, known.has_source), (tokens.len() - 1, true));
            let found = logits(&mut model, 0, tokens, 1);
            assert!(nmse(&found, &expected[expected.len() - found.len()..]) <= EXACT);
            model.release(0);
            let mut other = rows.clone();
            other[0] += 1.0;
            model.set_source_rows(0, &other).expect("they are sound");
            assert_eq!(model.resume(0, tokens).n_cached, 0);
            let error = model.set_source_rows(0, &rows[1..]).expect_err("not whole");
            assert!(
                error.to_string().ends_with("expected 1 to 256 rows of 48"),
                "{error}"
            );
        }
    }
}
