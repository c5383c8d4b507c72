//! Work grows no faster than the input that causes it: untrusted input is read at one size and at four times that. Times
//! are those of the processor on this thread, the least of some tries.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use lab_base::chat::template::ChatTemplate;
use lab_base::tokenizer::folder;
use lab_base::util::measure::thread_time;
use lab_base::weights;
use lab_base::weights::gguf;
use lab_base::weights::gguf::NewTensor;
use lab_base::weights::safetensors::Checkpoint;
use lab_base::weights::{Array, Metadata, TensorType, Value};
use lab_core::arch::expr;
use lab_core::arch::expr::{Expr, Scope};
use lab_core::artifacts::npy;
use lab_core::models;
use lab_core::models::ModelSource;
use lab_core::models::convert;
use lab_core::plan::Plan;
use serde_json::{Map, json};

use crate::bad_folders::{CONFIG, Folder};
use crate::goldens::library;
use crate::support::command::{definitions, scratch};

/// What four times the input may take at most, of what the input takes: between 4, which is proportional, and 16, which is
/// the square.
const RATIO: u32 = 9;
/// Times below this are below the resolution of the timer.
const LEAST: Duration = Duration::from_millis(3);

/// Compares the work for an input of size `n` with that for one of `4 * n`.
fn grows<T>(what: &str, n: usize, make: impl Fn(usize) -> T, read: impl Fn(&T)) {
    let (small, large) = (make(n), make(4 * n));
    let least = |input: &T, tries: usize| {
        let time = |_| {
            let before = thread_time();
            read(input);
            thread_time() - before
        };
        (0..tries).map(time).min().unwrap_or_default()
    };
    let (a, b) = (least(&small, 4), least(&large, 2));
    println!("{what}: {n} in {a:?}, {} in {b:?}", 4 * n);
    // A machine that is busy has noise of its own: what seems too slow is measured again.
    let is_fine = |a: Duration, b: Duration| b <= RATIO * a.max(LEAST);
    if !is_fine(a, b) {
        let (a, b) = (least(&small, 8), least(&large, 6));
        assert!(is_fine(a, b), "{what}: {n} in {a:?}, {} in {b:?}", 4 * n);
    }
}

/// What only has to end soon: its size is refused.
fn is_soon<T>(what: &str, call: impl FnOnce() -> T) -> T {
    let before = thread_time();
    let result = call();
    let took = thread_time() - before;
    assert!(took < Duration::from_secs(2), "{what}: {took:?}");
    result
}

fn definition(params: &str) -> String {
    format!("name = \"grown\"\n[norm.default]\nkind = \"rms\"\n[params]\n{params}")
}

#[test]
fn definitions_are_read_in_proportion() {
    let library = library();
    let refused = |text: &String| {
        let problems = library
            .check("grown.arch.toml", text)
            .expect_err("problems");
        assert!(problems.to_string().len() < 100_000);
        problems
    };
    let unused = |n: usize| definition(&(0..n).map(|i| format!("a{i} = 1\n")).collect::<String>());
    grows("unused parameters", 200, unused, |text| drop(refused(text)));
    let names = (0..200).map(|i| format!("a{i} = \"b{i}\"\n"));
    let names = definition(&names.collect::<String>());
    is_soon("unknown names", || drop(refused(&names)));
    let keys = |n: usize| (0..n).map(|i| format!("a{i} = 1\n")).collect::<String>();
    grows("unknown keys", 200, keys, |text| drop(refused(text)));
    let found = is_soon("50 000 unknown keys", || refused(&keys(50_000)));
    let shown = found.to_string();
    assert!(
        shown.contains("and at least 460 more"),
        "{}",
        &shown[shown.len() - 300..]
    );

    let chain = |n: usize| {
        let links = (0..n).map(|i| format!("zz{i} = \"zz{}\"\n", i + 1));
        definition(&format!("{}zz{n} = 1\n", links.collect::<String>()))
    };
    grows("a chain", 250, chain, |text| drop(refused(text)));
    let long = refused(&chain(40)).to_string();
    assert!(long.contains("`zz8` follows from 33 parameters"), "{long}");
    let long = is_soon("100 000 links", || refused(&chain(100_000))).to_string();
    assert!(
        long.contains("100001 items, expected at most 1024"),
        "{long}"
    );
    let circle =
        |n: usize| chain(n).replace(&format!("zz{n} = 1\n"), &format!("zz{n} = \"zz0\"\n"));
    grows("a circle", 250, circle, |text| drop(refused(text)));
    let told = refused(&circle(3)).to_string();
    let way = "`zz0` depends on itself: zz0 -> zz1 -> zz2 -> zz3 -> zz0";
    assert_eq!(told.matches("depends on itself").count(), 1, "{told}");
    assert!(told.contains(way), "{told}");

    let slots = |n: usize| {
        format!(
            "{}[[stack]]\n{}",
            definition(""),
            "[[stack.slot]]\n".repeat(n)
        )
    };
    grows("empty slots", 150, slots, |text| drop(refused(text)));
    is_soon("30 000 empty slots", || refused(&slots(30_000)));
}

