"""Client of Inference Lab Bench: read and change values inside a language model, as NumPy arrays.

    from lab_bench import Client, edits

    client = Client()                                   # bench serve
    clean = client.run("The sea is", captures=["layers.*.out"])
    clean["layers.3.out"]                               # an array [positions, width]
    client.complete("The sea is", edits=[edits.zero("layers.1.attn.heads", heads=[2])]).text
"""

from importlib.metadata import version

from . import edits
from .arrays import Arrays, load, pack, unpack
from .client import Artifacts, Client, Vectors
from .errors import APIError, BenchError, TransportError
from .plan import Capture, Edit, Lab, Lens, capture
from .results import (
    Artifact,
    Attribution,
    Captured,
    Grid,
    LensRow,
    Point,
    Result,
    Stored,
    Target,
    Token,
)

__version__ = version("inference-lab-bench")

__all__ = [
    "APIError",
    "Arrays",
    "Artifact",
    "Artifacts",
    "Attribution",
    "BenchError",
    "Capture",
    "Captured",
    "Client",
    "Edit",
    "Grid",
    "Lab",
    "Lens",
    "LensRow",
    "Point",
    "Result",
    "Stored",
    "Target",
    "Token",
    "TransportError",
    "Vectors",
    "capture",
    "edits",
    "load",
    "pack",
    "unpack",
]
