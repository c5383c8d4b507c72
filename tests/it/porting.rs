//! `bench arch new` and `bench arch prove`, as someone uses them who ports a model.

use std::io::Write;
use std::path::Path;

use lab_core::artifacts::npy;
use lab_inspect::nearest;
use serde_json::{Value, json};

use crate::goldens::{golden, library};
use crate::support::command::{bench, check_refused, made_up, printed, scratch, text};
use crate::support::hf;
use crate::support::nmse;

#[test]
fn the_definition_of_a_file_is_among_the_nearest() {
    let library = library();
    for name in ["qwen3moe", "mamba2", "deepseek2"] {
        let golden = golden(name);
        let fits = nearest::definition_fits(&library, &golden.weights).expect("sound definitions");
        let own = fits
            .iter()
            .find(|fit| fit.arch == golden.arch)
            .expect("its own");
        let tensors = |fit: &nearest::DefinitionFit| fit.unused.len() + fit.missing.len();
        assert_eq!((tensors(own), &own.problems[..]), (0, &[][..]), "{name}");
        assert_eq!(tensors(&fits[0]), 0, "{name}: {:?}", fits[0]);
        let far = fits.last().expect("others");
        assert!(tensors(far) > 5, "{name}: {far:?}");
    }
}

/// The arguments that begin a definition.
fn begin<'a>(name: &'a str, model: &'a Path, into: &'a Path) -> [&'a str; 7] {
    ["arch", "new", name, "--from", text(model), "-o", text(into)]
}

#[test]
fn a_drafted_definition_is_valid_and_lists_open_choices() {
    let folder = scratch();
    let model = made_up(folder.path(), "qwen3", &[]);
    let mine = folder.path().join("mine");
    std::fs::create_dir(&mine).expect("a folder");
    let arguments = begin("fresh", &model, &mine);
    let found = printed(&arguments);
    assert!(found.contains("begun from `"), "{found}");
    assert!(
        found.contains("is opened with the definition of that name"),
        "{found}"
    );
    let path = mine.join("fresh.arch.toml");
    let written = std::fs::read_to_string(&path).expect("written");
    assert!(written.contains("name = \"fresh\""), "{written}");
    assert!(written.contains("(rope): kind = "), "{written}");
    printed(&["arch", "check", text(&path)]);
    // What is there stays.
    check_refused(&arguments, 1, &["is there already; --force replaces it"]);
    assert_eq!(std::fs::read_to_string(&path).expect("there"), written);
    let hostile = begin("../x", &model, &mine);
    check_refused(&hostile, 1, &["is not the name of an architecture"]);
    // A definition of other tensors names those that nothing uses.
    let moe = made_up(folder.path(), "deepseek2", &[]);
    printed(&begin("other", &moe, &mine));
    printed(&["arch", "check", text(&mine.join("other.arch.toml"))]);
}

#[test]
fn a_folder_of_an_unknown_class_gets_a_draft_map_and_definition() {
    let scratch = scratch();
    for (name, nested) in [("afmoe", None), ("jamba", Some("text_config"))] {
        let golden = hf::open(name);
        let model = scratch.path().join(name);
        let mine = scratch.path().join(format!("{name}-mine"));
        for folder in [&model, &mine] {
            std::fs::create_dir(folder).expect("a folder");
        }
        golden.write(&model);
        let config = std::fs::read(model.join("config.json")).expect("there");
        let mut config: Value = serde_json::from_slice(&config).expect("JSON");
        let keys = config.as_object_mut().expect("an object");
        keys.insert("model_type".into(), json!("fresh"));
        keys.remove("architectures");
        if let Some(nested) = nested {
            config = json!({ nested: config });
        }
        config["architectures"] = json!(["FreshForCausalLM"]);
        std::fs::write(model.join("config.json"), config.to_string()).expect("written");
        check_refused(
            &["inspect", text(&model)],
            1,
            &["no map is for `FreshForCausalLM`"],
        );

        let arguments = begin("fresh", &model, &mine);
        let found = printed(&arguments);
        assert!(found.contains("begun from the map `"), "{found}");
        let map = mine.join("fresh.arch.stmap.toml");
        let map = std::fs::read_to_string(map).expect("written");
        assert!(map.contains("classes = [\"FreshForCausalLM\"]"), "{map}");
        check_refused(&arguments, 1, &["is there already; --force replaces it"]);
        // Its own family is the nearest, so nothing is left to settle: the numbers are those of the golden.
        let tokens: Vec<String> = golden.tokens.iter().map(u32::to_string).collect();
        let array = scratch.path().join(format!("{name}.npy"));
        printed(&[
            "logits",
            "-m",
            text(&model),
            "--archs",
            text(&mine),
            "--strict",
            "--tokens",
            &tokens.join(","),
            "-o",
            text(&array),
        ]);
        let found = npy::read(&array).expect("an array").elements;
        let error = nmse(&found, &golden.expected);
        assert!(error <= 1e-9, "{name}: {error:e}");
    }
}

