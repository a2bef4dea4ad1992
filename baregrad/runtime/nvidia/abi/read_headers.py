"""Writes `vendor.txt.gz` from the driver's published source, of all releases at once.

    python -m baregrad.runtime.nvidia.abi.read_headers SOURCE CLASSES

SOURCE is a clone of open-gpu-kernel-modules with its tags, CLASSES the folder `classes` of a
checkout of open-gpu-doc, which has the methods. Layouts are what the C compiler writes
into its debugging information; names are the definitions of the headers. Needs `cc` and pyelftools.
"""

from __future__ import annotations

import argparse
import gzip
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

from baregrad.runtime.nvidia.abi.releases import OLDEST, parse_version, version_text
from baregrad.runtime.nvidia.abi.vendor import FILE, SCALARS

_SDK = "src/common/sdk/nvidia/inc"
_RESOURCES = "src/nvidia/src/kernel/rmapi/resource_list.h"
_GENERATED = "src/nvidia/generated"
_CLASSES = f"{_GENERATED}/g_allclasses.h"
_FOLDERS = (_SDK, "src/nvidia/arch/nvalloc/unix/include", "kernel-open/nvidia-uvm",
            "kernel-open/common/inc")  # fmt: skip
_FIRST = ("nvtypes.h", "nvos.h", "nv-ioctl.h", "nv-ioctl-numa.h", "nv-unix-nvos-params-wrappers.h",
          "uvm_linux_ioctl.h", "uvm_ioctl.h")  # fmt: skip
_NAMED = MappingProxyType({
    "NvP64": "ptr", "NvHandle": "handle", "NvBool": "bool", "NV_STATUS": "status",
})  # fmt: skip
_THROUGH = ("DW_TAG_const_type", "DW_TAG_volatile_type")
_CONTROL = re.compile(
    r"#define\s+(\w*_CTRL_\w+)\s+\(?(0x[0-9a-fA-F]+)U?\)?\s+/\* finn: Evaluated from "
    r'"\(*FINN_\w+_INTERFACE_ID << 8\)?(?: \| \(?(\w+))?'
)
_NUMBER = re.compile(r"#define\s+(\w+)\s+\(?(0x[0-9a-fA-F]+|\d+)U?\)?\s*(?:/[/*].*)?$", re.M)
# A class's categories of controls, where they have a header of their own.
_CATEGORY = re.compile(r"#define\s+NV([0-9A-F]{4})_CTRL_(\w+)\s+\(0x([0-9a-fA-F]{2})U?\)")
# The module's own tables of what it answers; some controls have their name here alone.
_EXPORTED = re.compile(r"/\*methodId=\*/\s+0x([0-9a-f]+)u,\s+/\*paramSize=\*/\s+(?:sizeof\((\w+)\)"
                       r"|0),.*?/\*func=\*/\s+\"(\w+)\"", re.S)  # fmt: skip
_ENTRY = re.compile(r"RS_ENTRY\((.*?)\n\)", re.S)
_BASED = re.compile(r"#define\s+(NV_ESC_\w+|UVM_\w+)\s+\(?(?:NV_IOCTL_BASE \+ |UVM_IOCTL_BASE\()"
                    r"\s*(\d+)\)")  # fmt: skip
