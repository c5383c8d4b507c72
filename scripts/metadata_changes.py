"""What scripts/metadata_vs_llama.py changes in the metadata of a model, one piece after another.

A change is a dict of keys relative to `<architecture>.`; the value None removes a key. Its name is its
text: `key=JSON` parts separated by spaces, which tests/it/metadata.rs reads as well. Integers are
written as u32, floats as f32, lists by their first element.
"""

import json

# Keys that say how large tensors are: another value can only be refused.
SHAPES = {
    "vocab_size", "embedding_length", "block_count", "feed_forward_length", "expert_count", "expert_feed_forward_length",
    "expert_shared_feed_forward_length", "expert_shared_count", "leading_dense_block_count", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.key_length_swa",
    "attention.value_length_swa", "attention.key_length_mla", "attention.value_length_mla", "attention.q_lora_rank",
    "attention.kv_lora_rank", "ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank", "ssm.group_count",
    "shortconv.l_cache", "nextn_predict_layers", "embedding_length_per_layer_input", "embedding_length_out", "kda.head_dim",
    "expert_latent_length", "moe_latent_size",
}


def name(change):
    """The text of a change."""
    return " ".join(f"{key}={json.dumps(value, separators=(',', ':'))}" for key, value in change.items())


def parse(text):
    """A change from its text."""
    return {key: json.loads(value) for key, value in (part.split("=", 1) for part in text.split(" "))}


def rope_changes(meta, n_head_dims):
    """Base, scaling of every type with and without what belongs to it, rotated dimensions."""
    base = float(meta.get("rope.freq_base", 10000.0))
    yield {"rope.freq_base": base * 3}
    yield {"rope.freq_base_swa": 3000.0}
    stretched = {"rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
    for kind in ("none", "linear", "yarn", "longrope"):
        yield {"rope.scaling.type": kind}
        yield {"rope.scaling.type": kind, "rope.scaling.factor": 4.0}
        yield {"rope.scaling.type": kind, **stretched}
        yield {"rope.scaling.type": kind, **stretched, "rope.scaling.attn_factor": 1.3}
        yield {"rope.scaling.type": kind, **stretched, "rope.scaling.yarn_log_multiplier": 0.5}
    yield {"rope.scaling.factor": 4.0}
    yield {"rope.scale_linear": 4.0}
    yarn = {"rope.scaling.type": "yarn", **stretched}
    pieces = [
        {"rope.scaling.attn_factor": 1.3},
        {"rope.scaling.yarn_log_multiplier": 0.1},
        {"rope.scaling.yarn_log_multiplier": 1.0},
        {"rope.scaling.yarn_ext_factor": 0.5},
        {"rope.scaling.yarn_ext_factor": 0.0},
        {"rope.scaling.yarn_attn_factor": 1.3},
        {"rope.scaling.yarn_beta_fast": 4.0},
        {"rope.scaling.yarn_beta_slow": 0.25},
        {"rope.scaling.original_context_length": 16},
    ]
    for piece in pieces:
        yield piece
        yield yarn | piece
    yield {"rope.scaling.alpha": 2.0}
    yield {"rope.scaling.finetuned": False}
    yield {"rope.scaling.finetuned": True}
    if n_head_dims >= 8:
        half = n_head_dims // 4 * 2
        yield {"rope.dimension_count": half}
        yield {"rope.dimension_count_swa": half}
    if sections := meta.get("rope.dimension_sections"):
        yield {"rope.dimension_sections": [sum(sections), 0, 0, 0]}
        yield {"rope.dimension_sections": [*sections[1:], sections[0]]}


def window_changes(meta, n_layers):
    """Windows removed, narrowed, everywhere, nowhere, by period and by layer, with a rotation of their own."""
    narrow = {"attention.sliding_window": 5}
    if "attention.sliding_window" not in meta:
        yield narrow
        yield narrow | {"attention.sliding_window_pattern": [il % 2 == 0 for il in range(n_layers)], "rope.freq_base_swa": 3000.0}
        yield {"attention.sliding_window": 0}
        return
    for size in (0, 3, 7, 1000):
        yield {"attention.sliding_window": size}
    patterns = [
        [True] * n_layers,
        [False] * n_layers,
        [il % 2 == 0 for il in range(n_layers)],
        [il % 2 == 1 for il in range(n_layers)],
        1, 2, 3,
    ]
    own = [
        {"rope.freq_base_swa": 3000.0},
        {"rope.scaling.factor": 4.0},
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64},
    ]
    for pattern in patterns:
        yield narrow | {"attention.sliding_window_pattern": pattern}
        for piece in own:
            yield narrow | {"attention.sliding_window_pattern": pattern} | piece
        yield {"attention.sliding_window_pattern": pattern}
    yield narrow | {"attention.sliding_window_pattern": patterns[2], "rope.dimension_count_swa": 4}
    yield {"attention.sliding_window": 0, "attention.sliding_window_pattern": patterns[2]}
    yield {"attention.sliding_window": 0, "attention.sliding_window_pattern": patterns[2], "rope.freq_base_swa": 3000.0}