/// A stored folder with another class and type in its configuration.
fn renamed_folder(name: &str, into: &Path, model_type: &str) -> hf::Folder {
    let golden = hf::open(name);
    std::fs::create_dir(into).expect("a folder");
    golden.write(into);
    let path = into.join("config.json");
    let config = std::fs::read(&path).expect("there");
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");
    config["architectures"] = json!(["FreshForCausalLM"]);
    config["model_type"] = json!(model_type);
    std::fs::write(path, config.to_string()).expect("written");
    golden
}

/// Replaces a part of the names of stored tensors.
fn rename_stored(model: &Path, from: &str, to: &str) {
    let path = model.join("model.safetensors");
    let stored = std::fs::read(&path).expect("there");
    let length = u64::from_le_bytes(stored[..8].try_into().expect("eight")) as usize;
    let header = String::from_utf8(stored[8..8 + length].to_vec()).expect("text");
    let header = header.replace(from, to);
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(&stored[8 + length..]);
    std::fs::write(path, bytes).expect("written");
}

/// Replaces a part of a text file.
fn edit(path: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(path).expect("there");
    assert!(text.contains(from), "{from}: {text}");
    std::fs::write(path, text.replace(from, to)).expect("written");
}

#[test]
fn other_names_of_tensors_and_keys_do_not_hide_the_family() {
    let scratch = scratch();
    let model = scratch.path().join("model");
    renamed_folder("llama", &model, "fresh");
    rename_stored(&model, "self_attn", "attention");
    let drafted = |name: &str, options: &[&str]| {
        let mine = scratch.path().join(name);
        let found = printed(&[&begin(name, &model, &mine)[..], options].concat());
        let read = |ending: &str| {
            let path = mine.join(format!("{name}{ending}"));
            std::fs::read_to_string(path).expect("written")
        };
        (found, read(".arch.stmap.toml"), read(".arch.toml"))
    };
    let (found, ..) = drafted("one", &[]);
    assert!(found.contains("begun from the map `llama`\n"), "{found}");
    rename_stored(&model, "input_layernorm", "norm1");
    edit(&model.join("config.json"), "num_hidden_layers", "n_layers");
    let (found, map, _) = drafted("two", &[]);
    assert!(found.contains("begun from the map `llama`\n"), "{found}");
    assert!(map.contains("norm1.weight ["), "{map}");
    // Another map, and what its definition does not share with a causal one.
    let (found, map, definition) = drafted("three", &["--map", "dream"]);
    assert!(found.contains("begun from the map `dream`\n"), "{found}");
    assert!(map.contains("causal = false"), "{map}");
    let settled = definition.split_once("Settle each").expect("a list").1;
    let first: Vec<&str> = settled.lines().skip(1).take(3).collect();
    for (line, choice) in
        first
            .iter()
            .zip(["mode = \"diffusion\"", "causal = ", "shift_logits = true"])
    {
        assert!(line.contains(choice), "{first:?}");
    }
    let mine = scratch.path().join("four");
    let wrong = [&begin("four", &model, &mine)[..], &["--map", "lama"]].concat();
    check_refused(
        &wrong,
        1,
        &[
            "there is no map `lama`",
            "`--map llama` begins from `llama`",
        ],
    );
    let file = made_up(scratch.path(), "qwen3", &[]);
    let wrong = [&begin("four", &file, &mine)[..], &["--map", "llama"]].concat();
    check_refused(&wrong, 1, &["is no folder", "leave `--map` out"]);
}

