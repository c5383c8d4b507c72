"""A server for tests: the program that the variable BENCH names (default: `bench`)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Dict, List

from lab_bench.arrays import Array

PROGRAM = os.environ.get("BENCH", "bench")
#: The built-in model as a file.
MODEL = Path(__file__).parents[3] / "models" / "tiny-chat.gguf"
#: Names of element types in safetensors files.
_TYPES = {"float32": "F32", "float16": "F16", "uint16": "BF16", "int32": "I32"}


def bench(*arguments: str) -> str:
    """Runs the program. What it printed."""
    return subprocess.run([PROGRAM, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


class Server:
    """A running server, ended by `close`."""

    def __init__(self, *options: str) -> None:
        command = [PROGRAM, "serve", "--in-process", "--port", "0", "--threads", "1", *options]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        _, found, self.url = line.strip().partition("listening on ")
        if not found:
            self.close()
            raise AssertionError(f"the server said {line!r}")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def safetensors(arrays: Dict[str, Array]) -> bytes:
    """A safetensors file. Arrays of uint16 are bf16."""
    header: Dict[str, object] = {"__metadata__": {"made by": "a test"}}
    pieces: List[bytes] = []
    at = 0
    for name, array in arrays.items():
        piece = array.tobytes()
        offsets = [at, at + len(piece)]
        header[name] = {"dtype": _TYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": offsets}
        pieces.append(piece)
        at += len(piece)
    head = json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + b"".join(pieces)
