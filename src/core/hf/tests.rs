//! Maps of these tests applied to small folders: what becomes of stored tensors and keys.

use std::path::Path;

use serde_json::{Value as Json, json};

use super::apply::{MapResult, apply};
use super::config::Config;
use super::definition::Map;
use super::packed::PackedMatrices;
use super::{ENDING, Maps, read};
use crate::arch::{ArchDef, Library};
use crate::blocks::REGISTRY;
use lab_base::weights::safetensors::Checkpoint;
use lab_base::weights::{Array, TensorData, Value as Meta};

/// A stored tensor: its name, element type, shape, and bytes.
type Stored = (&'static str, &'static str, Vec<usize>, Vec<u8>);

fn floats(name: &'static str, shape: &[usize], values: &[f32]) -> Stored {
    let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    (name, "F32", shape.to_vec(), bytes)
}

fn integers(name: &'static str, values: &[i64]) -> Stored {
    let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    (name, "I64", vec![values.len()], bytes)
}

fn checkpoint(folder: &Path, tensors: &[Stored]) -> Checkpoint {
    let mut header = serde_json::Map::new();
    let mut data: Vec<u8> = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let begin = data.len();
        data.extend(bytes);
        let place = json!({ "dtype": dtype, "shape": shape, "data_offsets": [begin, data.len()] });
        header.insert((*name).to_owned(), place);
    }
    let header = Json::Object(header).to_string();
    let length = (header.len() as u64).to_le_bytes();
    let file = [&length[..], header.as_bytes(), &data].concat();
    std::fs::write(folder.join("model.safetensors"), file).expect("a writable folder");
    Checkpoint::open(folder).expect("a sound file")
}

fn definition() -> ArchDef {
    const TEXT: &str = "name = \"test\"\n[params]\nlist = { key = \"list\" }\nfactor = { key = \"factor\", default = 1.0 }\n\
        other = { key = \"other\", default = \"factor\" }\n\
        [[stack]]\n[[stack.slot]]\nname = \"attn\"\npre = \"attn_norm\"\nwhen = \"sum(list) > 0 and other > 0\"\nbranch = [{ block = \"attention\", rope = \"neox\", cache = \"full\" }]\n\
        [head]\nnorm = \"output_norm\"\n";
    let library = Library::open(&REGISTRY, &[]).expect("the built-in definitions are readable");
    match library.check("test.arch.toml", TEXT) {
        Ok(def) => def,
        Err(problems) => panic!("{problems}"),
    }
}

fn parse(map: &str) -> Result<Map, String> {
    let map = format!("arch = \"test\"\nclasses = [\"Test\"]\n{map}");
    let map = read::parse("test.arch.stmap.toml", &map).map_err(|error| error.to_string())?;
    Ok(map.completed(None, &Map::default()))
}

/// The result of a map, or the messages of its problems.
fn applied(map: &str, json: Json, tensors: &[Stored]) -> Result<MapResult, String> {
    applied_with(map, "", json, tensors)
}

/// The same with a map of what all maps share.
fn applied_with(
    map: &str,
    common: &str,
    json: Json,
    tensors: &[Stored],
) -> Result<MapResult, String> {
    let (map, common) = (parse(map)?, parse(common)?);
    let folder = tempfile::tempdir().expect("a folder");
    let mut json = json;
    let mut checkpoint = checkpoint(folder.path(), tensors);
    let packed =
        PackedMatrices::take(&mut json, folder.path(), &mut checkpoint).expect("nothing is packed");
    let config = Config::new(&map, &json, &checkpoint);
    apply(&map, &common, &definition(), &config, &packed).map_err(|problems| {
        let messages = problems
            .into_iter()
            .flatten()
            .map(|problem| problem.message);
        messages.collect::<Vec<_>>().join("\n")
    })
}

fn refused(map: &str, json: Json, tensors: &[Stored]) -> String {
    match applied(map, json, tensors) {
        Ok(_) => panic!("{map} is accepted"),
        Err(message) => message,
    }
}

