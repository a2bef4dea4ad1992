"""Every name and struct that the vendor's headers declare for the driver's calls, by release.

The runtime's own tables hold what it reads and writes; these hold the rest, for who watches other
programs. `read_headers` writes them from the published source, and a test compares the two.
"""

from __future__ import annotations

import functools
import gzip
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from baregrad.runtime.nvidia.abi import measured
from baregrad.runtime.nvidia.abi.releases import parse_version

FILE = Path(__file__).with_name("vendor.txt.gz")
SCALARS = MappingProxyType({
    "u8": 1, "u16": 2, "u32": 4, "u64": 8, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "f32": 4,
    "f64": 8, "ptr": 8, "handle": 4, "bool": 1, "status": 4,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class VendorMember:
    """A field of a struct: where it starts, its kind (of SCALARS, or a struct) and how many."""

    offset: int
    kind: str
    count: int
    name: str


@dataclass(frozen=True)
class VendorStruct:
    """A struct of one release."""

    name: str
    nbytes: int
    members: tuple[VendorMember, ...]


@dataclass(frozen=True)
class VendorName:
    """What a number stands for: its name, and the struct that goes with it, if any.

    `measured`: no header has it; it is called by what it was measured to answer.
    """

    name: str
    struct: str = ""
    measured: bool = False


@dataclass
class VendorTables:
    """Names and structs as of one driver release; methods by unit: compute, copy, host."""

    version: str
    controls: Mapping[int, VendorName]
    classes: Mapping[int, VendorName]
    uvm: Mapping[int, VendorName]
    escapes: Mapping[int, VendorName]
    methods: Mapping[str, Mapping[int, str]]
    categories: Mapping[int, VendorName]
    _rows: Mapping[str, list[tuple[tuple[int, ...], str]]]
    _made: dict[str, VendorStruct | None] = field(default_factory=dict)

    def category(self, control: int) -> str:
        """Return what a control without a name belongs to, "" where that has none either."""
        found = self.categories.get(control >> 8) or self.classes.get(control >> 16)
        return found.name if found is not None else ""

    def struct(self, name: str) -> VendorStruct | None:
        """Return a struct as this release has it; None for one that no header declares."""
        if name not in self._made:
            self._made[name] = self._layout(name)
        return self._made[name]

    def _layout(self, name: str) -> VendorStruct | None:
        rows = self._rows.get(name)
        if not rows:
            return None
        wanted = parse_version(self.version)
        at = bisect_right([version for version, _ in rows], wanted)
        nbytes, *fields = rows[max(at - 1, 0)][1].split(";")
        members = []
        for text in fields:
            offset, kind, count, label = text.split()
            members.append(VendorMember(int(offset), kind, int(count), label))
        return VendorStruct(name, int(nbytes), tuple(members))

    def place(self, struct: str, name: str) -> tuple[int, str] | None:
        """Return where a field such as `params.hMemory` lies and its kind, None if there is none.

        Of an array it is the first element.
        """
        layout = self.struct(struct)
        for row in layout.members if layout else ():
            if row.name == name:
                return row.offset, row.kind
            if name.startswith(row.name + ".") and row.kind not in SCALARS:
                inner = self.place(row.kind, name[len(row.name) + 1 :])
                if inner is not None:
                    return row.offset + inner[0], inner[1]
        return None

    def nbytes(self, kind: str) -> int:
        """Return the size of one value of a kind."""
        if kind in SCALARS:
            return SCALARS[kind]
        found = self.struct(kind)
        return found.nbytes if found else 0


@functools.lru_cache(maxsize=2)
def load_tables(version: str) -> VendorTables:
    """Return the tables of a release such as `580.95.05`: of the nearest one not newer."""
    wanted = parse_version(version)
    names: dict[str, dict[int, VendorName]] = {
        kind: {} for kind in ("control", "class", "uvm", "escape", "category")
    }
    rows: dict[str, list[tuple[tuple[int, ...], str]]] = {}
    methods: dict[str, dict[int, str]] = {"compute": {}, "copy": {}, "host": {}}
    with gzip.open(FILE, "rt", encoding="utf-8") as file:
        for line in file:
            kind, rest = line.rstrip("\n").split(" ", 1)
            if kind == "struct":
                name, first, text = rest.split(" ", 2)
                rows.setdefault(name, []).append((parse_version(first), text))
            elif kind == "method":
                unit, address, name, *step = rest.split()
                _add_method(methods[unit], int(address, 16), name, int(step[0]) if step else 0)
            elif kind in names:
                number, first, name, *struct = rest.split()
                # Rows of a number follow each other, the oldest first: some change their meaning.
                if int(number, 16) not in names[kind] or parse_version(first) <= wanted:
                    names[kind][int(number, 16)] = VendorName(name, "".join(struct))
    for control, (said, layout) in measured.CONTROLS.items():
        unnamed = VendorName(f'control {control:#x} "{said}"', layout, measured=True)
        names["control"].setdefault(control, unnamed)
    rows |= {layout: [((0,), text)] for layout, text in measured.STRUCTS.items()}
    for layout, (first, until, text) in measured.LAYOUTS.items():
        rows[layout] = _inserted(rows[layout], parse_version(first), parse_version(until), text)
    return VendorTables(
        version, names["control"], names["class"], names["uvm"], names["escape"], methods,
        names["category"], rows,
    )  # fmt: skip


def _inserted(
    rows: list[tuple[tuple[int, ...], str]],
    first: tuple[int, ...],
    until: tuple[int, ...],
    text: str,
) -> list[tuple[tuple[int, ...], str]]:
    """Return a struct's rows with another layout from release `first` until `until`."""
    at = bisect_right([version for version, _ in rows], until)
    around = [row for row in rows if not first <= row[0] <= until]
    return sorted([*around, (first, text), (until, rows[max(at - 1, 0)][1])])


_MOST_OF_ONE_NAME = 256


def _add_method(methods: dict[int, str], address: int, name: str, step: int) -> None:
    """Add a method, or those of a series, which has no end but the next method."""
    if not step:
        methods[address] = name
        return
    for index in range(_MOST_OF_ONE_NAME):
        methods.setdefault(address + index * step, f"{name}({index})")
