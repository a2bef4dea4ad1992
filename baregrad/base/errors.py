"""Every error that baregrad raises on purpose, as one tree.

    BaregradError
    ├── ShapeError           (ValueError)     shapes or axes that do not fit together
    ├── DTypeError           (TypeError)      dtypes that an operation does not accept
    ├── DeviceError                           tensors on different devices, unknown device names
    ├── IndexOutOfRange      (IndexError)     an index or axis outside its range
    ├── ArgumentError        (ValueError)     an argument outside what a function takes
    ├── OptionError          (ValueError)     an unknown or malformed option
    ├── LinAlgError          (ValueError)     a matrix without the inverse or factor asked for
    ├── GradientError                         a gradient that does not exist
    ├── QueueFull                             more work than may wait; try again later
    ├── JitError                              a captured function that cannot be replayed
    ├── ScheduleError        (ValueError)     a schedule step that is not legal for its kernel
    ├── UnsupportedError                      correct, but not offered here
    │   ├── UnsupportedDType
    │   ├── UnsupportedDevice
    │   └── UnsupportedLayout
    ├── FileFormatError      (ValueError)     a broken or hostile file
    ├── MissingDependency    (ImportError)    an optional package is absent; says what to install
    ├── WorkerDied                            a process that reads data ended by itself
    ├── OutOfMemory          (MemoryError)    a device or the host ran out of memory
    ├── DriverError                           the operating system or a driver said no
    ├── CompileError                          a compiler said no; keeps the source and its log
    │   └── ChangedPipeline                   an assembler would make asynchronous work wait
    └── CompilerBug                           our own mistake; saves the IR and says how to replay
        └── VerifyError                       IR that breaks the grammar of its level

Each error takes `found`, `wanted` and `hint` and composes them into its message, and may carry
`at="file:line"`: the user's line that asked for the work, for errors met only when it is done.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path
from types import CodeType
from typing import NamedTuple

_PACKAGE = str(Path(__file__).resolve().parent.parent)
# Rooms of the package that use it as a user would: their lines are worth showing.
_USER_ROOMS = tuple(str(Path(_PACKAGE) / room) + "/" for room in ("apps", "testing"))


class UserFrame(NamedTuple):
    """A place in the user's code; prints as `file:line`."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def user_frame() -> UserFrame:
    """Return the file and line of the innermost stack frame outside baregrad.

    Frames of `baregrad.apps` and `baregrad.testing` count as outside, since they use the package
    as a user does. Where every frame is inside, the outermost one is returned.
    """
    frame = sys._getframe(1)
    while is_ours(frame.f_code) and frame.f_back is not None:
        frame = frame.f_back
    return UserFrame(frame.f_code.co_filename, frame.f_lineno)


def is_ours(code: CodeType) -> bool:
    """Whether code is of baregrad itself, and of no room that uses it as a user does."""
    name = code.co_filename
    return name.startswith(_PACKAGE) and not name.startswith(_USER_ROOMS)


