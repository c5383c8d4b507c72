# Trains the small diffusion model that ships in models/ and writes it as a Hugging Face folder.
# Usage: pip install -r models/training/requirements.txt && python3 models/training/train_tiny_diffusion.py --help

import argparse
import os
import platform
import random
import sys
import time
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
MODELS = Path(__file__).resolve().parent.parent
sys.path.append(str(MODELS.parent / "scripts"))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

import chart  # noqa: E402
import data  # noqa: E402
import diffusion  # noqa: E402
import export  # noqa: E402
import model  # noqa: E402

TOKENS = 2048  # per step
STEPS, PEAK, FALL = 8000, 1.0, 0.45
PLAIN = [(0.375, 0.7), (0.8, 0.4), (1.0, 0.2)]  # how many of the documents are plain lines up to which part of the steps
GOLDEN = (5 ** 0.5 - 1) / 2


def vocabulary():
    """That of the shipped chat model, with a mask token at the end."""
    tokenizer = Tokenizer.from_file(str(MODELS / "tiny-chat" / "tokenizer.json"))
    tokenizer.add_special_tokens([export.MASK])
    return tokenizer


class Batches:
    """Documents with masked answers packed into rows; each step's batch depends on seed and step alone."""

    def __init__(self, seed, tokenizer):
        self.seed, self.tokenizer, self.mask = seed, tokenizer, tokenizer.token_to_id(export.MASK)
        self.equals = {i for t, i in tokenizer.get_vocab().items() if t.startswith("=")}

    def texts(self, rng, plain_share, long):
        """A prompt and the answer to it; a plain line has no prompt."""
        if rng.random() < plain_share:
            return "", data.plain(rng, self.seed)
        r = rng.random()
        turns = rng.randint(3, 12) if long and r < 0.5 else 1 if r < 0.85 else rng.randint(2, 4)
        *before, (_, answer) = data.messages(rng, self.seed, turns)
        return data.render(before) + data.GENERATE, answer

    def documents(self, rng, plain_share, long):
        """Without end: the prompt's ids, the answer's with the end token, and how many end tokens follow."""
        while True:
            prompts, answers = zip(*(self.texts(rng, plain_share, long) for _ in range(64)))
            for prompt, answer in zip(*map(self.tokenizer.encode_batch, (prompts, answers))):
                prompt, answer = prompt.ids, answer.ids + [export.END]
                if not prompt:  # of a plain sum only the result is masked
                    at = next((i for i, t in enumerate(answer) if t in self.equals), 0)
                    yield answer[:at], answer[at:], rng.randint(0, 4)
                    continue
                n, r = len(answer), rng.random()
                most = rng.randint(0, 256 if long else 64) if r < 0.25 else 32 if r < 0.6 else n + rng.randint(0, 8)
                yield prompt, answer, max(0, most - n)

    def masked(self, rng, level, prompt, answer, more):
        """(tokens, targets, weights) of a document: a token is masked with the ratio that belongs to the level, from 0 to 1,
        and then weighted by its inverse. In a part of the documents the end tokens after an answer are all masked or
        all present, as happens in block-by-block denoising, or if they are the most confident tokens."""
        ratio = (1 + level * (len(answer) - 1)) / len(answer)  # at least one token, on the average
        after = rng.choice([ratio, ratio, 1.0, 0.0])
        ratios = [0.0] * len(prompt) + [ratio] * len(answer) + [after] * more
        targets = prompt + answer + [export.END] * more
        hidden = [rng.random() < r for r in ratios]
        return ([self.mask if h else t for h, t in zip(hidden, targets)], targets,
                [1 / r if h else 0.0 for h, r in zip(hidden, ratios)])

    def at(self, step, length, plain_share):
        rng = random.Random(f"diffusion {self.seed} {step}")
        rows = TOKENS // length
        tokens, docs, targets, weight = (np.zeros((rows, length), t) for t in (np.int32, np.int32, np.int32, np.float32))
        used, level, asked, full = [0] * rows, rng.random(), 0, 0
        for doc, (prompt, answer, more) in enumerate(self.documents(rng, plain_share, length > 128), 1):
            n = len(prompt) + len(answer) + more
            row = next((r for r in range(rows) if used[r] + n <= length), None)
            if row is None:
                full += n <= length
                if full == 8:
                    break
                continue
            here = slice(used[row], used[row] + n)
            level = (level + GOLDEN) % 1  # evenly spread, however many documents there are
            tokens[row, here], targets[row, here], weight[row, here] = self.masked(rng, level, prompt, answer, more)
            docs[row, here] = doc
            used[row], asked = used[row] + n, asked + len(answer) + more
        return tokens, docs, targets, weight / asked


