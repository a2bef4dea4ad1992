"""What threads do together: shuffles, reductions at barriers, atomics, against plain loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from baregrad.testing.virtual_gpu.ptx.memory import PtxMemory
from baregrad.testing.virtual_gpu.ptx.program import PtxModule
from tests.testing.virtual_gpu.ptx_cases import COUNT, NUMPY
from tests.testing.virtual_gpu.test_ptx_arithmetic import run

RANDOM = np.random.default_rng(11)
LANES = np.arange(COUNT)


def words(low: int = 0, high: int = 2**32) -> Any:
    return RANDOM.integers(low, high, COUNT).astype(np.uint32)


SHUFFLES: list[tuple[str, int, Callable[[int, int], int]]] = [
    ("up", 0x1800, lambda lane, by: lane - by),
    ("down", 0x181F, lambda lane, by: lane + by),
    ("bfly", 0x181F, lambda lane, by: lane ^ by),
    ("idx", 0x181F, lambda lane, by: lane // 8 * 8 + by),
]


@pytest.mark.parametrize("mode,clamp,source", SHUFFLES, ids=[row[0] for row in SHUFFLES])
def test_shuffles_of_eight_lanes(mode: str, clamp: int, source: Callable[[int, int], int]) -> None:
    values, by = words(), words(0, 8)
    found = run(f"shfl.sync.{mode}.b32 r, a, b, {clamp}, -1;", ["u32", "u32"], "u32", [values, by])
    wanted = []
    for thread in range(COUNT):
        other = source(thread, int(by[thread]))
        wanted.append(values[other if other // 8 == thread // 8 and other >= 0 else thread])
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("body,fold", [
    ("bar.red.popc.u32 r, 0, p;", lambda yes: yes.sum()),
    ("bar.red.and.pred q, 0, p; selp.u32 r, 1, 0, q;", lambda yes: int(yes.all())),
    ("barrier.red.or.pred q, 0, !p; selp.u32 r, 1, 0, q;", lambda yes: int((~yes).any())),
    ("vote.sync.ballot.b32 r, p, -1; bar.sync 0;", None),
    ("elect.sync r|q, -1; @!q mov.u32 r, 77;", "elect"),
    ("redux.sync.min.u32 r, a, -1;", "min"),
])
def test_folds_of_predicates(body: str, fold: Any) -> None:
    values = words(0, 100)
    found = run(f"setp.lt.u32 p, a, 50; {body}", ["u32"], "u32", [values])
    yes = values < 50
    if fold == "elect":
        wanted = np.where(LANES % 32 == 0, 0, 77)
    elif fold == "min":
        wanted = np.repeat(values.reshape(-1, 32).min(axis=1), 32)
    elif fold is None:
        bits = (yes.reshape(-1, 32) * (1 << np.arange(32, dtype=np.uint64))).sum(axis=1)
        wanted = np.repeat(bits, 32)
    else:
        wanted = np.full(COUNT, fold(yes))
    np.testing.assert_array_equal(found, np.asarray(wanted).astype(np.uint32))


ATOMICS: list[tuple[str, Callable[[int, int], int]]] = [
    ("add.u32", lambda old, v: old + v & 0xFFFFFFFF),
    ("min.u32", min),
    ("max.u32", max),
    ("and.b32", lambda old, v: old & v),
    ("or.b32", lambda old, v: old | v),
    ("xor.b32", lambda old, v: old ^ v),
    ("exch.b32", lambda old, v: v),
    ("inc.u32", lambda old, v: 0 if old >= v else old + 1),
    ("dec.u32", lambda old, v: v if old == 0 or old > v else old - 1),
]


def atomics(operation: str, values: Any, slots: Any, start: Any, space: str) -> tuple[Any, Any]:
    """Each thread applies its value to its slot of eight; return (what each saw, the slots)."""
    nbytes = start.dtype.itemsize
    bits = 8 * nbytes
    text = f"""