# Structs of escapes whose names do not say so; RM_ALLOC has a second one, by its size.
ESCAPES = MappingProxyType({
    0x27: "nv_ioctl_nvos02_parameters_with_fd", 0x28: "NVOS05_PARAMETERS",
    0x29: "NVOS00_PARAMETERS", 0x2A: "NVOS54_PARAMETERS", 0x2B: "NVOS21_PARAMETERS",
    0x34: "NVOS55_PARAMETERS", 0x35: "NVOS57_PARAMETERS", 0x41: "NVOS30_PARAMETERS",
    0x4A: "NVOS32_PARAMETERS", 0x4D: "NVOS38_PARAMETERS",
    0x4E: "nv_ioctl_nvos33_parameters_with_fd", 0x4F: "NVOS34_PARAMETERS",
    0x52: "NVOS41_PARAMETERS", 0x54: "NVOS39_PARAMETERS", 0x56: "NVOS61_PARAMETERS",
    0x57: "NVOS46_PARAMETERS", 0x58: "NVOS47_PARAMETERS", 0x59: "NVOS49_PARAMETERS",
    0x5E: "NVOS56_PARAMETERS", 200: "nv_ioctl_card_info_t", 201: "nv_ioctl_register_fd_t",
    206: "nv_ioctl_alloc_os_event_t", 207: "nv_ioctl_free_os_event_t",
    209: "nv_ioctl_status_code_t", 210: "nv_ioctl_rm_api_version_t", 211: "nv_ioctl_xfer_t",
    213: "nv_ioctl_query_device_intr", 214: "nv_ioctl_sys_params_t",
    215: "nv_ioctl_numa_info_t", 216: "nv_ioctl_set_numa_status_t",
    217: "nv_ioctl_export_to_dma_buf_fd_t", 218: "nv_ioctl_wait_open_complete_t",
})  # fmt: skip
# Structs that no number stands for: the longer form of an allocation, memory that is read.
_ALSO = ("NVOS64_PARAMETERS", "NV00DE_SHARED_DATA")

_UNITS = (("compute", "compute", "clc[5-9a-f]c0.h"), ("copy", "dma-copy", "clc[5-9a-f]b5.h"),
          ("host", "host", "clc[3-9]6f.h"))  # fmt: skip


