//! Tests of processor files: what expressions, alternatives and texts become, and every folder of `../shared/media` against the arrays
//! and tokens of transformers.

use std::fs;
use std::path::{Path, PathBuf};

use lab_media::picture::{PictureLimits, PictureRules, decode, prepare};
use lab_media::{Medium, Prepared, View, expand};
use serde::Deserialize;
use serde_json::{Value as Json, json};
use toml::Table;

use super::evaluate::{Evaluated, Item};
use super::scope::{FolderFiles, ProcessorScope};
use super::{ENDING, Processors};
use crate::artifacts::npy;

/// The bound of the pixels of two correct programs, as the mean square of the differences by that of the values.
const MAX_NMSE: f64 = 1e-4;
/// The folders with image processors, of which none may be missing.
const N_FOLDERS: usize = 33;

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Rules {
    side: u32,
    #[serde(default)]
    share: Option<f64>,
    #[serde(default)]
    list: Vec<Kind>,
    #[serde(default)]
    colour: [u8; 3],
    #[serde(default)]
    text: String,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Kind {
    Plain,
    Sized(u32),
    Both { height: u32, width: u32 },
}

fn evaluated(own: Json, text: &str) -> Result<Rules, String> {
    let files = FolderFiles {
        own,
        tokenizer: json!({ "image_token": "<i>" }),
        class: "A".to_owned(),
        ..FolderFiles::default()
    };
    let file: Table = text.parse().map_err(|error| format!("{error}"))?;
    let scope = ProcessorScope::new(&files, &file);
    let item = Item::Written(&file["rules"]);
    let scope = &scope;
    Rules::deserialize(Evaluated { item, scope }).map_err(|error| error.to_string())
}

#[test]
fn what_is_asked_for_decides_between_expressions_and_texts() {
    let text = r#"
        values.twice  = "2 * size.height"
        defaults.mean = ["0.25", "1 / 2", "1"]
        defaults.size = "9"
        [rules]
        side   = "twice"
        share  = "if(has('x'), x, 1) / 4"
        list   = ["plain", { sized = "size.width" }, { when = "class == 'B'", sized = 1 }, { both = { height = 1, width = "1 + 1" } }]
        colour = ["int(mean[0] * 255)", "int(mean[1] * 255)", "255"]
        text   = "{tokenizer.image_token}{row}side""#;
    let found = evaluated(json!({ "size": { "height": 8, "width": 5 } }), text);
    let expected = Rules {
        side: 16,
        share: Some(0.25),
        list: vec![
            Kind::Plain,
            Kind::Sized(5),
            Kind::Both {
                height: 1,
                width: 2,
            },
        ],
        colour: [63, 127, 255],
        text: "<i>{row}side".to_owned(),
    };
    assert_eq!(found, Ok(expected));
}

#[test]
fn the_first_table_that_applies_counts() {
    let rules = |class: &str| {
        let text = format!(
            "[[rules]]\nwhen = \"class == '{class}'\"\nside = 1\n[[rules]]\nside = 2\nshare = {{ when = \"false\" }}"
        );
        evaluated(json!({}), &text).map(|rules| (rules.side, rules.share))
    };
    assert_eq!(rules("A"), Ok((1, None)));
    assert_eq!(rules("B"), Ok((2, None)));
}

#[test]
fn problems_name_the_key() {
    let problem = |text: &str| evaluated(json!({ "side": [1, 2] }), text).expect_err(text);
    for (text, expected) in [
        (
            "rules.side = 'there'",
            "side: `there`: the folder has no `there`, and the file no default for it",
        ),
        (
            "rules.side = '0 - 1'",
            "side: invalid value: integer `-1`, expected u32",
        ),
        (
            "rules.side = 'side'",
            "side: found `[1, 2]`, expected one value",
        ),
        (
            "rules.side = 1.5",
            "side: invalid type: floating point `1.5`, expected u32",
        ),
        (
            "values.a = 'b'\nvalues.b = 'a'\nrules.side = 'a'",
            "depends on itself",
        ),
        (
            "rules = { side = 1, list = [{ sized = 1, plain = 2 }] }",
            "list.0: found [\"plain\", \"sized\"], expected one of the kinds",
        ),
        (
            "rules = { side = 1, list = ['other'] }",
            "list.0: unknown variant `other`",
        ),
        (
            "rules = { side = 1, text = '{tokenizer.x}' }",
            "text: `tokenizer.x`: the folder has no `tokenizer.x`",
        ),
        ("rules = { side = 1, other = 2 }", "unknown field `other`"),
    ] {
        let found = problem(text);
        assert!(found.contains(expected), "{text}: {found}");
    }
}

#[test]
fn every_built_in_file_has_rules_and_names() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../stmaps");
    let names = fs::read_dir(folder).expect("a folder of the repository");
    let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let names: Vec<String> = names
        .filter(|name| name.ends_with(ENDING) && !name.starts_with("common."))
        .collect();
    let processors = Processors::open(&[]).expect("the built-in files are sound");
    assert_eq!(processors.names().count(), names.len(), "{names:?}");
}

