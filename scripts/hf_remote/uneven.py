"""Published classes whose layers differ in size."""

import torch

from .base import WHOLE, Remote, build, layer, llama_keys, named, remote, without


def with_keys(model, **keys):
    """The configuration of a model with other values."""
    config = type(model.config)(**model.config.to_dict() | keys)
    config._attn_implementation = "eager"
    return config


@remote("deci")
class Deci(Remote):
    """Layers with their own number of key heads, or a matrix or nothing in the place of attention, or a
    width of their own or nothing in place of the MLP: llama, of which modules are replaced."""

    class Zero(torch.nn.Module):
        def forward(self, *args, **more):
            hidden = args[0] if args else more["hidden_states"]
            return (torch.zeros_like(hidden), None) if "hidden_states" in more else torch.zeros_like(hidden)

    class Matrix(torch.nn.Module):
        def __init__(self, n):
            super().__init__()
            self.linear_attn = torch.nn.Linear(n, n, bias=False)

        def forward(self, hidden_states, **_):
            return self.linear_attn(hidden_states), None

    NAMES = Remote.NAMES | {"self_attn.linear_attn.weight": "self_attn.linear_attn.weight"}

    def new(self):
        from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP

        c = self.c
        sizes = {"intermediate_size": c["intermediate_size"] or 8, "num_key_value_heads": 1}
        model = build("Llama", **llama_keys(c | sizes))
        blank = torch.nn.Identity()
        for il, layer in enumerate(model.model.layers):
            config = with_keys(model)
            if "block_configs" not in c:
                config.num_key_value_heads = c["num_key_value_heads_per_layer"][il]
                layer.self_attn = LlamaAttention(config, il)
                continue
            attention, mlp = (c["block_configs"][il][key] for key in ("attention", "ffn"))
            if attention["n_heads_in_group"]:
                config.num_key_value_heads = c["num_attention_heads"] // attention["n_heads_in_group"]
                layer.self_attn = LlamaAttention(config, il)
            elif attention["replace_with_linear"]:
                layer.self_attn = self.Matrix(c["hidden_size"])
            else:
                layer.self_attn, layer.input_layernorm = self.Zero(), blank
            if mlp["ffn_mult"]:
                # The published width is a multiple of 256.
                config.intermediate_size = -(-int(2 * mlp["ffn_mult"] * c["hidden_size"] / 3) // 256) * 256
                layer.mlp = LlamaMLP(config)
            else:
                layer.mlp, layer.post_attention_layernorm = self.Zero(), blank
        return model.eval()


@remote("openelm")
class OpenElm(Remote):
    """Each layer with its number of heads and its width: qwen3 with modules of their own sizes."""

    LLAMA = named(WHOLE[:2], "transformer.token_embeddings transformer.norm")
    LAYER = "transformer.layers.{}."
    NAMES = layer("attn_norm ffn_norm", "- - - attn.out_proj", "- - ffn.proj_2") | {
        f"self_attn.{name}_norm.weight": f"attn.{name}_norm.weight" for name in "qk"
    }
    KEYS = {"hidden_size": "model_dim", "num_hidden_layers": "num_transformer_layers"}
    FUSED, GATE_UP = "attn.qkv_proj", "ffn.proj_1"

    def new(self):
        from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3MLP

        c = self.c
        model = build(
            "Qwen3", vocab_size=c["vocab_size"], hidden_size=c["model_dim"], intermediate_size=8,
            num_hidden_layers=c["num_transformer_layers"], num_attention_heads=1, num_key_value_heads=1, head_dim=c["head_dim"],
            rms_norm_eps=1e-6, tie_word_embeddings=True, pad_token_id=None, max_position_embeddings=c["max_context_length"],
            rope_parameters={"rope_type": "default", "rope_theta": float(c["rope_freq_constant"])},
        )  # fmt: skip
        for il, layer in enumerate(model.model.layers):
            heads = {"num_attention_heads": c["num_query_heads"][il], "num_key_value_heads": c["num_kv_heads"][il]}
            config = with_keys(model, **heads, intermediate_size=self.wide(il))
            layer.self_attn, layer.mlp = Qwen3Attention(config, il), Qwen3MLP(config)
        return model.eval()

    def wide(self, il):
        """Rounded to the divisor, but not down by more than a tenth."""
        exact, divisor = self.c["ffn_multipliers"][il] * self.c["model_dim"], self.c["ffn_dim_divisor"]
        near = max(divisor, int(exact + divisor / 2) // divisor * divisor)
        return near + divisor if near < 0.9 * exact else near

    def sizes(self, il):
        c = self.c
        return [n[il] * c["head_dim"] for n in (c["num_query_heads"], c["num_kv_heads"], c["num_kv_heads"])]


@remote("nemotron-h-puzzle")
class NemotronHPuzzle(Remote):
    """Layers of experts with their own width and number of experts for a token: nemotron_h, of which these layers are replaced."""

    OF_A_LAYER = ("moe_intermediate_size", "num_experts_per_tok")

    def new(self):
        from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHMoE

        blocks = self.c["block_configs"]
        kinds = {"mamba": "linear_attention", "attention": "full_attention", "moe": "moe", "mlp": "mlp"}
        keys = without(self.c, "block_configs", "architectures", "model_type")
        keys |= {"layers_block_type": [kinds[block["block_type"]] for block in blocks], "pad_token_id": None, "num_nextn_predict_layers": 0}
        model = build("NemotronH", **keys)
        for il, (layer, block) in enumerate(zip(model.model.layers, blocks)):
            if block["block_type"] == "moe":
                layer.mixer = NemotronHMoE(with_keys(model, **{key: block[key] for key in self.OF_A_LAYER}), il)
        return model.eval()

    def layout(self):
        out = {}
        for name, value in self.model.state_dict().items():
            if ".experts." not in name:
                out[name] = list(value.shape)
                continue
            at, part = name.rsplit(".", 1)
            out |= {f"{at}.{e}.{part}.weight": list(value.shape[1:]) for e in range(len(value))}
        return out | {"mtp.layers.0.norm.weight": [self.c["hidden_size"]]}

    def reference(self, w):
        state = {}
        for name, value in self.model.state_dict().items():
            at, part = name.rsplit(".", 1)
            many = ".experts." in name
            state[name] = torch.stack([w[f"{at}.{e}.{part}.weight"] for e in range(len(value))]) if many else w[name]
        self.model.load_state_dict(state, strict=True)
        return self.model
