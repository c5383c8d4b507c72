# Trains the small chat model that ships in models/ and writes it as a Hugging Face folder and as a GGUF file.
# Usage: pip install -r models/training/requirements.txt && python3 models/training/train_tiny.py --help

import json
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

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import chart  # noqa: E402
import data  # noqa: E402
import export  # noqa: E402
import model  # noqa: E402
from bench_server import options  # noqa: E402

TOKENS = 2048  # per step
VOCAB = 768


class Batches:
    """Conversations packed into rows: each whole in one row, the rest of the row empty."""

    def __init__(self, seed, stage, tokenizer):
        self.rng, self.seed, self.tokenizer = random.Random(f"train {seed} {stage}"), seed, tokenizer
        self.equals, self.assistant = tokenizer.token_to_id("="), tokenizer.token_to_id("assistant")
        self.ready = []

    def weights(self, ids):
        """1 for what the assistant says; of a plain line all but its start, of a plain sum the result."""
        if ids[0] != export.START:
            start = ids.index(self.equals) + 1 if self.equals in ids else 2
            return [int(i >= start) for i in range(len(ids))]
        out, speaking = [0] * len(ids), False
        for i, token in enumerate(ids):
            if token == export.START:
                speaking = False
            elif i >= 2 and ids[i - 2] == export.START and ids[i - 1] == self.assistant:
                speaking = True  # this token is the line break after the role
            elif speaking:
                out[i] = 1
                speaking = token != export.END
        return out

    def document(self, length, plain_share):
        while True:
            if not self.ready:
                texts = [data.conversation(self.rng, self.seed, plain_share, length > 128) for _ in range(256)]
                self.ready = [(e.ids, self.weights(e.ids)) for e in self.tokenizer.encode_batch(texts)]
            ids, weights = self.ready.pop()
            if len(ids) <= length:
                return ids, weights

    def next(self, length, plain_share):
        rows = TOKENS // length
        tokens, docs, weight = (np.zeros((rows, length + 1), t) for t in (np.int32, np.int32, np.float32))
        at, row, doc = 0, 0, 1
        while row < rows:
            ids, w = self.document(length + 1, plain_share)
            n = len(ids)
            if at + n > length + 1:
                self.ready.append((ids, w))
                row, at = row + 1, 0
                continue
            tokens[row, at:at + n], docs[row, at:at + n], weight[row, at:at + n] = ids, doc, w
            at, doc = at + n, doc + 1
        return tokens, docs, weight


# Steps, peak of the learning rate, part of the steps over which it goes down to nothing, and how many
# of the documents are plain lines up to which part of the steps.
STAGES = [
    (2200, 1.0, 0.45, [(0.5, 0.7), (0.75, 0.3), (1.0, 0.1)]),
    (900, 0.6, 0.9, [(0.6, 0.5), (1.0, 0.1)]),
]


def replies(params, tokenizer, prompts):
    encoded = [e.ids for e in tokenizer.encode_batch([data.prompt_text(p) for p in prompts])]
    return [tokenizer.decode(ids) for ids in model.greedy(params, encoded, export.END)]


def right(params, tokenizer, items, answers=None):
    """How many of [(prompt, reply)] are answered so; with `answers`, how many replies end in that number."""
    prompts = [tokenizer.encode(data.prompt_text(p)).ids for p, _ in items]
    exact = model.agrees(params, prompts, [tokenizer.encode(r).ids + [export.END] for _, r in items])
    if answers:
        wrong = [i for i, ok in enumerate(exact) if not ok]
        for i, reply in zip(wrong, replies(params, tokenizer, [items[i][0] for i in wrong])):
            exact[i] = data.last_number(reply) == answers[i]
    return sum(exact)


def table(params, tokenizer, held, seed):
    """[(task, right, asked)] by greedy decoding."""
    rows = [(f"held-out {name}", right(params, tokenizer, [(q["prompt"], q["reply"]) for q in questions],
                                       [q["answer"] for q in questions]), len(questions))
            for name, questions in held.items()]
    return rows + [(name, right(params, tokenizer, items), len(items)) for name, items in data.other_tasks(seed).items()]