class BaregradError(Exception):
    """Base of all errors that baregrad raises on purpose.

    `message` says what went wrong; `found`, `wanted` and `hint` say what was met, what would have
    been right and what to do; `at` is the user's `file:line`. All of them stay readable as
    attributes, and `at` may be set later by whoever knows it.
    """

    def __init__(
        self,
        message: str = "",
        *,
        found: object = None,
        wanted: object = None,
        hint: str | None = None,
        at: str | UserFrame | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.found = found
        self.wanted = wanted
        self.hint = hint
        self.at = None if at is None else str(at)

    def __str__(self) -> str:
        facts = []
        if self.found is not None:
            facts.append(f"found {self.found}")
        if self.wanted is not None:
            facts.append(f"wanted {self.wanted}")
        text = self.message
        if facts:
            text = f"{text}: {', '.join(facts)}" if text else ", ".join(facts)
        if self.hint is not None:
            text = f"{text}; {self.hint}" if text else self.hint
        if self.at is not None:
            text = f"{text} (asked for at {self.at})"
        return text


class ShapeError(BaregradError, ValueError):
    """Shapes, sizes or axes that do not fit together."""


class DTypeError(BaregradError, TypeError):
    """Dtypes that an operation does not accept or cannot combine."""


class DeviceError(BaregradError):
    """Tensors on different devices, or a device name that does not exist."""


class IndexOutOfRange(BaregradError, IndexError):
    """An index or an axis outside its range."""


class ArgumentError(BaregradError, ValueError):
    """An argument that is none of those a function takes, shapes and dtypes aside."""


class OptionError(BaregradError, ValueError):
    """An option that does not exist, or a value that it does not take."""


class LinAlgError(BaregradError, ValueError):
    """A matrix that has not what was asked of it, such as an inverse or a Cholesky factor."""


class GradientError(BaregradError):
    """A gradient that was asked for and does not exist."""


class QueueFull(BaregradError):
    """More work is waiting than a queue holds; it can be asked for again later."""


class JitError(BaregradError):
    """A captured function that cannot be captured or replayed as it stands."""


class ScheduleError(BaregradError, ValueError):
    """A step of a schedule that is not legal for the kernel it is applied to."""


class UnsupportedError(BaregradError):
    """A correct request that this version or this device does not offer."""


class UnsupportedDType(UnsupportedError):
    """A dtype that is not offered here."""


class UnsupportedDevice(UnsupportedError):
    """A device that this version does not drive."""


class UnsupportedLayout(UnsupportedError):
    """A memory layout that is not offered here."""


class FileFormatError(BaregradError, ValueError):
    """A file that is broken, truncated, hostile, or not of the format that it claims."""


class MissingDependency(BaregradError, ImportError):
    """An optional package that is needed and not installed.

    `package` is the missing one and `extra` the extra of baregrad that brings it.
    """

    def __init__(
        self,
        message: str = "",
        *,
        package: str = "",
        extra: str = "",
        found: object = None,
        wanted: object = None,
        hint: str | None = None,
        at: str | UserFrame | None = None,
    ) -> None:
        if not message:
            message = f"the package {package!r} is needed and not installed"
        if hint is None and extra:
            hint = f'install it with: pip install "baregrad[{extra}]"'
        super().__init__(message, found=found, wanted=wanted, hint=hint, at=at)
        self.package = package
        self.extra = extra


class WorkerDied(BaregradError):
    """A process that reads data for this one ended by itself."""


class OutOfMemory(BaregradError, MemoryError):
    """A device, or the host, has no room left for an allocation."""


class DriverError(BaregradError):
    """The operating system or a driver refused a call.

    Where it was a driver's ioctl, `ioctl` names it (or the function of the driver's library),
    `struct` what it was given, and `status` the driver's answer, whose number is `code`; an error
    of the operating system leaves its own name there (EINVAL) and `code` 0.
    """

    def __init__(
        self,
        message: str = "",
        *,
        ioctl: str = "",
        struct: str = "",
        status: str = "",
        code: int = 0,
        found: object = None,
        wanted: object = None,
        hint: str | None = None,
        at: str | UserFrame | None = None,
    ) -> None:
        if ioctl:
            call = f"{ioctl} with {struct}" if struct else ioctl
            message = f"{message}: {call}" if message else call
            message = f"{message} gave {status}" if status else message
        super().__init__(message, found=found, wanted=wanted, hint=hint, at=at)
        self.ioctl = ioctl
        self.struct = struct
        self.status = status
        self.code = code


class CompileError(BaregradError):
    """A compiler refused our source; `source` is that text and `log` what the compiler said."""

    def __init__(
        self,
        message: str = "the compiler refused the generated source",
        *,
        source: str = "",
        log: str = "",
        found: object = None,
        wanted: object = None,
        hint: str | None = None,
        at: str | UserFrame | None = None,
    ) -> None:
        super().__init__(message, found=found, wanted=wanted, hint=hint, at=at)
        self.source = source
        self.log = log

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}\n{self.log.rstrip()}" if self.log else text


class ChangedPipeline(CompileError):
    """An assembler would make instructions wait that were to run beside each other."""


class CompilerBug(BaregradError):
    """A mistake in baregrad's own compiler.

    `ir_text` is saved to a file named after its content in `folder` (the system's temporary one by
    default), whose path is `path`; the message says how to replay it. Where the file cannot be
    written, `path` is None and the text is still held in `ir_text`.
    """

    def __init__(
        self,
        message: str = "the compiler met a state that it should never reach",
        *,
        ir_text: str = "",
        folder: str | Path | None = None,
        found: object = None,
        wanted: object = None,
        hint: str | None = None,
        at: str | UserFrame | None = None,
    ) -> None:
        self.ir_text = ir_text
        self.path = _save(ir_text, folder) if ir_text else None
        if self.path is not None and hint is None:
            hint = (
                f"this is a bug in baregrad; the IR is saved in {self.path}, "
                f"replay it with: baregrad explain {self.path}"
            )
        super().__init__(message, found=found, wanted=wanted, hint=hint, at=at)


class VerifyError(CompilerBug):
    """IR that breaks the grammar of its level."""


def _save(text: str, folder: str | Path | None) -> Path | None:
    """Write `text` to a file named after its content and return the path, None on failure."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = Path(folder or tempfile.gettempdir()) / f"baregrad-bug-{digest}.ir"
    try:
        path.write_text(text)
    except OSError:
        # The error being raised matters more than the file that describes it.
        return None
    return path
