//! Prediction heads of Hugging Face folders: a folder drafts as the file with the same weights does.
//!
//! The folders are written here from the models of `tests/drafters/heads`, with the names and layouts of published
//! folders. `tests/it/heads.rs` compares the files with llama.cpp.

use std::path::{Path, PathBuf};

use lab_core::model::{Batch, DraftRequest, Model};
use lab_core::models::synth::synth;
use lab_core::models::{self, ModelSource};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use crate::folders::definitions;
use crate::goldens::{EXACT, request};
use crate::heads::plain;
use crate::support::command::scratch;
use crate::support::nmse;
use crate::support::published_heads::{NAMES, Plain, Published, Tensors, published};
use crate::support::unlike_heads;

const TOKENS: [u32; 12] = [0, 17, 63, 5, 88, 42, 42, 42, 9, 71, 30, 95];
const N_DRAFTED: usize = 4;

/// Arguments of `bench synth` for a model without a golden.
fn without_golden(arch: &str) -> Value {
    let set = [
        "vocab_size=96",
        "n_ctx_train=256",
        "n_nextn=1",
        "n_embd=64",
        "n_head=4",
        "n_head_kv=2",
        "n_ff=88",
        "rms_eps=0.001",
        "rope_base=10000.0",
        "block_count=3",
    ];
    let (more, with): (&[&str], &str) = match arch {
        "qwen2" => (&[], "attn_k.bias,attn_q.bias,attn_v.bias"),
        _ => (
            &[
                "d_head=16",
                "d_head_v=16",
                "n_rot=16",
                "n_lead=1",
                "n_expert=4",
                "n_expert_used=2",
                "n_ff_exp=32",
                "n_ff_shexp=32",
                "expert_gating=2",
                "expert_norm=true",
                "expert_scale=2.5",
                "n_swa=8",
                "swa_pattern=1,0,1",
            ],
            "exp_probs_b.bias",
        ),
    };
    let with = format!("{with},output,nextn.shared_head_norm");
    let mut synth = vec![arch, "--seed", "31", "--type", "f32"];
    synth.extend(set.iter().chain(more).flat_map(|pair| ["--set", *pair]));
    synth.extend(["--with", &with]);
    json!({ "synth": synth })
}

/// Makes the file of a model.
fn file_of(published: &Published, folder: &Path) -> PathBuf {
    let index = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/drafters/heads/goldens.json"
    );
    let index: Value =
        serde_json::from_str(&std::fs::read_to_string(index).expect("the index")).expect("JSON");
    let entries = index["goldens"].as_array().expect("a list");
    let entry = entries.iter().find(|of| of["name"] == published.golden);
    let (arch, mut request) = match entry {
        Some(entry) => request(published.golden, entry),
        None => request(published.golden, &without_golden(published.golden)),
    };
    let set = published.set.iter();
    request
        .set
        .extend(set.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    let with = definitions();
    let def = with.archs.get(&arch).expect("it is built in");
    let drafter = &def.drafter.as_ref().expect("it names a drafter").value;
    let drafter = with.drafters.of_target(drafter, &def);
    request.drafter = Some(drafter.expect("it is built in"));
    let path = folder.join(format!("{}.gguf", published.golden));
    synth(&def, &request, &path).expect("the model can be made");
    path
}

