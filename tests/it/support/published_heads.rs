//! How published Hugging Face folders store models with prediction heads: names, layouts, configurations.
//!
//! Each entry takes the tensors of a model's file out and gives what a folder of its class has.

use std::collections::BTreeMap;
use std::path::Path;

use lab_base::weights;
use serde_json::{Value, json};

/// A tensor: its axes, the slowest first, and its elements.
#[derive(Clone)]
pub(crate) struct Plain {
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<f32>,
}

impl Plain {
    pub(crate) fn new(shape: &[usize], data: Vec<f32>) -> Self {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "{shape:?}");
        Self {
            shape: shape.to_vec(),
            data,
        }
    }

    pub(crate) fn each(mut self, of: impl Fn(f32) -> f32) -> Self {
        self.data.iter_mut().for_each(|x| *x = of(*x));
        self
    }

    pub(crate) fn row_len(&self) -> usize {
        self.shape[1..].iter().product()
    }

    /// The rows of these numbers along the slowest axis.
    pub(crate) fn rows(&self, numbers: impl IntoIterator<Item = usize>) -> Self {
        let width = self.row_len();
        let rows: Vec<f32> = numbers
            .into_iter()
            .flat_map(|row| self.data[row * width..(row + 1) * width].to_vec())
            .collect();
        let mut shape = self.shape.clone();
        shape[0] = rows.len() / width.max(1);
        Self::new(&shape, rows)
    }

    pub(crate) fn transposed(&self) -> Self {
        let [rows, columns] = self.shape[..] else {
            panic!("{:?}", self.shape)
        };
        let at = |i: usize| self.data[i % rows * columns + i / rows];
        Self::new(&[columns, rows], (0..self.data.len()).map(at).collect())
    }

    /// An element of the slowest axis.
    pub(crate) fn at(&self, i: usize) -> Self {
        let one = self.rows([i]);
        Self::new(&one.shape[1..], one.data)
    }

    pub(crate) fn with_shape(&self, shape: &[usize]) -> Self {
        Self::new(shape, self.data.clone())
    }

    pub(crate) fn then(&self, below: &Self) -> Self {
        let mut shape = self.shape.clone();
        shape[0] += below.shape[0];
        Self::new(&shape, [&self.data[..], &below.data].concat())
    }
}

/// The tensors of a file by their names, which a folder's writer takes out.
pub(crate) struct Tensors(pub(crate) BTreeMap<String, Plain>);

impl Tensors {
    pub(crate) fn of(file: &Path) -> Self {
        let weights = weights::open(file).expect("it is readable");
        let all = weights.tensors().iter().map(|tensor| {
            let mut bytes = vec![0; tensor.shape.iter().product::<u64>() as usize * 4];
            weights.rows(tensor, 0, &mut bytes).expect("its rows");
            let shape: Vec<usize> = tensor.shape.iter().rev().map(|n| *n as usize).collect();
            let data = bytes.as_chunks().0.iter();
            let data = data.map(|of| f32::from_le_bytes(*of)).collect();
            (tensor.name.clone(), Plain::new(&shape, data))
        });
        Self(all.collect())
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<Plain> {
        self.0.remove(name)
    }
}

/// How a class of folders stores a model.
pub(crate) struct Published {
    /// The model, by its name in `tests/drafters/heads`.
    pub(crate) golden: &'static str,
    pub(crate) class: &'static str,
    pub(crate) config: Value,
    /// Other parameters than those of the golden.
    pub(crate) set: &'static [(&'static str, &'static str)],
    /// Where layers are, and heads: `{il}` is the layer of the file, `{k}` the number of the head.
    pub(crate) layers: &'static str,
    pub(crate) heads: &'static str,
    /// Names of tensors in a layer, other than [`NAMES`].
    pub(crate) names: &'static [(&'static str, &'static str)],
    /// Whether weights of norms are stored less 1.
    pub(crate) less_one: bool,
    /// Tensors that are stored in another layout: takes those of a layer and gives what is stored.
    pub(crate) others: fn(&mut Tensors, &str) -> Vec<(String, Plain)>,
}

/// Names of tensors in a layer of most classes.
pub(crate) const NAMES: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ("nextn.eh_proj", "eh_proj"),
    ("nextn.enorm", "enorm"),
    ("nextn.hnorm", "hnorm"),
    ("nextn.embed_tokens", "embed_tokens"),
    ("nextn.shared_head_norm", "shared_head.norm"),
    ("nextn.shared_head_head", "shared_head.head"),
];

