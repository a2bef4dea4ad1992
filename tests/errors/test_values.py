"""Misuse of gradients, of writing in place, of jit, of modules and of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from baregrad.base.errors import (
    ArgumentError,
    DTypeError,
    FileFormatError,
    GradientError,
    IndexOutOfRange,
    JitError,
    ShapeError,
)
from tests.errors.harness import Case, check, one

GRADIENTS = (
    one("v.sum().backward()", GradientError, "does not depend on any", "requires_grad_()"),
    one("(g * 2).backward()", ShapeError, "found shape [2]", "wanted a scalar", "sum()"),
    one("i.backward()", DTypeError, "found dtype int64", "float()"),
    one("i.requires_grad_()", GradientError, "found dtype int64", "cast it first"),
    one("(g * 2).backward(Tensor([1.0]))", ShapeError, "found [1]", "wanted [2]"),
    one("(g * 2).sum().gradient(v)", GradientError, "tensor 0", "requires_grad_()"),
    one("(g * 2).sum().gradient(Tensor([1.0], requires_grad=True))", GradientError,
        "not reached", "allow_unused=True"),
    one("g.grad = v[:1]", ShapeError, "a gradient has the shape", "found [1]", "wanted [2]"),
    one("g.grad = 3", DTypeError, "a gradient is a tensor", "int 3"),
    one("g.grad = i", DTypeError, "a gradient has the dtype", "int64", "wanted float32"),
)
IN_PLACE = (
    one("g += 1.0", GradientError, "changed in place", "no_grad", "clone()"),
    one("i += 1.5", DTypeError, "higher category", "float32 into int", "value.int()"),
    one("v.expand(3, 2).add_(1.0)", ShapeError, "more than once", "clone()"),
    one("x[0] = v", ShapeError, "does not broadcast", "found [2]", "wanted [3]"),
    one("x[0] = 'a'", DTypeError, "not an operand", "str 'a'"),
    one("x[5] = 1.0", IndexOutOfRange,
        "index 5", "-2 to 1"),
    one("x.assign(v)", ShapeError, "does not broadcast", "found [2]", "wanted [2, 3]"),
)
JIT = (
    Case("jit reads a value", """
        f = jit(lambda a: a * a.sum().item())  #!
        f(v)
        f(v)
        """, JitError, ("item()", "a replay would use the old", "return the tensor")),
    Case("jit branches on a tensor", """
        f = jit(lambda a: a if a.sum() > 0 else -a)  #!
        f(v)
        f(v)
        """, JitError, ("if on", "where()")),
    Case("jit gets what cannot be compared", """
        f = jit(lambda a, b: a + 1)
        f(v, {1, 2})  #!
        """, JitError, ("a set", "lists, tuples, dicts", "pass arrays as tensors")),
    Case("jit of a function that counts", """
        count = [0]
        def f(a):
            count[0] += 1
            return a * count[0]
        f = jit(f)
        f(v)
        f(v)  #!
        """, JitError, ("count", "at every call", "in a tensor")),
    Case("jit of fresh host data", """
        import itertools
        numbers = itertools.count()
        f = jit(lambda a: a + Tensor([float(next(numbers)), 2.0]))
        f(v)
        f(v)  #!
        """, JitError, ("pass",)),
    Case("jit of a value", "f = jit(v.sum())  #!", JitError, ("captures functions", "jit(f)")),
)
MODULES = (
    one("from baregrad import nn; nn.Linear(-1, 2)", ShapeError, "widths", "-1, 2"),
    one("from baregrad import nn; nn.Linear(3, 4)(v)", ShapeError, "[2]", "[3, 4]", "transpose"),
    one("from baregrad import nn; nn.Linear(3, 4).load_state_dict({})", ShapeError,
        "missing: weight, bias", "strict=False"),
    one("from baregrad import nn; nn.Linear(3, 4).load_state_dict({'weight': 3, 'bias': 4})",
        DTypeError, "no tensor at 'weight'", "int 3", "Tensor("),
    one("from baregrad import nn; nn.Dropout(1.5)", ArgumentError, "from 0 to 1", "1.5"),
    one("from baregrad import nn; nn.Sequential(3)", ArgumentError,
        "a module or a function", "int 3"),
    one("from baregrad import optim; optim.SGD([], lr=0.1)", ShapeError, "wants parameters"),
    one("from baregrad import optim; optim.SGD([g], lr=-1)", ArgumentError, "from 0 on", "-1"),
)
FILES = (
    Case("an empty file", """
        from baregrad.io.tensors import safe_load
        (folder / "a").write_bytes(b"")
        safe_load(folder / "a")  #!
        """, FileFormatError, ("too short", "found 0 bytes", "fetch or save it again")),
    Case("a header that claims everything", """
        from baregrad.io.tensors import safe_load
        (folder / "a").write_bytes(bytes([255] * 8) + b"{}")
        safe_load(folder / "a")  #!
        """, FileFormatError, ("header too long", "in a file of 10", "fetch or save it again")),
    Case("a folder for a file", """
        from baregrad.io.tensors import safe_load
        safe_load(folder)  #!
        """, FileFormatError, ("cannot be mapped", "a folder", "the path of the file")),
    Case("no checkpoint", """
        from baregrad.io.tensors import load_torch
        (folder / "a.pt").write_bytes(b"garbage")
        load_torch(folder / "a.pt")  #!
        """, FileFormatError, ("not a PyTorch checkpoint", "b'garbage'", "torch.save")),
    Case("a checkpoint that runs code", """
        import os, pickle, zipfile
        from baregrad.io.tensors import load_torch
        class Trap:
            def __reduce__(self):
                return os.system, ("true",)
        with zipfile.ZipFile(folder / "a.pt", "w") as file:
            file.writestr("archive/data.pkl", pickle.dumps(Trap(), protocol=2))
        load_torch(folder / "a.pt")  #!
        """, FileFormatError, ("system",)),
    Case("half a zip archive", """
        from baregrad.io.tensors import load_torch
        (folder / "a.pt").write_bytes(b"PK" + bytes([3, 4]) + b"junk")
        load_torch(folder / "a.pt")  #!
        """, FileFormatError, ("no end", "found no end record", "fetch or save it again")),
    Case("what is no tensor is saved", """
        from baregrad.io.tensors import safe_save
        safe_save({"a": 3}, folder / "a")  #!
        """, DTypeError, ("'a' is no tensor", "int 3", "Tensor(")),
)


@pytest.mark.parametrize(
    "case", (*GRADIENTS, *IN_PLACE, *JIT, *MODULES, *FILES), ids=str
)
def test_the_message_says_what_was_found_and_what_to_do(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)
