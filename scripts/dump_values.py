#!/usr/bin/env python3
"""Writes what llama.cpp computes on the way to the logits, for `bench compare --dump`.

Needs: Python 3.11, `pip install llama-cpp-python numpy`

Each named value of one pass over all tokens becomes DIR/NAME.npy (float32, C order, slowest
dimension first), with the name that llama.cpp gives it, such as `Qcur-0` or `l_out-3`. Of values
that share a name the last one stays, which for queries and keys is the one after RoPE.
"""

import argparse
import contextlib
import ctypes
from pathlib import Path

import numpy as np

from bench_server import program
from goldens import Reference, load_llama_cpp

F32, F16, I32 = 0, 1, 26  # GGML_TYPE_*
DTYPES = {F32: np.float32, F16: np.float16, I32: np.int32}


class Tensor(ctypes.Structure):
    """struct ggml_tensor."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("name", ctypes.c_char * 64),
    ]

    def array(self):
        """The elements as float32, or None for a type that holds blocks."""
        dtype = DTYPES.get(self.type)
        if dtype is None or not self.data:
            return None
        shape, steps = list(self.ne)[::-1], list(self.nb)[::-1]
        size = sum((n - 1) * step for n, step in zip(shape, steps)) + np.dtype(dtype).itemsize
        raw = np.ctypeslib.as_array(ctypes.cast(self.data, ctypes.POINTER(ctypes.c_uint8)), (size,))
        view = np.ndarray(shape, dtype, buffer=raw, strides=steps)
        return np.squeeze(np.array(view, dtype=np.float32))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gguf", required=True, type=Path)
    parser.add_argument("--tokens", required=True, help="ids separated by commas")
    parser.add_argument("--output", required=True, type=Path, help="folder to write")
    parser.add_argument("--non-causal", action="store_true", help="every token attends to every other")
    args = parser.parse_args()
    tokens = [int(token) for token in args.tokens.split(",")]

    values = {}

    def on_value(pointer, ask, _):
        tensor = ctypes.cast(pointer, ctypes.POINTER(Tensor)).contents
        name = tensor.name.decode("utf-8", "replace")
        # Nodes that nobody named have names such as `node_12`, and views add ` (view)`.
        if not name or name.startswith(("node_", "leaf_")) or "(" in name:
            return not ask
        if ask:
            return True
        array = tensor.array()
        if array is not None:
            values[name] = array
        return True

    lib = load_llama_cpp()
    with contextlib.closing(Reference(lib, args.gguf)) as reference:
        reference.logits(tokens, not args.non_causal, on_value=on_value)
    args.output.mkdir(parents=True, exist_ok=True)
    for name, array in values.items():
        np.save(args.output / f"{name.replace('/', '_')}.npy", np.ascontiguousarray(array))
    print(f"{len(values)} values in {args.output}")


if __name__ == "__main__":
    program(main)