/// The folders of references, if `../shared` is there.
fn shared() -> Option<PathBuf> {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let named = std::env::var_os("BENCH_SHARED").map(PathBuf::from);
    if named.is_none() && !default.is_dir() {
        assert!(std::env::var_os("CI").is_none(), "no ../shared in CI");
        return None;
    }
    Some(named.unwrap_or(default).join("media"))
}

fn read_json(path: &Path) -> Json {
    let text = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The paths of the media of one type in the messages of a case.
fn media<'j>(case: &'j Json, kind: &str) -> Vec<&'j str> {
    let messages = case["messages"].as_array().into_iter().flatten();
    let parts = messages.filter_map(|message| message["content"].as_array());
    let of_kind = parts.flatten().filter(|part| part["type"] == kind);
    of_kind.filter_map(|part| part["path"].as_str()).collect()
}

/// The views of pictures as an array of transformers, which pads them to one size.
fn array(shape: &[usize], pictures: &[Vec<&View>]) -> Vec<f32> {
    let mut out = vec![0.0; shape.iter().product()];
    let views: Vec<&View> = pictures.iter().flatten().copied().collect();
    let last = |shape: &[usize]| shape.last().copied().unwrap_or_default();
    let place = |out: &mut [f32], at: usize, view: &View, rows: &[usize]| {
        // Rows of the view at the start of each row of its place.
        let [channels, height, width] = view.shape[..] else {
            panic!("{:?}", view.shape)
        };
        for (i, row) in view.values.chunks(width).enumerate() {
            let (channel, line) = (i / height, i % height);
            let start = at + (channel * rows[0] + line) * rows[1];
            out[start..start + width].copy_from_slice(row);
        }
        assert_eq!(view.values.len(), channels * height * width);
    };
    match (views[0].shape.len(), shape) {
        (3, [n, sides @ ..]) if sides.len() == 3 && *n >= views.len() => {
            for (i, view) in views.iter().enumerate() {
                let at = i * sides.iter().product::<usize>();
                place(&mut out, at, view, &sides[1..]);
            }
        }
        (3, [n, m, sides @ ..]) if sides.len() == 3 => {
            let one = [views.clone()];
            let pictures = if *n == 1 { &one[..] } else { pictures };
            for (i, picture) in pictures.iter().enumerate() {
                for (j, view) in picture.iter().enumerate() {
                    let at = (i * m + j) * sides.iter().product::<usize>();
                    place(&mut out, at, view, &sides[1..]);
                }
            }
        }
        // Strips side by side.
        (3, _) => {
            let width = last(shape);
            for row in 0..out.len() / width {
                let mut at = row * width;
                for view in &views {
                    let len = last(&view.shape);
                    out[at..at + len].copy_from_slice(&view.values[row * len..][..len]);
                    at += len;
                }
            }
        }
        // Patches, each picture padded.
        (2, [_, n, m]) => {
            for (i, view) in views.iter().enumerate() {
                out[i * n * m..][..view.values.len()].copy_from_slice(&view.values);
            }
        }
        _ => {
            out = views
                .iter()
                .flat_map(|view| view.values.iter().copied())
                .collect()
        }
    }
    out
}

fn nmse(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(expected);
    let square = |value: f64| value * value;
    let difference: f64 = pairs
        .map(|(a, b)| square(f64::from(*a) - f64::from(*b)))
        .sum();
    let all: f64 = expected.iter().map(|value| square(f64::from(*value))).sum();
    difference / all.max(f64::MIN_POSITIVE)
}

/// The tokens of a text by a folder's vocabulary, which may have more tokens than the folder's model.
fn tokens(folder: &Path, text: &str) -> Vec<u32> {
    let copy = tempfile::tempdir().expect("a temporary folder");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(folder.join(name), copy.path().join(name)).expect("a file of the folder");
    }
    fs::write(copy.path().join("config.json"), "{}").expect("a writable folder");
    let tokenizer = lab_base::tokenizer::folder::read(copy.path());
    let tokenizer = tokenizer.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    tokenizer
        .tokenizer()
        .encode(text, false, true)
        .expect("tokens")
}

