#!/usr/bin/env python3
"""Sends the same prompts to this server and to a reference, and compares every token and its top-20 list.

Needs: for the mode `reference` a llama-server (named, LLAMA_SERVER, or on the PATH; `make equiv-test` sees to it).

Modes; by default all that the model supports:
  reference   our server against llama.cpp
  stateless   our server against passes without a KV cache
  flash       our server without flash attention against our server with it
  gguf-st     our server with the file against our server with the folder of the same model: the one
              next to the file if there is one, else one that `bench convert` writes; equal bit by bit
  diffusion   of a text diffusion model: our completions against those of llama-diffusion-cli
              (LLAMA_DIFFUSION_CLI, or on the PATH; without one this is reported and not compared)

For each prompt both sides are compared on one completion of 64 tokens, without end-of-text tokens. Our
completion comes from our server over HTTP. After a token that differs from the reference's, the rest is
computed on the reference's text (`bench logits`), so that every position is compared. A token that
differs is a failure if its log-probability in the reference is lower by more than the tolerance. The
tolerance is three times the difference of the reference from itself with a half-precision cache, and at
least 0.001 (natural logarithm).

Exit code 0: all equal. 1: something differs, an ERROR in our log, or nothing compared.
"""

import json
import math
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from bench_server import ROOT, Failure, Server, llama_server, options, program, read_npy, run

N_TOKENS = 64
N_TOP = 20
FLOOR = 1e-3
NOISE_FACTOR = 3.0
TIMEOUT = 300

PROMPTS = [
    "2+2=?",
    "What is 17 plus 5?",
    "Count from 1 to 10.",
    "Spell the word garden.",
    "Write the word stone backwards.",
    "What colour is the sky?",
    "Hello!",
    "Who are you?",
    "Name three animals that live in the sea.",
    "Translate into French: the cat sleeps on the chair.",
    "Write a short poem about rain.",
    "def fibonacci(n):\n    ",
    "Explain in two sentences why ice floats on water.",
    "1, 1, 2, 3, 5, 8, 13,",
    "Grüße aus Köln! Wie heißt die Hauptstadt von Österreich?",
    "日本の首都はどこですか。",
    "Какая река протекает через Москву?",
    "😀🚀 What do these two signs mean?",
    "{\"name\": \"Ada\", \"born\": 1815, \"known_for\": [",
    "The quick brown fox jumps over the lazy dog. " * 12 + "How often does the fox jump?",
    "List the planets of the solar system, nearest to the sun first.",
    "A train leaves at 14:05 and arrives at 17:50. How long does it travel?",
]


# ---------------------------------------------------------------- our side


class Ours:
    """One model file in our program."""

    def __init__(self, bench, llama, model, scratch):
        self.bench, self.llama, self.model, self.scratch = bench, llama, Path(model), scratch
        about = json.loads(run([bench, "inspect", model, "--json"]))
        self.metadata = about["metadata"]
        if "tokenizer.chat_template" not in self.metadata:
            raise Failure("has no chat template, so that there is nothing to ask it")
        self.n_ctx = 1024
        self.mode = json.loads(run([bench, "plan", "-m", model, "--json"]))["mode"]
        keys = [f"tokenizer.ggml.{end}_token_id" for end in ("eos", "eot", "eom")]
        self.ends = sorted({int(self.metadata[key]) for key in keys if key in self.metadata})

    def prompt_ids(self, prompt):
        messages = self.scratch / "messages.json"
        messages.write_text(json.dumps([{"role": "user", "content": prompt}]))
        text = run([self.bench, "template", messages, "-m", self.model])
        return json.loads(run([self.bench, "tokenize", "-m", self.model, text]))

    def serve(self, log, flash=False):
        flash = ["--flash-attn", "on" if flash else "off"]
        return Server(self.bench, "serve", "-m", self.model, "--kv-type", "f32", *flash, "--ctx", self.n_ctx, "--parallel", 2, output=log)

    def complete(self, server, prompt, n_tokens, **more):
        """An answer of the server, with token and top list of each position, as users get them."""
        body = {"model": self.model.stem, "messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": n_tokens}
        answer = server.json("/v1/chat/completions", body | {"logprobs": True, "top_logprobs": N_TOP} | more)
        return answer, tops(answer["choices"][0]["logprobs"]["content"])

    def answers(self, log, prompts, flash=False):
        """Token and top list of each position of the answers to all prompts."""
        answers, no_ends = [], {str(token): -100 for token in self.ends}
        with self.serve(log, flash) as server:
            for prompt, ids in prompts:
                answer, lists = self.complete(server, prompt, N_TOKENS, logit_bias=no_ends)
                if (found := answer["usage"]["prompt_tokens"]) != len(ids):
                    raise Failure(f"the prompt has {found} tokens, expected {len(ids)}")
                answers.append(lists)
        return answers

    def score(self, ids, n_prompt, *flags):
        """The top lists that follow each position from the last of the prompt on."""
        out = self.scratch / "logits.npy"
        tokens = ",".join(map(str, ids[:-1]))
        run([self.bench, "logits", "-m", self.model, "--tokens", tokens, "-o", out, "--force", "--ctx", self.n_ctx, *flags])
        values, width = read_npy(out)
        return [top_of(values[at : at + width]) for at in range((n_prompt - 1) * width, len(values), width)]


