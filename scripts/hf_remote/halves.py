"""Published folders with an encoder and a decoder, where those that transformers saves have other tensors."""

import torch

from .base import Remote, build, remote


@remote("t5")
class T5(Remote):
    """The class of transformers with a head of its own, which transformers reads and does not save."""

    n_layers = "num_layers"

    def new(self):
        model = build("T5ForConditionalGeneration", "T5Config", **{k: v for k, v in self.c.items() if k not in ("architectures", "model_type")})
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
        return model

    def stored(self, name):
        return None if name.endswith("coder.embed_tokens.weight") else name

    def reference(self, w):
        state = {name: w.get(self.stored(name), w["shared.weight"]) for name in self.model.state_dict()}
        self.model.load_state_dict(state, strict=True)
        return self.model
