#!/usr/bin/env python3
"""Compares features and rows of sounds of random lengths with those of transformers, for all rules of tests/media/sounds.toml.

Usage: scripts/sounds_vs_transformers.py [--lengths 200] [--seed 1] [NAME ...]
Needs: Python 3.11, `pip install numpy torch torchaudio transformers`, cargo, and ../shared/media (or BENCH_SHARED) for the folders in the file

A length is a number of samples at 16 kHz from 1 to 40 seconds: a third of them are below half a second, a third lie next to the multiples
of a hop or of the chunk that the rules name. What transformers cannot prepare, or makes numbers of that are none, must be refused.
Prints for each rule the largest NMSE, and what took the longest. Ends with 1 if anything differs.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import tomllib
import warnings
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import AutoProcessor

ROOT = Path(__file__).resolve().parent.parent
GIVEN = Path(os.environ.get("BENCH_SHARED", ROOT.parent / "shared")) / "media/given"
RATE = 16_000
BOUND = 1e-6
# Deviations of short sounds are small, and transformers rounds logarithms to float32 before it divides by them: on 3537 samples it differs by
# 1.7e-6 from the same steps in float64, and this project by 2.6e-7.
BOUNDS = {"seamless-m4t": 3e-6}


def strided(length: int, steps: list[tuple[int, int, int]]) -> int:
    """The number of rows of convolutions of (kernel, stride, padding)."""
    for kernel, stride, padding in steps:
        length = max(0, (length + 2 * padding - kernel) // stride + 1)
    return length


def of_processor(folder: str, token: str | None, **options):
    """Features and rows by the processor of a folder, from the ids of a prompt that is its placeholder alone."""
    processor = AutoProcessor.from_pretrained(GIVEN / folder)

    def prepare(sound: np.ndarray):
        made = processor(text=[token], audio=[sound], **options)
        features = np.asarray(made["input_features"], np.float32)
        if "input_ids" not in made or folder == "granite-speech":
            return features, int(made["input_features_mask"].sum())
        ids = np.asarray(made["input_ids"])[0]
        return features, int((ids == processor.tokenizer.convert_tokens_to_ids(token)).sum())

    return prepare


def whisper():
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(GIVEN / "whisper")

    def prepare(sound):
        features = extractor(sound, sampling_rate=RATE, return_tensors="np")["input_features"]
        return features, strided(features.shape[2], [(3, 1, 1), (3, 2, 1)])

    return prepare


def voxtral():
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(GIVEN / "voxtral")

    def prepare(sound):
        frames = extractor.nb_max_frames
        options = {"padding": True, "truncation": False, "pad_to_multiple_of": extractor.n_samples}
        features = extractor(sound, sampling_rate=RATE, return_tensors="np", **options)["input_features"]
        features = features.reshape(extractor.feature_size, -1, frames).transpose(1, 0, 2)
        return features, len(features) * (frames // 8)

    return prepare


def gemma4():
    extractor = transformers.Gemma4AudioFeatureExtractor.from_pretrained(GIVEN / "gemma4")

    def prepare(sound):
        made = extractor([sound], pad_to_multiple_of=None, return_tensors="np")
        rows = transformers.Gemma4Processor.replace_audio_token
        tokens = type("", (), {"boa_token": "", "audio_token": "x", "eoa_token": ""})
        return made["input_features"], len(rows(tokens, made, 0))

    return prepare


def parakeet():
    extractor = transformers.ParakeetFeatureExtractor()

    def prepare(sound):
        made = extractor(sound, sampling_rate=RATE, return_tensors="np")
        return made["input_features"], strided(int(made["attention_mask"].sum()), [(3, 2, 1)] * 3)

    return prepare


def nemotron_omni():
    extractor = transformers.ParakeetFeatureExtractor()
    from transformers.models.nemotron_h_omni import processing_nemotron_h_omni as module

    processor = type("", (), {"audio_hop_length": 160, "audio_subsampling_factor": 8})
    count = module.NemotronH_Omni_Reasoning_V3Processor._estimate_audio_num_embeddings

    def prepare(sound):
        return extractor(sound, sampling_rate=RATE, return_tensors="np")["input_features"], count(processor, len(sound))

    return prepare


def nemotron_streaming():
    from transformers.models.nemotron_asr_streaming import feature_extraction_nemotron_asr_streaming as module

    extractor = module.NemotronAsrStreamingFeatureExtractor(feature_size=128)

    def prepare(sound):
        made = extractor(sound, sampling_rate=RATE, return_tensors="np")
        return made["input_features"], strided(int(made["attention_mask"].sum()), [(3, 2, 1)] * 3)

    return prepare


def phi4():
    from transformers.models.phi4_multimodal import feature_extraction_phi4_multimodal as module

    extractor = module.Phi4MultimodalFeatureExtractor()

    def prepare(sound):
        made = extractor(sound, sampling_rate=RATE, return_tensors="pt")
        return made["audio_input_features"].numpy(), int(made["audio_embed_sizes"][0])

    return prepare


def seamless():
    extractor = transformers.SeamlessM4TFeatureExtractor()

    def prepare(sound):
        made = extractor(sound, sampling_rate=RATE, return_tensors="np")
        return made["input_features"], int(made["attention_mask"].sum())

    return prepare


def samples(normalised: bool, steps: list[tuple[int, int, int]]):
    extractor = transformers.Wav2Vec2FeatureExtractor(do_normalize=normalised)

    def prepare(sound):
        return extractor(sound, sampling_rate=RATE, return_tensors="np")["input_values"], strided(len(sound), steps)

    return prepare


PROCESSORS = {
    "whisper": whisper,
    "qwen2-audio": lambda: of_processor("qwen2-audio", "<|AUDIO|>", sampling_rate=RATE),
    "voxtral": voxtral,
    "qwen2.5-omni": lambda: of_processor("qwen2.5-omni", "<|AUDIO|>"),
    "qwen3-asr": lambda: of_processor("qwen3-asr", "<|audio_pad|>"),
    "glm-asr": lambda: of_processor("glm-asr", "<|pad|>"),
    "granite-speech": lambda: of_processor("granite-speech", "<|audio|>"),
    "gemma4": gemma4,
    "parakeet": parakeet,
    "nemotron-omni": nemotron_omni,
    "nemotron-asr-streaming": nemotron_streaming,
    "phi4-multimodal": phi4,
    "seamless-m4t": seamless,
    "wav2vec2": lambda: samples(True, [(10, 5, 0)] + [(3, 2, 0)] * 4 + [(2, 2, 0)] * 2),
    "moonshine": lambda: samples(False, [(127, 64, 0), (7, 3, 0), (3, 2, 0)]),
}


def lengths(count: int, generator: random.Random) -> list[int]:
    longest = 40 * RATE
    chosen = [1, 159, 160, 161, 399, 400, 401, 64_000, 63_999, 64_001, longest]
    while len(chosen) < count:
        kind = len(chosen) % 3
        if kind == 0:
            chosen.append(generator.randint(1, RATE // 2))
        elif kind == 1:
            multiple = generator.choice([160, 128, 64_000, 480_000])
            chosen.append(multiple * generator.randint(1, longest // multiple) + generator.choice([-1, 0, 1]))
        else:
            chosen.append(generator.randint(1, longest))
    return [min(length, longest) for length in chosen[:count]]


def sound(length: int, generator: np.random.Generator) -> np.ndarray:
    """Noise and two tones, with silence in between, so that floors and ranges of logarithms have an effect."""
    t = np.arange(length) / RATE
    envelope = (np.sin(2 * np.pi * t * generator.uniform(0.2, 2)) > generator.uniform(-1, 0.5)) * generator.uniform(0.01, 0.8)
    tones = np.sin(2 * np.pi * generator.uniform(80, 400) * t) + 0.3 * np.sin(2 * np.pi * generator.uniform(500, 7000) * t)
    return (envelope * tones + 10 ** generator.uniform(-5, -1) * generator.standard_normal(length)).astype(np.float32)


def toml_value(value) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, str):
        return "'" + value + "'"
    return str(value).lower()


def nmse(found: np.ndarray, expected: np.ndarray) -> float:
    error = ((found.astype(np.float64) - expected) ** 2).sum()
    return 0.0 if error == 0 else float(error / ((expected - expected.mean()) ** 2).sum())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    cases = tomllib.loads((ROOT / "tests/media/sounds.toml").read_text())["cases"]
    missing = {case["name"] for case in cases} ^ set(PROCESSORS)
    assert not missing, missing
    subprocess.run(["cargo", "build", "-q", "-p", "lab-media", "--example", "sound_features"], cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    program = subprocess.Popen([target / "debug/examples/sound_features"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        rules, input_file, output_file = (Path(folder) / name for name in ("rules.toml", "in.f32", "out.f32"))
        for case in cases:
            name = case["name"]
            if options.names and name not in options.names:
                continue
            prepare = PROCESSORS[name]()
            rules.write_text("\n".join(f"{key} = {toml_value(value)}" for key, value in case["rules"].items()))
            generator, noise = random.Random(options.seed), np.random.default_rng(options.seed)
            worst, slowest, refused, compared = 0.0, 0.0, 0, 0
            for length in lengths(options.lengths, generator):
                heard = sound(length, noise)
                heard.tofile(input_file)
                program.stdin.write(f"{rules} {input_file} {output_file}\n")
                program.stdin.flush()
                answer = program.stdout.readline().strip()
                try:
                    features, rows = prepare(heard)
                    features = np.asarray(features, np.float32)
                    valid = features.size > 0 and bool(np.isfinite(features).all())
                except Exception as error:  # What it cannot do, it says in many ways.
                    features, rows, valid = repr(error)[:80], 0, False
                if answer.startswith("error"):
                    refused += 1
                    if valid:
                        failed += 1
                        print(f"{name}: {length} samples: {answer}; transformers has {features.shape}, {rows} rows")
                    continue
                if not valid:
                    # Rows of nothing but numbers that are none: more than transformers can.
                    refused += 1
                    continue
                seconds, *views = answer.split(" ", 1)[0], *answer.replace(", ", ",").split(" ")[1:]
                shapes = [view.rsplit("]", 1)[0].strip("[]").split(",") for view in views]
                shape = tuple(map(int, shapes[0]))
                found = np.fromfile(output_file, np.float32).reshape(len(views), *shape)
                found_rows = sum(int(view.rsplit(",", 1)[1]) for view in views)
                same = found.shape == features.shape and found_rows == rows
                error = nmse(found, features) if same else float("inf")
                worst, slowest, compared = max(worst, error), max(slowest, float(seconds)), compared + 1
                if error > BOUNDS.get(name, BOUND):
                    failed += 1
                    print(f"{name}: {length} samples: {found.shape} {found_rows} rows, transformers {features.shape} {rows}, NMSE {error:.1e}")
            print(f"{name}: {compared} equal to {worst:.1e}, {refused} refused by either, at most {slowest * 1000:.0f} ms", flush=True)
    program.stdin.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