.visible .entry f(.param .u64 pv, .param .u64 ps, .param .u64 pt, .param .u64 po) {{
.reg .b32 t, s, at, base; .reg .b64 a, o, b; .reg .b{bits} v; .reg .pred p;
.shared .align 8 .b8 mine[64];
mov.u32 t, %tid.x; mul.wide.u32 o, t, {nbytes}; mov.u32 base, mine;
ld.param.u64 b, [pt]; add.u64 a, b, o; mad.lo.u32 at, t, {nbytes}, base;
setp.lt.u32 p, t, 8; @p ld.global.b{bits} v, [a]; @p st.shared.b{bits} [at], v; bar.sync 0;
mul.wide.u32 a, t, 4; ld.param.u64 b, [ps]; add.u64 a, a, b; ld.global.u32 s, [a];
ld.param.u64 b, [pv]; add.u64 a, b, o; ld.global.b{bits} v, [a];
mad.lo.u32 at, s, {nbytes}, base; ld.param.u64 b, [pt]; mul.wide.u32 a, s, {nbytes};
add.u64 b, a, b;
atom.{space}.{operation} v, [{"at" if space == "shared" else "b"}], v;
ld.param.u64 b, [po]; add.u64 a, b, o; st.global.b{bits} [a], v;
bar.sync 0; @!p ret; mad.lo.u32 at, t, {nbytes}, base;
ld.param.u64 b, [pt]; add.u64 a, b, o; ld.shared.b{bits} v, [at];
{f"st.global.b{bits} [a], v;" if space == "shared" else ""}
ret; }}"""
    memory = PtxMemory()
    places = [memory.put(one) for one in (values, slots, start, np.zeros_like(values))]
    PtxModule.parse(text).kernel("f").launch(memory, (1,), (COUNT,), places)
    return (
        memory.get(places[3], values.dtype, values.shape),
        memory.get(places[2], start.dtype, start.shape),
    )


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("name,function", ATOMICS, ids=[row[0] for row in ATOMICS])
def test_atomics(name: str, function: Callable[[int, int], int], space: str) -> None:
    values, slots, start = words(0, 40), words(0, 8), words(0, 40)[:8]
    seen, left = atomics(name, values, slots, start, space)
    table = start.tolist()
    for thread in range(COUNT):
        slot = int(slots[thread])
        assert seen[thread] == table[slot]
        table[slot] = function(table[slot], int(values[thread]))
    np.testing.assert_array_equal(left, table)


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_atomic_sums_of_floats(kind: str) -> None:
    dtype = np.dtype(NUMPY[kind])
    values = RANDOM.standard_normal(COUNT).astype(dtype)
    slots, start = words(0, 8), np.zeros(8, dtype)
    left = atomics(f"add.{kind}", values, slots, start, "shared")[1]
    wanted = start.copy()
    for slot, value in zip(slots, values, strict=True):
        wanted[slot] += value
    np.testing.assert_array_equal(left, wanted)


def test_atomic_sums_of_packed_halves() -> None:
    values = RANDOM.integers(-3, 4, (COUNT, 2)).astype(np.float16)
    slots, start = words(0, 8), np.zeros(8, np.uint32)
    packed = np.ascontiguousarray(values).view(np.uint32).reshape(-1)
    left = atomics("add.noftz.f16x2", packed, slots, start, "global")[1]
    wanted = np.zeros((8, 2))
    np.add.at(wanted, slots, values.astype(np.float64))
    np.testing.assert_array_equal(left.view(np.float16).reshape(8, 2), wanted)


def test_compare_and_swap_takes_turns() -> None:
    """Of all threads that try to change 5, the first alone sees it."""
    text = """.visible .entry f(.param .u64 pa, .param .u64 po) {
    .reg .b32 t, v; .reg .b64 a, o;
    mov.u32 t, %tid.x; ld.param.u64 a, [pa]; atom.global.cas.b32 v, [a], 5, t;
    ld.param.u64 a, [po]; mul.wide.u32 o, t, 4; add.u64 a, a, o; st.global.u32 [a], v; ret; }"""
    memory = PtxMemory()
    places = memory.put(np.full(1, 5, np.uint32)), memory.put(np.zeros(32, np.uint32))
    PtxModule.parse(text).kernel("f").launch(memory, (1,), (32,), list(places))
    seen = memory.get(places[1], np.uint32, (32,))
    np.testing.assert_array_equal(seen, [5, *[0] * 31])
    assert memory.get(places[0], np.uint32, (1,))[0] == 0
