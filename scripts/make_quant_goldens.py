#!/usr/bin/env python3
"""Makes tests/quant: tiny folders quantised by each method's own package, and what they compute.

Needs: Python 3.11, `pip install -r scripts/requirements-quant.txt`, then without their dependencies
       autoawq 0.2.9, auto-gptq 0.7.1 and nvidia-modelopt 0.47.0

Each folder holds config.json, model.safetensors and logits.npy. The codes are packed by the package that
the table CASES names; the matrices are dequantised here, by the formula of the method, written for this
purpose with numpy, and compared with what the package dequantises where it can without a GPU. The logits
are those of transformers in float32 with the dequantised matrices.
With --check nothing is written, and any difference fails.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import numpy as np
import torch
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parent.parent / "tests" / "quant"
TOKENS = [3, 17, 5, 40, 2, 31, 9]
GROUP = 32

LLAMA = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=48, max_position_embeddings=64, tie_word_embeddings=False, rms_norm_eps=1e-5)
MODELS = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", LLAMA | {"head_dim": 16}),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", LLAMA | {"pad_token_id": 0}),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", LLAMA | {"head_dim": 16, "num_local_experts": 3}),
}


# ---------------------------------------------------------------- codes in words


def stream(data, bits, count):
    """The first `count` codes of a little-endian stream of bits, for each row of bytes."""
    ones = np.unpackbits(data, axis=-1, bitorder="little")[..., : count * bits]
    return (ones.reshape(*data.shape[:-1], count, bits) * (1 << np.arange(bits))).sum(-1)


def words_down(words, bits, count):
    """Codes of streams that go down the columns of a matrix of 32-bit words: [count, columns]."""
    return stream(np.ascontiguousarray(words.T).view(np.uint8), bits, count).T


def awq_codes(words):
    """[n, words] to [n, 8 * words]: eight codes of a word are columns 0 2 4 6 1 3 5 7."""
    out = np.zeros((words.shape[0], words.shape[1] * 8), np.int64)
    for at, column in enumerate([0, 2, 4, 6, 1, 3, 5, 7]):
        out[:, column::8] = (words.view(np.uint32) >> np.uint32(4 * at)) & 15
    return out


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
E2M1 = np.concatenate([E2M1, -E2M1])


def pairs(data, high_first=False):
    low, high = data & 15, data >> 4
    return np.stack([high, low] if high_first else [low, high], -1).reshape(*data.shape[:-1], -1)


def steps(codes, zeros, scales, groups):
    """scales * (codes - zeros), of columns in groups: all [rows, ..]."""
    return (scales[:, groups] * (codes - zeros[:, groups])).astype(np.float32)


# ---------------------------------------------------------------- the methods


def split(weight, bits, symmetric=False, group=GROUP):
    """Scales (float16) and zero points of groups: [rows, groups]."""
    rows = weight.reshape(weight.shape[0], -1, group)
    top = 2**bits - 1
    if symmetric:
        scales = rows.abs().amax(-1) / (top // 2)
        return scales.half().float(), torch.full_like(scales, 2 ** (bits - 1))
    low, high = rows.amin(-1).clamp(max=0), rows.amax(-1).clamp(min=0)
    scales = ((high - low) / top).half().float()
    return scales, (-low / scales).round().clamp(1, top)


def linear(weight):
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight.data = weight.clone()
    return layer


def packages():
    """Lets the modules that pack be imported without what their packages import for GPUs and training."""
    import importlib.util
    import types

    import transformers.activations as activations

    activations.PytorchGELUTanh = activations.GELUTanh  # its name when autoawq was written
    top = importlib.util.find_spec("auto_gptq").submodule_search_locations[0]
    for name in ("auto_gptq", "auto_gptq.nn_modules", "auto_gptq.nn_modules.qlinear"):
        module = types.ModuleType(name)
        module.__path__ = [str(Path(top, *name.split(".")[1:]))]
        sys.modules[name] = module


def awq(weight, version="gemm"):
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.modules.linear.gemv import WQLinear_GEMV

    scales, zeros = split(weight, 4)
    if version == "gemm":
        packed = WQLinear_GEMM.from_linear(linear(weight), 4, GROUP, scales=scales.t().contiguous(), zeros=zeros.t().contiguous())
    else:
        packed = WQLinear_GEMV.from_linear(linear(weight), 4, GROUP, scales=scales, zeros=zeros)
    stored = {name: getattr(packed, name).contiguous() for name in ("qweight", "qzeros", "scales")}
    n = {name: tensor.numpy() for name, tensor in stored.items()}
    groups = np.arange(weight.shape[1]) // GROUP
    scale = n["scales"].astype(np.float32)
    if version == "gemm":
        values = steps(awq_codes(n["qweight"]).T, awq_codes(n["qzeros"]).T, scale.T, groups)
    else:
        codes = stream(n["qweight"].view(np.uint8), 4, weight.shape[1])
        values = steps(codes, stream(n["qzeros"].view(np.uint8), 4, scale.shape[1]), scale, groups)
    return stored, values


def gptq(weight, bits=4, symmetric=False, act_order=False, second=False):
    from auto_gptq.nn_modules.qlinear.qlinear_cuda import QuantLinear

    width = weight.shape[1]
    groups = np.arange(width) // GROUP
    if act_order:
        groups = np.random.default_rng(width).permutation(groups)
    order = torch.tensor(np.argsort(groups, kind="stable"))
    scales, zeros = split(weight[:, order], bits, symmetric)
    packed = QuantLinear(bits, GROUP, width, weight.shape[0], False, weight_dtype=torch.float16)
    layer = linear(weight)
    packed.pack(layer, scales.clone(), zeros.clone(), torch.tensor(groups, dtype=torch.int32))
    stored = {name: getattr(packed, name).contiguous() for name in ("qweight", "qzeros", "scales", "g_idx")}
    stored["scales"] = stored["scales"].half()
    if second:  # zero points as they are
        stored["qzeros"] = stored["qzeros"] + 0x11111111
    n = {name: tensor.numpy() for name, tensor in stored.items()}
    codes = words_down(n["qweight"], bits, width).T
    zero = stream(n["qzeros"].view(np.uint8), bits, weight.shape[0]).T
    zero = zero if second else (zero + 1) % 2**bits
    return stored, steps(codes, zero, n["scales"].T.astype(np.float32), n["g_idx"])


def compressed(weight, form, bits=4, symmetric=True, strategy="group"):
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    floats = form.startswith(("float", "nvfp4"))
    size = {"group": 16 if form.startswith("nvfp4") else GROUP, "channel": None}[strategy.removeprefix("tensor_")]
    args = QuantizationArgs(num_bits=bits, type="float" if floats else "int", symmetric=symmetric, strategy=strategy,
                            group_size=size)
    scheme = QuantizationScheme(targets=["Linear"], weights=args, format=form)
    top = {4: 6.0, 8: 448.0}[bits] if floats else 2 ** (bits - 1) - 0.5
    rows = weight.reshape(weight.shape[0], -1, size or weight.shape[1])
    state = {"weight": weight.clone()}
    if symmetric:
        scales = rows.abs().amax(-1) / top
        zeros = torch.zeros_like(scales)
    else:
        low, high = rows.amin(-1).clamp(max=0), rows.amax(-1).clamp(min=0)
        scales = (high - low) / (2**bits - 1)
        zeros = (-(2 ** (bits - 1)) - low / scales).round()
        state["weight_zero_point"] = zeros.to(torch.int8)
    if form.startswith("nvfp4"):
        whole = (448.0 * 6.0 / weight.abs().max()).reshape(1)
        state["weight_global_scale"] = whole
        scales = (scales * whole).to(torch.float8_e4m3fn).float()
    else:
        scales = scales.bfloat16().float()
    state["weight_scale"] = scales
    stored = BaseCompressor.get_value_from_registry(form).compress(state, scheme)
    stored = {name: tensor.contiguous() for name, tensor in stored.items()}
    if not form.startswith("nvfp4"):
        stored["weight_scale"] = stored["weight_scale"].bfloat16()
    width = weight.shape[1]
    groups = np.arange(width) // (size or width)
    scale = stored["weight_scale"].float().numpy()
    if form.startswith("nvfp4"):
        values = E2M1[pairs(stored["weight_packed"].numpy())] * scale[:, groups] / stored["weight_global_scale"].numpy()
        return stored, values.astype(np.float32)
    if "weight_packed" in stored:
        codes = stream(stored["weight_packed"].numpy().view(np.uint8), bits, width)
        zero = np.full(scale.shape, 2 ** (bits - 1))
        if not symmetric:
            zero = words_down(stored["weight_zero_point"].numpy(), bits, weight.shape[0])
        return stored, steps(codes, zero, scale, groups)
    return stored, stored["weight"].float().numpy() * scale[:, groups]


def bnb4(weight, kind, nested):
    import bitsandbytes.functional as functional

    codes, state = functional.quantize_4bit(weight, blocksize=64, compress_statistics=nested, quant_type=kind)
    stored = {"weight": codes} | {f"weight.{name}": tensor for name, tensor in state.as_dict(packed=True).items()}
    n = {name: tensor.numpy() for name, tensor in stored.items()}
    about = json.loads(n[f"weight.quant_state.bitsandbytes__{kind}"].tobytes())
    table = n["weight.quant_map"][pairs(n["weight"].reshape(-1), high_first=True)]
    most = n["weight.absmax"]
    if nested:
        outer = np.arange(len(most)) // about["nested_blocksize"]
        most = n["weight.nested_quant_map"][most] * n["weight.nested_absmax"][outer] + np.float32(about["nested_offset"])
    values = table * most[np.arange(table.size) // about["blocksize"]]
    if weight.shape[1] % 64 == 0:  # the package's kernel for the processor takes no block beyond a row
        same(values.reshape(about["shape"]), functional.dequantize_4bit(codes, state))
    return stored, values.reshape(about["shape"]).astype(np.float32)


def bnb8(weight):
    import bitsandbytes.functional as functional

    codes, most, _ = functional.int8_vectorwise_quant(weight.half())
    stored = {"weight": codes, "SCB": most.float(), "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return stored, codes.float().numpy() * (most.float().numpy()[:, None] / 127)


def modelopt(weight):
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    packed, scales, whole = NVFP4QTensor.quantize(weight, 16)
    stored = {"weight": packed._quantized_data, "weight_scale": scales, "weight_scale_2": whole.float()}
    groups = np.arange(weight.shape[1]) // 16
    values = E2M1[pairs(stored["weight"].numpy())] * scales.float().numpy()[:, groups] * whole.float().numpy()
    same(values, packed.dequantize(dtype=torch.float32, scale=scales, double_scale=whole, block_sizes={-1: 16}))
    return stored, values.astype(np.float32)


def mlx(weight, bits, group=GROUP):
    import mlx.core as mx

    codes, scales, biases = mx.quantize(mx.array(weight.numpy()).astype(mx.float16), group_size=group, bits=bits)
    stored = {"weight": torch.from_numpy(np.array(codes)), "scales": torch.from_numpy(np.array(scales)),
              "biases": torch.from_numpy(np.array(biases))}
    n = {name: tensor.numpy() for name, tensor in stored.items()}
    groups = np.arange(weight.shape[1]) // group
    codes_of = stream(n["weight"].view(np.uint8), bits, weight.shape[1])
    values = n["scales"].astype(np.float32)[:, groups] * codes_of + n["biases"].astype(np.float32)[:, groups]
    f32 = [scales.astype(mx.float32), biases.astype(mx.float32)]
    same(values, torch.from_numpy(np.array(mx.dequantize(codes, *f32, group_size=group, bits=bits))))
    return stored, values.astype(np.float32)


def same(values, package):
    """The package dequantises to what the formula gives."""
    package = package.float().numpy().reshape(values.shape)
    if not np.allclose(values, package, rtol=1e-2, atol=1e-3 * np.abs(values).max()):
        raise SystemExit(f"the formula and the package differ by {np.abs(values - package).max():.2e}")


def ct_config(form, bits, symmetric, strategy, kind="int"):
    weights = {"num_bits": bits, "type": kind, "symmetric": symmetric, "strategy": strategy,
               "group_size": GROUP if strategy == "group" else None}
    return {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


def gptq_config(bits, **more):
    return {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "desc_act": False, "sym": False} | more


AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}

# Name: the model, how a matrix is packed, the record in config.json.
CASES = {
    "awq": ("llama", awq, AWQ),
    "awq-gemv": ("llama", lambda w: awq(w, "gemv"), AWQ | {"version": "gemv"}),
    "awq-experts": ("mixtral", awq, AWQ),
    "gptq": ("llama", gptq, gptq_config(4)),
    "gptq-2bit": ("llama", lambda w: gptq(w, 2), gptq_config(2)),
    "gptq-3bit": ("llama", lambda w: gptq(w, 3), gptq_config(3)),
    "gptq-8bit": ("llama", lambda w: gptq(w, 8, symmetric=True), gptq_config(8, sym=True)),
    "gptq-act-order": ("llama", lambda w: gptq(w, act_order=True), gptq_config(4, desc_act=True)),
    "gptq-v2": ("llama", lambda w: gptq(w, second=True), gptq_config(4, checkpoint_format="gptq_v2")),
    "gptq-fused": ("phi3", lambda w: gptq(w, symmetric=True), gptq_config(4, sym=True)),
    "ct-int4": ("llama", lambda w: compressed(w, "pack-quantized"), ct_config("pack-quantized", 4, True, "group")),
    "ct-int4-zeros": ("llama", lambda w: compressed(w, "pack-quantized", symmetric=False),
                      ct_config("pack-quantized", 4, False, "group")),
    "ct-int8": ("llama", lambda w: compressed(w, "pack-quantized", 8, strategy="channel"),
                ct_config("pack-quantized", 8, True, "channel")),
    "ct-w8a8": ("llama", lambda w: compressed(w, "int-quantized", 8, strategy="channel"),
                ct_config("int-quantized", 8, True, "channel")),
    "ct-fp8": ("llama", lambda w: compressed(w, "float-quantized", 8, strategy="channel"),
               ct_config("float-quantized", 8, True, "channel", "float")),
    "ct-nvfp4": ("llama", lambda w: compressed(w, "nvfp4-pack-quantized", strategy="tensor_group"),
                 ct_config("nvfp4-pack-quantized", 4, True, "tensor_group", "float")),
    "bnb-nf4": ("llama", lambda w: bnb4(w, "nf4", True), BNB | {"bnb_4bit_use_double_quant": True}),
    "bnb-fp4": ("llama", lambda w: bnb4(w, "fp4", False), BNB | {"bnb_4bit_quant_type": "fp4"}),
    "bnb-int8": ("llama", bnb8, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "modelopt-nvfp4": ("llama", modelopt, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "mlx-4bit": ("llama", lambda w: mlx(w, 4), {"group_size": 32, "bits": 4}),
    "mlx-8bit": ("llama", lambda w: mlx(w, 8), {"group_size": 32, "bits": 8}),
    "mlx-mixed": ("llama", None, {"group_size": 32, "bits": 3, "mode": "affine",
                                  "model.layers.0.mlp.down_proj": {"group_size": 32, "bits": 6},
                                  "model.layers.0.mlp.up_proj": {"group_size": 32, "bits": 5},
                                  "model.layers.0.self_attn.q_proj": {"group_size": 64, "bits": 2},
                                  "lm_head": False}),
}


def model_of(kind):
    import transformers

    config, model, values = MODELS[kind]
    torch.manual_seed(0)
    return getattr(transformers, model)(getattr(transformers, config)(**values)).float().eval()


def fill(name, tensor):
    """Numbers of a tensor, in half precision."""
    rng = np.random.default_rng(list(name.encode()))
    values = torch.tensor(rng.standard_normal(tuple(tensor.shape)), dtype=torch.float32)
    values = 1 + 0.2 * values if tensor.dim() == 1 else values * 1.2 / tensor.shape[-1] ** 0.5
    return values.half().float()


def make(name, folder):
    kind, pack, record = CASES[name]
    is_mlx = name.startswith("mlx")
    model = model_of(kind)
    model.load_state_dict({key: fill(key, tensor) for key, tensor in model.state_dict().items()})
    # What is on disk: experts are apart there.
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    plain, stored = load_file(folder / "model.safetensors"), {}
    for key, tensor in plain.items():
        base = key.removesuffix(".weight")
        is_kept = tensor.dim() != 2 or "gate.weight" in key and kind == "mixtral" or "lm_head" in key
        if is_kept or "embed" in key and not is_mlx:
            stored[key] = tensor.half()
            continue
        if pack is None:
            own = record.get(base, record)
            parts, values = mlx(tensor, own["bits"], own["group_size"])
        else:
            parts, values = pack(tensor)
        stored |= {f"{base}.{part}": value.contiguous() for part, value in parts.items()}
        error = float(((values - tensor.numpy()) ** 2).sum() / (tensor.numpy() ** 2).sum())
        if error > (0.5 if "2bit" in name or "mixed" in name else 0.1):
            raise SystemExit(f"{name}: {key} is off by an NMSE of {error:.2}")
        plain[key] = torch.tensor(np.ascontiguousarray(values))
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "config.json").write_text(json.dumps(config))
        save_file(plain, Path(scratch) / "model.safetensors", {"format": "pt"})
        model = type(model).from_pretrained(scratch, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS])).logits[0].numpy().astype(np.float32)
    stored = {key: tensor.clone().contiguous() for key, tensor in stored.items()}
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    config["quantization" if is_mlx else "quantization_config"] = record
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    np.save(folder / "logits.npy", logits)
    for left in list(folder.iterdir()):
        if left.name not in ("config.json", "model.safetensors", "logits.npy"):
            left.unlink()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", default=list(CASES))
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    packages()
    faults = []
    for name in args.only:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            try:
                make(name, folder)
            except Exception as error:
                faults.append(f"{name}: {type(error).__name__}: {error}")
                continue
            size = sum(part.stat().st_size for part in folder.iterdir())
            if args.check:
                old = np.load(ROOT / name / "logits.npy")
                new = np.load(folder / "logits.npy")
                same_bytes = (ROOT / name / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
                if not same_bytes or ((old - new) ** 2).sum() > 1e-10 * (old**2).sum():
                    faults.append(f"{name}: differs")
                continue
            (ROOT / name).mkdir(parents=True, exist_ok=True)
            for part in folder.iterdir():
                (ROOT / name / part.name).write_bytes(part.read_bytes())
            print(f"{name:16} {size:7} bytes, logits of {np.load(ROOT / name / 'logits.npy').std():.2f}")
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
