"""Objects as bytes between processes of one run, which trust each other."""

from __future__ import annotations

import io
import pickle
from typing import Any


def unpickle(content: bytes) -> Any:
    """What pickle wrote. Tensors too, for which `pickle.loads` prints a warning of eight lines of torch 2.4 and 2.5."""
    return _Unpickler(io.BytesIO(content)).load()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """As pickle's own, but storages are read as torch 2.6 reads them."""
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return _read_storage
        return super().find_class(module, name)


def _read_storage(content: bytes) -> Any:
    import torch  # reports of ranks can be read without it

    return torch.load(io.BytesIO(content), weights_only=False)
