"""What scripts/metadata_vs_llama.py changes in the metadata of a model, one piece after another.

A change is a dict of keys relative to `<architecture>.`; the value None removes a key. Its name is its
text: `key=JSON` parts separated by spaces, which tests/it/metadata.rs reads as well. Integers are
written as u32, floats as f32, lists by their first element.
"""

import itertools
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


def singly(table):
    """Each value of each key alone."""
    return [{key: value} for key, values in table.items() for value in values]


STRETCHED = {"rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
YARN = {"rope.scaling.type": "yarn", **STRETCHED}
EVERY = (False, True)


def rope_changes(meta, n_head_dims):
    """Base, scaling of every type with and without what belongs to it, rotated dimensions."""
    yield {"rope.freq_base": float(meta.get("rope.freq_base", 10000.0)) * 3}
    yield {"rope.freq_base_swa": 3000.0}
    more = [
        {}, {"rope.scaling.factor": 4.0}, STRETCHED, STRETCHED | {"rope.scaling.attn_factor": 1.3},
        STRETCHED | {"rope.scaling.yarn_log_multiplier": 0.5},
    ]  # fmt: skip
    for kind in ("none", "linear", "yarn", "longrope"):
        yield from ({"rope.scaling.type": kind} | piece for piece in more)
    yield from singly({"rope.scaling.factor": [4.0], "rope.scale_linear": [4.0]})
    pieces = {
        "rope.scaling.attn_factor": [1.3], "rope.scaling.yarn_log_multiplier": [0.1, 1.0],
        "rope.scaling.yarn_ext_factor": [0.5, 0.0], "rope.scaling.yarn_attn_factor": [1.3],
        "rope.scaling.yarn_beta_fast": [4.0], "rope.scaling.yarn_beta_slow": [0.25],
        "rope.scaling.original_context_length": [16],
    }  # fmt: skip
    for piece in singly(pieces):
        yield piece
        yield YARN | piece
    yield from singly({"rope.scaling.alpha": [2.0], "rope.scaling.finetuned": EVERY})
    if n_head_dims >= 8:
        half = n_head_dims // 4 * 2
        yield from singly({"rope.dimension_count": [half], "rope.dimension_count_swa": [half]})
    if sections := meta.get("rope.dimension_sections"):
        yield from singly({"rope.dimension_sections": [[sum(sections), 0, 0, 0], [*sections[1:], sections[0]]]})


def window_changes(meta, n_layers):
    """Windows removed, narrowed, everywhere, nowhere, by period and by layer, with a rotation of their own."""
    size, pattern = "attention.sliding_window", "attention.sliding_window_pattern"
    narrow, base = {size: 5}, {"rope.freq_base_swa": 3000.0}
    even, odd = ([il % 2 == first for il in range(n_layers)] for first in (0, 1))
    if size not in meta:
        yield from [narrow, narrow | {pattern: even} | base, {size: 0}]
        return
    yield from singly({size: (0, 3, 7, 1000)})
    for value in ([True] * n_layers, [False] * n_layers, even, odd, 1, 2, 3):
        for piece in ({}, base, {"rope.scaling.factor": 4.0}, YARN):
            yield narrow | {pattern: value} | piece
        yield {pattern: value}
    yield narrow | {pattern: even, "rope.dimension_count_swa": 4}
    yield from [{size: 0, pattern: even}, {size: 0, pattern: even} | base]


def expert_changes(meta):
    """How experts are scored, picked and weighted."""
    n_expert = meta.get("expert_count", 0)
    if not isinstance(n_expert, int) or n_expert < 2:
        return
    used = meta.get("expert_used_count", 1)
    yield from singly({"expert_weights_scale": (2.5, 0.0, 1.0), "expert_weights_norm": EVERY})
    yield from singly({"expert_gating_func": range(5)})
    yield from ({"expert_weights_norm": value, "expert_weights_scale": 2.5} for value in EVERY)
    if isinstance(used, int):
        yield from singly({"expert_used_count": (used + 1, 1)})
    for groups, of in ((2, 1), (4, 2), (4, 1), (4, 3), (1, 1), (2, 0)):
        yield {"expert_group_count": groups, "expert_group_used_count": of}
        if of == 1:
            yield {"expert_group_count": groups, "expert_group_used_count": of, "expert_used_count": 1}
    yield from singly({
        "expert_group_count": [2], "expert_group_scale": [0.5], "interleave_moe_layer_step": [2],
        "moe_every_n_layers": [2], "router_logit_softcapping": [1.0], "swiglu_clamp_exp": [0.1],
        "swiglu_clamp_shexp": [0.1],
    })  # fmt: skip


def other_changes(meta, n_layers):
    """Caps, clamps, biases by distance, scales, epsilons, temperature, residuals, causality, context."""
    scale, length = "attention.temperature_scale", "attention.temperature_length"
    yield from [{scale: 0.5}, {length: 4}, {scale: 0.5, length: 4}, {scale: 0.0, length: 4}]
    yield from singly({
        "attn_logit_softcapping": (2.0, 0.0), "final_logit_softcapping": (2.0, 0.0), "attention.clamp_kqv": (0.2, 0.0),
        "attention.max_alibi_bias": (8.0, 0.0), "logit_scale": (0.6, 0.0), "residual_scale": (0.6, 0.0),
        "embedding_scale": (0.6, 0.0), "attention.scale": (0.6, 0.0), "attention.output_scale": (0.6, 0.0),
        "attention.value_scale": (0.6, 0.0), "attention.layer_norm_epsilon": [0.1],
        "attention.layer_norm_rms_epsilon": [0.1], "attention.group_norm_epsilon": [0.1],
        "use_parallel_residual": EVERY, "attention.causal": EVERY, "swin_norm": EVERY, "ssm.dt_b_c_rms": EVERY,
        "kda.safe_gate": EVERY, "context_length": (32, 128, 4096), "attention.shared_kv_layers": [1],
        "full_attention_interval": [2], "attention.recurrent_layers": [[il % 2 == 0 for il in range(n_layers)]],
        "attention.group_norm_groups": [2], "attention.rope_pattern": [[il % 2 for il in range(n_layers)]],
        "hidden_activation": ["gelu"], "kda.gate_lower_bound": [-1.0], "num_loops": [2], "pooling_type": (1, 3),
    })  # fmt: skip


def all_changes(meta, dims):
    """Every change of a model with this metadata (keys without the architecture), each once.

    `dims` is the width of a head.
    """
    n_layers = meta["block_count"]
    removed = singly({key: [None] for key in meta if key not in SHAPES})
    groups = rope_changes(meta, dims), window_changes(meta, n_layers), expert_changes(meta)
    seen = {}
    for change in itertools.chain(*groups, other_changes(meta, n_layers), removed):
        if any(meta.get(key) != value for key, value in change.items()):
            seen.setdefault(name(change), change)
    return list(seen.values())
