# Trains the drafter of the small chat model (EAGLE-3) and writes it as a GGUF file.
# Usage: pip install -r models/training/requirements.txt && python3 models/training/train_drafter.py --help

import functools
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
MODELS = Path(__file__).resolve().parent.parent
sys.path.append(str(MODELS.parent / "scripts"))

import gguf  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import data  # noqa: E402
import eagle  # noqa: E402
import export  # noqa: E402
import model  # noqa: E402
import train_tiny  # noqa: E402
from bench_server import options, run  # noqa: E402

DRAFTED = 4  # tokens of a draft in training

NAMES = {
    "fc_proj": "fc", "q_proj": "blk.0.attn_q", "k_proj": "blk.0.attn_k", "v_proj": "blk.0.attn_v", "o_proj": "blk.0.attn_output",
    "gate_proj": "blk.0.ffn_gate", "up_proj": "blk.0.ffn_up", "down_proj": "blk.0.ffn_down", "embedding_norm": "blk.0.attn_norm",
    "hidden_norm": "blk.0.attn_norm_2", "ffn_norm": "blk.0.ffn_norm", "output_norm": "output_norm",
}


def write_gguf(path, p, vocab):
    """Matrices in q4_0, norms in f32; the token table and the head are the model's."""
    out = gguf.GGUFWriter(path, "eagle3")
    out.add_type("model")
    out.add_name("Inference Lab Bench Tiny Chat EAGLE-3")
    out.add_license("mit or apache-2.0")
    out.add_quantization_version(2)
    out.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    out.add_block_count(1)
    out.add_context_length(model.CONTEXT)
    out.add_vocab_size(vocab)
    out.add_embedding_length(eagle.WIDTH)
    out.add_feed_forward_length(eagle.HIDDEN)
    out.add_head_count(eagle.HEADS)
    out.add_head_count_kv(eagle.KV_HEADS)
    out.add_key_length(eagle.HEAD)
    out.add_value_length(eagle.HEAD)
    out.add_layer_norm_rms_eps(model.EPS)
    out.add_rope_freq_base(model.THETA)
    out.add_rope_dimension_count(eagle.HEAD)
    out.add_array("eagle3.target_layers", list(eagle.LAYERS))
    for name, of in NAMES.items():
        w = np.asarray(p[name], np.float32)
        kind = gguf.GGMLQuantizationType.Q4_0 if w.ndim == 2 else None
        out.add_tensor(f"{of}.weight", gguf.quants.quantize(w, kind) if kind else w, raw_dtype=kind)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def error(bench, path, p, target, tokens):
    """Normalised squared error of the logits by the program, after all tokens and after those of a draft."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "logits.npy"
        run([bench, "logits", "-m", MODELS / "tiny-chat.gguf", "--draft-model", path, "--drafted", DRAFTED, "--tokens",
             ",".join(map(str, tokens)), "-o", out])
        found = np.load(out)
    known, rows, last = list(tokens), [], len(tokens) - 2
    for step in range(DRAFTED):
        t = jnp.asarray([known])
        places = jnp.arange(last + 1)[None] if step == 0 else jnp.array([[last]])
        logits = eagle.predict(p, target, t, jnp.ones_like(t), model.states(target, t, jnp.ones_like(t)), places, step + 1)[-1]
        rows.append(np.asarray(logits[0]))
        known.append(int(rows[-1][-1].argmax()))
    wanted = np.concatenate(rows)
    return float(np.sum((found - wanted) ** 2) / np.sum(wanted ** 2))


def sets(tokenizer, seed):
    """Prompts that are not in the training data with their replies, by task."""
    held = {name: [(q["prompt"], q["reply"]) for q in of] for name, of in data.held_out(seed).items()}
    other = data.other_tasks(seed)
    kept = ["counting", "facts, an untrained phrasing", "other questions", "spelling, made-up words", "reversing, made-up words"]
    return {name: [(tokenizer.encode(data.prompt_text(q)).ids, tokenizer.encode(a).ids + [export.END]) for q, a in of[:200]]
            for name, of in (held | {name: other[name] for name in kept}).items()}


def shares(judge, p, items, batch=40, length=160):
    """Share of drafts whose first 1, 2, ... tokens are all the target's, of those drafts that are as long."""
    n, right = np.zeros(DRAFTED), np.zeros(DRAFTED)
    items = [(prompt, reply) for prompt, reply in items if len(prompt) + len(reply) <= length]
    for at in range(0, len(items), batch):
        part = items[at:at + batch]
        tokens = model.padded([[0] * length] + [a + b for a, b in part], batch + 1)[1:]
        weight, docs = np.zeros(tokens.shape, np.float32), np.zeros(tokens.shape, np.int32)
        for row, (prompt, reply) in enumerate(part):
            weight[row, len(prompt):len(prompt) + len(reply)] = 1
            docs[row, :len(prompt) + len(reply)] = 1
        for step, (there, is_right) in enumerate(judge(p, tokens, docs, weight)):
            n[step] += there.sum()
            right[step] += is_right.sum()
    return right / n


def main():
    parser = options(None)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--out", type=Path, default=MODELS / "tiny-chat.eagle3.gguf")
    args = parser.parse_args()
    began = time.time()
    tokenizer, target = export.read_folder(MODELS / "tiny-chat")
    batches = train_tiny.Batches(args.seed, "drafter", tokenizer)
    held = sets(tokenizer, args.seed)
    p = eagle.init(args.seed, target)
    state = model.start_state(p)
    count = sum(w.size for w in p.values())
    print(f"{count} parameters", flush=True)
    step = model.stepper(functools.partial(eagle.loss, steps=DRAFTED))
    judge = jax.jit(lambda p, *batch: eagle.accepted(p, target, *batch, DRAFTED))
    recent = []
    for at in range(args.steps):
        batch = map(jnp.asarray, batches.next(512 if at >= 0.9 * args.steps else 128, 0.1))
        p, state, value = step(p, state, (target, *batch), model.schedule(at, args.steps, 1.6, 0.6), at + 1)
        recent.append(value)
        if (at + 1) % 50 == 0:
            print(f"step {at + 1}/{args.steps} loss {np.mean([float(v) for v in recent]):.4f} {time.time() - began:.0f} s", flush=True)
            recent = []
        if (at + 1) % 300 == 0 or at + 1 == args.steps:
            write_gguf(args.out, p, tokenizer.get_vocab_size())
            for name, items in held.items():
                print(f"  {name}:", *(f"{100 * s:.1f} %" for s in shares(judge, p, items)), flush=True)
    text = data.render([("user", "What is 17 plus 5?"), ("assistant", "17+5=22")])
    far = error(args.bench, args.out, p, target, tokenizer.encode(text).ids)
    print(f"normalised squared error of the program's logits: {far:.1e}")
    if far > 1e-3:
        sys.exit("the program computes other logits")
    print(f"{time.time() - began:.0f} s, {platform.machine()}, {os.cpu_count()} cores, {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