/// The largest difference of the arrays of a case, and its text with a token for each row.
fn compare(rules: &PictureRules, media_folder: &Path, reference: &Path, name: &str) -> f64 {
    let place = format!("{} {name}", reference.display());
    let case = read_json(&reference.join(format!("{name}.json")));
    let limits = PictureLimits::default();
    let paths = media(&case, "image");
    let prepared: Vec<Prepared> = paths
        .iter()
        .enumerate()
        .map(|(i, path)| {
            let bytes = fs::read(media_folder.join("inputs").join(path)).expect("an input");
            let picture = decode(&bytes, &limits).unwrap_or_else(|error| panic!("{error}"));
            prepare(&picture, rules, i, &limits).unwrap_or_else(|error| panic!("{place}: {error}"))
        })
        .collect();

    let archive = reference.join(format!("{name}.npz"));
    let read =
        |key: &str| npy::read_archive(&archive, key).unwrap_or_else(|e| panic!("{place}: {e}"));
    let arrays = read_json(&reference.join("meta.json"))["cases"][name]["arrays"].take();
    let of_pixels = |key: &str| key.starts_with("proc.pixel_values") && !key.ends_with(".rows");
    let keys: Vec<&String> = arrays
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, _)| key)
        .collect();
    let keys: Vec<&&String> = keys.iter().filter(|key| of_pixels(key)).collect();
    let mut worst = 0.0f64;
    for key in &keys {
        let shape = arrays[key.as_str()].as_array().into_iter().flatten();
        let shape: Vec<usize> = shape.filter_map(|n| Some(n.as_u64()? as usize)).collect();
        // Where views of two sizes are in arrays of their own, each has one.
        let is_in = |view: &&View| keys.len() == 1 || view.shape.last() == shape.last();
        let views = prepared
            .iter()
            .map(|one| one.views.iter().filter(is_in).collect());
        let mut found = array(&shape, &views.collect::<Vec<_>>());
        let expected = read(key).expect("the array is there");
        if let Some(rows) = read(&format!("{key}.rows"))
            && expected.elements.len() != found.len()
        {
            let len = shape.last().copied().unwrap_or(1);
            let row = |row: &f32| found[*row as usize * len..][..len].to_vec();
            found = rows.elements.iter().flat_map(row).collect();
        }
        worst = worst.max(nmse(&found, &expected.elements));
    }
    assert!(!keys.is_empty(), "{place}: no array");
    for key in [
        "proc.image_grid_thw",
        "proc.spatial_shapes",
        "proc.target_sizes",
    ] {
        let Some(grid) = read(key) else { continue };
        let len = grid.shape.last().map_or(1, |n| *n as usize);
        let views = prepared.iter().flat_map(|one| &one.views);
        let found: Vec<f32> = views
            .flat_map(|view| view.patches[3 - len..].iter().map(|n| *n as f32))
            .collect();
        assert_eq!(found, grid.elements, "{place}: {key}");
    }

    if media(&case, "audio").is_empty() {
        let media = prepared.iter().map(|one| Medium {
            marker: &rules.marker,
            row_token: &rules.row_token,
            layout: &one.layout,
        });
        let prompt = case["prompt"].as_str().expect("a prompt");
        let text = expand(prompt, &media.collect::<Vec<_>>(), &rules.prompt);
        let text = text.unwrap_or_else(|error| panic!("{place}: {error}"));
        let tokens = tokens(&reference.with_extension(""), &text);
        let expected = read("input_ids").expect("tokens").elements;
        let found: Vec<f32> = tokens.iter().map(|id| *id as f32).collect();
        assert_eq!(found, expected, "{place}: {text}");
    }
    worst
}

#[test]
#[expect(clippy::print_stdout, reason = "says what was compared, or not run")]
fn folders_of_transformers_are_prepared_as_transformers_does() {
    let Some(media_folder) = shared() else {
        println!("NOT RUN: there is no shared folder beside the checkout");
        return;
    };
    let processors = Processors::open(&[]).expect("the built-in files are sound");
    let given = media_folder.join("given");
    let entries = fs::read_dir(&given).expect("the folders of references");
    let mut folders: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    folders.sort();
    let (mut n, mut n_cases) = (0, 0);
    for folder in folders {
        let name = folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let reference = given.join(format!("{name}.ref"));
        if !reference.is_dir() {
            continue;
        }
        let rules = processors
            .pictures(&folder)
            .unwrap_or_else(|error| panic!("{error}"));
        let Some(rules) = rules else { continue };
        n += 1;
        // The folder as published before transformers 5.
        let old = tempfile::tempdir().expect("a temporary folder");
        for file in [
            "config.json",
            "tokenizer_config.json",
            "preprocessor_config.json",
        ] {
            fs::copy(folder.join(file), old.path().join(file)).expect("a file of the folder");
        }
        let of_old = processors
            .pictures(old.path())
            .unwrap_or_else(|error| panic!("{error}"));
        let of_old = of_old.map(|rules| format!("{rules:?}"));
        assert_eq!(of_old, Some(format!("{rules:?}")), "{name}");

        let cases = read_json(&reference.join("meta.json"))["cases"].take();
        let mut worst = 0.0f64;
        for case in cases
            .as_object()
            .into_iter()
            .flatten()
            .map(|(case, _)| case)
        {
            let parts = read_json(&reference.join(format!("{case}.json")));
            if !media(&parts, "image").is_empty() {
                worst = worst.max(compare(&rules, &media_folder, &reference, case));
                n_cases += 1;
            }
        }
        println!("{name}: {worst:.1e}");
        assert!(worst <= MAX_NMSE, "{name}: {worst:.1e}");
    }
    println!("{n} folders, {n_cases} cases");
    assert!(
        n >= N_FOLDERS,
        "{n} folders with image processors, expected {N_FOLDERS}"
    );
}
