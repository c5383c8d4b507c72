"""Published classes with latent attention."""

import re

import torch
from torch.nn import functional as F

from .base import Same, build, remote, without
from .formulas import GATED, W132, Formulas, Plain, attend, mlp, mlps


@remote("hy_v4")
class HunyuanV4(Same):
    """The class of transformers rotates halves of the end of a head, where published tensors have neighbours."""

    RENAMED = [
        (r"\.self_attn\.sinks$", ".self_attn.learnable_sink_param"),
        (r"\.self_attn\.gate_proj\.", ".self_attn.linear_gate."),
        (r"\.attn_hc\.", ".hc_attn_layer.hc_pre.hc_"),
        (r"\.ffn_hc\.", ".hc_mlp_layer.hc_pre.hc_"),
        (r"\.hc_head\.hc_", ".hc_head.hc_head_"),
    ]

    def new(self):
        model = build("HYV4", **without(self.c, "architectures", "model_type") | {"pad_token_id": None})
        for layer in model.model.layers:  # The eps of transformers is 1e-6 here, whatever the configuration says.
            layer.self_attn.q_a_layernorm.variance_epsilon = self.c["rms_norm_eps"]
            layer.self_attn.kv_a_layernorm.variance_epsilon = self.c["rms_norm_eps"]
        return model

    def stored(self, name):
        for pattern, published in self.RENAMED:
            name = re.sub(pattern, published, name)
        return name

    def value(self, name, w):
        c, value = self.c, super().value(name, w)
        heads = {"q_b_proj.": c["num_attention_heads"], "indexer.wq_b.": c["index_n_heads"]}
        for part, n in (heads | {"kv_a_proj_with_mqa.": 1, "indexer.wk.": 1, "indexer.k_norm.": 1}).items():
            value = self.halves(value, n) if part in name else value
        return value

    def halves(self, value, heads):
        """Rows whose last ones of each head pair neighbours, in the order that pairs halves."""
        end = self.c["qk_rope_head_dim"]
        rows = value.unflatten(0, (heads, -1))
        rotated = rows[:, -end:]
        return torch.cat([rows[:, :-end], rotated[:, 0::2], rotated[:, 1::2]], 1).flatten(0, 1)


@remote("hy_v4-saved")
class HunyuanV4Saved(HunyuanV4):
    """The same with the names that transformers 5.24 saves, which are not the published ones."""

    RENAMED = [
        (r"\.self_attn\.sinks$", ".self_attn.learnable_sink_param"),
        (r"\.gate_proj\.", ".linear_gate."),
        (r"\.attn_hc\.", ".hc_pre.hc_attn_layer.hc_"),
        (r"\.ffn_hc\.", ".hc_pre.hc_mlp_layer.hc_"),
        (r"\.hc_head\.hc_", ".hc_pre.hc_head.hc_head_"),
    ]


