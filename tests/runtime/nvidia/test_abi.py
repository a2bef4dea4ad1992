from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

from baregrad.base.errors import ArgumentError, DriverError
from baregrad.runtime.nvidia.abi import Record, check_headers, methods, release_for, status_name
from baregrad.runtime.nvidia.abi import numbers as nv
from baregrad.runtime.nvidia.abi.check_vendor import (
    HeaderProbe,
    compare,
    compare_names,
    declared_structs,
)
from baregrad.runtime.nvidia.abi.faults import fault_name
from baregrad.runtime.nvidia.abi.layout import struct
from baregrad.runtime.nvidia.abi.names import class_name, command_name, escape_name, uvm_name
from baregrad.runtime.nvidia.abi.releases import nodes, parse_version
from baregrad.runtime.nvidia.abi.vendor import VendorName, VendorTables

PAIR = struct("PAIR", "pair.h", 24, """
    0  u32 first
    4  i32 second
    8  bytes[3] third
    16 u64 fourth
""")


def test_a_record_is_written_and_read_by_field() -> None:
    record = PAIR.record(first=1, second=-2, third=b"abc", fourth=2**64 - 1)
    assert bytes(record.view()) == (
        b"\1\0\0\0" + b"\xfe\xff\xff\xff" + b"abc" + bytes(5) + b"\xff" * 8
    )
    assert (record["first"], record["second"], record.data("third")) == (1, -2, b"abc")
    assert "third=616263" in repr(record) and "second=0xfffffffe" in repr(record)


def test_records_of_several_structs() -> None:
    record = Record(PAIR, 3)
    record["fourth", 2] = 7
    assert record.nbytes == 72
    assert bytes(record.view())[64:72] == b"\7" + bytes(7)
    assert [record["fourth", i] for i in range(3)] == [0, 0, 7]


def test_a_record_is_followed_by_zeros() -> None:
    record = PAIR.record()
    assert len(record.padded()) >= record.nbytes + 256
    assert not any(record.padded())


@pytest.mark.parametrize("field,value", [
    ("first", -1), ("first", 2**32), ("second", 2**31), ("third", b"ab"), ("third", 3),
    ("fourth", b"1234567"),
])
def test_a_value_that_does_not_fit_is_refused(field: str, value: int | bytes) -> None:
    with pytest.raises(ArgumentError, match=f"PAIR.{field}"):
        PAIR.record()[field] = value


def test_a_field_or_element_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no field 'fifth'"):
        PAIR.record(fifth=1)
    with pytest.raises(ArgumentError, match="no element 1"):
        PAIR.record()["first", 1] = 0


def test_fields_may_not_overlap() -> None:
    with pytest.raises(ArgumentError, match="overlaps"):
        struct("BAD", "bad.h", 8, "0 u32 a\n2 u32 b")
    with pytest.raises(ArgumentError, match="outside"):
        struct("BAD", "bad.h", 8, "0 u32 a\n6 u32 b")


# Sizes as the vendor's headers of these releases have them.
SIZES = {
    "535.54.03": (304, 120, 48, 2, 1200, 24, 28, 776),
    "535.183.01": (360, 120, 48, 2, 1200, 24, 28, 776),
    "545.29.06": (360, 128, 48, 2, 1200, 24, 28, 776),
    "550.54.14": (360, 128, 48, 2, 9264, 24, 28, 776),
    "555.58": (360, 128, 48, 2, 9264, 24, 28, 776),
    "565.77": (360, 128, 48, 2, 9264, 24, 28, 1032),
    "570.124.06": (368, 128, 48, 2, 9264, 24, 28, 1032),
    "575.64.03": (368, 128, 48, 3, 9264, 24, 28, 1032),
    "580.159.04": (368, 128, 56, 3, 9264, 24, 28, 1032),
    "595.45.04": (368, 128, 56, 3, 9264, 16, 12, 1032),
    "610.43.02": (376, 128, 56, 3, 9264, 16, 12, 1032),
}
CHANGING = (
    "channel", "memory", "va_space", "schedule", "uvm_map_external", "uvm_free",
    "uvm_unregister_channel", "build_version",
)  # fmt: skip