class _Debugging:
    """The structs of an object file."""

    def __init__(self, path: Path) -> None:
        from elftools.elf.elffile import ELFFile

        with path.open("rb") as file:
            unit = next(ELFFile(file).get_dwarf_info().iter_CUs())
            self._base = unit.cu_offset
            self._entries = {entry.offset: entry for entry in unit.iter_DIEs()}
            for entry in self._entries.values():
                list(entry.iter_children())
        self._names: dict[int, str] = {}
        for entry in self._entries.values():
            if entry.tag == "DW_TAG_typedef":
                target = self._target(entry)
                if target is not None and target.tag == "DW_TAG_structure_type":
                    self._names.setdefault(target.offset, self._name(entry))

    def structs(self) -> dict[str, tuple[int, tuple[str, ...]]]:
        """Return size and fields of each struct, under all its names."""
        found: dict[str, tuple[int, tuple[str, ...]]] = {}
        for entry in self._entries.values():
            if entry.tag == "DW_TAG_structure_type" and "DW_AT_byte_size" in entry.attributes:
                name = self._names.get(entry.offset) or self._name(entry)
                if name and name not in found:
                    found[name] = (self._nbytes(entry), tuple(self._members(entry)))
        for entry in self._entries.values():
            if entry.tag == "DW_TAG_typedef" and self._name(entry) not in found:
                target = self._target(entry)
                while target is not None and target.tag == "DW_TAG_typedef":
                    target = self._target(target)
                known = self._names.get(target.offset) if target is not None else None
                if known in found:
                    found[self._name(entry)] = found[known]
        return found

    @staticmethod
    def _name(entry: Any) -> str:
        found = entry.attributes.get("DW_AT_name")
        return found.value.decode() if found else ""

    def _target(self, entry: Any) -> Any:
        found = entry.attributes.get("DW_AT_type")
        return self._entries[found.value + self._base] if found else None

    def _nbytes(self, entry: Any) -> int:
        if entry.tag == "DW_TAG_typedef" or entry.tag in _THROUGH:
            return self._nbytes(self._target(entry))
        if entry.tag == "DW_TAG_array_type":
            count = 1
            for one in entry.iter_children():
                bound = one.attributes.get("DW_AT_upper_bound")
                count *= bound.value + 1 if bound and isinstance(bound.value, int) else 0
            return count * self._nbytes(self._target(entry))
        size = entry.attributes.get("DW_AT_byte_size")
        return int(size.value) if size else 0

    def _kind(self, entry: Any) -> tuple[str, int]:
        """Return a type's kind and how many of it there are; unions are bytes."""
        while entry.tag == "DW_TAG_typedef" or entry.tag in _THROUGH:
            if self._name(entry) in _NAMED:
                return _NAMED[self._name(entry)], 1
            entry = self._target(entry)
        nbytes = self._nbytes(entry)
        if entry.tag == "DW_TAG_array_type":
            kind, count = self._kind(self._target(entry))
            each = self._nbytes(self._target(entry))
            return kind, count * (nbytes // each if each else 0)
        if entry.tag == "DW_TAG_pointer_type":
            return "ptr", 1
        if entry.tag == "DW_TAG_structure_type":
            name = self._names.get(entry.offset) or self._name(entry)
            return (name, 1) if name else ("u8", nbytes)
        if entry.tag == "DW_TAG_base_type":
            coding = entry.attributes["DW_AT_encoding"].value
            letter = "f" if coding == 4 else "i" if coding == 5 else "u"
            return f"{letter}{8 * nbytes}", 1
        if entry.tag == "DW_TAG_enumeration_type":
            return f"u{8 * nbytes}", 1
        return "u8", nbytes

    def _members(self, entry: Any, base: int = 0, prefix: str = "") -> Iterator[str]:
        for one in entry.iter_children():
            bits = {"DW_AT_bit_size", "DW_AT_data_bit_offset"} & set(one.attributes)
            if one.tag != "DW_TAG_member" or bits:
                continue
            place = one.attributes.get("DW_AT_data_member_location")
            offset = base + (place.value if place else 0)
            kind = self._target(one)
            name = self._name(one)
            unnamed = kind.tag == "DW_TAG_structure_type" and not (
                self._names.get(kind.offset) or self._name(kind)
            )
            if unnamed:
                yield from self._members(kind, offset, f"{prefix}{name}." if name else prefix)
            else:
                word, count = self._kind(kind)
                if count and (name or word == "u8"):
                    yield f"{offset} {word} {count} {prefix}{name or 'union'}"


def header_names(sdk: Path) -> list[str]:
    """Return the headers of a release that declare what the driver's calls take, in order."""
    listed = [path for part in ("ctrl", "class", "alloc") for path in (sdk / part).rglob("*.h")]
    return [*_FIRST, *sorted(str(path.relative_to(sdk)) for path in listed)]


def read_tag(
    repository: Path, tag: str, names: dict[tuple[str, int], tuple[str, str]]
) -> dict[str, tuple[int, tuple[str, ...]]]:
    """Return the structs of a release, and add its names."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        archive = subprocess.run(
            ["git", "-C", str(repository), "archive", tag, *_FOLDERS, _RESOURCES, _GENERATED],
            capture_output=True, check=True,
        )  # fmt: skip
        subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)
        text = "".join(f'#include "{header}"\n' for header in header_names(work / _SDK))
        (work / "all.c").write_text(text)
        subprocess.run(
            ["cc", "-w", "-g", "-gdwarf-4", "-fno-eliminate-unused-debug-types", "-c", "-o",
             str(work / "all.o"), str(work / "all.c"), *(f"-I{work / one}" for one in _FOLDERS)],
            check=True,
        )  # fmt: skip
        structs = _Debugging(work / "all.o").structs()
        read_names(work, structs, names)
        return structs


def read_names(
    work: Path,
    structs: dict[str, tuple[int, tuple[str, ...]]],
    names: dict[tuple[str, int], tuple[str, str]],
) -> None:
    """Add the names of controls, classes, escapes and calls of the unified memory driver."""
    for path in sorted((work / _SDK / "ctrl").rglob("*.h")):
        for name, number, low in _CONTROL.findall(path.read_text(errors="replace")):
            likely = (low.removesuffix("_MESSAGE_ID"), name.replace("_CTRL_CMD_", "_CTRL_", 1)
                      + "_PARAMS", name + "_PARAMS")  # fmt: skip
            struct = next((one for one in likely if one in structs), "")
            names["control", int(number, 16)] = (name, struct)
    read_categories(work, names)
    read_exported(work, structs, names)
    entries = {}
    for body in _ENTRY.findall((work / _RESOURCES).read_text()):
        rows = [row.split("*/")[1].strip(" ,\n") for row in body.split("/*")[1:]]
        found = re.fullmatch(r"RS_(?:REQUIRED|OPTIONAL)\((\w+)\)", rows[4])
        struct = found[1] if found else ""
        entries[rows[0]] = {"NvHandle": "handle", "NvU32": "u32"}.get(struct, struct)
    numbers = _NUMBER.findall((work / _CLASSES).read_text())
    for path in sorted((work / _SDK / "class").rglob("cl*.h")):
        numbers += [row for row in _NUMBER.findall(path.read_text()) if row[0] in entries]
    for listed in (False, True):
        for name, number in numbers:
            if (name in entries) is listed:
                names["class", int(number, 0)] = (name, entries.get(name, ""))
    unix = work / _FOLDERS[1]
    escapes = _NUMBER.findall((unix / "nv_escape.h").read_text())
    based = "".join((work / _FOLDERS[3] / header).read_text()
                    for header in ("nv-ioctl-numbers.h", "nv-ioctl-numa.h"))  # fmt: skip
    escapes += [(name, str(200 + int(low))) for name, low in _BASED.findall(based)]
    for name, number in escapes:
        if name.startswith("NV_ESC_"):
            struct = ESCAPES.get(int(number, 0), "")
            names["escape", int(number, 0)] = (name, struct if struct in structs else "")
    calls = _BASED.findall((work / _FOLDERS[2] / "uvm_ioctl.h").read_text())
    linux = _NUMBER.findall((work / _FOLDERS[2] / "uvm_linux_ioctl.h").read_text())
    for name, number in calls + [row for row in linux if row[0].endswith("INITIALIZE")]:
        struct = f"{name}_PARAMS"
        names["uvm", int(number, 0)] = (name, struct if struct in structs else "")


def read_categories(work: Path, names: dict[tuple[str, int], tuple[str, str]]) -> None:
    """Add the categories of controls: below the number class << 8 | category."""
    for path in sorted((work / _SDK / "ctrl").rglob("ctrl*base.h")):
        for kind, name, number in _CATEGORY.findall(path.read_text(errors="replace")):
            names["category", int(kind, 16) << 8 | int(number, 16)] = (name, "")


def read_exported(
    work: Path,
    structs: dict[str, tuple[int, tuple[str, ...]]],
    names: dict[tuple[str, int], tuple[str, str]],
) -> None:
    """Add controls that the headers leave out, by the function that answers them."""
    for path in sorted((work / _GENERATED).glob("g_*_nvoc.c")):
        for number, struct, name in _EXPORTED.findall(path.read_text(errors="replace")):
            known = struct if struct in structs else ""
            names["exported", int(number, 16)] = (name, known)
            declared = names.get(("control", int(number, 16)))
            if declared is not None and not declared[1]:
                names["control", int(number, 16)] = (declared[0], known)


def join_exported(names: dict[tuple[str, int], list[tuple[str, tuple[str, str]]]]) -> None:
    """Give the controls that no release's header names the name of their function."""
    for kind, number in [key for key in names if key[0] == "exported"]:
        names.setdefault(("control", number), names.pop((kind, number)))


def read_methods(classes: Path) -> dict[tuple[str, int], str]:
    """Return the methods of the compute, copy and host units: the newest class's name wins.

    One that stands for several, such as NAME(i), has the distance between them after its name.
    """
    found = {}
    for unit, folder, pattern in _UNITS:
        for path in sorted((classes / folder).glob(pattern)):
            kind = path.stem.removeprefix("cl").upper()
            text = path.read_text(errors="replace")
            plain = rf"#define NV{kind}_(\w+) +(?:(0x[0-9a-f]{{4}})|\((0x[0-9a-f]{{8}})\))\s"
            last, before = "?", 0
            for name, short, long in re.findall(plain, text, re.I):
                place = int(short or long, 16)
                # What begins with the name of the method above it is a value of that one, unless
                # it lies behind it.
                inner = name.startswith(last + "_") and place <= before
                if inner or name.startswith(("DMA_", "GP_", "HDR_")) or "__" in name:
                    continue
                last, before = name, place
                found[unit, place] = name
            for name, address, step in re.findall(
                rf"#define NV{kind}_(\w+)\([ij]\) +\((0x[0-9a-f]+)\+\([ij]\)\*(\d+)\)", text, re.I
            ):
                found[unit, int(address, 16)] = f"{name} {step}"
    return found


def needed(rows: dict[str, list[tuple[str, str]]], roots: Iterable[str]) -> set[str]:
    """Return the structs that the roots are made of, in whichever release."""
    found: set[str] = set()
    waiting = [root for root in roots if root in rows]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            fields = (row for _, text in rows[name] for row in text.split(";")[1:])
            kinds = {row.split()[1] for row in fields}
            waiting += [kind for kind in kinds if kind not in SCALARS and kind in rows]
    return found


def _append(rows: list[tuple[str, Any]], release: str, one: Any) -> None:
    """Add what a release has, unless the one before has the same."""
    if not rows or rows[-1][1] != one:
        rows.append((release, one))


def main(arguments: list[str] | None = None) -> int:
    """Read all tags of a repository from the oldest release that we know on, and write FILE."""
    parser = argparse.ArgumentParser(prog="read_headers", description=__doc__)
    parser.add_argument("repository", type=Path)
    parser.add_argument("classes", type=Path)
    chosen = parser.parse_args(arguments)
    listed = subprocess.run(
        ["git", "-C", str(chosen.repository), "tag"], capture_output=True, text=True, check=True
    ).stdout.split()
    tags = sorted((tag for tag in listed if parse_version(tag) >= OLDEST), key=parse_version)
    # Numbers change their meaning between releases, as structs do.
    names: dict[tuple[str, int], list[tuple[str, tuple[str, str]]]] = {}
    rows: dict[str, list[tuple[str, str]]] = {}
    for tag in tags:
        found: dict[tuple[str, int], tuple[str, str]] = {}
        structs = read_tag(chosen.repository, tag, found)
        release = version_text(parse_version(tag))
        for key, one in found.items():
            _append(names.setdefault(key, []), release, one)
        for name, (nbytes, fields) in structs.items():
            _append(rows.setdefault(name, []), release, ";".join((str(nbytes), *fields)))
        print(f"{tag}: {len(structs)} structs", flush=True)
    join_exported(names)
    # A name that a later release gave goes with the struct as all releases had it.
    kept = needed(rows, [*(one[1] for each in names.values() for _, one in each), *_ALSO])
    lines = [
        f"{kind} {number:x} {release} {name} {struct}".rstrip()
        for (kind, number), each in sorted(names.items()) for release, (name, struct) in each
    ]  # fmt: skip
    methods = sorted(read_methods(chosen.classes).items())
    lines += [f"method {unit} {address:x} {name}" for (unit, address), name in methods]
    lines += [f"struct {name} {tag} {text}"
              for name in sorted(kept) for tag, text in rows[name]]  # fmt: skip
    data = "\n".join(lines).encode() + b"\n"
    FILE.write_bytes(gzip.compress(data, 9, mtime=0))
    print(f"{len(names)} names, {len(kept)} structs, {FILE.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