def tops(entries):
    """Token and top list of each position that a server tells."""
    return [(e["id"], {t["id"]: t["logprob"] for t in e["top_logprobs"]}) for e in entries]


def top_of(logits):
    """The list of the likeliest tokens with their log-probabilities."""
    most = max(logits)
    total = most + math.log(math.fsum(math.exp(v - most) for v in logits))
    best = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:N_TOP]
    return {i: logits[i] - total for i in best}


# ---------------------------------------------------------------- the reference


class LlamaServer(Server):
    """A model file in llama-server."""

    def __init__(self, program, model, n_ctx, kv_type, scratch):
        command = [program, "-m", model, "-c", n_ctx, "-np", 1, "-fa", "off", "-ctk", kv_type, "-ctv", kv_type, "--no-webui"]
        super().__init__(*command, output=scratch / f"llama-server-{kv_type}.log")

    def answer(self, ids, n_tokens=N_TOKENS):
        body = {"prompt": ids, "n_predict": n_tokens, "n_probs": N_TOP, "temperature": 0, "ignore_eos": True}
        return tops(self.json("/completion", body | {"cache_prompt": False, "post_sampling_probs": False})["completion_probabilities"])

    def follow(self, ids, text):
        """The top lists on a given text."""
        return [self.answer(ids + text[:i], 1)[0][1] for i in range(len(text))]


# ---------------------------------------------------------------- comparing


class Tally:
    """What was found over all prompts of a model and mode."""

    def __init__(self, noise):
        self.noise = noise
        self.tolerance = max(FLOOR, NOISE_FACTOR * noise)
        self.positions = self.same = self.forced = 0
        self.largest = self.divergence = 0.0
        self.faults = []

    def position(self, where, ours, theirs, our_list, their_list):
        self.positions += 1
        self.same += ours == theirs
        common = our_list.keys() & their_list.keys()
        difference = max((abs(our_list[t] - their_list[t]) for t in common), default=math.inf)
        self.largest = max(self.largest, difference)
        self.divergence += sum(math.exp(their_list[t]) * (their_list[t] - our_list[t]) for t in common)
        if not difference <= self.tolerance:
            self.faults.append(f"{where}: log-probabilities differ by {difference:.2g}")
        # Whoever is in one list and not in the other is as likely as the last of the other.
        for one, other in ((our_list, their_list), (their_list, our_list)):
            least = min(other.values())
            if any(one[t] > least + self.tolerance for t in one.keys() - other.keys()):
                self.faults.append(f"{where}: a token of one list is missing in the other")
        if ours != theirs:
            margin = their_list[theirs] - their_list.get(ours, -math.inf)
            if margin > self.tolerance:
                self.faults.append(f"{where}: token {ours}, expected {theirs}; the margin is {margin:.2g}")


def compare(tally, name, ours, theirs, scores):
    """Compares an answer with the reference's; `scores` gives our lists on the reference's text."""
    if len(ours) != N_TOKENS or len(theirs) != N_TOKENS:
        tally.faults.append(f"{name}: {len(ours)} and {len(theirs)} tokens, expected {N_TOKENS}")
    forced = None
    for i, ((our_token, our_list), (token, their_list)) in enumerate(zip(ours, theirs)):
        if forced is None:
            tally.position(f"{name}, token {i}", our_token, token, our_list, their_list)
            if our_token != token:
                forced = scores()
        else:
            tally.forced += 1
            best = max(forced[i], key=forced[i].get)
            reference_best = max(their_list, key=their_list.get)
            tally.position(f"{name}, token {i}", best, reference_best, forced[i], their_list)


def compare_all(tally, prompts, answers, theirs, score):
    """Compares the answers to all prompts; `score` gives our lists on a text after so many tokens of the prompt."""
    for (prompt, ids), ours, other in zip(prompts, answers, theirs):
        scores = lambda: score(ids + text_of(other), len(ids))  # noqa: B023, E731
        compare(tally, repr(prompt[:24]), ours, other, scores)
    return tally


