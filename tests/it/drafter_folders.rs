//! Drafters in Hugging Face folders: those of published layouts compute what their formulas say.
//!
//! The folders are written here from the models of `tests/drafters`, with the names, layouts and keys of published folders.

use std::path::{Path, PathBuf};

use lab_base::weights;
use lab_core::model::Options;
use lab_core::models::synth::{SynthRequest, synth};
use lab_core::models::{self, Definitions, ModelSource};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use crate::drafters::{FormulaGolden, draft, exact, load_with, named, read, with_tokens};
use crate::goldens::EXACT;
use crate::support::command::{definitions, scratch};
use crate::support::nmse;
use crate::support::published_heads::NAMES;

/// The tensors of a folder: name, type, shape and data.
type Stored = Vec<(String, Dtype, Vec<usize>, Vec<u8>)>;

const EMBEDDING: (&str, &str) = ("token_embd", "embed_tokens");
const HEAD: &[(&str, &str)] = &[
    ("fc", "fc"),
    ("enc.output_norm", "input_norm"),
    EMBEDDING,
    ("output_norm", "norm"),
    ("output", "lm_head"),
    ("blk.0.attn_norm", "midlayer.input_layernorm"),
    ("blk.0.attn_norm_2", "midlayer.hidden_norm"),
    ("blk.0.attn_q", "midlayer.self_attn.q_proj"),
    ("blk.0.attn_k", "midlayer.self_attn.k_proj"),
    ("blk.0.attn_v", "midlayer.self_attn.v_proj"),
    ("blk.0.attn_output", "midlayer.self_attn.o_proj"),
    ("blk.0.ffn_norm", "midlayer.post_attention_layernorm"),
    ("blk.0.ffn_gate", "midlayer.mlp.gate_proj"),
    ("blk.0.ffn_up", "midlayer.mlp.up_proj"),
    ("blk.0.ffn_down", "midlayer.mlp.down_proj"),
];
const BLOCKS: &[(&str, &str)] = &[
    ("fc", "fc"),
    EMBEDDING,
    ("enc.output_norm", "hidden_norm"),
    ("output_norm", "norm"),
    ("output", "lm_head"),
];

/// The tensors of a file by the names of a folder. All of the file have one.
fn stored(file: &Path, names: &[(String, String)]) -> Stored {
    let weights = weights::open(file).expect("it is readable");
    let all = weights.tensors().iter().map(|tensor| {
        let mut bytes = vec![0; tensor.shape.iter().product::<u64>() as usize * 4];
        weights.rows(tensor, 0, &mut bytes).expect("its rows");
        let shape = tensor.shape.iter().rev().map(|n| *n as usize).collect();
        let own = tensor.name.strip_suffix(".weight").expect("a weight");
        let other = names.iter().find(|(name, _)| name == own);
        let other = other.unwrap_or_else(|| panic!("no name for {own}"));
        (format!("{}.weight", other.1), Dtype::F32, shape, bytes)
    });
    all.collect()
}

/// Writes a folder with these keys besides the sizes of the models here.
fn write(tensors: &Stored, keys: &Value, folder: PathBuf) -> PathBuf {
    std::fs::create_dir(&folder).expect("a writable folder");
    let views = tensors.iter().map(|(name, ty, shape, bytes)| {
        let view = TensorView::new(*ty, shape.clone(), bytes).expect("a tensor");
        (name.clone(), view)
    });
    let path = folder.join("model.safetensors");
    safetensors::serialize_to_file(views, None, &path).expect("it is written");
    let mut config = json!({
        "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "vocab_size": 128, "max_position_embeddings": 256,
    });
    let all = config.as_object_mut().expect("an object");
    all.extend(keys.as_object().expect("an object").clone());
    std::fs::write(folder.join("config.json"), config.to_string()).expect("a writable folder");
    folder
}

/// Picks rows of a tensor.
fn pick(tensor: &mut (String, Dtype, Vec<usize>, Vec<u8>), order: &[usize]) {
    let (_, _, shape, bytes) = tensor;
    let row = bytes.len() / shape[0];
    let rows = order.iter().map(|at| &bytes[at * row..(at + 1) * row]);
    *bytes = rows.collect::<Vec<_>>().concat();
    shape[0] = order.len();
}