/// The experts of a layer one by one, under this name.
pub(crate) fn experts(of: &mut Tensors, layer: &str) -> Vec<(String, Plain)> {
    let mut all = Vec::new();
    for part in ["gate", "up", "down"] {
        let Some(stacked) = of.take(&format!("{layer}.ffn_{part}_exps.weight")) else {
            continue;
        };
        for e in 0..stacked.shape[0] {
            let name = format!("mlp.experts.{e}.{part}_proj.weight");
            all.push((name, stacked.at(e)));
        }
    }
    all
}

/// Experts, and the keys and values of latent attention head by head in one matrix.
pub(crate) fn latent(of: &mut Tensors, layer: &str) -> Vec<(String, Plain)> {
    let mut all = experts(of, layer);
    let keys = of.take(&format!("{layer}.attn_k_b.weight"));
    let values = of.take(&format!("{layer}.attn_v_b.weight"));
    if let Some((keys, values)) = keys.zip(values) {
        let heads = (0..keys.shape[0]).map(|h| keys.at(h).transposed().then(&values.at(h)));
        let both = heads.reduce(|all, head| all.then(&head));
        let name = "self_attn.kv_b_proj.weight".to_owned();
        all.push((name, both.expect("heads")));
    }
    for (own, other) in [
        ("attn_q_b.weight", "wq_b.weight"),
        ("attn_k.weight", "wk.weight"),
        ("k_norm.weight", "k_norm.weight"),
        ("k_norm.bias", "k_norm.bias"),
        ("proj.weight", "weights_proj.weight"),
    ] {
        if let Some(tensor) = of.take(&format!("{layer}.indexer.{own}")) {
            all.push((format!("self_attn.indexer.{other}"), tensor));
        }
    }
    all
}

/// Experts with a router and a shared expert of other names, fused or one by one.
pub(crate) fn shared_expert(of: &mut Tensors, layer: &str) -> Vec<(String, Plain)> {
    let mut all = experts(of, layer);
    if let Some(gate) = of.take(&format!("{layer}.ffn_gate_inp_shexp.weight")) {
        let gate = gate.with_shape(&[1, gate.data.len()]);
        all.push(("mlp.shared_expert_gate.weight".into(), gate));
    }
    let fused = of.take(&format!("{layer}.ffn_gate_up_exps.weight"));
    all.extend(fused.map(|fused| ("mlp.experts.gate_up_proj".to_owned(), fused)));
    all
}

/// Sizes of the recurrent layers of the models here.
pub(crate) const KEY_HEADS: usize = 2;
pub(crate) const PER_KEY: usize = 2;
pub(crate) const STATE: usize = 32;

