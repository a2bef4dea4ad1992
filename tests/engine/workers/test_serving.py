"""The loop of a worker: an error is an answer, and so is what the options are."""

from __future__ import annotations

from pathlib import Path

from baregrad.engine.workers.child import Child

PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from baregrad.base.errors import DriverError, ShapeError
from baregrad.base.options import options
from baregrad.engine.workers.serving import serve

def answer(header, blobs):
    print("not an answer")
    errors = {"shape": ShapeError("odd"), "device": DriverError("lost"), "other": KeyError("k")}
    if header["ask"] in errors:
        raise errors[header["ask"]]
    return {"verify": options.verify, "cache_dir": str(options.cache_dir)}, blobs[::-1]

serve(json.loads(sys.argv[2]), lambda: answer)
"""


def test_errors_are_answers_and_options_hold(tmp_path: Path) -> None:
    child = Child({"verify": True, "cache_dir": str(tmp_path)}, PROGRAM)
    try:
        for word, wanted in (
            ("shape", {"error": "ShapeError: odd"}),
            ("device", {"error": "DriverError: lost", "faulted": True}),
            ("other", {"error": "KeyError: 'k'"}),
        ):
            assert child.ask({"ask": word}) == (wanted, [])
        answer, blobs = child.ask({"ask": "options"}, [b"a", b"b"])
        assert answer == {"verify": True, "cache_dir": str(tmp_path)} and blobs == [b"b", b"a"]
        assert child.started == 1
    finally:
        child.kill()
