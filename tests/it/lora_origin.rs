//! Which map a PEFT folder is applied by where the model is a file, and adapters of models that see.

use std::path::{Path, PathBuf};

use lab_base::util::atomic_file::OutputPath;
use lab_base::weights;
use lab_base::weights::gguf;
use lab_base::weights::gguf::NewTensor;
use lab_base::weights::{Metadata, Value};
use lab_core::models::convert::to_gguf;
use serde_json::{Value as Json, json};

use crate::goldens::EXACT;
use crate::lora::{
    Modules, Stored, adapted, logits_of, opened, read_tensors, write_folders, write_tensors,
};
use crate::support::command::{bench, definitions, scratch, text};
use crate::support::hf;
use crate::support::nmse;

/// A model as a folder and as a file, an adapter for it, and what it computes with the adapter.
struct Case {
    base: PathBuf,
    file: PathBuf,
    adapter: PathBuf,
    tokens: Vec<u32>,
    expected: Vec<f64>,
}

impl Case {
    fn new(name: &str, scratch: &Path, which: Modules) -> Self {
        let with = definitions();
        let [base, merged, adapter] = write_folders(name, scratch, which);
        let tokens = hf::open(name).tokens;
        let expected = logits_of(opened(&merged, &with).expect("it opens"), &tokens);
        let plain = opened(&base, &with).expect("it opens");
        let file = scratch.join(format!("{name}.gguf"));
        to_gguf(&plain, None, &file, false, &mut |_, _| {}).expect("it converts");
        let expected: Vec<f64> = expected.iter().map(|v| f64::from(*v)).collect();
        let without = logits_of(plain, &tokens);
        assert!(nmse(&without, &expected) > 1e-3, "{name}: no effect");
        Self {
            base,
            file,
            adapter,
            tokens,
            expected,
        }
    }

    /// The file without the map that it was made with, as another program would have written it, and
    /// with a name.
    fn foreign(&self, name: &str) -> PathBuf {
        let path = self.file.with_extension("foreign.gguf");
        let weights = weights::open(&self.file).expect("it opens");
        let keys = weights.metadata().iter();
        let keys = keys.filter(|(key, _)| *key != "bench.map");
        let mut metadata: Metadata = keys.map(|(k, v)| (k, v.clone())).collect();
        metadata.insert("general.name", Value::Str(name.to_owned()));
        let tensors: Vec<NewTensor> = weights
            .tensors()
            .iter()
            .map(|tensor| NewTensor {
                name: tensor.name.clone(),
                ty: tensor.ty,
                shape: tensor.shape.clone(),
            })
            .collect();
        gguf::write(OutputPath::replacing(&path), &metadata, &tensors, |i| {
            Ok(weights.data(&weights.tensors()[i]).expect("it is stored"))
        })
        .expect("it can be written");
        path
    }

    /// The NMSE of a model with the adapter to the merged weights.
    fn error(&self, path: &Path) -> Result<f64, String> {
        let found = logits_of(adapted(path, &self.adapter, &definitions())?, &self.tokens);
        Ok(nmse(&found, &self.expected))
    }

    #[track_caller]
    fn check(&self, path: &Path) {
        let error = self.error(path);
        println!("{}: {error:?}", path.display());
        assert!(matches!(error, Ok(error) if error <= EXACT), "{error:?}");
    }

    #[track_caller]
    fn refused(&self, path: &Path, parts: &[&str]) {
        let error = self.error(path).expect_err("it is refused");
        let has_all = parts.iter().all(|part| error.contains(part));
        assert!(has_all, "{error}\n expected {parts:?}");
    }

    /// Changes the configuration of the adapter.
    fn say(&self, key: &str, value: Json) {
        let path = self.adapter.join("adapter_config.json");
        let mut config: Json = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        config[key] = value;
        std::fs::write(path, config.to_string()).expect("writable");
    }

    /// Puts a configuration into the folder of the adapter, with changes.
    fn put_config(&self, change: impl FnOnce(&mut Json)) {
        let path = self.base.join("config.json");
        let mut config: Json = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        change(&mut config);
        std::fs::write(self.adapter.join("config.json"), config.to_string()).expect("writable");
    }

    /// Names the adapter's tensors anew.
    fn rename(&self, name_of: impl Fn(&str) -> String) {
        let path = self.adapter.join("adapter_model.safetensors");
        let tensors = read_tensors(&std::fs::read(&path).unwrap());
        let renamed = tensors.into_iter().map(|(name, t)| (name_of(&name), t));
        write_tensors(&path, &renamed.collect::<Stored>());
    }