/// Recurrent layers whose projections are stored key head by key head.
pub(crate) fn by_key_head(of: &mut Tensors, layer: &str) -> Vec<(String, Plain)> {
    let mut all = shared_expert(of, layer);
    let mut take = |name: &str| of.take(&format!("{layer}.{name}"));
    if let Some((qkv, gate)) = take("attn_qkv.weight").zip(take("attn_gate.weight")) {
        let mixed = qkv.then(&gate);
        let (keys, values) = (KEY_HEADS * STATE, KEY_HEADS * PER_KEY * STATE);
        let rows = (0..KEY_HEADS).flat_map(|k| {
            let v = PER_KEY * STATE;
            let parts = [
                (k * STATE, STATE),
                (keys + k * STATE, STATE),
                (2 * keys + k * v, v),
                (2 * keys + values + k * v, v),
            ];
            parts.into_iter().flat_map(|(start, n)| start..start + n)
        });
        all.push((
            "linear_attn.in_proj_qkvz.weight".into(),
            mixed.rows(rows.collect::<Vec<_>>()),
        ));
    }
    for (own, other) in [
        ("ssm_ba.weight", "in_proj_ba.weight"),
        ("ssm_norm.weight", "norm.weight"),
        ("ssm_out.weight", "out_proj.weight"),
        ("ssm_dt.bias", "dt_bias"),
    ] {
        all.extend(take(own).map(|tensor| (format!("linear_attn.{other}"), tensor)));
    }
    if let Some(conv) = take("ssm_conv1d.weight") {
        let conv = conv.with_shape(&[conv.shape[0], 1, conv.shape[1]]);
        all.push(("linear_attn.conv1d.weight".into(), conv));
    }
    if let Some(decay) = take("ssm_a") {
        let decay = decay.with_shape(&[decay.data.len()]);
        all.push(("linear_attn.A_log".into(), decay.each(|x| (-x).ln())));
    }
    all
}

/// Recurrent layers whose value heads are stored in groups, one for each key head.
pub(crate) fn by_group(of: &mut Tensors, layer: &str) -> Vec<(String, Plain)> {
    let mut all = shared_expert(of, layer);
    let mut take = |name: &str| of.take(&format!("{layer}.{name}"));
    // The file has the first value head of all key heads, then the second one.
    let grouped = |start: usize, d: usize| -> Vec<usize> {
        let heads = (0..KEY_HEADS).flat_map(|k| (0..PER_KEY).map(move |j| j * KEY_HEADS + k));
        let rows = heads.flat_map(|head| head * d..(head + 1) * d);
        rows.map(|row| start + row).collect()
    };
    let keys = 2 * KEY_HEADS * STATE;
    let mixed = || (0..keys).chain(grouped(keys, STATE));
    let put = |name: &str, tensor: Option<Plain>| {
        tensor.map(|tensor| (format!("linear_attn.{name}"), tensor))
    };
    all.extend(put(
        "in_proj_qkv.weight",
        take("attn_qkv.weight").map(|of| of.rows(mixed())),
    ));
    let conv = take("ssm_conv1d.weight").map(|of| of.rows(mixed()));
    let conv = conv.map(|of| of.with_shape(&[of.shape[0], 1, of.shape[1]]));
    all.extend(put("conv1d.weight", conv));
    let gate = take("attn_gate.weight").map(|of| of.rows(grouped(0, STATE)));
    all.extend(put("in_proj_z.weight", gate));
    let out = take("ssm_out.weight");
    let out = out.map(|of| of.transposed().rows(grouped(0, STATE)).transposed());
    all.extend(put("out_proj.weight", out));
    all.extend(put("norm.weight", take("ssm_norm.weight")));
    for (own, other) in [
        ("ssm_alpha.weight", "in_proj_a.weight"),
        ("ssm_beta.weight", "in_proj_b.weight"),
        ("ssm_dt.bias", "dt_bias"),
    ] {
        all.extend(put(other, take(own).map(|of| of.rows(grouped(0, 1)))));
    }
    let decay = take("ssm_a").map(|of| of.with_shape(&[of.data.len()]).rows(grouped(0, 1)));
    all.extend(put("A_log", decay.map(|of| of.each(|x| (-x).ln()))));
    all
}

/// Queries, keys and values apart; scores beside those of keys.
pub(crate) fn apart(of: &mut Tensors, layer: &str) -> Vec<(String, Plain)> {
    let mut all = experts(of, layer);
    if let Some(qkv) = of.take(&format!("{layer}.attn_qkv.weight")) {
        for (part, rows) in [("q", 0..64), ("k", 64..96), ("v", 96..128)] {
            all.push((format!("self_attn.{part}_proj.weight"), qkv.rows(rows)));
        }
    }
    let sinks = of.take(&format!("{layer}.attn_sinks.weight"));
    all.extend(sinks.map(|of| ("self_attn.attention_sink_bias".to_owned(), of)));
    all
}

