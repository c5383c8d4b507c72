"""Arrays as bytes, without a server."""

from __future__ import annotations

import io
import json
import tempfile
import unittest
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
from support import safetensors

from lab_bench import BenchError, load, pack, unpack
from lab_bench.arrays import Array


class Json(unittest.TestCase):
    def test_what_is_packed_is_unpacked(self) -> None:
        numbers = np.arange(12).reshape(3, 4) / 8
        for dtype, name in [(np.float32, "f32"), (np.float16, "f16"), (np.float64, "f32"), (np.int64, "f32")]:
            array = numbers.astype(dtype)
            packed = pack(array.T)
            self.assertEqual((packed["dtype"], packed["shape"]), (name, [4, 3]))
            np.testing.assert_array_equal(unpack(packed), array.T.astype(np.float32))

    def test_numbers_in_a_list_are_an_array(self) -> None:
        found = unpack({"data": [1, 2, 3, 4], "shape": [2, 2]})
        np.testing.assert_array_equal(found, np.array([[1, 2], [3, 4]], np.float32))

    def test_damage_is_an_error(self) -> None:
        good = pack(np.zeros(4))
        changes: List[Dict[str, Any]] = [
            {"shape": [5]},
            {"dtype": "f8"},
            {"data": "%%%"},
            {"data": "AAA="},
            {"shape": 4},
        ]
        for change in changes:
            with self.subTest(change), self.assertRaises(BenchError):
                unpack({**good, **change})
        with self.assertRaises(BenchError):
            unpack({"data": ""})


class Files(unittest.TestCase):
    def test_safetensors_are_read(self) -> None:
        halves = np.array([0x3F80, 0xC040], np.uint16)
        wanted: Dict[str, Array] = {
            "a": np.arange(6, dtype=np.float32).reshape(2, 3),
            "b": np.array([7, -8], np.int32),
            "none": np.zeros((0, 4), np.float16),
        }
        content = safetensors({**wanted, "halves": halves})
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "file"
            path.write_bytes(content)
            for found in [load(path), load(str(path)), load(content)]:
                for name, array in wanted.items():
                    self.assertEqual(found[name].dtype, array.dtype)
                    np.testing.assert_array_equal(found[name], array)
                np.testing.assert_array_equal(found["halves"], np.array([1, -3], np.float32))
                self.assertEqual(found.metadata, {"made by": "a test"})

    def test_npz_is_read(self) -> None:
        file = io.BytesIO()
        np.savez(file, a=np.arange(3), b=np.eye(2))
        found = load(file.getvalue())
        np.testing.assert_array_equal(found["a"], np.arange(3))
        np.testing.assert_array_equal(found["b"], np.eye(2))
        self.assertEqual((sorted(found), found.metadata), (["a", "b"], {}))

    def test_objects_are_not_unpickled(self) -> None:
        file = io.BytesIO()
        np.savez(file, a=np.array([{}], object))
        with self.assertRaises(BenchError):
            load(file.getvalue())

    def test_damage_is_an_error(self) -> None:
        def of(entry: object) -> bytes:
            head = json.dumps({"a": entry}).encode()
            return len(head).to_bytes(8, "little") + head + bytes(16)

        good = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
        self.assertEqual(load(of(good))["a"].shape, (4,))
        damaged: List[Dict[str, Any]] = [
            {"shape": [5]},
            {"shape": [-2, -2]},
            {"shape": 4},
            {"shape": ["x"]},
            {"shape": [float("inf")]},
            {"shape": [0, 1 << 70], "data_offsets": [0, 0]},
            {"shape": [1 << 62, 4]},
            {"dtype": "F4"},
            {"data_offsets": [4, 20]},
            {"data_offsets": [16, 0]},
            {"data_offsets": [0]},
            {"data_offsets": None},
        ]
        contents = [of({**good, **change}) for change in damaged]
        contents += [b"", b"abc", b"PK\x03\x04 and no more", (1 << 60).to_bytes(8, "little"), of(good)[:-1]]
        contents += [of([]), of(None), b"\x02" + bytes(7) + b"[]", b"\x04" + bytes(7) + b"nope"]
        for content in contents:
            with self.subTest(content), self.assertRaises(BenchError):
                load(content)


if __name__ == "__main__":
    unittest.main()
