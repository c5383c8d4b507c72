"""Classes whose code lies in published folders and not in transformers: what their tensors are called, and
what computes the same from those tensors: a class of transformers with the tensors in another order, or, where
none is equal (`formulas`), the published formulas in PyTorch.

Used by scripts/make_hf_goldens.py for cases with `remote`. `layout` gives names and shapes of the stored
tensors for a published configuration, `reference` the model. Both follow the code that the publishers ship
with their folders. Needs torch and transformers.
"""

from . import decoders, dense, encoders, experts, latent, recurrent, uneven  # noqa: F401  (they register their classes)
from .base import CLASSES

__all__ = ["CLASSES"]