@pytest.mark.parametrize("version", SIZES)
def test_structs_that_changed_have_the_size_of_their_release(version: str) -> None:
    release = release_for(version)
    assert tuple(release[name].nbytes for name in CHANGING) == SIZES[version]


def test_every_release_has_every_struct_and_a_status_where_it_answers() -> None:
    releases = list(nodes().values())
    for release in releases:
        # Later ones have more that may be asked, and none has lost anything.
        assert release.structs.keys() >= releases[0].structs.keys()
        for name, row in release.structs.items():
            if name.startswith("uvm_"):
                assert "rmStatus" in row.fields


def test_a_handle_was_inserted_into_the_channel_of_release_610() -> None:
    before, after = release_for("595.45.04")["channel"], release_for("610.43.02")["channel"]
    assert after.fields["hVASpace"].offset == before.fields["hVASpace"].offset == 28
    for name in ("hUserdMemory[0]", "userdOffset[0]", "engineType"):
        shift = 4 if name.startswith("hUserd") else 8
        assert after.fields[name].offset == before.fields[name].offset + shift


def test_an_unknown_newer_release_warns_and_takes_the_newest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        release = release_for("700.1")
    assert "700.1 is newer" in caplog.text and "610.43.02" in caplog.text
    assert release["channel"].nbytes == 376
    caplog.clear()
    release_for("580.999.99")
    release_for("600.10")
    assert not caplog.text


@pytest.mark.parametrize("version", ["535.43.02", "525.147.05", "470.256.02"])
def test_an_older_release_is_refused_by_name(version: str) -> None:
    with pytest.raises(DriverError, match=f"found {version}, wanted 535.54.03 or newer"):
        release_for(version)


def test_a_version_that_is_none_is_refused() -> None:
    with pytest.raises(DriverError, match="cannot be read"):
        release_for("beta")
    assert parse_version("555.58") == (555, 58, 0)


def test_names_of_what_errors_talk_about() -> None:
    assert status_name(0x1F) == "NV_ERR_INVALID_ARGUMENT (0x1f)"
    assert status_name(0x12345) == "an unknown status (0x12345)"
    assert class_name(0xC86F) == "HOPPER_CHANNEL_GPFIFO_A"
    assert class_name(nv.FERMI_VASPACE_A) == "FERMI_VASPACE_A"
    assert class_name(0x77) == "class 0x77"
    assert command_name(0x20801201) == "NV2080_CTRL_CMD_GR_GET_INFO"
    assert command_name(1) == "control 0x1"
    assert escape_name(0x2B) == "NV_ESC_RM_ALLOC"
    assert escape_name(1) == "ioctl 0x1"
    assert uvm_name(33) == "UVM_MAP_EXTERNAL_ALLOCATION"
    assert uvm_name(0x30000001) == "UVM_INITIALIZE"
    assert uvm_name(1) == "UVM ioctl 0x1"
    assert fault_name(44) == "fault while switching contexts (Xid 44)"
    assert fault_name(7) == "an error without a name here (Xid 7)"


def test_methods_are_composed_of_their_parts() -> None:
    launch = methods.COPY["LAUNCH_DMA"]
    word = launch.word(DATA_TRANSFER_TYPE=2, SRC_MEMORY_LAYOUT=1, DST_MEMORY_LAYOUT=1)
    assert word == 0x182
    assert launch.word(FLUSH_ENABLE=1, SEMAPHORE_TYPE=2) == 0x14
    assert launch.read(0x14, "SEMAPHORE_TYPE") == 2
    with pytest.raises(ArgumentError, match="does not hold"):
        launch.word(SEMAPHORE_TYPE=4)
    with pytest.raises(ArgumentError, match="no part COLOUR"):
        launch.word(COLOUR=1)