#[test]
fn faults_of_a_map_are_told_at_their_place() {
    let scratch = scratch();
    let (model, mine) = (scratch.path().join("model"), scratch.path().join("mine"));
    renamed_folder("llama", &model, "fresh");
    std::fs::create_dir(&mine).expect("a folder");
    let map = mine.join("fresh.arch.stmap.toml");
    let base = std::fs::read_to_string("stmaps/llama.arch.stmap.toml").expect("there");
    let base = base.replace("\"LlamaForCausalLM\"", "\"FreshForCausalLM\"");
    let base = base.replace("num_hidden_layers            = 32\n", "");
    let refused = |map_text: &str, expected: &[&str], strange: &[&str]| {
        std::fs::write(&map, map_text).expect("written");
        for command in ["plan", "doctor"] {
            let found = bench(&[command, text(&model), "--archs", text(&mine)]);
            let found = found.out + &found.err;
            assert!(command != "doctor" || !found.contains("; |"), "{found}");
            for part in expected {
                assert!(found.contains(part), "{part}: {found}");
            }
            for part in strange {
                assert!(!found.contains(part), "{part}: {found}");
            }
        }
    };
    // The key of the count is absent: the place is the line of `count`.
    edit(&model.join("config.json"), "num_hidden_layers", "n_layers");
    let line = 1 + base
        .lines()
        .position(|line| line.starts_with("count"))
        .expect("a count");
    let place = format!("fresh.arch.stmap.toml:{line}:");
    refused(
        &base,
        &["`count`: config.json has no `num_hidden_layers`", &place],
        &[" | attn_", "error: error"],
    );
    // The layers are counted by another key than the parameter is made of.
    let other = base.replace("\"num_hidden_layers\"", "\"n_layers\"");
    let expected = [
        "no rule of the map gives `block_count`, and stmaps/common.toml makes it of `num_hidden_layers`",
        "write `num_hidden_layers = [\"n_layers\"]` under `[aliases]` of the map",
    ];
    refused(&other, &expected, &["there are no layers"]);
    let aliased = format!("{base}\n[aliases]\nnum_hidden_layers = [\"n_layers\"]\n");
    std::fs::write(&map, aliased).expect("written");
    printed(&["plan", text(&model), "--archs", text(&mine)]);
    // A map with a fault of its own.
    let broken = base.replace("count = \"num_hidden_layers\"\n", "");
    let named = format!("{}: missing key `count`", text(&map));
    refused(
        &broken,
        &[&named, "fresh.arch.stmap.toml:"],
        &["config.json", ": error:"],
    );
}

#[test]
fn the_architecture_and_the_parameters_of_a_map_are_checked() {
    let scratch = scratch();
    let map = scratch.path().join("fresh.arch.stmap.toml");
    let start = "classes = [\"FreshForCausalLM\"]\n";
    for (rest, expected) in [
        ("arch = \"lama\"", "unknown architecture `lama`"),
        (
            "arch = \"llama\"\n[params]\nn_heads = \"x\"",
            "unknown parameter `n_heads`",
        ),
        (
            "extends = \"llama\"\n[params]\nn_layer = 1",
            "`n_layer` follows from others",
        ),
    ] {
        std::fs::write(&map, format!("{start}{rest}\n")).expect("written");
        let ran = bench(&["arch", "check", text(&map)]);
        assert_eq!(ran.code, 1, "{rest}: {}", ran.out);
        assert!(ran.out.contains(expected), "{rest}: {}", ran.out);
    }
    // The definition may be in the same folder.
    std::fs::write(&map, format!("{start}arch = \"fresh\"\n")).expect("written");
    let definition = std::fs::read_to_string("archs/llama.arch.toml").expect("there");
    let definition = definition.replace("\"llama\"", "\"fresh\"");
    std::fs::write(scratch.path().join("fresh.arch.toml"), definition).expect("written");
    printed(&["arch", "check", text(&map)]);
}

