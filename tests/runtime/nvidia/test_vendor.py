"""The vendor's names and structs against the runtime's own tables, which a C compiler checked."""

from __future__ import annotations

import re

import pytest

from baregrad.runtime.nvidia.abi import methods, names, numbers
from baregrad.runtime.nvidia.abi.layout import Struct
from baregrad.runtime.nvidia.abi.releases import nodes, version_text
from baregrad.runtime.nvidia.abi.vendor import SCALARS, VendorTables, load_tables

# Release 610 publishes no headers.
VERSIONS = [version for version in nodes() if version[0] < 610]


def place(tables: VendorTables, struct: str, designator: str) -> tuple[int, int] | None:
    """Return where a designator such as `a[1].b` lies, and its size; None inside a union."""
    offset, kind, rest = 0, struct, designator
    while rest:
        if kind == "u8":
            return None
        layout = tables.struct(kind)
        assert layout is not None, kind
        if any(one.name.startswith(rest + ".") for one in layout.members):
            return None  # a struct without a name, whose members have their own rows
        # The longest name first: members of unnamed structs have dots in theirs.
        row = max((one for one in layout.members
                   if re.match(re.escape(one.name) + r"(\[|\.|$)", rest)),
                  key=lambda one: len(one.name))  # fmt: skip
        rest = rest[len(row.name) :]
        offset += row.offset
        count, kind = row.count, row.kind
        found = re.match(r"\[(\d+)\]", rest)
        if found:
            offset += int(found[1]) * tables.nbytes(kind)
            rest, count = rest[found.end() :], 1
        rest = rest.removeprefix(".")
    return offset, tables.nbytes(kind) * count


def differences(tables: VendorTables, struct: Struct) -> list[str]:
    layout = tables.struct(struct.name)
    if layout is None:
        return [f"no {struct.name}"]
    wrong = [] if layout.nbytes == struct.nbytes else [f"{struct.name}: {layout.nbytes} bytes"]
    for row in struct.fields.values():
        found = place(tables, struct.name, row.name)
        if found is not None and found != (row.offset, row.nbytes):
            wrong.append(f"{struct.name}.{row.name}")
    return wrong


@pytest.mark.parametrize("version", VERSIONS, ids=version_text)
def test_structs_agree_with_the_runtime(version: tuple[int, ...]) -> None:
    tables = load_tables(version_text(version))
    structs = nodes()[version].structs.values()
    # Elements of lists, notifiers and debug records belong to no call of their own.
    known = [one for one in structs if tables.struct(one.name) is not None]
    assert len(known) >= 30
    assert [row for one in known for row in differences(tables, one)] == []


def test_names_agree_with_the_runtime() -> None:
    tables = load_tables("580.95.05")
    for name, value in numbers.FROM_HEADERS.items():
        if "_CTRL_CMD_" in name and "_INDEX_" not in name:
            assert tables.controls[value].name == name
        elif name.startswith("NV_ESC_"):
            assert tables.escapes[value].name == name
        elif name.startswith("UVM_") and "_FLAGS_" not in name:
            assert tables.uvm[value].name == name
    for value, name in names.CLASSES.items():
        assert tables.classes[value].name == name


def test_what_a_class_and_a_control_take() -> None:
    tables = load_tables("580.95.05")
    assert tables.classes[0xC86F].struct == "NV_CHANNEL_ALLOC_PARAMS"
    assert tables.classes[0x80].struct == "NV0080_ALLOC_PARAMETERS"
    assert tables.controls[0x2080014A].struct == "NV2080_CTRL_GPU_GET_GID_INFO_PARAMS"
    assert len(tables.controls) > 1000
    without = [row.name for row in tables.uvm.values() if not row.struct]
    assert len(without) < len(tables.uvm) / 3


def test_categories_are_those_that_names_of_controls_have() -> None:
    tables = load_tables("580.95.05")
    named = [(tables.category(number), row.name) for number, row in tables.controls.items()
             if number >> 16 == 0x2080 and "_CTRL_CMD_" in row.name]  # fmt: skip
    agree = [name for category, name in named if name.startswith(f"NV2080_CTRL_CMD_{category}")]
    # A few are named otherwise, as NV2080_CTRL_CMD_KGR_... of GR.
    assert len(named) > 700 and len(agree) > 0.9 * len(named)
    assert tables.category(0x20809009) == "CLK_LEGACY_NON_PRIVILEGED"
    assert tables.category(0x20810108) == "NV2081_BINAPI"
    assert not tables.category(0xFFFF0101)
    # No header has this one, the module's table of what it answers does.
    assert tables.controls[0x20800145].name == "subdeviceCtrlCmdGpuAcquireComputeModeReservation"


def test_a_number_has_the_name_that_its_release_gave_it() -> None:
    # By the headers of each: 550 counts there what 580 has elsewhere, or no more.
    found = {
        version: load_tables(version).controls[0x20803401]
        for version in ("550.54.14", "580.95.05")
    }
    assert found["550.54.14"].name == "NV2080_CTRL_CMD_ECC_GET_ECI_COUNTERS"
    assert found["580.95.05"].name != found["550.54.14"].name
    eci = load_tables("550.54.14").struct("NV2080_CTRL_ECC_GET_ECI_COUNTERS_PARAMS")
    assert eci is not None and eci.nbytes == 96


def test_a_layout_that_was_measured_is_that_of_its_branch_alone() -> None:
    sizes = {
        version: load_tables(version).nbytes("RUSD_MEM_ROW_REMAP")
        for version in ("580.142", "580.159.04", "590.48.01", "595.45.04")
    }
    # But for 580.159.04 by the published headers.
    assert sizes == {"580.142": 40, "580.159.04": 48, "590.48.01": 40, "595.45.04": 40}


def test_members_lie_inside_their_structs() -> None:
    tables = load_tables("595.45.04")
    for named in [*tables.controls.values(), *tables.classes.values(), *tables.uvm.values()]:
        layout = tables.struct(named.struct) if named.struct not in SCALARS else None
        if layout is not None:
            for row in layout.members:
                assert tables.nbytes(row.kind) > 0
                assert row.offset + tables.nbytes(row.kind) * row.count <= layout.nbytes


def test_methods_agree_with_the_runtime() -> None:
    tables = load_tables("580.95.05")
    for unit, table in (("host", methods.HOST), ("copy", methods.COPY),
                        ("compute", methods.COMPUTE)):  # fmt: skip
        for row in table.values():
            assert tables.methods[unit][row.address] == row.name
    assert tables.methods["compute"][0x320 + 4 * 95] == "LOAD_INLINE_QMD_DATA(95)"