#[test]
fn expressions_end() {
    for text in ["(", "-", "not ", "if(", "1+", "a[", "'"] {
        is_soon(text, || Expr::parse(&text.repeat(100_000), 0)).expect_err("endless");
    }
    let sums = |n: usize| vec!["1+1".to_owned(); n];
    grows("expressions", 2000, sums, |all| {
        for text in all {
            Expr::parse(text, 0).expect("a sum");
        }
    });
}

/// Names that stand for expressions of names: each doubles the one before.
#[test]
fn expressions_of_expressions_are_bounded() {
    struct Nothing;
    impl Scope for Nothing {
        fn name(&self, name: &str, _: bool) -> Result<expr::Value, String> {
            Err(format!("no `{name}`"))
        }
        fn has(&self, _: &str) -> Result<bool, String> {
            Ok(false)
        }
        fn dim(&self, _: &str, _: i64) -> Result<i64, String> {
            Ok(1)
        }
        fn count(&self, _: &str) -> Result<i64, String> {
            Ok(0)
        }
    }
    let doubled = |name: &str| {
        let n: usize = name.strip_prefix('v')?.parse().ok()?;
        let next = if n < 20 {
            format!("v{}", n + 1)
        } else {
            "x".into()
        };
        Expr::parse(&format!("{next} + {next}"), 0).ok()
    };
    let expr = Expr::parse("v0", 0).expect("a name");
    let bound = is_soon("doubled names", || expr.bind(&Nothing, &["x"], &doubled));
    assert_eq!(
        bound.expect_err("a million parts"),
        "named expressions are too large"
    );
}

