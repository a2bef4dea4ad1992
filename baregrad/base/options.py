"""Every option of baregrad: type, default, environment name, allowed values and help, in one file.

An option `debug` is read from `BAREGRAD_DEBUG`, or from one of its short aliases (`DEBUG`). The
environment is parsed once, on first use, and strictly: a malformed value or an unknown
`BAREGRAD_*` name raises OptionError. In code, `options.debug` is the present value, and

    with options.override(debug=2):
        ...

changes it for a block, in this thread or task alone. The full name wins over an alias.
`os.environ` is read in this file and nowhere else in the package.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar, overload

from baregrad.base.errors import OptionError

T = TypeVar("T")

PREFIX = "BAREGRAD_"
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_GPU_NAMES = ("NV", "CUDA")


def is_gpu(device: str) -> bool:
    """Whether a device of this name is a GPU, whichever of its kind."""
    return device.partition(":")[0] in _GPU_NAMES


class DeviceNames(tuple[str, ...]):
    """Kinds of devices. Those of GPUs may have a number: `NV:1` is the second one."""

    __slots__ = ()

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        kind, colon, number = name.partition(":")
        numbered = kind in _GPU_NAMES and number.isdecimal() and number.isascii()
        return super().__contains__(kind) and (numbered or not colon)


class DeviceName(str):
    """A device's name, of which programs may ask what PyTorch's devices say of themselves."""

    __slots__ = ()

    @property
    def type(self) -> str:
        """PyTorch's name for devices of this kind: "cuda" for GPUs, "cpu" for all others."""
        return "cuda" if is_gpu(self) else "cpu"

    @property
    def index(self) -> int | None:  # type: ignore[override]
        """The number of a GPU, None for what is none."""
        return int(self.partition(":")[2] or 0) if is_gpu(self) else None

    def __copy__(self) -> DeviceName:
        """Be its own copy, which programs ask the same of."""
        return self

    def __deepcopy__(self, memo: object) -> DeviceName:
        return self

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Be kept in files as the text that it is."""
        return str, (str(self),)


# One object for each name.
device_named = lru_cache(maxsize=64)(DeviceName)

DEVICE_NAMES = DeviceNames(("CPU", "REF", "NULL", *_GPU_NAMES))


class Option(Generic[T]):
    """One option: a descriptor on `Options`, so that reading it is typed.

    `allowed` is a tuple of values, a range of integers, or None for anything of the type.
    `aliases` are short environment names that hold a value of the option; `flags` are environment
    names that stand for one value each when they are set to 1 (`CPU=1` for the device).
    """

    def __init__(
        self,
        kind: type[T],
        default: T,
        help: str,
        *,
        allowed: tuple[T, ...] | range | None = None,
        aliases: tuple[str, ...] = (),
        flags: Mapping[str, T] = MappingProxyType({}),
        upper: bool = False,
    ) -> None:
        self.kind = kind
        self.default = default
        self.help = help
        self.allowed = allowed
        self.aliases = aliases
        self.flags = flags
        self.upper = upper
        self.name = ""

    def __set_name__(self, owner: type[Options], name: str) -> None:
        self.name = name

    @property
    def variable(self) -> str:
        """The full environment name."""
        return PREFIX + self.name.upper()

    @overload
    def __get__(self, instance: None, owner: type[Options]) -> Option[T]: ...

    @overload
    def __get__(self, instance: Options, owner: type[Options]) -> T: ...

    def __get__(self, instance: Options | None, owner: type[Options]) -> Option[T] | T:
        if instance is None:
            return self
        value: T = instance.values()[self.name]
        return value

    def __set__(self, instance: Options, value: T) -> None:
        raise OptionError(
            f"the option {self.name!r} cannot be assigned",
            hint=f"use: with options.override({self.name}=...), or set {self.variable}",
        )

    def describe_allowed(self) -> str:
        """Say which values the option takes."""
        if isinstance(self.allowed, range):
            return f"{self.allowed.start}..{self.allowed.stop - 1}"
        if self.allowed is not None:
            return " | ".join(str(value) for value in self.allowed)
        return {bool: "0 | 1", int: "an integer", str: "text", Path: "a path"}[self.kind]

    def parse(self, text: str, source: str) -> T:
        """Return the value that `text` spells; raise OptionError naming `source` if none."""
        value: object = text.strip()
        if self.kind is bool:
            value = _parse_bool(text)
        elif self.kind is int:
            with contextlib.suppress(ValueError):
                value = int(text)
        elif self.kind is Path:
            value = Path(text).expanduser()
        elif self.upper:
            value = text.strip().upper()
        return self.check(value, source)

    def check(self, value: object, source: str) -> T:
        """Return `value` if it is one that the option takes, else raise OptionError."""
        # bool is an int to Python, but debug=True is a slip.
        good = isinstance(value, self.kind) and (self.kind is bool or not isinstance(value, bool))
        if good and (self.allowed is None or value in self.allowed):
            return value  # type: ignore[return-value]
        raise OptionError(
            f"{source} has a value that it does not take",
            found=repr(value),
            wanted=self.describe_allowed(),
            hint=f"see: baregrad options; {self.variable} wins over {source}"
            if source in self.aliases
            else "see: baregrad options",
        )


def _parse_bool(text: str) -> object:
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    return text


def _default_cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "baregrad"


class Options:
    """The options and their present values.

    `environ` stands in for the process's environment in tests. One instance, `options`, serves
    the package. An override holds in the thread (or task) that made it; a thread started inside
    one sees it only if it is run in a copy of the context.
    """

    debug = Option(
        int, 0, "How much to print: 1 kernels, 2 schedules, 3 source, 4 IR, 5 rewrites, 6 code.",
        allowed=range(7), aliases=("DEBUG",),
    )
    device = Option(
        str, "CPU", "The default device. NV:1 and CUDA:1 are the second GPU.",
        allowed=DEVICE_NAMES, upper=True,
        flags=MappingProxyType({name: name for name in DEVICE_NAMES}),
    )
    jit_check = Option(
        bool, False, "Run each replay of a captured function eagerly too, and compare bits.",
    )
    cache_dir = Option(Path, _default_cache_dir(), "Where compiled kernels are kept.")
    cache = Option(bool, True, "Keep compiled kernels on disk between processes.")
    threads = Option(
        int, 0, "Threads of the CPU device; 0 means one for each core we may use.",
        allowed=range(1025),
    )
    cpu_renderer = Option(
        str, "llvm", "The language that CPU kernels are written in.", allowed=("llvm", "c"),
    )
    gpu_renderer = Option(
        str, "ptx", "The language that GPU kernels are written in.", allowed=("ptx", "cuda"),
    )
    gpu_instructions = Option(
        str, "", "The generation whose instructions kernels are made of on later GPUs, as sm_80 or "
        "sm_90 (which has no wgmma); empty means all that the GPU has.",
    )
    cc = Option(str, "", "The C compiler of CPU_RENDERER=c; empty means the first one found.")
    cuda_home = Option(
        str, "", "The CUDA toolkit whose ptxas and NVRTC to use; empty means the first one found.",
        aliases=("CUDA_HOME",),
    )
    cuda_blocking = Option(
        bool, False, "Wait after each kernel of the device CUDA, so that a fault names its kernel.",
        aliases=("CUDA_LAUNCH_BLOCKING",),
    )
    gpu_timeout = Option(
        int, 60, "Seconds that a GPU may work without getting on; 0 waits for ever.",
        allowed=range(86401),
    )
    nv_port = Option(
        str, "kernel", "What the device NV drives: a GPU by its kernel driver, or one in software.",
        allowed=("kernel", "virtual"),
    )
    nv_style = Option(
        str, "", "How the device NV hands kernels to the GPU; empty for the default.",
    )
    nv_timeout = Option(
        int, 30, "Seconds that the device NV gives one kernel before it is stopped and reported.",
        allowed=range(1, 86401),
    )
    ref_level = Option(
        str, "tensor", "The level that the REF device evaluates.",
        allowed=("tensor", "kernel", "loop", "linear"),
    )
    compile_workers = Option(
        int, -1, "Processes that compile the kernels of large programs for GPUs; -1 means as many "
        "as there are cores for, 0 none.", allowed=range(-1, 129),
    )
    matmul_precision = Option(
        str, "highest", "How GPUs multiply matrices of float32: as they are, or rounded to "
        "tfloat32, by matrix units (high).", allowed=("highest", "high"),
    )
    beam = Option(
        int, 0, "How many schedules a search keeps at each step; 0 means no search.",
        allowed=range(1025), aliases=("BEAM",),
    )
    beam_seconds = Option(
        int, 540, "Seconds that all searches of a process may take together; 0 means no limit.",
        allowed=range(1 << 30), aliases=("BEAM_SECONDS",),
    )
    beam_timeout = Option(
        int, 10, "Seconds that a search gives one schedule to compile, and to run.",
        allowed=range(1, 3601),
    )
    beam_file = Option(
        Path, Path(), "The file of schedules that were found, read without BEAM too if it is "
        "named; empty means schedules.jsonl in CACHE_DIR, for searches alone.",
        aliases=("BEAM_FILE",),
    )
    schedules = Option(
        Path, Path(), "A file of schedules that kernels have instead of their first ones, each as "
        "`explain --kernel` prints it: NAME = Schedule(...); empty means none.",
    )
    lines = Option(
        bool, False, "Note which line of the user's asks for what, for reports; DEBUG does so too.",
    )
    profile = Option(
        Path, Path(), "Profile the process into this file (.json: Chrome's form, else Perfetto's), "
        "with LINES unless that is set; empty or 0 means no profile.", aliases=("PROFILE",),
    )
    viz = Option(
        str, "", "Show what became of the process, in a browser when it ends (1), or save it to "
        "this file, with LINES unless that is set; empty or 0 means neither.", aliases=("VIZ",),
    )
    progress = Option(
        str, "auto", "Progress bars on stderr; auto shows them on a terminal.",
        allowed=("auto", "on", "off"),
    )
    seed = Option(
        int, 0, "The seed of the default random generator.", allowed=range(1 << 64),
    )
    verify = Option(bool, False, "Verify the IR at each change of level.")

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = environ
        self._parsed: Mapping[str, Any] | None = None
        self._override: ContextVar[Mapping[str, Any] | None] = ContextVar(
            "baregrad_options", default=None
        )

    @classmethod
    def table(cls) -> tuple[Option[Any], ...]:
        """Return every option, in the order of declaration."""
        return tuple(row for row in vars(cls).values() if isinstance(row, Option))

    @property
    def notes_lines(self) -> bool:
        """Whether it is noted which line of the user's asks for what."""
        values = self.values()
        return bool(values["debug"] or values["lines"])

    def values(self) -> Mapping[str, Any]:
        """Return the present value of every option, by name."""
        changed = self._override.get()
        if changed is not None:
            return changed
        return self._parsed or self._of_process()

    def _of_process(self) -> Mapping[str, Any]:
        if self._parsed is None:
            environ = os.environ if self._environ is None else self._environ
            self._parsed = MappingProxyType(parse_environment(environ))
        return self._parsed

    @classmethod
    def withhold(cls, name: str) -> None:
        """Have processes that this one starts from now on not inherit an option."""
        for row in cls.table():
            if row.name == name:
                for variable in (row.variable, *row.aliases):
                    os.unsetenv(variable)

    def _with(self, values: Mapping[str, Any], changes: Mapping[str, Any]) -> Mapping[str, Any]:
        rows = {row.name: row for row in self.table()}
        merged = dict(values)
        for name, value in changes.items():
            if name not in rows:
                raise _unknown(name, tuple(rows), "option")
            merged[name] = rows[name].check(value, f"the option {name!r}")
        return MappingProxyType(merged)

    def begin(self, **changes: Any) -> None:
        """Change options of the process: in every thread, and in this one's block if it is in one.

        Raises OptionError for unknown names or values.
        """
        block = self._override.get()
        if block is not None:
            self._override.set(self._with(block, changes))
        self._parsed = self._with(self._of_process(), changes)

    @contextlib.contextmanager
    def override(self, **changes: Any) -> Iterator[None]:
        """Change options for a block; raise OptionError for unknown names or values."""
        merged = self._with(self.values(), changes)
        before = self._override.get()
        try:
            # In here: an interrupt may come as soon as the call returns.
            self._override.set(merged)
            yield
        finally:
            self._override.set(before)

    def __setattr__(self, name: str, value: object) -> None:
        # Without this, `options.debgu = 1` would quietly make an attribute nobody reads.
        if name.startswith("_") or name in {row.name for row in self.table()}:
            super().__setattr__(name, value)
            return
        raise _unknown(name, tuple(row.name for row in self.table()), "option")


