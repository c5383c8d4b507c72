//! Deliberate faults: each must carry the logits further from the reference than the bound of an
//! exact path, or the goldens prove nothing about what the fault changes.

use std::collections::BTreeMap;

use lab_core::arch::{ArchDef, Library};
use lab_core::model;
use lab_core::model::{Model, Options};
use lab_core::plan::Plan;
use lab_inspect::compare::{PassOptions, ValueComparison, compare_values, record_values};
use toml::{Table, Value};

use crate::goldens::{
    EXACT, Golden, all_goldens, golden, library, of_folders, options, run, sourced, towers,
};
use crate::media_goldens::{MediaGolden, of_media};
use crate::support::command::scratch;
use crate::support::{PATHS, logits, nmse};

/// Values set in a definition, or taken out of it: path and TOML text.
pub(crate) type Edits = &'static [(&'static str, Option<&'static str>)];

/// A deliberate fault.
enum Fault {
    /// The definition says something else.
    Edit(Edits),
    /// The model is called differently.
    Drive(fn(&mut Model, &[u32]) -> Vec<f32>),
}

use Fault::{Drive, Edit};

/// Name, golden, fault.
#[rustfmt::skip]
const FAULTS: &[(&str, &str, Fault)] = &[
    ("embedding scaled", "llama", Edit(&[("embed/scale", Some("1.1"))])),
    ("embedding not scaled", "gemma", Edit(&[("embed/scale", None)])),
    ("embedding not normalised", "bert", Edit(&[("embed/norm", None)])),
    ("types of the tokens ignored", "bert", Edit(&[("embed/weights", Some("{ types = false }"))])),
    ("positions not embedded", "gpt2", Edit(&[("embed/weights", Some("{ positions = false }"))])),
    ("token table for a head of its own", "llama", Edit(&[("head/weights", Some("{ output = false }"))])),
    ("bias of the logits ignored", "qwen2", Edit(&[("head/weights", Some(r#"{ "output.bias" = false }"#))])),
    ("logits not scaled", "command-r", Edit(&[("head/scale", None)])),
    ("logits not bounded", "gemma2", Edit(&[("head/softcap", Some(r#""final_softcap * 2""#))])),
    ("the last layer left out", "llama", Edit(&[("stack/0/count", Some(r#""n_layer - 1""#))])),
    ("further input of a layer ignored", "gemma4-small", Edit(&[("stack/0/slot/input/when", Some(r#""il < 0""#))])),
    ("scale of a layer ignored", "gemma4", Edit(&[("stack/0/slot/scale/when", Some(r#""il < 0""#))])),
    ("no norm before the MLP", "llama", Edit(&[("stack/0/slot/ffn/pre", None)])),
    ("the norms of a layer swapped", "llama", Edit(&[("stack/0/slot/ffn/pre", Some(r#""attn_norm""#))])),
    ("norm after the sublayer left out", "gemma2", Edit(&[("stack/0/slot/ffn/post", None)])),
    ("norm after the sum taken for one before", "bert", Edit(&[("stack/0/slot/attn/after", None), ("stack/0/slot/attn/pre", Some(r#""attn_output_norm""#))])),
    ("the MLP result replaces the hidden state", "llama", Edit(&[("stack/0/slot/ffn/join", Some(r#""set""#))])),
    ("a residual scale that is not there", "llama", Edit(&[("stack/0/slot/ffn/scale", Some("1.01"))])),
    ("residual scale ignored", "granitemoe", Edit(&[("stack/0/slot/attn/scale", None)])),
    ("one of two parallel branches left out", "falcon-h1", Edit(&[("stack/0/slot/mixer/branch/mamba2/when", Some(r#""il < 0""#))])),
    ("eps ten times as large", "llama", Edit(&[("norm/default", Some(r#"{ kind = "rms", eps = "rms_eps * 10" }"#))])),
    ("layer norm for rms norm", "llama", Edit(&[("norm/default", Some(r#"{ kind = "layer", eps = "rms_eps" }"#))])),
    ("rms norm for layer norm", "gpt2", Edit(&[("norm/default/kind", Some(r#""rms""#)), ("norm/default/weights", Some("{ bias = false }"))])),
    ("rope pairs neighbours instead of halves", "qwen2", Edit(&[("stack/0/slot/attn/branch/attention/rope", Some(r#""norm""#))])),
    ("rope pairs halves instead of neighbours", "llama", Edit(&[("stack/0/slot/attn/branch/attention/rope", Some(r#""neox""#))])),
    ("rope base a little larger", "llama", Edit(&[("stack/0/slot/attn/branch/attention/rope", Some(r#""std""#)), ("rope/std", Some(r#"{ kind = "norm", base = "rope_base * 1.1" }"#))])),
    ("rope rotates two elements less", "llama", Edit(&[("stack/0/slot/attn/branch/attention/rope", Some(r#""std""#)), ("rope/std", Some(r#"{ kind = "norm", dims = "n_rot - 2" }"#))])),
    ("no rope", "qwen3", Edit(&[("stack/0/slot/attn/branch/attention/rope", Some(r#""none""#))])),
    ("rope in the layer that has none", "smollm3", Edit(&[("params/has_rope", Some("1"))])),
    ("frequency factors ignored", "llama-rope-freqs", Edit(&[("stack/0/slot/attn/branch/attention/rope", Some(r#""std""#)), ("rope/std", Some(r#"{ kind = "norm", weights = { factors = false } }"#))])),
    ("linear scaling ignored", "llama-linear", Edit(&[("stack/0/slot/attn/branch/attention/rope", Some(r#""std""#)), ("rope/std", Some(r#"{ kind = "norm", scaling = "none" }"#))])),
    ("yarn taken for linear", "llama-yarn", Edit(&[("stack/0/slot/attn/branch/attention/rope", Some(r#""std""#)), ("rope/std", Some(r#"{ kind = "norm", scaling = "linear" }"#))])),
    ("magnitude of yarn ignored", "llama-yarn", Edit(&[("stack/0/slot/attn/branch/attention/rope", Some(r#""std""#)), ("rope/std", Some(r#"{ kind = "norm", attn = 1.0 }"#))])),
    ("windowed layers rotated like the others", "gemma3", Edit(&[("stack/0/slot/attn/branch/attention/rope", Some(r#""if(il < 0, 'local', 'neox')""#))])),
    ("scores not scaled", "llama", Edit(&[("stack/0/slot/attn/branch/attention/scale", Some("1.0"))])),
    ("scores not bounded", "gemma2", Edit(&[("stack/0/slot/attn/branch/attention/softcap", Some(r#""attn_softcap * 2""#))])),
    ("keys and values swapped", "llama", Edit(&[("stack/0/slot/attn/branch/attention/weights", Some(r#"{ k = "attn_v", v = "attn_k" }"#))])),
    ("bias of the queries ignored", "llama-biases", Edit(&[("stack/0/slot/attn/branch/attention/weights", Some(r#"{ "q.bias" = false }"#))])),
    ("bias of the result ignored", "llama-biases", Edit(&[("stack/0/slot/attn/branch/attention/weights", Some(r#"{ "o.bias" = false }"#))])),
    ("heads not normalised", "qwen3", Edit(&[("stack/0/slot/attn/branch/attention/qk_norm", None)])),
    ("heads normalised apart instead of together", "olmo2", Edit(&[("stack/0/slot/attn/branch/attention/qk_norm", None)])),
    ("sinks ignored", "gpt-oss", Edit(&[("stack/0/slot/attn/branch/attention/weights", Some("{ sinks = false }"))])),
    ("softplus for the sigmoid of a gate", "qwen35", Edit(&[("stack/0/slot/mixer/branch/attention/gate_act", Some(r#""softplus""#))])),
    ("gate of the heads ignored", "step35", Edit(&[("stack/0/slot/attn/branch/attention/gate", Some(r#""none""#))])),
    ("values not clamped", "dbrx", Edit(&[("stack/0/slot/attn/branch/attention/clamp", None)])),
    ("keys of another layer", "gemma4-small", Edit(&[("stack/0/slot/attn/branch/attention/kv_layer", Some(r#""if(swa, min(kv_layer, 1), kv_layer)""#))])),
    ("values not normalised", "gemma4", Edit(&[("stack/0/slot/attn/branch/attention/v_norm", None)])),
    ("later tokens visible", "llama", Edit(&[("params/causal", Some("false"))])),
    ("earlier tokens only", "llada", Edit(&[("mode", Some(r#""causal""#))])),
    ("window one token wider", "gemma2", Edit(&[("cache/local", Some(r#"{ size = "n_swa + 1" }"#))])),
    ("window ignored", "gpt-oss", Edit(&[("cache/local", Some(r#"{ size = "n_ctx_train" }"#))])),
    ("window on one side instead of both", "modern-bert", Edit(&[("cache/local/window", Some(r#""standard""#))])),
    ("slopes of the positions ignored", "bloom", Edit(&[("cache/full/alibi", None)])),
    ("gate and up swapped", "llama", Edit(&[("stack/0/slot/ffn/branch/ffn/weights", Some(r#"{ gate = "ffn_up", up = "ffn_gate" }"#))])),
    ("gelu for silu", "llama", Edit(&[("stack/0/slot/ffn/branch/ffn/act", Some(r#""gelu""#))])),
    ("silu for gelu", "gemma", Edit(&[("stack/0/slot/ffn/branch/ffn/act", Some(r#""silu""#))])),
    ("gate of the shared expert ignored", "qwen2moe", Edit(&[("stack/0/slot/ffn/branch/shared/weights/out_gate", Some("false"))])),
    ("weights of the experts not renormalised", "qwen3moe", Edit(&[("params/expert_norm", Some("false"))])),
    ("weights of the experts renormalised", "olmoe", Edit(&[("stack/0/slot/ffn/branch/moe/renormalise", Some("true"))])),
    ("softmax over all experts before the choice", "gpt-oss", Edit(&[("stack/0/slot/ffn/branch/moe/score", Some(r#""softmax""#))])),
    ("sigmoid for softmax", "qwen3moe", Edit(&[("stack/0/slot/ffn/branch/moe/score", Some(r#""sigmoid""#))])),
    ("one expert more", "qwen3moe", Edit(&[("params/n_expert_used", Some("3"))])),
    ("groups of experts ignored", "bailingmoe2", Edit(&[("params/n_group", Some("1")), ("params/n_group_used", Some("1"))])),
    ("bias of the choice ignored", "glm4moe", Edit(&[("stack/0/slot/ffn/branch/moe/weights/selection", Some("false"))])),
    ("scale of the experts ignored", "dots1", Edit(&[("stack/0/slot/ffn/branch/moe/scale", None)])),
    ("experts not clamped", "maple", Edit(&[("act/expert", Some(r#"{ kind = "silu", clamp = "clamp_exp * 4", clamp_at = "before" }"#))])),
    ("shared expert left out", "qwen2moe", Edit(&[("stack/0/slot/ffn/branch/shared/when", Some(r#""il < 0""#))])),
    ("latent attention: scores scaled by the latent width", "minicpm3", Edit(&[("stack/0/slot/attn/branch/mla/scale", Some(r#""1 / sqrt(kv_lora_rank)""#))])),
    ("latent attention: rope pairs otherwise", "deepseek2", Edit(&[("rope/std/kind", Some(r#""neox""#))])),
    ("all keys attended to", "deepseek32", Edit(&[("stack/0/slot/attn/branch/mla/selection", Some(r#""if(il < 0, 'index', 'none')""#))])),
    ("one key less selected", "deepseek32", Edit(&[("params/index_top", Some("7"))])),
    ("indexer: rope pairs otherwise", "deepseek32", Edit(&[("rope/index/kind", Some(r#""norm""#))])),
    ("indexer: keys not normalised", "deepseek32", Edit(&[("selection/index/k_norm", None), ("norm/index", None)])),
    ("indexer: keys not rotated", "deepseek32", Edit(&[("selection/index/rope", Some(r#""none""#)), ("rope/index", None)])),
    ("selection of a layer before the latest one", "glm-dsa", Edit(&[("params/index_types", Some(r#""if(il == 0, 1, 0)""#)), ("assumptions", None)])),
    ("latent attention: rotated keys not normalised", "dots3note", Edit(&[("stack/0/slot/attn/branch/mla/weights/k_norm", Some("false"))])),
    ("delta net: heads mapped otherwise", "qwen35", Edit(&[("stack/0/slot/mixer/branch/delta_net/head_map", Some(r#""interleaved""#))])),
    ("delta net: state of two groups mixed up", "qwen35moe", Edit(&[("stack/0/slot/mixer/branch/delta_net/head_map", Some(r#""interleaved""#))])),
    ("router reads what the experts read", "gemma4-moe", Edit(&[("stack/0/slot/ffn/branch/moe/router_scale", Some("1.0"))])),
    ("keys for values", "gemma4-moe", Edit(&[("stack/0/slot/attn/branch/attention/v_norm", None)])),
    ("weight of an expert on the way out", "llama4", Edit(&[("stack/0/slot/ffn/branch/moe/weight_at", Some(r#""output""#))])),
    ("fused activation: gelu for silu", "gemma4-moe", Edit(&[("stack/0/slot/ffn/branch/moe/act", Some(r#""silu""#))])),
    ("temperature of far positions ignored", "mistral4", Edit(&[("params/temp_scale/default", Some(r#""0.0""#)), ("params/temp_scale/key", Some(r#""attention.none""#))])),
    ("embedding of an encoder scaled", "nomic-bert", Edit(&[("embed/scale", Some("1.2"))])),
    ("linear layer in place of the attention left out", "deci", Edit(&[("stack/0/slot/attn/branch/linear/when", Some("\"il < 0\""))])),
    ("delta net: silu for the sigmoid of the gate", "kimi-linear", Edit(&[("stack/0/slot/mixer/branch/delta_net/gate_act", Some(r#""silu""#))])),
    ("delta net: keys and values exchanged", "kimi-linear", Edit(&[("stack/0/slot/mixer/branch/delta_net/weights/k", Some(r#""attn_v""#)), ("stack/0/slot/mixer/branch/delta_net/weights/v", Some(r#""attn_k""#))])),
    ("latent attention left out", "kimi-linear", Edit(&[("stack/0/slot/mixer/branch/mla/when", Some(r#""il < 0""#))])),
    ("bias of the scores by distance ignored", "t5encoder", Edit(&[("stack/0/slot/attn/branch/attention/weights/rel_bias", Some("false"))])),
    ("scores scaled", "t5encoder", Edit(&[("stack/0/slot/attn/branch/attention/scale", None)])),
    ("the last bucket from half the distance on", "t5encoder", Edit(&[("stack/0/slot/attn/branch/attention/max_distance", Some("64"))])),
    ("bias of the layers that read for those that write", "t5", Edit(&[("stack/1/slot/attn/branch/attention/weights/rel_bias", Some(r#""/enc.blk.0.attn_rel_b.weight""#))])),
    ("the source not attended to", "t5", Edit(&[("stack/1/slot/cross/when", Some(r#""il < 0""#))])),
    ("the source not normalised", "t5", Edit(&[("stack/0/slot/out/pre", None)])),
    ("the source before its last layer", "t5", Edit(&[("stack/0/slot/out/when", Some(r#""depth == 0""#))])),
    ("a layer that writes left out", "t5-relu", Edit(&[("stack/1/count", Some(r#""n_decoder - 1""#))])),
    ("keys and values of the source swapped", "t5", Edit(&[("stack/1/slot/cross/branch/attention/weights/k", Some(r#""cross_attn_v.weight""#)), ("stack/1/slot/cross/branch/attention/weights/v", Some(r#""cross_attn_k.weight""#))])),
    ("the source as far as the text", "t5", Drive(|model, tokens| {
        model.set_source(0, &tokens[..5]).expect("it reads a source");
        run(model, tokens, 0, 0)
    })),
    ("gelu for relu", "t5-relu", Edit(&[("params/hidden_act", Some(r#""'gelu'""#))])),
    ("delta net: the bound of the decay ignored", "bailingmoe3", Edit(&[("stack/0/slot/mixer/branch/delta_net/decay_bound", Some("\"2 * decay_bound\""))])),
    ("latent attention: gate of the heads ignored", "bailingmoe3", Edit(&[("stack/0/slot/mixer/branch/mla/gate", None)])),
    ("the embedding not added again", "talkie", Edit(&[("stack/0/slot/again/when", Some("\"il < 0\""))])),
    ("factors of the query heads ignored", "talkie", Edit(&[("stack/0/slot/attn/branch/attention/weights/q_norm", Some("false"))])),
    ("keys of the first run of a layer for all of them", "nanbeige", Edit(&[("stack/0/slot/attn/branch/attention/kv_layer", Some(r#""il""#))])),
    ("no norm between the runs", "nanbeige", Edit(&[("params/skip_norm", Some("true"))])),
    ("hidden states begin as copies", "gemma3n", Edit(&[("mix/expand/kind", Some(r#""mean""#)), ("mix/expand/weights", None)])),
    ("hidden states end as their mean", "gemma3n", Edit(&[("mix/merge/kind", Some(r#""mean""#)), ("mix/merge/weights", None)])),
    ("scale of the first hidden state ignored", "gemma3n", Edit(&[("mix/input/weights/correct_scale", Some(r#""post_norm""#))])),
    ("router behind another norm", "gemma3n", Edit(&[("mix/default/weights", Some(r#"{ router_norm = "post_norm" }"#))])),
    ("the sparse gate of all layers", "gemma3n", Edit(&[("params/n_sparse", Some("22"))])),
    ("the sparse gate lets more through", "gemma3n", Edit(&[("act/sparse/cutoff", Some("1.6"))])),
    ("low-rank map left out", "gemma3n", Edit(&[("stack/0/slot/attn/branch/laurel/when", Some("\"il < 0\""))])),
    ("factors of what is read have no offset", "hy_v4", Edit(&[("mix/default/eps", None)])),
    ("factors of what is written have no offset", "hy_v4", Edit(&[("mix/default/write_eps", None)])),
    ("what is written halved", "hy_v4", Edit(&[("mix/default/magnitude", Some(r#""hc_magnitude / 2""#))])),
    ("the mean of the hidden states at the end", "hy_v4", Edit(&[("head/read", Some(r#""copies""#))])),
    ("factors of attention for the MLP", "hy_v4", Edit(&[("stack/0/slot/ffn/read", Some(r#""hc_attn""#)), ("stack/0/slot/ffn/write", Some(r#""hc_attn""#))])),
    ("what is written is what was read and the result", "hy_v4", Edit(&[("stack/0/slot/ffn/join", None)])),
    ("hidden states mixed once more", "glm5-next", Edit(&[("mix/default/rounds", Some(r#""hc_rounds + 1""#))])),
    ("a little less is written", "glm5-next", Edit(&[("mix/default/magnitude", Some("1.9"))])),
    ("one block less is selected", "glm5-next", Edit(&[("params/index_top", Some(r#""index_keys // index_span - 1""#))])),
    ("a further hidden state in other layers", "kimi-k3", Edit(&[("mix/attn_res/append", Some(r#""il % res_layers == 1""#))])),
    ("one hidden state for all layers", "kimi-k3", Edit(&[("mix/attn_res/append", None)])),
    ("scores of the mixer for the MLP", "kimi-k3", Edit(&[("stack/0/slot/ffn/read", Some(r#""attn_res""#)), ("stack/0/slot/ffn/write", Some(r#""attn_res""#)), ("mix/attn_res/append", None)])),
    ("activation with another bound", "kimi-k3", Edit(&[("act/mlp/beta", Some(r#""act_bound * 1.1""#))])),
    ("what the gate multiplies has no bound", "kimi-k3", Edit(&[("act/mlp/bound", Some(r#""0 * up_bound""#))])),
    ("norm of the experts' results left out", "kimi-k3", Edit(&[("stack/0/slot/ffn/branch/moe/latent_norm", None), ("stack/0/slot/ffn/branch/moe/weights/latent_norm", None)])),
    ("other tokens switch between adapters", "graniteswitch", Edit(&[("params/adapter_switches/key", Some(r#""adapters.token_ids_substitute""#))])),
    ("switches have rows of their own", "graniteswitch", Edit(&[("embed/stand_ins", Some(r#""adapter_switches""#)), ("params/adapter_stand_ins", None)])),
    ("a switch counts as any other token", "graniteswitch", Edit(&[("embed/gain", Some("0.0")), ("params/adapter_gain", None)])),
    ("gates of elements of another scale", "qwen4exp", Edit(&[("mix/default/magnitude", Some("1.9"))])),
    ("norms of the MLP's hidden states for attention", "qwen4exp", Edit(&[("stack/0/slot/mixer/read", Some(r#""hc_ffn""#)), ("stack/0/slot/mixer/write", Some(r#""hc_ffn""#))])),
    ("n-grams go on behind a stop token", "qwen4exp", Edit(&[("params/ple_stop", Some("1"))])),
    ("n-grams of another multiplier", "qwen4exp", Edit(&[("stack/0/slot/memory/branch/ngram_memory/multipliers", Some(r#""ple_sizes""#)), ("params/ple_multipliers", None)])),
    ("norm of the memory's keys for its convolution", "qwen4exp", Edit(&[("stack/0/slot/memory/branch/ngram_memory/weights", Some(r#"{ norm_conv = "ple_norm_key" }"#))])),
    ("memory in another layer", "qwen4exp", Edit(&[("stack/0/slot/memory/when", Some(r#""il < 0 and has_ple""#))])),
    ("memory begins anew in the second pass", "qwen4exp", Drive(|model, tokens| in_two(model, tokens, 1))),
    ("latent attention: sinks ignored", "hy_v4", Edit(&[("stack/0/slot/attn/branch/mla/weights/sinks", Some("false"))])),
    ("indexer rotates the first elements of its heads", "hy_v4", Edit(&[("selection/index/rope_at", None)])),
    ("a norm between the runs that is not there", "nanbeige-skip", Edit(&[("params/skip_norm", Some("false"))])),
    ("layers run once", "nanbeige", Edit(&[("stack/0/count", Some(r#""n_layer""#))])),
    ("layers run one by one instead of in turns", "nanbeige", Edit(&[("stack/0/il", Some(r#""depth // n_loops""#))])),
    ("learned state ignored", "hrm_text", Edit(&[("stack/0/slot/start/when", Some(r#""depth < 0""#))])),
    ("state of the other stack ignored", "hrm_text", Edit(&[("stack/0/slot/state/when", Some(r#""starts and depth < 0""#))])),
    ("one stack for the other", "hrm_text", Edit(&[("stack/0/il", Some(r#""depth % n_stack""#))])),
    ("state not normalised", "hrm_text", Edit(&[("stack/0/slot/end/branch/low/pre", None)])),
    ("values right after the keys", "cogvlm", Edit(&[("stack/0/slot/attn/branch/attention/v_row", None)])),
    ("shared experts left out", "grovemoe", Edit(&[("stack/0/slot/ffn/branch/group/when", Some(r#""il < 0""#))])),
    ("weight of the selected expert for the shared one", "grovemoe", Edit(&[("stack/0/slot/ffn/branch/group/share_weight", Some(r#""selected""#))])),
    ("shared experts read what the others read", "grovemoe", Edit(&[("stack/0/slot/ffn/branch/group/from", Some(r#""h""#)), ("stack/0/slot/ffn/branch/moe/save", None)])),
    ("factor of the shared experts ignored", "grovemoe", Edit(&[("stack/0/slot/ffn/branch/group/factor", None)])),
    ("delta net left out", "qwen3next", Edit(&[("stack/0/slot/mixer/branch/delta_net/when", Some(r#""il < 0""#))])),
    ("mamba: steps not normalised", "jamba", Edit(&[("stack/0/slot/mixer/branch/mamba/norm", Some(r#""none""#))])),
    ("mamba: bias of the convolution ignored", "mamba", Edit(&[("stack/0/slot/mixer/branch/mamba/weights", Some(r#"{ "conv.bias" = false }"#))])),
    ("mamba2: result not normalised", "mamba2", Edit(&[("stack/0/slot/mixer/branch/mamba2/weights", Some("{ norm = false }"))])),
    ("mamba2: bias of the convolution ignored", "mamba2", Edit(&[("stack/0/slot/mixer/branch/mamba2/weights", Some(r#"{ "conv.bias" = false }"#))])),
    ("short convolution left out", "lfm2", Edit(&[("stack/0/slot/mixer/branch/short_conv/when", Some(r#""il < 0""#))])),
    ("time mixing: bonus ignored", "rwkv6", Edit(&[("stack/0/slot/mixer/branch/wkv6/weights/bonus", Some("false"))])),
    ("time mixing: another norm of the heads", "rwkv6", Edit(&[("norm/heads/kind", Some(r#""rms""#))])),
    ("time mixing: silu for the sigmoid of the gate", "rwkv6qwen2", Edit(&[("stack/0/slot/mixer/branch/wkv6/gate_act", Some(r#""silu""#))])),
    ("time mixing: keys and values exchanged", "rwkv6qwen2", Edit(&[("stack/0/slot/mixer/branch/wkv6/weights/k", Some(r#""time_mix_value""#)), ("stack/0/slot/mixer/branch/wkv6/weights/v", Some(r#""time_mix_key""#))])),
    ("hidden state not halved", "rwkv6", Edit(&[("stack/0/slot/rescale/branch/identity/factor", Some("1.0"))])),
    ("channel mixing: shares exchanged", "rwkv6", Edit(&[("stack/0/slot/ffn/branch/channel_mix/weights/k", Some(r#""channel_mix_lerp_r""#))])),
    ("channel mixing: gate ignored", "rwkv6", Edit(&[("stack/0/slot/ffn/branch/channel_mix/weights/receptance", Some("false"))])),
    ("values not drawn to those of the first layer", "arwkv7", Edit(&[("stack/0/slot/mixer/branch/1/side", None), ("stack/0/slot/mixer/branch/first/save", None)])),
    ("what a layer gives for its values", "rwkv7", Edit(&[("stack/0/slot/mixer/branch/1/side", Some(r#""layer_in""#)), ("stack/0/slot/mixer/branch/first/save", None)])),
    ("time mixing: norm of the heads left out", "rwkv7", Edit(&[("stack/0/slot/mixer/branch/1/norm", Some(r#""none""#))])),
    ("linear attention: fades a little faster", "minimax-01", Edit(&[("stack/0/slot/mixer/branch/linear_attention/slope", Some(r#""1.05 - il / max(n_layer - 1, 1)""#))])),
    ("linear attention: silu for the sigmoid of the gate", "minimax-01", Edit(&[("stack/0/slot/mixer/branch/linear_attention/gate_act", Some(r#""silu""#))])),
    ("the hidden state added, not its norm", "minimax-01", Edit(&[("stack/0/slot/mixer/branch/identity/from", Some(r#""x""#))])),
    ("mamba by heads: steps not normalised", "plamo2", Edit(&[("stack/0/slot/mixer/branch/mamba/norm", Some(r#""none""#)), ("stack/0/slot/mixer/branch/mamba/weights", None)])),
    ("norm after a sublayer left out", "plamo2", Edit(&[("stack/0/slot/mixer/post", None), ("norm/post_attention_norm", None)])),
    ("pairs that do not rotate rotated", "lfm3", Edit(&[("stack/0/slot/mixer/branch/attention/rope", Some(r#""if(swa, 'local', 'std')""#)), ("rope/std", Some(r#"{ kind = "neox", weights = { factors = false } }"#))])),
    ("one base of the rotation for all layers", "lfm3", Edit(&[("rope/local/base", None), ("params/rope_base_swa", None)])),
    ("gates of the heads ignored", "lfm3", Edit(&[("stack/0/slot/mixer/branch/attention/gate", None)])),
    ("norm after the mixer left out", "lfm3", Edit(&[("stack/0/slot/mixer/post", None)])),
    ("short convolution begins anew in the second pass", "lfm3", Drive(|model, tokens| in_two(model, tokens, 1))),
    ("rope in layers without a window", "flint", Edit(&[("stack/0/slot/attn/branch/attention/rope", Some(r#""neox""#))])),
    ("sinks ignored", "flint", Edit(&[("stack/0/slot/attn/branch/attention/weights", Some("{ sinks = false }"))])),
    ("shared expert left out", "flint", Edit(&[("stack/0/slot/ffn/branch/shared/when", Some(r#""il < 0""#))])),
    ("weights of the experts renormalised", "flint-six", Edit(&[("stack/0/slot/ffn/branch/moe/renormalise", Some("true"))])),
    ("softmax for the sigmoids of the experts", "flint", Edit(&[("stack/0/slot/ffn/branch/moe/score", Some(r#""softmax""#))])),
    ("scores not bounded", "vaultgemma", Edit(&[("stack/0/slot/attn/branch/attention/softcap", None)])),
    ("scores of the usual scale", "vaultgemma", Edit(&[("stack/0/slot/attn/branch/attention/scale", None)])),
    ("embeddings not scaled", "vaultgemma-bare", Edit(&[("embed/scale", None)])),
    ("norms before the sublayers instead of after", "flex_olmo", Edit(&[("stack/0/slot/attn/post", None), ("stack/0/slot/attn/pre", Some(r#""post_attention_norm""#)), ("stack/0/slot/ffn/post", None), ("stack/0/slot/ffn/pre", Some(r#""post_ffw_norm""#))])),
    ("weights of the experts renormalised", "axk1-yarn", Edit(&[("stack/0/slot/experts/branch/moe/renormalise", Some("true"))])),
    ("heads normalised apart instead of together", "flex_olmo-seven", Edit(&[("stack/0/slot/attn/branch/attention/qk_norm", None)])),
    ("computed positions not embedded", "marian", Edit(&[("embed/weights", Some("{ positions = false }"))])),
    ("embeddings not scaled", "marian", Edit(&[("embed/scale", None)])),
    ("the source before its last norm", "m2m_100", Edit(&[("stack/0/slot/out/pre", None)])),
    ("a norm before the sublayer that attends to the source left out", "m2m_100", Edit(&[("stack/1/slot/cross/pre", None)])),
    ("bias of the scores by distance ignored", "mpnet", Edit(&[("stack/0/slot/attn/branch/attention/weights", Some("{ rel_bias = false }"))])),
    ("embeddings not scaled", "esm", Edit(&[("embed/scale", None)])),
    ("residuals not scaled", "esmc", Edit(&[("stack/0/slot/attn/scale", None)])),
    ("rms norms for layer norms", "esmc", Edit(&[("norm/default/kind", Some(r#""rms""#)), ("norm/default/weights", Some("{ bias = false }"))])),
    ("rope in layers without a window", "lara_mini", Edit(&[("stack/0/slot/mixer/branch/attention/rope", Some(r#""neox""#))])),
    ("rope pairs halves instead of neighbours", "privacy-filter-states", Edit(&[("stack/0/slot/attn/branch/attention/rope", Some(r#""neox""#))])),
    ("a window of half the size", "privacy-filter-states", Edit(&[("cache/near/size", Some(r#""n_swa // 2""#))])),
    ("embeddings not normalised", "nanochat", Edit(&[("embed/norm", None), ("embed/weights", None)])),
    ("queries and keys not normalised", "nanochat", Edit(&[("stack/0/slot/attn/branch/attention/qk_norm", None), ("stack/0/slot/attn/branch/attention/qk_norm_at", None), ("stack/0/slot/attn/branch/attention/weights", None)])),
    ("ReLU for its square", "nanochat", Edit(&[("stack/0/slot/ffn/branch/ffn/act", Some(r#""relu""#)), ("params/hidden_act", None)])),
    ("logits divided by their factor", "hyperclovax", Edit(&[("head/scale", Some(r#""1 / logit_scale""#))])),
    ("norm after the MLP left out", "hyperclovax", Edit(&[("stack/0/slot/ffn/post", None)])),
    ("norms of queries and keys left out", "persimmon", Edit(&[("stack/0/slot/attn/branch/attention/qk_norm", None)])),
    ("bias of the query norm ignored", "persimmon", Edit(&[("stack/0/slot/attn/branch/attention/weights", Some(r#"{ "q_norm.bias" = false }"#))])),
    ("all of a head rotated", "persimmon", Edit(&[("stack/0/slot/attn/branch/attention/rope", Some(r#""std""#)), ("rope/std", Some(r#"{ kind = "neox", dims = "d_head" }"#))])),
    ("norm after the experts left out", "axk1", Edit(&[("stack/0/slot/experts/post", None)])),
    ("groups of experts ignored", "axk1", Edit(&[("params/n_group", Some("1")), ("params/n_group_used", Some("1"))])),
    ("experts ranked by sigmoids", "kolibri1", Edit(&[("stack/0/slot/ffn/branch/moe/score", Some(r#""sigmoid""#))])),
    ("experts weighed by a softmax", "kolibri1-plain", Edit(&[("stack/0/slot/ffn/branch/moe/score", Some(r#""softmax_after""#))])),
    ("norm after the experts left out", "kolibri1", Edit(&[("stack/0/slot/ffn/post", None)])),
    ("result of the experts added in their layer too", "longcat_flash", Edit(&[("stack/0/slot/experts/scale", None)])),
    ("result of the experts left out", "longcat_flash", Edit(&[("stack/0/slot/ffn/branch/of_experts/when", Some(r#""il < 0""#))])),
    ("bias of the choice ignored", "longcat_flash", Edit(&[("stack/0/slot/experts/branch/moe/weights/selection", Some("false"))])),
    ("latent rows with the eps of the other norms", "longcat_flash", Edit(&[("stack/0/slot/attn/branch/mla/norm", None), ("params/latent_eps", None)])),
    ("delta net: another eps of the lengths", "qwen3next", Edit(&[("params/delta_eps", Some("0.1"))])),
    ("no activation before the head", "modernbert-decoder", Edit(&[("params/head_act", Some(r#""'none'""#))])),
    ("dense layer before the head left out", "modernbert-decoder", Edit(&[("head/weights", Some(r#"{ dense = false, dense_norm = false }"#))])),
    ("norm before the head left out", "bert-decoder", Edit(&[("head/weights", Some(r#"{ dense_norm = false, "dense_norm.bias" = false }"#))])),
    ("window one token wider", "modernbert-decoder", Edit(&[("cache/local", Some(r#"{ size = "n_swa + 1" }"#))])),
    ("norms after the sums instead of before the sublayers", "megatron-bert", Edit(&[("stack/0/slot/attn/pre", None), ("stack/0/slot/attn/after", Some(r#""attn_norm""#)), ("stack/0/slot/ffn/pre", None), ("stack/0/slot/ffn/after", Some(r#""ffn_norm""#))])),
    ("embeddings not normalised", "roberta-prelayernorm", Edit(&[("embed/norm", None)])),
    ("another activation", "opt", Edit(&[("stack/0/slot/ffn/branch/ffn/act", Some(r#""gelu""#)), ("params/hidden_act", None)])),
    ("embeddings not scaled", "biogpt", Edit(&[("embed/scale", None)])),
    ("scores scaled", "gpt_neo", Edit(&[("stack/0/slot/attn/branch/attention/scale", None)])),
    ("window one token wider", "gpt_neo", Edit(&[("cache/local", Some(r#"{ size = "n_swa + 1" }"#))])),
    ("rope in layers without a window", "cohere-compass", Edit(&[("stack/0/slot/both/branch/attention/rope", Some(r#""if(int(rope_pattern) < 2, 'local', 'none')""#))])),
    ("no rope in layers without a window", "cohere-compass-text", Edit(&[("stack/0/slot/both/branch/attention/rope", Some(r#""if(swa and int(rope_pattern) == 1, 'local', 'none')""#))])),
    ("one base of the rotation for all layers", "cohere-compass-text", Edit(&[("rope/local/base", None)])),
    ("rope pairs neighbours instead of halves", "cohere-compass", Edit(&[("rope/local/kind", Some(r#""norm""#))])),
    ("logits not scaled", "cohere-compass", Edit(&[("head/scale", None)])),
    ("rope pairs halves instead of neighbours", "codegen", Edit(&[("stack/0/slot/both/branch/attention/rope", Some(r#""neox""#))])),
    ("all of a head rotated", "gptj", Edit(&[("stack/0/slot/both/branch/attention/rope", Some(r#""std""#)), ("rope/std", Some(r#"{ kind = "norm", dims = "d_head" }"#))])),
    ("bias of the logits ignored", "codegen-tied", Edit(&[("head/weights", Some(r#"{ "output.bias" = false }"#))])),
    ("norms before the sublayers instead of after the sums", "openai-gpt", Edit(&[("stack/0/slot/attn/after", None), ("stack/0/slot/attn/pre", Some(r#""attn_output_norm""#)), ("stack/0/slot/ffn/after", None), ("stack/0/slot/ffn/pre", Some(r#""layer_output_norm""#))])),
    ("positions not embedded", "openai-gpt", Edit(&[("embed/weights", Some("{ positions = false }"))])),
    ("silu for the activation of the gate", "gte", Edit(&[("stack/0/slot/ffn/branch/ffn/act", Some(r#""silu""#)), ("params/hidden_act", None)])),
    ("types of the tokens ignored", "gte", Edit(&[("embed/weights", Some("{ types = false }"))])),

    ("rows of blocks ignored", "deepseek4", Edit(&[("cache/seen/span", None), ("stack/0/slot/attn/branch/compressed_attention/span", None), ("stack/0/slot/attn/branch/compressed_attention/overlap", None), ("stack/0/slot/attn/branch/compressed_attention/pool_cache", Some(r#""none""#)), ("stack/0/slot/attn/branch/compressed_attention/selection", None), ("selection/index", None), ("cache/parts", None)])),
    ("rows of blocks rotated as those of a window", "deepseek4", Edit(&[("rope/blocks/base", Some(r#""rope_base""#)), ("params/span_base", None)])),
    ("rows of blocks rotated without their scaling", "deepseek4", Edit(&[("rope/blocks/scaling", Some(r#""none""#))])),
    ("rows of a window scaled as those of blocks", "deepseek4-window", Edit(&[("rope/near/scaling", None)])),
    ("magnitude of the rotation of blocks raised", "deepseek4", Edit(&[("rope/blocks/log_mul", None)])),
    ("window of rows one wider", "deepseek4", Edit(&[("cache/seen/size", Some(r#""n_swa + 1""#))])),
    ("window of rows ignored", "deepseek4", Edit(&[("cache/seen/size", None)])),
    ("all blocks attended to", "deepseek4", Edit(&[("stack/0/slot/attn/branch/compressed_attention/selection", Some(r#""if(il < 0, 'index', 'none')""#))])),
    ("one block less selected", "deepseek4", Edit(&[("params/index_top", Some("7"))])),
    ("indexer of blocks rotates the first elements of its heads", "deepseek4", Edit(&[("selection/index/rope_at", None)])),
    ("rows of the indexer not normalised", "deepseek4", Edit(&[("selection/index/k_norm", None)])),
    ("sinks of compressed attention ignored", "deepseek4", Edit(&[("stack/0/slot/attn/branch/compressed_attention/weights/sinks", Some("false"))])),
    ("gates of blocks for what they are made of", "deepseek4", Edit(&[("stack/0/slot/attn/branch/compressed_attention/weights/pool", Some(r#""attn_compressor_gate""#)), ("stack/0/slot/attn/branch/compressed_attention/weights/pool_gate", Some(r#""attn_compressor_kv""#))])),
    ("gates of the indexer's blocks for what they are made of", "deepseek4", Edit(&[("stack/0/slot/attn/branch/compressed_attention/weights/index_pool", Some(r#""indexer_compressor_gate""#)), ("stack/0/slot/attn/branch/compressed_attention/weights/index_pool_gate", Some(r#""indexer_compressor_kv""#))])),
    ("the shared expert clamped as the others", "deepseek4", Edit(&[("act/shared", Some(r#"{ kind = "silu", clamp = "clamp_exp", clamp_at = "before" }"#))])),
    ("experts by their scores instead of the token", "deepseek4-by-token", Edit(&[("stack/0/slot/ffn/branch/moe/weights/by_token", Some("false"))])),
    ("experts of the token weighed by another score", "deepseek4-by-token", Edit(&[("stack/0/slot/ffn/branch/moe/score", Some(r#""sigmoid""#))])),
    ("weights of the token's experts not renormalised", "deepseek4-by-token", Edit(&[("stack/0/slot/ffn/branch/moe/renormalise", Some("false"))])),
    ("blocks begin anew in the second pass", "deepseek4", Drive(|model, tokens| in_two(model, tokens, 1))),
    ("another text before it in the cache", "llama", Drive(|model, tokens| {
        run(model, &tokens[5..9], 0, 0);
        run(model, tokens, 0, 4)
    })),
    ("positions begin anew in the second pass", "llama", Drive(|model, tokens| in_two(model, tokens, 1))),
    ("a second pass that begins with no state", "mamba", Drive(|model, tokens| in_two(model, tokens, 1))),
    ("time mixing begins anew in the second pass", "rwkv6", Drive(|model, tokens| in_two(model, tokens, 1))),
    ("time mixing begins anew in the second pass", "rwkv7", Drive(|model, tokens| in_two(model, tokens, 1))),
    ("linear attention begins anew in the second pass", "minimax-01", Drive(|model, tokens| in_two(model, tokens, 1))),
    ("two tokens exchanged", "llama", Drive(|model, tokens| {
        let mut tokens = tokens.to_vec();
        tokens.swap(1, 2);
        run(model, &tokens, 0, 0)
    })),
];

/// The logits of two passes, the second as the start of `sequence`.
fn in_two(model: &mut Model, tokens: &[u32], sequence: u32) -> Vec<f32> {
    let (a, b) = tokens.split_at(tokens.len() / 2);
    let mut out = run(model, a, 0, 0);
    out.extend(run(model, b, sequence, 0));
    out
}

/// Sets the value at `path`, whose parts are keys, places in a list, or the `name` or `block` of
/// the member of a list; `None` takes it out.
fn edit(definition: &mut Table, path: &str, value: Option<&str>) {
    let (parents, key) = path.rsplit_once('/').unwrap_or(("", path));
    let mut at = definition;
    let mut parts = parents.split('/').filter(|part| !part.is_empty());
    while let Some(part) = parts.next() {
        let inner = at.entry(part).or_insert_with(|| Value::Table(Table::new()));
        at = match inner {
            Value::Table(table) => table,
            Value::Array(list) => {
                let wanted = parts.next().expect("a member of the list");
                let named = |value: &Value| {
                    ["name", "block"]
                        .iter()
                        .any(|key| value.get(key).and_then(Value::as_str) == Some(wanted))
                };
                let place = wanted
                    .parse()
                    .ok()
                    .or_else(|| list.iter().position(named))
                    .unwrap_or_else(|| panic!("{path}: there is no `{wanted}`"));
                list[place].as_table_mut().expect("a table")
            }
            other => panic!("{path}: {other} holds nothing"),
        };
    }
    match value {
        Some(value) => {
            let mut parsed: Table = toml::from_str(&format!("value = {value}")).expect("TOML");
            at.insert(key.to_owned(), parsed.remove("value").expect("just read"));
        }
        None => {
            at.remove(key)
                .unwrap_or_else(|| panic!("{path}: there is nothing to take out"));
        }
    }
}

/// The definition of an architecture with some values changed.
fn edited(
    library: &Library,
    arch: &str,
    edits: &[(&str, Option<&str>)],
) -> Result<ArchDef, String> {
    let source = library.source(arch).expect("built in");
    let mut definition: Table = toml::from_str(&source.text).expect("TOML");
    for (path, value) in edits {
        edit(&mut definition, path, *value);
    }
    // Of several names that of the model.
    definition.insert("name".to_owned(), Value::String(arch.to_owned()));
    let text = toml::to_string(&definition).expect("still TOML");
    library
        .check("fault", &text)
        .map_err(|problems| problems.to_string())
}

/// The NMSE that a fault causes.
fn effect(library: &Library, golden: &Golden, fault: &Fault) -> Result<f64, String> {
    let found = match fault {
        Edit(edits) => {
            let def = edited(library, &golden.arch, edits)?;
            logits(&def, &golden.weights, golden.text(), &PATHS[0]).expect("an f32 cache")?
        }
        Drive(drive) => {
            let plan = golden.plan.clone();
            let model = Model::load(plan, &golden.weights, options(), &mut |_, _| {})
                .map_err(|error| error.to_string())?;
            let mut model = sourced(model, golden);
            drive(&mut model, &golden.tokens)
        }
    };
    Ok(nmse(&found, &golden.expected))
}

#[test]
fn the_gate_catches_deliberate_faults() {
    let library = library();
    let mut missed = Vec::new();
    for (name, on, fault) in FAULTS {
        match effect(&library, golden(on), fault) {
            Ok(error) if error > EXACT => println!("{name:48} {on:18} NMSE {error:.1e}"),
            Ok(error) => missed.push(format!("{name} on {on}: NMSE {error:.1e}")),
            Err(error) => missed.push(format!("{name} on {on}: does not run: {error}")),
        }
    }
    println!("{} faults, {} missed", FAULTS.len(), missed.len());
    assert!(missed.is_empty(), "not seen:\n{}", missed.join("\n"));
}

/// The tables in a list of a definition.
fn tables<'t>(of: &'t Table, key: &str) -> Vec<&'t Table> {
    let list = of.get(key).and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .filter_map(Value::as_table)
        .collect()
}

/// What can be wrong in any definition: a sublayer a little too large, a branch or norm left out, another activation, another
/// pairing of the rotation, no window.
fn usual_mistakes(definition: &Table) -> Vec<(String, Option<String>)> {
    let mut mistakes = Vec::new();
    let text = |of: &Table, key: &str| of.get(key).and_then(Value::as_str).map(str::to_owned);
    for (s, stack) in tables(definition, "stack").into_iter().enumerate() {
        for (i, slot) in tables(stack, "slot").into_iter().enumerate() {
            let place = format!("stack/{s}/slot/{i}");
            let norms = ["pre", "post", "after"].into_iter();
            let norms = norms.filter(|key| slot.contains_key(*key));
            mistakes.extend(norms.map(|key| (format!("{place}/{key}"), None)));
            // What replaces the hidden state may have any length where a norm follows, and nothing may be added at all.
            let is_nothing = slot.get("scale").and_then(Value::as_float) == Some(0.0);
            if text(slot, "join").is_none() && !is_nothing {
                let scale = match slot.get("scale") {
                    Some(Value::String(scale)) => format!("\"1.1 * ({scale})\""),
                    Some(scale) => format!("\"1.1 * {scale}\""),
                    None => "1.1".to_owned(),
                };
                mistakes.push((format!("{place}/scale"), Some(scale)));
            }
            let branches = tables(slot, "branch");
            for (b, branch) in branches.iter().enumerate() {
                let mut mistake = |key: &str, value: &str| {
                    let path = format!("{place}/branch/{b}/{key}");
                    mistakes.push((path, Some(format!("{value:?}"))));
                };
                if branches.len() > 1 {
                    mistake("when", "il < 0");
                }
                match text(branch, "act").as_deref() {
                    None => {}
                    Some("silu") => mistake("act", "gelu"),
                    // The file decides.
                    Some(act) if act.starts_with('(') => {
                        mistake("act", &format!("(if({act} == 'silu', 'gelu', 'silu'))"));
                    }
                    Some(_) => mistake("act", "silu"),
                }
                match text(branch, "rope").as_deref() {
                    Some("norm") => mistake("rope", "neox"),
                    Some("neox") => mistake("rope", "norm"),
                    _ => {}
                }
                if text(branch, "cache").is_some_and(|cache| cache.contains("local")) {
                    mistake("cache", "full");
                }
            }
        }
    }
    mistakes
}

/// Parts that no golden of a definition computes, and the definition that has the same part with goldens that do.
#[rustfmt::skip]
const SAME_IN: &[(&str, &str, &str)] = &[
    ("mistral3", "stack/0/slot/1/branch/1", "llama"),
    ("qwen3vlmoe", "stack/0/slot/2", "qwen3vl"),
];

/// Whether the goldens of another definition show a mistake at a path. The part that the path is in must be the same.
fn is_shown_elsewhere(library: &Library, name: &str, path: &str) -> bool {
    let is_of = |own: &&(&str, &str, &str)| own.0 == name && path.starts_with(own.1);
    let Some((_, part, other)) = SAME_IN.iter().find(is_of) else {
        return false;
    };
    let [own, of_other] = [name, other].map(|name| {
        let source = library.source(name).expect("built in");
        let definition = Value::Table(toml::from_str(&source.text).expect("TOML"));
        let mut steps = part.split('/');
        let found = steps.try_fold(&definition, |at, step| match at {
            Value::Array(list) => list.get(step.parse::<usize>().ok()?),
            at => at.get(step),
        });
        found.expect("it has the part").clone()
    });
    assert_eq!(own, of_other, "{name}: {part} is another in {other}");
    true
}

/// How far what a definition computes of a golden's tokens is from the reference; none if it does not run.
fn distance(def: &ArchDef, golden: &Golden) -> Option<f64> {
    let found = logits(def, &golden.weights, golden.text(), &PATHS[0])?.ok()?;
    Some(nmse(&found, &golden.expected))
}

#[test]
fn every_definition_has_mistakes_that_its_goldens_catch() {
    let (scratch, library) = (scratch(), library());
    let mut of: BTreeMap<String, Vec<&Golden>> = BTreeMap::new();
    for golden in all_goldens().chain(of_media().map(|of| &of.golden)) {
        of.entry(golden.def.names[0].clone())
            .or_default()
            .push(golden);
    }
    let names: Vec<String> = library.sources().map(|(name, _)| name.to_owned()).collect();
    let (mut unseen, mut few, mut n_caught) = (Vec::new(), Vec::new(), 0);
    for name in names {
        let Some(goldens) = of.remove(&name) else {
            continue;
        };
        let source = library.source(&name).expect("built in");
        let definition: Table = toml::from_str(&source.text).expect("TOML");
        let mut caught = 0;
        let mut folders: Option<Vec<Golden>> = None;
        for (path, value) in usual_mistakes(&definition) {
            let error = |golden: &Golden| {
                let def = edited(&library, &golden.arch, &[(&path, value.as_deref())]).ok()?;
                distance(&def, golden)
            };
            let mut errors = goldens.iter().filter_map(|golden| error(golden)).peekable();
            if errors.peek().is_none() {
                continue;
            }
            let is_seen = |error: f64| error > EXACT;
            // What no model of llama.cpp has, a folder of transformers may have.
            let is_caught = errors.any(is_seen) || {
                // One that the definition itself does not match shows nothing.
                let folders = folders.get_or_insert_with(|| {
                    let all = of_folders(&name, &scratch.path().join("folders"));
                    let own = |golden: &Golden| distance(&golden.def, golden);
                    let is_exact = |golden: &Golden| own(golden).is_some_and(|e| e <= EXACT);
                    all.into_iter().filter(is_exact).collect()
                });
                folders.iter().filter_map(error).any(is_seen)
            };
            match is_caught {
                true => caught += 1,
                false if is_shown_elsewhere(&library, &name, &path) => {}
                false => unseen.push(format!("{name}: {path}")),
            }
        }
        n_caught += caught;
        println!("{name:24} {caught:3} caught");
        if caught < 2 {
            few.push(format!("{name}: {caught}"));
        }
    }
    println!("{n_caught} mistakes caught, {} unseen", unseen.len());
    assert!(
        few.is_empty() && unseen.is_empty(),
        "fewer than two mistakes are caught: {few:?}\nno golden shows:\n{}",
        unseen.join("\n")
    );
}

/// Whether a plan computes what the path of a mistake names: a norm or a branch of a slot, or all of it.
fn computes(plan: &Plan, path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let number = |at: usize| parts.get(at).and_then(|part| part.parse::<usize>().ok());
    let of_stack = plan
        .layers
        .iter()
        .filter(|layer| Some(layer.stack) == number(1));
    let slots = of_stack.flat_map(|layer| &layer.slots);
    let mut slots = slots.filter(|slot| Some(slot.at) == number(3));
    slots.any(|slot| match parts[4] {
        "pre" => slot.pre.is_some(),
        "post" => slot.post.is_some(),
        "after" => slot.after.is_some(),
        "branch" => slot
            .branches
            .iter()
            .any(|branch| Some(branch.at) == number(5)),
        _ => true,
    })
}

#[test]
fn every_tower_has_mistakes_that_its_media_show() {
    let library = towers();
    let names: Vec<String> = library.sources().map(|(name, _)| name.to_owned()).collect();
    let (mut unseen, mut n_caught, mut n_towers) = (Vec::new(), 0, 0);
    for name in names {
        let of_tower = |of: &&MediaGolden| of.towers().any(|tower| tower.def.name == name);
        let goldens: Vec<&MediaGolden> = of_media().filter(of_tower).collect();
        if goldens.is_empty() {
            continue;
        }
        n_towers += 1;
        let source = library.source(&name).expect("built in");
        let definition: Table = toml::from_str(&source.text).expect("TOML");
        let (mut caught, mut absent) = (0, 0);
        for (path, value) in usual_mistakes(&definition) {
            let is_computed = |of: &&&MediaGolden| {
                let mut own = of.towers().filter(|tower| tower.def.name == name);
                own.any(|tower| computes(&tower.plan, &path))
            };
            let computing: Vec<_> = goldens.iter().filter(is_computed).collect();
            // Folders of other classes have it.
            if computing.is_empty() {
                absent += 1;
                continue;
            }
            let Ok(def) = edited(&library, &name, &[(&path, value.as_deref())]) else {
                continue;
            };
            let mut errors = computing
                .iter()
                .filter_map(|of| of.distance(&name, &def))
                .peekable();
            if errors.peek().is_none() {
                continue;
            }
            match errors.any(|error| error > EXACT) {
                true => caught += 1,
                false => unseen.push(format!("{name}: {path} = {value:?}")),
            }
        }
        println!("{name:24} {caught:3} caught, {absent} of parts that these folders lack");
        assert!(caught >= 8, "{name}: {caught}");
        n_caught += caught;
    }
    println!("{n_caught} mistakes caught, {} unseen", unseen.len());
    assert!(n_towers >= 3, "{n_towers}");
    assert!(unseen.is_empty(), "no folder shows:\n{}", unseen.join("\n"));
}

/// Wiring that makes no sense: golden, edits, part of the message.
#[rustfmt::skip]
const NONSENSE: &[(&str, Edits, &str)] = &[
    ("gemma4-small", &[("stack/0/slot/attn/branch/attention/kv_layer", Some("\"if(il < n_kv_own, il, 3)\""))],
        "layers.4.attn: reads the keys of layers.3.attn, whose cache or widths differ"),
    ("gemma4-small", &[("stack/0/slot/attn/branch/attention/kv_layer", Some("\"if(il < n_kv_own, il, if(il == 5, 4, 2))\""))],
        "layers.5.attn: reads the keys of layers.4.attn, which stores none"),
    ("gemma4-small", &[("stack/0/slot/attn/branch/attention/kv_layer", Some("\"il + 1\""))],
        "reads the keys of layer 1, which does not come before it"),
    ("qwen3moe", &[("params/n_expert_used", Some("5"))],
        "`used` is at least 1 and at most `experts`"),
    ("bailingmoe2", &[("params/n_group", Some("3"))],
        "`groups` divides `experts`"),
    ("llama", &[("stack/0/slot/attn/branch/attention/rope", Some(r#""std""#)), ("rope/std", Some(r#"{ kind = "norm", dims = "n_rot + 1" }"#))], "even"),
    ("hy_v4", &[("stack/0/slot/ffn/read", None)], "layers.0.ffn: reads none of the several hidden states"),
    ("hy_v4", &[("stack/0/slot/ffn/write", None)], "layers.0.ffn.read: what it gives is not written"),
    ("hy_v4", &[("stack/0/slot/attn/write", None)], "layers.0.ffn: reads one of several hidden states before what layers.0.attn.read gave is written"),
    ("hy_v4", &[("stack/0/slot/ffn/write", Some(r#""hc_attn""#))], "layers.0.ffn: is written by another mix than layers.0.ffn.read reads by"),
    ("hy_v4", &[("params/n_streams", Some("1"))], "a mix is of at least two hidden states"),
    ("graniteswitch", &[("embed/stand_ins", Some("3")), ("params/adapter_stand_ins", None)], "embed: 1 `stand_ins` of 3 `switches`"),
    ("graniteswitch", &[("embed/stand_ins", Some(r#""adapter_far""#)), ("params/adapter_far", Some(r#"{ key = "adapters.none", default = "n_vocab" }"#)), ("params/adapter_stand_ins", None), ("params/adapter_switches", Some(r#"{ key = "adapters.none", default = 1 }"#))], "embed: stand_ins: expected tokens below 96, found 96"),
    ("graniteswitch", &[("embed/gain", Some("-1.0")), ("params/adapter_gain", None)], "`gain` is not negative"),
    ("graniteswitch", &[("embed/rank", Some("8")), ("params/adapter_rank", None)], "expected [64, 8, 4]"),
    ("qwen4exp", &[("stack/0/slot/memory/write", None)], "layers.0.memory: all hidden states are written by the slot that reads them"),
    ("qwen4exp", &[("params/hc_rank", Some("0"))], "gates of low rank have a `rank`"),
    ("kimi-k3", &[("act/mlp/beta", Some(r#""0 * act_bound""#))], "`situ` has a positive `beta` and no `clamp`"),
    ("kimi-k3", &[("stack/0/slot/ffn/write", Some(r#""attn_res""#))], "layers.0.ffn: is written by another mix than layers.0.ffn.read reads by"),
    ("hy_v4", &[("stack/0/slot/ffn/read", Some(r#""copies""#)), ("stack/0/slot/ffn/write", Some(r#""copies""#))], "`mean` and `projected` start and end the hidden states"),
    ("deepseek4", &[("cache/seen/span", Some("8"))], "computes keys over spans of 4 positions, but its cache stores spans of 8"),
    ("deepseek4", &[("cache/seen/span", None)], "computes keys over spans of 4 positions, but its cache stores spans of 0"),
    ("deepseek4", &[("cache/parts/size", Some("7"))], "the keys of spans are made of 8 positions, which `parts` does not keep"),
    ("deepseek4", &[("params/span", Some(r#""if(il == 1, 6, 0)""#))], "`span` is 2, 4, 8 or a multiple of 16"),
    ("deepseek4", &[("selection/index/span", Some("8"))], "selects among spans of 4 positions by a selection of spans of 8"),
    ("deepseek4", &[("selection/index/pooled", None)], "selects among spans of 4 positions by a selection of keys"),
    ("deepseek4", &[("params/o_groups", Some("3"))], "`groups` divides `heads`"),
    ("deepseek4", &[("stack/0/slot/attn/branch/compressed_attention/pool_cache", Some(r#""if(span > 4, 'parts', 'none')""#))], "spans need a cache of the rows that are pooled"),
    ("deepseek4-by-token", &[("params/n_group", Some("2"))], "experts that follow from the token are not selected"),
    ("deepseek4-by-token", &[("params/n_expert_used", Some("4"))], "has the shape [3, 96], expected [4, 96] = [used, n_vocab]"),
    ("deepseek4", &[("cache/seen/alibi", Some("8.0"))], "a cache with keys of spans is causal, without ALiBi"),
    ("t5", &[("stack/0/slot/attn/branch/attention/cache", Some(r#""decoder""#)), ("stack/0/slot/attn/branch/own/cache", Some(r#""decoder""#)), ("cache/encoder", None)],
        "keys of the source, those of the layers that read it and those of the sequence each have a cache of their own"),
    ("t5", &[("cache/encoder/causal", Some("true"))],
        "encoder.0.attn: the layers that read the source attend to all of it: their cache is not causal"),
    ("t5", &[("cache/cross/size", Some("8"))],
        "decoder.0.cross: queries attend to all keys of the source: their cache is not causal, and has no window and no ALiBi"),
    ("t5", &[("cache/decoder/size", Some("8"))],
        "decoder.0.attn: a cache of a model that reads a source has no window and no keys of spans"),
    ("t5", &[("stack/1/slot/ffn/from", Some(r#""source""#))],
        "the tap `source` is read before it is saved"),
    ("t5", &[("params/start_token", Some("96"))],
        "`start_token` is 96, expected a token below 96"),
    ("t5", &[("stack/1/slot/attn/branch/0/max_distance", Some("0")), ("stack/1/slot/attn/branch/1/max_distance", Some("0"))],
        "`max_distance` is 1 to 4096"),
    ("rwkv7", &[("params/wkv_d", Some("32"))], "heads have 64 or 128 elements"),
    ("rwkv6", &[("params/wkv_d", Some("24"))], "`d` divides the width of the hidden state"),
];

#[test]
fn invalid_wiring_is_refused() {
    let library = library();
    for (on, edits, expected) in NONSENSE {
        let golden = golden(on);
        let def = edited(&library, &golden.arch, edits).expect("its text is sound");
        let error = Plan::new(&def, golden.weights.metadata(), &golden.weights)
            .expect_err(expected)
            .to_string();
        assert!(error.contains(expected), "{error}\n expected {expected}");
    }
}

/// The value that a fault changes first: golden, edits, path.
#[rustfmt::skip]
pub(crate) const FIRST: &[(&str, Edits, &str)] = &[
    ("llama", &[("embed/scale", Some("1.1"))], "embed.tokens"),
    ("llama", &[("stack/0/slot/attn/branch/attention/rope", Some(r#""neox""#))], "layers.0.attn.q"),
    ("qwen3", &[("stack/0/slot/attn/branch/attention/scale", Some("1.0"))], "layers.0.attn.weights"),
    ("gemma2", &[("cache/local", Some(r#"{ size = "n_swa + 1" }"#))], "layers.0.attn.weights"),
    ("gemma2", &[("stack/0/slot/attn/post", None)], "layers.0.attn.out"),
    ("llama", &[("stack/0/slot/ffn/branch/ffn/act", Some("\"gelu\""))], "layers.0.ffn.hidden"),
    ("smollm3", &[("params/has_rope", Some("1"))], "layers.3.attn.q"),
    ("llama", &[("head/weights", Some("{ output = false }"))], "head.logits"),
];

/// How the values of a golden differ from those of its definition with some values changed.
pub(crate) fn compared(library: &Library, golden: &Golden, edits: Edits) -> ValueComparison {
    let right = values(&golden.def, golden);
    let wrong = values(
        &edited(library, &golden.arch, edits).expect("sound"),
        golden,
    );
    assert_eq!(
        compare_values(&right, &right, EXACT).divergence(EXACT),
        None
    );
    compare_values(&right, &wrong, EXACT)
}

/// Every value that a definition computes of a golden's tokens.
pub(crate) fn values(def: &ArchDef, golden: &Golden) -> Vec<model::NamedValue> {
    let plan = Plan::new(def, golden.weights.metadata(), &golden.weights).expect("it fits");
    let watching = Options {
        capture: true,
        ..options()
    };
    let model = Model::load(plan, &golden.weights, watching, &mut |_, _| {}).expect("it loads");
    let mut model = sourced(model, golden);
    let passes = PassOptions {
        chunk: golden.tokens.len(),
        stateless: false,
    };
    record_values(&mut model, &golden.tokens, passes).expect("it runs")
}

#[test]
fn the_first_value_that_differs_is_where_the_fault_is() {
    let library = library();
    for (on, edits, expected) in FIRST {
        let golden = golden(on);
        let report = compared(&library, golden, edits);
        let found = report.divergence(EXACT).map(|value| value.path.as_str());
        assert_eq!(found, Some(*expected), "{on}: {edits:?}");
    }
}

#[test]
fn problems_of_many_layers_are_found_in_good_time() {
    use lab_base::weights::{Metadata, Value, Weights};
    let def = library().get("deepseek2").expect("built in");
    let mut metadata = Metadata::default();
    for (key, value) in [
        ("block_count", 4096),
        ("embedding_length", 64),
        ("vocab_size", 64),
        ("context_length", 64),
        ("attention.head_count", 4),
        ("attention.kv_lora_rank", 16),
        ("attention.key_length_mla", 16),
        ("attention.value_length_mla", 16),
        ("rope.dimension_count", 8),
        ("feed_forward_length", 64),
        ("expert_count", 4),
        ("expert_used_count", 2),
        ("expert_feed_forward_length", 64),
    ] {
        metadata.insert(format!("deepseek2.{key}"), Value::U32(value));
    }
    metadata.insert(
        "deepseek2.attention.layer_norm_rms_epsilon",
        Value::F32(1e-6),
    );
    let weights = Weights::of("hostile".into(), metadata, Vec::new()).expect("sound");
    let start = std::time::Instant::now();
    let error = Plan::new(&def, weights.metadata(), &weights).expect_err("nothing is there");
    let elapsed = start.elapsed();
    // Comparing each with all before it would take long for so many; they are collected up to a bound.
    assert!(
        (1 << 14..1 << 15).contains(&error.problems.len()),
        "{error}"
    );
    assert!(elapsed.as_secs() < 20, "{elapsed:?}");
    let distinct: std::collections::BTreeSet<&String> = error.problems.iter().collect();
    assert_eq!(distinct.len(), error.problems.len(), "each is told once");
}
