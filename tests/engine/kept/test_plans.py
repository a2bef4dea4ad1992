"""Plans on disk: read back as they were, found by what made them, and never trusted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from baregrad.assemble.cache import DiskCache
from baregrad.base.errors import FileFormatError
from baregrad.base.options import options
from baregrad.engine.backends import CompiledBackend
from baregrad.engine.canonical import Canonical, bind, canonicalise
from baregrad.engine.compiler import Compiler
from baregrad.engine.kept import plans as module
from baregrad.engine.kept.plans import KeptPlans, plan_from_bytes, plan_to_bytes
from baregrad.engine.session import Session
from baregrad.ir.core.index import variable
from baregrad.schedule import Plan
from baregrad.tensor import Tensor

ROWS = variable("kept_rows", 1, 40)


@pytest.fixture(autouse=True)
def _plans_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests keep none but these."""
    monkeypatch.setattr(module, "KEPT_FROM", 32)


def program_of(*results: Tensor) -> Canonical:
    return canonicalise([one.node for one in results], lambda node: None)


def backend_over(session: Session, cache: DiskCache | None) -> CompiledBackend:
    """The session's backend with a compiler of its own over a cache."""
    old = session.backend("CPU")
    assert isinstance(old, CompiledBackend)
    given = old.compiler
    fresh = Compiler(given.target, given.renderer, given.assembler, cache)
    return CompiledBackend("CPU", old.device, fresh)


def work() -> list[Tensor]:
    """Several kernels, temporaries, symbolic sizes, a monoid of its own, and state."""
    x = Tensor(np.linspace(-1, 1, 40 * 24, dtype=np.float32).reshape(40, 24)).realize()
    state = Tensor.zeros(40, 24).contiguous().realize()
    part = x[: bind(ROWS, 7)]
    scores = (part @ x.T).softmax(-1) @ x
    state[: bind(ROWS, 7)] = scores
    rows = Tensor.zeros(4000, 24).contiguous().realize()
    rows[2:9] = x[:7] * 2
    return [rows, scores, state, x.argmax(1), (x.layer_norm(24) @ x.T).sum(0), x.cumsum(0)]


def plan_without_cache(session: Session, program: Canonical, donated: dict[int, int]) -> Plan:
    return backend_over(session, None).prepare(program, donated).plan


def state_of(program: Canonical) -> dict[int, int]:
    """The first result may take the memory of what it was."""
    (slot,) = [place for place, ref in enumerate(program.inputs) if ref.shape == (4000, 24)]
    return {0: slot}


def test_a_plan_is_read_back_as_it_was(session: Session) -> None:
    program = program_of(*work())
    plan = plan_without_cache(session, program, state_of(program))
    assert len(plan.steps) > 4 and plan.over
    assert any(not isinstance(one.nbytes, int) for one in plan.buffers)
    assert any(step.part for step in plan.steps)
    back = plan_from_bytes(plan_to_bytes(plan))
    steps = tuple(step._replace(origins=()) for step in plan.steps)
    assert back == replace(plan, steps=steps)
    # Nodes are the same objects again.
    pairs = zip(back.kernels, plan.kernels, strict=True)
    assert all(found is made for found, made in pairs)


def test_a_second_process_finds_the_plan_and_its_numbers(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = program_of(*work())
    inputs = [ref.handle for ref in program.inputs]
    first = backend_over(session, DiskCache(tmp_path)).prepare(program, {})

    def refuse(*given: object) -> Plan:
        raise AssertionError("planned again")

    monkeypatch.setattr(CompiledBackend, "_plan", refuse)
    second = backend_over(session, DiskCache(tmp_path)).prepare(program, {})
    before, _ = first.run(inputs, program.variables)
    after, _ = second.run(inputs, program.variables)
    for one, other in zip(before, after, strict=True):
        assert bytes(one.as_memoryview()) == bytes(other.as_memoryview())
    # What DEBUG shows is made.
    with options.override(debug=1), pytest.raises(AssertionError, match="planned again"):
        backend_over(session, DiskCache(tmp_path)).prepare(program, {})


def test_keys_tell_programs_donations_and_sources_apart(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = KeptPlans(backend_over(session, DiskCache(tmp_path)).compiler)
    program, other = program_of(*work()), program_of(*work()[:3])
    keys = {plans.key(program, {}), plans.key(program, {1: 0}), plans.key(other, {})}
    assert len(keys) == 3 and None not in keys
    monkeypatch.setattr(module, "source_fingerprint", lambda rooms: "other planners")
    again = KeptPlans(backend_over(session, DiskCache(tmp_path)).compiler)
    assert again.key(program, {}) not in keys
    small = program_of(Tensor([1.0]).realize() + 1)
    assert plans.key(small, {}) is None
    assert KeptPlans(backend_over(session, None).compiler).key(program, {}) is None


def test_what_is_no_plan_is_refused_and_made_anew(session: Session, tmp_path: Path) -> None:
    program = program_of(*work())
    data = plan_to_bytes(plan_without_cache(session, program, {}))
    text, table = json.loads(data)
    broken = [
        b"", b"[]", b"{}", data[:-1], b"\xff",
        json.dumps(["", table]).encode(),
        json.dumps([text, table | {"steps": [[[9999], [0], [0], None]]}]).encode(),
        json.dumps([text, table | {"buffers": [["param", "no such", [], 0, 0, 0]]}]).encode(),
        json.dumps([text, {}]).encode(),
    ]  # fmt: skip
    for one in broken:
        with pytest.raises(FileFormatError):
            plan_from_bytes(one)
    cache = DiskCache(tmp_path)
    plans = KeptPlans(backend_over(session, cache).compiler)
    key = plans.key(program, {})
    assert key is not None
    cache.put(key, b"[]")
    assert plans.find(key) is None
    made = backend_over(session, cache).prepare(program, {}).plan
    assert plans.find(key) == plan_from_bytes(plan_to_bytes(made))


_COLD = """
import sys
import numpy as np
from baregrad.tensor import Tensor
x = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4))
print((x @ x.T).softmax(-1).sum(0).numpy().tobytes().hex())
makers = ("baregrad.graph", "baregrad.schedule.fusing", "baregrad.kernel",
          "baregrad.render.llvm.text")
print([name for name in makers if name in sys.modules])
"""


def test_a_process_that_finds_all_on_disk_imports_nothing_that_plans(tmp_path: Path) -> None:
    environment = {**os.environ, "BAREGRAD_CACHE_DIR": str(tmp_path)}
    told = [
        subprocess.run(
            [sys.executable, "-c", _COLD], env=environment, check=True, capture_output=True,
            text=True,
        ).stdout.splitlines()
        for _ in range(2)
    ]
    assert told[0][0] == told[1][0]
    assert "baregrad.graph" in told[0][1] and told[1][1] == "[]"