def test_a_difference_from_the_headers_is_found(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler, cc")
    (tmp_path / "pair.h").write_text(
        "typedef struct { unsigned first; int second; char third[4];"
        " unsigned long long fourth, fifth; } PAIR;"
    )
    text = check_headers.probe_text([PAIR], ["pair.h"])
    # The rest of the program asks for the driver's own names, which are not here.
    lines = text.splitlines()
    text = "\n".join(line for line in lines if "printf(" not in line or "PAIR" in line)
    found = check_headers.run_probe(text, [tmp_path], tmp_path)
    wrong = list(check_headers.differences([PAIR], found))
    assert wrong == [
        "PAIR: 24 bytes here, 32 there", "PAIR.third: (8, 3) here, (8, 4) there",
    ]  # fmt: skip


def test_a_method_that_moved_is_found(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler, cc")
    (tmp_path / "clc8b5.h").write_text(
        "#define NVC8B5_LINE_COUNT (0x420)\n#define NVC8B5_LAUNCH_DMA 0x300\n"
        "#define NVC8B5_LAUNCH_DMA_FLUSH_ENABLE 3:3\n"
    )
    assert check_headers.check_class(tmp_path, "C8B5", methods.COPY) == [
        "LAUNCH_DMA.FLUSH_ENABLE: (2, 2) here, others there",
        "LINE_COUNT: 0x41c here, 0x420 there",
    ]


def test_a_traced_call_s_struct_or_name_that_differs_is_found(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler, cc")
    text = (
        'typedef struct PAIR { unsigned first; union { int a; long b; }; char c[3]; } PAIR;\n'
        "struct OTHER { PAIR pair; };\n"
        '#define NV_CTRL_CMD_PAIR (0x101) /* finn: Evaluated from "(FINN_A_INTERFACE_ID << 8)" */\n'
        '#define NV_CTRL_CMD_ANY (0x102) /* finn: Evaluated from "(FINN_A_INTERFACE_ID << 8)" */\n'
    )
    (tmp_path / "pair.h").write_text(text)
    rows = {"PAIR": "24;0 u32 1 first;8 u8 8 union;16 u8 4 c", "OTHER": "24;0 PAIR 1 pair",
            "LATER": "4;0 u32 1 one"}  # fmt: skip
    controls = {0x101: VendorName("NV_CTRL_CMD_PAIR", "OTHER"), 0x103: VendorName("L", "LATER")}
    tables = VendorTables("535.54.03", controls, {}, {}, {}, {}, {},
                          {name: [((0,), row)] for name, row in rows.items()})  # fmt: skip
    probe = HeaderProbe(["pair.h"], [tmp_path], tmp_path)
    assert compare(tables, probe, declared_structs([text])) == [
        "sizeof(((PAIR *)0)->c): 4 here, 3 there",
    ]
    rows["PAIR"] = "16;0 u32 1 first;16 u8 3 gone"
    tables._made.clear()
    tables._rows["PAIR"][0] = ((0,), rows["PAIR"])
    wrong = compare(tables, probe, declared_structs([text]))
    assert wrong[0] == "PAIR: 16 bytes here, 24 there"
    assert "offsetof(PAIR, gone): 16 here, none there" in wrong
    assert compare_names(tables, probe, [text]) == [
        "control 0x102: none here, NV_CTRL_CMD_ANY there",
    ]


@pytest.mark.slow
def test_all_tables_agree_with_the_published_headers() -> None:
    """Set BAREGRAD_TEST_NVIDIA_SOURCE to a clone of open-gpu-kernel-modules."""
    source = os.environ.get("BAREGRAD_TEST_NVIDIA_SOURCE")
    if source is None or shutil.which("cc") is None:
        pytest.skip("needs a clone of the driver's source and a C compiler")
    assert check_headers.main([source]) == 0
