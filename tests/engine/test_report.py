"""What `DEBUG` shows: kernels with their times and the user's lines, then more and more."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import pytest

from baregrad.base.options import options
from baregrad.engine.session import Session, use_session
from baregrad.ir.algebra.rewrite import RuleSet, watched
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.tensor.jit.jit import jit
from baregrad.tensor.tensor import Tensor

LINE = re.compile(
    r"^(\S+) +([\d.]+) us +([\d.]+) GFLOP/s +([\d.]+) GB/s  (\S*)$", re.MULTILINE
)


def line_of(function: Any, text: str) -> str:
    """file:line of the one line of a function that holds a text."""
    lines, first = inspect.getsourcelines(function)
    (found,) = (number for number, line in enumerate(lines, first) if text in line)
    return f"{inspect.getsourcefile(function)}:{found}"


def shown(capsys: pytest.CaptureFixture[str], level: int, function: Any) -> str:
    capsys.readouterr()
    with use_session(Session()), options.override(debug=level):
        function()
    return capsys.readouterr().err


def small() -> None:
    (Tensor(np.ones((5, 7), np.float32)) * 3).sum().item()


def test_every_kernel_has_the_line_that_asked_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    def program() -> None:
        x = Tensor.rand(24, 16)
        w = Tensor(np.ones((16, 8), np.float32)).exp().contiguous()
        y = (x @ w).relu()
        y.max(0).values.numpy()

    found = LINE.findall(shown(capsys, 1, program))
    places = [where for *_, where in found]
    assert places[0] == line_of(program, "rand(")
    assert places[1] == line_of(program, "exp()")
    assert places[2] == line_of(program, "x @ w")


def test_a_replays_kernels_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    def step(x: Tensor) -> Tensor:
        return (x * x).sum(1)

    jitted = jit(step)

    def program() -> None:
        x = Tensor(np.ones((33, 5), np.float32))
        for _ in range(4):
            jitted(x)

    found = LINE.findall(shown(capsys, 1, program))
    assert jitted.replays == 2
    wanted = [("reduce_33_5", line_of(step, "return"))] * 4
    assert [(name, where) for name, *_, where in found] == wanted
    assert all(float(time) > 0 for _, time, *_ in found)


def test_levels_show_what_they_promise(capsys: pytest.CaptureFixture[str]) -> None:
    told = [shown(capsys, level, small) for level in range(7)]
    assert told[0] == ""
    assert LINE.fullmatch(told[1].strip())
    signs = {2: "Schedule(", 3: "define void @reduce_5x7", 4: "-- prepare: ", 5: "sums: REDUCE"}
    for level, text in enumerate(told):
        assert len(LINE.findall(text)) == min(level, 1)
        for least, sign in signs.items():
            assert (sign in text) == (level >= least), (level, sign)
    # Machine code: the return of a function, as an instruction of its own.
    code = [re.search(r"^\s*retq?$", text, re.MULTILINE) is not None for text in told]
    assert code == [*[False] * 6, True]


def test_watchers_hear_of_rules_inside_the_block_alone() -> None:
    from baregrad.ir.algebra.wrapping import INTEGER_RULES

    rule = INTEGER_RULES[0]
    before = rule.before
    heard: list[tuple[str, Node]] = []
    rules = RuleSet("one", (rule,))
    with watched(lambda rule, old, new: heard.append((rule.name, old))):
        rules.rewrite(before)
    rules.rewrite(before)
    assert heard and heard[0][0] == rule.name
    assert before.op in (heard[0][1].op, Ops.SINK) and len(heard) < 8


def test_passes_that_replace_nothing_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    def program() -> None:
        (Tensor(np.ones(5, np.float32)) + Tensor(np.ones(5, np.float32))).realize()

    assert "the passes over the graph replace nothing" in shown(capsys, 5, program)
    assert "replace nothing" not in shown(capsys, 4, program)
    assert "replace nothing" not in shown(capsys, 5, small)


def test_debug_tells_the_schedule_and_why(capfd: pytest.CaptureFixture[str]) -> None:
    with options.override(debug=2, cache=False, device="CPU"):
        # A size that no other test uses, so that it is compiled here.
        (Tensor(np.ones(7919, np.float32)) * 3).realize()
    told = capfd.readouterr().err
    assert re.search(r"map_7919 = Schedule\(split\(", told)
    assert "  - vectors of up to" in told
    assert re.search(r"map_7919 .* GB/s", told)