    /// The lines of the program about the adapter.
    fn lines(&self, path: &Path) -> Vec<String> {
        let arguments = ["inspect", text(path), "--lora", text(&self.adapter)];
        let ran = bench(&arguments);
        assert!(ran.is_fine(), "{}", ran.err);
        let lines = ran.err.lines().filter(|l| l.contains(text(&self.adapter)));
        lines.map(str::to_owned).collect()
    }
}

#[test]
fn a_file_records_its_map() {
    let scratch = scratch();
    for (name, map) in [("helium", "llama-helium"), ("llama", "llama")] {
        let case = Case::new(name, scratch.path(), Modules::All);
        let weights = weights::open(&case.file).expect("it opens");
        assert_eq!(weights.metadata().str("bench.map"), Some(map));
        case.check(&case.file);
    }
}

#[test]
fn a_map_that_is_not_known_is_assumed_with_a_warning_or_refused() {
    let scratch = scratch();
    let llama = Case::new("llama", scratch.path(), Modules::All);
    let foreign = llama.foreign("Some 7B");
    llama.check(&foreign);
    let lines = llama.lines(&foreign);
    let [line] = lines.as_slice() else {
        panic!("one line expected: {lines:?}");
    };
    let said = "the map `llama` fits the adapter, and the map `llama-helium` gives another update of `blk.0.attn_";
    assert!(
        line.contains(said) && line.contains("config.json"),
        "{line}"
    );
    // A name of the model settles it.
    let named = llama.foreign("Meta Llama 3 8B");
    assert_eq!(llama.lines(&named), Vec::<String>::new());
    llama.say(
        "base_model_name_or_path",
        json!("/home/helium/mistralai/Mistral-7B-v0.1"),
    );
    assert_eq!(llama.lines(&llama.foreign("Some 7B")), Vec::<String>::new());
    llama.check(&foreign);

    let helium = Case::new("helium", scratch.path(), Modules::All);
    let wrong = helium.error(&helium.foreign("x")).expect("it is assumed");
    assert!(wrong > 1e-2, "the maps differ: {wrong:.1e}");
    assert_eq!(helium.lines(&helium.foreign("x")).len(), 1);
    let advice = "put the config.json of the base model into the adapter's folder";
    let parts = ["the name `Helium 1 2b` suggests `llama-helium`", advice];
    helium.refused(&helium.foreign("Helium 1 2b"), &parts);
    let foreign = helium.foreign("x");
    helium.say("base_model_name_or_path", json!("kyutai/helium-1-2b"));
    helium.refused(
        &foreign,
        &["`kyutai/helium-1-2b` suggests `llama-helium`", advice],
    );
    // Where the maps agree there is nothing to know.
    let file = helium.adapter.join("adapter_model.safetensors");
    let mut tensors = read_tensors(&std::fs::read(&file).unwrap());
    tensors.retain(|name, _| name.contains("o_proj") || name.contains("down_proj"));
    write_tensors(&file, &tensors);
    adapted(&foreign, &helium.adapter, &definitions()).expect("all maps agree");
    assert_eq!(helium.lines(&foreign), Vec::<String>::new());
}

#[test]
fn the_class_of_an_adapter_chooses_the_map() {
    let scratch = scratch();
    let case = Case::new("helium", scratch.path(), Modules::All);
    let foreign = case.foreign("x");
    let class =
        |class: &str| json!({ "base_model_class": class, "parent_library": "transformers" });
    case.say("auto_mapping", class("HeliumForCausalLM"));
    case.check(&foreign);
    case.say("auto_mapping", class("LlamaForCausalLM"));
    assert!(case.error(&foreign).expect("it is of that class") > 1e-2);
    // What the file records is not overruled.
    case.check(&case.file);
    case.say("auto_mapping", class("Qwen2ForCausalLM"));
    let parts = ["is of the architecture `qwen2` (map `qwen2`), the model is of `llama`"];
    case.refused(&foreign, &parts);
}

