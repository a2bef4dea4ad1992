"""Programs: launch expressions, the saved form, and broken or hostile saved forms."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baregrad.base.errors import DeviceError, FileFormatError
from baregrad.program import (
    CPU_OBJECT,
    CUBIN,
    MAX_DEPTH,
    GpuLaunch,
    LaunchExpr,
    MapSpec,
    ParamSpec,
    Program,
    Resources,
    check,
    evaluate,
    substitute,
    variables_of,
)

NAMES = ("n", "m", "start_pos")


def sample(**changes: Any) -> Program:
    values: dict[str, Any] = {
        "name": "E_4_8",
        "kind": CPU_OBJECT,
        "code": bytes(range(256)) * 3,
        "entry": "E_4_8",
        "params": (
            ParamSpec("out", "float32", ("mul", ("var", "n"), 4), "w"),
            ParamSpec("x", "uint8", 32, "r"),
            ParamSpec("y", "bfloat16", None, "rw"),
        ),
        "variables": ("n", "m"),
        "chunks": ("floordiv", ("add", ("var", "n"), 3), 4),
        "source": "define void … — any text\n",
        "meta": Resources(64, ("mul", ("var", "m"), 2), 7, 8),
    }
    return Program(**{**values, **changes})


def expressions() -> st.SearchStrategy[LaunchExpr]:
    leaves = st.integers(-(1 << 70), 1 << 70) | st.sampled_from([("var", name) for name in NAMES])
    ops = st.sampled_from(("add", "mul", "max", "min"))
    return st.recursive(leaves, lambda inner: st.tuples(ops, inner, inner), max_leaves=12)


@pytest.mark.parametrize(
    ("expr", "wanted"),
    [
        (7, 7),
        (("var", "n"), -5),
        (("add", ("var", "n"), 3), -2),
        (("mul", ("var", "n"), ("var", "m")), -50),
        (("floordiv", ("var", "n"), 2), -3),
        (("floordiv", ("var", "n"), ("mul", ("var", "n"), 0)), 0),
        (("mod", ("var", "n"), 0), 0),
        (("mod", ("var", "n"), 3), 1),
        (("max", ("var", "n"), 0), 0),
        (("min", ("var", "n"), 0), -5),
        (("mul", 1 << 40, 1 << 40), 1 << 80),
    ],
)
def test_expressions_have_python_s_integer_arithmetic(expr: LaunchExpr, wanted: int) -> None:
    assert evaluate(expr, {"n": -5, "m": 10}) == wanted


def test_an_unbound_variable_is_named() -> None:
    with pytest.raises(DeviceError, match="'n' has no value"):
        evaluate(("add", ("var", "n"), 1), {"m": 1})


@pytest.mark.property
@given(expressions(), st.fixed_dictionaries({name: st.integers(-99, 99) for name in NAMES}))
def test_substituting_in_two_steps_is_evaluating(expr: LaunchExpr, values: dict[str, int]) -> None:
    first = {name: values[name] for name in NAMES[:1]}
    partly = substitute(expr, first)
    assert not variables_of(partly) & set(first)
    assert evaluate(partly, values) == evaluate(expr, values)
    assert substitute(expr, values) == evaluate(expr, values)


@pytest.mark.parametrize(
    "bad", [True, 1.5, "n", None, (), ("var",), ("var", 3), ("pow", 2, 3), ("add", 1), ("neg", 1)]
)
def test_what_is_no_expression_is_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="no launch expression"):
        check(bad)


def test_expressions_have_a_depth_limit() -> None:
    expr: LaunchExpr = 1
    for _ in range(MAX_DEPTH + 1):
        expr = ("add", expr, 1)
    with pytest.raises(ValueError, match="deeper"):
        check(expr)


def test_undeclared_and_doubled_variables_are_refused() -> None:
    with pytest.raises(ValueError, match="undeclared"):
        sample(variables=("n",))
    with pytest.raises(ValueError, match="twice"):
        sample(variables=("n", "m", "n"))


def test_the_saved_form_is_the_program() -> None:
    program = sample()
    assert Program.from_bytes(program.to_bytes()) == program
    assert Program.from_bytes(program.to_bytes()).to_bytes() == program.to_bytes()


def test_the_saved_form_of_a_gpu_s_program_is_the_program() -> None:
    launch = GpuLaunch((("floordiv", ("var", "n"), 128), 2, 1), (128, 1, 1), 2, 4096, True, (1,))
    program = sample(kind=CUBIN, launch=launch)
    assert Program.from_bytes(program.to_bytes()) == program


def test_the_saved_form_has_tensor_maps() -> None:
    rounded = MapSpec(0, 4, (32,), (), (32,), 128, True)
    maps = (
        MapSpec(1, 2, (64, 128), (256,), (64, 8), 128), MapSpec(2, 1, (48,), (), (16,)), rounded
    )
    program = sample(kind=CUBIN, launch=GpuLaunch((1, 1, 1), (32, 1, 1)), maps=maps)
    assert Program.from_bytes(program.to_bytes()) == program
    with pytest.raises(ValueError, match="of no buffer"):
        sample(maps=(MapSpec(3, 2, (64,), (), (64,)),))
    for sizes in (((64, 2), (), (64, 2)), ((64,), (), (0,)), ((64, 2), (128.0,), (64, 2))):
        with pytest.raises(ValueError, match="sizes that are none"):
            MapSpec(0, 2, *sizes)  # type: ignore[arg-type]
    for rest in (("128",), (-1,)):
        with pytest.raises(ValueError, match="sizes that are none"):
            MapSpec(0, 2, (64,), (), (64,), *rest)  # type: ignore[arg-type]
    for itemsize, rounds in ((2, True), (4, 1)):
        with pytest.raises(ValueError, match="no float32"):
            MapSpec(0, itemsize, (64,), (), (64,), 128, rounds)  # type: ignore[arg-type]


def test_a_grid_of_undeclared_variables_is_refused() -> None:
    with pytest.raises(ValueError, match="undeclared"):
        sample(launch=GpuLaunch((("var", "q"), 1, 1), (32, 1, 1)))


@pytest.mark.parametrize(
    "sizes", [((1, 1), (1, 1, 1)), ((1, 1, 1), (0, 1, 1)), ((1, 1, 1), (32, 1, 1), 0)]
)
def test_a_launch_of_no_size_is_refused(sizes: Any) -> None:
    with pytest.raises(ValueError, match="size"):
        GpuLaunch(*sizes)


@pytest.mark.parametrize("size", [0, 1, 31, 32, 100, -1])
def test_a_truncated_program_is_refused(size: int) -> None:
    with pytest.raises(FileFormatError):
        Program.from_bytes(sample().to_bytes()[:size])


def _with_header(change: Any) -> bytes:
    data = sample().to_bytes()
    size = struct.unpack_from("<Q", data, 8)[0]
    header = json.loads(data[32 : 32 + size])
    header = change(header) or header
    text = json.dumps(header).encode()
    return data[:8] + struct.pack("<Q", len(text)) + data[16:32] + text + data[32 + size :]


HOSTILE: dict[str, Any] = {
    "chunks of another kind": lambda h: h.update(chunks={"var": "n"}),
    "an unknown operation": lambda h: h.update(chunks=["system", "rm", "-rf"]),
    "a float": lambda h: h.update(chunks=1.5),
    "a deep expression": lambda h: h.update(chunks=_deep(200)),
    "an access that is none": lambda h: h["params"][0].__setitem__(3, "x"),
    "a short param": lambda h: h["params"][0].pop(),
    "a number for a name": lambda h: h.update(name=3),
    "a missing field": lambda h: h.pop("entry") and None,
    "no object": lambda h: [1, 2],
    "an undeclared variable": lambda h: h.update(variables=[]),
    "a launch of one number": lambda h: h.update(launch=[1]),
    "a block of floats": lambda h: h.update(launch=_launch(block=[1.5, 1, 1])),
    "a grid that is no expression": lambda h: h.update(launch=_launch(grid=[["x"], 1, 1])),
    "a launch that may wait": lambda h: h.update(launch=_launch(waits=2)),
    "no list of early reads": lambda h: h.update(launch=_launch(early=0)),
    "an early read of a name": lambda h: h.update(launch=_launch(early=["x"])),
    "an early read of the last buffer": lambda h: h.update(launch=_launch(early=[-1])),
    "an early read of no buffer": lambda h: h.update(launch=_launch(early=[9])),
    "too much meta": lambda h: h["meta"].append(1),
}


def _launch(**changes: Any) -> list[Any]:
    made = {"grid": [1, 1, 1], "block": [1, 1, 1], "cluster": 1, "shared": 0}
    return [*{**made, "waits": True, "early": [0], **changes}.values()]


def test_what_is_no_hostile_launch_is_taken() -> None:
    made = Program.from_bytes(_with_header(lambda h: h.update(launch=_launch())))
    assert made.launch == GpuLaunch((1, 1, 1), (1, 1, 1), waits=True, early=(0,))


def _deep(levels: int) -> list[Any]:
    made: list[Any] = ["var", "n"]
    for _ in range(levels):
        made = ["add", made, 1]
    return made


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_header_is_refused(what: str) -> None:
    with pytest.raises(FileFormatError):
        Program.from_bytes(_with_header(HOSTILE[what]))


def test_json_that_nests_without_end_is_refused() -> None:
    text = b"[" * 100_000
    data = struct.pack("<8sQQQ", b"BGPROG\x00\x03", len(text), 0, 0) + text
    with pytest.raises(FileFormatError):
        Program.from_bytes(data)


@pytest.mark.property
@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_flipped_byte_is_refused_or_gives_a_program(place: int, flip: int) -> None:
    data = bytearray(sample().to_bytes())
    data[place % len(data)] ^= flip
    try:
        made = Program.from_bytes(bytes(data))
    except FileFormatError:
        return
    assert isinstance(made, Program)
