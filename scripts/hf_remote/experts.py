"""Published classes with experts."""

import torch

from .base import QKV, Remote, Saved, build, llama_keys, remote, without
from .formulas import GATED, mlps


@remote("deepseek")
class DeepSeek(Remote):
    """Experts with shared experts, whose gate is always open: qwen2moe with a gate of one half and twice
    the shared expert."""

    NAMES = Remote.NAMES | {"mlp.gate.weight": "mlp.gate.weight"}
    NAMES |= {f"mlp.shared_expert.{name}.weight": f"mlp.shared_experts.{name}.weight" for name in GATED}
    KIND, MORE = "Qwen2Moe", ("num_experts_per_tok", "moe_intermediate_size")

    def keys(self):
        c = self.c
        names = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
        n, shared = (c.get(old, c.get(new)) for old, new in names.items())
        return super().keys() | {
            "num_experts": n, "qkv_bias": False, "shared_expert_intermediate_size": shared * c["moe_intermediate_size"],
            "norm_topk_prob": c.get("norm_topk_prob", False), "decoder_sparse_step": 1,
            "mlp_only_layers": list(range(c.get("first_k_dense_replace", 0))),
        }  # fmt: skip

    def n_experts(self):
        return self.c.get("n_routed_experts", self.c.get("num_experts"))

    def layout(self):
        c, out = self.c, super().layout()
        for il in range(c.get("first_k_dense_replace", 0), c["num_hidden_layers"]):
            at = self.LAYER.format(il) + "mlp.experts.{}."
            out |= mlps(at, GATED, c["hidden_size"], c["moe_intermediate_size"], self.n_experts())
        return out

    def split(self, w, at, il):
        out = super().split(w, at, il)
        if f"{at}mlp.gate.weight" not in w:
            return out
        part = lambda e, name: w[f"{at}mlp.experts.{e}.{name}.weight"]  # noqa: E731
        n = range(self.n_experts())
        return out | {
            "mlp.experts.gate_up_proj": torch.stack([torch.cat([part(e, "gate_proj"), part(e, "up_proj")]) for e in n]),
            "mlp.experts.down_proj": torch.stack([part(e, "down_proj") for e in n]),
            "mlp.shared_expert.down_proj.weight": 2 * w[at + "mlp.shared_experts.down_proj.weight"],
            "mlp.shared_expert_gate.weight": torch.zeros(1, self.c["hidden_size"]),
        }


@remote("bailingmoe")
class BailingMoe(DeepSeek):
    """The same with one projection for queries, keys and values."""

    LLAMA = DeepSeek.LLAMA | {"model.embed_tokens.weight": "model.word_embeddings.weight"}
    NAMES = without(DeepSeek.NAMES, *QKV) | {"self_attn.o_proj.weight": "attention.dense.weight"}

    FUSED = "attention.query_key_value"


@remote("bailingmoe2")
class BailingMoe2(BailingMoe):
    """As glm4moe with norms of heads, with RoPE on a part of each head."""

    NAMES = BailingMoe.NAMES | {
        "self_attn.q_norm.weight": "attention.query_layernorm.weight",
        "self_attn.k_norm.weight": "attention.key_layernorm.weight",
        "mlp.gate.e_score_correction_bias": "mlp.gate.expert_bias",
    } | {f"mlp.shared_experts.{name}.weight": f"mlp.shared_experts.{name}.weight" for name in GATED}  # fmt: skip
    KEYS = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
    KIND = "Glm4Moe"
    MORE = (
        "head_dim", "n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size", "n_group",
        "topk_group", "routed_scaling_factor", "first_k_dense_replace",
    )  # fmt: skip

    def keys(self):
        keys = Remote.keys(self)
        keys["rope_parameters"] |= {"partial_rotary_factor": self.c.get("partial_rotary_factor", 1.0)}
        more = {"use_qk_norm": True, "attention_bias": False, "norm_topk_prob": self.c.get("norm_topk_prob", True)}
        return keys | more

    def split(self, w, at, il):
        return without(super().split(w, at, il), "shared_expert.down_proj", "shared_expert_gate")


@remote("bailingmoe3-vl")
class BailingMoe3VL(Saved):
    """The text model of a model of images. Text alone has one position, so its sections change nothing."""

    def new(self):
        c = self.c["text_config"]
        names = (
            "moe_intermediate_size", "head_dim", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "num_experts_per_tok", "n_group",
            "topk_group", "first_k_dense_replace", "layer_group_size", "routed_scaling_factor", "q_lora_rank",
        )  # fmt: skip
        more = {name: c.get(name) for name in names}
        return build(
            "BailingHybrid", **llama_keys(c) | more, num_local_experts=c["num_experts"],
            n_shared_experts=c["num_shared_experts"], num_mtp_layers=0,
        )  # fmt: skip
