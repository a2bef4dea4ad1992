"""Who may import whom: a room imports lower ranks or itself only."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

import pytest

from tests.house.source import (
    PACKAGE,
    Source,
    assert_none,
    imported_modules,
    is_type_checking,
    sources,
    statements_at_import,
)

RANKS = {
    "base": 0,
    "dtypes": 1, "target": 1,
    "program": 2,
    "ir": 3,
    "graph": 4, "schedule": 4, "kernel": 4, "render": 4, "assemble": 4, "runtime": 4,
    "engine": 5,
    "tensor": 6, "profiling": 6, "func": 6.5, "fft": 7, "special": 7,
    "linalg": 7, "nn": 7, "optim": 7.1, "io": 7, "data": 7,
    "": 7.5, "array_api": 8, "autograd": 8, "distributions": 8,
    "amp": 8, "utils": 8, "cuda": 8.1,
    "llm": 8, "bridges": 8,
    "apps": 9, "cli": 9, "testing": 9, "trace": 9, "viz": 9, "__main__": 10,
}
# Beyond the ranks: a kernel is lowered by a schedule, which is a value of that room.
ALLOWED = {("kernel", "schedule")}
# A runtime takes bytes and launches, whatever its rank would let it see.
FORBIDDEN = {("runtime", "ir")}
# The package's face names what every room offers.
FACE = "baregrad"

# The only packages from outside that a module may import at its top.
ALWAYS_THERE = frozenset(sys.stdlib_module_names) | {"numpy", "baregrad"}
# Those that functions may import when they need them.
LATE = {
    "llvmlite", "tokenizers", "elftools", "sklearn", "torch", "functorch",
    "jinja2", "llguidance", "llama_cpp", "starlette", "uvicorn", "lm_eval", "ray",
    "ml_dtypes", "einops",
}


def room_of(module: str) -> str:
    """Return the room of a dotted name in the package; the package's own face is ``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in RANKS else ""


def breaches(source: Source) -> Iterator[str]:
    """Yield each import of a file that its room may not make."""
    here = room_of(source.module)
    for line, name in imported_modules(source):
        if name.split(".")[0] != "baregrad":
            continue
        there = room_of(name)
        if there == "" and name != FACE and name.rpartition(".")[0] == FACE:
            # `from baregrad import x`, of which `baregrad` itself was looked at already.
            continue
        if here == there or (here, there) in ALLOWED:
            continue
        if RANKS[there] >= RANKS[here] or (here, there) in FORBIDDEN:
            yield f"{source.name}:{line}: {here or 'the face'} imports {name}"


def test_every_room_has_a_rank_and_every_rank_a_room() -> None:
    found = {
        path.stem
        for path in PACKAGE.iterdir()
        if (path.is_dir() and any(path.glob("*.py"))) or path.suffix == ".py"
    }
    assert found - {"__init__"} <= set(RANKS)
    assert set(RANKS) - {""} <= found


def test_rooms_import_lower_ranks_or_themselves() -> None:
    assert_none(breach for source in sources() for breach in breaches(source))


def outside_imports(nodes: Iterator[ast.stmt] | list[ast.stmt]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.lineno, (node.module or "").split(".")[0]


def test_optional_packages_are_imported_late() -> None:
    found = []
    for source in sources():
        hidden = {
            id(inner)
            for node in statements_at_import(source.tree)
            if is_type_checking(node)
            for inner in ast.walk(node)
        }
        at_top = [node for node in statements_at_import(source.tree) if id(node) not in hidden]
        found += [
            f"{source.name}:{line}: {name}"
            for line, name in outside_imports(at_top)
            if name not in ALWAYS_THERE
        ]
    assert_none(found)


def test_no_other_package_is_imported_at_all() -> None:
    found = [
        f"{source.name}:{line}: {name}"
        for source in sources()
        for line, name in imported_modules(source)
        if name.split(".")[0] not in ALWAYS_THERE | LATE
    ]
    assert_none(found)


def reads_environment(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
        return node.value.id == "os" and node.attr in names
    if isinstance(node, ast.ImportFrom) and node.module == "os":
        return any("env" in alias.name for alias in node.names)
    return False


def test_the_environment_is_read_in_one_file() -> None:
    found = [
        f"{source.name}:{getattr(node, 'lineno', 0)}"
        for source in sources()
        if source.name != "baregrad/base/options.py"
        for node in ast.walk(source.tree)
        if reads_environment(node)
    ]
    assert_none(found)


def example(module: str, text: str) -> Source:
    path = PACKAGE.parent.joinpath(*module.split(".")).relative_to(PACKAGE.parent)
    return Source(path.with_suffix(".py"), text, ast.parse(text))


@pytest.mark.parametrize("module,text,allowed", [
    ("baregrad.ir.core.node", "from baregrad.base.errors import ShapeError", True),
    ("baregrad.ir.core.node", "from baregrad.ir.core.op import Ops", True),
    ("baregrad.ir.core.node", "from .op import Ops", True),
    ("baregrad.ir.core.node", "from ...tensor import Tensor", False),
    ("baregrad.ir.core.node", "import baregrad.engine.realize", False),
    ("baregrad.ir.core.node", "def f():\n    from baregrad.tensor import Tensor", False),
    ("baregrad.ir.core.node", "if TYPE_CHECKING:\n    from baregrad.tensor import Tensor", False),
    ("baregrad.ir.core.node", "import baregrad", False),
    ("baregrad.ir.core.node", "from baregrad import tensor", False),
    ("baregrad.kernel.lowering", "from baregrad.schedule.value import Schedule", True),
    ("baregrad.schedule.fusing.fuse", "from baregrad.kernel.lowering import lower", False),
    ("baregrad.runtime.queue", "from baregrad.ir.core.node import Node", False),
    ("baregrad.nn.layers", "from baregrad.optim import SGD", False),
    ("baregrad.apps.demo", "from baregrad import Tensor", True),
    ("baregrad.apps.demo", "import numpy, baregrad.nn", True),
])
def test_the_rule_itself(module: str, text: str, allowed: bool) -> None:
    assert (list(breaches(example(module, text))) == []) is allowed