/// Writes the folder of a model whose file this is.
fn write_folder(published: &Published, file: &Path, into: &Path) {
    let mut tensors = Tensors::of(file);
    let mut stored: Vec<(String, Plain)> = Vec::new();
    let less_one = |name: &str, tensor: Plain| match published.less_one
        && name.contains("norm")
        && !name.contains("ssm_norm")
    {
        true => tensor.each(|x| x - 1.0),
        false => tensor,
    };
    let layers = tensors.0.keys().filter_map(|name| {
        let il = name.strip_prefix("blk.")?.split('.').next()?;
        il.parse::<usize>().ok()
    });
    let n = layers.max().expect("layers") + 1;
    let is_head = |il: &usize| {
        tensors
            .0
            .contains_key(&format!("blk.{il}.nextn.enorm.weight"))
    };
    let n_heads = (0..n).filter(is_head).count();
    assert!(n_heads > 0, "{}: no head", published.golden);
    for il in 0..n {
        let layer = format!("blk.{il}");
        let before = match (il + n_heads).checked_sub(n) {
            Some(k) => published
                .heads
                .replace("{k}", &k.to_string())
                .replace("{il}", &il.to_string()),
            None => format!("{}{il}", published.layers),
        };
        let others = (published.others)(&mut tensors, &layer);
        stored.extend(
            others
                .into_iter()
                .map(|(name, of)| (format!("{before}.{name}"), of)),
        );
        for (own, other) in published.names.iter().chain(NAMES) {
            let endings: &[&str] = if own.contains(".bias") {
                &[""]
            } else {
                &[".weight", ".bias"]
            };
            for ending in endings {
                let name = format!("{layer}.{own}{ending}");
                let Some(tensor) = tensors.take(&name) else {
                    continue;
                };
                let tensor = less_one(own, tensor);
                let full = match other.strip_prefix('/') {
                    Some(other) => format!("{other}{ending}"),
                    None => format!("{before}.{other}{ending}"),
                };
                stored.push((full, tensor));
            }
        }
    }
    let root = published.layers.strip_suffix("layers.").expect("a prefix");
    for (own, other) in [
        ("token_embd", format!("{root}embed_tokens")),
        ("output_norm", format!("{root}norm")),
        ("output", "lm_head".to_owned()),
    ] {
        let named = published.names.iter().find(|(name, _)| *name == own);
        let named = named.and_then(|(_, other)| other.strip_prefix('/'));
        let other = named.unwrap_or(&other);
        let tensor = tensors.take(&format!("{own}.weight")).expect("a tensor");
        stored.push((format!("{other}.weight"), less_one(own, tensor)));
    }
    let left: Vec<&String> = tensors.0.keys().collect();
    assert!(left.is_empty(), "{}: {left:?}", published.golden);
    let bytes: Vec<Vec<u8>> = stored
        .iter()
        .map(|(_, of)| of.data.iter().flat_map(|x| x.to_le_bytes()).collect())
        .collect();
    let views = stored.iter().zip(&bytes).map(|((name, of), bytes)| {
        let view = TensorView::new(Dtype::F32, of.shape.clone(), bytes);
        (name, view.expect("a tensor"))
    });
    let path = into.join("model.safetensors");
    safetensors::serialize_to_file(views, None, &path).expect("it is written");
    let config = serde_json::to_vec(&published.config).expect("JSON");
    std::fs::write(into.join("config.json"), config).expect("a writable folder");
}

/// The logits of the drafter in a model's own files: after each token but the first, then after each draft token but the last.
fn drafted(path: &Path) -> Result<Vec<f32>, String> {
    let with = definitions();
    let opened = models::open(&ModelSource::File(path.to_owned()), &with);
    let opened = opened.map_err(|error| error.to_string())?;
    let drafter = opened.drafter.ok_or("there is no drafter in it")?;
    let mut options = plain();
    options.for_drafter.clone_from(&drafter.plan.target);
    let model = Model::load(opened.plan, &opened.weights, options, &mut |_, _| {});
    let mut model = model.map_err(|error| error.to_string())?;
    model
        .load_drafter(drafter)
        .map_err(|error| error.to_string())?;
    let mut batch = Batch::default();
    for (at, token) in (0..).zip(TOKENS) {
        batch.push(token, 0, at, false);
    }
    model.forward(&batch).map_err(|error| error.to_string())?;
    let request = DraftRequest {
        sequence: 0,
        tokens: &TOKENS,
        most: N_DRAFTED,
    };
    let found = model.draft_logits(&request);
    Ok(found.map_err(|error| error.to_string())?.0)
}

#[test]
fn a_folder_drafts_as_the_file_with_the_same_weights() {
    let scratch = scratch();
    let mut wrong = Vec::new();
    let only = std::env::var("FOLDERS").unwrap_or_default();
    for published in published().into_iter().chain(unlike_heads::published()) {
        if !published.golden.starts_with(&only) {
            continue;
        }
        let class = published.class;
        let folder = scratch.path().join(class);
        std::fs::create_dir(&folder).expect("a folder");
        let file = file_of(&published, scratch.path());
        write_folder(&published, &file, &folder);
        let expected: Vec<f64> = drafted(&file)
            .unwrap_or_else(|error| panic!("{class}, file: {error}"))
            .into_iter()
            .map(f64::from)
            .collect();
        match drafted(&folder) {
            Ok(found) if found.len() != expected.len() => {
                wrong.push(format!("{class}: {} values", found.len()));
            }
            Ok(found) => {
                let error = nmse(&found, &expected);
                println!("{class}: NMSE {error:.1e}");
                if error.is_nan() || error > EXACT {
                    wrong.push(format!("{class}: NMSE {error:.1e}"));
                }
            }
            Err(error) => wrong.push(format!("{class}: {error}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
