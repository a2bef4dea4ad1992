"""Checks the tables of this folder against the vendor's headers, release by release.

    python -m baregrad.runtime.nvidia.abi.check_headers REPOSITORY [--tags PATTERN] [--docs REPO]

REPOSITORY is a clone of the driver's published source (open-gpu-kernel-modules, bare or not), whose
tags are releases; PATTERN selects some, as `580.*`. DOCS is a clone of the vendor's class headers
(open-gpu-doc), which holds the methods. Every size, offset and number is what the C compiler says.
"""

from __future__ import annotations

import argparse
import fnmatch
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from baregrad.base.errors import DriverError
from baregrad.runtime.nvidia.abi import numbers
from baregrad.runtime.nvidia.abi.layout import Struct
from baregrad.runtime.nvidia.abi.releases import nodes, parse_version

_FOLDERS = (
    "src/common/sdk/nvidia/inc",
    "src/nvidia/arch/nvalloc/unix/include",
    "kernel-open/nvidia-uvm",
    "kernel-open/common/inc",
)
_HEADERS = (
    "nvos.h", "nvstatus.h", "nvgputypes.h", "alloc/alloc_channel.h", "nv-ioctl.h", "nv_escape.h",
    "nv-ioctl-numbers.h", "nv-unix-nvos-params-wrappers.h", "uvm_linux_ioctl.h", "uvm_ioctl.h",
    "class/cl0000.h", "class/cl003e.h", "class/cl0040.h", "class/cl0071.h", "class/cl0080.h",
    "class/cl2080.h", "class/cl83de.h", "class/cl9067.h", "class/cl90f1.h", "class/cla06c.h",
    "class/clb0b5sw.h", "class/clc361.h",
    "ctrl/ctrl0000/ctrl0000system.h", "ctrl/ctrl0000/ctrl0000gpu.h",
    "ctrl/ctrl0080/ctrl0080gpu.h", "ctrl/ctrl2080/ctrl2080gpu.h", "ctrl/ctrl2080/ctrl2080gr.h",
    "ctrl/ctrl2080/ctrl2080perf.h", "ctrl/ctrlc36f.h", "ctrl/ctrla06f/ctrla06fgpfifo.h",
    "ctrl/ctrla06c.h",
)  # fmt: skip


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
    for name, value in numbers.FROM_HEADERS.items():
        if name in found and found[name] != (value,):
            yield f"{name}: {value:#x} here, {found[name][0]:#x} there"


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
        present = [h for h in _HEADERS if any((folder / h).exists() for folder in folders)]
        found = run_probe(probe_text(structs, present), folders, work)
    return list(differences(structs, found))


def main(arguments: list[str] | None = None) -> int:
    """Check the tags of a repository; print a line for each and return how many differ."""
    parser = argparse.ArgumentParser(prog="check_headers", description=__doc__)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--tags", default="*")
    chosen = parser.parse_args(arguments)
    listed = subprocess.run(
        ["git", "-C", str(chosen.repository), "tag", "--sort=v:refname"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    oldest = min(nodes())
    wrong = 0
    for tag in listed.stdout.split():
        if not fnmatch.fnmatch(tag, chosen.tags) or parse_version(tag) < oldest:
            continue
        lines = check_tag(chosen.repository, tag)
        wrong += bool(lines)
        print(f"{tag}: {'differs' if lines else 'agrees'}")
        for line in lines:
            print(f"    {line}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