/// The folder of a head of EAGLE-3 with logits of these tokens.
fn folder_of_head(file: &Path, tokens: &[u32], keys: &Value, folder: PathBuf) -> PathBuf {
    let names: Vec<_> = HEAD
        .iter()
        .map(|(a, b)| ((*a).into(), (*b).into()))
        .collect();
    let mut all = stored(file, &names);
    // The folder rotates halves of a head, the file neighbours.
    let halves = |n_heads: usize| -> Vec<usize> {
        let of_head = |h: usize| (0..16).map(move |i| h * 16 + i % 8 * 2 + i / 8);
        (0..n_heads).flat_map(of_head).collect()
    };
    for tensor in &mut all {
        match tensor.0.as_str() {
            "lm_head.weight" => pick(
                tensor,
                &tokens.iter().map(|t| *t as usize).collect::<Vec<_>>(),
            ),
            "midlayer.self_attn.q_proj.weight" => pick(tensor, &halves(4)),
            "midlayer.self_attn.k_proj.weight" => pick(tensor, &halves(2)),
            _ => {}
        }
    }
    let distances = (0i64..).zip(tokens);
    let distances = distances.flat_map(|(at, token)| (i64::from(*token) - at).to_le_bytes());
    all.push((
        "d2t".into(),
        Dtype::I64,
        vec![tokens.len()],
        distances.collect(),
    ));
    let is_known = |token: u32| u8::from(tokens.contains(&token));
    let known = (0..128).map(is_known).collect();
    all.push(("t2d".into(), Dtype::BOOL, vec![128], known));
    let mut config = json!({ "draft_vocab_size": tokens.len(), "model_type": "llama" });
    let sizes = config.as_object_mut().expect("an object");
    sizes.extend(keys.as_object().expect("an object").clone());
    write(&all, &config, folder)
}

/// The folder of a drafter of blocks with two layers.
fn folder_of_blocks(file: &Path, keys: &Value, folder: PathBuf) -> PathBuf {
    let outer = BLOCKS.iter().map(|(a, b)| ((*a).into(), (*b).into()));
    let layers = (0..2).flat_map(|il| {
        let names = NAMES.iter();
        names.map(move |(a, b)| (format!("blk.{il}.{a}"), format!("layers.{il}.{b}")))
    });
    let names: Vec<_> = outer.chain(layers).collect();
    let mut config = json!({
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": 6, "num_hidden_layers": 2,
        "num_target_layers": 4, "tie_word_embeddings": true,
        "dflash_config": { "mask_token_id": 7, "target_layer_ids": [0, 1, 3] },
    });
    let all = config.as_object_mut().expect("an object");
    all.extend(keys.as_object().expect("an object").clone());
    write(&stored(file, &names), &config, folder)
}

/// Keys that configurations of Qwen3 and Hunyuan heads of AngelSlim have besides sizes.
fn published_heads() -> Vec<(&'static str, Value)> {
    let layers = [0, 1, 3];
    vec![
        (
            "SpecForge",
            json!({
                "architectures": ["LlamaForCausalLMEagle3"], "eagle_aux_hidden_state_layer_ids": [1, 2, 4],
            }),
        ),
        (
            "AngelSlim, Qwen3",
            json!({
                "architectures": ["Eagle3LlamaForCausalLM"], "aux_hidden_states_layer_ids": layers,
                "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 3, "decoder_sparse_step": 1,
                "eos_token_id": 5, "head_dim": 16, "initializer_range": 0.02, "max_window_layers": 36,
                "output_router_logits": false, "rope_scaling": null, "router_aux_loss_coef": 0.001, "sliding_window": null,
                "target_model_type": "qwen3", "tie_word_embeddings": false, "torch_dtype": "bfloat16",
                "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false,
            }),
        ),
        (
            "AngelSlim, the target's number of layers",
            json!({
                "architectures": ["Eagle3LlamaForCausalLM"], "aux_hidden_states_layer_ids": layers, "num_hidden_layers": 28,
                "max_window_layers": 28, "sliding_window": 131072, "use_mrope": false, "use_sliding_window": false,
            }),
        ),
        (
            "AngelSlim, pictures",
            json!({
                "architectures": ["Eagle3LlamaForCausalLM"], "aux_hidden_states_layer_ids": layers, "modal_type": "VLM",
                "image_token_id": 9, "tie_word_embeddings": true,
                "rope_scaling": { "type": "default", "rope_type": "default", "mrope_interleaved": true, "mrope_section": [4, 2, 2] },
            }),
        ),
        (
            "AngelSlim, Hunyuan",
            json!({
                "architectures": ["Eagle3LlamaForCausalLM"], "aux_hidden_states_layer_ids": layers,
                "add_classification_head": false, "attention_head_dim": 16, "cla_share_factor": 2, "class_num": 0,
                "dense_list": [64, 0], "eod_token_id": 4, "head_dim": 16, "im_end_id": 5, "im_newline_id": 11, "im_start_id": 4,
                "mask_init_id": 12, "mlp_bias": false, "norm_type": "rms", "org_vocab_size": 128, "pad_id": 2, "pool_type": "last",
                "pretraining_tp": 1, "sep_token_id": 7, "text_end_id": 7, "text_start_id": 6, "tie_word_embeddings": true,
                "use_cla": false, "use_qk_norm": true, "use_rotary_pos_emb": true,
                "rope_scaling": {
                    "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                    "type": "dynamic",
                },
            }),
        ),
    ]
}

