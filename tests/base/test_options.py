from __future__ import annotations

import contextvars
import threading
from pathlib import Path

import pytest

from baregrad.base.errors import OptionError
from baregrad.base.options import Options, parse_environment


def test_an_empty_environment_gives_the_defaults() -> None:
    options = Options({})
    for row in Options.table():
        assert getattr(options, row.name) == row.default


@pytest.mark.parametrize("variable,text,name,value", [
    ("BAREGRAD_DEBUG", "3", "debug", 3),
    ("DEBUG", "2", "debug", 2),
    ("BEAM", "4", "beam", 4),
    ("BAREGRAD_BEAM", "8", "beam", 8),
    ("BAREGRAD_DEVICE", "ref", "device", "REF"),
    ("NULL", "1", "device", "NULL"),
    ("NV", "1", "device", "NV"),
    ("CUDA", "yes", "device", "CUDA"),
    ("CPU", "0", "device", "CPU"),
    ("BAREGRAD_DEVICE", "nv:1", "device", "NV:1"),
    ("BAREGRAD_DEVICE", "CUDA:3", "device", "CUDA:3"),
    ("BAREGRAD_JIT_CHECK", "on", "jit_check", True),
    ("BAREGRAD_CACHE", "0", "cache", False),
    ("BAREGRAD_CACHE_DIR", "/tmp/x", "cache_dir", Path("/tmp/x")),
    ("BAREGRAD_CPU_RENDERER", "c", "cpu_renderer", "c"),
    ("BAREGRAD_GPU_RENDERER", "cuda", "gpu_renderer", "cuda"),
    ("BAREGRAD_REF_LEVEL", "loop", "ref_level", "loop"),
    ("BAREGRAD_THREADS", "2", "threads", 2),
    ("BAREGRAD_SEED", "18446744073709551615", "seed", 2**64 - 1),
    ("BAREGRAD_VERIFY", "true", "verify", True),
    ("BAREGRAD_DEBUG", "", "debug", 0),
    ("PATH", "anything", "debug", 0),
])
def test_the_environment_is_read(variable: str, text: str, name: str, value: object) -> None:
    assert getattr(Options({variable: text}), name) == value


@pytest.mark.parametrize("environ,words", [
    ({"BAREGRAD_DEBG": "1"}, ["BAREGRAD_DEBG", "did you mean 'BAREGRAD_DEBUG'"]),
    ({"BAREGRAD_QWXQWXJQ": "1"}, ["BAREGRAD_QWXQWXJQ", "baregrad options"]),
    ({"BAREGRAD_DEBUG": "9"}, ["BAREGRAD_DEBUG", "found 9", "wanted 0..6"]),
    ({"BAREGRAD_DEBUG": "loud"}, ["found 'loud'", "wanted 0..6"]),
    ({"BAREGRAD_CACHE": "2"}, ["found '2'", "wanted 0 | 1"]),
    ({"BAREGRAD_DEVICE": "GPU"}, ["found 'GPU'", "CPU | REF | NULL | NV | CUDA"]),
    ({"BAREGRAD_DEVICE": "CPU:1"}, ["found 'CPU:1'"]),
    ({"BAREGRAD_DEVICE": "NV:"}, ["found 'NV:'"]),
    ({"BAREGRAD_REF_LEVEL": "Tensor"}, ["tensor | kernel | loop | linear"]),
    ({"BAREGRAD_SEED": "-1"}, ["BAREGRAD_SEED", "found -1"]),
    ({"CPU": "1", "REF": "1"}, ["CPU=1 and REF=1", "wanted one of them", "BAREGRAD_DEVICE"]),
    ({"BAREGRAD_DEVICE": "CPU", "REF": "1"}, ["BAREGRAD_DEVICE=CPU and REF=1"]),
    ({"CPU": "haswell"}, ["found 'haswell'", "BAREGRAD_DEVICE=CPU"]),
    ({"DEBUG": "true"}, ["DEBUG", "found 'true'", "BAREGRAD_DEBUG"]),
])
def test_a_bad_environment_is_refused(environ: dict[str, str], words: list[str]) -> None:
    with pytest.raises(OptionError) as caught:
        _ = Options(environ).debug
    for word in words:
        assert word in str(caught.value)