def text_of(answer):
    return [token for token, _ in answer]


def apart(lists, others):
    """The largest difference between the log-probabilities of two computations."""
    pairs = ((a[t], b[t]) for a, b in zip(lists, others) for t in a.keys() & b.keys())
    return max(abs(x - y) for x, y in pairs)


N_NOISE = 4  # prompts that the noise is measured on


def against_reference(ours, scratch, log, prompts):
    with LlamaServer(ours.llama, ours.model, ours.n_ctx, "f32", scratch) as reference:
        theirs = [reference.answer(ids) for _, ids in prompts]
    noise = 0.0
    with LlamaServer(ours.llama, ours.model, ours.n_ctx, "f16", scratch) as reference:
        for (_, ids), answer in list(zip(prompts, theirs))[:N_NOISE]:
            noise = max(noise, apart([top for _, top in answer], reference.follow(ids, text_of(answer))))
    return compare_all(Tally(noise), prompts, ours.answers(log, prompts), theirs, ours.score), "llama-server"


def own_noise(ours, prompts, answers):
    """How much our lists change with a half-precision cache."""
    noise = 0.0
    for (_, ids), answer in list(zip(prompts, answers))[:N_NOISE]:
        text = ids + text_of(answer)
        exact = ours.score(text, len(ids), "--kv-type", "f32")
        noise = max(noise, apart(exact, ours.score(text, len(ids), "--kv-type", "f16")))
    return noise


def against_stateless(ours, _, log, prompts):
    answers = ours.answers(log, prompts)
    tally = Tally(own_noise(ours, prompts, answers))
    for (prompt, ids), answer in zip(prompts, answers):
        lists = ours.score(ids + text_of(answer), len(ids), "--stateless", "--chunk", 16)
        chosen = [max((t for t in top if t not in ours.ends), key=top.get) for top in lists]
        compare(tally, repr(prompt[:24]), answer, list(zip(chosen, lists)), lambda: lists)  # noqa: B023
    return tally, "recomputed"


def against_flash(ours, _, log, prompts):
    theirs = ours.answers(log, prompts)
    tally, flash = Tally(own_noise(ours, prompts, theirs)), ours.answers(log, prompts, flash=True)
    score = lambda ids, n_prompt: ours.score(ids, n_prompt, "--flash-attn", "on")  # noqa: E731
    return compare_all(tally, prompts, flash, theirs, score), "without it"


def folder_of(ours):
    """The model as a folder of safetensors."""
    neighbour = ours.model.with_suffix("")
    if (neighbour / "config.json").exists():
        return neighbour
    folder = ours.scratch / "folder"
    run([ours.bench, "convert", ours.model, folder])
    return folder


def against_folder(ours, scratch, log, prompts):
    theirs = Ours(ours.bench, None, folder_of(ours), scratch)
    tally = Tally(0.0)
    # The same bits, or it is not the same model.
    tally.tolerance = 0.0
    for prompt, ids in prompts:
        if theirs.prompt_ids(prompt) != ids:
            tally.faults.append(f"{prompt[:24]!r}: other tokens")
    if ours.mode == "diffusion":
        denoise_both(tally, ours, theirs, log, prompts)
    else:
        compare_all(tally, prompts, ours.answers(log, prompts), theirs.answers(log, prompts), ours.score)
    return tally, "the folder"


N_DENOISED = 32  # tokens of a completion by text diffusion


def denoise(ours, server, prompt, steps, block_length):
    """The text of a completion by text diffusion, and its tokens with their probabilities."""
    answer, lists = ours.complete(server, prompt, N_DENOISED, diffusion={"steps": steps, "block_length": block_length})
    return answer["choices"][0]["message"]["content"], lists


def denoise_both(tally, ours, theirs, log, prompts):
    """Text diffusion with two models that must be the same."""
    with ours.serve(log) as server, theirs.serve(log) as other:
        for prompt, _ in prompts:
            name = repr(prompt[:24])
            _, found = denoise(ours, server, prompt, N_DENOISED, N_DENOISED)
            _, expected = denoise(theirs, other, prompt, N_DENOISED, N_DENOISED)
            if len(found) != len(expected):
                tally.faults.append(f"{name}: {len(found)} and {len(expected)} tokens")
            for i, ((a, a_list), (b, b_list)) in enumerate(zip(found, expected)):
                tally.position(f"{name}, token {i}", a, b, a_list, b_list)


