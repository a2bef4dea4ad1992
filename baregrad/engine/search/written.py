"""Schedules that somebody wrote: a file of them by the names of kernels.

    reduce_1024x768_512 = Schedule(split('i0', outer='m', w=8), ...)

The file is Python as `baregrad explain FILE --kernel N` prints it, with comments if one likes;
nothing of it is executed. A name is that of all kernels that are called so; with `_` and the first
digits of its digest, which `explain` prints beside it, it is that of one.
"""

from __future__ import annotations

import ast
import atexit
import warnings
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from baregrad.base.errors import OptionError, ScheduleError
from baregrad.base.options import options
from baregrad.ir.core.digest import digest
from baregrad.ir.core.node import Node
from baregrad.kernel import Choice, Schedule, choose, parse_schedule
from baregrad.target import AnyTarget

# Digits of a digest that tell kernels of one name apart.
_DIGITS = 8


def short_name(kernel: Node) -> str:
    """The digits that tell a KERNEL from others of its name."""
    return digest(kernel)[:_DIGITS]


def written_setting() -> tuple[object, ...]:
    """What of the option decides about plans: the file, and when it was changed last."""
    path = options.schedules
    return (path, _stamp(path)) if path.name else ()


def written_for(kernel: Node, target: AnyTarget) -> Schedule | None:
    """The schedule that the file of the option `schedules` has for a canonical KERNEL.

    None where no file is named, or it has none. Raises OptionError where the file is not there,
    ScheduleError for what is no file of schedules, and for a schedule that the kernel cannot have.
    """
    from baregrad.kernel.search import check_schedule

    path = options.schedules
    if not path.name:
        return None
    file = _file(path, _stamp(path))
    name = str(kernel.arg.name)
    alone = f"{name}_{short_name(kernel)}"
    found = alone if alone in file.schedules else name
    schedule = file.schedules.get(found)
    if schedule is None:
        return None
    file.used.add(found)
    try:
        check_schedule(kernel, schedule, target)
    except ScheduleError as error:
        raise ScheduleError(
            f"{name} cannot have the schedule that {path} has for it: {error}",
            hint=f"{alone} = Schedule(...) is for this kernel alone" if found == name else None,
        ) from error
    return schedule


def chosen(kernel: Node, target: AnyTarget) -> Choice:
    """The schedule of a canonical KERNEL, and why: the one that was written, or the first."""
    written = written_for(kernel, target)
    if written is None:
        return choose(kernel, target)
    return Choice(written, (("it is written in {}", options.schedules),))


class _File(NamedTuple):
    """What a file holds; `used`: the names that kernels had."""

    schedules: Mapping[str, Schedule]
    used: set[str]


def _stamp(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError as error:
        raise OptionError(
            f"SCHEDULES={path} cannot be read ({error.strerror})", found=str(path),
            wanted="a file of lines such as NAME = Schedule(...)",
        ) from error


@lru_cache(maxsize=16)
def _file(path: Path, stamp: int) -> _File:
    """What a file held at a time."""
    file = _File(parse_written(path.read_text(errors="replace")), set())
    atexit.register(_tell_of_unused, path, file)
    return file


def parse_written(text: str) -> Mapping[str, Schedule]:
    """The schedules of a file's text by name. Raises ScheduleError for anything else in it."""
    # As printed a schedule is indented, and between its brackets that means nothing.
    plain = "\n".join([line.lstrip() for line in text.splitlines()])
    try:
        lines = ast.parse(plain).body
    except (SyntaxError, ValueError) as error:
        raise ScheduleError(f"schedules do not parse ({error})", found=text[:100]) from error
    found: dict[str, Schedule] = {}
    for line in lines:
        target = line.targets[0] if isinstance(line, ast.Assign) else None
        if not isinstance(line, ast.Assign) or not isinstance(target, ast.Name) \
                or len(line.targets) > 1:
            raise ScheduleError(
                "not a schedule of a kernel", found=ast.unparse(line)[:100],
                wanted="NAME = Schedule(...)",
            )
        if target.id in found:
            raise ScheduleError("a kernel has two schedules", found=target.id, wanted="one of them")
        found[target.id] = parse_schedule(ast.unparse(line.value))
    return MappingProxyType(found)


def _tell_of_unused(path: Path, file: _File) -> None:
    unused = sorted(set(file.schedules) - file.used)
    if unused:
        warnings.warn(
            f"no kernel had the schedules that {path} has for {', '.join(unused)}", RuntimeWarning,
            stacklevel=2,
        )
