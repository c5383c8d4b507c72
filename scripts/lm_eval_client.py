#!/usr/bin/env python3
"""lm-eval, unmodified, against `bench serve`: its log-likelihoods are those of `bench logits`.

Runs the tasks of scripts/lm_eval_task through `local-completions` (prompts as token ids and as text, in
batches, several at once) and `local-chat-completions`, and computes each item again from the raw logits of
`bench logits` with the same type of the KV cache and the same attention. Needs scripts/requirements-lm-eval.txt.
"""

import os
import subprocess
import sys
import tempfile

os.environ.update(HF_DATASETS_OFFLINE="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import numpy  # noqa: E402
from lm_eval import simple_evaluate  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from bench_server import Server, options  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
TASKS = os.path.join(HERE, "lm_eval_task")
SAME = ["--kv-type", "f16", "--flash-attn", "on"]
BOUND = 1e-4


class Bench(Server):
    """A server, and the raw logits of its model."""

    def __init__(self, args, folder):
        self.args, self.folder, self.known = args, folder, {}
        super().__init__(args.bench, "serve", "-m", args.model, *SAME)

    def encode(self, text):
        return self.json("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]

    def logprobs(self, tokens):
        """For each token the log-probabilities of the vocabulary after it."""
        key = tuple(tokens)
        if key not in self.known:
            out = os.path.join(self.folder, "logits.npy")
            subprocess.run([self.args.bench, "logits", "-m", self.args.model, "-o", out, "--force", *SAME,
                            "--tokens", ",".join(map(str, tokens))], check=True, capture_output=True)
            logits = numpy.load(out).astype(numpy.float64)
            top = logits.max(axis=1, keepdims=True)
            self.known[key] = logits - top - numpy.log(numpy.exp(logits - top).sum(axis=1, keepdims=True))
        return self.known[key]

    def score(self, context, continuation):
        """The log-likelihood of tokens after others, and whether each was the most probable."""
        logprobs = self.logprobs(context + continuation)
        rows = range(len(context) - 1, len(context) + len(continuation) - 1)
        is_greedy = all(logprobs[row].argmax() == token for row, token in zip(rows, continuation))
        return sum(logprobs[row, token] for row, token in zip(rows, continuation)), is_greedy


def evaluate(bench, model, task, path, **options):
    arguments = {"model": "default", "base_url": bench.url + path, "max_length": 512, **options}
    chat = model == "local-chat-completions"
    results = simple_evaluate(model=model, model_args=arguments, tasks=[task], log_samples=True,
                              task_manager=TaskManager(include_path=TASKS, include_defaults=False),
                              apply_chat_template=chat, bootstrap_iters=0)
    return results["results"][task], results["samples"][task]


def check_choices(bench, name, **options):
    """Likelihoods of continuations."""
    metrics, samples = evaluate(bench, "local-completions", "bench_choice", "/v1/completions", **options)
    worst, count = 0.0, 0
    for sample in samples:
        for (context, continuation), (answer,) in zip(texts(sample), sample["resps"]):
            (found, found_greedy), whole = answer, bench.encode(context + continuation)
            # lm-eval counts white space at the end of the context as part of the continuation.
            before = bench.encode(context.rstrip())
            expected, is_greedy = bench.score(before, whole[len(before):])
            worst, count = max(worst, abs(float(found) - expected)), count + 1
            if str(found_greedy) != str(is_greedy):
                sys.exit(f"{name}: {continuation!r} is greedy: {found_greedy}, expected {is_greedy}")
    say(name, worst, count, metrics["acc,none"])


def texts(sample):
    """The pairs of context and continuation of a sample."""
    arguments = sample["arguments"]
    pairs = arguments.values() if isinstance(arguments, dict) else arguments
    return [tuple(pair.values())[:2] if isinstance(pair, dict) else tuple(pair)[:2] for pair in pairs]


def check_texts(bench, name, **options):
    """Likelihoods of whole texts, which lm-eval starts with a token of its own."""
    metrics, samples = evaluate(bench, "local-completions", "bench_text", "/v1/completions", **options)
    info = bench.json("/tokenizer_info")
    # lm-eval starts with BOS, and takes a BOS of id 0 for none.
    ids = [bench.encode(info[name])[0] for name in ("bos_token", "eos_token") if info[name]]
    start = [next((token for token in ids if token), ids[-1])]
    worst = 0.0
    for sample in samples:
        text = sample["target"]
        expected, _ = bench.score(start, bench.encode(text))
        found = sample["resps"][0][0]
        found = found[0] if isinstance(found, (list, tuple)) else found
        worst = max(worst, abs(float(found) - expected))
    say(name, worst, len(samples), metrics["bits_per_byte,none"])


def say(name, worst, count, metric):
    print(f"{name}: {count} items, largest difference {worst:.1e}, metric {metric:.4f}")
    if not (count > 0 and worst <= BOUND):
        sys.exit(f"{name}: {worst} is more than {BOUND}")


def check_generated(bench, name, model, path, **options):
    """Generated texts are those that the same requests get without lm-eval."""
    metrics, samples = evaluate(bench, model, "bench_sums", path, **options)
    for sample in samples:
        found, question = sample["resps"][0][0], sample["doc"]["question"]
        body = {"max_tokens": 16, "temperature": 0, "stop": ["\n"]}
        if model == "local-chat-completions":
            body["messages"] = [{"role": "user", "content": question}]
            expected = bench.json(path, {"model": "default", **body})["choices"][0]["message"]["content"]
        else:
            # lm-eval sends a text without the tokens that a vocabulary puts before it.
            body["prompt"] = bench.encode(question) if options.get("tokenized_requests") else question
            expected = bench.json(path, {"model": "default", **body})["choices"][0]["text"]
        if found != expected:
            sys.exit(f"{name}: {found!r}, expected {expected!r}")
    print(f"{name}: {len(samples)} items as without lm-eval, exact match {metrics['exact_match,none']:.4f}")
    return metrics["exact_match,none"]


def main():
    parser = options(__doc__, None)
    parser.add_argument("--model", default="tiny-chat", help="the model (default: the built-in one)")
    args = parser.parse_args()
    # Where the tasks name their data.
    os.chdir(TASKS)
    with tempfile.TemporaryDirectory() as folder:
        # datasets keeps copies.
        os.environ["HF_DATASETS_CACHE"] = folder
        with Bench(args, folder) as bench:
            ids = {"tokenizer_backend": "remote", "tokenized_requests": True}
            check_choices(bench, "choices, backend found by lm-eval", tokenized_requests=True)
            check_choices(bench, "choices, token ids", **ids)
            check_choices(bench, "choices, 8 prompts a request", **ids, batch_size=8)
            check_choices(bench, "choices, 4 requests at once", **ids, num_concurrent=4)
            check_texts(bench, "whole texts, token ids", **ids)
            check_generated(bench, "generated, completions", "local-completions", "/v1/completions", **ids)
            check_generated(bench, "generated, text prompts", "local-completions", "/v1/completions",
                            tokenizer_backend="none", tokenized_requests=False)
            for n in (1, 4):
                right = check_generated(bench, f"generated, chat, {n} at once", "local-chat-completions",
                                        "/v1/chat/completions", num_concurrent=n)
                # What the model's own page says of its sums.
                if args.model == "tiny-chat" and right < 0.9:
                    sys.exit(f"exact match {right}: the chat template was not applied")
    print("lm-eval: content")


if __name__ == "__main__":
    main()