/// Experts as they are, under other names.
pub(crate) fn stacked(of: &mut Tensors, layer: &str) -> Vec<(String, Plain)> {
    let parts = ["gate", "up", "down"].map(|part| {
        let stacked = of.take(&format!("{layer}.ffn_{part}_exps.weight"))?;
        Some((format!("moe.{part}_proj.weight"), stacked))
    });
    parts.into_iter().flatten().collect()
}

/// A number for each expert, without an ending in the file; gates and rows of `up` in one tensor.
pub(crate) fn biased(of: &mut Tensors, layer: &str) -> Vec<(String, Plain)> {
    let mut all = experts(of, layer);
    let fused = of.take(&format!("{layer}.ffn_gate_up_exps.weight"));
    all.extend(fused.map(|fused| ("mlp.experts.gate_up_proj".to_owned(), fused)));
    let bias = of.take(&format!("{layer}.exp_probs_b"));
    all.extend(bias.map(|bias| ("mlp.expert_bias".to_owned(), bias)));
    all
}

/// The first matrix of the head reads the hidden state before the embedding.
pub(crate) fn swapped(of: &mut Tensors, layer: &str) -> Vec<(String, Plain)> {
    let joined = of.take(&format!("{layer}.nextn.eh_proj.weight"));
    let swap = |joined: Plain| {
        let columns = joined.transposed();
        let n = columns.shape[0];
        columns.rows((n / 2..n).chain(0..n / 2)).transposed()
    };
    joined
        .map(|of| ("input_proj.weight".to_owned(), swap(of)))
        .into_iter()
        .collect()
}

