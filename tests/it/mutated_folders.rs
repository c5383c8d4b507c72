//! Folders with one thing changed at random, in the configuration or in the line of a tensor: each
//! gives a model whose data can be read, or an error; nothing panics, and no range leaves its file.
//!
//! Each test makes one change to every second folder of `tests/hf`; `CHANGES=50` makes 50 to each.

use lab_core::models;
use lab_core::models::{Definitions, Error, ModelFiles, ModelSource};
use serde_json::{Value, json};

use crate::bad_folders::{CONFIG, Folder};
use crate::support::command::definitions;
use crate::support::hf;

/// Numbers without end (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }

    fn one_of<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// Calls `change` with every second folder that has a map (`turn` is 0 or 1), or with all as often as `CHANGES` says. `change` makes the folder
/// another one and says how. Some of them have to open, and some have not to.
fn with_changes(turn: usize, change: impl Fn(&Folder, &mut Random) -> String) {
    let n = std::env::var("CHANGES").ok().and_then(|n| n.parse().ok());
    let with = definitions();
    let (classes, _) = with.maps.classes();
    let mut random = Random(88_172_645_463_325_252);
    let (mut n_good, mut n_bad) = (0, 0);
    for (at, name) in hf::names().into_iter().enumerate() {
        let class = hf::open(&name).class;
        if !classes.iter().any(|(known, _)| *known == class) {
            continue;
        }
        for _ in 0..n.unwrap_or(usize::from(at % 2 == turn)) {
            let folder = Folder::new(&name);
            // A panic shows the last one.
            println!("{name}: {}", change(&folder, &mut random));
            match read_all(&folder, &with) {
                Ok(()) => n_good += 1,
                Err(_) => n_bad += 1,
            }
        }
    }
    println!("{n_good} open, {n_bad} do not");
    assert!(n_good >= 10 && n_bad >= 10, "{n_good} open, {n_bad} do not");
}

/// Plans a folder, and reads the data of all its tensors.
fn read_all(folder: &Folder, with: &Definitions) -> Result<(), Error> {
    let source = ModelSource::File(folder.0.path().to_owned());
    let planned = models::open(&source, with).map(|_| ());
    // What does not fit the architecture has data nevertheless.
    let ModelFiles { weights, .. } = models::read(&source, with)?;
    for tensor in weights.tensors() {
        let data = weights.data(tensor);
        assert!(data.is_err() || data.is_ok_and(|data| data.len() as u64 == tensor.bytes));
    }
    planned
}

/// The paths of all values of a configuration.
fn paths(json: &Value) -> Vec<String> {
    let mut out = Vec::new();
    for (key, value) in json.as_object().into_iter().flatten() {
        let key = key.replace('~', "~0").replace('/', "~1");
        out.extend(paths(value).iter().map(|inner| format!("/{key}{inner}")));
        out.push(format!("/{key}"));
    }
    out
}

#[test]
fn any_value_in_a_configuration_gives_a_model_or_an_error() {
    let splinters = json!([
        null, 0, 1, 3, -1, 1u64 << 31, 1u64 << 40, u64::MAX, i64::MIN, 0.5, -1e300, 1e-300, true, false, "",
        "x", [], [0], [1e9, "x", null], {}, { "rope_type": "x" }, { "__float__": "Infinity" }
    ]);
    let splinters = splinters.as_array().expect("a list");
    with_changes(0, |folder, random| {
        let text = String::from_utf8(folder.read(CONFIG)).expect("UTF-8");
        let text = text.replace("Infinity\n", "{\"__float__\": \"Infinity\"}\n");
        let mut config: Value = serde_json::from_str(&text).expect("JSON");
        let paths = paths(&config);
        let path = random.one_of(&paths);
        let splinter = random.one_of(splinters);
        *config.pointer_mut(path).expect("a path of it") = splinter.clone();
        folder.write(CONFIG, config.to_string());
        format!("{path} = {splinter}")
    });
}

/// Types in a header, with the bits of an element.
const DTYPES: [(&str, u64); 10] = [
    ("BOOL", 8),
    ("F4", 4),
    ("U8", 8),
    ("F8_E4M3", 8),
    ("F8_E5M2", 8),
    ("BF16", 16),
    ("F16", 16),
    ("I32", 32),
    ("F32", 32),
    ("I64", 64),
];

#[test]
fn any_type_and_shape_of_a_tensor_gives_a_model_or_an_error() {
    with_changes(1, |folder, random| {
        let entries = std::fs::read_dir(folder.0.path()).expect("a folder");
        let mut files: Vec<String> = entries
            .filter_map(|entry| entry.expect("an entry").file_name().into_string().ok())
            .filter(|name| name.ends_with(".safetensors"))
            .collect();
        files.sort();
        let mut what = String::new();
        let file = random.one_of(&files);
        folder.edit(file, |header| {
            let names: Vec<String> = header
                .keys()
                .filter(|name| *name != "__metadata__")
                .cloned()
                .collect();
            let name = random.one_of(&names);
            let place = |i: usize| header[name]["data_offsets"][i].as_u64().expect("a number");
            let bits = 8 * (place(1) - place(0));
            let (dtype, size) = *random.one_of(&DTYPES);
            // The same bytes as some axes, which are as likely the old ones.
            let (mut left, mut shape) = ((bits / size).max(1), Vec::new());
            for _ in 0..random.below(5) {
                let divisors: Vec<u64> = (1..=left.min(512))
                    .filter(|n| left.is_multiple_of(*n))
                    .collect();
                let axis = *random.one_of(&divisors);
                shape.push(axis);
                left /= axis;
            }
            shape.push(left);
            if random.below(3) == 0 && size == 32 {
                shape = serde_json::from_value(header[name]["shape"].clone()).expect("a shape");
            }
            header[name]["dtype"] = json!(dtype);
            header[name]["shape"] = json!(shape);
            what = format!("{name}: {dtype} {shape:?}");
        });
        what
    });
}
