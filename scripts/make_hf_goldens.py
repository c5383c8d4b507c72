#!/usr/bin/env python3
"""Makes tests/hf: tiny random Hugging Face folders and what transformers computes from them.

Needs: Python 3.11, `pip install -r scripts/requirements-hf.txt`

tests/hf/cases.toml lists the models. For each, tests/hf/NAME/ holds config.json as transformers
writes it, logits.npy (float32 [n_tokens, n_vocab], [n_tokens, n_embd] of an encoder, [1, n_classes] or [n_tokens, n_classes]) computed
in float32 on one thread with plain attention, and tensors.json: the weight files with every tensor
in the order of the file, the tokens, and the SHA-256 of every file of the folder.

Weights are not stored. Element i of a tensor is
    ((splitmix64(fnv1a(name) + i) >> 40) / 2^24 - 1/2) * scale + mean
in float32, each operation rounded once, then rounded to the dtype, to nearest even; `mean` and
`scale` are added to its entry. Bytes (U8, F8_E4M3) are cut off instead, and F8_E4M3 loses the
highest bit of its exponent. scripts/hf_folder.py and tests/it/hf.rs compute the same.

Names and layouts are those of the disk: transformers saves a model that it made from the config,
the file is filled with the values above, read by `from_pretrained`, saved once more and found
the same to the byte. Only then are the logits computed, from that folder.

Four measures say that the golden can tell right from wrong, and a case outside fails: the spread of
the logits; `noise`, their NMSE to the same in float64; `silent`, the parameters whose change
leaves the logits as they are; that tokens differ. With --check nothing is written, and any
difference fails. With --write the folder of a case is written out as it would be tested.
"""

import argparse
import copy
import hashlib
import importlib.metadata
import json
import math
import os
import re
import tempfile
import tomllib
import warnings
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import numpy as np

from bench_server import Failure, program
from goldens import check_spread, difference_of, each, nmse, without_duplicates
from hf_folder import config_text, file_bytes, first_values, folder_bytes, lay_out, no_empty, pack_files
from hf_folder import short, tensor_bytes, write_folder

HF = Path(__file__).resolve().parent.parent / "tests" / "hf"

# Logits outside say that the random model is too flat or too wild to tell right from wrong.
SPREAD = (0.3, 30.0)
# Above, float32 itself decides: two experts nearly tie, or an exponent runs away.
NOISE = 1e-9
# A parameter whose change of a tenth moves the logits by less is silent.
SILENT = 1e-8
# What one case may take in the repository.
BUDGET = 60_000

KNOWN = {"name", "about", "model", "config", "set", "tokens", "dtype", "shard", "form4", "drop", "fill", "output"}
KNOWN |= {"class", "published", "remote", "text"}
KNOWN |= {"silent", "omit", "doubt", "save", "rename", "transpose", "extra", "pack", "flat", "put", "source", "rows"}


# ---------------------------------------------------------------- how a tensor is filled

# Pattern of the name, the standard deviation of a product of unit input, or mean and scale.
SPREADS = [
    (r"(^|\.)(lm_head|output_layer|embed_out)\.", 2.0),
    (r"(gate|router|shared_expert_gate|router\.(proj|layer|gate))\.weight$", 3.0),
    (r"(q|k|q_b|q_a|wq|wk|query|key|c_attn|query_key_value|qkv|Wqkv)(_proj|_with_mqa)?\.(weight|linear.weight)$", 1.5),
    (r"(down_proj|w2|c_proj|fc2|dense_4h_to_h|wo|Wo)(\.weight)?$", 1.5),
    (r"x_proj\.weight$", 1.5),
]
FILLS = [
    (r"A_log$", 0.5, 2.0),
    (r"(dt_bias|dt_proj\.bias)$", -1.0, 2.0),
    (r"(^|\.)D$", 1.0, 1.0),
    (r"sinks$", 0.0, 4.0),
    (r"e_score_correction_bias$|expert_bias$", 0.0, 1.0),
    (r"act_fn\.eps$", -1e-6, 0.0),
    (r"(embed_tokens|word_embeddings|wte|embed_in|embeddings|tok_embeddings|embedding)\.weight$", 0.0, 1.6),
    (r"(position_embeddings|token_type_embeddings|wpe|embed_positions)\.weight$", 0.0, 1.0),
    (r"bias$|biases?$", 0.0, 0.8),
]


