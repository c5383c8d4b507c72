"""What published classes that no class of transformers equals are made of, in PyTorch, for one sequence: norms, rotated positions,
attention, MLPs, experts, decoders, and the shapes of their tensors."""

from types import SimpleNamespace

import torch
from torch.nn import functional as F

from .base import Remote


def slopes(n_head, dtype):
    """The slope of each head, of a power of two; between them those of twice as many."""
    low = 1 << (n_head.bit_length() - 1)
    values = [2 ** (-8 * (i + 1) / low) for i in range(low)]
    values += [2 ** (-4 * (2 * i + 1) / low) for i in range(n_head - low)]
    return torch.tensor(values, dtype=dtype)[:, None, None]


def distance(n):
    """Distance from each key [1, n] to each query [n, 1]."""
    at = torch.arange(n)
    return at[:, None] - at[None]


def windowed(n, keys):
    """Positions [n, n] outside of a window of so many keys, which includes the query's own position."""
    return distance(n) >= keys


def rotate(x, base):
    """Heads [h, n, d] with each element rotated against the one half a head away."""
    d = x.shape[-1]
    return rotate_by(x, base ** (-torch.arange(0, d, 2, dtype=x.dtype) / d))


def rotate_by(x, frequencies, magnitude=1.0):
    angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * frequencies
    a, b = x.chunk(2, -1)
    cos, sin = angle.cos() * magnitude, angle.sin() * magnitude
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def turn(x, base, n=None):
    """Heads [h, n, d] of which the first `n` elements of each are rotated, paired in halves."""
    n = n or x.shape[-1]
    return torch.cat([rotate(x[..., :n], base), x[..., n:]], -1)


def turn_neighbours(x, base):
    """Heads whose elements are rotated in pairs of neighbours."""
    halves = x.unflatten(-1, (-1, 2)).mT.flatten(-2)
    return rotate(halves, base).unflatten(-1, (2, -1)).mT.flatten(-2)


