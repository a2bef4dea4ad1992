"""`torch.multiprocessing`: Python's own, by whose names programs start processes.

Tensors pass its queues as copies. What shares memory between processes is not here.
"""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("multiprocessing"), name)
