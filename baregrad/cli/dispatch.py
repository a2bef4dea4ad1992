"""The table of subcommands, and what happens around each: help, errors, exit status.

Exit status: 0 done, 1 the command found something wrong, 2 an error of baregrad's tree or a wrong
command line, 130 interrupted.
"""

from __future__ import annotations

import argparse
import errno
import gc
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import baregrad
from baregrad.base.collecting import uncollected
from baregrad.base.errors import BaregradError
from baregrad.base.options import options


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand: `module` has a `main(argv)` that returns an exit status or None.

    The module is imported only when the command is called.
    """

    name: str
    help: str
    module: str

    def load(self) -> Callable[[list[str]], int | None]:
        """Return the function that runs the command."""
        function: Callable[[list[str]], int | None] = importlib.import_module(self.module).main
        return function


COMMANDS = (
    Command("bench", "time the same work in ours and in other frameworks, and compare results",
            "baregrad.apps.bench"),
    Command("chat", "talk to a language model in the terminal", "baregrad.llm.commands.chat"),
    Command("demo", "train or run a real model: demo digits, demo embed TEXT...",
            "baregrad.apps.demo"),
    Command("diff", "find the operation where a device first differs from a reference",
            "baregrad.apps.diff.main"),
    Command("doctor", "say what each device needs, what was found and what to do",
            "baregrad.cli.doctor"),
    Command("dtypes", "print the dtypes, their limits and the promotion table",
            "baregrad.cli.dtype_table"),
    Command("explain", "print a program after any pass of the compiler",
            "baregrad.engine.explain"),
    Command("generate", "continue a text with a language model",
            "baregrad.llm.commands.generate"),
    Command("info", "print how the GPUs are, versions and places", "baregrad.cli.info"),
    Command("onnx", "show an ONNX model, run it and compare with onnxruntime",
            "baregrad.io.onnx.command"),
    Command("ops", "print every operation: arguments, dtypes, gradient, a call that works",
            "baregrad.testing.op_page.page"),
    Command("options", "print every option, its meaning and its value",
            "baregrad.cli.option_table"),
    Command("plan", "say what a language model takes in memory, before it is loaded",
            "baregrad.llm.commands.plan"),
    Command("profile", "run a program and say what took the time", "baregrad.profiling.command"),
    Command("quantize", "write a language model with smaller weights, as a GGUF file",
            "baregrad.llm.commands.quantize"),
    Command("search", "run a program and search for faster schedules of its kernels",
            "baregrad.apps.search"),
    Command("serve", "serve a language model over HTTP, in the usual protocols",
            "baregrad.llm.commands.serve"),
    Command("trace", "show what a program asks of the NVIDIA driver, by name",
            "baregrad.trace.command"),
    Command("viz", "look at a program's lines, kernels and graphs in a browser",
            "baregrad.viz.command"),
)


# Of a disk or a device that takes no more.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `baregrad` command with `argv` (the process's by default); return its exit status."""
    try:
        try:
            return _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            # Not at exit, where Python would tell of what cannot be written in its own way.
            sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        _drop_output()
        return 0
    except OSError as error:
        if error.errno not in _FULL or _wants_traceback():
            raise
        _drop_output()
        print(f"baregrad: error: nothing more can be written: {error}", file=sys.stderr)
        return 2


def _run(words: list[str]) -> int:
    split = next((at for at, word in enumerate(words) if not word.startswith("-")), len(words))
    chosen = _parser().parse_args(words[: split + 1]).command
    command = next(one for one in COMMANDS if one.name == chosen)
    try:
        with uncollected:
            run = command.load()
        # What was imported stays: no search need go through it again.
        gc.freeze()
        return run(words[split + 1 :]) or 0
    except BaregradError as error:
        if _wants_traceback():
            traceback.print_exc()
        else:
            print(f"baregrad: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("baregrad: interrupted", file=sys.stderr)
        return 130


def _drop_output() -> None:
    """Have what is left of the output go nowhere: Python would complain once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    listing = "\n".join(f"  {one.name:<10} {one.help}" for one in COMMANDS)
    parser = argparse.ArgumentParser(
        prog="baregrad",
        usage="baregrad [--version] COMMAND ...",
        description="Deep learning from arrays to machine code.",
        epilog=f"commands:\n{listing}\n\n`baregrad COMMAND --help` says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"baregrad {baregrad.__version__}")
    parser.add_argument(
        "command",
        metavar="COMMAND",
        choices=[one.name for one in COMMANDS],
        help=argparse.SUPPRESS,
    )
    return parser


def _wants_traceback() -> bool:
    try:
        return options.debug >= 1
    except BaregradError:
        # The options themselves are what is wrong.
        return False
