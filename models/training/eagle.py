# A drafter for the tiny chat model in JAX (EAGLE-3, Li et al. 2025): parameters, and what it predicts step by step.
# Used by train_drafter.py. It reads the model's token table and head, which it has no weights of its own for.

import jax
import jax.numpy as jnp
import numpy as np

import model

LAYERS = (1, 3, 5)  # the hidden states after so many layers are read
HEADS, KV_HEADS, HEAD, HIDDEN = 4, 2, 32, 96
WIDTH = model.WIDTH

MATRICES = {  # [out, in]
    "fc_proj": (WIDTH, WIDTH * len(LAYERS)),
    "q_proj": (HEADS * HEAD, 2 * WIDTH), "k_proj": (KV_HEADS * HEAD, 2 * WIDTH), "v_proj": (KV_HEADS * HEAD, 2 * WIDTH),
    "o_proj": (WIDTH, HEADS * HEAD),
    "gate_proj": (HIDDEN, WIDTH), "up_proj": (HIDDEN, WIDTH), "down_proj": (WIDTH, HIDDEN),
}
NORMS = ("embedding_norm", "hidden_norm", "ffn_norm", "output_norm")


def init(seed, target):
    rng = np.random.default_rng(seed)
    p = {name: jnp.asarray(rng.normal(0, cols ** -0.5, (rows, cols)), jnp.float32) for name, (rows, cols) in MATRICES.items()}
    norms = {name: jnp.ones(WIDTH) for name in NORMS}
    norms["output_norm"] = jnp.array(target["model.norm.weight"], copy=True)  # what the head was trained with
    return p | norms


def rounded(w):
    """What is left of a matrix in q4_0; gradients pass unchanged."""
    blocks = w.reshape(-1, 32)
    most = jnp.take_along_axis(blocks, jnp.argmax(jnp.abs(blocks), -1, keepdims=True), -1)
    scale = most / -8
    whole = jnp.clip(jnp.floor(blocks / jnp.where(scale == 0, 1, scale) + 8.5), 0, 15) - 8
    left = (whole * scale.astype(jnp.float16).astype(jnp.float32)).reshape(w.shape)
    return w + jax.lax.stop_gradient(left - w)


def rotate(x, at):
    """Rotates neighbouring elements of each head [batch, time, heads, HEAD] by the positions [batch, time]."""
    angle = at[..., None] * model.THETA ** (-jnp.arange(0, HEAD, 2) / HEAD)
    cos, sin = jnp.cos(angle)[:, :, None], jnp.sin(angle)[:, :, None]
    a, b = x[..., 0::2], x[..., 1::2]
    return jnp.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape)


def ahead(x, n):
    """x [batch, time] at the place n later; 0 beyond the end."""
    return jnp.pad(x[:, n:], [(0, 0), (0, n)])


def at(x, places):
    """x [batch, time, ...] at places [batch, n] of its time."""
    return jnp.take_along_axis(x, places.reshape(places.shape + (1,) * (x.ndim - 2)), 1)


def predict(p, target, tokens, docs, states, places, steps):
    """Logits of each step [batch, n, vocab] of drafts that begin at places [batch, n], for the token 2, 3, ... places later.

    The first step at a place reads the hidden states there and the token after it; each later one what the step before made
    in place of hidden states, and the token after that. It attends to the first steps of all places up to its own, and to
    the steps of its own draft.
    """
    batch, time = tokens.shape
    p = {name: rounded(w) if model.is_matrix(name) else w for name, w in p.items()}
    table, head = target["model.embed_tokens.weight"], target["lm_head.weight"]

    def pair(x, tokens):
        return jnp.concatenate([model.rms(table[tokens], p["embedding_norm"]), model.rms(x, p["hidden_norm"])], -1)

    def heads(y, name, positions):
        """[batch, HEADS, n, HEAD]; keys and values are repeated."""
        out = (y @ p[name].T).reshape(*y.shape[:2], -1, HEAD)
        out = out if positions is None else rotate(out, positions)
        return jnp.repeat(out, HEADS // out.shape[2], 2).transpose(0, 2, 1, 3)

    x = jnp.concatenate([states[n] for n in LAYERS], -1) @ p["fc_proj"].T
    all_pairs, all_places = pair(x, ahead(tokens, 1)), jnp.broadcast_to(jnp.arange(time), (batch, time))
    keys, values = heads(all_pairs, "k_proj", all_places), heads(all_pairs, "v_proj", None)
    bias = at(model.attention_bias(docs)[:, 0], places)[:, None]
    x, own, out = at(x, places), [], []
    for step in range(steps):
        y = pair(x, at(ahead(tokens, step + 1), places))
        q = heads(y, "q_proj", places + step) * HEAD ** -0.5
        if step > 0:
            own.append((heads(y, "k_proj", places + step), heads(y, "v_proj", None)))
        scores = [q @ keys.transpose(0, 1, 3, 2) + bias] + [jnp.sum(q * k, -1, keepdims=True) for k, _ in own]
        share = jax.nn.softmax(jnp.concatenate(scores, -1), -1)
        a = share[..., :time] @ values + sum(share[..., time + n, None] * v for n, (_, v) in enumerate(own))
        x = x + a.transpose(0, 2, 1, 3).reshape(*places.shape, HEADS * HEAD) @ p["o_proj"].T
        h = model.rms(x, p["ffn_norm"])
        x = x + (jax.nn.silu(h @ p["gate_proj"].T) * (h @ p["up_proj"].T)) @ p["down_proj"].T
        out.append(model.rms(x, p["output_norm"]) @ head.T)
    return out


def counted(docs, weight, step):
    """Whether a draft from a place [batch, time] is, with this step, of one reply, of which it knows the first token or more."""
    w = ahead(docs, step + 2) == docs
    for n in range(step + 2):
        w &= ahead(weight, n + 1) > 0
    return w


def drafts(p, target, tokens, docs, weight, n, steps):
    """From up to n places of each row: for each step which count, the logits, and those of the target."""
    states = model.states(target, tokens, docs)
    known = model.rms(states[-1], target["model.norm.weight"]) @ target["lm_head.weight"].T
    places = jnp.argsort(~counted(docs, weight, 0), 1, stable=True)[:, :n]
    for step, logits in enumerate(predict(p, target, tokens, docs, states, places, steps)):
        later = jnp.minimum(places + step + 1, tokens.shape[1] - 1)
        yield at(counted(docs, weight, step), places), logits, jax.lax.stop_gradient(at(known, later))


def loss(p, target, tokens, docs, weight, steps):
    """Cross-entropy with the probabilities of the target; later steps weigh less. At most two fifths of the places are used."""
    total = 0.0
    for step, (counts, logits, known) in enumerate(drafts(p, target, tokens, docs, weight, tokens.shape[1] * 2 // 5, steps)):
        nll = -jnp.sum(jax.nn.softmax(known, -1) * jax.nn.log_softmax(logits, -1), -1)
        total += 0.9 ** step * jnp.sum(nll * counts) / jnp.maximum(jnp.sum(counts), 1)
    return total / sum(0.9 ** step for step in range(steps))


def accepted(p, target, tokens, docs, weight, steps):
    """For each step which drafts are so long, and of which it and all before it are what the target holds for the likeliest."""
    out, right = [], True
    for counts, logits, known in drafts(p, target, tokens, docs, weight, tokens.shape[1], steps):
        right &= jnp.argmax(logits, -1) == jnp.argmax(known, -1)
        out.append((counts, right & counts))
    return out