#[test]
fn a_folder_of_the_kind_of_a_map_needs_no_definition() {
    let scratch = scratch();
    for (name, base) in [("llama", "llama"), ("gptneox-serial", "gptneox")] {
        let (model, mine) = (scratch.path().join(name), scratch.path().join("new/mine"));
        renamed_folder(name, &model, base);
        let found = printed(&begin(name, &model, &mine));
        let begun = format!("begun from the map `{base}`, which fits");
        assert!(found.contains(&begun), "{found}");
        let map = mine.join(format!("{name}.arch.stmap.toml"));
        let map = std::fs::read_to_string(map).expect("written");
        assert!(map.contains(&format!("extends = \"{base}\"")), "{map}");
        assert!(!mine.join(format!("{name}.arch.toml")).exists());
    }
}

#[test]
fn names_are_compared_without_a_prefix_that_no_map_knows() {
    let scratch = scratch();
    let (model, mine) = (scratch.path().join("model"), scratch.path().join("mine"));
    let golden = renamed_folder("gptneox-japanese", &model, "fresh");
    let found = printed(&begin("fresh", &model, &mine));
    let best = ["`gptneox`", "`gptneox-japanese`"];
    assert!(best.iter().any(|base| found.contains(base)), "{found}");
    let path = ["logits", "-m", text(&model), "--archs", text(&mine)];
    let tokens: Vec<String> = golden.tokens.iter().map(u32::to_string).collect();
    let (tokens, array) = (tokens.join(","), scratch.path().join("fresh.npy"));
    printed(&[&path[..], &["--tokens", &tokens, "-o", text(&array)]].concat());
    let found = npy::read(&array).expect("an array").elements;
    let error = nmse(&found, &golden.expected);
    assert!(error <= 1e-9, "{error:e}");
}

#[test]
fn the_definition_that_opens_a_folder_is_the_nearest() {
    let scratch = scratch();
    let (model, mine) = (scratch.path().join("model"), scratch.path().join("mine"));
    std::fs::create_dir(&model).expect("a folder");
    hf::open("llama").write(&model);
    let found = printed(&begin("fresh", &model, &mine));
    assert!(found.contains("begun from `llama`"), "{found}");
}

#[test]
fn a_drafted_map_lists_unknown_tensors_and_keys() {
    let scratch = scratch();
    let (model, mine) = (scratch.path().join("model"), scratch.path().join("mine"));
    for folder in [&model, &mine] {
        std::fs::create_dir(folder).expect("a folder");
    }
    hf::open("apertus").write(&model);
    let config = std::fs::read(model.join("config.json")).expect("there");
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");
    config["architectures"] = json!(["FreshForCausalLM"]);
    config["residual_gain"] = json!(0.5);
    std::fs::write(model.join("config.json"), config.to_string()).expect("written");
    rename_stored(&model, "mlp.down_proj", "mlp.shrink_proj");
    printed(&begin("fresh", &model, &mine));
    let map = mine.join("fresh.arch.stmap.toml");
    let map = std::fs::read_to_string(map).expect("written");
    let comments: Vec<&str> = map
        .lines()
        .take_while(|line| line.starts_with('#'))
        .collect();
    let comments = comments.join("\n");
    for expected in [
        "layers.{il}.mlp.shrink_proj.weight [",
        "residual_gain = 0.5",
        "blk.{il}.ffn_down.weight",
    ] {
        assert!(comments.contains(expected), "{expected}: {comments}");
    }
}