def attend(q, k, v, scale=None, bias=0.0, cap=None, hidden=None, causal=True):
    """Mixed values [n, h * d] of heads [h, n, d], of which several may have the same key; positions in `hidden` [n, n] are masked, and so
    are later ones if `causal`."""
    k, v = (x.repeat_interleave(q.shape[0] // k.shape[0], 0) for x in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = cap * (scores / cap).tanh() if cap else scores
    later = (distance(q.shape[1]) < 0) & causal
    scores = (scores + bias).masked_fill(later if hidden is None else later | hidden, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)


QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")
GATED = ("gate_proj", "up_proj", "down_proj")
W132 = ("w1", "w3", "w2")


class Formulas(torch.nn.Module):
    """Stored tensors by name, and what most formulas share. `states` gives those of every token, `logits` what
    follows from them."""

    EPS = None  # the key of the epsilon of layer norms, where these are the norms
    ENDING = ".weight"  # of the weights of RMS norms

    def __init__(self, c, w):
        super().__init__()
        self.c = c
        self.w = torch.nn.ParameterDict({name.replace(".", "/"): torch.nn.Parameter(value) for name, value in w.items()})

    def __getitem__(self, name):
        return self.w[name.replace(".", "/")]

    def __contains__(self, name):
        return name.replace(".", "/") in self.w

    def linear(self, x, name):
        bias = name + ".bias"
        return F.linear(x, self[name + ".weight"], self[bias] if bias in self else None)

    def heads(self, x, name, n_head):
        """A projection [h, n, d]."""
        return self.linear(x, name).unflatten(-1, (n_head, -1)).transpose(0, 1)

    def rms(self, x, name, eps=None, more=0.0):
        """An RMS norm whose weight is stored less a constant."""
        return F.rms_norm(x, x.shape[-1:], self[name] + more, self.c["rms_norm_eps"] if eps is None else eps)

    def layer_norm(self, x, name, eps):
        bias = name + ".bias"
        return F.layer_norm(x, x.shape[-1:], self[name + ".weight"], self[bias] if bias in self else None, eps)

    def norm(self, x, name):
        return self.layer_norm(x, name, self.c[self.EPS]) if self.EPS else self.rms(x, name + self.ENDING)

    def gated(self, y, at, names=GATED, act=F.silu):
        gate, up, down = (at + name for name in names)
        return self.linear(act(self.linear(y, gate)) * self.linear(y, up), down)

    def gated_pair(self, y, pair, down, act=F.silu):
        """The same with the rows of the gate, then those of up, in one matrix."""
        gate, up = self.linear(y, pair).chunk(2, -1)
        return self.linear(act(gate) * up, down)

    def chosen(self, x, weights, index, expert):
        """The sum of the chosen experts [n, k], each with its weight."""
        rows = [sum(w * expert(row, int(e)) for w, e in zip(ws, es)) for row, ws, es in zip(x, weights, index)]
        return torch.stack(rows)

    def routed(self, x, gate, n_used, expert, is_divided=True):
        """Experts that are chosen by the softmax of the gate, their weights divided by their sum."""
        weights, index = self.linear(x, gate).softmax(-1).topk(n_used, -1)
        return self.chosen(x, weights / weights.sum(-1, keepdim=True) if is_divided else weights, index, expert)

    def logits(self, x):
        return x

    def forward(self, input_ids, **_):
        states = self.states(input_ids[0])
        return SimpleNamespace(last_hidden_state=states[None], logits=self.logits(states)[None])


class Decoder(Formulas):
    """Embeddings, a stack of layers, a norm, and a head that may be the embeddings. A layer is attention and an MLP, each after a norm, if it
    is not said otherwise."""

    EMBED, LAYER, NORM, HEAD = "model.embed_tokens", "model.layers.{}.", "model.norm", "lm_head"
    # Keys of the width and of the number of layers.
    WIDTH, DEPTH = "hidden_size", "num_hidden_layers"
    ATTENTION, MLP, NORMS = "self_attn.", "mlp.", ("input_layernorm", "post_attention_layernorm")
    NAMES = GATED

    def begin(self, ids):
        return self[self.EMBED + ".weight"][ids]

    def stack(self, x, depth=None):
        for il in range(depth or self.c[self.DEPTH]):
            x = self.layer(x, self.LAYER.format(il), il)
        return x

    def states(self, ids):
        return self.norm(self.stack(self.begin(ids)), self.NORM)

    def logits(self, x):
        return self.linear(x, self.HEAD if self.HEAD + ".weight" in self else self.EMBED)

    def layer(self, x, at, il):
        x = x + self.attention(self.norm(x, at + self.NORMS[0]), at + self.ATTENTION, il)
        return x + self.feed(self.norm(x, at + self.NORMS[1]), at + self.MLP)

    def feed(self, y, at):
        return self.gated(y, at, self.NAMES)

    def attention(self, y, at, il):
        q, k, v = self.projected(y, at)
        q, k = (self.positioned(x, at + name, il) for x, name in ((q, "q_norm"), (k, "k_norm")))
        return self.linear(self.mixed(q, k, v, il), at + "o_proj")

    def positioned(self, x, norm, il):
        """Queries or keys, with a norm if there is one, rotated."""
        x = self.norm(x, norm) if norm + self.ENDING in self else x
        return rotate(x, self.c.get("rope_theta", 10000.0))

    def mixed(self, q, k, v, il):
        return attend(q, k, v)

    def counts(self):
        few = self.c["num_key_value_heads"]
        return [self.c["num_attention_heads"], few, few]

    def projected(self, y, at, names=QKVO[:3]):
        """Queries, keys and values by heads."""
        return [self.heads(y, at + name, n) for name, n in zip(names, self.counts())]

    def fused(self, y, name):
        """The same of one matrix with the rows of all queries, then all keys, then all values."""
        counts = self.counts()
        return self.heads(y, name, sum(counts)).split(counts)


class Plain(Remote):
    """A class by its formulas. `shapes` gives its tensors, `Model` what they compute, `unused` those that nothing reads."""

    unused = ()

    def new(self):
        return None

    def layout(self):
        return self.shapes()

    def reference(self, w):
        return self.Model(self.c, {name: value for name, value in w.items() if not any(part in name for part in self.unused)})


class Layers(Plain):
    """Names and shapes of the embeddings, the last norm, the head, and what `layer` says of each layer."""

    def shapes(self):
        c, names = self.c, self.Model
        n = c[names.WIDTH]
        table = [c["vocab_size"], n]
        out = {names.EMBED + ".weight": table} | ({names.NORM + names.ENDING: [n]} if names.NORM else {})
        if not self.tied():
            out |= self.head(table)
        for il in range(c[names.DEPTH]):
            out |= {names.LAYER.format(il) + name: shape for name, shape in self.layer(n, il).items()}
        return out

    def head(self, shape):
        return {self.Model.HEAD + ".weight": shape}

    def norms(self, n):
        return weights(n, *self.Model.NORMS)

    def attention(self, *names):
        """Shapes of the projections; `names` are those of norms of heads."""
        c, at = self.c, self.Model.ATTENTION
        n, d = c["hidden_size"], c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
        out = projections(at, QKVO, n, (d * c["num_attention_heads"], d * c["num_key_value_heads"]))
        return weights(d, *(at + name for name in names)) | out


def weights(n, *names):
    """Shapes of vectors."""
    return {name + ".weight": [n] for name in names}


def pairs(shapes):
    """Weights and biases with these shapes."""
    return {f"{name}.{part}": shape if part == "weight" else shape[:1] for name, shape in shapes.items() for part in ("weight", "bias")}


def projections(at, names, n, wide):
    """Shapes of `q`, `k`, `v` and `o` of one layer; `wide` is the width of queries and of keys."""
    q, k, v, o = (f"{at}{name}.weight" for name in names)
    return {q: [wide[0], n], k: [wide[1], n], v: [wide[1], n], o: [n, wide[0]]}


def mlp(at, names, n, wide):
    """Shapes of gate, up and down."""
    gate, up, down = (f"{at}{name}.weight" for name in names)
    return {gate: [wide, n], up: [wide, n], down: [n, wide]}


def mlps(at, names, n, wide, count):
    """The same of so many experts."""
    return {name: shape for e in range(count) for name, shape in mlp(at.format(e), names, n, wide).items()}
