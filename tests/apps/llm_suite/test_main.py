"""The suite of language models with a small one, alone and beside one that answers by itself."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from baregrad.apps import bench
from baregrad.apps.llm_suite import main as suite
from baregrad.base.errors import ArgumentError, MissingDependency
from baregrad.llm.generation.opened import EngineSettings, open_to_ask
from tests.llm.commands.small_model import write_model

pytest.importorskip("tokenizers", reason="byte-level vocabularies need tokenizers")
FEW = ["--prompt", "40", "--decode", "6", "--rounds", "1"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    more = {"llama.context_length": 1024}
    return str(write_model(tmp_path_factory.mktemp("model") / "small.gguf", **more))


def test_our_side_alone(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--suite", "llm", file, *FEW]) == 0
    out = capsys.readouterr().out
    for name in ("prompt 40", "decode 6", "decode, 16 at once"):
        assert name in out


def test_texts_may_part_where_two_are_close(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = open_to_ask(file, EngineSettings(context=320, rows=2))
    ours = suite.OurSide(model)

    class Other:
        """Our own answers, but for one token in each."""

        def __call__(self, prompt: list[int], count: int) -> suite.Measured:
            found = ours(prompt, count)
            found.tokens[7] += 1
            return found

    monkeypatch.setattr(suite, "TEXTS", suite.TEXTS[:2])
    assert suite._compare(model, ours, Other()) == 1
    assert "parts after 7 tokens" in capsys.readouterr().out
    monkeypatch.setattr(suite, "CLOSE", 1e9)
    assert suite._compare(model, ours, Other()) == 0
    assert suite._compare(model, ours, ours) == 0
    assert f"the same {suite.TEXT_TOKENS} tokens" in capsys.readouterr().out
    model.close()


@pytest.mark.skipif(find_spec("llama_cpp") is not None, reason="llama.cpp is there")
def test_a_peer_that_is_not_there_is_told(file: str) -> None:
    with pytest.raises(MissingDependency, match="llama.cpp does not run"):
        suite.LlamaCppSide(sys.executable, file, 1, 64)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no model there"):
        suite.main([str(tmp_path / "none.gguf")])