fn write_npz(path: &Path, arrays: &[(&str, Vec<u8>)]) {
    let file = std::fs::File::create(path).expect("a file");
    let mut archive = zip::ZipWriter::new(file);
    let options = zip::write::SimpleFileOptions::default();
    for (name, bytes) in arrays {
        archive
            .start_file(format!("{name}.npy"), options)
            .expect("an entry");
        archive.write_all(bytes).expect("written");
    }
    archive.finish().expect("an archive");
}

/// An array of i64, as NumPy writes integers.
fn integers(values: &[i64]) -> Vec<u8> {
    let header = format!(
        "{{'descr': '<i8', 'fortran_order': False, 'shape': ({},), }}\n",
        values.len()
    );
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    bytes
}

#[test]
fn every_path_is_compared_with_a_reference() {
    let folder = scratch();
    let model = made_up(folder.path(), "qwen3", &[]);
    let tokens = "1,7,9,3,3,8,20,4,11,2";
    let array = folder.path().join("logits.npy");
    printed(&[
        "logits",
        "-m",
        text(&model),
        "--tokens",
        tokens,
        "-o",
        text(&array),
    ]);
    let prove = |reference: &Path, more: &[&str]| {
        let mut arguments = vec!["arch", "prove", text(&model), "--ref", text(reference)];
        arguments.extend(more);
        arguments.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let proven = prove(&array, &["--tokens", tokens]);
    let proven: Vec<&str> = proven.iter().map(String::as_str).collect();
    let found = printed(&proven);
    assert_eq!(
        found.lines().filter(|line| line.starts_with("= ")).count(),
        8,
        "{found}"
    );
    // Another value from the third position on.
    let mut wrong = npy::read(&array).expect("an array");
    let width = wrong.shape[1] as usize;
    for value in &mut wrong.elements[2 * width..] {
        *value += 1.0;
    }
    let shape: Vec<usize> = wrong.shape.iter().map(|n| *n as usize).collect();
    let bytes = npy::bytes_of(&wrong.elements, &shape);
    let ids: Vec<i64> = tokens
        .split(',')
        .map(|id| id.parse().expect("an id"))
        .collect();
    let archive = folder.path().join("wrong.npz");
    write_npz(&archive, &[("logits", bytes), ("tokens", integers(&ids))]);
    let refused = prove(&archive, &[]);
    let refused: Vec<&str> = refused.iter().map(String::as_str).collect();
    check_refused(&refused, 1, &["8 of 8 paths differ"]);
    let json = prove(&archive, &["--json"]);
    let json: Vec<&str> = json.iter().map(String::as_str).collect();
    let output = bench(&json);
    let report: serde_json::Value = serde_json::from_str(&output.out).expect("JSON");
    assert_eq!(report["paths"][0]["first_wrong_position"], 2);
    assert!(
        report["hints"][0]
            .as_str()
            .expect("a hint")
            .contains("wrong later")
    );
    // References that are none.
    for (arrays, message) in [
        (vec![("tokens", integers(&ids))], "no array `logits`"),
        (
            vec![("logits", integers(&[1, 2]))],
            "there are no token ids",
        ),
        (
            vec![
                ("logits", integers(&[i64::MAX])),
                ("tokens", integers(&[1])),
            ],
            "does not hold",
        ),
        (vec![("logits", b"no array".to_vec())], "is not an NPY file"),
    ] {
        let path = folder.path().join("bad.npz");
        write_npz(&path, &arrays);
        let bad = prove(&path, &[]);
        let bad: Vec<&str> = bad.iter().map(String::as_str).collect();
        check_refused(&bad, 1, &[message]);
    }
}

#[test]
fn one_file_is_compared_under_two_definitions() {
    let folder = scratch();
    let model = made_up(folder.path(), "qwen3", &[]);
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/archs/qwen3.arch.toml");
    let own = std::fs::read_to_string(own).expect("readable");
    // Names of its own do not matter: the file's architecture is what it is computed as.
    let named = own
        .replace("name = [\"qwen3\"", "name = [\"mine\"")
        .replace("name = \"qwen3\"", "name = \"mine\"");
    let pairing = named.replacen("rope = \"neox\"", "rope = \"norm\"", 1);
    assert!(named != own && pairing != named, "{own}");
    let path = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path
    };
    let (same, other) = (
        path("same.arch.toml", &named),
        path("other.arch.toml", &pairing),
    );
    let compare = |more: &[&str]| {
        let mut arguments = vec!["compare", text(&model), "--tokens", "1,7,9,3"];
        arguments.extend(more);
        bench(&arguments)
    };
    let found = compare(&["--arch", text(&same)]);
    assert!(
        found.is_fine() && found.out.contains("largest NMSE 0.0e0"),
        "{}",
        found.err
    );
    for more in [
        vec!["--arch", text(&other)],
        vec!["--arch", text(&other), "--arch", "qwen3"],
    ] {
        let found = compare(&more);
        assert_eq!(found.code, 1, "{}", found.out);
        assert!(
            found
                .err
                .contains("the first value that differs is `layers.0.attn.q`"),
            "{}",
            found.err
        );
    }
    for (more, message) in [
        (
            vec!["--arch", "qwen33"],
            "unknown architecture `qwen33`; did you mean `qwen3`?",
        ),
        (vec!["--arch", "absent.arch.toml"], "absent.arch.toml: "),
        (
            vec!["--arch", "qwen3", "--arch", "qwen3", "--arch", "qwen3"],
            "for each of A and B",
        ),
    ] {
        let found = compare(&more);
        assert_eq!(found.code, 1, "{}", found.out);
        assert!(found.err.contains(message), "{}", found.err);
    }
}