def test_the_full_name_wins_over_short_names_meant_for_others() -> None:
    environ = {"BAREGRAD_DEBUG": "1", "DEBUG": "app:*", "BAREGRAD_DEVICE": "REF", "CPU": "haswell"}
    assert Options(environ).debug == 1
    assert Options(environ).device == "REF"


def test_the_environment_is_parsed_once() -> None:
    environ = {"BAREGRAD_DEBUG": "1"}
    options = Options(environ)
    assert options.debug == 1
    environ["BAREGRAD_DEBUG"] = "2"
    assert options.debug == 1


def test_an_override_nests_and_ends_with_its_block() -> None:
    options = Options({"BAREGRAD_BEAM": "2"})
    with options.override(debug=2):
        with options.override(debug=3, cache=False):
            assert (options.debug, options.beam, options.cache) == (3, 2, False)
        assert (options.debug, options.cache) == (2, True)
    assert options.debug == 0


def test_an_override_ends_on_an_error_too() -> None:
    options = Options({})
    with pytest.raises(KeyError), options.override(debug=2):
        raise KeyError
    assert options.debug == 0


def test_an_override_stays_in_its_thread_unless_the_context_is_copied() -> None:
    options = Options({})
    seen: list[int] = []
    with options.override(debug=2):
        context = contextvars.copy_context()
        threads = [
            threading.Thread(target=lambda: seen.append(options.debug)),
            threading.Thread(target=lambda: context.run(lambda: seen.append(options.debug))),
        ]
        for thread in threads:
            thread.start()
            thread.join()
    assert seen == [0, 2]


@pytest.mark.parametrize("changes,word", [
    ({"debgu": 1}, "did you mean 'debug'?"),
    ({"debug": 7}, "wanted 0..6"),
    ({"debug": "1"}, "found '1'"),
    ({"debug": True}, "found True"),
    ({"cache": 1}, "found 1"),
    ({"device": "GPU"}, "'GPU'"),
])
def test_a_bad_override_is_refused(changes: dict[str, object], word: str) -> None:
    with pytest.raises(OptionError, match="option") as caught, Options({}).override(**changes):
        pass
    assert word in str(caught.value)


def test_options_cannot_be_assigned() -> None:
    options = Options({})
    with pytest.raises(OptionError, match="override"):
        options.debug = 2
    with pytest.raises(OptionError, match="did you mean 'debug'"):
        options.debgu = 2  # type: ignore[attr-defined]


def test_every_row_is_complete_and_its_default_allowed() -> None:
    names = [row.variable for row in Options.table()]
    shorts = [name for row in Options.table() for name in (*row.aliases, *row.flags)]
    assert len(set(names + shorts)) == len(names) + len(shorts)
    for row in Options.table():
        assert row.help.endswith(".")
        assert row.describe_allowed()
        assert row.check(row.default, "default") == row.default


@pytest.mark.parametrize("name", ["VIZ", "PROFILE", "BAREGRAD_VIZ", "BAREGRAD_PROFILE"])
def test_zero_switches_files_off_as_it_does_all_else(name: str) -> None:
    assert parse_environment({name: "0"}) == parse_environment({})
    assert parse_environment({name: "00"}) != parse_environment({})


def test_options_begin_in_a_block_and_last() -> None:
    given = Options({})
    with given.override(debug=1):
        given.begin(threads=3)
        assert (given.threads, given.debug) == (3, 1)
    assert (given.threads, given.debug) == (3, 0)
    with pytest.raises(OptionError):
        given.begin(thread=3)
    found: list[int] = []
    other = threading.Thread(target=lambda: found.append(given.threads))
    other.start()
    other.join()
    assert found == [3]