def last_said(command):
    """The text that llama-diffusion-cli logs last. It can end before its log is written."""
    for _ in range(10):
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=TIMEOUT)
        if done.returncode != 0:
            raise Failure(f"{command[0]}: {done.stderr.strip()[-300:]}")
        said = re.split(r"\bI *\n", done.stdout + done.stderr)[-1]
        if said.strip() and "diffusion step" not in said and "total time" not in said:
            return said.strip()
    raise Failure(f"{command[0]} does not say its text")


def against_diffusion_cli(ours, scratch, log, prompts):
    """Completions of llama-diffusion-cli with top-k 1. It ranks positions by a probability among the
    tokens that its sampler keeps, which is always 1 for one token, so it goes from left to right: as our
    server does with blocks as long as a step fixes."""
    named = os.environ.get("LLAMA_DIFFUSION_CLI", "llama-diffusion-cli")
    program = shutil.which(named)
    if not program:
        return None, "no llama-diffusion-cli"
    tally = Tally(0.0)
    with ours.serve(log) as server:
        for prompt, ids in prompts:
            length = len(ids) + N_DENOISED
            for steps in (1, 4, N_DENOISED):
                text, lists = denoise(ours, server, prompt, steps, N_DENOISED // steps)
                command = [program, "-m", ours.model, "-p", prompt, "-ub", length, "-b", length, "-c", 2 * length]
                command += ["--diffusion-steps", steps, "--diffusion-block-length", length]
                command += ["--diffusion-algorithm", 4, "--top-k", 1, "-fa", "off", "-t", 1]
                theirs = last_said(command)
                tally.positions += len(lists)
                # Theirs continues after the end-of-text token, which it does not print.
                if theirs.startswith(text.strip()) and text.strip():
                    tally.same += len(lists)
                else:
                    tally.faults.append(f"{prompt[:24]!r}, {steps} steps: {text!r}, expected {theirs!r}")
    return tally, Path(program).name


MODES = {
    "reference": against_reference,
    "stateless": against_stateless,
    "flash": against_flash,
    "gguf-st": against_folder,
    "diffusion": against_diffusion_cli,
}

# Modes of a model that answers in this way.
OF_MODEL = {"causal": ["reference", "stateless", "flash", "gguf-st"], "diffusion": ["gguf-st", "diffusion"]}


def main():
    parser = options(__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, action="append", help="default: all in models/")
    parser.add_argument("--llama-server", metavar="PROGRAM")
    parser.add_argument("--mode", choices=MODES, action="append", help="default: all")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help="the first so many prompts")
    args = parser.parse_args()
    models = args.model or sorted((ROOT / "models").glob("*.gguf"))
    llama = llama_server(args.llama_server) if "reference" in (args.mode or MODES) else None
    compared, faults = 0, []
    print(f"{'model':20} {'mode':10} {'tokens':>6} {'same':>7} {'forced':>6} {'max diff':>9} {'mean KL':>9} {'noise':>9}  verdict")
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            scratch = Path(folder)
            log = scratch / "ours.log"
            try:
                ours = Ours(args.bench, llama, model, scratch)
                prompts = [(prompt, ours.prompt_ids(prompt)) for prompt in PROMPTS[: args.prompts]]
            except Failure as failure:
                print(f"{model.stem:20} NOT COMPARED: {failure}")
                faults.append(f"{model}: {failure}")
                continue
            for mode in [m for m in OF_MODEL[ours.mode] if m in (args.mode or MODES)]:
                tally, what = MODES[mode](ours, scratch, log, prompts)
                if tally is None:
                    print(f"{model.stem:20} {mode:10} NOT COMPARED: {what}")
                    continue
                compared += tally.positions
                n = max(tally.positions, 1)
                verdict = "equal" if not tally.faults else f"{len(tally.faults)} FAULTS"
                print(
                    f"{model.stem:20} {mode:10} {tally.positions:6} {100 * tally.same / n:6.2f}% {tally.forced:6} "
                    f"{tally.largest:9.1e} {tally.divergence / n:9.1e} {tally.noise:9.1e}  {verdict} ({what})",
                    flush=True,
                )
                faults += [f"{model.stem}, {mode}: {fault}" for fault in tally.faults]
            lines = log.read_text("utf-8", "replace").splitlines() if log.exists() else []
            errors = [line for line in lines if "ERROR" in line]
            faults += [f"{model.stem}: our log: {line}" for line in errors]
    for fault in faults[:20]:
        print(fault)
    if len(faults) > 20:
        print(f"and {len(faults) - 20} more")
    if not compared:
        raise Failure("nothing was compared")
    return 1 if faults else 0


if __name__ == "__main__":
    program(main)
