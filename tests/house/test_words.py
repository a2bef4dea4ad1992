"""Names say what things are, and no module keeps state that belongs to somebody."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.house.source import Source, assert_none, functions, sources, statements_at_import

MUTABLE_CALLS = {
    "dict", "list", "set", "bytearray", "defaultdict", "OrderedDict", "Counter", "deque", "array",
}
MUTABLE_NODES = ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp
# `__all__` is a list by custom, and nothing ever changes it.
CUSTOMARY = {"__all__"}

EMPTY_NAMES = {"utils", "util", "utilities", "misc", "helpers", "helper", "common", "stuff"}
# A digit at the end says "the second try", except where it is part of the field's own term.
SECOND_TRY = re.compile(r"[a-z_]2$|_v\d+$|_(new|old)$|^(new|old)$")
TERMS = {
    "log2", "exp2", "chi2", "atan2", "arctan2", "l2", "sse2", "avx2", "e5m2", "logaddexp2",
    "powers_of_2",
    "test_log2", "test_exp2", "test_atan2", "test_arctan2", "fft2", "ifft2", "rfft2", "irfft2",
    "hfft2", "ihfft2",
}


def module_state(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of each mutable table that a module makes at import."""
    for node in statements_at_import(tree):
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        if is_mutable(value):
            for target in targets:
                name = ast.unparse(target)
                if name not in CUSTOMARY:
                    yield node.lineno, name


def is_mutable(value: ast.expr) -> bool:
    if isinstance(value, MUTABLE_NODES):
        return True
    if not isinstance(value, ast.Call):
        return False
    called = value.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name in MUTABLE_CALLS


def test_no_module_keeps_a_mutable_table() -> None:
    found = [
        f"{source.name}:{line}: {name}"
        for source in sources()
        for line, name in module_state(source.tree)
    ]
    assert_none(found)


@pytest.mark.parametrize("text,count", [
    ("A = {}", 1), ("A: dict[str, int] = {'a': 1}", 1), ("A = dict(a=1)", 1),
    ("A = [i for i in b]", 1), ("if True:\n    A = []", 1), ("A = collections.deque()", 1),
    ("try:\n    pass\nexcept E:\n    A = set()", 1),
    ("A = ()", 0), ("A = MappingProxyType({'a': 1})", 0), ("def f():\n    a = {}", 0),
    ("__all__ = ['a']", 0), ("A = frozenset({1})", 0), ("A = WeakValueDictionary()", 0),
])
def test_the_rule_about_state_itself(text: str, count: int) -> None:
    assert len(list(module_state(ast.parse(text)))) == count


def named(source: Source) -> Iterator[str]:
    """Yield the names that a file brings in: its own, its functions' and its classes'."""
    yield source.path.stem
    for node in functions(source.tree):
        yield node.name
    for one in ast.walk(source.tree):
        if isinstance(one, ast.ClassDef):
            yield one.name


def is_empty_name(name: str) -> bool:
    if name.startswith("__") and name.endswith("__"):
        return False
    bare = name.lower().strip("_")
    if bare in EMPTY_NAMES:
        return True
    return bare not in TERMS and bool(SECOND_TRY.search(bare))


@pytest.mark.parametrize("folder", ["baregrad", "tests"])
def test_names_say_something(folder: str) -> None:
    found = [
        f"{source.name}: {name}"
        for source in sources(folder)
        for name in named(source)
        if is_empty_name(name)
    ]
    assert_none(found)


@pytest.mark.parametrize("name,empty", [
    ("utils", True), ("_helpers", True), ("lower2", True), ("lower_new", True), ("plan_v3", True),
    ("log2", False), ("conv2d", False), ("new_zeros", False), ("Conv2d", False), ("float32", False),
    ("__new__", False),
])
def test_the_rule_about_names_itself(name: str, empty: bool) -> None:
    assert is_empty_name(name) is empty


def test_no_module_runs_work_at_import() -> None:
    """A loop or a `with` at the top of a module is work that every import pays for."""
    found = [
        f"{source.name}:{node.lineno}"
        for source in sources()
        for node in statements_at_import(source.tree)
        if isinstance(node, ast.For | ast.While | ast.With)
    ]
    assert_none(found)