def main():
    parser = options(None)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stage", type=int, choices=(1, 2), help="only this stage; 2 goes on from the files in --out")
    parser.add_argument("--steps", type=int, help="steps of each stage, instead of the usual number")
    parser.add_argument("--out", type=Path, default=MODELS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    held = data.held_out(args.seed)
    (args.out / "held_out.json").write_text(json.dumps(
        {name: [{k: q[k] for k in ("prompt", "answer")} for q in questions] for name, questions in held.items()},
        indent=1) + "\n")
    for stage in (1, 2):
        if args.stage in (None, stage):
            train(stage, args, held)


def train(stage, args, held):
    """One stage, from nothing or from the files of the first (float16), to files."""
    began = time.time()
    steps, peak, fall, shares = STAGES[stage - 1]
    steps = args.steps or steps
    curve = []
    if stage == 1:
        rng = random.Random(f"vocabulary {args.seed}")
        tokenizer = export.train_tokenizer([data.conversation(rng, args.seed) for _ in range(30000)], VOCAB)
        params = model.init(args.seed, tokenizer.get_vocab_size())
    else:
        tokenizer, params = export.read_folder(args.out / "tiny-chat")
        curve = [(int(s), float(v)) for s, v in (line.split(",") for line in (args.out / "loss.csv").read_text().split()[1:])]
    first = curve[-1][0] if curve else 0
    batches = Batches(args.seed, stage, tokenizer)
    state = model.start_state(params)
    count = sum(w.size for w in params.values())
    print(f"stage {stage}: {count} parameters, {tokenizer.get_vocab_size()} tokens, {time.time() - began:.0f} s", flush=True)

    recent = []
    for step in range(steps):
        length = 512 if step >= 0.9 * steps else 128
        plain_share = next(share for end, share in shares if step < end * steps)
        batch = tuple(map(jnp.asarray, batches.next(length, plain_share)))
        params, state, value = model.step(params, state, batch, model.schedule(step, steps, peak, fall), step + 1)
        recent.append(value)
        if len(recent) == 20 or step + 1 == steps:
            curve.append((first + step + 1, float(np.mean([float(v) for v in recent]))))
            recent = []
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}/{steps} loss {curve[-1][1]:.4f} {time.time() - began:.0f} s", flush=True)
        if (step + 1) % 200 == 0:
            part = {name: [(q["prompt"], q["reply"]) for q in questions[:128]] for name, questions in held.items()}
            print("  held out, of 128:", {n: right(params, tokenizer, q) for n, q in part.items()}, flush=True)
    trained = time.time() - began

    export.write_folder(args.out / "tiny-chat", params, tokenizer)
    export.write_gguf(args.bench, args.out / "tiny-chat", args.out / "tiny-chat.gguf")
    (args.out / "loss.csv").write_text("step,loss\n" + "".join(f"{s},{v:.4f}\n" for s, v in curve))
    (args.out / "loss.svg").write_text(chart.loss_svg(curve))
    rounded = {name: jnp.asarray(w.astype(np.float32)) for name, w in export.half(params).items()}
    single, halved = (table(p, tokenizer, held, args.seed) for p in (params, rounded))
    lines = ["| task | asked | right, f32 | right, f16 |", "|---|---|---|---|"]
    for (name, a, n), (_, b, _) in zip(single, halved):
        lines.append(f"| {name} | {n} | {100 * a / n:.1f} % | {100 * b / n:.1f} % |")
    report = "\n".join(lines)
    print(report)
    print(f"trained in {trained:.0f} s, all in {time.time() - began:.0f} s, {platform.machine()}, {os.cpu_count()} cores")
    shown = ["2+2=?", "What is 17 plus 5?", "Hello!", "Who are you?", "Count from 5 to 12.", "Spell rocket.",
             "Reverse the word lemon.", "What is the capital of Norway?", "12-40", "Who won the game?"]
    for prompt, reply in zip(shown, replies(rounded, tokenizer, shown)):
        print(f"  {prompt} -> {reply}")


if __name__ == "__main__":
    main()
