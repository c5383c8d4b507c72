"""Model files of goldens, written anew with other metadata or more tensors. Needs numpy and gguf."""

from pathlib import Path

import gguf
import numpy as np


class Gguf:
    """A model file whose metadata can be written anew."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
        # Value, type and type of the elements.
        self.values = {name: (field.contents(), field.types[0], field.types[-1]) for name, field in fields.items()}
        self.arch, *_ = self.values.pop("general.architecture")
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}

    def own(self):
        """Values of the architecture, by keys without its name."""
        prefix = self.arch + "."
        return {key.removeprefix(prefix): value for key, (value, *_) in self.values.items() if key.startswith(prefix)}

    def write(self, path, change, zeros=()):
        """Writes the file with the change applied, and with more tensors of zeros in f32: pairs of a name and the
        name of a tensor of the same shape."""
        part = Path(f"{path}.part")  # `path` may be the file whose tensors are read
        writer = gguf.GGUFWriter(part, self.arch)
        changed = {f"{self.arch}.{key}": (value, *types_of(value)) for key, value in change.items()}
        for key, (value, *types) in (self.values | changed).items():
            if value is not None:
                writer.add_key_value(key, value, *types)
        for name, tensor in self.tensors.items():
            writer.add_tensor(name, tensor.data, raw_dtype=tensor.tensor_type)
        for name, like in zeros:
            writer.add_tensor(name, np.zeros(self.tensors[like].shape[::-1], np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        part.replace(path)


def types_of(value):
    """The types that a value of Python has in a file: its own, and that of its elements."""
    kinds = gguf.GGUFValueType
    if isinstance(value, list):
        return kinds.ARRAY, types_of(value[0])[0]
    names = {bool: kinds.BOOL, int: kinds.UINT32, float: kinds.FLOAT32, str: kinds.STRING}
    return names.get(type(value)), None


def add_unread(path, tensors):
    """Adds tensors to every layer that llama.cpp insists on and does not compute with."""
    file = Gguf(path)
    layers = range(file.own()["block_count"])
    name = "blk.{}.{}.weight".format
    file.write(path, {}, [(name(il, of), name(il, like)) for il in layers for of, like in tensors.items()])
