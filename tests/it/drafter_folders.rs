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

const HEAD: &[(&str, &str)] = &[
    ("fc", "fc"),
    ("enc.output_norm", "input_norm"),
    ("token_embd", "embed_tokens"),
    ("output_norm", "norm"),
    ("output", "lm_head"),
];
/// Names in the layer of a head, before those of most layers.
const HEAD_LAYER: &[(&str, &str)] = &[("attn_norm_2", "hidden_norm")];
const BLOCKS: &[(&str, &str)] = &[
    ("fc", "fc"),
    ("token_embd", "embed_tokens"),
    ("enc.output_norm", "hidden_norm"),
    ("output_norm", "norm"),
    ("output", "lm_head"),
    ("markov_w1", "markov_head.markov_w1"),
    ("markov_w2", "markov_head.markov_w2"),
    ("conf_proj", "confidence_head.proj"),
];

/// The names of tensors outside of layers, and those in layers with the prefixes of these.
fn names(outer: &[(&str, &str)], layers: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(a, b): &(&str, &str)| ((*a).to_owned(), (*b).to_owned());
    let inner = layers.iter().flat_map(|(prefix, other)| {
        let all = HEAD_LAYER.iter().chain(NAMES);
        all.map(move |(a, b)| (format!("{prefix}{a}"), format!("{other}{b}")))
    });
    outer.iter().map(owned).chain(inner).collect()
}

