"""Published classes with latent attention."""

import re

import torch

from .base import Remote, build, remote


@remote("hy_v4")
class HunyuanV4(Remote):
    """The class of transformers rotates halves of the end of a head, where published tensors have neighbours."""

    RENAMED = [
        (r"\.self_attn\.sinks$", ".self_attn.learnable_sink_param"),
        (r"\.self_attn\.gate_proj\.", ".self_attn.linear_gate."),
        (r"\.attn_hc\.", ".hc_attn_layer.hc_pre.hc_"),
        (r"\.ffn_hc\.", ".hc_mlp_layer.hc_pre.hc_"),
        (r"\.hc_head\.hc_", ".hc_head.hc_head_"),
    ]

    def new(self):
        known = {k: v for k, v in self.c.items() if k not in ("architectures", "model_type")}
        model = build("HYV4ForCausalLM", "HYV4Config", **known | {"pad_token_id": None})
        for layer in model.model.layers:  # The eps of transformers is 1e-6 here, whatever the configuration says.
            layer.self_attn.q_a_layernorm.variance_epsilon = self.c["rms_norm_eps"]
            layer.self_attn.kv_a_layernorm.variance_epsilon = self.c["rms_norm_eps"]
        return model

    def stored(self, name):
        for pattern, published in self.RENAMED:
            name = re.sub(pattern, published, name)
        return name

    def reference(self, w):
        c = self.c
        heads = {"q_b_proj.": c["num_attention_heads"], "kv_a_proj_with_mqa.": 1, "indexer.wq_b.": c["index_n_heads"], "indexer.wk.": 1, "indexer.k_norm.": 1}
        state = {}
        for name in self.model.state_dict():
            stored = self.stored(name)
            value = w[stored if stored in w else "model.embed_tokens.weight"]
            for part, n in heads.items():
                value = self.halves(value, n) if part in name else value
            state[name] = value
        self.model.load_state_dict(state, strict=True)
        return self.model

    def halves(self, value, heads):
        """Rows whose last ones of each head pair neighbours, in the order that pairs halves."""
        end = self.c["qk_rope_head_dim"]
        rows = value.unflatten(0, (heads, -1))
        turned = rows[:, -end:]
        return torch.cat([rows[:, :-end], turned[:, 0::2], turned[:, 1::2]], 1).flatten(0, 1)
