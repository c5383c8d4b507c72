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


def build(kind, model=None, config=None, **keys):
    """A model of transformers in float32 with plain attention; by default the causal one of this kind."""
    import transformers

    config = getattr(transformers, config or f"{kind}Config")(**keys)
    config._attn_implementation = "eager"
    return getattr(transformers, model or f"{kind}ForCausalLM")(config).eval()


QKV = ("q_proj", "k_proj", "v_proj")
WHOLE = ("model.embed_tokens", "model.norm", "lm_head")
NORMS = ("input_layernorm", "post_attention_layernorm")
ATTENTION = tuple(f"self_attn.{name}" for name in (*QKV, "o_proj"))
MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


def named(own, stored, *endings):
    """Names in transformers with the stored ones in the same order; what `-` stands for is not stored so."""
    pairs = [(name, other) for name, other in zip(own, stored.split(), strict=True) if other != "-"]
    return {f"{name}.{ending}": f"{other}.{ending}" for ending in endings or ("weight",) for name, other in pairs}


def layer(norms, attention, mlp):
    return named(NORMS + ATTENTION + MLP, f"{norms} {attention} {mlp}")


class Remote:
    """A published class. `c` is its configuration, `w` its tensors by stored names."""

    LLAMA = named(WHOLE, " ".join(WHOLE))
    LAYER = "model.layers.{}."
    NAMES = layer(" ".join(NORMS), " ".join(ATTENTION), " ".join(MLP))
    TABLE, IS_TIED = "model.embed_tokens.weight", False
    # Published keys by the name that transformers has for them.
    KEYS = {}
    # The class of transformers, and its keys besides those that most configurations share, if they are published.
    KIND, MORE = "Llama", ()
    # The stored matrix with all queries, then all keys, then all values, and whether it has a bias; that of gate and up, or of up and gate.
    FUSED, IS_BIASED, GATE_UP, UP_GATE = None, False, None, None

    def __init__(self, c):
        self.c = c | {own: c[key] for own, key in self.KEYS.items() if key in c}
        self.model = self.new()

    def new(self):
        return build(self.KIND, **self.keys())

    def keys(self):
        return llama_keys(self.c, **{key: self.c[key] for key in self.MORE if key in self.c})

    def tied(self):
        return self.IS_TIED or self.c.get("tie_word_embeddings", False)

    def stored(self, name):
        """The stored name and layer of a parameter of the reference; None if it is made otherwise."""
        if name in self.LLAMA:
            return self.LLAMA[name]
        found = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name)
        if found and found[2] in self.NAMES:
            return self.LAYER.format(found[1]) + self.NAMES[found[2]]
        return None

    def sizes(self, il):
        """Rows of queries, keys and values."""
        c = self.c
        d = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
        few = c.get("num_key_value_heads") or c["num_attention_heads"]
        return [n * d for n in (c["num_attention_heads"], few, few)]

    def wide(self, il):
        """Rows of the gate."""
        return self.c["intermediate_size"]

    def fused(self, il):
        """Shapes of the stored tensors of one layer that are not those of the reference."""
        out, n = {}, self.c["hidden_size"]
        if self.FUSED:
            rows = sum(self.sizes(il))
            out |= {f"{self.FUSED}.weight": [rows, n]} | ({f"{self.FUSED}.bias": [rows]} if self.IS_BIASED else {})
        if pair := self.GATE_UP or self.UP_GATE:
            out[f"{pair}.weight"] = [2 * self.wide(il), n]
        return out

    def split(self, w, at, il):
        """Parameters of one layer of the reference from the tensors that `fused` names; `at` is their prefix."""
        out = {}
        for ending in ("weight", "bias") if self.IS_BIASED else ("weight",) if self.FUSED else ():
            parts = self.parts(w[f"{at}{self.FUSED}.{ending}"], il)
            out |= {f"self_attn.{name}.{ending}": part for name, part in zip(QKV, parts)}
        if pair := self.GATE_UP or self.UP_GATE:
            halves = w[f"{at}{pair}.weight"].chunk(2)
            gate, up = halves if self.GATE_UP else halves[::-1]
            out |= {"mlp.gate_proj.weight": gate, "mlp.up_proj.weight": up}
        return out

    def parts(self, rows, il):
        """Queries, keys and values of the stored matrix."""
        return rows.split(self.sizes(il))

    def head(self, weight):
        return weight

    def layout(self):
        """Names and shapes as they are stored."""
        out = {}
        for name, value in self.model.state_dict().items():
            stored = self.stored(name)
            if stored and not (self.tied() and name == "lm_head.weight"):
                out[stored] = list(value.shape)
        is_fused = self.FUSED or self.GATE_UP or self.UP_GATE
        for il in range(self.c["num_hidden_layers"] if is_fused else 0):
            out |= {self.LAYER.format(il) + name: shape for name, shape in self.fused(il).items()}
        return out | self.extra()

    def extra(self):
        """Further stored tensors and their shapes."""
        return {}

    def reference(self, w):
        """The model of transformers with the stored tensors in their places."""
        names = self.model.state_dict()
        state = {name: w[self.stored(name)] for name in names if self.stored(name) in w}
        for il in range(self.c["num_hidden_layers"]):
            made = self.split(w, self.LAYER.format(il), il)
            state |= {f"model.layers.{il}.{name}": value for name, value in made.items()}
        if "lm_head.weight" in state:
            state["lm_head.weight"] = self.head(state["lm_head.weight"])
        elif "lm_head.weight" in names:
            state["lm_head.weight"] = state[self.TABLE]
        self.model.load_state_dict(state, strict=True)
        return self.model


class Same(Remote):
    """A class of transformers with its own names of tensors under another name of the class."""

    def stored(self, name):
        return name

    def value(self, name, w):
        return w.get(self.stored(name), w.get(self.stored(self.TABLE)))

    def reference(self, w):
        self.model.load_state_dict({name: self.value(name, w) for name in self.model.state_dict()}, strict=True)
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