/// The tensors of a file by the names of a folder. All of the file have one.
fn stored(file: &Path, names: &[(String, String)]) -> Stored {
    let weights = weights::open(file).expect("it is readable");
    let all = weights.tensors().iter().map(|tensor| {
        let mut bytes = vec![0; tensor.shape.iter().product::<u64>() as usize * 4];
        weights.rows(tensor, 0, &mut bytes).expect("its rows");
        let shape = tensor.shape.iter().rev().map(|n| *n as usize).collect();
        let (own, ending) = tensor.name.rsplit_once('.').expect("an ending");
        let other = names.iter().find(|(name, _)| name == own);
        let other = other.unwrap_or_else(|| panic!("no name for {own}"));
        (format!("{}.{ending}", other.1), Dtype::F32, shape, bytes)
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
    if let Some(Value::Object(inner)) = keys.get(LAYER_CONFIG) {
        extend(&mut config, &Value::Object(inner.clone()));
        config = json!({ LAYER_CONFIG: config });
    }
    let mut others = keys.clone();
    if config.get(LAYER_CONFIG).is_some() {
        others[LAYER_CONFIG] = config[LAYER_CONFIG].take();
    }
    extend(&mut config, &others);
    std::fs::write(folder.join("config.json"), config.to_string()).expect("a writable folder");
    folder
}

/// The object in which vLLM's "speculators" have the sizes.
const LAYER_CONFIG: &str = "transformer_layer_config";

/// Adds these keys to an object.
fn extend(object: &mut Value, keys: &Value) {
    let all = object.as_object_mut().expect("an object");
    all.extend(keys.as_object().expect("an object").clone());
}

/// Picks rows of a tensor.
fn pick(tensor: &mut (String, Dtype, Vec<usize>, Vec<u8>), order: &[usize]) {
    let (_, _, shape, bytes) = tensor;
    let row = bytes.len() / shape[0];
    let rows = order.iter().map(|at| &bytes[at * row..(at + 1) * row]);
    *bytes = rows.collect::<Vec<_>>().concat();
    shape[0] = order.len();
}

/// Stores the rows of heads of 16 elements in another order: the row at `i` of a head is the file's at `of(i)`.
fn reorder_heads(all: &mut Stored, of: fn(usize) -> usize) {
    for tensor in all {
        let [.., of_layer, _] = tensor.0.split('.').collect::<Vec<_>>()[..] else {
            continue;
        };
        if ["q_proj", "k_proj", "q_norm", "k_norm"].contains(&of_layer) {
            let order: Vec<_> = (0..tensor.2[0]).map(|i| i / 16 * 16 + of(i % 16)).collect();
            pick(tensor, &order);
        }
    }
}

/// Leaves the logits of these tokens alone, which are stored as distances from their numbers.
fn leave_tokens(all: &mut Stored, tokens: &[u32]) {
    let head = all.iter_mut().find(|tensor| tensor.0 == "lm_head.weight");
    let rows: Vec<_> = tokens.iter().map(|token| *token as usize).collect();
    pick(head.expect("a head"), &rows);
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
}

/// The folder of a head of EAGLE-3 with logits of these tokens.
fn folder_of_head(file: &Path, tokens: &[u32], keys: &Value, folder: PathBuf) -> PathBuf {
    let class = keys["architectures"][0].as_str().expect("a class");
    let layer = match class.contains("ForCausalLM") {
        true => "midlayer.",
        false => "layers.0.",
    };
    let mut all = stored(file, &names(HEAD, &[("blk.0.", layer)]));
    // The folder rotates halves of a head, the file neighbours.
    reorder_heads(&mut all, |i| i % 8 * 2 + i / 8);
    leave_tokens(&mut all, tokens);
    let mut config = json!({ "draft_vocab_size": tokens.len(), "model_type": "llama" });
    extend(&mut config, keys);
    write(&all, &config, folder)
}

/// The folder of a drafter of blocks with two layers.
fn folder_of_blocks(file: &Path, keys: &Value, folder: PathBuf) -> PathBuf {
    let mut all = stored_blocks(file);
    if keys.get("rope_is_neox_style") == Some(&json!(false)) {
        // The folder rotates neighbours, the file halves of a head.
        reorder_heads(&mut all, |i| i % 2 * 8 + i / 2);
    }
    write(&all, &config_of_blocks(keys), folder)
}

fn stored_blocks(file: &Path) -> Stored {
    let layers = [("blk.0.", "layers.0."), ("blk.1.", "layers.1.")];
    let mut all = stored(file, &names(BLOCKS, &layers));
    let one_row = all
        .iter_mut()
        .filter(|of| of.0 == "confidence_head.proj.weight");
    one_row.for_each(|tensor| tensor.2 = vec![1, tensor.2.iter().product()]);
    all
}

fn config_of_blocks(keys: &Value) -> Value {
    let mut config = json!({
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": 6, "num_hidden_layers": 2,
        "num_target_layers": 4, "tie_word_embeddings": true,
        "dflash_config": { "mask_token_id": 7, "target_layer_ids": [0, 1, 3] },
    });
    extend(&mut config, keys);
    config
}

/// What "speculators" say about the program that drafts.
fn proposals() -> Value {
    json!({
        "algorithm": "some", "default_proposal_method": "greedy",
        "proposal_methods": [{ "accept_tolerance": 0.0, "proposal_type": "greedy", "speculative_tokens": 5, "verifier_accept_k": 1 }],
        "verifier": { "architectures": ["LlamaForCausalLM"], "name_or_path": "some/model" },
    })
}

/// Keys that configurations of published heads have besides sizes, and the formula that they compute.
fn published_heads() -> Vec<(&'static str, &'static str, Value)> {
    let layers = [0, 1, 3];
    vec![
        (
            "SpecForge",
            "eagle3",
            json!({
                "architectures": ["LlamaForCausalLMEagle3"], "eagle_aux_hidden_state_layer_ids": [1, 2, 4],
            }),
        ),
        (
            "AngelSlim, Qwen3",
            "eagle3",
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
            "eagle3",
            json!({
                "architectures": ["Eagle3LlamaForCausalLM"], "aux_hidden_states_layer_ids": layers, "num_hidden_layers": 28,
                "max_window_layers": 28, "sliding_window": 131072, "use_mrope": false, "use_sliding_window": false,
            }),
        ),
        (
            "AngelSlim, pictures",
            "eagle3",
            json!({
                "architectures": ["Eagle3LlamaForCausalLM"], "aux_hidden_states_layer_ids": layers, "modal_type": "VLM",
                "image_token_id": 9, "tie_word_embeddings": true,
                "rope_scaling": { "type": "default", "rope_type": "default", "mrope_interleaved": true, "mrope_section": [4, 2, 2] },
            }),
        ),
        (
            "AngelSlim, Hunyuan",
            "eagle3",
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
        (
            "DeepSpec",
            "eagle3-norms",
            json!({
                "architectures": ["Qwen3Eagle3Model"], "target_layer_ids": layers, "num_target_layers": 36, "ttt_length": 7,
                "attention_bias": false, "attention_dropout": 0.0, "draft_num_hidden_layers": 1, "dtype": "bfloat16", "head_dim": 16,
                "layer_types": ["full_attention"], "max_window_layers": 36, "sliding_window": null, "step_loss_decay": 0.8,
                "target_model_name_or_path": "some/model", "tie_word_embeddings": false, "use_sliding_window": false,
            }),
        ),
        (
            "speculators",
            "eagle3",
            json!({
                "architectures": ["Eagle3Speculator"], "auto_map": { "": "eagle3.Eagle3SpeculatorConfig" },
                "eagle_aux_hidden_state_layer_ids": [1, 2, 4], "embed_requires_grad": false, "has_no_defaults_at_init": false,
                "norm_before_residual": false, "speculators_config": proposals(), "speculators_model_type": "eagle3",
                "speculators_version": "0.1.0", "target_hidden_size": null,
                "transformer_layer_config": {
                    "attention_bias": false, "attention_dropout": 0.0, "head_dim": 16, "initializer_range": 0.02, "mlp_bias": false,
                    "model_type": "llama", "pretraining_tp": 1, "rope_scaling": null, "use_cache": true,
                },
            }),
        ),
    ]
}

/// Keys that configurations of published drafters of blocks have besides sizes, and the formula that they compute.
fn published_blocks() -> Vec<(&'static str, &'static str, Value)> {
    let full = json!(["full_attention", "full_attention"]);
    let deepspec = |rank: u32| {
        json!({
            "architectures": ["Qwen3DSparkModel"], "dflash_config": null, "mask_token_id": 7, "target_layer_ids": [0, 1, 3],
            "attention_bias": false, "attention_dropout": 0.0, "confidence_head_with_markov": true, "dtype": "bfloat16",
            "enable_confidence_head": rank > 0, "head_dim": 16, "layer_types": full, "markov_head_type": "vanilla",
            "markov_rank": rank, "max_window_layers": 36, "num_anchors": 512, "rope_scaling": null, "sliding_window": null,
            "tie_word_embeddings": false, "use_sliding_window": false,
        })
    };
    let speculators = |kind: &str| {
        json!({
            "architectures": ["DFlashDraftModel"], "dflash_config": null, "num_target_layers": null, "num_hidden_layers": null,
            "aux_hidden_state_layer_ids": [1, 2, 4], "draft_vocab_size": 128, "mask_token_id": 7, "max_anchors": 256,
            "sliding_window_non_causal": false, "speculators_config": proposals(), "speculators_model_type": kind,
            "speculators_version": "0.5.0", "target_hidden_size": null,
            "transformer_layer_config": {
                "attention_bias": false, "attention_dropout": 0.0, "head_dim": 16, "layer_types": full, "model_type": "qwen3",
                "num_hidden_layers": 2, "rope_parameters": { "rope_theta": 10000.0, "rope_type": "default" }, "use_cache": true,
            },
        })
    };
    let mut plain = speculators("dflash");
    extend(
        &mut plain,
        &json!({
            "auf": false, "emb_dim": 256, "gru_hidden_dim": 1024, "lambda_base_decay_ratio": 1.0, "lambda_base_start": 1.0,
            "projector_type": "dflash", "pure_draft_prefix_len": 1, "sample_from_anchor": false, "shift_label": false,
        }),
    );
    let mut windows = speculators("dflash");
    let layers = json!({
        "layer_types": ["sliding_attention", "full_attention"], "max_window_layers": 0, "sliding_window": 5,
        "use_sliding_window": true,
    });
    extend(&mut windows[LAYER_CONFIG], &layers);
    let mut chained = speculators("dspark");
    extend(
        &mut chained,
        &json!({
            "architectures": ["DSparkDraftModel"], "confidence_head_alpha": 1.0, "confidence_head_with_markov": true,
            "enable_confidence_head": true, "markov_head_type": "vanilla", "markov_rank": 8, "sample_from_anchor": true,
        }),
    );
    vec![
        (
            "z-lab",
            "dflash",
            json!({ "layer_types": full, "sliding_window": null, "use_sliding_window": false }),
        ),
        ("z-lab, windows", "dflash-windows", layers),
        ("DeepSpec, DFlash", "dflash-first", deepspec(0)),
        ("DeepSpec", "dspark", deepspec(8)),
        (
            "SpecForge",
            "dspark",
            json!({
                "architectures": ["DSparkDraftModel"], "auto_map": { "AutoModel": "dspark.DSparkDraftModel" }, "layer_types": full,
                "dflash_config": {
                    "attention_mode": "gqa", "confidence_head_alpha": 1.0, "confidence_head_with_markov": true,
                    "dspark_backbone_conv_enabled": false, "enable_confidence_head": true, "markov_head_type": "vanilla",
                    "markov_rank": 8, "mask_token_id": 7, "projector_type": "dspark", "target_layer_ids": [0, 1, 3],
                },
            }),
        ),
        (
            "LFM2",
            "dspark",
            json!({
                "architectures": ["Lfm2DSparkDraftModel"], "enable_confidence_head": true, "head_dim": 16, "layer_types": full,
                "markov_head_type": "vanilla", "markov_rank": 8, "num_target_layers": null, "rope_is_neox_style": false,
                "dflash_config": { "mask_token_id": 7, "num_target_layers": 4, "target_layer_ids": [0, 1, 3] },
            }),
        ),
        ("speculators, DFlash", "dflash", plain),
        ("speculators, windows", "dflash-windows", windows),
        ("speculators, DSpark", "dspark", chained),
    ]
}

#[test]
fn heads_of_published_layouts_equal_the_formula() {
    let tokens: Vec<u32> = (0..128).collect();
    for (layout, formula, keys) in published_heads() {
        let scratch = scratch();
        let golden = FormulaGolden::new(formula, scratch.path());
        let folder = scratch.path().join(layout);
        let folder = folder_of_head(&golden.drafter, &tokens, &keys, folder);
        let error = golden.error_of(&folder, &exact());
        println!("{layout}: NMSE {error:.1e}");
        assert!(error <= EXACT, "{layout}: NMSE {error:.1e}");
    }
}

#[test]
fn blocks_of_published_layouts_equal_the_formula() {
    for (layout, formula, keys) in published_blocks() {
        let scratch = scratch();
        let golden = FormulaGolden::new(formula, scratch.path());
        let folder = scratch.path().join(layout);
        let folder = folder_of_blocks(&golden.drafter, &keys, folder);
        let error = golden.error_of(&folder, &exact());
        println!("{layout}: NMSE {error:.1e}");
        assert!(error <= EXACT, "{layout}: NMSE {error:.1e}");
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

#[test]
fn blocks_in_a_folder_with_some_tokens_alone_draft_as_their_file_does() {
    let scratch = scratch();
    let set = [
        ("block_count", "2"),
        ("target_layers", "1,2,4"),
        ("block_size", "6"),
    ];
    let [target, drafter] = pair("dflash", &set, scratch.path());
    let tokens: Vec<u32> = (0..120).step_by(2).collect();
    let copy = scratch.path().join("some.gguf");
    with_tokens(&drafter, &tokens, &copy);
    let mut all = stored_blocks(&drafter);
    leave_tokens(&mut all, &tokens);
    let config = config_of_blocks(&json!({ "draft_vocab_size": tokens.len() }));
    let folder = write(&all, &config, scratch.path().join("blocks"));
    let drafted = |path: &Path| {
        let mut model = load_with(&target, &Options::plain(256, 64), named(path));
        read(&mut model, 0, 0, 11);
        draft(&mut model, 0, 12, 5)
    };
    let (expected, found) = (drafted(&copy), drafted(&folder));
    assert_eq!(found.tokens.len(), 5);
    assert_eq!(found, expected);
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

#[test]
fn heads_of_blocks_that_compute_something_else_are_refused() {
    let scratch = scratch();
    let golden = FormulaGolden::new("dspark", scratch.path());
    let published = published_blocks();
    let find = |layout| published.iter().find(|(name, ..)| *name == layout);
    let (.., keys) = find("DeepSpec").expect("the layout");
    for (key, value, expected) in [
        (
            "markov_head_type",
            json!("gated"),
            "markov_head_type == 'vanilla'",
        ),
        ("markov_rank", json!(4), "hidden_size + markov_rank"),
        ("markov_rank", json!(0), "markov_rank > 0"),
        ("projector_type", json!("domino"), "projector_type"),
        (
            "enable_qwen35_gated_q_proj",
            json!(true),
            "enable_qwen35_gated_q_proj",
        ),
    ] {
        let mut keys = keys.clone();
        keys[key] = value;
        let folder = folder_of_blocks(&golden.drafter, &keys, scratch.path().join(expected));
        let error = refusal(&golden.target, &folder);
        assert!(error.contains(expected), "{error}");
    }
}
