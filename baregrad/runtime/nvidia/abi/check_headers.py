"""Checks the tables of this folder against the vendor's headers, release by release.

    python -m baregrad.runtime.nvidia.abi.check_headers SOURCE [--tags PATTERN] [--classes FOLDER]

SOURCE is a clone of the driver's published source (open-gpu-kernel-modules, bare or not), whose
tags are releases; PATTERN selects some, as `580.*`. FOLDER is `classes` of a checkout of the class
headers (open-gpu-doc), which hold the methods. Every size, offset, number and bit is what the C
compiler says.
"""

from __future__ import annotations

import argparse
import fnmatch
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from baregrad.base.errors import DriverError
from baregrad.runtime.nvidia.abi import methods, numbers
from baregrad.runtime.nvidia.abi.check_vendor import (
    HeaderProbe,
    compare,
    compare_names,
    declared_structs,
)
from baregrad.runtime.nvidia.abi.layout import Struct
from baregrad.runtime.nvidia.abi.read_headers import header_names
from baregrad.runtime.nvidia.abi.releases import nodes, parse_version
from baregrad.runtime.nvidia.abi.vendor import load_tables

_FOLDERS = (
    "src/common/sdk/nvidia/inc",
    "src/nvidia/arch/nvalloc/unix/include",
    "kernel-open/nvidia-uvm",
    "kernel-open/common/inc",
)
_HEADERS = (
    "nvmisc.h", "nvos.h", "nvstatus.h", "nvgputypes.h", "alloc/alloc_channel.h", "nv-ioctl.h",
    "nv_escape.h",
    "nv-ioctl-numbers.h", "nv-unix-nvos-params-wrappers.h", "uvm_linux_ioctl.h", "uvm_ioctl.h",
    "class/cl0000.h", "class/cl003e.h", "class/cl0040.h", "class/cl0071.h", "class/cl0080.h",
    "class/cl2080.h", "class/cl83de.h", "class/cl9067.h", "class/cl90f1.h", "class/cla06c.h",
    "class/clb0b5sw.h", "class/clc361.h",
    "ctrl/ctrl0000/ctrl0000system.h", "ctrl/ctrl0000/ctrl0000gpu.h",
    "ctrl/ctrl0080/ctrl0080gpu.h", "ctrl/ctrl2080/ctrl2080gpu.h", "ctrl/ctrl2080/ctrl2080gr.h",
    "ctrl/ctrl2080/ctrl2080fb.h", "ctrl/ctrl2080/ctrl2080ce.h", "ctrl/ctrl906f.h",
    "ctrl/ctrl2080/ctrl2080bios.h", "ctrl/ctrl2080/ctrl2080bus.h",
    "ctrl/ctrl2080/ctrl2080perf.h", "ctrl/ctrl2080/ctrl2080rc.h",
    "ctrl/ctrl2080/ctrl2080ecc.h", "ctrl/ctrl2080/ctrl2080thermal.h",
    "ctrl/ctrl2080/ctrl2080nvlink.h", "ctrl/ctrl00de.h", "class/cl00de.h",
    "ctrl/ctrlc36f.h", "ctrl/ctrla06f/ctrla06fgpfifo.h",
    "ctrl/ctrla06c.h",
)  # fmt: skip

