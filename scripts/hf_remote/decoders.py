"""Published decoders whose code lies in their folders or was never released in transformers: their formulas."""

import torch
from torch.nn import functional as F

from .base import remote
from .formulas import GATED, QKVO, W132, Decoder, Layers, Plain, attend, distance, mlp, mlps, projections
from .formulas import rotate, rotate_by, slopes, turn, turn_neighbours, weights, windowed


class Gpt(Decoder):
    """Names of gpt2, layer norms, ALiBi."""

    EMBED, LAYER, NORM, ATTENTION = "transformer.wte", "transformer.h.{}.", "transformer.ln_f", "attn."
    WIDTH, DEPTH, NORMS, EPS = "n_embd", "n_layer", ("ln_1", "ln_2"), "layer_norm_epsilon"

    def biases(self, x):
        return -distance(len(x)) * slopes(self.c["n_head"], x.dtype)


@remote("jais")
class Jais(Plain):
    """Matrices [in, out]; the gate second; factors of embeddings and logits."""

    class Model(Gpt):
        NAMES = ("c_fc2", "c_fc", "c_proj")

        def linear(self, x, name):
            return x @ self[name + ".weight"] + self[name + ".bias"]

        def counts(self):
            return [self.c["n_head"]] * 3

        def begin(self, ids):
            return super().begin(ids) * self.c["mup_embeddings_scale"]

        def attention(self, y, at, il):
            q, k, v = self.fused(y, at + "c_attn")
            scale = 1 / q.shape[-1] if self.c["mup_scale_qk_dot_by_d"] else None
            return self.linear(attend(q, k, v, scale, self.biases(y)), at + "c_proj")

        def logits(self, x):
            return self.c["mup_output_alpha"] * self.c["mup_width_scale"] * (x @ self["transformer.wte.weight"].T)

    unused = ("relative_pe", ".attn.bias")

    def shapes(self):
        c = self.c
        n, wide = c["n_embd"], c["n_inner"]
        out = {"transformer.wte.weight": [c["vocab_size"], n], "transformer.relative_pe.slopes": [c["n_head"], 1, 1]}
        lines, norms = {}, ["transformer.ln_f"]
        for il in range(c["n_layer"]):
            at = f"transformer.h.{il}."
            norms += [at + "ln_1", at + "ln_2"]
            lines |= {at + "attn.c_attn": [n, 3 * n], at + "attn.c_proj": [n, n]}
            lines |= {at + "mlp.c_fc": [n, wide], at + "mlp.c_fc2": [n, wide], at + "mlp.c_proj": [wide, n]}
        for name, shape in (lines | {name: [n] for name in norms}).items():
            out |= {name + ".weight": shape, name + ".bias": shape[-1:]}
        return out


