"""PyTorch's start-up and its first product of matrices, as an H200's driver 580.159.04 was asked.

The calls are those that `baregrad trace --json` wrote; UUIDs are masked.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from baregrad.runtime.nvidia.abi.layout import Record
from baregrad.runtime.nvidia.abi.vendor import VendorTables, load_tables
from baregrad.runtime.nvidia.driver.trace import RecordingPort, ReplayPort, read_trace
from baregrad.trace import report
from baregrad.trace.calls import RM_CONTROL, RawCall, inner_struct, raw_call
from baregrad.trace.decode import DriverCall, decode
from baregrad.trace.recording import TraceRecorder
from baregrad.trace.sentences import explained

FILE = Path(__file__).parent / "recordings" / "torch-580.159.04.jsonl.gz"


@pytest.fixture(scope="module")
def tables() -> VendorTables:
    return load_tables("580.159.04")


@pytest.fixture(scope="module")
def raws(tables: VendorTables) -> list[RawCall]:
    with gzip.open(FILE, "rt") as file:
        found = [raw_call(json.loads(line)) for line in file]
    # It was taken down before some controls' answers had been measured.
    for one in found:
        for at, block in enumerate(one.blocks):
            if block.role == "params" and not block.struct:
                outer = one.blocks[at - 1]
                name, _ = inner_struct(tables, RM_CONTROL, outer.before, outer.struct)
                one.blocks[at] = replace(block, struct=name)
    return found


@pytest.fixture(scope="module")
def calls(tables: VendorTables, raws: list[RawCall]) -> list[DriverCall]:
    return [decode(tables, raw) for raw in raws]


def test_calls_have_their_names_but_those_that_no_header_has(calls: list[DriverCall]) -> None:
    assert len(calls) == 1100
    unnamed = Counter(one.name for one in calls if not one.known)
    # What the driver hands to the firmware as it is; the published source has its category alone.
    assert all(re.fullmatch(
        r"NV_ESC_RM_CONTROL control 0x20809038 of CLK_LEGACY_NON_PRIVILEGED", name)
        for name in unnamed)  # fmt: skip
    assert sum(unnamed.values()) == 1
    counts = report.CallCounts()
    for one in calls:
        counts.add(one)
    assert counts.footer()[0].startswith("1100 calls, 1099 by name (99.91 %)")
    assert "22 of them by names of ours" in counts.footer()[0]
    assert counts.footer()[0].endswith("1 more by their number and category (0.09 %)")
    sentences = {explained(one) for one in calls}
    assert not any(text.startswith("Calls") or len(text.split()) < 2 for text in sentences)
    assert {
        "Asks the channel: get class engineid.",
        "Makes a right to ask about confidential computing (NV_CONFIDENTIAL_COMPUTE).",
        "Tells the GPU: gpu acquire compute mode reservation.",
        "Makes the compute engine of a channel (HOPPER_COMPUTE_A).",
    } <= sentences
    told = {explained(one) for one in calls if not one.known}
    assert any(text.startswith("Asks the GPU's firmware, through the driver") for text in told)
    assert all(one.params_known for one in calls if one.known)
    assert not [one for one in calls if one.raw.call == "ioctl" and one.raw.value < 0]


def test_clocks_are_read_by_what_was_measured(calls: list[DriverCall]) -> None:
    by_name = {one.subject: one for one in calls if one.measured}
    fields = {one.name: one.after for one in by_name['control 0x2080a026 "highest clocks"'].changes}
    # The card's own, an H200's: 1980 MHz, and 3201 MHz for its memory.
    assert (fields["list[0].domain"], int(fields["list[0].kHz"], 16)) == ("1", 1_980_000)
    assert (fields["list[1].domain"], int(fields["list[1].kHz"], 16)) == ("16", 3_201_000)
    # What lies behind the two that are asked for is what the caller's stack held.
    assert not any(name.startswith("list[2]") for name in fields)
    mask = next(one for one in by_name['control 0x20809001 "clock domains"'].changes
                if one.name == "domains")  # fmt: skip
    assert int(mask.after, 16) & (1 | 16) == 1 | 16
    told = explained(by_name['control 0x20809009 "kinds of clocks"'])
    assert told.endswith("which no published header names.")


def test_what_it_makes_is_known_by_name(calls: list[DriverCall]) -> None:
    made = Counter(one.subject for one in calls if one.verb == "NV_ESC_RM_ALLOC")
    assert {"HOPPER_COMPUTE_A", "HOPPER_CHANNEL_GPFIFO_A", "HOPPER_DMA_COPY_A",
            "HOPPER_USERMODE_A", "NV20_SUBDEVICE_0"} <= set(made)  # fmt: skip
    tree = report.ObjectTree()
    for one in calls:
        tree.add(one)
    lines = list(tree.lines())
    assert any("HOPPER_CHANNEL_GPFIFO_A" in line for line in lines)
    # Memory alone has a size.
    sized = [line for line in lines if "B (" in line]
    assert any("NV01_MEMORY_LOCAL_USER" in line and "2.0 MiB (" in line for line in sized)
    assert all("MEMORY" in line for line in sized)
    # What is left in the field of that name of an engine's parameters is none, whatever its name.
    engine = next(one for one in calls if "COMPUTE_A" in one.subject
                  and any(change.name == "size" for change in one.changes))  # fmt: skip
    tree.add(replace(engine, subject="BLACKWELL_INLINE_TO_MEMORY_A"))
    assert not [line for line in tree.lines() if "INLINE" in line and "B (" in line]
    assert all("\n" not in report.line(one) for one in calls)
    assert {one.raw.library for one in calls} >= {"libcuda.so.580.159.04"}


class PretendedPort(ReplayPort):
    """A replay with the numbers of the traced program for descriptors and addresses."""

    recorder: TraceRecorder

    def open(self, path: str) -> int:
        here = super().open(path)
        traced = self.recorder._answers.now
        assert traced is not None
        self._names.descriptors[traced.value] = self._names.descriptors.pop(here)
        return traced.value

    def _named(self, text: str) -> int:
        # `_fill` knows the value.
        return 0

    def _fill(self, record: Record | None, answers: Mapping[str, Any]) -> None:
        super()._fill(record, answers)
        for held, data in self.recorder._answers.after:
            for label, text in answers.items() if held is record else ():
                if isinstance(text, str) and text.startswith("address "):
                    field = held.struct.fields[label]
                    value = int.from_bytes(data[field.offset :][: field.nbytes], "little")
                    held[label] = value
                    self._names.opaque[value] = int(text.split()[1])


def test_its_recording_replays(
    tables: VendorTables, raws: list[RawCall], tmp_path: Path
) -> None:
    first, second = tmp_path / "first.jsonl.gz", tmp_path / "second.jsonl.gz"
    recorder = TraceRecorder(str(first), tables)
    for raw in raws:
        recorder.take(raw)
    recorder.close()
    # A pretended driver that was told so answers the same calls alike.
    replay = PretendedPort(first)
    again = TraceRecorder(str(second), tables)
    again.close()
    replay.recorder = again
    again._port = RecordingPort(replay, second, "traced")
    for raw in raws:
        again.take(raw)
    again.close()
    replay.finish()
    head, events = read_trace(second)
    assert (head, events) == read_trace(first)
    assert sum(event["call"] == "ioctl" for event in events) > 900


def test_calls_mutated_name_nothing_that_was_not_asked(
    tables: VendorTables, raws: list[RawCall]
) -> None:
    known = {entry.name for entry in tables.controls.values()}
    for raw in raws:
        if raw.blocks and len(raw.blocks[0].before) >= 12:
            cut = raw_call(raw.as_json())
            cut.blocks[0] = type(cut.blocks[0])(
                cut.blocks[0].role, cut.blocks[0].struct, cut.blocks[0].address,
                cut.blocks[0].before[:12], b"",
            )
            found = decode(tables, cut)
            assert not found.subject or found.subject in known or " 0x" in found.subject or (
                found.verb == "NV_ESC_RM_ALLOC"
            )  # fmt: skip