# Words that we compose of bits, and how the headers would compose them.
_COMPOSED = MappingProxyType({
    "OS_DESCRIPTOR_FLAGS":
        "DRF_DEF(OS02,_FLAGS,_PHYSICALITY,_NONCONTIGUOUS) | DRF_DEF(OS02,_FLAGS,_LOCATION,_PCI)"
        " | DRF_DEF(OS02,_FLAGS,_COHERENCY,_CACHED) | DRF_DEF(OS02,_FLAGS,_MAPPING,_NO_MAP)",
    "MEMORY_FLAGS_HOST":
        "NVOS32_ALLOC_FLAGS_IGNORE_BANK_PLACEMENT | NVOS32_ALLOC_FLAGS_ALIGNMENT_FORCE"
        " | NVOS32_ALLOC_FLAGS_MEMORY_HANDLE_PROVIDED | NVOS32_ALLOC_FLAGS_MAP_NOT_REQUIRED",
    "MEMORY_FLAGS_DEVICE":
        "NVOS32_ALLOC_FLAGS_IGNORE_BANK_PLACEMENT | NVOS32_ALLOC_FLAGS_ALIGNMENT_FORCE"
        " | NVOS32_ALLOC_FLAGS_MEMORY_HANDLE_PROVIDED | NVOS32_ALLOC_FLAGS_MAP_NOT_REQUIRED"
        " | NVOS32_ALLOC_FLAGS_PERSISTENT_VIDMEM",
    "MEMORY_TYPE_IMAGE": "NVOS32_TYPE_IMAGE",
    "MEMORY_TYPE_NOTIFIER": "NVOS32_TYPE_NOTIFIER",
    "ATTR_PAGE_4K": "DRF_DEF(OS32,_ATTR,_PAGE_SIZE,_4KB)",
    "ATTR_PAGE_HUGE": "DRF_DEF(OS32,_ATTR,_PAGE_SIZE,_HUGE)",
    "ATTR_LOCATION_PCI": "DRF_DEF(OS32,_ATTR,_LOCATION,_PCI)",
    "ATTR_CONTIGUOUS": "DRF_DEF(OS32,_ATTR,_PHYSICALITY,_CONTIGUOUS)",
    "ATTR_ANY_PAGES": "DRF_DEF(OS32,_ATTR,_PHYSICALITY,_ALLOW_NONCONTIGUOUS)",
    "ATTR_WRITE_BACK": "(NvU32)DRF_DEF(OS32,_ATTR,_COHERENCY,_WRITE_BACK)",
    "ATTR2_NO_ZBC": "DRF_DEF(OS32,_ATTR2,_ZBC,_PREFER_NO_ZBC)",
    "ATTR2_GPU_CACHED": "DRF_DEF(OS32,_ATTR2,_GPU_CACHEABLE,_YES)",
    "ATTR2_GPU_UNCACHED": "DRF_DEF(OS32,_ATTR2,_GPU_CACHEABLE,_NO)",
    "ATTR2_HUGE_2M": "DRF_DEF(OS32,_ATTR2,_PAGE_SIZE_HUGE,_2MB)",
    # The header writes `byte:bits`, which is the second half of a conditional.
    "COPY_CAPS_GRAPHICS": "(0 ? NV2080_CTRL_CE_CAPS_CE_GRCE)",
    "COPY_CAPS_SHARED": "(0 ? NV2080_CTRL_CE_CAPS_CE_SHARED)",
    "COPY_CAPS_HOST_READ": "(0 ? NV2080_CTRL_CE_CAPS_CE_SYSMEM_READ)",
    "COPY_CAPS_HOST_WRITE": "(0 ? NV2080_CTRL_CE_CAPS_CE_SYSMEM_WRITE)",
    "COPY_CAPS_NVLINK": "(0 ? NV2080_CTRL_CE_CAPS_CE_NVLINK_P2P)",
    "VA_SPACE_FLAGS":
        "NV_VASPACE_ALLOCATION_FLAGS_IS_EXTERNALLY_OWNED"
        " | NV_VASPACE_ALLOCATION_FLAGS_ENABLE_PAGE_FAULTING",
    "CONTEXT_SHARE_ASYNC": "DRF_DEF(_CTXSHARE,_ALLOCATION_FLAGS,_SUBCONTEXT,_ASYNC)",
    "GID_FORMAT_BINARY": "DRF_DEF(2080_GPU_CMD,_GPU_GET_GID_FLAGS,_FORMAT,_BINARY)",
    "MAP_READ_ONLY": "DRF_DEF(OS33,_FLAGS,_ACCESS,_READ_ONLY)",
    "MAPPING_READ_WRITE_ATOMIC": "UvmGpuMappingTypeReadWriteAtomic",
    "COPY_ENGINE_VERSION": "NVB0B5_ALLOCATION_PARAMETERS_VERSION_1",
})  # fmt: skip

