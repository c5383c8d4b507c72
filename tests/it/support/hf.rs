//! Tiny Hugging Face folders, made anew from `tests/hf`, with what transformers computes from them.
//!
//! `scripts/make_hf_goldens.py` stores neither weights nor folders: `tensors.json` names every tensor
//! in the order of its file, with the mean and the scale of the numbers that fill it. The numbers
//! depend on the tensor's name and the element's index alone. A folder that is written here equals
//! the one transformers read to the byte, or its SHA-256 differs.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex};

use half::{bf16, f16};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::{InputTokens, Output, parse_npy};

/// The files of a golden that are no part of its folder, besides arrays.
const OF_GOLDEN: [&str; 2] = ["tensors.json", "prompts.json"];

/// One folder and its golden.
pub(crate) struct Folder {
    pub(crate) name: String,
    /// Where it is stored.
    place: PathBuf,
    /// The class in transformers, as `architectures` of config.json names it.
    pub(crate) class: String,
    pub(crate) tokens: Vec<u32>,
    /// Those of its source, where the model reads one.
    pub(crate) source: Vec<u32>,
    /// What the golden holds.
    pub(crate) output: Output,
    /// Tokens, and the vocabulary or the width of the model.
    pub(crate) shape: [usize; 2],
    /// The logits or states of every token, computed in float32.
    pub(crate) expected: Vec<f64>,
    pub(crate) golden: Value,
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hf")
}

pub(crate) fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|problem| panic!("{}: {problem}", path.display()))
}

/// The names of all stored folders.
pub(crate) fn names() -> Vec<String> {
    let entries = std::fs::read_dir(root()).expect("tests/hf is readable");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("tests/hf is readable").path())
        .filter(|path| path.join("tensors.json").is_file())
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    names
}

/// Reads a golden; its weights are made by [`Folder::write`].
pub(crate) fn open(name: &str) -> Folder {
    open_at(root().join(name))
}

/// As [`open`], of a golden that is stored elsewhere.
pub(crate) fn open_at(place: PathBuf) -> Folder {
    let name = place.file_name().and_then(|name| name.to_str());
    let golden: Value = serde_json::from_slice(&read(&place.join("tensors.json"))).expect("JSON");
    let text = |key: &str| golden[key].as_str().expect("a text").to_owned();
    let numbers = |key: &str| -> Vec<usize> {
        let list = golden[key].as_array().expect("a list").iter();
        list.map(|n| n.as_u64().expect("a number") as usize)
            .collect()
    };
    let ids = |key: &str| -> Vec<u32> { numbers(key).iter().map(|id| *id as u32).collect() };
    Folder {
        name: name.expect("a name").to_owned(),
        class: text("class"),
        tokens: ids("tokens"),
        source: golden.get("source").map_or(Vec::new(), |_| ids("source")),
        output: match text("output").as_str() {
            "hidden" => Output::Hidden,
            "scores" | "token_scores" => Output::Pooled,
            _ => Output::Logits,
        },
        shape: numbers("shape").try_into().expect("two extents"),
        expected: parse_npy(&read(&place.join("logits.npy"))).values,
        golden,
        place,
    }
}