#[test]
fn heads_of_published_layouts_equal_the_formula() {
    let scratch = scratch();
    let golden = FormulaGolden::new("eagle3", scratch.path());
    let tokens: Vec<u32> = (0..128).collect();
    for (layout, keys) in published_heads() {
        let folder = scratch.path().join(layout);
        let folder = folder_of_head(&golden.drafter, &tokens, &keys, folder);
        let error = golden.error_of(&folder, &exact());
        println!("{layout}: NMSE {error:.1e}");
        assert!(error <= EXACT, "{layout}: NMSE {error:.1e}");
    }
}

#[test]
fn blocks_in_folders_equal_the_formula() {
    let scratch = scratch();
    let windows = json!({
        "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5, "use_sliding_window": true,
        "max_window_layers": 2,
    });
    let full = json!({
        "layer_types": ["full_attention", "full_attention"], "sliding_window": null, "use_sliding_window": false,
    });
    for (name, keys) in [("dflash", full), ("dflash-windows", windows)] {
        let golden = FormulaGolden::new(name, scratch.path());
        let folder = folder_of_blocks(&golden.drafter, &keys, scratch.path().join(name));
        let error = golden.error_of(&folder, &exact());
        println!("{name}: NMSE {error:.1e}");
        assert!(error <= EXACT, "{name}: NMSE {error:.1e}");
    }
}

/// A target of four layers, and a drafter of this kind.
fn pair(arch: &str, set: &[(&str, &str)], folder: &Path) -> [PathBuf; 2] {
    let with = definitions();
    [("llama", &[("block_count", "4")][..]), (arch, set)].map(|(arch, set)| {
        let def = with.archs.get(arch).or_else(|_| with.drafters.get(arch));
        let set = set.iter();
        let request = SynthRequest {
            set: set.map(|(a, b)| ((*a).into(), (*b).into())).collect(),
            with: vec!["output".into()],
            ..SynthRequest::default()
        };
        let path = folder.join(format!("{arch}.gguf"));
        synth(&def.expect("it is built in"), &request, &path).expect("the model can be made");
        path
    })
}

#[test]
fn a_head_in_a_folder_drafts_as_its_file_does() {
    let layers = json!({ "eagle_aux_hidden_state_layer_ids": [0, 1, 2] });
    let plain = json!({ "architectures": ["LlamaForCausalLMEagle3"], "eagle_config": layers });
    let mut normed = plain.clone();
    normed["norm_before_fc"] = json!(true);
    normed["norm_before_residual"] = json!(true);
    let norms = [("norms_values", "true"), ("norms_hidden", "true")];
    for (keys, more) in [(plain, &[][..]), (normed, &norms)] {
        let scratch = scratch();
        let set = [&[("block_count", "1"), ("target_layers", "0,1,2")], more].concat();
        let [target, drafter] = pair("eagle3", &set, scratch.path());
        let tokens: Vec<u32> = (0..120).step_by(2).collect();
        let copy = scratch.path().join("some.gguf");
        with_tokens(&drafter, &tokens, &copy);
        let folder = folder_of_head(&drafter, &tokens, &keys, scratch.path().join("head"));
        let drafted = |path: &Path| {
            let mut model = load_with(&target, &Options::plain(256, 64), named(path));
            read(&mut model, 0, 0, 11);
            draft(&mut model, 0, 12, 5)
        };
        let (expected, found) = (drafted(&copy), drafted(&folder));
        assert_eq!(found.tokens, expected.tokens, "{more:?}");
        let mut pairs = found.probabilities.iter().zip(&expected.probabilities);
        assert!(
            pairs.all(|(a, b)| (a - b).abs() < 1e-5),
            "{more:?}: {found:?}"
        );
    }
}

