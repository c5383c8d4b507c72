//! Keys of published configurations that transformers does not write: a folder with them opens as without them.

use serde_json::{Value, json};

use crate::bad_folders::Folder;
use crate::published::{open, outline, set};
use crate::support::command::{bench, text};

/// Folders, and keys that published configurations of their classes have besides.
fn published() -> Vec<(&'static str, Value)> {
    vec![
        (
            "qwen3moe",
            json!({"qkv_bias": false, "shared_expert_intermediate_size": 5632, "use_qk_norm": true}),
        ),
        (
            "apertus",
            json!({"post_norm": false, "qk_norm": true, "mlp_bias": false}),
        ),
        (
            "minimax-m2",
            json!({
                "layernorm_full_attention_alpha": 1.0, "layernorm_full_attention_beta": 1.0,
                "layernorm_linear_attention_alpha": 1.0, "layernorm_linear_attention_beta": 1.0,
                "layernorm_mlp_alpha": 1.0, "layernorm_mlp_beta": 1.0, "mlp_intermediate_size": 8192,
                "mtp_transformer_layers": 1, "num_mtp_modules": 3, "qk_norm_type": "per_layer",
                "shared_moe_mode": "sigmoid", "use_mtp": true, "use_qk_norm": true, "use_routing_bias": true,
            }),
        ),
        (
            "hunyuan-dense",
            json!({
                "add_classification_head": false, "anyres_pooling_size": 2, "anyres_vit_max_image_size": null,
                "class_num": 0, "cla_share_factor": 2, "dense_list": [4096, 0], "enable_lm_head_fp32": true,
                "group_limited_greedy": false, "kv_lora_rank": null, "moe_topk": 1, "moe_layer_num_skipped": 0,
                "num_experts": 1, "num_media_embeds": 257, "num_shared_expert": 1, "norm_type": "rms",
                "pool_type": "last", "position_embedding_xdrope": false, "use_qk_norm": true,
                "use_rotary_pos_emb": true, "vit_input_resolution": 224, "vit_mapping_type": "resampler",
                "vit_norm_type": "fused", "vit_patch": 1, "vit_token": 64,
            }),
        ),
        (
            "hunyuan-moe",
            json!({"enable_lm_head_fp32": true, "num_media_embeds": 257, "vit_patch": 1, "anyres_vit_two_views": false}),
        ),
        (
            "phi3-partial",
            json!({"full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": false, "mlp_bias": false}),
        ),
        (
            "llama",
            json!({
                "is_llama_config": true, "rope_interleaved": false, "residual_in_fp32": true, "fused_norm": false,
                "logit_scale": 1.0, "embedding_multiplier": 1, "num_mem_blocks": 0,
            }),
        ),
        (
            "qwen2",
            json!({"use_mrope": false, "max_window_layers": 28}),
        ),
        (
            "qwen3",
            json!({"use_qk_norm": true, "qk_layernorm": true, "head_dtype_fp32": true}),
        ),
        (
            "glm4moe",
            json!({"use_qk_norm": true, "router_dtype": "float32"}),
        ),
        ("olmo2", json!({"qk_norm": true})),
    ]
}

#[test]
fn keys_of_published_configurations_have_no_effect() {
    let mut faults = Vec::new();
    for (name, keys) in published() {
        let folder = Folder::new(name);
        let plain = outline(&open(&folder).expect("a sound folder"));
        for (key, value) in keys.as_object().expect("keys") {
            set(&folder, key, value.clone());
        }
        match open(&folder) {
            Ok(opened) if outline(&opened) == plain => {}
            Ok(_) => faults.push(format!("{name}: another model")),
            Err(error) => faults.push(format!("{name}: {error}")),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn norms_that_are_not_stored_and_factors_that_are_not_one_are_refused() {
    for (key, value) in [
        ("qk_norm", json!(true)),
        ("qk_layernorm", json!(true)),
        ("layernorm_mlp_beta", json!(2.0)),
        ("some_number", json!(1)),
    ] {
        let folder = Folder::new("llama");
        set(&folder, key, value);
        let error = open(&folder).expect_err("refused").to_string();
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn one_expert_and_one_base_in_two_places_cause_no_warning() {
    let folder = Folder::new("jamba-dense");
    let ran = bench(&["plan", "-m", text(folder.0.path())]);
    assert!(
        ran.is_fine() && !ran.err.contains("expert_count"),
        "{}",
        ran.err
    );
    let folder = Folder::new("glm-moe-dsa");
    set(&folder, "rope_theta", json!(10000));
    let ran = bench(&["plan", "-m", text(folder.0.path())]);
    assert!(
        ran.is_fine() && !ran.err.contains("rope_theta"),
        "{}",
        ran.err
    );
}
