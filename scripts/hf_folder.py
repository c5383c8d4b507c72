"""Folders as Hugging Face publishes them, from tests/hf: what fills a tensor, and how it lies on disk.

Used by scripts/make_hf_goldens.py. Needs numpy, but neither torch nor transformers.
"""

import json
import math
import re

import numpy as np

from bench_server import Failure
from goldens import splitmix


# ---------------------------------------------------------------- values

MASK = (1 << 64) - 1


def fnv1a(text):
    """The 64-bit FNV-1a hash of a name."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def uniform(name, count):
    """float32 [count] in [-1/2, 1/2), a multiple of 2^-24 each: exact, whatever computes it."""
    z = np.uint64(fnv1a(name)) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (splitmix(z) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24) - np.float32(0.5)


DTYPES = {"F32": np.float32, "F16": np.float16, "I64": np.int64}


def tensor_bytes(tensor):
    """The data of a tensor as it stands in the file."""
    count = math.prod(tensor["shape"])
    values = uniform(tensor["name"], count) * np.float32(tensor["scale"]) + np.float32(tensor["mean"])
    if tensor["dtype"] in DTYPES:
        return values.astype(DTYPES[tensor["dtype"]]).tobytes()
    if tensor["dtype"] == "BF16":
        bits = values.view(np.uint32)
        bits = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return bits.astype(np.uint16).tobytes()
    if tensor["dtype"] in ("U8", "I8", "F8_E8M0"):  # bytes, whatever they stand for
        return values.astype(np.uint8).tobytes()
    if tensor["dtype"] == "F8_E4M3":  # without the highest bit of the exponent: neither NaN nor above 2
        return (values.astype(np.uint8) & np.uint8(0xBF)).tobytes()
    raise Failure(f"{tensor['name']} is of {tensor['dtype']}, which nothing here fills")


def file_bytes(tensors, data_of=tensor_bytes):
    """A safetensors file: length of the header, header padded to 8 bytes, data."""
    header, parts, at = {"__metadata__": {"format": "pt"}}, [], 0
    for tensor in tensors:
        data = data_of(tensor)
        about = {key: tensor[key] for key in ("dtype", "shape")}
        header[tensor["name"]] = about | {"data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(parts)


def short(value):
    """Four digits: what a table can show and float32 holds the same for every reader."""
    return float(f"{value:.4g}")


def index_bytes(files, metadata):
    """The index of a sharded folder."""
    places = {tensor["name"]: part["file"] for part in files for tensor in part["tensors"]}
    index = {"metadata": metadata, "weight_map": places}
    return (json.dumps(index, indent=2, sort_keys=True) + "\n").encode()


def folder_bytes(entry, config):
    """Every file of the folder of a case, by name."""
    out = {"config.json": config}
    for part in entry["files"]:
        out[part["file"]] = file_bytes(part["tensors"])
    if entry["index_metadata"] is not None:
        out["model.safetensors.index.json"] = index_bytes(entry["files"], entry["index_metadata"])
    return out


def write_folder(entry, config, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in folder_bytes(entry, config).items():
        (folder / name).write_bytes(data)


# ---------------------------------------------------------------- what published folders do otherwise


def swapped(shape):
    return [*shape[:-2], shape[-1], shape[-2]]


def lay_out(files, case):
    """Names, axes and further tensors of published folders, where saving gives others."""
    for part in files:
        for tensor in part["tensors"]:
            if any(re.search(pattern, tensor["name"]) for pattern in case.get("transpose", [])):
                tensor["shape"] = swapped(tensor["shape"])
            for pattern, name in case.get("rename", []):
                tensor["name"] = re.sub(pattern, name, tensor["name"])
    for name, shape in case.get("extra", []):
        files[-1]["tensors"].append({"name": name, "dtype": "F32", "shape": shape, "mean": 0.0, "scale": 1.0})
    return files


# ---------------------------------------------------------------- smaller types

# Values of four bits: sign, two bits of exponent, one of mantissa.
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
FP4 = np.concatenate([FP4, -FP4])

FP8 = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [16, 16]}
# The names of the tensors that are packed, and the record in config.json.
PACKS = {
    "mxfp4": (r"experts\.(gate_up_proj|down_proj)$", {
        "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
        ],
        "quant_method": "mxfp4",
    }),
    "fp8": (r"_proj(_with_mqa)?\.weight$", FP8),
    "fp8-fp4": (
        r"(attn\.(wq_a|wq_b|wkv|wo_a|wo_b)|indexer\.wq_b|experts\.(\d+\.)?w\d)\.weight$", FP8 | {"scale_fmt": "ue8m0"},
    ),
    "fp8-tensor": (r"_proj\.weight$", {
        "activation_scheme": "static", "dequantize": False, "modules_to_not_convert": ["lm_head"],
        "quant_method": "fp8", "weight_block_size": None,
    }),
}  # fmt: skip


def packed(tensor, pack):
    """The tensors on disk that stand for one."""
    name, shape = tensor["name"], tensor["shape"]
    if pack == "mxfp4":
        count, inputs, outputs = shape
        blocks = {"dtype": "U8", "shape": [count, outputs, inputs // 32, 16], "mean": 128.0, "scale": 256.0}
        scales = {"dtype": "U8", "shape": [count, outputs, inputs // 32], "mean": 123.0, "scale": 3.0}
        return [{"name": f"{name}_blocks", **blocks}, {"name": f"{name}_scales", **scales}]
    if pack == "fp8-fp4":
        is_small = re.search(r"\.experts\.\d+\.", name)
        # 2.9 and 0.6: what the codes spread. Three neighbouring exponents, with bias 127.
        spread = tensor["scale"] / math.sqrt(12) / (2.9 if is_small else 0.6)
        rows, columns = shape
        codes = {"dtype": "F8_E4M3", "shape": shape, "mean": 128.0, "scale": 256.0}
        grid = [-(-rows // 16), -(-columns // 16)]
        if is_small:
            codes |= {"dtype": "I8", "shape": [rows, columns // 2]}
            grid = [rows, columns // 32]
        exponents = {"dtype": "F8_E8M0", "shape": grid, "mean": 127.5 + round(math.log2(spread)), "scale": 3.0}
        return [{"name": name, **codes}, {"name": name.removesuffix("weight") + "scale", **exponents}]
    spread = tensor["scale"] / math.sqrt(12) / 0.6  # 0.6: what the bytes spread
    weight = {"name": name, "dtype": "F8_E4M3", "shape": shape, "mean": 128.0, "scale": 256.0}
    if pack == "fp8":
        grid = [-(-extent // 16) for extent in shape]
        factor = {"dtype": "F32", "shape": grid, "mean": short(spread), "scale": short(spread)}
        return [weight, {"name": f"{name}_scale_inv", **factor}]
    factors = {f"{name}_scale_inv": short(spread), name.removesuffix("weight") + "activation_scale": 0.02}
    one = {"dtype": "BF16", "shape": []}
    return [weight, *({"name": factor, **one, "mean": mean, "scale": 0.0} for factor, mean in factors.items())]


def e4m3(data):
    """float32 of bytes of E4M3 without NaN."""
    bits = np.frombuffer(data, np.uint8)
    exponent, mantissa = (bits >> 3) & 15, (bits & 7).astype(np.float32) / 8
    value = np.where(exponent == 0, mantissa * 2.0**-6, (1 + mantissa) * 2.0 ** (exponent.astype(np.float32) - 7))
    return np.where(bits & 128, -value, value).astype(np.float32)


def unpacked(tensor, parts, pack):
    """The bytes of the float32 tensor that its parts stand for; every product is exact."""
    first = tensor_bytes(parts[0])
    if pack == "mxfp4":
        blocks = np.frombuffer(first, np.uint8).reshape(parts[0]["shape"])
        scales = np.frombuffer(tensor_bytes(parts[1]), np.uint8).reshape(parts[1]["shape"])
        values = np.stack([FP4[blocks & 15], FP4[blocks >> 4]], -1).reshape(*blocks.shape[:-1], 32)
        values = np.ldexp(values, scales.astype(np.int32)[..., None] - 127)
        return values.reshape(*values.shape[:2], -1).swapaxes(1, 2).astype(np.float32).tobytes()
    if pack == "fp8-fp4":
        exponents = np.frombuffer(tensor_bytes(parts[1]), np.uint8).reshape(parts[1]["shape"]).astype(np.int32) - 127
        if parts[0]["dtype"] == "I8":
            codes = np.frombuffer(first, np.uint8).reshape(parts[0]["shape"])
            values = np.stack([FP4[codes & 15], FP4[codes >> 4]], -1).reshape(tensor["shape"])
            exponents = np.repeat(exponents, 32, 1)
        else:
            values = e4m3(first).reshape(tensor["shape"])
            rows, columns = tensor["shape"]
            exponents = np.repeat(np.repeat(exponents, 16, 0), 16, 1)[:rows, :columns]
        return np.ldexp(values, exponents).astype(np.float32).tobytes()
    weight = e4m3(first).reshape(tensor["shape"])
    factor = first_values({"data_offsets": (0, None), "dtype": parts[1]["dtype"]}, tensor_bytes(parts[1]))
    if pack == "fp8":
        rows, columns = tensor["shape"]
        factor = np.kron(factor.reshape(parts[1]["shape"]), np.ones((16, 16), np.float32))[:rows, :columns]
    return (weight * factor).astype(np.float32).tobytes()


def pack_files(files, case):
    """The files of a packed folder, and the bytes of what they stand for by name."""
    pack, out, plain = case["pack"], [], {}
    for part in files:
        tensors = []
        for tensor in part["tensors"]:
            if re.search(PACKS[pack][0], tensor["name"]):
                parts = packed(tensor, pack)
                plain[tensor["name"]] = unpacked(tensor, parts, pack)
                tensors += parts
            else:
                tensors.append(tensor)
        width = {"I64": 8, "F32": 4, "BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "U8": 1}
        tensors.sort(key=lambda t: (-width[t["dtype"]], t["name"]))
        out.append({"file": part["file"], "tensors": tensors})
    return out, plain


def first_values(row, data):
    """The values of a tensor of a new model, as float32."""
    start, end = row["data_offsets"]
    data = data[start:end]
    if row["dtype"] == "BF16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, DTYPES[row["dtype"]]).astype(np.float32)


# ---------------------------------------------------------------- config


def no_empty(value):
    """"" stands for null, which TOML lacks."""
    if isinstance(value, dict):
        return {key: no_empty(item) for key, item in value.items()}
    if isinstance(value, list):
        return [no_empty(item) for item in value]
    return None if value == "" else value


def rope4(rope, config):
    """rope_parameters as keys of transformers 4; `config` is the configuration around."""
    local = rope.get("sliding_attention")
    rope = dict(rope.get("full_attention", rope))
    out = {"rope_theta": rope.pop("rope_theta")}
    if "partial_rotary_factor" in rope:
        out["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    if isinstance(local, dict):
        out["rope_local_base_freq"] = local["rope_theta"]
    kind = rope.pop("rope_type", "default")
    if "original_max_position_embeddings" in config:
        rope.pop("original_max_position_embeddings", None)
    if not rope and kind == "default":
        out["rope_scaling"] = None
    elif config["model_type"].startswith("qwen2") and "mrope_section" in rope:
        out["rope_scaling"] = rope | {"type": "mrope"}
    elif kind in ("linear", "yarn", "longrope", "dynamic") and not local and config["model_type"] != "gpt_oss":
        out["rope_scaling"] = rope | {"type": kind}  # the name of the key before rope_type
    else:
        out["rope_scaling"] = rope | {"rope_type": kind}
    return out


def form4(config):
    """The form transformers 4 wrote, which most published folders have: rope keys at the top, and
    infinity as Python writes it, which JSON does not know."""
    out = {}
    for key, value in config.items():
        if key == "dtype":
            out["torch_dtype"] = value
        elif key == "rope_parameters" and isinstance(value, dict):
            out |= rope4(value, config)
        elif isinstance(value, dict) and key.endswith("_config"):
            out[key] = form4(value) if key == "text_config" else value
        elif isinstance(value, list):
            out[key] = [math.inf if item == {"__float__": "Infinity"} else item for item in value]
        else:
            out[key] = value
    return out


def place_of(config, key):
    """The table a dotted key lies in, and its last part."""
    *path, last = key.split(".")
    for part in path:
        config = config[part]
    return config, last


def config_text(saved, case):
    """config.json of the case: as saved, or in the older form; without the keys in `drop`, with those in `put`."""
    config = json.loads(saved)
    if not any(case.get(key) for key in ("form4", "flat", "drop", "put", "pack")):
        return saved
    if case.get("form4"):
        config = form4(config)
    if case.get("flat"):
        text = config.pop("text_config")
        config = {key: value for key, value in text.items() if key != "model_type"} | config
    for key in case.get("drop", []):
        table, last = place_of(config, key)
        if last not in table:
            raise Failure(f"`drop` names `{key}`, which config.json lacks")
        del table[last]
    for key, value in case.get("put", {}).items():
        table, last = place_of(config, key)
        table[last] = no_empty(value)
    if "pack" in case:
        config["quantization_config"] = PACKS[case["pack"]][1]
    return (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()