def fill(name, shape, first, rules):
    """Mean and scale of a tensor; `first` holds the values of a new model."""
    for pattern, mean, scale in rules:
        if re.search(pattern, name):
            return mean, scale
    constant = first.size > 0 and bool((first == first.flat[0]).all())
    norm = re.search(r"norm|ln_|\.ln\d?\.|LayerNorm", name) and name.endswith("weight")
    if len(shape) <= 1 and norm:
        # A new model shows whether the weight is a factor or what is added to one.
        return (float(first.flat[0]) if constant else 1.0), 0.8
    for pattern, mean, scale in FILLS:
        if re.search(pattern, name):
            return mean, scale
    if len(shape) <= 1:
        return (short(first.flat[0]) if constant else 0.0), 0.4
    if len(shape) == 3 and shape[1] == 1:
        fan = shape[2]
    elif len(shape) == 3:
        fan = math.sqrt(shape[1] * shape[2])  # experts lie either way
    else:
        fan = math.prod(shape[1:])
    spread = next((spread for pattern, spread in SPREADS if re.search(pattern, name)), 1.0)
    return 0.0, short(spread * math.sqrt(12 / fan))


# ---------------------------------------------------------------- cases


def read_cases():
    """cases.toml as a list of complete cases: with defaults."""
    table = tomllib.loads((HF / "cases.toml").read_text())
    cases = []
    for case in table["case"]:
        if unknown := set(case) - KNOWN:
            raise Failure(f"cases.toml: {case.get('name')}: unknown key `{min(unknown)}`")
        given, common = no_empty(case.get("set", {})), no_empty(table["set"])
        if "remote" in case:  # transformers does not have the class: config.json as published stands in the case whole
            case["published"] = {"architectures": [case["class"]]} | no_empty(case["published"])
        elif "text_config" in given:
            given = given | {"text_config": common | given["text_config"]}
        else:
            given = common | given
        tokens = case.get("tokens", len(table["tokens"]))
        if isinstance(tokens, int):
            if tokens > len(table["tokens"]):
                raise Failure(f"cases.toml: {case['name']}: there are {len(table['tokens'])} tokens")
            tokens = table["tokens"][:tokens]
        cases.append(case | {"set": given, "tokens": tokens})
    return without_duplicates(cases)


# ---------------------------------------------------------------- transformers


def new_model(case):
    """A model of the class of the case, as transformers initialises it."""
    import torch
    import transformers

    for key in ("model", "config"):
        if not hasattr(transformers, case[key]):
            raise Failure(f"transformers has no {case[key]}")
    torch.manual_seed(0)
    config = getattr(transformers, case["config"])(**copy.deepcopy(case["set"]))
    dtype = getattr(torch, case.get("dtype", "float32"))
    model = getattr(transformers, case["model"])(config).to(dtype)
    model.config.dtype = dtype
    return model.eval()


def save(model, folder, case):
    limit = {"max_shard_size": case["shard"]} if "shard" in case else {}
    if case.get("save") == "modules":
        limit["save_original_format"] = False
    model.save_pretrained(folder, **limit)


