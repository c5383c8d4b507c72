# The tiny llama-architecture model in JAX: parameters, forward pass, optimiser step, greedy decoding.
# Used by train_tiny.py and train_tiny_diffusion.py; float32 throughout, rotary embedding in Hugging Face's half-split order.

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np

# LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, HIDDEN, CONTEXT: of the built-in models, unless the environment says otherwise.
SIZES = [int(n) for n in os.environ.get("TINY_SIZES", "5,128,4,2,32,384,512").split(",")]
LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, HIDDEN, CONTEXT = SIZES
EPS, THETA = 1e-5, 10000.0

MATRICES = {  # Hugging Face's layout: [out, in]
    "self_attn.q_proj": (HEADS * HEAD, WIDTH), "self_attn.k_proj": (KV_HEADS * HEAD, WIDTH),
    "self_attn.v_proj": (KV_HEADS * HEAD, WIDTH), "self_attn.o_proj": (WIDTH, HEADS * HEAD),
    "mlp.gate_proj": (HIDDEN, WIDTH), "mlp.up_proj": (HIDDEN, WIDTH), "mlp.down_proj": (WIDTH, HIDDEN),
}


def init(seed, vocab):
    rng = np.random.default_rng(seed)
    def normal(shape, std):
        return jnp.asarray(rng.normal(0, std, shape), jnp.float32)
    p = {"model.embed_tokens.weight": normal((vocab, WIDTH), 0.3), "lm_head.weight": normal((vocab, WIDTH), 0.02),
         "model.norm.weight": jnp.ones(WIDTH)}
    for i in range(LAYERS):
        for name, (rows, cols) in MATRICES.items():
            scale = cols ** -0.5 * ((2 * LAYERS) ** -0.5 if name.endswith(("o_proj", "down_proj")) else 1)
            p[f"model.layers.{i}.{name}.weight"] = normal((rows, cols), scale)
        p[f"model.layers.{i}.input_layernorm.weight"] = jnp.ones(WIDTH)
        p[f"model.layers.{i}.post_attention_layernorm.weight"] = jnp.ones(WIDTH)
    return p


def rms(x, w):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + EPS) * w


def rotate(x, cos, sin):  # x: [batch, time, heads, HEAD]
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attention_bias(docs, causal=True):
    """What is added to scores: a token attends only to its own document, and of that, if causal, only what is earlier."""
    mask = docs[:, :, None] == docs[:, None, :]
    if causal:
        mask &= jnp.tril(jnp.ones((docs.shape[1],) * 2, bool))
    return jnp.where(mask, 0.0, -1e9)[:, None]


def hidden(p, tokens, docs, causal=True):
    """Final hidden states, after the last norm."""
    return rms(states(p, tokens, docs, causal)[-1], p["model.norm.weight"])


def states(p, tokens, docs, causal=True):
    """Hidden states after 0, 1, ... layers."""
    batch, time = tokens.shape
    angle = jnp.arange(time)[:, None] * THETA ** (-jnp.arange(0, HEAD, 2) / HEAD)[None]
    cos, sin = jnp.cos(angle)[None, :, None], jnp.sin(angle)[None, :, None]
    bias = attention_bias(docs, causal)
    x = p["model.embed_tokens.weight"][tokens]
    out = [x]
    for i in range(LAYERS):
        def w(name, i=i):
            return p[f"model.layers.{i}.{name}.weight"]
        h = rms(x, w("input_layernorm"))
        q = rotate((h @ w("self_attn.q_proj").T).reshape(batch, time, HEADS, HEAD), cos, sin)
        k = rotate((h @ w("self_attn.k_proj").T).reshape(batch, time, KV_HEADS, HEAD), cos, sin)
        v = (h @ w("self_attn.v_proj").T).reshape(batch, time, KV_HEADS, HEAD)
        q = q.transpose(0, 2, 1, 3) * HEAD ** -0.5
        k, v = (jnp.repeat(t.transpose(0, 2, 1, 3), HEADS // KV_HEADS, 1) for t in (k, v))
        a = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) + bias, -1) @ v
        x = x + a.transpose(0, 2, 1, 3).reshape(batch, time, HEADS * HEAD) @ w("self_attn.o_proj").T
        h = rms(x, w("post_attention_layernorm"))
        x = x + (jax.nn.silu(h @ w("mlp.gate_proj").T) * (h @ w("mlp.up_proj").T)) @ w("mlp.down_proj").T
        out.append(x)
    return out


