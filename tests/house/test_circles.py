"""No file imports, by any way round, a file that imports it; and folders of a room have ranks.

Imports for type checking alone count, and those inside functions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.house.source import Source, assert_none, imported_modules, sources

# Folders of a room, each made of those before it.
RANKS_INSIDE: Mapping[str, tuple[str, ...]] = {
    "baregrad.ir": ("core", "analysis", "protocol", "text", "evaluate", "algebra", "verify"),
    "baregrad.schedule": ("facts", "drafts", "fusing"),
    "baregrad.kernel": (
        "language", "facts", "loops", "instructions", "gpu", "applying", "planning", "search",
        "legalise", "linearise",
    ),
    "baregrad.render": ("llvm", "c", "ptx"),
    "baregrad.llm": ("text", "models", "generation", "serve", "commands"),
    "baregrad.tensor": (
        "array", "autograd", "ops", "special", "composed", "families", "tensor", "complex", "jit",
    ),
    "baregrad.runtime.nvidia": ("abi", "driver", "code", "queue", "lists", "copies"),
    "baregrad.testing.virtual_gpu": ("ptx", "machine", "driver"),
}


def graph_of(files: Iterable[Source]) -> dict[str, set[str]]:
    """For each module the modules of the package that it imports."""
    files = list(files)
    modules = {source.module for source in files}
    graph: dict[str, set[str]] = {}
    for source in files:
        named = {name for _, name in imported_modules(source)} & modules - {source.module}
        graph[source.module] = {n for n in named if not _is_only_the_way(n, source, named)}
    return graph


def _is_only_the_way(name: str, source: Source, exact: set[str]) -> bool:
    """Whether a package is named for modules in it alone: `from package import module`."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and node.module == name and not node.level:
            if any(f"{name}.{alias.name}" not in exact for alias in node.names):
                return False
    return any(other.startswith(f"{name}.") for other in exact)


def circles(graph: Mapping[str, set[str]]) -> list[frozenset[str]]:
    """The groups of several modules each of which reaches all others, by Tarjan's walk."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    open_: list[str] = []
    found: list[frozenset[str]] = []
    for start in sorted(graph):
        if start in number:
            continue
        path = [(start, iter(sorted(graph[start])))]
        number[start] = low[start] = len(number)
        open_.append(start)
        while path:
            here, rest = path[-1]
            for there in rest:
                if there not in number:
                    number[there] = low[there] = len(number)
                    open_.append(there)
                    path.append((there, iter(sorted(graph[there]))))
                    break
                if there in open_:
                    low[here] = min(low[here], number[there])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[here])
                if low[here] == number[here]:
                    group = open_[open_.index(here) :]
                    del open_[open_.index(here) :]
                    if len(group) > 1:
                        found.append(frozenset(group))
    return found


def climbing(files: Iterable[Source]) -> Iterator[str]:
    """Yield each import from a folder of a room into one of a higher rank."""
    for source in files:
        for room, folders in RANKS_INSIDE.items():
            here = _folder(source.module, room)
            if here not in folders:
                continue
            for line, name in imported_modules(source):
                there = _folder(name, room)
                if there in folders and folders.index(there) > folders.index(here):
                    yield f"{source.name}:{line}: {here} imports {name}"


def _folder(module: str, room: str) -> str:
    return module[len(room) + 1 :].split(".")[0] if module.startswith(f"{room}.") else ""


def test_there_are_no_circles() -> None:
    assert_none(", ".join(sorted(group)) for group in circles(graph_of(sources())))


def test_folders_import_lower_ranks() -> None:
    assert_none(climbing(sources()))


def planted(**files: str) -> list[Source]:
    return [
        Source(Path(name.replace(".", "/") + ".py"), text, ast.parse(text))
        for name, text in files.items()
    ]


@pytest.mark.parametrize("text", [
    "from baregrad.b import x",
    "def f():\n    from baregrad.b import x",
    "if TYPE_CHECKING:\n    from baregrad.b import x",
    "from baregrad import b",
    "import baregrad.b",
])
def test_a_planted_circle_is_found(text: str) -> None:
    rest = {"baregrad.b": "from baregrad.c import y", "baregrad.c": "import baregrad.a"}
    files = planted(**{"baregrad.a": text, **rest})
    assert circles(graph_of(files)) == [frozenset(("baregrad.a", "baregrad.b", "baregrad.c"))]
    assert circles(graph_of(files[1:])) == []


def test_a_planted_climb_is_found() -> None:
    text = "def f():\n    from baregrad.ir.text.dump import dump"
    up = planted(**{"baregrad.ir.core.node": text})
    down = planted(**{"baregrad.ir.text.dump": "from baregrad.ir.core.node import Node"})
    assert list(climbing(up)) and not list(climbing(down))