def expert_changes(meta):
    """How experts are scored, picked and weighted."""
    n_expert = meta.get("expert_count", 0)
    if not isinstance(n_expert, int) or n_expert < 2:
        return
    used = meta.get("expert_used_count", 1)
    for value in (2.5, 0.0, 1.0):
        yield {"expert_weights_scale": value}
    for value in (True, False):
        yield {"expert_weights_norm": value}
        yield {"expert_weights_norm": value, "expert_weights_scale": 2.5}
    for value in range(5):
        yield {"expert_gating_func": value}
    if isinstance(used, int):
        yield {"expert_used_count": used + 1}
        yield {"expert_used_count": 1}
    for groups, of in ((2, 1), (4, 2), (4, 1), (4, 3), (1, 1), (2, 0)):
        yield {"expert_group_count": groups, "expert_group_used_count": of}
        if of == 1:
            yield {"expert_group_count": groups, "expert_group_used_count": of, "expert_used_count": 1}
    yield {"expert_group_count": 2}
    yield {"expert_group_scale": 0.5}
    yield {"interleave_moe_layer_step": 2}
    yield {"moe_every_n_layers": 2}
    yield {"router_logit_softcapping": 1.0}
    yield {"swiglu_clamp_exp": 0.1}
    yield {"swiglu_clamp_shexp": 0.1}


def other_changes(meta, n_layers):
    """Caps, clamps, biases by distance, scales, epsilons, temperature, residuals, causality, context."""
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        for value in (2.0, 0.0):
            yield {key: value}
    for value in (0.2, 0.0):
        yield {"attention.clamp_kqv": value}
    for value in (8.0, 0.0):
        yield {"attention.max_alibi_bias": value}
    for key in ("logit_scale", "residual_scale", "embedding_scale", "attention.scale", "attention.output_scale", "attention.value_scale"):
        for value in (0.6, 0.0):
            yield {key: value}
    for key in ("layer_norm_epsilon", "layer_norm_rms_epsilon", "group_norm_epsilon"):
        yield {f"attention.{key}": 0.1}
    for scale, length in ((0.5, None), (None, 4), (0.5, 4), (0.0, 4)):
        change = {"attention.temperature_scale": scale, "attention.temperature_length": length}
        yield {key: value for key, value in change.items() if value is not None}
    for value in (False, True):
        yield {"use_parallel_residual": value}
        yield {"attention.causal": value}
        yield {"swin_norm": value}
        yield {"ssm.dt_b_c_rms": value}
        yield {"kda.safe_gate": value}
    for value in (32, 128, 4096):
        yield {"context_length": value}
    yield {"attention.shared_kv_layers": 1}
    yield {"full_attention_interval": 2}
    yield {"attention.recurrent_layers": [il % 2 == 0 for il in range(n_layers)]}
    yield {"attention.group_norm_groups": 2}
    yield {"attention.rope_pattern": [il % 2 for il in range(n_layers)]}
    yield {"hidden_activation": "gelu"}
    yield {"kda.gate_lower_bound": -1.0}
    yield {"num_loops": 2}
    for value in (1, 3):
        yield {"pooling_type": value}


def all_changes(meta, dims):
    """Every change of a model with this metadata (keys without the architecture), each once.

    `dims` is the width of a head.
    """
    n_layers = meta["block_count"]
    removed = ({key: None} for key in meta if key not in SHAPES)
    groups = [
        rope_changes(meta, dims),
        window_changes(meta, n_layers),
        expert_changes(meta),
        other_changes(meta, n_layers),
        removed,
    ]
    seen = {}
    for group in groups:
        for change in group:
            if any(meta.get(key) != value for key, value in change.items()):
                seen.setdefault(name(change), change)
    return list(seen.values())
