#!/usr/bin/env python3
"""Compares how pictures of random sizes are prepared with the processors of transformers.

picture_sizes.py FOLDER... [--n N] [--seed SEED] [--largest PIXELS]

For each FOLDER (a model's folder with its processor and tokenizer; weights are not read) N pictures of random sizes and proportions are
prepared by `cargo run -p lab-inspect --example prepare_pictures` and by the folder's processor: by its form for PIL where transformers has
one, else by the one for torchvision. Token ids must be equal, and the mean square of the differences of the values at most 1e-4 of that
of the values. With Pillow before 13 the bytes are equal; later versions resize tall pictures along columns first. Rows that are cut and
interpolated are compared with the model's own function on random rows. Prints a line for each folder and what differs.

Needs transformers 5, torch, torchvision, pillow, tokenizers and numpy."""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import types

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer

BOUND = 1e-4
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


def picture(width, height, seed):
    """Waves with noise: smooth, yet with detail at the scale of pixels."""
    noise = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    wide, tall = 3 + noise.random() * 60, 5 + noise.random() * 90
    waves = np.stack([128 + 100 * np.sin(x / wide + y / tall + c) for c in range(3)], -1)
    return np.clip(waves + noise.normal(0, 18, waves.shape), 0, 255).astype(np.uint8)


def sizes(n, largest, chance):
    """Sides that differ by orders of magnitude; some squares."""
    for _ in range(n):
        side = lambda: int(np.exp(chance.uniform(0, np.log(largest + 1))))
        width, height = side(), side()
        yield (width, width) if chance.random() < 0.1 else (width, height)


def padded(views, pictures, shape):
    """Views as one array of transformers, which pads them to one size."""
    out = np.zeros(shape, np.float32)
    if len(shape) == 5:
        for i, own in enumerate(pictures):
            for j, view in enumerate(own):
                out[i, j] = view
    elif views[0].ndim == 3 and len(shape) == 4 and shape[0] >= len(views):
        for i, view in enumerate(views):
            out[i, :, : view.shape[1], : view.shape[2]] = view
    elif views[0].ndim == 3:
        out[0] = np.concatenate(views, -1)
    elif len(shape) == 3:
        for i, view in enumerate(views):
            out[i, : len(view)] = view
    else:
        out[:] = np.concatenate(views, 0)
    return out


def packed_rows(model, config, views, size, made):
    """The largest difference between the rows of a picture and those of the model's own function, on random rows."""
    rows = [torch.randn(int(np.prod(view["grid"])), 8) for view in views]
    own = types.SimpleNamespace(config=config)
    arguments = {"image_newline": torch.zeros(8)}
    if "vision_aspect_ratio" in model.pack_image_features.__code__.co_varnames:
        arguments["vision_aspect_ratio"] = config.vision_aspect_ratio
    else:
        arguments["vision_feature_select_strategy"] = config.vision_feature_select_strategy
    expected, _ = model.pack_image_features(own, [torch.stack(rows)], torch.tensor([size]), **arguments)
    found = [sum((rows[view][row] * weight for view, row, weight in sources), torch.zeros(8)) for sources in made]
    found, expected = torch.stack(found), expected[0]
    return float((found - expected).abs().max()) if found.shape == expected.shape else float("inf")


def compare(folder, options, place):
    processor = transformers.AutoProcessor.from_pretrained(folder)
    config = transformers.AutoConfig.from_pretrained(folder)
    name = type(processor.image_processor).__name__.removesuffix("Fast")
    pil = getattr(transformers, f"{name}Pil", None)
    if pil is not None:
        processor.image_processor = pil.from_pretrained(folder)
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    model = getattr(transformers, config.architectures[0].replace("ForConditionalGeneration", "Model"), None)
    all_sizes = list(sizes(options.n, options.largest, random.Random(options.seed)))
    for i, (width, height) in enumerate(all_sizes):
        Image.fromarray(picture(width, height, i)).save(f"{place}/{i}.bmp")
    lines = "".join(f"{place}/{i}.bmp\t{place}/{i}\n" for i in range(options.n))
    command = ["cargo", "run", "-q", "-p", "lab-inspect", "--example", "prepare_pictures", "--", os.path.abspath(folder)]
    subprocess.run(command, input=lines, text=True, check=True, cwd=ROOT)

    worst, n_equal, n_arrays, refused, problems = 0.0, 0, 0, [0, 0], []
    for i, (width, height) in enumerate(all_sizes):
        made = json.load(open(f"{place}/{i}.json"))
        try:
            image = Image.open(f"{place}/{i}.bmp").convert("RGB")
            marker = made.get("marker") or processor.image_token
            expected = processor(images=[image], text=[marker], return_tensors="np" if pil else "pt")
        except Exception:
            # It is no fault to prepare more than transformers does.
            refused["error" not in made] += 1
            continue
        if "error" in made:
            problems.append(f"{width}x{height}: {made['error']}")
            continue
        ids = np.asarray(expected["input_ids"]).ravel().tolist()
        found = tokenizer.encode(made["text"], add_special_tokens=False).ids
        if ids not in (found, ids[:1] + found):
            problems.append(f"{width}x{height}: {len(found)} tokens, expected {len(ids)}")
        data, views = np.fromfile(f"{place}/{i}.f32", np.float32), []
        for view in made["views"]:
            count = int(np.prod(view["shape"]))
            views.append(data[:count].reshape(view["shape"]))
            data = data[count:]
        keys = [key for key in expected if key.startswith("pixel_values")]
        for key in keys:
            array = np.asarray(expected[key].float() if hasattr(expected[key], "float") else expected[key], np.float32)
            # Where views of two sizes are in arrays of their own, each has one.
            own = [view for view in views if len(keys) == 1 or view.shape[-1] == array.shape[-1]]
            found = padded(own, [own], array.shape)
            error = float(((found - array) ** 2).sum() / max((array**2).sum(), 1e-30))
            worst, n_arrays, n_equal = max(worst, error), n_arrays + 1, n_equal + bool(np.abs(found - array).max() < 1e-5)
            if error > BOUND:
                problems.append(f"{width}x{height}: {key} differs by {error:.1e}")
        if model is not None and hasattr(model, "pack_image_features"):
            error = packed_rows(model, config, made["views"], (height, width), made["rows"])
            if error > 1e-5:
                problems.append(f"{width}x{height}: rows differ by {error:.1e}")
    print(
        f"{os.path.basename(folder)} ({type(processor.image_processor).__name__}): {n_arrays} arrays, {n_equal} equal, differ by {worst:.1e}; "
        f"{refused[0]} refused by both, {refused[1]} by transformers alone; {len(problems)} problems {problems[:4]}",
        flush=True,
    )
    return not problems


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("folders", nargs="+")
    arguments.add_argument("--n", type=int, default=300)
    arguments.add_argument("--seed", type=int, default=7)
    arguments.add_argument("--largest", type=int, default=3000)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    good = True
    for folder in options.folders:
        with tempfile.TemporaryDirectory() as place:
            good &= compare(folder.rstrip("/"), options, place)
    sys.exit(not good)


if __name__ == "__main__":
    main()
