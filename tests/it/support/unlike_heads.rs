//! How published Hugging Face folders store prediction heads whose layers are unlike those of the model before them.

use serde_json::json;

use super::published_heads::{Plain, Published, Tensors, biased, experts};

/// Layers of one sublayer each. A head is two of them.
fn sublayers(of: &mut Tensors, layer: &str) -> Vec<(String, Plain)> {
    let is_head = of.0.contains_key(&format!("{layer}.nextn.enorm.weight"));
    let [first, second] = if is_head { ["0.", "1."] } else { ["", ""] };
    let mut take = |name: &str| of.take(&format!("{layer}.{name}"));
    let mut all = Vec::new();
    let names = [
        ("attn_norm.weight", first, "norm.weight"),
        ("attn_q.weight", first, "mixer.q_proj.weight"),
        ("attn_k.weight", first, "mixer.k_proj.weight"),
        ("attn_v.weight", first, "mixer.v_proj.weight"),
        ("attn_output.weight", first, "mixer.o_proj.weight"),
        ("nextn.enorm.weight", first, "enorm.weight"),
        ("nextn.hnorm.weight", first, "hnorm.weight"),
        ("nextn.eh_proj.weight", first, "eh_proj.weight"),
        ("ssm_in.weight", first, "mixer.in_proj.weight"),
        ("ssm_conv1d.bias", first, "mixer.conv1d.bias"),
        ("ssm_dt.bias", first, "mixer.dt_bias"),
        ("ssm_out.weight", first, "mixer.out_proj.weight"),
        ("post_attention_norm.weight", second, "norm.weight"),
        ("ffn_gate_inp.weight", second, "mixer.gate.weight"),
        (
            "exp_probs_b.bias",
            second,
            "mixer.gate.e_score_correction_bias",
        ),
        (
            "ffn_up_shexp.weight",
            second,
            "mixer.shared_experts.up_proj.weight",
        ),
        (
            "ffn_down_shexp.weight",
            second,
            "mixer.shared_experts.down_proj.weight",
        ),
        (
            "nextn.shared_head_norm.weight",
            second,
            "final_layernorm.weight",
        ),
    ];
    for (own, place, other) in names {
        all.extend(take(own).map(|tensor| (format!("{place}{other}"), tensor)));
    }
    for part in ["up", "down"] {
        let stacked = take(&format!("ffn_{part}_exps.weight"));
        for (e, stacked) in stacked
            .iter()
            .flat_map(|of| (0..of.shape[0]).map(move |e| (e, of)))
        {
            let name = format!("{second}mixer.experts.{e}.{part}_proj.weight");
            all.push((name, stacked.at(e)));
        }
    }
    let flat = |of: Plain| of.with_shape(&[of.data.len()]);
    if let Some(conv) = take("ssm_conv1d.weight") {
        let conv = conv.with_shape(&[conv.shape[0], 1, conv.shape[1]]);
        all.push(("mixer.conv1d.weight".into(), conv));
    }
    let norm = take("ssm_norm.weight").map(flat);
    all.extend(norm.map(|of| ("mixer.norm.weight".into(), of)));
    let decay = take("ssm_a").map(flat);
    all.extend(decay.map(|of| ("mixer.A_log".into(), of.each(|x| (-x).ln()))));
    all.extend(take("ssm_d").map(|of| ("mixer.D".into(), flat(of))));
    all
}

pub(crate) fn published() -> Vec<Published> {
    vec![
        Published {
            golden: "nemotron_h_moe",
            class: "NemotronHForCausalLM",
            config: json!({
                "architectures": ["NemotronHForCausalLM"], "hidden_size": 64, "num_hidden_layers": 3,
                "hybrid_override_pattern": "*ME", "mtp_hybrid_override_pattern": "*E", "num_nextn_predict_layers": 1,
                "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "mamba_num_heads": 4, "mamba_head_dim": 32,
                "ssm_state_size": 16, "conv_kernel": 4, "n_groups": 2, "n_routed_experts": 4, "num_experts_per_tok": 2,
                "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 16, "n_shared_experts": 1,
                "routed_scaling_factor": 1.7, "norm_topk_prob": true, "layer_norm_epsilon": 0.001, "intermediate_size": 72,
                "vocab_size": 96, "max_position_embeddings": 256, "mlp_hidden_act": "relu2",
            }),
            set: &[],
            layers: "backbone.layers.",
            heads: "mtp.layers",
            names: &[
                ("token_embd", "/backbone.embeddings"),
                ("output_norm", "/backbone.norm_f"),
            ],
            less_one: false,
            others: sublayers,
        },
        Published {
            golden: "exaone-moe",
            class: "ExaoneMoEForCausalLM",
            config: json!({
                "architectures": ["ExaoneMoEForCausalLM"], "hidden_size": 64, "intermediate_size": 88, "moe_intermediate_size": 32,
                "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 2,
                "num_nextn_predict_layers": 1, "first_k_dense_replace": 1, "num_experts": 4, "num_experts_per_tok": 2,
                "num_shared_experts": 1, "norm_topk_prob": true, "routed_scaling_factor": 2.5, "n_group": 1, "topk_group": 1,
                "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8, "rms_norm_eps": 0.001,
                "rope_theta": 10000.0, "vocab_size": 96, "max_position_embeddings": 256,
            }),
            set: &[],
            layers: "model.layers.",
            heads: "mtp.layers.{k}",
            names: &[
                ("nextn.eh_proj", "/mtp.fc"),
                ("nextn.enorm", "/mtp.pre_fc_norm_embedding"),
                ("nextn.hnorm", "/mtp.pre_fc_norm_hidden"),
                ("nextn.shared_head_norm", "/mtp.norm"),
            ],
            less_one: false,
            others: experts,
        },
        Published {
            golden: "cohere2moe",
            class: "Cohere2MoeForCausalLM",
            config: json!({
                "architectures": ["Cohere2MoeForCausalLM"], "hidden_size": 64, "intermediate_size": 32,
                "prefix_dense_intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
                "num_hidden_layers": 2, "num_nextn_predict_layers": 1, "first_k_dense_replace": 1, "num_experts": 4,
                "num_experts_per_tok": 2, "num_shared_experts": 1, "expert_selection_fn": "sigmoid", "norm_topk_prob": true,
                "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8, "layer_norm_eps": 0.001,
                "logit_scale": 0.8, "rope_theta": 10000.0, "tie_word_embeddings": false, "attention_bias": true, "vocab_size": 96,
                "max_position_embeddings": 256,
            }),
            set: &[
                ("rms_eps", "0"),
                ("n_ff_shexp", "32"),
                ("expert_scale", "1.0"),
            ],
            layers: "model.layers.",
            heads: "model.layers.{il}",
            names: &[],
            less_one: false,
            others: biased,
        },
    ]
}