def read_header(path):
    """The tensors of a safetensors file in the order of the file, and their metadata."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", None)
    rows = sorted(header.items(), key=lambda row: row[1]["data_offsets"])
    return rows, metadata, data[8 + length :]


def describe(folder, case):
    """The weight files of a folder, with how each tensor is filled; and the metadata of its index."""
    index = folder / "model.safetensors.index.json"
    metadata = json.loads(index.read_text())["metadata"] if index.exists() else None
    files = []
    for path in sorted(folder.glob("*.safetensors")):
        rows, about, data = read_header(path)
        if about != {"format": "pt"}:
            raise Failure(f"{path.name}: metadata {about}, which nothing here writes")
        tensors = []
        for name, row in rows:
            if is_omitted(name, case):
                continue
            mean, scale = fill(name, row["shape"], first_values(row, data), case.get("fill", []))
            tensors.append({"name": name, "dtype": row["dtype"], "shape": row["shape"], "mean": mean, "scale": scale})
        files.append({"file": path.name, "tensors": tensors})
    if case.get("shard") and metadata is None:
        raise Failure("the case shall be in shards, and is one file")
    return files, metadata


def is_omitted(name, case):
    return any(re.search(pattern, name) for pattern in case.get("omit", []))


def load(case, folder, dtype):
    import transformers

    cls = getattr(transformers, case["model"])
    model, report = cls.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", output_loading_info=True, local_files_only=True
    )
    extra = {name for name, _ in case.get("extra", [])}
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        keys = {key for key in map(str, report.get(kind, [])) if not (kind == "missing_keys" and is_omitted(key, case))}
        if keys := keys - extra:
            raise Failure(f"from_pretrained reports {kind}: {sorted(keys)[:4]}")
    if hasattr(model, "set_experts_implementation"):
        try:
            model.set_experts_implementation("eager")
        except (RuntimeError, ValueError):
            pass  # a model without experts
    return model.eval()


def run(model, case):
    """float32 [n_tokens, n]: the logits, or the last states of an encoder."""
    import torch

    ids = torch.tensor([case["tokens"]])
    dtype = next(model.parameters()).dtype
    extra = {name: of.to(dtype) if of.is_floating_point() else of for name, of in case.get("inputs", {}).items()}
    if case.get("output") == "hidden":
        extra["output_hidden_states"] = True
    else:
        extra["use_cache"] = False
    if "source" in case:
        extra["decoder_input_ids"], ids = ids, torch.tensor([case["source"]])
    with torch.no_grad():
        if case.get("rows"):
            # The source of a decoder of rows: the embeddings of the source's tokens in the place of an encoder's result.
            decoder = model.get_decoder()
            rows = decoder.embed_tokens(ids) + decoder.embed_positions.weight[: ids.shape[1]]
            out = model(encoder_outputs=(rows,), **extra)
        else:
            out = model(input_ids=ids, attention_mask=torch.ones_like(ids), **extra)
    if case.get("output") == "hidden":
        states = getattr(out, "last_hidden_state", None)
        values = out.hidden_states[-1] if states is None else states
    else:
        predicted = getattr(out, "prediction_logits", None)
        values = out.logits if predicted is None else predicted
    # A sequence has one row of scores, and no axis of tokens.
    return values.reshape(-1, values.shape[-1]).detach().to(torch.float64).numpy()


def noise(model, case, logits):
    """The NMSE between float32 and float64; None where transformers cannot compute in the latter."""
    try:
        return nmse(logits, run(copy.deepcopy(model).double(), case))
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        return None


def silent(model, case, logits):
    """Parameters and buffers whose change by a tenth of their spread leaves the logits as they are."""
    import torch

    generator = torch.Generator().manual_seed(1)
    names = set(model.state_dict())
    found = []
    for name, values in [*model.named_parameters(), *model.named_buffers()]:
        if name not in names or not values.is_floating_point():
            continue
        data = values.data
        kept = data.clone()
        step = data.std().item() if data.numel() > 1 else 0.0
        data.add_(torch.randn(data.shape, generator=generator) * 0.1 * (step or 1.0))
        moved = nmse(run(model, case), logits)
        if moved == 0.0:  # what only takes part in a choice shows where it is missing
            data.zero_()
            moved = nmse(run(model, case), logits)
        if moved < SILENT:
            found.append(name)
        data.copy_(kept)
    return found


def all_tensors(folder):
    """Every tensor of a folder, over all its weight files: type, shape, bytes."""
    out = {}
    for path in sorted(folder.glob("*.safetensors")):
        rows, _, data = read_header(path)
        for name, row in rows:
            start, end = row["data_offsets"]
            out[name] = (row["dtype"], row["shape"], data[start:end])
    return out


def same_files(filled, again, case):
    """The folder saved once more is the one that was filled; shards may be cut elsewhere."""
    old, new = all_tensors(filled), all_tensors(again)
    new = {name: value for name, value in new.items() if not is_omitted(name, case)}
    for pattern, name in case.get("rename", []):
        new = {re.sub(pattern, name, key): value for key, value in new.items()}
    for name, _ in case.get("extra", []):
        del old[name]
    if set(old) != set(new):
        raise Failure(f"saving the loaded model again writes other tensors: {sorted(set(old) ^ set(new))[:4]}")
    for name, (dtype, shape, data) in new.items():
        if any(re.search(pattern, name) for pattern in case.get("transpose", [])):
            transposed = np.frombuffer(data, np.float32).reshape(shape).swapaxes(-1, -2)
            shape, data = list(transposed.shape), transposed.tobytes()
        if old[name] != (dtype, shape, data):
            raise Failure(f"saving the loaded model again changes {name}: {old[name][:2]}, {dtype, shape}")
    paths = sorted(filled.glob("*.safetensors"))
    as_saved = not any(case.get(key) for key in ("rename", "transpose", "extra", "omit")) and len(paths) == 1
    if as_saved and paths[0].read_bytes() != (again / paths[0].name).read_bytes():
        raise Failure("saving the loaded model again writes the tensors in another way")


def write_plain(files, plain, config, folder):
    """The folder a packed one stands for."""
    folder.mkdir()
    (folder / "config.json").write_bytes(config)
    for part in files:
        data = file_bytes(part["tensors"], lambda tensor: plain.get(tensor["name"]) or tensor_bytes(tensor))
        (folder / part["file"]).write_bytes(data)


def prepare(case, folder):
    """The files of a case, its config.json, and the folder from which its logits are computed."""
    new, filled, again = folder / "new", folder / "filled", folder / "again"
    save(new_model(case), new, case)
    files, metadata = describe(new, case)
    files = lay_out(files, case)
    saved = (new / "config.json").read_bytes()
    config = config_text(saved, case)
    if "pack" in case:
        if metadata is not None:
            raise Failure("a packed case is one file")
        small, plain = pack_files(files, case)
        write_plain(files, plain, saved, filled)
        return {"files": small, "index_metadata": None}, config, saved, filled
    entry = {"files": files, "index_metadata": metadata}
    write_folder(entry, config, filled)
    save(load(case, filled, "auto"), again, case)
    same_files(filled, again, case)
    return entry, config, saved, filled


def remote_model(case):
    """The entry of a case of a published class, its config.json, and the model that computes the same."""
    import torch
    from hf_remote import CLASSES

    text = {"text": case["text"]} if "text" in case else {}
    model = CLASSES[case["remote"]](case["published"], **text)
    tensors = []
    for name, shape in [*model.layout().items(), *case.get("extra", [])]:
        first = np.full(1, float(len(shape) == 1 and name.endswith("weight")), np.float32)
        mean, scale = fill(name, shape, first, case.get("fill", []))
        tensors.append({"name": name, "dtype": "F32", "shape": shape, "mean": mean, "scale": scale})
    values = {t["name"]: torch.frombuffer(bytearray(tensor_bytes(t)), dtype=torch.float32).reshape(t["shape"]) for t in tensors}
    entry = {"files": [{"file": "model.safetensors", "tensors": tensors}], "index_metadata": None}
    config = (json.dumps(case["published"], indent=2, sort_keys=True) + "\n").encode()
    return entry, config, model.reference(values).eval()


def compute(case, folder):
    """The entry of a case, its config.json, and its logits."""
    import torch

    if "remote" in case:
        entry, config, model = remote_model(case)
        return judged(entry, config, model, case, run(model, case))
    entry, config, saved, filled = prepare(case, folder)
    model = load(case, filled, torch.float32)
    logits = run(model, case)
    if config != saved and "pack" not in case:
        (filled / "config.json").write_bytes(saved)
        if not np.array_equal(run(load(case, filled, torch.float32), case), logits):
            raise Failure("config.json as saved and as rewritten give different logits")
    return judged(entry, config, model, case, logits)


def judged(entry, config, model, case, logits):
    """What is stored of a case, if its logits can tell right from wrong."""
    entry = {
        "class": case.get("class") or case["model"],
        "output": case.get("output", "logits"),
        "tokens": case["tokens"],
        **({"source": case["source"]} if "source" in case else {}),
        "shape": list(logits.shape),
        "made_with": {name: importlib.metadata.version(name) for name in ("transformers", "torch", "safetensors")},
        "sha256": {n: hashlib.sha256(d).hexdigest() for n, d in sorted(folder_bytes(entry, config).items())},
        "std": short(logits.std()),
        **measures(model, case, logits),
        **entry,
    }
    return entry, config, logits.astype(np.float32)


def measures(model, case, logits):
    """Whether the golden can tell right from wrong."""
    check_spread(logits, SPREAD)
    if case.get("output") != "scores" and logits.std(axis=0).mean() < 0.2 * logits.std():
        raise Failure("the logits hardly differ between tokens")
    error = noise(model, case, logits)
    if error is not None and error > NOISE:
        raise Failure(f"float32 and float64 differ by an NMSE of {error:.1e}")
    still = silent(model, case, logits)
    allowed = case.get("silent", [])
    if unknown := [name for name in still if not any(re.search(pattern, name) for pattern in allowed)]:
        raise Failure(f"without effect on the logits: {', '.join(unknown[:12])} ({len(unknown)})")
    return {"noise": None if error is None else float(f"{error:.1e}"), "silent": still}


# ---------------------------------------------------------------- goldens


def entry_text(entry):
    """One line per field and per tensor, so that a diff names what changed."""
    lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in entry.items() if k != "files"]
    parts = []
    for part in entry["files"]:
        rows = ",\n".join(f"      {json.dumps(tensor)}" for tensor in part["tensors"])
        parts.append(f'    {{"file": {json.dumps(part["file"])}, "tensors": [\n{rows}\n    ]}}')
    lines.append('  "files": [\n' + ",\n".join(parts) + "\n  ]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read_golden(name):
    return json.loads((HF / name / "tensors.json").read_text())


def difference(name, entry, config, logits):
    """Why a stored golden is not the recomputed one; None if it is."""
    place = HF / name
    if not (place / "tensors.json").exists():
        return "not stored"
    why = difference_of(read_golden(name), entry, place / "logits.npy", logits)
    return why if why or (place / "config.json").read_bytes() == config else "changed: config.json"


def store(name, entry, config, logits):
    place = HF / name
    place.mkdir(exist_ok=True)
    (place / "config.json").write_bytes(config)
    (place / "tensors.json").write_text(entry_text(entry))
    np.save(place / "logits.npy", logits)
    size = sum(path.stat().st_size for path in place.iterdir())
    if size > BUDGET:
        raise Failure(f"takes {size} bytes, the budget is {BUDGET}")


def one(case, check):
    """Makes or checks one case: a word and the reason."""
    with tempfile.TemporaryDirectory() as folder:
        entry, config, logits = compute(case, Path(folder))
    why = difference(case["name"], entry, config, logits)
    size = sum(math.prod(t["shape"]) for part in entry["files"] for t in part["tensors"])
    about = f"std {entry['std']:<6} noise {entry['noise']} {size} elements, silent {len(entry['silent'])}"
    if why is None:
        return f"same      {about}"
    if check:
        raise Failure(why)
    store(case["name"], entry, config, logits)
    return f"written   {about}: {why}"


def make(only, check):
    import torch
    import transformers

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    cases = read_cases()
    failed = each(cases, only, lambda case: one(case, check))
    names = {case["name"] for case in cases}
    for place in sorted(path.parent for path in HF.glob("*/tensors.json")):
        if place.name not in names:
            print(f"{place.name:28s} STRAY: stored, but not in cases.toml")
            failed.append(place.name)
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME", nargs="+", default=[], help="these cases alone")
    parser.add_argument("--check", action="store_true", help="compare with what is stored and write nothing")
    parser.add_argument("--write", metavar=("NAME", "FOLDER"), nargs=2, help="write the folder of a case; needs no torch")
    args = parser.parse_args()
    if args.write:
        name, folder = args.write
        write_folder(read_golden(name), (HF / name / "config.json").read_bytes(), Path(folder))
        return 0
    return make(args.only, args.check)


if __name__ == "__main__":
    program(main)