/// A llama-server on a free port that knows the log-probabilities of these rows of logits, for the prompts that are the
/// beginnings of `tokens`.
fn llama_server(tokens: Vec<u32>, logits: npy::NpyArray) -> String {
    use std::io::{BufRead, BufReader, Read};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = BufReader::new(socket.expect("a connection"));
            let (mut line, mut length, mut first) = (String::new(), 0, String::new());
            while socket.read_line(&mut line).expect("a line") > 2 {
                if first.is_empty() {
                    first = line.clone();
                }
                let lower = line.to_ascii_lowercase();
                if let Some(n) = lower.strip_prefix("content-length:") {
                    length = n.trim().parse().expect("a number");
                }
                line.clear();
            }
            let mut body = vec![0; length];
            socket.read_exact(&mut body).expect("the body");
            let answer = match first.starts_with("POST /completion ") {
                true => completion(&body, &tokens, &logits),
                false => json!({ "status": "ok" }),
            };
            let answer = answer.to_string();
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                answer.len()
            );
            let socket = socket.get_mut();
            socket
                .write_all((head + &answer).as_bytes())
                .expect("written");
        }
    });
    format!("http://{address}")
}

fn completion(body: &[u8], tokens: &[u32], logits: &npy::NpyArray) -> Value {
    let body: Value = serde_json::from_slice(body).expect("JSON");
    let prompt = body["prompt"].as_array().expect("ids");
    assert!(prompt.iter().zip(tokens).all(|(a, b)| a == b), "{body}");
    let width = logits.shape[1] as usize;
    let row = &logits.elements[(prompt.len() - 1) * width..prompt.len() * width];
    let total = row.iter().map(|v| f64::from(*v).exp()).sum::<f64>().ln();
    let mut order: Vec<usize> = (0..width).collect();
    order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
    let n = body["n_probs"].as_u64().expect("a number") as usize;
    let entry = |id: &usize| json!({ "id": id, "logprob": f64::from(row[*id]) - total });
    let top: Vec<Value> = order.iter().take(n).map(entry).collect();
    // A llama-server gives none with a token that ends within a character.
    if body["logit_bias"][0][0].is_null() && order[0].is_multiple_of(2) {
        return json!({ "content": "" });
    }
    json!({ "completion_probabilities": [{ "id": order[0], "top_logprobs": top }] })
}