def cross_entropy(logits, target):
    return jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, target[..., None], -1)[..., 0]


def loss(p, tokens, docs, weight):
    """Mean cross-entropy of the tokens whose weight is 1 (what the assistant says)."""
    x = hidden(p, tokens[:, :-1], docs[:, :-1])
    target, weight = tokens[:, 1:], weight[:, 1:]
    nll = cross_entropy(x @ p["lm_head.weight"].T, target)
    return jnp.sum(nll * weight) / jnp.maximum(jnp.sum(weight), 1)


def orthogonal(g):
    """Newton-Schulz iteration towards the nearest orthogonal matrix (Muon)."""
    wide = g.shape[0] <= g.shape[1]
    x = g if wide else g.T
    x = x / (jnp.linalg.norm(x) + 1e-7)
    for _ in range(5):
        s = x @ x.T
        x = 3.4445 * x + (-4.7750 * s + 2.0315 * s @ s) @ x
    return x if wide else x.T


def is_matrix(name):
    return "_proj" in name


def stepper(loss):
    """One step for this loss: Muon for the layers' matrices, AdamW for embeddings, head and norms. lr runs from 0 to 1."""
    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(p, state, batch, lr, count):
        value, grads = jax.value_and_grad(loss)(p, *batch)
        new_p, new_state = {}, {}
        for name, g in grads.items():
            new_p[name], new_state[name] = updated(name, p[name], state[name], g, lr, count)
        return new_p, new_state, value
    return step


def updated(name, w, state, g, lr, count):
    """The parameter and its state after a step with gradient g."""
    if is_matrix(name):
        m = 0.95 * state + 0.05 * g
        update = orthogonal(0.95 * m + 0.05 * g) * (0.2 * max(g.shape) ** 0.5)
        return w * (1 - 0.1 * 0.005 * lr) - 0.005 * lr * update, m
    m, v = state
    m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g * g
    update = m / (1 - 0.9 ** count) / (jnp.sqrt(v / (1 - 0.98 ** count)) + 1e-8)
    return w * (1 - 0.01 * 0.004 * lr * (w.ndim > 1)) - 0.004 * lr * update, (m, v)


step = stepper(loss)


def schedule(step, steps, peak, fall):
    """Warm-up over 60 steps, flat, then down to nothing."""
    return peak * min(1.0, (step + 1) / 60, (steps - step) / (fall * steps))


def start_state(p):
    return {n: jnp.zeros_like(w) if is_matrix(n) else (jnp.zeros_like(w), jnp.zeros_like(w)) for n, w in p.items()}


@jax.jit
def best_tokens(p, tokens):
    return jnp.argmax(hidden(p, tokens, jnp.zeros_like(tokens)) @ p["lm_head.weight"].T, -1)


def padded(rows, batch):
    time = -(-max(map(len, rows)) // 32) * 32
    tokens = np.zeros((batch, time), np.int32)
    for r, row in enumerate(rows):
        tokens[r, :len(row)] = row
    return tokens


def agrees(p, prompts, expected, batch=64):
    """For each prompt whether greedy decoding gives exactly the expected tokens: one pass, no decoding."""
    out = [False] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]) + len(expected[i]))
    for at in range(0, len(order), batch):
        rows = order[at:at + batch]
        best = np.asarray(best_tokens(p, padded([prompts[i] + expected[i] for i in rows], batch)))
        for r, i in enumerate(rows):
            n = len(prompts[i]) - 1
            out[i] = best[r, n:n + len(expected[i])].tolist() == expected[i]
    return out


def greedy(p, prompts, end, limit=72, batch=16):
    """Greedy continuations (token lists without the end token) of token lists."""
    out = [None] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for at in range(0, len(order), batch):
        alive = {i: list(prompts[i]) for i in order[at:at + batch]}
        for _ in range(limit):
            best = np.asarray(best_tokens(p, padded(list(alive.values()), batch)))
            for r, (i, row) in enumerate(list(alive.items())):
                token = int(best[r, len(row) - 1])
                if token == end:
                    out[i] = row[len(prompts[i]):]
                    del alive[i]
                else:
                    row.append(token)
            if not alive:
                break
        for i, row in alive.items():
            out[i] = row[len(prompts[i]):]
    return out