@remote("refact")
class Refact(Layers):
    """Layer norms without biases, one head of keys and values, gate and up in one matrix."""

    class Model(Gpt):
        NORM = "ln_f"

        def attention(self, y, at, il):
            k, v = self.linear(y, at + "kv")[None].chunk(2, -1)
            return self.linear(attend(self.heads(y, at + "q", self.c["n_head"]), k, v, bias=self.biases(y)), at + "c_proj")

        def feed(self, y, at):
            return self.gated_pair(y, at + "gate_up_proj", at + "c_proj")

    def layer(self, n, il):
        d = n // self.c["n_head"]
        wide = 256 * -(-int(2 * 4 * n / 3) // 256)
        return self.norms(n) | {
            "attn.q.weight": [n, n], "attn.kv.weight": [2 * d, n], "attn.c_proj.weight": [n, n],
            "mlp.gate_up_proj.weight": [2 * wide, n], "mlp.c_proj.weight": [n, wide],
        }  # fmt: skip


@remote("plamo")
class Plamo(Layers):
    """Attention and MLP on one norm; query heads alternate between the key heads."""

    class Model(Decoder):
        LAYER = "model.layers.layers.{}."

        def layer(self, x, at, il):
            y = self.norm(x, at + "norm")
            return x + self.attention(y, at + "self_attn.", il) + self.gated(y, at + "mlp.")

        def counts(self):
            few = self.c["num_attention_heads"] // self.c["n_shared_head"]
            return [self.c["num_attention_heads"], few, few]

        def positioned(self, x, norm, il):
            return rotate(x, 10000.0)

        def mixed(self, q, k, v, il):
            n = self.c["n_shared_head"]
            return attend(q, k.repeat(n, 1, 1), v.repeat(n, 1, 1))

    def layer(self, n, il):
        out = projections("self_attn.", QKVO, n, (n, n // self.c["n_shared_head"]))
        return out | mlp("mlp.", GATED, n, self.c["intermediate_size"]) | weights(n, "norm")


@remote("grok-1")
class Grok1(Layers):
    """Norms before and after attention and experts, scores within a bound, factors of embeddings and logits.
    The weights of the chosen experts are not normalised, which the norm after them undoes."""

    class Model(Decoder):
        ATTENTION, ENDING = "attn.", ".scale"
        NAMES = ("linear", "linear_v", "linear_1")

        def begin(self, ids):
            return super().begin(ids) * self.c["embedding_multiplier_scale"]

        def mixed(self, q, k, v, il):
            return attend(q, k, v, self.c["attn_output_multiplier"], cap=self.c["max_attn_value"])

        def expert(self, row, at):
            return self.gated(row, at, self.NAMES, lambda x: F.gelu(x, approximate="tanh"))

        def layer(self, x, at, il):
            y = self.attention(self.norm(x, at + "pre_attn_norm"), at + "attn.", il)
            x = x + self.norm(y, at + "post_attn_norm")
            expert = lambda row, e: self.expert(row, f"{at}moe_block.experts.{e}.")  # noqa: E731
            y = self.routed(self.norm(x, at + "pre_moe_norm"), at + "moe_block.gate", self.c["num_experts_per_tok"], expert, False)
            return x + self.norm(y, at + "post_moe_norm")

        def logits(self, x):
            return super().logits(x) * self.c["output_multiplier_scale"]

    def layer(self, n, il):
        c = self.c
        out = self.attention() | {f"{when}_{what}_norm.scale": [n] for when in ("pre", "post") for what in ("attn", "moe")}
        out |= mlps("moe_block.experts.{}.", self.Model.NAMES, n, c["intermediate_size"], c["num_experts"])
        return out | {"moe_block.gate.weight": [c["num_experts"], n]}


@remote("arctic")
class Arctic(Layers):
    """A dense MLP after attention, and experts that read the input of the layer."""

    class Model(Decoder):
        def layer(self, x, at, il):
            after = x + self.attention(self.norm(x, at + "input_layernorm"), at + "self_attn.", il)
            dense = self.gated(self.norm(after, at + "residual_layernorm"), at + "residual_mlp.", W132)
            y, at = self.norm(x, at + "post_attention_layernorm"), at + "block_sparse_moe."
            expert = lambda row, e: self.gated(row, f"{at}experts.{e}.", W132)  # noqa: E731
            return after + dense + self.routed(y, at + "gate", self.c["num_experts_per_tok"], expert)

    def layer(self, n, il):
        c = self.c
        out = self.attention() | weights(n, "input_layernorm", "residual_layernorm", "post_attention_layernorm") | mlp("residual_mlp.", W132, n, n)
        out |= mlps("block_sparse_moe.experts.{}.", W132, n, c["intermediate_size"], c["num_local_experts"])
        return out | {"block_sparse_moe.gate.weight": [c["num_local_experts"], n]}


@remote("smallthinker")
class SmallThinker(Layers):
    """A router that reads what the layer reads, MLPs with ReLU; layers with windows, layers that rotate."""

    class Model(Decoder):
        NAMES = ("gate", "up", "down")

        def positioned(self, x, norm, il):
            return super().positioned(x, norm, il) if self.c["rope_layout"][il] == 1 else x

        def mixed(self, q, k, v, il):
            hidden = windowed(q.shape[1], self.c["sliding_window_size"])
            return attend(q, k, v, hidden=hidden if self.c["sliding_window_layout"][il] else None)

        def layer(self, x, at, il):
            c = self.c
            scores, index = self.linear(x, at + "block_sparse_moe.primary_router").topk(c["moe_num_active_primary_experts"], -1)
            if c["moe_primary_router_apply_softmax"]:
                shares = scores.softmax(-1)
            else:
                shares = scores.sigmoid() / scores.sigmoid().sum(-1, keepdim=True)
            x = x + self.attention(self.norm(x, at + "input_layernorm"), at + "self_attn.", il)
            expert = lambda row, e: self.gated(row, f"{at}block_sparse_moe.experts.{e}.", self.NAMES, F.relu)  # noqa: E731
            return x + self.chosen(self.norm(x, at + "post_attention_layernorm"), shares, index, expert)

    def layer(self, n, il):
        c = self.c
        out = self.attention() | self.norms(n)
        out |= mlps("block_sparse_moe.experts.{}.", self.Model.NAMES, n, c["moe_ffn_hidden_size"], c["moe_num_primary_experts"])
        return out | {"block_sparse_moe.primary_router.weight": [c["moe_num_primary_experts"], n]}


@remote("nanbeige")
class Nanbeige(Layers):
    """As llama; all layers run `num_loops` times, with the final norm after each time."""

    class Model(Decoder):
        def states(self, ids):
            c, x = self.c, self.begin(ids)
            for loop in range(c["num_loops"]):
                x = self.stack(x)
                if loop == c["num_loops"] - 1 or not c["skip_loop_final_norm"]:
                    x = self.norm(x, self.NORM)
            return x

    def layer(self, n, il):
        return self.norms(n) | self.attention() | mlp("mlp.", GATED, n, self.c["intermediate_size"])


@remote("grovemoe")
class GroveMoe(Layers):
    """As Qwen3's experts; each group of two has a small one in addition, which has the weight of the selected one."""

    GROUP, SCALE, WIDTH = 2, 0.05, 128
    unused = ("expert_bias",)

    class Model(Decoder):
        def feed(self, y, at):
            logits = self.linear(y, at + "gate")
            index = logits.sigmoid().topk(self.c["num_experts_per_tok"], -1).indices
            shares = logits.softmax(-1).gather(-1, index)
            shares = shares / shares.sum(-1, keepdim=True)
            large = self.chosen(y, shares, index, lambda row, e: self.gated(row, f"{at}experts.{e}."))
            small = self.chosen(y, shares, index // GroveMoe.GROUP, lambda row, e: self.gated(row, f"{at}chunk_experts.{e}."))
            return large + GroveMoe.SCALE * small

    def layer(self, n, il):
        c = self.c
        count = c["num_experts"]
        out = self.norms(n) | self.attention() | weights(c["head_dim"], "self_attn.q_norm", "self_attn.k_norm")
        out |= {"mlp.gate.weight": [count, n], "mlp.expert_bias": [count]}
        out |= mlps("mlp.experts.{}.", GATED, n, c["moe_intermediate_size"], count)
        return out | mlps("mlp.chunk_experts.{}.", GATED, n, self.WIDTH, count // self.GROUP)


@remote("maincoder")
class Maincoder(Layers):
    """Norms of queries and keys after their rotation, which is of neighbours."""

    class Model(Decoder):
        MLP = "feed_forward."

        def positioned(self, x, norm, il):
            return self.norm(turn_neighbours(x, self.c["rope_theta"]), norm)

    def layer(self, n, il):
        return self.norms(n) | self.attention("q_norm", "k_norm") | mlp("feed_forward.", GATED, n, self.c["intermediate_size_mlp"])


@remote("plm")
class Plm(Layers):
    """Latent keys and values, neighbours of the ends of heads rotated, an MLP with squared ReLU and no gate."""

    class Model(Decoder):
        def attention(self, y, at, il):
            c = self.c
            h, nope, rope = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"]
            q = self.heads(y, at + "q_proj", h)
            latent, end = self.linear(y, at + "kv_a_proj_with_mqa").split([c["kv_lora_rank"], rope], -1)
            latent = self.rms(latent, at + "kv_a_layernorm.weight", 1e-6)
            k, v = self.heads(latent, at + "kv_b_proj", h).split([nope, c["v_head_dim"]], -1)
            end = turn_neighbours(end[None], c["rope_theta"]).expand(h, -1, -1)
            q = torch.cat([q[..., :nope], turn_neighbours(q[..., nope:], c["rope_theta"])], -1)
            return self.linear(attend(q, torch.cat([k, end], -1), v), at + "o_proj")

        def feed(self, y, at):
            return self.linear(F.relu(self.linear(y, at + "up_proj")) ** 2, at + "down_proj")

    def layer(self, n, il):
        c = self.c
        h, rank, nope, rope, v = (
            c[key] for key in ("num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        )
        return self.norms(n) | {
            "self_attn.q_proj.weight": [h * (nope + rope), n], "self_attn.kv_a_proj_with_mqa.weight": [rank + rope, n],
            "self_attn.kv_a_layernorm.weight": [rank], "self_attn.kv_b_proj.weight": [h * (nope + v), rank],
            "self_attn.o_proj.weight": [n, h * v],
            "mlp.up_proj.weight": [c["intermediate_size"], n], "mlp.down_proj.weight": [n, c["intermediate_size"]],
        }  # fmt: skip


class Around(Decoder):
    """Norms around both sublayers, whose weights are stored less a constant of their place."""

    LAYER = "model.layers.layers.{}."
    LESS = {"pre_mixer": 1.0, "post_mixer": 1 / 5, "pre_mlp": 1.0, "post_mlp": 5**-1.5}

    def norm(self, x, name):
        return self.rms(x, name + ".weight", more=1.0)

    def layer(self, x, at, il):
        norm = lambda x, place: self.rms(x, f"{at}{place}_norm.weight", more=self.LESS[place])  # noqa: E731
        x = x + norm(self.attention(norm(x, "pre_mixer"), at + "mixer.", il), "post_mixer")
        return x + norm(self.gated_pair(norm(x, "pre_mlp"), at + "mlp.gate_up_proj", at + "mlp.down_proj"), "post_mlp")


@remote("plamo3")
class Plamo3(Layers):
    """Windows with a base of their own. A configuration without a factor of its positions counts the keys before the query's own."""

    class Model(Around):
        def positioned(self, x, norm, il):
            c, x = self.c, self.norm(x, norm)
            factor, is_full = c.get("rope_scaling_factor", 1), self.is_full(il)
            if not is_full or factor == 1:
                return rotate(x, c["rope_theta"] if is_full else c["rope_local_theta"])
            from transformers import LlamaConfig
            from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

            yarn = {"rope_type": "yarn", "rope_theta": c["rope_theta"], "factor": factor, "beta_fast": 32.0, "beta_slow": 1.0}
            yarn |= {"original_max_position_embeddings": c["initial_context_length"], "truncate": False}
            limits = {"head_dim": c["head_dim"], "max_position_embeddings": c["max_position_embeddings"]}
            frequencies, magnitude = ROPE_INIT_FUNCTIONS["yarn"](LlamaConfig(**limits, rope_parameters=yarn), "cpu")
            return rotate_by(x, frequencies.to(x.dtype), magnitude)

        def is_full(self, il):
            return (il + 1) % self.c["sliding_window_pattern"] == 0

        def projected(self, y, at):
            return self.fused(y, at + "qkv_proj")

        def mixed(self, q, k, v, il):
            keys = self.c["window_size"] + ("rope_scaling_factor" not in self.c)
            return attend(q, k, v, hidden=None if self.is_full(il) else windowed(q.shape[1], keys))

    def layer(self, n, il):
        c = self.c
        d, h, few, wide = c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"], c["intermediate_size"]
        return {f"{place}_norm.weight": [n] for place in Around.LESS} | {
            "mixer.qkv_proj.weight": [(h + 2 * few) * d, n], "mixer.o_proj.weight": [n, h * d],
            "mixer.q_norm.weight": [d], "mixer.k_norm.weight": [d],
            "mlp.gate_up_proj.weight": [2 * wide, n], "mlp.down_proj.weight": [n, wide],
        }  # fmt: skip


@remote("spark2_5")
class Spark(Layers):
    """A gate for each head, an MLP gated by the exact GELU; the share of a head that is rotated and the base by kind of layer."""

    class Model(Decoder):
        EMBED = "model.embedding"

        def attention(self, y, at, il):
            c = self.c
            kind = c["layer_types"][il]
            rope = c["rope_parameters"][kind]
            q, k, v = self.fused(y, at + "q_k_v_proj")
            q, k = (turn(heads, rope["rope_theta"], int(c["head_dim"] * rope["partial_rotary_factor"])) for heads in (q, k))
            hidden = windowed(len(y), c["sliding_window"]) if kind == "sliding_attention" else None
            mixed = attend(q, k, v, hidden=hidden).unflatten(-1, (c["num_attention_heads"], -1))
            return self.linear((mixed * self.linear(y, at + "g_proj").sigmoid()[..., None]).flatten(-2), at + "out_proj")

        def feed(self, y, at):
            return self.gated(y, at, act=F.gelu)

    def layer(self, n, il):
        c = self.c
        d, h, few = c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
        return self.norms(n) | {
            "self_attn.q_k_v_proj.weight": [(h + 2 * few) * d, n], "self_attn.g_proj.weight": [h, n], "self_attn.out_proj.weight": [n, h * d],
        } | mlp("mlp.", GATED, n, c["intermediate_size"])  # fmt: skip


@remote("talkie")
class Talkie(Layers):
    """No norm has a weight. The normed embedding is added after each layer, times a factor, as the sublayers have one.
    Heads are rotated the other way round, then normed, and queries have a factor for each head."""

    class Model(Decoder):
        EMBED, LAYER, NORM = "model.embed", "model.blocks.{}.", ""

        def norm(self, x, name=""):
            return F.rms_norm(x, x.shape[-1:], eps=torch.finfo(torch.float32).eps)

        def begin(self, ids):
            self.first = self.norm(super().begin(ids))
            return self.first

        def layer(self, x, at, il):
            q, k, v = (self.heads(self.norm(x), f"{at}attn.attn_{name}", self.c["num_attention_heads"]) for name in ("query", "key", "value"))
            q, k = (self.norm(self.back(heads, self.c["rope_theta"])) for heads in (q, k))
            mixed = attend(q * self[at + "attn.head_gain.head_g"][:, None, None], k, v)
            x = x + self[at + "attn_gain.a_g"] * self.linear(mixed, at + "attn.attn_resid")
            y = self.gated(self.norm(x), at + "mlp.mlp_", ("gate", "linear", "resid"))
            return x + self[at + "mlp_gain.a_g"] * y + self[at + "embed_skip.a_g"] * self.first

        def back(self, x, base):
            a, b = x.chunk(2, -1)
            b, a = rotate(torch.cat([b, a], -1), base).chunk(2, -1)
            return torch.cat([a, b], -1)

        def logits(self, x):
            if "lm_head_gain.w_g" in self:
                return x @ (self["lm_head"] * self["lm_head_gain.w_g"]).T
            return super().logits(x)

    def layer(self, n, il):
        c = self.c
        d = c["head_dim"] * c["num_attention_heads"]
        out = projections("attn.", ("attn_query", "attn_key", "attn_value", "attn_resid"), n, (d, d))
        out |= {"attn.head_gain.head_g": [c["num_attention_heads"]]}
        out |= mlp("mlp.", ("mlp_gate", "mlp_linear", "mlp_resid"), n, c["intermediate_size"])
        return out | {f"{name}.a_g": [1] for name in ("attn_gain", "mlp_gain", "embed_skip")}

    def head(self, shape):
        return {"lm_head": shape, "lm_head_gain.w_g": [1]}


@remote("talkie-folded")
class TalkieFolded(Talkie):
    """With the factor of the logits in the head."""

    def head(self, shape):
        return {"lm_head.weight": shape}


@remote("maple")
class Maple(Layers):
    """Experts with a bounded gate; half of each head is rotated, in windowed layers alone."""

    BOUND = 7.0

    class Model(Decoder):
        EMBED = "model.word_embeddings"

        def is_windowed(self, il):
            return self.c["layer_types"][il] == "sliding_attention"

        def positioned(self, x, norm, il):
            c, x = self.c, self.norm(x, norm)
            return turn(x, c["rope_theta"], int(c["head_dim"] * c["partial_rotary_factor"])) if self.is_windowed(il) else x

        def mixed(self, q, k, v, il):
            return attend(q, k, v, hidden=windowed(q.shape[1], self.c["sliding_window"]) if self.is_windowed(il) else None)

        def expert(self, row, at):
            gate = self.linear(row, at + "gate_proj").clamp(max=Maple.BOUND)
            up = self.linear(row, at + "up_proj").clamp(-Maple.BOUND, Maple.BOUND)
            return self.linear(F.silu(gate) * up, at + "down_proj")

        def feed(self, y, at):
            return self.routed(y, at + "gate", self.c["num_experts_per_tok"], lambda row, e: self.expert(row, f"{at}experts.{e}."))

    def layer(self, n, il):
        c = self.c
        out = self.norms(n) | self.attention("q_norm", "k_norm")
        out |= mlps("mlp.experts.{}.", GATED, n, c["moe_intermediate_size"], c["num_experts"])
        return out | {"mlp.gate.weight": [c["num_experts"], n]}


@remote("graniteswitch")
class GraniteSwitch(Layers):
    """Granite with shared MLPs alone. The adapter of a position is the rounded mean of those that tokens up to it switch to; such
    a token has the embedding of another one. The first of the layers that the configuration counts is the switch."""

    unused = ("model.switch.", "model.adapter_token_ids")

    def __init__(self, c):
        super().__init__(c | {"num_hidden_layers": c["num_hidden_layers"] - 1})

    class Model(Decoder):
        def adapters(self, ids):
            c = self.c
            switches, gain = torch.tensor(c["adapter_token_ids"]), c["control_token_gain"]
            hit = ids[:, None] == switches
            key = torch.where(hit.any(-1), gain, -gain).double()
            value = (hit * torch.arange(1, len(switches) + 1)).sum(-1).double()
            scores = key[None].expand(len(ids), -1).masked_fill(torch.ones(len(ids), len(ids)).triu(1) > 0, -torch.inf)
            stand_ins = torch.tensor(c["adapter_substitute_token_ids"])
            replaced = torch.where(hit.any(-1), (hit * stand_ins).sum(-1), ids)
            return (scores.softmax(-1) @ value).round().long().clamp(0, len(switches)), replaced

        def adapted(self, x, name, of, part=""):
            """The change of a projection by the adapter of each position; `part` names one of those of a fused one."""
            a, b = (self[f"{name}.lora_{kind}{part}"][:, 0] for kind in "AB")
            a, b = (torch.cat([torch.zeros_like(y[:1]), y]) for y in (a, b))
            return torch.einsum("tor,tri,ti->to", b[of], a[of], x)

        def parts(self, x, name, of, sizes):
            base = self.linear(x, name + ".base_layer").split(sizes, -1)
            return [y + self.adapted(x, name, of, f"_slices.{i}") for i, y in enumerate(base)]

        def single(self, x, name, of):
            return self.linear(x, name + ".base_layer") + self.adapted(x, name, of)

        def begin(self, ids):
            self.of, ids = self.adapters(ids)
            return super().begin(ids) * self.c["embedding_multiplier"]

        def layer(self, x, at, il):
            c, of = self.c, self.of
            h, kv, wide, d = c["num_attention_heads"], c["num_key_value_heads"], c["shared_intermediate_size"], c["projection_head_dim"]
            y = self.norm(x, at + "input_layernorm")
            q, k, v = (z.unflatten(-1, (-1, d)).transpose(0, 1) for z in self.parts(y, at + "self_attn.qkv_proj", of, [h * d, kv * d, kv * d]))
            if c["position_embedding_type"] == "rope":
                q, k = (rotate(z, c["rope_theta"]) for z in (q, k))
            y = self.single(attend(q, k, v, c["attention_multiplier"]), at + "self_attn.o_proj", of)
            x = x + y * c["residual_multiplier"]
            gate, up = self.parts(self.norm(x, at + "post_attention_layernorm"), at + "shared_mlp.input_linear", of, [wide, wide])
            return x + self.single(F.silu(gate) * up, at + "shared_mlp.output_linear", of) * c["residual_multiplier"]

        def logits(self, x):
            return super().logits(x) / self.c["logits_scaling"]

    def layer(self, n, il):
        c, out = self.c, self.norms(n)
        d, wide = c["projection_head_dim"], c["shared_intermediate_size"]
        count, rank = c["num_adapters"], c["max_lora_rank"]
        q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
        for name, sizes in (("self_attn.qkv_proj", [q, kv, kv]), ("shared_mlp.input_linear", [wide, wide])):
            out[f"{name}.base_layer.weight"] = [sum(sizes), n]
            for i, size in enumerate(sizes):
                out[f"{name}.lora_A_slices.{i}"] = [count, 1, rank, n]
                out[f"{name}.lora_B_slices.{i}"] = [count, 1, size, rank]
        for name, wide_in in (("self_attn.o_proj", q), ("shared_mlp.output_linear", wide)):
            out[f"{name}.base_layer.weight"] = [n, wide_in]
            out |= {f"{name}.lora_A": [count, 1, rank, wide_in], f"{name}.lora_B": [count, 1, n, rank]}
        return out