@remote("kimi-k3")
class KimiK3(Plain):
    """A delta rule in most layers, latent attention without positions in the others, experts on a narrower hidden state, and
    attention residuals: what a sublayer reads is a mean of the hidden states with which blocks of layers began and of the
    current one, weighted by the softmax of their scores."""

    unused = ("vision_tower.", "mm_projector.", "layers.0.self_attention_res_")

    class Model(Formulas):
        def gated(self, y, gate, up, down):
            c = self.c["text_config"]
            beta, bound = c["activation_situ_beta"], c["activation_situ_linear_beta"]
            gate, up = self.linear(y, gate), self.linear(y, up)
            up = bound * torch.tanh(up / bound) if bound else up
            return self.linear(beta * torch.tanh(gate / beta) * gate.sigmoid() * up, down)

        def normed(self, x, name, eps):
            return self.rms(x, name + ".weight", eps)

        def convolved(self, y, at, name):
            x, weight = self.linear(y, f"{at}{name}_proj").T, self[f"{at}{name}_conv1d.weight"]
            x = F.conv1d(F.pad(x, (weight.shape[-1] - 1, 0)), weight, groups=len(weight))
            return F.silu(x.T).unflatten(-1, (-1, self.c["text_config"]["linear_attn_config"]["head_dim"]))

        def delta_rule(self, y, at):
            c = self.c["text_config"]
            of = c["linear_attn_config"]
            h, d = of["num_heads"], of["head_dim"]
            q, k, v = (self.convolved(y, at, name) for name in "qkv")
            q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
            low = self.linear(self.linear(y, at + "f_a_proj"), at + "f_b_proj") + self[at + "dt_bias"]
            kept = (of["gate_lower_bound"] * (self[at + "A_log"][:h, None].exp() * low.unflatten(-1, (h, d))).sigmoid()).exp()
            share = self.linear(y, at + "b_proj").sigmoid()
            state, out = torch.zeros(h, d, d, dtype=y.dtype), []
            for t in range(len(y)):
                state = state * kept[t, :, :, None]
                wrong = v[t] - torch.einsum("hkv,hk->hv", state, k[t])
                state = state + torch.einsum("hk,hv->hkv", k[t], share[t, :, None] * wrong)
                out.append(torch.einsum("hkv,hk->hv", state, q[t]) * d**-0.5)
            y = self.normed(torch.stack(out), at + "o_norm", c["rms_norm_eps"]) * self.linear(y, at + "g_proj").sigmoid().unflatten(-1, (h, d))
            return self.linear(y.flatten(-2), at + "o_proj")

        def attention(self, y, at):
            c = self.c["text_config"]
            h, nope, end, rank = (c[key] for key in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank"))
            q = self.normed(self.linear(y, at + "q_a_proj"), at + "q_a_layernorm", 1e-6) if c["q_lora_rank"] else y
            q = self.heads(q, at + ("q_b_proj" if c["q_lora_rank"] else "q_proj"), h)
            low, shared = self.linear(y, at + "kv_a_proj_with_mqa").split([rank, end], -1)
            k, v = self.heads(self.normed(low, at + "kv_a_layernorm", 1e-6), at + "kv_b_proj", h).split([nope, c["v_head_dim"]], -1)
            k = torch.cat([k, shared.expand(h, -1, -1)], -1)
            mixed = attend(q, k, v)
            return self.linear(mixed * self.linear(y, at + "g_proj").sigmoid(), at + "o_proj")

        def experts(self, y, at):
            c = self.c["text_config"]
            scores = self.linear(y, at + "gate").sigmoid()
            index = (scores + self[at + "gate.e_score_correction_bias"]).topk(c["num_experts_per_token"], -1)[1]
            weights = scores.gather(-1, index)
            weights = weights / (weights.sum(-1, True) if c["moe_renormalize"] else 1) * c["routed_scaling_factor"]
            low = self.linear(y, at + "routed_expert_down_proj")
            routed = self.chosen(low, weights, index, lambda row, e: self.gated(row, *(f"{at}experts.{e}.{w}" for w in W132)))
            routed = self.linear(self.normed(routed, at + "routed_expert_norm", c["rms_norm_eps"]), at + "routed_expert_up_proj")
            return routed + self.gated(y, *(f"{at}shared_experts.{name}" for name in GATED))

        def mean(self, states, name):
            states = torch.stack(states, 1)
            scores = self.linear(self.normed(states, name + "_norm", self.c["text_config"]["rms_norm_eps"]), name + "_proj")
            return (scores.softmax(1) * states).sum(1)

        def states(self, ids):
            c, top = self.c["text_config"], "language_model.model."
            x, begun = self[top + "embed_tokens.weight"][ids], []
            for il in range(c["num_hidden_layers"]):
                at = f"{top}layers.{il}."
                y = self.mean([*begun, x], at + "self_attention_res") if begun else x
                mix = self.attention if il + 1 in c["linear_attn_config"]["full_attn_layers"] else self.delta_rule
                y = mix(self.normed(y, at + "input_layernorm", c["rms_norm_eps"]), at + "self_attn.")
                if il % c["attn_res_block_size"] == 0:
                    begun, x = [*begun, x], y
                else:
                    x = x + y
                y = self.normed(self.mean([*begun, x], at + "mlp_res"), at + "post_attention_layernorm", c["rms_norm_eps"])
                dense = il < c["first_k_dense_replace"]
                x = x + (self.gated(y, *(f"{at}mlp.{name}" for name in GATED)) if dense else self.experts(y, at + "block_sparse_moe."))
            return self.normed(self.mean([*begun, x], top + "output_attn_res"), top + "norm", c["rms_norm_eps"])

        def logits(self, x):
            return self.linear(x, "language_model.lm_head")

    def shapes(self):
        c, top = self.c["text_config"], "language_model.model."
        of = c["linear_attn_config"]
        n, h, v = c["hidden_size"], c["num_attention_heads"], c["vocab_size"]
        inner, wide, latent, qk = of["num_heads"] * of["head_dim"], c["moe_intermediate_size"], c["routed_expert_hidden_size"], c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
        out = {top + "embed_tokens.weight": [v, n], top + "norm.weight": [n], "language_model.lm_head.weight": [v, n]}
        out |= {"vision_tower.patch_embed.proj.weight": [4, 3, 2, 2], "mm_projector.linear_1.weight": [n, 4]}
        named = [top + "output_attn_res"]
        for il in range(c["num_hidden_layers"]):
            at = f"{top}layers.{il}."
            named += [at + "self_attention_res", at + "mlp_res"]
            out |= {at + "input_layernorm.weight": [n], at + "post_attention_layernorm.weight": [n]}
            if il + 1 in of["full_attn_layers"]:
                own = {"kv_a_proj_with_mqa.weight": [c["kv_lora_rank"] + c["qk_rope_head_dim"], n], "kv_a_layernorm.weight": [c["kv_lora_rank"]]}
                own |= {"kv_b_proj.weight": [h * (c["qk_nope_head_dim"] + c["v_head_dim"]), c["kv_lora_rank"]]}
                own |= {"g_proj.weight": [h * c["v_head_dim"], n], "o_proj.weight": [n, h * c["v_head_dim"]]}
                if rank := c["q_lora_rank"]:
                    own |= {"q_a_proj.weight": [rank, n], "q_a_layernorm.weight": [rank], "q_b_proj.weight": [h * qk, rank]}
                else:
                    own["q_proj.weight"] = [h * qk, n]
            else:
                own = {f"{name}_proj.weight": [inner, n] for name in "qkvg"} | {"o_proj.weight": [n, inner], "o_norm.weight": [of["head_dim"]]}
                own |= {f"{name}_conv1d.weight": [inner, 1, of["short_conv_kernel_size"]] for name in "qkv"}
                own |= {"f_a_proj.weight": [of["head_dim"], n], "f_b_proj.weight": [inner, of["head_dim"]], "b_proj.weight": [of["num_heads"], n]}
                own |= {"dt_bias": [inner], "A_log": [of["head_dim"]]}
            out |= {f"{at}self_attn.{name}": shape for name, shape in own.items()}
            if il < c["first_k_dense_replace"]:
                out |= mlp(at + "mlp.", GATED, n, c["intermediate_size"])
                continue
            at += "block_sparse_moe."
            out |= {at + "gate.weight": [c["num_experts"], n], at + "gate.e_score_correction_bias": [c["num_experts"]]}
            out |= {at + "routed_expert_down_proj.weight": [latent, n], at + "routed_expert_up_proj.weight": [n, latent], at + "routed_expert_norm.weight": [latent]}
            out |= mlps(at + "experts.{}.", W132, latent, wide, c["num_experts"])
            out |= mlp(at + "shared_experts.", GATED, n, c["num_shared_experts"] * wide)
        return out | {f"{name}_{part}.weight": shape for name in named for part, shape in (("norm", [n]), ("proj", [1, n]))}