def parse_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the value of every option under `environ`, by name.

    An empty variable counts as unset. Raises OptionError for an unknown `BAREGRAD_*` name, for a
    value that an option does not take, and for two flags that choose differently.
    """
    present = {name: text for name, text in environ.items() if text.strip()}
    rows = Options.table()
    known = tuple(row.variable for row in rows)
    for name in sorted(present):
        if name.startswith(PREFIX) and name not in known:
            raise _unknown(name, known, "environment variable")
    found = {row.name: _read(row, present) for row in rows}
    for file in (Options.profile, Options.viz):
        # As of switches: no file is called so.
        if str(found[file.name]) == "0":
            found[file.name] = file.default
    if Options.lines.variable not in present:
        found["lines"] = found["profile"] != Options.profile.default or found["viz"] != ""
    return found


def _read(row: Option[T], present: Mapping[str, str]) -> T:
    """Return the value of one option, checking that its sources agree."""
    chosen = [(name, row.parse(present[name], name)) for name in (row.variable,) if name in present]
    if not chosen:
        chosen = _read_each(row.aliases, present, lambda name: row.parse(present[name], name))
    chosen += _read_flags(row, present, strict=not chosen)
    if len({value for _, value in chosen}) > 1:
        raise OptionError(
            f"two variables choose the {row.name} differently",
            found=" and ".join(f"{name}={present[name]}" for name, _ in chosen),
            wanted="one of them",
            hint=f"unset all but one, or set {row.variable} alone",
        )
    return chosen[0][1] if chosen else row.default


def _read_each(
    names: tuple[str, ...], present: Mapping[str, str], read: Callable[[str], T]
) -> list[tuple[str, T]]:
    return [(name, read(name)) for name in names if name in present]


def _read_flags(row: Option[T], present: Mapping[str, str], strict: bool) -> list[tuple[str, T]]:
    """Return the flags of `row` that are set.

    The short names are not ours alone, so a foreign value (`CPU=haswell`) is an error only where
    the full name does not settle the matter.
    """
    found = []
    for name, value in row.flags.items():
        if name not in present:
            continue
        state = _parse_bool(present[name])
        if isinstance(state, bool):
            if state:
                found.append((name, value))
        elif strict:
            raise OptionError(
                f"{name} has a value that it does not take",
                found=repr(present[name]),
                wanted="0 | 1",
                hint=f"if it is meant for another program, set {row.variable}={row.default}",
            )
    return found


def _unknown(name: str, known: tuple[str, ...], what: str) -> OptionError:
    # The shared prefix says nothing about likeness, so it is left out of the comparison.
    bare = {one.removeprefix(PREFIX): one for one in known}
    near = difflib.get_close_matches(name.removeprefix(PREFIX), bare, n=1, cutoff=0.5)
    return OptionError(
        f"unknown {what} {name!r}",
        hint=f"did you mean {bare[near[0]]!r}?" if near else "see: baregrad options",
    )


options = Options()
