"""The sources of the package, parsed once, for the tests of the house."""

from __future__ import annotations

import ast
import functools
import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "baregrad"
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """One file: its path from the repository's root, its text and its syntax tree."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        return self.path.as_posix()

    @property
    def module(self) -> str:
        """The dotted name that the file is imported by."""
        parts = list(self.path.with_suffix("").parts)
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources(folder: str = "baregrad") -> tuple[Source, ...]:
    """Return every Python file under a folder of the repository."""
    above, *below = Path(folder).parts
    found = _parsed(above)
    return tuple(one for one in found if one.path.is_relative_to(folder)) if below else found


@functools.cache
def _parsed(folder: str) -> tuple[Source, ...]:
    """Return every Python file under a folder at the root.

    The trees are millions of objects that live to the end: a search for garbage among them takes
    seconds, so that none goes through them, now or later.
    """
    gc.collect()
    gc.disable()
    try:
        found = []
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            found.append(Source(path.relative_to(ROOT), text, ast.parse(text, str(path))))
        return tuple(found)
    finally:
        gc.freeze()
        gc.enable()


def functions(tree: ast.AST) -> Iterator[FunctionNode]:
    """Yield every function and method, nested ones included."""
    for node in ast.walk(tree):
        if isinstance(node, FunctionNode):
            yield node


def imported_modules(source: Source) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of every import in a file, those inside functions included.

    `from a import b` yields both `a` and `a.b`, since b may be a module.
    """
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = absolute_base(source, node)
            yield node.lineno, base
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def absolute_base(source: Source, node: ast.ImportFrom) -> str:
    """Return the absolute dotted name that a `from ... import` reads."""
    if not node.level:
        return node.module or ""
    package = source.module.split(".")
    if source.path.name != "__init__.py":
        package = package[:-1]
    kept = package[: len(package) - node.level + 1]
    return ".".join([*kept, *([node.module] if node.module else [])])


def statements_at_import(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements that run when a module is imported, outside functions and classes."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        for field in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
                waiting.extend(getattr(node, field, []))
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                waiting.extend(handler.body)


def is_type_checking(node: ast.stmt) -> bool:
    """Whether a statement is `if TYPE_CHECKING:`, whose body never runs."""
    if not isinstance(node, ast.If):
        return False
    test = node.test
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def assert_none(breaches: Iterable[object]) -> None:
    """Fail with every breach on a line of its own, if there is one."""
    found = [str(one) for one in breaches]
    assert not found, "\n" + "\n".join(found)