#[test]
fn a_model_is_compared_with_a_llama_server() {
    let folder = scratch();
    let vocab = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny-chat.gguf");
    let more = ["--vocab", vocab, "--meta", "qwen3.attention.logit_fade=0.5"];
    let model = made_up(folder.path(), "qwen3", &more);
    let ids = [1, 7, 9, 3, 3, 8, 20, 4];
    let tokens = ids.map(|id: u32| id.to_string()).join(",");
    let array = folder.path().join("logits.npy");
    printed(&[
        "logits",
        "-m",
        text(&model),
        "--tokens",
        &tokens,
        "-o",
        text(&array),
    ]);
    let right = npy::read(&array).expect("an array");
    let prove = |url: &str, more: &[&str]| {
        let arguments = [
            "arch",
            "prove",
            text(&model),
            "--llama",
            url,
            "--tokens",
            &tokens,
        ];
        bench(&[&arguments[..], more].concat())
    };
    let url = llama_server(ids.to_vec(), right.clone());
    let found = prove(&url, &[]);
    assert!(found.is_fine(), "{}", found.err);
    let n_equal = found
        .out
        .lines()
        .filter(|line| line.starts_with("= "))
        .count();
    assert_eq!(n_equal, 8, "{}", found.out);
    // What a file states and nothing reads is part of the report.
    let stated = "the file states `qwen3.attention.logit_fade`, which nothing reads";
    assert!(found.out.contains(stated), "{}", found.out);
    // Another value from the second position on.
    let mut wrong = right;
    let width = wrong.shape[1] as usize;
    wrong
        .elements
        .iter_mut()
        .skip(width)
        .step_by(3)
        .for_each(|value| *value += 1.0);
    let url = llama_server(ids.to_vec(), wrong);
    let found = prove(&url, &["--json"]);
    assert_eq!(found.code, 1, "{}", found.out);
    let report: Value = serde_json::from_str(&found.out).expect("JSON");
    assert_eq!(report["paths"][0]["first_wrong_position"], 1, "{report}");
    assert!(
        report["paths"][0]["difference"]
            .as_f64()
            .is_some_and(|d| d > 0.1),
        "{report}"
    );
    let hints = report["hints"].to_string();
    assert!(
        hints.contains("from the second on") && hints.contains("pairing of rope"),
        "{hints}"
    );
    assert_eq!(
        report["unread"]["keys"],
        json!(["qwen3.attention.logit_fade"])
    );
    // Programs and servers that are none, and models without probabilities of next tokens.
    let refused = |model: &Path, server: &str, message: &str| {
        check_refused(
            &["arch", "prove", text(model), "--llama", server],
            1,
            &[message],
        );
    };
    refused(&model, "absent-llama-server", "`absent-llama-server`: ");
    refused(
        &model,
        "http://127.0.0.1:1",
        "llama-server at 127.0.0.1:1: ",
    );
    let encoder = made_up(folder.path(), "bert", &[]);
    refused(&encoder, "absent-llama-server", "next-token probabilities");
    if cfg!(unix) {
        refused(&model, "true", "llama-server ended with");
    }
}

