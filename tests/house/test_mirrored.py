"""Each module of the compiler's rooms has its tests in the file that mirrors it."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from tests.house.source import Source, assert_none, sources

ROOMS = ("kernel", "schedule", "graph", "engine")


def mirror(module: Path) -> Path:
    """baregrad/kernel/loops/guards.py -> tests/kernel/loops/test_guards.py."""
    return Path("tests", *module.parts[1:-1], f"test_{module.name.lstrip('_')}")


def unmirrored(modules: Iterable[Source], tests: Collection[Path]) -> Iterator[str]:
    """The modules that have code of their own and no test in the file that mirrors them."""
    for source in modules:
        if source.path.name != "__init__.py" and has_code(source.tree):
            wanted = mirror(source.path)
            if wanted not in tests:
                yield f"{source.name} has no tests in {wanted}"


def has_code(tree: ast.Module) -> bool:
    """Whether a module is more than its docstring, imports and the names that it passes on."""
    return any(
        not isinstance(node, ast.Import | ast.ImportFrom | ast.Expr) and not is_exports(node)
        for node in tree.body
    )


def is_exports(node: ast.stmt) -> bool:
    """Whether a statement is `__all__ = ...`."""
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"


def has_tests(source: Source) -> bool:
    return any(
        isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        for node in ast.walk(source.tree)
    )


def test_every_module_has_tests_of_its_own() -> None:
    modules = [source for room in ROOMS for source in sources(f"baregrad/{room}")]
    assert len(modules) > 150
    tests = {source.path for room in ROOMS for source in sources(f"tests/{room}")
             if has_tests(source)}  # fmt: skip
    assert_none(unmirrored(modules, tests))


def planted(name: str, text: str) -> Source:
    return Source(Path(name), text, ast.parse(text))


def test_a_module_without_tests_is_found() -> None:
    code = '"""Says one."""\n\nimport os\n\n\ndef one() -> int:\n    return 1\n'
    passed_on = '"""Names."""\n\nfrom os import path\n\n__all__ = ["path"]\n'
    modules = [
        planted("baregrad/kernel/loops/planted.py", code),
        planted("baregrad/kernel/loops/guards.py", code),
        planted("baregrad/engine/_hidden.py", code),
        planted("baregrad/graph/__init__.py", code),
        planted("baregrad/graph/names.py", passed_on),
        planted("baregrad/graph/table.py", "TABLE = {1: 2}\n"),
    ]
    tests = {Path("tests/kernel/loops/test_guards.py"), Path("tests/engine/test_hidden.py"),
             Path("tests/kernel/test_planted.py"), Path("tests/graph/table.py")}  # fmt: skip
    assert list(unmirrored(modules, tests)) == [
        "baregrad/kernel/loops/planted.py has no tests in tests/kernel/loops/test_planted.py",
        "baregrad/graph/table.py has no tests in tests/graph/test_table.py",
    ]
    assert not has_tests(planted("tests/graph/test_table.py", "def helper() -> None: ...\n"))
