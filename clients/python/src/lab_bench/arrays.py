"""Arrays as bytes: numbers within JSON, safetensors and NPZ files. Needs nothing but NumPy."""

from __future__ import annotations

import base64
import io
import json
import os
import zipfile
import zlib
from typing import Any, BinaryIO, Dict, Mapping, Union

import numpy as np

from .errors import BenchError

Array = np.ndarray[Any, np.dtype[Any]]

_PACKED: Dict[str, np.dtype[Any]] = {"f32": np.dtype("<f4"), "f16": np.dtype("<f2")}
_SAFETENSORS: Dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "I16": np.dtype("<i2"),
    "U16": np.dtype("<u2"),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "I64": np.dtype("<i8"),
    "U64": np.dtype("<u8"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    # Read as the upper halves of f32.
    "BF16": np.dtype("<u2"),
}
#: What the readers raise for a damaged file.
_DAMAGE = (
    ArithmeticError,
    EOFError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)
#: Longest header of a safetensors file, in bytes, as the format has it.
_MAX_HEADER = 100_000_000


class Arrays(Dict[str, Array]):
    """Arrays of a file by their names. `metadata` has its texts by their names."""

    def __init__(self, arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
        super().__init__(arrays)
        self.metadata: Dict[str, str] = dict(metadata)


def pack(array: Any) -> Dict[str, Any]:
    """An array as requests have it: base64 with shape and dtype. Half precision stays, all else becomes f32."""
    array = np.asarray(array)
    dtype = "f16" if array.dtype == np.float16 else "f32"
    data = np.ascontiguousarray(array, _PACKED[dtype]).tobytes()
    return {"data": base64.b64encode(data).decode("ascii"), "shape": list(array.shape), "dtype": dtype}


def unpack(packed: Mapping[str, Any]) -> Array:
    """The array of an object with `data`, `shape` and `dtype`, as responses have it. Numbers in a list are f32."""
    try:
        data, shape = packed["data"], tuple(packed["shape"])
        if not isinstance(data, str):
            return np.asarray(data, np.float32).reshape(shape)
        dtype = _PACKED[packed.get("dtype", "f32")]
        array: Array = np.frombuffer(base64.b64decode(data, validate=True), dtype).reshape(shape)
        return array.copy()
    except (KeyError, TypeError, ValueError) as error:
        raise BenchError(f"an array within JSON is damaged: {error!r}") from error


def load(source: Union[str, "os.PathLike[str]", bytes]) -> Arrays:
    """Reads a safetensors or NPZ file: its path, or its bytes.

    Elements of type bf16 become f32. Raises `BenchError` if the file is neither or is damaged.
    """
    if isinstance(source, bytes):
        return _read(io.BytesIO(source), len(source))
    with open(source, "rb") as file:
        return _read(file, os.fstat(file.fileno()).st_size)


def _read(file: BinaryIO, size: int) -> Arrays:
    try:
        is_zip = file.read(4) == b"PK\x03\x04"
        file.seek(0)
        return _npz(file) if is_zip else _safetensors(file, size)
    except _DAMAGE as error:
        raise BenchError(f"neither a sound safetensors file nor an NPZ archive: {error}") from error


def _npz(file: BinaryIO) -> Arrays:
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        texts = json.loads(archive.read("metadata.json")) if "metadata.json" in names else {}
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        own = {name[: -len(".npy")]: np.asarray(arrays[name]) for name in names if name.endswith(".npy")}
    return Arrays(own, texts)


def _safetensors(file: BinaryIO, size: int) -> Arrays:
    n_header = int.from_bytes(file.read(8), "little")
    if n_header > min(size - 8, _MAX_HEADER):
        raise ValueError(f"a header of {n_header} bytes in a file of {size}")
    header = json.loads(file.read(n_header))
    data_at, n_data = 8 + n_header, size - 8 - n_header
    metadata = header.pop("__metadata__", {})
    arrays: Dict[str, Array] = {}
    for name, entry in header.items():
        dtype, shape = _SAFETENSORS[entry["dtype"]], tuple(int(n) for n in entry["shape"])
        begin, end = (int(at) for at in entry["data_offsets"])
        n_bytes = dtype.itemsize
        for n in shape:
            n_bytes *= n
        if min(shape, default=0) < 0 or not 0 <= begin <= end <= n_data or end - begin != n_bytes:
            raise ValueError(f"array `{name}` of shape {list(shape)} has bytes {begin} to {end} of {n_data}")
        file.seek(data_at + begin)
        array = np.frombuffer(file.read(n_bytes), dtype).reshape(shape)
        if entry["dtype"] == "BF16":
            arrays[name] = (array.astype("<u4") << 16).view("<f4")
        else:
            arrays[name] = array.copy()
    return Arrays(arrays, metadata)