/// A model whose expressions read arrays, and a file of its architecture.
fn with_arrays(n: usize) -> Metadata {
    let heads = Value::Array(Array::U8(vec![4; n]));
    Metadata::from_iter([
        ("llama.attention.head_count", heads),
        ("llama.block_count", Value::U32(2)),
        ("llama.embedding_length", Value::U32(64)),
        ("llama.feed_forward_length", Value::U32(96)),
        ("llama.vocab_size", Value::U32(100)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
    ])
}

#[test]
fn arrays_are_of_the_layers() {
    let def = library().get("llama").expect("it is built in");
    let tensors =
        weights::Weights::of("none".into(), Metadata::default(), Vec::new()).expect("none");
    let refused = |n: usize| {
        let metadata = with_arrays(n);
        let planned = is_soon("an array", || Plan::new(&def, &metadata, &tensors));
        planned.expect_err("no tensors").to_string()
    };
    let message = refused(1 << 24);
    let expected = "`llama.attention.head_count` (parameter `n_head`) as an array of 16777216 elements, expected at most 4096";
    assert!(message.contains(expected), "{message}");
    let message = refused(3);
    assert!(
        message.contains("`n_head` has 3 values for the 2 layers of the file"),
        "{message}"
    );
    assert!(!refused(2).contains("n_head"), "as many as layers");
}

/// Layers behind the last one, of which a file says how many it has.
#[test]
fn layers_that_are_left_alone_are_not_counted_one_by_one() {
    let def = library().get("llama").expect("it is built in");
    let folder = scratch();
    let path = folder.path().join("a.gguf");
    lab_core::models::synth::synth(&def, &Default::default(), &path).expect("it is made");
    let weights = weights::open(&path).expect("it is sound");
    let mut metadata = weights.metadata().clone();
    let many = u32::MAX;
    metadata.insert("llama.block_count", Value::U32(many));
    metadata.insert("llama.nextn_predict_layers", Value::U32(many - 2));
    let planned = is_soon("nextn layers", || Plan::new(&def, &metadata, &weights));
    planned.expect("two layers are there");
}

fn gguf_of(n: usize, folder: &Path) -> std::path::PathBuf {
    let path = folder.join(format!("{n}.gguf"));
    let def = library().get("llama").expect("it is built in");
    let base = folder.join(format!("{n}-base.gguf"));
    lab_core::models::synth::synth(&def, &Default::default(), &base).expect("it is made");
    let base = weights::open(&base).expect("it is sound");
    let new = |name: String, ty: TensorType, shape: &[u64]| NewTensor {
        name,
        ty,
        shape: shape.to_vec(),
    };
    let own = base.tensors().iter();
    let mut tensors: Vec<_> = own.map(|t| new(t.name.clone(), t.ty, &t.shape)).collect();
    tensors.extend((0..n).map(|i| new(format!("x{i}"), TensorType::F32, &[1])));
    let data = |i: usize| match base.tensors().get(i) {
        Some(tensor) => base
            .data(tensor)
            .map(Vec::from)
            .map_err(std::io::Error::other),
        None => Ok(vec![0; 4]),
    };
    gguf::write(&path, base.metadata(), &tensors, data).expect("written");
    path
}

#[test]
fn files_of_weights_are_read_and_converted_in_proportion() {
    let folder = scratch();
    let with = definitions();
    grows(
        "tensors",
        500,
        |n| gguf_of(n, folder.path()),
        |path| {
            let opened =
                models::open(&ModelSource::File(path.clone()), &with).expect("it is sound");
            let target = path.with_extension("out");
            convert::to_gguf(&opened, None, &target, true, &mut |_, _| {}).expect("converted");
        },
    );
    let keys = |n: usize| {
        let path = folder.path().join(format!("keys{n}.gguf"));
        let keys = (0..n).map(|i| (format!("key.{i}"), Value::U32(1)));
        gguf::write(&path, &keys.collect(), &[], |_| Ok(Vec::new())).expect("written");
        path
    };
    grows("keys", 2000, keys, |path| {
        drop(weights::open(path).expect("sound"))
    });
}

#[test]
fn texts_are_read_in_proportion() {
    let template = |n: usize| "{% if a %}{{ b.c[1:2] | trim }}{% endif %}".repeat(n);
    grows("a template", 40, template, |text| {
        drop(ChatTemplate::new(text).expect("sound"))
    });
    let body = |n: usize| {
        let messages = vec![json!({ "role": "user", "content": "a" }); n];
        Map::from_iter([("messages".to_owned(), messages.into())])
    };
    grows("messages", 300, body, |body| {
        drop(lab_server::refusal(body.clone()))
    });
    let body = |n: usize| {
        let keys = (0..n).map(|i| (format!("temperatur{i}"), json!(1)));
        Map::from_iter(keys)
    };
    grows("unknown fields", 200, body, |body| {
        assert!(lab_server::refusal(body.clone()).is_some())
    });
    let folder = scratch();
    let array = |n: usize| {
        let path = folder.path().join(format!("{n}.npy"));
        let text = format!("{{'descr': {}", "[".repeat(n));
        let head = [
            &b"\x93NUMPY\x01\x00"[..],
            &(text.len() as u16).to_le_bytes(),
        ]
        .concat();
        std::fs::write(&path, [&head, text.as_bytes()].concat()).expect("written");
        path
    };
    grows("a nested header", 1000, array, |path| {
        drop(npy::read(path).expect_err("nested"))
    });
}

/// A file of safetensors with this header and no more data than `bytes` zeros.
fn safetensors(path: &Path, header: &str, bytes: usize) {
    let length = (header.len() as u64).to_le_bytes();
    let data = vec![0; bytes];
    std::fs::write(path, [&length, header.as_bytes(), &data].concat()).expect("written");
}

fn tensor(name: &str, at: usize) -> String {
    let end = at + 1;
    format!("\"{name}\":{{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[{at},{end}]}}")
}

#[test]
fn headers_of_safetensors_are_read_in_proportion() {
    let folder = scratch();
    let written = |n: usize, header: String, bytes: usize| {
        let folder = folder.path().join(format!("{n}"));
        std::fs::create_dir_all(&folder).expect("a writable folder");
        safetensors(&folder.join("model.safetensors"), &header, bytes);
        folder
    };
    let listed = |items: Vec<String>| format!("{{{}}}", items.join(","));
    let many = |n: usize| {
        written(
            n,
            listed((0..n).map(|i| tensor(&format!("t{i}"), i)).collect()),
            n,
        )
    };
    grows("tensors of a header", 4000, many, |folder| {
        let opened = Checkpoint::open(folder).expect("sound");
        assert!(opened.tensors().count() >= 4000);
    });
    let overlapping = |n: usize| {
        written(
            n,
            listed((0..n).map(|i| tensor(&format!("t{i}"), 0)).collect()),
            1,
        )
    };
    grows("tensors in one place", 4000, overlapping, |folder| {
        drop(Checkpoint::open(folder).expect_err("they overlap"))
    });
    let shape = |n: usize| {
        let ones = vec!["1"; n].join(",");
        let line =
            format!("{{\"t\":{{\"dtype\":\"U8\",\"shape\":[{ones}],\"data_offsets\":[0,2]}}}}");
        written(n, line, 2)
    };
    grows("a long shape", 20_000, shape, |folder| {
        let message = Checkpoint::open(folder)
            .expect_err("another size")
            .to_string();
        assert!(message.len() < 1000, "{} bytes", message.len());
    });
    let metadata = |n: usize| {
        let keys: Vec<String> = (0..n).map(|i| format!("\"k{i}\":\"v\"")).collect();
        written(
            n,
            format!("{{\"__metadata__\":{},{}}}", listed(keys), tensor("t", 0)),
            1,
        )
    };
    grows("metadata of a header", 10_000, metadata, |folder| {
        drop(Checkpoint::open(folder).expect("sound"))
    });
    let index = |n: usize| {
        let folder = many(n);
        let map: BTreeMap<String, &str> = (0..n)
            .map(|i| (format!("t{i}"), "model.safetensors"))
            .collect();
        let index = json!({ "weight_map": map }).to_string();
        std::fs::write(folder.join("model.safetensors.index.json"), index).expect("written");
        folder
    };
    grows("an index", 4000, index, |folder| {
        drop(Checkpoint::open(folder).expect("sound"))
    });
}

#[test]
fn configurations_are_read_in_proportion() {
    let folder = Folder::new("llama-llama3");
    let with = definitions();
    let sound = String::from_utf8(folder.read(CONFIG)).expect("text");
    let open = |text: &String| {
        folder.write(CONFIG, text);
        models::open(&ModelSource::File(folder.0.path().to_owned()), &with).map(drop)
    };
    open(&sound).expect("it is sound");
    let with_more = |more: String| sound.replacen('{', &format!("{{{more},"), 1);
    let keys = |n: usize| {
        with_more(
            (0..n)
                .map(|i| format!("\"a{i}\":1"))
                .collect::<Vec<_>>()
                .join(","),
        )
    };
    grows("unknown keys of a configuration", 500, keys, |text| {
        let message = open(text).expect_err("unknown keys").to_string();
        assert!(message.len() < 200_000, "{} bytes", message.len());
    });
    let list = |n: usize| with_more(format!("\"layer_types\":[{}]", vec!["\"a\""; n].join(",")));
    grows("a long list", 5000, list, |text| drop(open(text)));
    let words = |n: usize| with_more(format!("\"a\":[{}]", vec!["NaN"; n].join(",")));
    grows("numbers that are none", 5000, words, |text| {
        drop(open(text))
    });
    let text = |n: usize| with_more(format!("\"hidden_act\":\"{}\"", "a".repeat(n)));
    grows("a long text", 50_000, text, |text| drop(open(text)));
    for text in ["[", "{\"a\":", "[[1],"] {
        is_soon(text, || open(&text.repeat(100_000)).expect_err("endless"));
    }
}

#[test]
fn vocabularies_are_read_in_proportion() {
    let folder = scratch();
    let path = |name: &str| folder.path().join(name);
    let read = || folder::read(folder.path());
    let letter = |i: usize| char::from_u32(0x4e00 + i as u32).expect("an ideograph");
    let merges = |n: usize| {
        let n = n / 2;
        let mut vocab: BTreeMap<String, usize> =
            (0..n).map(|i| (letter(i).to_string(), i)).collect();
        let pairs: Vec<String> = (0..n - 1)
            .map(|i| format!("{} {}", letter(i), letter(i + 1)))
            .collect();
        vocab.extend(
            pairs
                .iter()
                .zip(n..)
                .map(|(pair, id)| (pair.replace(' ', ""), id)),
        );
        let added: Vec<_> = (0..n / 8)
            .map(|i| {
                json!({ "id": 2 * n - 1 + i, "content": format!("<{i}>"), "special": i % 2 == 0,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false })
            })
            .collect();
        json!({ "added_tokens": added, "model": { "type": "BPE", "vocab": vocab, "merges": pairs } }).to_string()
    };
    grows("a vocabulary with merges", 2000, merges, |text| {
        std::fs::write(path("tokenizer.json"), text).expect("written");
        let _ = read().expect("sound").for_file();
    });
    let pieces = |n: usize| {
        let pieces: Vec<_> = (0..n).map(|i| json!([format!("p{i}"), -1.0])).collect();
        json!({ "model": { "type": "Unigram", "unk_id": 0, "vocab": pieces } }).to_string()
    };
    grows("a vocabulary of pieces", 2000, pieces, |text| {
        std::fs::write(path("tokenizer.json"), text).expect("written");
        let _ = read().map(|folder| folder.for_file());
    });
    std::fs::remove_file(path("tokenizer.json")).expect("it is there");
    let ranks = |n: usize| {
        (0..n)
            .map(|i| format!("{} {i}\n", base64(&i.to_le_bytes()[..3])))
            .collect::<String>()
    };
    grows("ranks", 4000, ranks, |text| {
        std::fs::write(path("tiktoken.model"), text).expect("written");
        let _ = read();
    });
    std::fs::remove_file(path("tiktoken.model")).expect("it is there");
    let words = |n: usize| (0..n).map(|i| format!("w{i}\n")).collect::<String>();
    grows("words", 4000, words, |text| {
        std::fs::write(path("vocab.txt"), text).expect("written");
        let _ = read();
    });
}

/// Three bytes in four letters.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let all = bytes
        .iter()
        .fold(0usize, |all, byte| all << 8 | usize::from(*byte));
    let letter = |shift: usize| LETTERS[all >> shift & 63] as char;
    [18, 12, 6, 0].map(letter).iter().collect()
}