class Denoised:
    """The model's answers, as the server gives them: a buffer of mask tokens is denoised in a number of steps, block by block."""

    def __init__(self, params, tokenizer):
        self.params, self.tokenizer = params, tokenizer

    def replies(self, prompts, length, steps, block):
        ids = [e.ids for e in self.tokenizer.encode_batch([data.prompt_text(p) for p in prompts])]
        answers = diffusion.denoise(self.params, ids, self.tokenizer.token_to_id(export.MASK), length, steps, block)
        return [self.tokenizer.decode(a[:a.index(export.END)] if export.END in a else a) for a in answers]

    def right(self, items, length=32, steps=16, block=None):
        """Which part of [(prompt, reply, number or None)] is answered so, or ends in the number."""
        given = self.replies([p for p, _, _ in items], length, steps, block or length)
        return np.mean([g == reply or number is not None and data.last_number(g) == number
                        for g, (_, reply, number) in zip(given, items)])


def items(held, count=None):
    return {name: [(q["prompt"], q["reply"], q["answer"]) for q in questions[:count]] for name, questions in held.items()}


def save(path, step, tree):
    part = path.with_suffix(".part.npz")
    np.savez(part, *jax.tree.leaves(tree), step=step)
    part.replace(path)


def restore(path, tree):
    """(steps done, what was saved), or none done and the tree."""
    if not (path and path.exists()):
        return 0, tree
    with np.load(path) as saved:
        leaves = [jnp.asarray(saved[f"arr_{i}"]) for i in range(len(jax.tree.leaves(tree)))]
        return int(saved["step"]), jax.tree.unflatten(jax.tree.structure(tree), leaves)


def train(args, tokenizer, held):
    began, recent = time.time(), []
    params = model.init(args.seed, tokenizer.get_vocab_size())
    done, (params, state) = restore(args.checkpoint, (params, model.start_state(params)))
    batches = Batches(args.seed, tokenizer)
    print(f"{sum(w.size for w in params.values())} parameters, {tokenizer.get_vocab_size()} tokens, from step {done}", flush=True)
    for step in range(done, args.steps):
        length = 512 if step >= 0.9 * args.steps else 128
        plain_share = next(share for end, share in PLAIN if step < end * args.steps)
        batch = tuple(map(jnp.asarray, batches.at(step, length, plain_share)))
        params, state, value = diffusion.step(params, state, batch, model.schedule(step, args.steps, PEAK, FALL), step + 1)
        recent.append(value)
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}/{args.steps} loss {np.mean([float(v) for v in recent]):.4f} {time.time() - began:.0f} s", flush=True)
            recent = []
        if (step + 1) % 200 == 0 or step + 1 == args.steps:
            if args.checkpoint:
                save(args.checkpoint, step + 1, (params, state))
            filled = Denoised(params, tokenizer)
            print("  held out, 8 steps:", {n: f"{filled.right(q, steps=8):.3f}" for n, q in items(held, 64).items()}, flush=True)
    print(f"trained in {time.time() - began:.0f} s, {platform.machine()}, {os.cpu_count()} cores", flush=True)
    return params


STEP_COUNTS = [1, 2, 4, 8, 16, 32]


def measure(filled, held, seed):
    """Prints the tables of models/README.md, and returns the series of its plot."""
    def row(name, parts):
        print("| " + " | ".join([name] + [f"{100 * part:.1f} %" for part in parts]) + " |", flush=True)
    def head(*names):
        print("\n| " + " | ".join(map(str, names)) + " |\n" + "|---" * len(names) + "|", flush=True)
    asked, series = items(held), []
    head("steps", *STEP_COUNTS)
    for name, q in asked.items():
        series.append((name, [(s, filled.right(q, steps=s)) for s in STEP_COUNTS]))
        row(name, [part for _, part in series[-1][1]])
    head("16 steps", "blocks of 8", "blocks of 16", "buffer of 64")
    for name, q in asked.items():
        row(name, [filled.right(q, block=8), filled.right(q, block=16), filled.right(q, 64)])
    head("task", "right")
    for name, pairs in data.other_tasks(seed).items():
        row(f"{name}, {len(pairs)}", [filled.right([(prompt, reply, None) for prompt, reply in pairs], 64, 32)])
    return series


SHOWN = ["2+2=?", "What is 17 plus 5?", "Hello!", "Who are you?", "Count from 5 to 8.", "Spell rocket.",
         "Reverse the word lemon.", "What is the capital of Norway?", "12-40", "Who won the game?"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--checkpoint", type=Path, help="a file (.npz) written each 200 steps; if it is there, training goes on from it")
    parser.add_argument("--out", type=Path, default=MODELS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer, held = vocabulary(), data.held_out(args.seed)
    params = train(args, tokenizer, held)
    export.write_diffusion_folder(args.out / "tiny-diffusion", params, tokenizer)
    filled = Denoised({name: jnp.asarray(w.astype(np.float32)) for name, w in export.half(params).items()}, tokenizer)
    for prompt, reply in zip(SHOWN, filled.replies(SHOWN, 32, 16, 32)):
        print(f"  {prompt} -> {reply}", flush=True)
    (args.out / "diffusion_steps.svg").write_text(chart.steps_svg(measure(filled, held, args.seed)))


if __name__ == "__main__":
    main()
