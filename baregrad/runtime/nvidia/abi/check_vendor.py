"""Compares the structs of `vendor.txt.gz` with a release's headers, for `check_headers`.

Every size and offset is what the C compiler says of the headers; the file was written from its
debugging information instead.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from baregrad.base.errors import DriverError
from baregrad.runtime.nvidia.abi.vendor import SCALARS, VendorStruct, VendorTables

# `file:LINE:column: error: …`
_ERROR = re.compile(r"^\S+:(\d+):\d+: error: ", re.M)
# What `read_headers` calls a union without a name.
_UNNAMED = "union"
# Where a struct's name stands in a header: behind its fields, before them, or for another's.
_DECLARED = re.compile(r"\}\s*(\w+)\s*;|\bstruct\s+(\w+)|\btypedef\b[^;{}]*?(\w+)\s*;")
# A control's number: it is put together from a class's category, which other numbers are not.
_CONTROL = re.compile(r"^#define\s+(\w*_CTRL_\w+)\s.*/\* finn: .*FINN_\w+_INTERFACE_ID << 8", re.M)


def printed_structs(tables: VendorTables) -> list[VendorStruct]:
    """Return every struct that a call of the driver may be shown with, and those in them."""
    named = (tables.controls, tables.classes, tables.uvm, tables.escapes)
    waiting = [one.struct for rows in named for one in rows.values() if not one.measured]
    found: dict[str, VendorStruct] = {}
    while waiting:
        name = waiting.pop()
        layout = tables.struct(name) if name not in SCALARS and name not in found else None
        if layout is not None:
            found[name] = layout
            waiting += [row.kind for row in layout.members]
    return [found[name] for name in sorted(found)]


class HeaderProbe:
    """Asks a compiler for the values of expressions, as some headers have them."""

    def __init__(self, headers: Iterable[str], folders: Iterable[Path], work: Path) -> None:
        self._head = ["#include <stddef.h>", "#include <stdio.h>"]
        self._head += [f'#include "{header}"' for header in headers]
        self._flags = ["-w", "-fmax-errors=0", *(f"-I{folder}" for folder in folders)]
        self._work = work

    def values(self, expressions: Iterable[str]) -> Mapping[str, int]:
        """Return the value of each expression that the headers know all parts of."""
        asked = list(expressions)
        lines = [*self._head, "const size_t values[] = {", *(f"({one})," for one in asked), "0};"]
        first = len(self._head) + 2
        wrong = {int(row) - first for row in self._errors(lines)}
        outside = [row for row in wrong if not 0 <= row < len(asked)]
        if outside:
            raise DriverError("the headers do not compile", found=self._said)
        known = [one for row, one in enumerate(asked) if row not in wrong]
        lines = [*self._head, "const size_t values[] = {", *(f"({one})," for one in known), "0};"]
        lines.append('int main(void) { for (size_t i = 0; i + 1 < sizeof(values) / 8; i++) '
                     'printf("%zu\\n", values[i]); }')  # fmt: skip
        binary = self._work / "values"
        if self._errors(lines, "-o", str(binary)):
            raise DriverError("the headers do not compile", found=self._said)
        printed = subprocess.run([str(binary)], capture_output=True, text=True, check=True)
        return dict(zip(known, map(int, printed.stdout.split()), strict=True))

    def _errors(self, lines: list[str], *options: str) -> list[str]:
        source = self._work / "values.c"
        source.write_text("\n".join(lines) + "\n")
        command = ["cc", *self._flags, *(options or ["-fsyntax-only"]), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self._said = done.stderr[:2000]
        found = [row[1] for row in _ERROR.finditer(done.stderr) if row[0].startswith(str(source))]
        if done.returncode and not found:
            raise DriverError("the headers do not compile", found=self._said)
        return found


def declared_structs(texts: Iterable[str]) -> Mapping[str, str]:
    """Return how C calls each struct that headers declare, by its name."""
    found: dict[str, str] = {}
    for text in texts:
        for typed, tagged, other in _DECLARED.findall(text):
            if tagged:
                found.setdefault(tagged, f"struct {tagged}")
            else:
                found[typed or other] = typed or other
    return found


def compare(
    tables: VendorTables, probe: HeaderProbe, declared: Mapping[str, str]
) -> list[str]:
    """Return in what the structs that the headers have differ from them.

    What a release does not declare is another's, and not compared.
    """
    structs = [one for one in printed_structs(tables) if one.name in declared]
    sizes = probe.values([f"sizeof({declared[one.name]})" for one in structs])
    wanted, wrong = {}, []
    for one in structs:
        kind = declared[one.name]
        size = sizes.get(f"sizeof({kind})")
        if size is None:
            continue
        if size != one.nbytes:
            wrong.append(f"{one.name}: {one.nbytes} bytes here, {size} there")
        for row in one.members:
            if row.name != _UNNAMED:
                wanted[f"offsetof({kind}, {row.name})"] = row.offset
                nbytes = row.count * tables.nbytes(row.kind)
                wanted[f"sizeof((({kind} *)0)->{row.name})"] = nbytes
    found = probe.values(wanted)
    for expression, value in wanted.items():
        if found.get(expression) != value:
            wrong.append(f"{expression}: {value} here, {found.get(expression, 'none')} there")
    return wrong


def compare_names(tables: VendorTables, probe: HeaderProbe, texts: Iterable[str]) -> list[str]:
    """Return the controls that the headers call otherwise than the tables of their release."""
    asked = {name for text in texts for name in _CONTROL.findall(text)}
    names: dict[int, set[str]] = {}
    for name, value in probe.values(sorted(asked)).items():
        names.setdefault(value, set()).add(name)
    return [
        f"control {value:#x}: {there.name if there else 'none'} here, {min(given)} there"
        for value, given in sorted(names.items())
        if (there := tables.controls.get(value)) is None or there.name not in given
    ]  # fmt: skip