# Class headers that the methods are compared with: the table, the folder, the classes by number.
_METHODS = (
    (methods.COPY, "dma-copy", ("C5B5", "C6B5", "C7B5", "C8B5", "C9B5", "CAB5")),
    (methods.COMPUTE, "compute", ("C5C0", "C6C0", "C7C0", "C9C0", "CBC0", "CDC0", "CEC0")),
    (methods.HOST, "host", ("C46F", "C56F", "C76F")),
)
# The driver's own headers have the newer ones of the host unit.
_HOST_CLASSES = ("C86F", "C96F", "CA6F")
# Bits are compared with these alone: a field for addresses is narrower in older classes.
_WHOLE = ("C8B5", "CBC0", *_HOST_CLASSES)


def probe_text(structs: Iterable[Struct], headers: Iterable[str]) -> str:
    """Return a C program that prints what the headers say of `structs` and of the numbers."""
    lines = ["#include <stddef.h>", "#include <stdio.h>"]
    lines += [f'#include "{header}"' for header in headers]
    lines.append("int main(void) {")
    for struct in structs:
        lines.append(f'printf("{struct.name} %zu\\n", sizeof({struct.name}));')
        for row in struct.fields.values():
            size = f"sizeof((({struct.name} *)0)->{row.name})"
            lines.append(
                f'printf("{struct.name}.{row.name} %zu %zu\\n", '
                f"offsetof({struct.name}, {row.name}), (size_t){size});"
            )
    for name in numbers.FROM_HEADERS:
        lines.append(f"#ifdef {name}")
        lines.append(f'printf("{name} %llu\\n", (unsigned long long)({name}));')
        lines.append("#endif")
    for name, expression in _COMPOSED.items():
        lines.append(f'printf("{name} %llu\\n", (unsigned long long)(NvU32)({expression}));')
    lines.append("}")
    return "\n".join(lines) + "\n"


def run_probe(text: str, folders: Iterable[Path], work: Path) -> dict[str, tuple[int, ...]]:
    """Compile and run a program that prints lines of a name and numbers; return them by name."""
    source, binary = work / "probe.c", work / "probe"
    source.write_text(text)
    command = ["cc", "-w", "-o", str(binary), str(source), *(f"-I{folder}" for folder in folders)]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    if compiled.returncode:
        raise DriverError("the headers do not compile", found=compiled.stderr[:2000])
    printed = subprocess.run([str(binary)], capture_output=True, text=True, check=True).stdout
    rows = (line.split() for line in printed.splitlines())
    return {row[0]: tuple(map(int, row[1:])) for row in rows}


def differences(structs: Iterable[Struct], found: dict[str, tuple[int, ...]]) -> Iterator[str]:
    """Yield a line for each size, offset and number in which the tables differ from the headers."""
    for struct in structs:
        if found[struct.name] != (struct.nbytes,):
            yield f"{struct.name}: {struct.nbytes} bytes here, {found[struct.name][0]} there"
        for row in struct.fields.values():
            there = found[f"{struct.name}.{row.name}"]
            if there != (row.offset, row.nbytes):
                yield f"{struct.name}.{row.name}: {row.offset, row.nbytes} here, {there} there"
    composed = {name: getattr(numbers, name) for name in _COMPOSED}
    for name, value in {**numbers.FROM_HEADERS, **composed}.items():
        if name in found and found[name] != (value,):
            yield f"{name}: {value:#x} here, {found[name][0]:#x} there"


