"""What the descriptions of published classes share: their registry and the move of tensors into a class of transformers."""

import re
import tempfile

import torch

CLASSES = {}


def remote(name):
    """Registers a class by the name that cases give as `remote`."""

    def register(cls):
        CLASSES[name] = cls
        return cls

    return register


def rope4(c):
    """Rotation of a published configuration, for a configuration of transformers 5."""
    rope = dict(c.get("rope_scaling") or {})
    kind = rope.pop("type", None) or rope.get("rope_type", "default")
    # What grows with the length alone changes nothing within the trained length.
    rope = {} if kind == "dynamic" else rope | {"rope_type": kind}
    return {"rope_type": "default"} | rope | {"rope_theta": c.get("rope_theta", 10000.0)}


def llama_keys(c, **more):
    """Keys of transformers that most configurations share."""
    n_head = c["num_attention_heads"]
    return {
        "vocab_size": c["vocab_size"],
        "hidden_size": c["hidden_size"],
        "intermediate_size": c["intermediate_size"],
        "num_hidden_layers": c["num_hidden_layers"],
        "num_attention_heads": n_head,
        "num_key_value_heads": c.get("num_key_value_heads", n_head),
        "max_position_embeddings": c.get("max_position_embeddings", 256),
        "rms_norm_eps": c.get("rms_norm_eps", 1e-6),
        "rope_parameters": rope4(c),
        "tie_word_embeddings": c.get("tie_word_embeddings", False),
        "pad_token_id": None,
        **more,
    }


def build(model, config, **keys):
    """A model of transformers in float32 with plain attention."""
    import transformers

    config = getattr(transformers, config)(**keys)
    config._attn_implementation = "eager"
    return getattr(transformers, model)(config).eval()


def rows(tensor, *sizes):
    """A matrix or vector in parts of so many rows."""
    return tensor.split(list(sizes), dim=0)


class Remote:
    """A published class. `c` is its configuration, `w` its tensors by stored names."""

    LLAMA = {  # a name in transformers: the stored one
        "model.embed_tokens.weight": "model.embed_tokens.weight",
        "model.norm.weight": "model.norm.weight",
        "lm_head.weight": "lm_head.weight",
    }
    LAYER = "model.layers.{}."
    NAMES = {
        "input_layernorm.weight": "input_layernorm.weight",
        "post_attention_layernorm.weight": "post_attention_layernorm.weight",
        "self_attn.q_proj.weight": "self_attn.q_proj.weight",
        "self_attn.k_proj.weight": "self_attn.k_proj.weight",
        "self_attn.v_proj.weight": "self_attn.v_proj.weight",
        "self_attn.o_proj.weight": "self_attn.o_proj.weight",
        "mlp.gate_proj.weight": "mlp.gate_proj.weight",
        "mlp.up_proj.weight": "mlp.up_proj.weight",
        "mlp.down_proj.weight": "mlp.down_proj.weight",
    }
    # Stored tensors of a layer that become several: shape, and what they become.
    n_layers = "num_hidden_layers"

    def __init__(self, c):
        self.c = c
        self.model = self.new()

    def new(self):
        return build("LlamaForCausalLM", "LlamaConfig", **llama_keys(self.c))

    def stored(self, name):
        """The stored name and layer of a parameter of the reference; None if it is made otherwise."""
        if name in self.LLAMA:
            return self.LLAMA[name]
        found = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name)
        if found and found[2] in self.NAMES:
            return self.LAYER.format(found[1]) + self.NAMES[found[2]]
        return None

    def fused(self):
        """Shapes of the stored tensors of one layer that are not those of the reference."""
        return {}

    def split(self, w, at):
        """Parameters of one layer of the reference from the tensors that `fused` names; `at` is their prefix."""
        return {}

    def head(self, weight):
        return weight

    def layout(self):
        """Names and shapes as they are stored."""
        out = {}
        for name, value in self.model.state_dict().items():
            if self.c.get("tie_word_embeddings") and name == "lm_head.weight":
                continue
            if stored := self.stored(name):
                out[stored] = list(value.shape)
        for il in range(self.c[self.n_layers]):
            for name, shape in self.fused().items():
                out[self.LAYER.format(il) + name] = shape
        return out | self.extra()

    def extra(self):
        """Further stored tensors and their shapes."""
        return {}

    def reference(self, w):
        """The model of transformers with the stored tensors in their places."""
        state = {}
        for name in self.model.state_dict():
            stored = self.stored(name)
            if stored in w:
                state[name] = w[stored]
        for il in range(self.c[self.n_layers]):
            made = self.split(w, self.LAYER.format(il))
            state |= {f"model.layers.{il}.{name}": value for name, value in made.items()}
        if "lm_head.weight" in state:
            state["lm_head.weight"] = self.head(state["lm_head.weight"])
        elif "lm_head.weight" in self.model.state_dict():
            state["lm_head.weight"] = state["model.embed_tokens.weight"]
        self.model.load_state_dict(state, strict=True)
        return self.model


class Same(Remote):
    """A class of transformers with its own names of tensors under another name of the class; the head is tied if `tied`."""

    TABLE = "model.embed_tokens.weight"

    def tied(self):
        return self.c.get("tie_word_embeddings", False)

    def layout(self):
        names = {name: list(value.shape) for name, value in self.model.state_dict().items()}
        return {self.stored(name): shape for name, shape in names.items() if not (self.tied() and name == "lm_head.weight")}

    def stored(self, name):
        return name

    def reference(self, w):
        names = self.model.state_dict()
        self.model.load_state_dict({name: w.get(self.stored(name), w.get(self.stored(self.TABLE))) for name in names}, strict=True)
        return self.model


class Saved(Remote):
    """A class of transformers under another name, with the names of tensors of the files that it saves."""

    def layout(self):
        from safetensors import safe_open

        with tempfile.TemporaryDirectory() as folder:
            self.model.save_pretrained(folder)
            with safe_open(f"{folder}/model.safetensors", "pt") as file:
                return {name: list(file.get_slice(name).get_shape()) for name in file.keys()}

    def reference(self, w):
        from safetensors.torch import save_file

        with tempfile.TemporaryDirectory() as folder:
            self.model.config.save_pretrained(folder)
            save_file({name: w[name] for name in self.layout()}, f"{folder}/model.safetensors", {"format": "pt"})
            return type(self.model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def without(names, *gone):
    return {key: value for key, value in names.items() if not any(part in key for part in gone)}


QKV = ("q_proj", "k_proj", "v_proj")