/// The shape in ggml order and the elements of a tensor in f32.
fn tensor(applied: &MapResult, name: &str) -> (Vec<u64>, Vec<f32>) {
    let entry = applied.entries.iter().find(|entry| entry.name == name);
    let entry = entry.unwrap_or_else(|| panic!("there is no {name}"));
    let mut bytes = vec![0; 4 * entry.shape.iter().product::<u64>() as usize];
    match &entry.data {
        TensorData::Lazy(lazy) => lazy.rows(0, &mut bytes).expect("rows"),
        TensorData::Mapped(file, offset) => {
            let end = offset + bytes.len();
            bytes.copy_from_slice(&file[*offset..end]);
        }
    }
    let values = bytes
        .chunks(4)
        .map(|b| f32::from_le_bytes(b.try_into().expect("four")));
    (entry.shape.clone(), values.collect())
}

#[test]
fn elements_are_multiplied_by_those_of_another_tensor() {
    let stored = [
        floats("score", &[1, 3], &[1.0, 2.0, 3.0]),
        floats("norm", &[3], &[5.0, 7.0, 11.0]),
        floats("wide", &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        floats("factors", &[3, 2], &[1.0, 10.0, 100.0, 1000.0, 1.0, 2.0]),
    ];
    let map = "[tensors]\n\
        \"a.weight\" = { from = \"score\", at = 0, times = \"norm\" }\n\
        \"b.weight\" = { from = \"wide\", times = \"factors\", each = \"x + i\" }\n\
        \"c.weight\" = { from = [\"norm\", \"norm\"], times = \"wide\", each = \"x + 100 * i\" }\n\
        \"d.weight\" = { from = \"wide\", rearrange = \"a b -> b a\", times = \"factors\" }\n";
    let found = applied(map, json!({}), &stored).expect("a sound map");
    assert_eq!(tensor(&found, "a.weight"), (vec![3], vec![5.0, 14.0, 33.0]));
    let b = vec![1.0, 20.0, 300.0, 4001.0, 6.0, 13.0];
    assert_eq!(tensor(&found, "b.weight"), (vec![3, 2], b));
    let c = vec![5.0, 114.0, 233.0, 320.0, 435.0, 566.0];
    assert_eq!(tensor(&found, "c.weight"), (vec![6], c));
    let d = vec![1.0, 40.0, 200.0, 5000.0, 3.0, 12.0];
    assert_eq!(tensor(&found, "d.weight"), (vec![2, 3], d));
    assert!(found.unmapped.tensors.is_empty());

    let map = "[tensors]\n\"a.weight\" = { from = \"wide\", times = \"norm\" }\n";
    assert_eq!(
        refused(map, json!({}), &stored),
        "`a.weight`: `times`: `norm` in model.safetensors has the shape [3], expected as many elements as [2, 3] has"
    );
    let map = "[tensors]\na = { from = \"wide\", times = \"nothing\" }\n";
    let wide = [floats("wide.weight", &[1], &[1.0])];
    assert_eq!(
        refused(map, json!({}), &wide),
        "`a.weight`: `times`: there is no tensor `nothing.weight`"
    );
}

#[test]
fn parts_make_a_new_axis_or_follow_one_another() {
    let stored = [
        floats("part_0", &[1, 2], &[1.0, 2.0]),
        floats("part_1", &[2, 2], &[3.0, 4.0, 5.0, 6.0]),
        floats("same_0", &[1, 2], &[1.0, 2.0]),
        floats("same_1", &[1, 2], &[3.0, 4.0]),
    ];
    let map = "[tensors]\n\
        \"joined.weight\" = { from = \"part_{e}\", join = \"n_parts\" }\n\
        \"stacked.weight\" = { from = \"same_{e}\", stack = \"n_parts\" }\n";
    let found = applied(map, json!({ "n_parts": 2 }), &stored).expect("a sound map");
    let joined = vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    assert_eq!(tensor(&found, "joined.weight"), (vec![2, 3], joined));
    let stacked = vec![1.0, 2.0, 3.0, 4.0];
    assert_eq!(tensor(&found, "stacked.weight"), (vec![2, 1, 2], stacked));

    let map = "[tensors]\n\"a.weight\" = { from = \"part_{e}\", join = \"3\" }\n";
    assert_eq!(
        refused(map, json!({}), &stored),
        "`a.weight`: `part_0` in model.safetensors is stored, but `part_2` is not"
    );
    let both = parse("[tensors]\na = { from = \"part_{e}\", join = 2, stack = 2 }\n");
    let message = both.expect_err("both");
    assert!(
        message.contains("a tensor has either `stack` or `join`"),
        "{message}"
    );
}

#[test]
fn a_stored_tensor_is_a_list_of_exact_numbers() {
    let large = [20_111_000_000_001, -3, 0];
    let stored = [
        integers("layers.1.large", &large),
        integers("layers.1.one", &[7]),
        integers("layers.1.small", &[2, 3]),
        floats("layers.1.x", &[2], &[0.5, 2.0]),
        floats("layers.1.bad", &[2], &[0.5, f32::NAN]),
    ];
    let list = |name: &str| {
        let map = format!(
            "[values]\nlayer = \"layer_ids[0] - 1\"\n[params]\nlist = {{ stored = \"layers.{{layer}}.{name}\" }}\n"
        );
        let found = applied(&map, json!({ "layer_ids": [2] }), &stored)?;
        Ok::<_, String>(found.metadata.get("test.list").cloned())
    };
    let array = |array| Ok(Some(Meta::Array(array)));
    assert_eq!(list("large"), array(Array::I64(large.to_vec())));
    assert_eq!(list("small"), array(Array::U64(vec![2, 3])));
    assert_eq!(list("x"), array(Array::F32(vec![0.5, 2.0])));
    assert_eq!(list("one"), Ok(Some(Meta::U32(7))));
    let message = "layers.1.bad (F32) is not of numbers".to_owned();
    assert_eq!(list("bad"), Err(message));
    let message = "there is no tensor `layers.1.none`".to_owned();
    assert_eq!(list("none"), Err(message));
}

#[test]
fn a_number_has_a_fraction_where_its_default_has_one() {
    let map = "[params]\nlist = \"2\"\nfactor = \"n\"\nother = \"n\"\n";
    let found = applied(map, json!({ "n": 10_000 }), &[]).expect("a sound map");
    let value = |key| found.metadata.get(key).cloned();
    assert_eq!(value("test.list"), Some(Meta::U32(2)));
    assert_eq!(value("test.factor"), Some(Meta::F32(1e4)));
    assert_eq!(value("test.other"), Some(Meta::F32(1e4)));
}

#[test]
fn a_map_takes_precedence_over_what_all_maps_share() {
    let map = "[params]\nlist = \"2\"\n[metadata]\n\"{arch}.factor\" = 0\n";
    let common = "[params]\nlist = \"3\"\nfactor = \"3\"\n[metadata]\n\"{arch}.list\" = 4\n";
    let found = applied_with(map, common, json!({}), &[]).expect("sound maps");
    let value = |key| found.metadata.get(key).cloned();
    assert_eq!(value("test.list"), Some(Meta::U32(2)));
    assert_eq!(value("test.factor"), Some(Meta::U32(0)));
}

#[test]
fn a_path_through_an_array_of_objects_is_the_array_of_their_values() {
    let stored = [floats("a", &[1], &[1.0]), floats("b", &[1], &[1.0])];
    let json = json!({ "blocks": [{ "kind": "x", "width": 3 }, { "kind": "y", "idle": false }] });
    let found = |param: &str| {
        let map = format!(
            "[params]\nlist = {param}\n[[layers]]\ncount = 2\n[layers.tensors]\n[ignore]\ntensors = [\"*\"]\n"
        );
        applied(&map, json.clone(), &stored)
    };
    let list = |param: &str| Ok::<_, String>(found(param)?.metadata.get("test.list").cloned());
    let widths = "{ value = \"if(blocks.kind == 'x', blocks.width, 0)\", per_layer = true }";
    let array = Ok(Some(Meta::Array(Array::U32(vec![3, 0]))));
    assert_eq!(list(widths), array);
    let kinds =
        "\"count('blocks.kind') + int(contains(blocks.kind, 'y')) + int(has('blocks.none'))\"";
    assert_eq!(list(kinds), Ok(Some(Meta::U32(3))));
    // What nothing reads is reported by its path, unless it says that something is off.
    let unread = |param| found(param).map(|found| found.unmapped.keys);
    assert_eq!(unread(widths), Ok(vec!["blocks.idle".to_owned()]));
    assert_eq!(
        list("{ value = \"blocks.width\", per_layer = true }"),
        Err("`blocks.width` has no value for layer 1".into())
    );
    assert_eq!(
        list("\"blocks.width[0]\""),
        Err("`blocks.width` has elements without a value".into())
    );
}

#[test]
fn a_rule_with_else_does_not_ask_for_what_an_earlier_rule_gave() {
    let map = "[tensors]\nembd = \"embd\"\n\"output.weight\" = [\n\
        { from = \"head\" },\n\
        { from = \"head.weight\", when = \"not tied\", else = \"embd\" },\n]\n";
    let embd = || floats("embd.weight", &[2], &[1.0, 2.0]);
    let config = || json!({ "tied": false });
    let given = [embd(), floats("head", &[2], &[3.0, 4.0])];
    let found = applied(map, config(), &given).expect("a sound map");
    assert_eq!(tensor(&found, "output.weight").1, [3.0, 4.0]);
    let message = refused(map, config(), &[embd()]);
    assert!(
        message.contains("the folder has no `head.weight`"),
        "{message}"
    );
}

#[test]
fn the_architecture_may_follow_from_the_configuration() {
    let text = "arch = \"if(wide, 'test-wide', 'test')\"\nclasses = [\"Test\"]\n";
    let map = read::parse("test.arch.stmap.toml", text).expect("a sound map");
    let map = map.completed(None, &Map::default());
    assert_eq!(map.archs(), ["test-wide", "test"]);
    let checkpoint = Checkpoint::default();
    let arch = |json: Json| Config::new(&map, &json, &checkpoint).arch();
    assert_eq!(arch(json!({ "wide": true })), Ok("test-wide".into()));
    assert_eq!(arch(json!({ "wide": false })), Ok("test".into()));
    assert_eq!(arch(json!({})), Err("config.json has no `wide`".into()));
    assert_eq!(parse("").expect("a sound map").archs(), ["test"]);
}

#[test]
fn a_matrix_is_computed_of_the_indices_of_its_elements() {
    let map = |shape: &str, each: &str| {
        format!("[tensors]\n\"t\" = {{ shape = {shape}, each = \"{each}\" }}\n")
    };
    let found = applied(&map("[2, 3]", "10 * i + j"), json!({}), &[]).expect("a sound map");
    let values = vec![0.0, 1.0, 2.0, 10.0, 11.0, 12.0];
    assert_eq!(tensor(&found, "t"), (vec![3, 2], values));
    let waves = map("[2, 2]", "if(j < 1, sin(i / n), cos(i / n))");
    let found = applied(&waves, json!({ "n": 4 }), &[]).expect("a sound map");
    let values = [0.0, 0.25].map(|x: f64| [x.sin() as f32, x.cos() as f32]);
    assert_eq!(tensor(&found, "t").1, values.concat());
    // A vector has one index.
    let found = applied(&map("[3]", "2 * i"), json!({}), &[]).expect("a sound map");
    assert_eq!(tensor(&found, "t").1, [0.0, 2.0, 4.0]);
    for (shape, each, expected) in [
        ("[2]", "j", "`j`"),
        ("[2, 2, 2]", "i", "a vector or a matrix"),
        ("[100000, 100000]", "i", "expected at most"),
        ("[2, 2]", "'a'", "expected a number"),
    ] {
        let message = refused(&map(shape, each), json!({}), &[]);
        assert!(message.contains(expected), "{message}");
    }
}

/// The maps of a folder with these texts.
fn maps(texts: &[(&str, &str)]) -> (tempfile::TempDir, Maps) {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in texts {
        let path = folder.path().join(format!("{name}{ENDING}"));
        std::fs::write(path, text).expect("a writable folder");
    }
    let maps = Maps::open(&[folder.path().to_owned()]).expect("maps");
    (folder, maps)
}

#[test]
fn a_map_extends_another() {
    let base = "arch = \"test\"\nclasses = [\"TestBase\"]\nroots = [\"r.\"]\n[defaults]\nn = 1\nm = 7\n[params]\nlist = \"n\"\nfactor = \"m\"\n\
        [tensors]\na = \"x\"\nb = \"y\"\n";
    let own = "extends = \"test-base\"\nclasses = [\"TestOwn\"]\n[defaults]\nn = 2\n[tensors]\na = \"z\"\n";
    let (_folder, maps) = maps(&[("test-base", base), ("test-own", own)]);
    let (_, _, map) = maps.sound(&["TestOwn"]).next().expect("a sound map");
    assert_eq!(map.archs(), ["test"]);
    let names = map.classes.iter().map(|class| class.value.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["TestOwn"]);
    let scratch = tempfile::tempdir().expect("a folder");
    let stored = [
        floats("r.x.weight", &[1], &[1.0]),
        floats("r.y.weight", &[1], &[2.0]),
        floats("r.z.weight", &[1], &[3.0]),
    ];
    let (json, checkpoint) = (json!({}), checkpoint(scratch.path(), &stored));
    let config = Config::new(&map, &json, &checkpoint);
    let found = apply(
        &map,
        maps.common(),
        &definition(),
        &config,
        &PackedMatrices::default(),
    );
    let found = found.unwrap_or_else(|problems| panic!("{problems:?}"));
    let value = |key| found.metadata.get(key).cloned();
    assert_eq!(value("test.list"), Some(Meta::U32(2)));
    assert_eq!(value("test.factor"), Some(Meta::F32(7.0)));
    assert_eq!(tensor(&found, "a.weight").1, [3.0]);
    assert_eq!(tensor(&found, "b.weight").1, [2.0]);
}

#[test]
fn a_map_extends_a_known_map_and_not_itself() {
    let text = |base: &str| format!("extends = \"{base}\"\nclasses = [\"TestOf{base}\"]\n");
    let (one, two, none) = (text("test-two"), text("test-one"), text("test-none"));
    let texts = [
        ("test-one", &*one),
        ("test-two", &*two),
        ("test-three", &*none),
    ];
    let (_folder, maps) = maps(&texts);
    let (_, broken) = maps.classes();
    let broken: Vec<String> = broken.iter().map(ToString::to_string).collect();
    let count = |text: &str| broken.iter().filter(|one| one.contains(text)).count();
    assert_eq!(count("would extend itself"), 2, "{broken:?}");
    assert_eq!(count("unknown map `test-none`"), 1, "{broken:?}");
}

#[test]
fn the_ending_of_a_class_is_a_name() {
    let text = "arch = \"if(class_ending == 'ForTokenClassification', 'a', 'b')\"\nclasses = [\"TestForCausalLM\"]\n";
    let (_folder, maps) = maps(&[("test-ending", text)]);
    let checkpoint = Checkpoint::default();
    for (class, expected) in [
        ("TestForTokenClassification", "a"),
        ("TestForSequenceClassification", "b"),
        ("TestForCausalLM", "b"),
    ] {
        let json = json!({ "architectures": [class] });
        let (_, map) = maps.of(Path::new("config.json"), &json).expect("a map");
        let arch = Config::new(&map, &json, &checkpoint).arch();
        assert_eq!(arch.as_deref(), Ok(expected), "{class}");
    }
}
