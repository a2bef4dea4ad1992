"""Decoding of calls that hardware answered, and of calls that nobody meant."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from baregrad.runtime.nvidia.abi.vendor import SCALARS, VendorTables, load_tables
from baregrad.runtime.nvidia.queue.push_decoder import PushedWork
from baregrad.trace import export, report
from baregrad.trace.calls import CallBlock, RawCall, capture, raw_call, request_of
from baregrad.trace.decode import DriverCall, decode
from baregrad.trace.sentences import explained
from baregrad.trace.submissions import Submission
from tests.trace.observed import recorded_calls


@pytest.fixture(scope="module")
def recorded() -> tuple[VendorTables, list[RawCall]]:
    return recorded_calls()


@pytest.fixture(scope="module")
def calls(recorded: tuple[VendorTables, list[RawCall]]) -> list[DriverCall]:
    tables, raws = recorded
    return [decode(tables, raw) for raw in raws]


def named(calls: list[DriverCall], name: str) -> list[DriverCall]:
    return [call for call in calls if call.name == name]


def field_of(call: DriverCall, name: str) -> tuple[str, str]:
    return next((one.before, one.after) for one in call.changes if one.name == name)


def test_every_call_of_a_real_run_has_its_names_and_fields(calls: list[DriverCall]) -> None:
    assert len(calls) > 100
    assert [call.name for call in calls if not call.known] == []
    assert [call.name for call in calls if not call.params_known] == []


def test_fields_and_answers(calls: list[DriverCall]) -> None:
    client = named(calls, "NV_ESC_RM_ALLOC NV01_ROOT_CLIENT")[0]
    assert field_of(client, "hClass") == ("NV01_ROOT_CLIENT", "NV01_ROOT_CLIENT")
    assert field_of(client, "hObjectNew")[0] == "0" != field_of(client, "hObjectNew")[1]
    version = "NV_ESC_RM_CONTROL NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION_V2"
    assert field_of(named(calls, version)[0], "driverVersionBuffer") == ("0", "'580.159.04'")
    channel = named(calls, "NV_ESC_RM_ALLOC HOPPER_CHANNEL_GPFIFO_A")[0]
    assert channel.struct == "NV_CHANNEL_ALLOC_PARAMS"
    assert channel.answer.startswith("NV_OK")
    group = named(calls, "NV_ESC_RM_ALLOC KEPLER_CHANNEL_GROUP_A")[0]
    assert field_of(group, "engineType") == ("1", "1")


def test_lists_are_followed(calls: list[DriverCall]) -> None:
    asked = named(calls, "NV_ESC_RM_CONTROL NV0080_CTRL_CMD_GPU_GET_CLASSLIST")
    # Asked twice: how many there are, then which.
    assert [any(one.name == "classList" for one in call.changes) for call in asked] == [False, True]
    info = named(calls, "NV_ESC_RM_CONTROL NV2080_CTRL_CMD_GR_GET_INFO")[0]
    assert any(one.name.startswith("grInfoList") and one.name.endswith("data")
               for one in info.changes)  # fmt: skip


def test_the_tree_has_what_the_calls_made(calls: list[DriverCall]) -> None:
    tree = report.ObjectTree()
    for call in calls:
        tree.add(call)
    lines = list(tree.lines())
    depths = {line.split()[0]: (len(line) - len(line.lstrip())) // 2 for line in lines}
    assert depths["NV01_ROOT_CLIENT"] == 0
    assert depths["NV01_DEVICE_0"] == 1
    assert depths["NV20_SUBDEVICE_0"] == 2
    assert depths["KEPLER_CHANNEL_GROUP_A"] == 2
    assert depths["HOPPER_CHANNEL_GPFIFO_A"] == 3
    assert depths["HOPPER_COMPUTE_A"] == 4
    # All is freed at the end of that run.
    assert all(" to " in line for line in lines)


def test_forms_of_output(calls: list[DriverCall]) -> None:
    for call in calls:
        assert "\n" not in report.line(call)
        assert explained(call).endswith(".")
        assert raw_call(call.raw.as_json()) == call.raw
    found = export.allowlist(calls, "580.159.04")
    assert found["rm"]["NV_ESC_RM_CONTROL"] == "0x2a"
    assert found["controls"]["NV2080_CTRL_CMD_GPU_GET_GID_INFO"] == "0x2080014a"
    assert found["classes"]["HOPPER_COMPUTE_A"] == "0xcbc0"
    assert found["uvm"]["UVM_INITIALIZE"] == "0x30000001"
    assert "/dev/nvidiactl" in found["nodes"]
    events = export.timeline(calls)["traceEvents"]
    assert len(events) == len(calls)
    rows = [export.as_row(call) for call in calls]
    assert list(export.compared(rows, rows)) == []
    without = [row for row in rows if "GET_GID_INFO" not in row["name"]]
    found_lines = list(export.compared(rows, without))
    assert any("GET_GID_INFO" in line and line.startswith("-") for line in found_lines)


def test_a_timeline_has_a_lane_for_each_ring(calls: list[DriverCall]) -> None:
    launch = PushedWork("launch", "launch of 3x1x1", (("grid", (3, 1)),))
    work = [
        Submission(at / 10, 7, channel, launch) for at, channel in ((1, 0xA), (2, 0xB), (3, 0xA))
    ]
    events = export.timeline(calls, work)["traceEvents"]
    lanes = {row["tid"]: row["args"]["name"] for row in events if row["ph"] == "M"}
    assert set(lanes.values()) == {"ring of channel 0xa", "ring of channel 0xb"}
    found = [(lanes[row["tid"]][-3:], row["ts"], row["args"]["what"])
             for row in events if row.get("cat") == "ring"]  # fmt: skip
    assert [(lane, round(at)) for lane, at, _ in found] == [
        ("0xa", 100_000), ("0xb", 200_000), ("0xa", 300_000)
    ]
    assert {text for *_, text in found} == {"launch of 3x1x1"}
    named = PushedWork("launch", "launch of k", (*launch.values, ("kernel", "k")))
    events = export.timeline([], [Submission(0.1, 7, 0xA, one) for one in (launch, named)])
    assert [row["name"] for row in events["traceEvents"]] == ["launch", "k", "thread_name"]


def test_what_objects_are_for(calls: list[DriverCall]) -> None:
    made = next(one for one in calls if one.verb == "NV_ESC_RM_ALLOC" and not one.failed)
    for name, what in (
        ("MAXWELL_PROFILER_DEVICE", "a profiler"), ("NV01_DEVICE_0", "a device"),
        ("NV01_MEMORY_DEVICELESS", "memory"), ("KEPLER_INLINE_TO_MEMORY_B", "the engine of a "
         "channel that writes what is in its ring"),
        ("NV_MEMORY_MULTICAST_FABRIC", "memory that several GPUs write at once"),
    ):
        assert explained(replace(made, subject=name)) == f"Makes {what} ({name})."


def test_programs_without_a_call_are_compared(tmp_path: Path) -> None:
    """Their files hold a summary alone."""
    file = tmp_path / "none.jsonl"
    file.write_text('{"summary": ["no calls of the driver"]}\n')
    assert export.read_rows(str(file)) == []


def test_counts(calls: list[DriverCall]) -> None:
    counts = report.CallCounts()
    for call in calls:
        counts.add(call)
    assert f"{len(calls)} calls, {len(calls)} by name (100.00 %)" in counts.footer()[0]
    assert "NV_ESC_RM_ALLOC HOPPER_COMPUTE_A" in counts.table()


def test_a_failure_is_named() -> None:
    tables = load_tables("580.95.05")
    data = bytearray(32)
    data[12:16] = (0xC86F).to_bytes(4, "little")
    after = bytes(data[:28]) + (0x1F).to_bytes(4, "little")
    block = CallBlock("argument", "NVOS21_PARAMETERS", 0x1000, bytes(data), after)
    arguments = (3, 0xC020462B, 0x1000)
    raw = RawCall(0.0, 1e-6, 1, 1, "ioctl", "/dev/nvidiactl", 3, arguments, 0, [block])
    call = decode(tables, raw)
    assert call.failed and call.answer == "NV_ERR_INVALID_ARGUMENT (0x1f)"
    assert decode(tables, replace(raw, value=-22)).answer == "-1 EINVAL"


def test_a_large_call_is_unwrapped() -> None:
    tables = load_tables("580.95.05")
    control = bytearray(32)
    control[8:12] = (0x2080014A).to_bytes(4, "little")
    outer = (0x2A).to_bytes(4, "little") + (32).to_bytes(4, "little") + (64).to_bytes(8, "little")
    memory = outer.ljust(64, b"\0") + bytes(control)
    request = 3 << 30 | 16 << 16 | 0x46 << 8 | 211
    found = request_of(tables, "/dev/nvidiactl", request)
    blocks = capture(tables, lambda at, nbytes: memory[at : at + nbytes], found, 0)
    raw = RawCall(0.0, 0.0, 1, 1, "ioctl", "/dev/nvidiactl", 3, (3, request, 0), 0, blocks)
    call = decode(tables, raw)
    assert call.name == "NV_ESC_RM_CONTROL NV2080_CTRL_CMD_GPU_GET_GID_INFO"


def mutated(chance: random.Random, raw: RawCall) -> RawCall:
    """A call with some of its numbers and bytes replaced by others."""
    arguments = list(raw.arguments)
    if arguments and not chance.randrange(3):
        arguments[1] = chance.choice((chance.getrandbits(32), arguments[1] ^ 1 << chance.randrange(
            32)))  # fmt: skip
    blocks = []
    for one in raw.blocks:
        before, after = bytearray(one.before), bytearray(one.after)
        for data in (before, after):
            for _ in range(chance.randrange(4)):
                if data:
                    data[chance.randrange(len(data))] = chance.randrange(256)
        cut = chance.choice((None, None, None, chance.randrange(len(before) + 1)))
        blocks.append(replace(one, before=bytes(before[:cut]), after=bytes(after[:cut])))
    if blocks and not chance.randrange(8):
        blocks.pop()
    node = chance.choice((raw.node,) * 6 + ("/dev/nvidia-uvm", "/dev/nvidiactl", "/dev/nvidia7",
                                            "/dev/nvidia-modeset"))  # fmt: skip
    return replace(raw, node=node, arguments=tuple(arguments), blocks=blocks)


def right_name(tables: VendorTables, call: DriverCall) -> bool:
    """Whether the names are those of the numbers: by the tables, or the number itself."""
    raw = call.raw
    if raw.call != "ioctl":
        return True
    request = raw.arguments[1]
    if "nvidia-uvm" in raw.node:
        entry = tables.uvm.get(request)
    elif "modeset" in raw.node:
        entry = None
    else:
        entry = tables.escapes.get(request & 0xFF)
        if request & 0xFF == 211:
            return True
    if entry is not None:
        return call.verb == entry.name
    return hex(request) in call.verb or hex(request & 0xFF) in call.verb


@pytest.mark.parametrize("count", [4000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_calls_that_nobody_meant(recorded: tuple[VendorTables, list[RawCall]], count: int) -> None:
    tables, raws = recorded
    chance = random.Random(26)
    tree, counts = report.ObjectTree(), report.CallCounts()
    for _ in range(count):
        call = decode(tables, mutated(chance, chance.choice(raws)))
        assert right_name(tables, call)
        assert report.line(call) and explained(call)
        tree.add(call)
        counts.add(call)
    assert list(tree.lines())
    assert counts.footer()


def test_any_memory_can_be_captured(recorded: tuple[VendorTables, list[RawCall]]) -> None:
    tables, raws = recorded
    chance = random.Random(5)
    requests = sorted({(raw.node, raw.arguments[1]) for raw in raws if raw.call == "ioctl"})

    def read(address: int, nbytes: int) -> bytes:
        assert 0 <= nbytes <= 1 << 16
        return chance.randbytes(nbytes if chance.randrange(4) else chance.randrange(nbytes + 1))

    for _ in range(300):
        node, request = chance.choice(requests)
        found = request_of(tables, node, request)
        for one in capture(tables, read, found, 0x1000):
            assert one.struct in ("", *SCALARS) or tables.struct(one.struct) is not None