impl Folder {
    pub(crate) fn text(&self) -> InputTokens<'_> {
        InputTokens {
            tokens: &self.tokens,
            source: &self.source,
            media: None,
        }
    }

    /// What the golden holds, as its case says.
    pub(crate) fn output_name(&self) -> &str {
        self.golden["output"].as_str().expect("a text")
    }

    /// Writes config.json and the weight files, with their index if there are several.
    pub(crate) fn write(&self, into: &Path) {
        for (name, bytes) in self.files() {
            std::fs::write(into.join(name), bytes).expect("the folder can be written");
        }
    }

    /// The same classifier with its first class alone, whose scores are unchanged. Its config.json is not.
    pub(crate) fn of_one_class(self) -> Self {
        self.with_rows(1, |name| {
            name.starts_with("classifier.") || name.starts_with("score.")
        })
    }

    /// The same folder, in which some tensors have their first rows alone.
    pub(crate) fn with_rows(mut self, n: usize, is_cut: impl Fn(&str) -> bool) -> Self {
        for file in self.golden["files"]
            .as_array_mut()
            .expect("a list of files")
        {
            let tensors = file["tensors"].as_array_mut().expect("a list of tensors");
            let cut = tensors
                .iter_mut()
                .filter(|tensor| is_cut(tensor["name"].as_str().expect("a name")));
            cut.for_each(|tensor| tensor["shape"][0] = json!(n));
        }
        self
    }

    /// Whether some tensor has one of these types.
    pub(crate) fn has(&self, types: &[&str]) -> bool {
        let files = self.golden["files"]
            .as_array()
            .expect("a list of files")
            .iter();
        let mut tensors = files.flat_map(|file| file["tensors"].as_array().expect("a list"));
        tensors.any(|tensor| types.iter().any(|ty| tensor["dtype"] == *ty))
    }

    /// Every file by its name.
    pub(crate) fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        for entry in std::fs::read_dir(&self.place).expect("the golden is readable") {
            let path = entry.expect("the golden is readable").path();
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name.expect("a name").to_owned();
            if !OF_GOLDEN.contains(&&*name) && !name.ends_with(".npy") {
                files.insert(name, read(&path));
            }
        }
        let mut places = BTreeMap::new();
        for part in self.golden["files"].as_array().expect("a list of files") {
            let file = part["file"].as_str().expect("a name").to_owned();
            let tensors = part["tensors"].as_array().expect("a list of tensors");
            for tensor in tensors {
                places.insert(tensor["name"].as_str().expect("a name"), file.clone());
            }
            files.insert(file, weight_file(tensors));
        }
        let metadata = &self.golden["index_metadata"];
        if !metadata.is_null() {
            let index = json!({"metadata": metadata, "weight_map": places});
            let text = serde_json::to_string_pretty(&index).expect("JSON") + "\n";
            files.insert("model.safetensors.index.json".to_owned(), text.into_bytes());
        }
        files
    }
}

/// The file of these tensors, which many tests use: made once.
fn weight_file(tensors: &[Value]) -> Vec<u8> {
    static MADE: LazyLock<Mutex<HashMap<String, Vec<u8>>>> = LazyLock::new(Mutex::default);
    let key = serde_json::to_string(tensors).expect("JSON");
    let known = MADE
        .lock()
        .expect("no test panics in here")
        .get(&key)
        .cloned();
    known.unwrap_or_else(|| {
        let file = new_weight_file(tensors);
        let mut made = MADE.lock().expect("no test panics in here");
        made.entry(key).or_insert(file).clone()
    })
}

/// The length of the header, the header padded to eight bytes, the data of all tensors.
fn new_weight_file(tensors: &[Value]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut data = Vec::new();
    for tensor in tensors {
        let start = data.len();
        append_data(tensor, &mut data);
        let row = json!({
            "dtype": tensor["dtype"],
            "shape": tensor["shape"],
            "data_offsets": [start, data.len()],
        });
        let name = tensor["name"].as_str().expect("a name").to_owned();
        header.insert(name, row);
    }
    let mut text = serde_json::to_vec(&header).expect("JSON");
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.append(&mut text);
    file.append(&mut data);
    file
}

/// Appends the elements of a tensor in its type.
fn append_data(tensor: &Value, out: &mut Vec<u8>) {
    let name = tensor["name"].as_str().expect("a name");
    let number = |key: &str| tensor[key].as_f64().expect("a number") as f32;
    let (mean, scale) = (number("mean"), number("scale"));
    let extents = tensor["shape"].as_array().expect("extents").iter();
    let count: u64 = extents.map(|n| n.as_u64().expect("an extent")).product();
    let hash = fnv1a(name);
    let values = (0..count).map(|i| uniform(hash, i) * scale + mean);
    match tensor["dtype"].as_str().expect("a type") {
        "F32" => values.for_each(|v| out.extend_from_slice(&v.to_le_bytes())),
        "F16" => values.for_each(|v| out.extend_from_slice(&f16::from_f32(v).to_le_bytes())),
        "BF16" => values.for_each(|v| out.extend_from_slice(&bf16::from_f32(v).to_le_bytes())),
        "I64" => values.for_each(|v| out.extend_from_slice(&(v as i64).to_le_bytes())),
        "U8" | "I8" | "F8_E8M0" => out.extend(values.map(|v| v as u8)),
        // Without the highest bit of the exponent: neither NaN nor above two.
        "F8_E4M3" => out.extend(values.map(|v| v as u8 & 0xbf)),
        other => panic!("{name}: nothing here fills {other}"),
    }
}

/// The 64-bit FNV-1a hash of a name.
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Element `index` of the SplitMix64 sequence of `seed`, in [-1/2, 1/2) in steps of 2^-24: exact.
fn uniform(seed: u64, index: u64) -> f32 {
    let mut z = seed.wrapping_add((index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    (z >> 40) as f32 / 16_777_216.0 - 0.5
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
