# Masked diffusion with the tiny model (LLaDA, arXiv 2502.09992): the loss on masked tokens, and denoising.
# Used by train_tiny_diffusion.py; every token attends to its whole document, a position predicts its own token.

import jax
import jax.numpy as jnp
import numpy as np

import model


def logits(p, tokens, docs):
    return model.hidden(p, tokens, docs, causal=False) @ p["lm_head.weight"].T


def loss(p, tokens, docs, target, weight):
    """Weighted cross-entropy of the targets; the weight is 0 where nothing is masked."""
    return jnp.sum(model.cross_entropy(logits(p, tokens, docs), target) * weight)


step = model.stepper(loss)


@jax.jit
def candidates(p, tokens, docs):
    """For each position the most probable token, and the odds against it (exact where its probability rounds to 1)."""
    out = logits(p, tokens, docs)
    best = jnp.argmax(out, -1)
    others = jnp.arange(out.shape[-1]) != best[..., None]
    return best, jnp.sum(jnp.exp(out - jnp.max(out, -1, keepdims=True)) * others, -1)


def shares(count, steps):
    """count split over the steps as evenly as it goes, the remainder to the first."""
    return [count // steps + (i < count % steps) for i in range(steps)]


def denoise(p, prompts, mask, length, steps, block, batch=128):
    """Completions of `length` tokens, block after block: each step fixes the masked positions of the block with the highest confidence."""
    out = [None] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    blocks = length // block
    for at in range(0, len(order), batch):
        rows = order[at:at + batch]
        begin = np.array([len(prompts[i]) for i in rows])
        tokens = model.padded([prompts[i] + [mask] * length for i in rows], len(rows))
        place = np.arange(tokens.shape[1])[None] - begin[:, None]  # in the completion
        docs = (place < length).astype(np.int32)
        for b in range(blocks):
            inside = (place >= b * block) & (place < (b + 1) * block)
            for share in shares(block, steps // blocks):
                best, doubt = map(np.asarray, candidates(p, tokens, docs))
                doubt = np.where(inside & (tokens == mask), doubt, np.inf)
                fixed = np.argsort(doubt, -1, kind="stable")[:, :share]
                np.put_along_axis(tokens, fixed, np.take_along_axis(best, fixed, -1), -1)
        for r, i in enumerate(rows):
            out[i] = tokens[r, begin[r]:begin[r] + length].tolist()
    return out