/// Why a drafter in a folder is refused.
fn refusal(target: &Path, folder: &Path) -> String {
    let with = Definitions {
        drafter: named(folder),
        ..definitions()
    };
    let opened = models::open(&ModelSource::File(target.to_owned()), &with);
    opened.map(drop).expect_err("it is refused").to_string()
}

#[test]
fn a_head_names_layers_by_numbers_or_by_how_many_come_before() {
    let scratch = scratch();
    let tokens: Vec<u32> = (0..128).collect();
    let object =
        |ids: &[u32]| json!({ "eagle_config": { "eagle_aux_hidden_state_layer_ids": ids } });
    let set = [("block_count", "1"), ("target_layers", "2,3,4")];
    let [target, drafter] = pair("eagle3", &set, scratch.path());
    let drafted = |path: &Path| {
        let mut model = load_with(&target, &Options::plain(256, 64), named(path));
        read(&mut model, 0, 0, 11);
        draft(&mut model, 0, 12, 5).probabilities
    };
    let expected: Vec<f64> = drafted(&drafter).into_iter().map(f64::from).collect();
    let of = |name: &str, mut keys: Value| {
        keys["architectures"] = json!(["LlamaForCausalLMEagle3"]);
        folder_of_head(&drafter, &tokens, &keys, scratch.path().join(name))
    };
    for (name, keys, is_same) in [
        ("numbers", object(&[1, 2, 3]), true),
        ("counts", object(&[2, 3, 4]), true),
        ("others", object(&[2, 3, 3]), false),
        (
            "top",
            json!({ "eagle_aux_hidden_state_layer_ids": [2, 3, 4] }),
            true,
        ),
        (
            "trained",
            json!({ "aux_hidden_states_layer_ids": [1, 2, 3] }),
            true,
        ),
    ] {
        let error = nmse(&drafted(&of(name, keys)), &expected);
        assert_eq!(error <= EXACT, is_same, "{name}: NMSE {error:.1e}");
    }
    let error = refusal(&target, &of("four", object(&[0, 1, 2, 3])));
    assert!(error.contains("count('target_layer_ids') == 3"), "{error}");
    let error = refusal(&target, &of("late", object(&[1, 2, 7])));
    assert!(
        error.contains("after 8 layers, and the model has 4"),
        "{error}"
    );
}

#[test]
fn windows_without_a_size_and_other_kinds_of_blocks_are_refused() {
    let scratch = scratch();
    let golden = FormulaGolden::new("dflash-windows", scratch.path());
    let of = |name: &str, keys: Value| {
        let folder = folder_of_blocks(&golden.drafter, &keys, scratch.path().join(name));
        refusal(&golden.target, &folder)
    };
    let layers = json!(["sliding_attention", "full_attention"]);
    let error = of("off", json!({ "layer_types": layers, "sliding_window": 5 }));
    assert!(error.contains("use_sliding_window"), "{error}");
    let error = of(
        "unsized",
        json!({ "layer_types": layers, "use_sliding_window": true }),
    );
    assert!(error.contains("window"), "{error}");
    let mut keys = json!({ "dflash_config": {
        "mask_token_id": 7, "target_layer_ids": [0, 1, 3], "projector_type": "domino",
    } });
    let error = of("projector", keys.clone());
    assert!(error.contains("projector_type"), "{error}");
    keys["architectures"] = json!(["DFlash2DraftModel"]);
    let error = of("second", keys);
    assert!(error.contains("DFlash2DraftModel"), "{error}");
}