def check_class(folder: Path, kind: str, table: Mapping[str, methods.Method]) -> list[str]:
    """Return in what a table of methods differs from the header of class `kind`.

    A method or a part that the header does not have is no difference.
    """
    header = f"cl{kind.lower()}.h"
    lines = ["#include <stdio.h>", '#include "nvtypes.h"', f'#include "{header}"']
    lines.append("int main(void) {")
    for method in table.values():
        macro = f"NV{kind}_{method.name}"
        lines.append(f"#ifdef {macro}")
        lines.append(f'printf("{method.name} %u\\n", (unsigned)({macro}));')
        for part in method.parts if kind in _WHOLE else ():
            bits = f"{macro}_{part}"
            lines.append(f"#ifdef {bits}")
            lines.append(f'printf("{method.name}.{part} %d %d\\n", (1?{bits}), (0?{bits}));')
            lines.append("#endif")
        lines.append("#endif")
    lines.append("}")
    with tempfile.TemporaryDirectory() as folder_name:
        work = Path(folder_name)
        (work / "nvtypes.h").write_text("typedef unsigned NvU32; typedef unsigned char NvU8;\n")
        found = run_probe("\n".join(lines) + "\n", [folder, work], work)
    wrong = []
    for name, method in table.items():
        address = found.get(method.name, (method.address,))
        if address != (method.address,):
            wrong.append(f"{name}: {method.address:#x} here, {address[0]:#x} there")
        for part, place in method.parts.items():
            if found.get(f"{name}.{part}", place) != place:
                wrong.append(f"{name}.{part}: {place} here, others there")
    return wrong


def check_tag(repository: Path, tag: str) -> list[str]:
    """Return in what the tables of release `tag` differ from its headers."""
    version = parse_version(tag)
    known = nodes()
    structs = list(known[max(node for node in known if node <= version)].structs.values())
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        archive = subprocess.run(
            ["git", "-C", str(repository), "archive", tag, *_FOLDERS],
            capture_output=True, check=True,
        )  # fmt: skip
        subprocess.run(["tar", "x", "-C", name], input=archive.stdout, check=True)
        folders = [work / folder for folder in _FOLDERS]
        wrong = check_vendor(tag, folders, work)
        present = [h for h in _HEADERS if any((folder / h).exists() for folder in folders)]
        found = run_probe(probe_text(structs, present), folders, work)
        wrong += differences(structs, found)
        classes = folders[0] / "class"
        for kind in _HOST_CLASSES:
            if (classes / f"cl{kind.lower()}.h").exists():
                wrong += check_class(classes, kind, methods.HOST)
    return wrong


def check_vendor(tag: str, folders: list[Path], work: Path) -> list[str]:
    """Return in what the names and structs that traced calls are shown with differ from a tag's."""
    tables = load_tables(tag)
    texts = [path.read_text(errors="replace")
             for folder in folders for path in sorted(folder.rglob("*.h"))]  # fmt: skip
    probe = HeaderProbe(header_names(folders[0]), folders, work)
    return [
        *compare(tables, probe, declared_structs(texts)), *compare_names(tables, probe, texts),
    ]  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Check the tags of a repository; print a line for each and return how many differ."""
    parser = argparse.ArgumentParser(prog="check_headers", description=__doc__)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--tags", default="*")
    parser.add_argument("--classes", type=Path)
    chosen = parser.parse_args(arguments)
    listed = subprocess.run(
        ["git", "-C", str(chosen.repository), "tag", "--sort=v:refname"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    oldest = min(nodes())
    wrong = 0
    for table, folder, kinds in _METHODS if chosen.classes else ():
        for kind in kinds:
            wrong += report(f"class {kind}", check_class(chosen.classes / folder, kind, table))
    for tag in listed.stdout.split():
        if not fnmatch.fnmatch(tag, chosen.tags) or parse_version(tag) < oldest:
            continue
        wrong += report(tag, check_tag(chosen.repository, tag))
    return wrong


def report(what: str, lines: list[str]) -> int:
    """Print one result and return whether it is bad, as 0 or 1."""
    print(f"{what}: {'differs' if lines else 'agrees'}", flush=True)
    for line in lines:
        print(f"    {line}")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