pub(crate) fn published() -> Vec<Published> {
    let latent_config = |class: &str| {
        json!({
            "architectures": [class], "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 64,
            "intermediate_size": 64, "kv_lora_rank": 32, "moe_intermediate_size": 24, "n_group": 4, "n_routed_experts": 8,
            "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 4, "num_key_value_heads": 4,
            "num_experts_per_tok": 3, "num_hidden_layers": 3, "num_nextn_predict_layers": 1, "q_lora_rank": 24,
            "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "rms_norm_eps": 0.001, "rope_theta": 10000.0,
            "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_group": 2, "v_head_dim": 12, "vocab_size": 96,
            "max_position_embeddings": 256,
        })
    };
    let with = |mut config: Value, more: Value| {
        let more = more.as_object().expect("an object").clone();
        config.as_object_mut().expect("an object").extend(more);
        config
    };
    let yarn = |mscale: f64| {
        json!({ "rope_scaling": {
            "type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "mscale": mscale,
            "mscale_all_dim": mscale, "beta_fast": 32, "beta_slow": 1,
        } })
    };
    let recurrent = |class: &str| {
        json!({
            "architectures": [class], "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 0.001, "rope_theta": 10000.0, "vocab_size": 96,
            "partial_rotary_factor": 0.5, "max_position_embeddings": 256, "linear_key_head_dim": STATE,
            "linear_value_head_dim": STATE, "linear_num_key_heads": KEY_HEADS, "linear_num_value_heads": 4,
            "linear_conv_kernel_dim": 4, "mtp_num_hidden_layers": 1,
            "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        })
    };
    let sparse = json!({
        "moe_intermediate_size": 32, "shared_expert_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2,
    });
    let shared_names: &[(&str, &str)] = &[
        ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
        ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
        ("nextn.eh_proj", "/mtp.fc"),
        ("nextn.enorm", "/mtp.pre_fc_norm_embedding"),
        ("nextn.hnorm", "/mtp.pre_fc_norm_hidden"),
        ("nextn.shared_head_norm", "/mtp.norm"),
    ];
    let rope = json!({ "rope_scaling": { "type": "default", "mrope_section": [2, 1, 1], "mrope_interleaved": true } });
    let latent_eps: &[(&str, &str)] = &[("latent_eps", "0.000001")];
    vec![
        Published {
            golden: "deepseek2",
            class: "DeepseekV3ForCausalLM",
            config: with(latent_config("DeepseekV3ForCausalLM"), yarn(0.707)),
            set: latent_eps,
            layers: "model.layers.",
            heads: "model.layers.{il}",
            names: &[],
            less_one: false,
            others: latent,
        },
        Published {
            golden: "deepseek32",
            class: "DeepseekV32ForCausalLM",
            config: with(
                with(latent_config("DeepseekV32ForCausalLM"), yarn(1.0)),
                json!({ "index_n_heads": 8, "index_head_dim": 64, "index_topk": 64 }),
            ),
            set: latent_eps,
            layers: "model.layers.",
            heads: "model.layers.{il}",
            names: &[],
            less_one: false,
            others: latent,
        },
        Published {
            golden: "glm-dsa",
            class: "GlmMoeDsaForCausalLM",
            config: with(
                latent_config("GlmMoeDsaForCausalLM"),
                json!({
                    "num_hidden_layers": 4, "n_group": 1, "topk_group": 1, "index_n_heads": 8, "index_head_dim": 64,
                    "index_topk": 8, "indexer_types": ["full", "shared", "full", "shared"],
                }),
            ),
            set: latent_eps,
            layers: "model.layers.",
            heads: "model.layers.{il}",
            names: &[],
            less_one: false,
            others: latent,
        },
        Published {
            golden: "glm4moe",
            class: "Glm4MoeForCausalLM",
            config: json!({
                "architectures": ["Glm4MoeForCausalLM"], "first_k_dense_replace": 1, "hidden_size": 64,
                "intermediate_size": 32, "moe_intermediate_size": 32, "n_routed_experts": 4, "n_shared_experts": 1,
                "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts_per_tok": 2,
                "num_hidden_layers": 2, "num_nextn_predict_layers": 1, "partial_rotary_factor": 0.5,
                "rms_norm_eps": 0.001, "rope_theta": 10000.0, "routed_scaling_factor": 1.7, "vocab_size": 96,
                "attention_bias": true, "use_qk_norm": true, "max_position_embeddings": 256,
            }),
            set: &[],
            layers: "model.layers.",
            heads: "model.layers.{il}",
            names: &[],
            less_one: false,
            others: experts,
        },
        Published {
            golden: "hy_v3-own",
            class: "HYV3ForCausalLM",
            config: json!({
                "architectures": ["HYV3ForCausalLM"], "hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 4,
                "num_experts_per_tok": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
                "num_hidden_layers": 2, "num_nextn_predict_layers": 1, "rms_norm_eps": 0.001, "rope_theta": 10000.0,
                "router_scaling_factor": 1.7, "vocab_size": 96, "max_position_embeddings": 256,
            }),
            set: &[("n_ff_shexp", "32")],
            layers: "model.layers.",
            heads: "model.layers.{il}",
            names: &[
                ("ffn_gate_inp", "mlp.router.gate"),
                ("ffn_gate_shexp", "mlp.shared_mlp.gate_proj"),
                ("ffn_up_shexp", "mlp.shared_mlp.up_proj"),
                ("ffn_down_shexp", "mlp.shared_mlp.down_proj"),
            ],
            less_one: false,
            others: biased,
        },
        Published {
            golden: "mimo2",
            class: "MiMoV2FlashForCausalLM",
            config: json!({
                "architectures": ["MiMoV2FlashForCausalLM"], "hidden_size": 64, "intermediate_size": 88,
                "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "num_attention_heads": 4,
                "num_key_value_heads": 2, "swa_num_key_value_heads": 2, "head_dim": 16, "v_head_dim": 16,
                "swa_head_dim": 16, "swa_v_head_dim": 16, "swa_num_attention_heads": 4, "num_hidden_layers": 2,
                "hybrid_layer_pattern": [0, 1], "layernorm_epsilon": 0.001, "rope_theta": 10000.0,
                "swa_rope_theta": 1000.0, "sliding_window": 8, "partial_rotary_factor": 0.5, "vocab_size": 96,
                "max_position_embeddings": 256, "attention_value_scale": 1.0, "topk_method": "noaux_tc",
            }),
            set: &[],
            layers: "model.layers.",
            heads: "model.mtp.layers.{k}",
            names: &[("nextn.shared_head_norm", "final_layernorm")],
            less_one: false,
            others: apart,
        },
        Published {
            golden: "qwen3next",
            class: "Qwen3NextForCausalLM",
            config: with(recurrent("Qwen3NextForCausalLM"), sparse.clone()),
            set: &[],
            layers: "model.layers.",
            heads: "mtp.layers.{k}",
            names: shared_names,
            less_one: true,
            others: by_key_head,
        },
        Published {
            golden: "qwen35",
            class: "Qwen3_5ForCausalLM",
            config: with(
                with(recurrent("Qwen3_5ForCausalLM"), rope.clone()),
                json!({ "intermediate_size": 72 }),
            ),
            set: &[],
            layers: "model.layers.",
            heads: "mtp.layers.{k}",
            names: shared_names,
            less_one: true,
            others: by_group,
        },
        Published {
            golden: "qwen35moe",
            class: "Qwen3_5MoeForConditionalGeneration",
            config: json!({
                "architectures": ["Qwen3_5MoeForConditionalGeneration"],
                "text_config": with(with(recurrent("Qwen3_5MoeForCausalLM"), rope), sparse),
            }),
            set: &[],
            layers: "model.language_model.layers.",
            heads: "mtp.layers.{k}",
            names: shared_names,
            less_one: true,
            others: by_group,
        },
        Published {
            golden: "step35-three",
            class: "Step3p5ForCausalLM",
            config: json!({
                "architectures": ["Step3p5ForCausalLM"], "hidden_size": 64, "intermediate_size": 88,
                "moe_intermediate_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "num_attention_heads": 4,
                "num_attention_groups": 2, "head_dim": 16, "num_hidden_layers": 2, "num_nextn_predict_layers": 3,
                "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
                "sliding_window": 8,
                "rope_theta": [10000.0, 1000.0, 1000.0, 10000.0, 1000.0], "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5, 1.0],
                "share_expert_dim": 16, "moe_router_scaling_factor": 1.7, "moe_router_activation": "sigmoid",
                "norm_expert_weight": true, "use_head_wise_attn_gate": true, "zero_centered": true, "vocab_size": 96,
                "swiglu_limits": [0.4, 0.2, 0.2, 0.3, 0.2], "swiglu_limits_shared": [0.3, 0.15, 0.15, 0.2, 0.15], "rms_norm_eps": 0.001,
                "max_position_embeddings": 256,
            }),
            set: &[],
            layers: "model.layers.",
            heads: "model.layers.{il}",
            names: &[
                ("attn_gate", "self_attn.g_proj"),
                ("ffn_gate_inp", "moe.gate"),
                ("exp_probs_b.bias", "moe.router_bias"),
                ("ffn_gate_shexp", "share_expert.gate_proj"),
                ("ffn_up_shexp", "share_expert.up_proj"),
                ("ffn_down_shexp", "share_expert.down_proj"),
                ("nextn.shared_head_norm", "transformer.shared_head.norm"),
                ("nextn.shared_head_head", "transformer.shared_head.output"),
            ],
            less_one: true,
            others: stacked,
        },
        Published {
            golden: "qwen2",
            class: "MiMoForCausalLM",
            config: json!({
                "architectures": ["MiMoForCausalLM"], "hidden_size": 64, "intermediate_size": 88, "num_attention_heads": 4,
                "num_key_value_heads": 2, "num_hidden_layers": 2, "num_nextn_predict_layers": 1, "rms_norm_eps": 0.001,
                "rope_theta": 10000.0, "vocab_size": 96, "max_position_embeddings": 256, "attention_bias": true,
            }),
            set: &[],
            layers: "model.layers.",
            heads: "model.mtp_layers.{k}",
            names: &[
                ("nextn.enorm", "token_layernorm"),
                ("nextn.hnorm", "hidden_layernorm"),
                ("nextn.shared_head_norm", "final_layernorm"),
            ],
            less_one: false,
            others: swapped,
        },
    ]
}