/// Keys of a file that nothing reads, that are read without effect, and that the definition ignores.
#[test]
fn a_proof_names_the_keys_on_which_nothing_depends() {
    let folder = scratch();
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/archs/qwen3.arch.toml");
    let own = std::fs::read_to_string(own).expect("readable");
    let lines =
        "[params]\nn_a = { key = \"a\", default = 0 }\nn_b = { key = \"b\", default = 0 }\n";
    let scale = "qk_norm = \"head\", scale = \"0.25 + if(n_a > 99, 0, 0 * n_b)\"";
    let ignored = "[ignore.keys]\nc = \"it is the same in all files\"\n\n[[stack]]";
    let text_of = own
        .replacen("[params]\n", lines, 1)
        .replacen("qk_norm = \"head\"", scale, 1)
        .replacen("[[stack]]", ignored, 1);
    std::fs::write(folder.path().join("qwen3.arch.toml"), text_of).expect("written");
    let archs = ["--archs", text(folder.path())];
    let more = [
        "--meta",
        "qwen3.a=1",
        "--meta",
        "qwen3.b=[1, 2]",
        "--meta",
        "qwen3.c=2",
        "--meta",
        "qwen3.d=0.5",
    ];
    let model = made_up(folder.path(), "qwen3", &[&archs[..], &more].concat());
    let array = folder.path().join("logits.npy");
    let ids = ["--tokens", "1,2,3"];
    let run = ["logits", "-m", text(&model), "-o", text(&array)];
    printed(&[&run[..], &ids, &archs].concat());
    let prove = [
        "arch",
        "prove",
        text(&model),
        "--ref",
        text(&array),
        "--json",
    ];
    let report: Value =
        serde_json::from_str(&printed(&[&prove[..], &ids, &archs].concat())).expect("JSON");
    let unread = &report["unread"];
    assert_eq!(unread["keys"], json!(["qwen3.d"]), "{unread}");
    assert_eq!(unread["idle"], json!(["qwen3.a", "qwen3.b"]), "{unread}");
    assert_eq!(
        unread["ignored"],
        json!([["qwen3.c", "it is the same in all files"]]),
        "{unread}"
    );
}

/// A model that reads a source, against the stored logits of llama.cpp.
#[test]
fn a_source_is_part_of_a_proof() {
    let folder = scratch();
    let golden = golden("t5");
    let model = golden.write(folder.path());
    assert!(!golden.source.is_empty());
    let expected: Vec<f32> = golden.expected.iter().map(|v| *v as f32).collect();
    let n = golden.tokens.len();
    let logits = npy::bytes_of(&expected, &[n, expected.len() / n]);
    let ids = |ids: &[u32]| integers(&ids.iter().map(|id| i64::from(*id)).collect::<Vec<_>>());
    let archive = folder.path().join("t5.npz");
    let arrays = [
        ("logits", logits),
        ("tokens", ids(&golden.tokens)),
        ("source", ids(&golden.source)),
    ];
    write_npz(&archive, &arrays);
    let arguments = ["arch", "prove", text(&model), "--ref", text(&archive)];
    let found = printed(&arguments);
    let n_equal = found.lines().filter(|line| line.starts_with("= ")).count();
    assert_eq!(n_equal, 8, "{found}");
    // Another source gives other logits.
    let other = [&arguments[..], &["--source", "5,6,7"]].concat();
    check_refused(&other, 1, &["8 of 8 paths differ"]);
    check_refused(
        &["arch", "prove", text(&model), "--llama"],
        1,
        &["without a source"],
    );
}

/// Two experts have nearly equal scores at one position, and an f16 cache turns the choice.
#[test]
fn a_choice_that_rounding_turns_is_named() {
    let folder = scratch();
    let golden = crate::support::hf::open("deepseek4-published");
    golden.write(folder.path());
    let array = folder.path().join("logits.npy");
    let expected: Vec<f32> = golden.expected.iter().map(|value| *value as f32).collect();
    std::fs::write(&array, npy::bytes_of(&expected, &golden.shape)).expect("written");
    let ids: Vec<String> = golden.tokens.iter().map(u32::to_string).collect();
    let ids = ids.join(",");
    let model = text(folder.path());
    let prove = [
        "arch",
        "prove",
        model,
        "--ref",
        text(&array),
        "--tokens",
        &ids,
    ];
    let ran = bench(&prove);
    assert_eq!(ran.code, 1, "{}", ran.err);
    for part in [
        "= f16 cache",
        "≠ flash attention, f16 cache",
        "right in one pass",
        "the first value that differs is `layers.2.ffn.moe_2.picked`, 0 and 1 at [2, 8]. It is a choice",
    ] {
        assert!(ran.out.contains(part), "`{part}` is not in: {}", ran.out);
    }
}
