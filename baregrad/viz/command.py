"""`baregrad viz FILE`: look at a program's lines, kernels and graphs, or at a profile.

FILE is a Python program, which is run on the NULL device so that nothing is computed, a file that
`--save` wrote, on this machine or another, or a profile or trace with a timeline.
"""

from __future__ import annotations

import argparse
import sys
import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from zipfile import is_zipfile

from baregrad.base.errors import ArgumentError, OptionError
from baregrad.base.places import check_writable
from baregrad.target.gpu import GPU_ROWS
from baregrad.viz.filed import Documents, FiledDocuments, save
from baregrad.viz.server import PageServer


def parser() -> argparse.ArgumentParser:
    """The command line of `baregrad viz`."""
    result = argparse.ArgumentParser(
        prog="baregrad viz",
        description="Look at a program's lines, kernels and graphs, or at a profile, in a browser "
        "on this machine.",
    )
    result.add_argument("file", type=Path, help="a Python program, what --save wrote, or a profile")
    result.add_argument(
        "--target", metavar="|".join(row.name for row in GPU_ROWS),
        help="kernels for a GPU of this generation, which need not be there",
    )
    result.add_argument("--save", type=Path, metavar="F", help="write it to a file and stop")
    result.add_argument("--port", type=int, default=0, help="the port of the page; any free one")
    result.add_argument(
        "--no-browser", action="store_true", help="print the address and open no browser"
    )
    return result


def main(argv: Sequence[str]) -> int:
    """Run `baregrad viz`; 0 when the page was closed, by Ctrl-C, or the file written."""
    arguments = parser().parse_args(argv)
    if arguments.save is not None:
        check_place(arguments.save)
    documents = open_documents(arguments.file, arguments.target)
    if arguments.save is not None:
        save(documents, arguments.save)
        print(f"wrote {arguments.save}: `baregrad viz {arguments.save}` shows it")
        return 0
    show(documents, arguments.file.name, arguments.port, browser=not arguments.no_browser)
    return 0


def show(documents: Documents, title: str, port: int = 0, *, browser: bool = True) -> None:
    """Serve the page of some documents until Ctrl-C. Raises OptionError without a free port."""
    try:
        server = PageServer(documents, port)
    except (OSError, OverflowError) as error:
        raise OptionError(
            "the page's port cannot be had", found=f"{port}: {error}",
            wanted="a free port", hint="leave --port out for any that is free",
        ) from error
    server.make_ready()
    print(f"{title} at {server.url} (Ctrl-C ends it)", flush=True)
    if browser:
        # One in the terminal runs until it is left, and asks for the page meanwhile.
        threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print(file=sys.stderr)
    finally:
        server.server_close()


def check_place(path: Path) -> None:
    """Raise ArgumentError where no recording can be written, before a program is run for it."""
    if path.suffix == ".py":
        raise ArgumentError(
            "a recording under this name would be taken for a program", found=str(path),
            wanted="another ending than .py",
        )
    check_writable(path, "the recording cannot be written there")


def open_documents(path: Path, gpu: str | None = None) -> Documents:
    """The documents of a program, which is run, of a saved recording, or of a profile."""
    if not path.is_file():
        raise ArgumentError(
            "there is no such file", found=str(path),
            wanted="a Python program, a profile, or what `baregrad viz PROGRAM --save FILE` wrote",
        )
    if path.suffix != ".py":
        if gpu is not None:
            raise ArgumentError(
                "a saved recording has the target that it was made for", found=f"--target {gpu}",
                hint="record the program again",
            )
        if is_zipfile(path):
            return FiledDocuments(path)
        from baregrad.viz.timeline import TimelineDocuments

        return TimelineDocuments(path)
    # The compiler is imported for a program alone: what was recorded opens without it.
    from baregrad.viz.documents import RecordedDocuments
    from baregrad.viz.recording import record

    recording = record(path, gpu)
    if not recording.computations:
        raise ArgumentError(
            "the program computes nothing", found=str(path), wanted="a program that asks for values"
        )
    return RecordedDocuments(recording)