#[test]
fn a_configuration_in_the_folder_of_the_adapter_chooses_the_map() {
    let scratch = scratch();
    // Of the last two a file does not say enough.
    for name in ["helium", "llama-yarn", "bamba", "deepseek-v3-yarn"] {
        let case = Case::new(name, scratch.path(), Modules::All);
        let foreign = case.foreign("x");
        case.put_config(|_| {});
        case.check(&foreign);
        case.check(&case.file);
        assert_eq!(case.lines(&foreign), Vec::<String>::new(), "{name}");
    }
    let scratch = crate::support::command::scratch();
    let case = Case::new("helium", scratch.path(), Modules::All);
    let foreign = case.foreign("x");
    case.put_config(|config| config["architectures"] = json!(["LlamaForCausalLM"]));
    let parts = ["config.json leads to the map `llama`, the model was made with `llama-helium`"];
    case.refused(&case.file, &parts);
    case.put_config(|config| config["architectures"] = json!(["Qwen2ForCausalLM"]));
    case.refused(&foreign, &["config.json is of the architecture `qwen2`"]);
    let llama = Case::new("llama", scratch.path(), Modules::All);
    llama.put_config(|config| config["num_attention_heads"] = json!(2));
    llama.refused(
        &llama.file,
        &["`num_attention_heads` of the config.json", "is not 4"],
    );
    llama.put_config(|config| config["architectures"] = json!(["NoSuchForCausalLM"]));
    llama.refused(&llama.file, &["no map is for `NoSuchForCausalLM`"]);
}

/// What stands before the names of a text model's layers, and of its head, in transformers before and
/// since version 4.52.
const PLACES: [[&str; 2]; 2] = [
    ["language_model.model.", "language_model.lm_head"],
    ["model.language_model.", "lm_head"],
];

#[test]
fn adapters_of_models_that_see_update_their_text_models() {
    let scratch = scratch();
    for name in ["llava", "gemma3-vision", "qwen3vl", "internvl-chat"] {
        let case = Case::new(name, scratch.path(), Modules::All);
        for path in [&case.base, &case.file] {
            case.check(path);
        }
        for [layers, head] in PLACES {
            case.rename(|name| {
                let prefix = "base_model.model.";
                let module = name.strip_prefix(prefix).expect("PEFT's prefix");
                let stored = PLACES.iter().find_map(|[layers, head]| {
                    let rest = module.strip_prefix(layers).map(|rest| (true, rest));
                    rest.or_else(|| module.strip_prefix(head).map(|rest| (false, rest)))
                });
                match stored {
                    Some((true, rest)) => format!("{prefix}{layers}{rest}"),
                    Some((false, rest)) => format!("{prefix}{head}{rest}"),
                    None => name.to_owned(),
                }
            });
            for path in [&case.base, &case.file] {
                case.check(path);
            }
        }
    }
}

#[test]
fn updates_of_a_vision_tower_are_left_out_with_one_line() {
    let scratch = scratch();
    let case = Case::new("llava", scratch.path(), Modules::Attention);
    let file = case.adapter.join("adapter_model.safetensors");
    let sound = read_tensors(&std::fs::read(&file).unwrap());
    let mut more = sound.clone();
    let mut only = Stored::new();
    for (i, module) in [
        "vision_tower.vision_model.encoder.layers.0.self_attn.k_proj",
        "vision_tower.vision_model.encoder.layers.0.mlp.fc1",
        "multi_modal_projector.linear_1",
    ]
    .iter()
    .enumerate()
    {
        for half in ["lora_A", "lora_B"] {
            let prefix = ["base_model.model.", "base_model.model.model."][i % 2];
            let tensor = ("F32".to_owned(), vec![3, 3], vec![0; 36]);
            let name = format!("{prefix}{module}.{half}.weight");
            more.insert(name.clone(), tensor.clone());
            only.insert(name, tensor);
        }
    }
    write_tensors(&file, &more);
    for path in [&case.base, &case.file] {
        case.check(path);
        let lines = case.lines(path);
        let [line] = lines.as_slice() else {
            panic!("one line expected: {lines:?}");
        };
        let said = "without its updates of the projector, vision tower (5 modules)";
        assert!(line.contains(said), "{line}");
    }
    write_tensors(&file, &only);
    let parts = ["nothing but the projector, vision tower"];
    case.refused(&case.base, &parts);
    case.refused(&case.file, &parts);
    // What no part of the model is stays unknown.
    let mut other = sound;
    for half in ["lora_A", "lora_B"] {
        let name = format!("base_model.model.model.tower.q_proj.{half}.weight");
        other.insert(name, ("F32".to_owned(), vec![3, 3], vec![0; 36]));
    }
    write_tensors(&file, &other);
    case.refused(&case.base, &["made of its module `model.tower.q_proj`"]);
}
