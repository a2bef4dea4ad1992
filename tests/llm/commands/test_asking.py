"""The commands that ask a model, with a small one: what they write, refuse and survive."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from baregrad.base.errors import ArgumentError, UnsupportedError
from baregrad.engine.session import current_session
from baregrad.llm.commands import chat, generate, plan
from baregrad.llm.commands.asking import show
from baregrad.llm.generation.opened import (
    CHUNK,
    GPU_CHUNK,
    EngineSettings,
    memory_of_engine,
    open_to_ask,
)
from baregrad.llm.generation.request import AnswerPiece, Stream
from baregrad.llm.generation.sampling import Sampling
from baregrad.llm.generation.stepper import TokenChoice, TokenRow
from baregrad.runtime.host_memory import size_class
from tests.llm.commands.small_model import CONTEXT, write_model

pytest.importorskip("tokenizers", reason="byte-level vocabularies need tokenizers")
FEW = ["--max-tokens", "8", "--seed", "1", "--context", "128"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model") / "small.gguf"))


def test_generate_writes_the_same_for_one_seed(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert generate.main([file, "the quick brown", *FEW]) == 0
    first = capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.StringIO("the quick brown"))
    assert generate.main([file, "-", *FEW, "--guesses", "2"]) == 0
    assert capsys.readouterr().out == first
    assert generate.main([file, "the quick brown", *FEW, "--system", "Be short."]) == 0
    assert capsys.readouterr().out != first


def test_generate_writes_in_a_form(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("llguidance", reason="answers of a form need llguidance")
    (tmp_path / "list.gbnf").write_text('root ::= "- " [a-c]{3} ("\\n" "- " [a-c]{3})?')
    few = ["--max-tokens", "40", "--seed", "3"]
    assert generate.main([file, "a", *few, "--chat", "--grammar", str(tmp_path / "list.gbnf")]) == 0
    assert re.fullmatch(r"- [a-c]{3}(\n- [a-c]{3})?\n", capsys.readouterr().out)
    assert generate.main([file, "a", *few, "--regex", "(yes|no)!"]) == 0
    assert capsys.readouterr().out in ("yes!\n", "no!\n")


def test_generate_refuses(file: str, tmp_path: Path) -> None:
    for words, message in (
        ([file, "", "--context", "100000"], f"wanted 2 to {CONTEXT}"),
        ([file, "a", "--guesses", "-1"], "tokens guessed ahead: found -1"),
        ([file, "a" * 2000, *FEW], "longer than the context"),
        ([file, "a", "--temperature", "-1"], "temperature is a number"),
        ([str(tmp_path / "none.gguf"), "a"], "no model there"),
        ([file, "a", "--schema", str(tmp_path / "none.json")], "json_schema cannot be read"),
    ):
        with pytest.raises(ArgumentError, match=message):
            generate.main(words)


def test_chat_keeps_and_forgets_what_was_said(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    original = chat.answer

    def answer(model: Any, messages: Any, sampling: Any, notes: bool) -> None:
        asked.append([message["content"] for message in messages])
        original(model, messages, sampling, notes)

    monkeypatch.setattr(chat, "answer", answer)
    lines = "one\n\ntwo\n/help\n/quit\n/reset\nthree <|im_end|>\n"
    lines += "x" * 900 + "\nfour\n/exit\nfive\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    assert chat.main([file, *FEW, "--system", "Sys"]) == 0
    out = capsys.readouterr().out
    assert [turn[-1] for turn in asked] == ["one", "two", "three <|im_end|>", "x" * 900, "four"]
    assert asked[1][:2] == ["Sys", "one"]
    assert len(asked[1]) == 4
    assert asked[2] == ["Sys", "three <|im_end|>"]
    assert "there is no /quit" in out
    # What does not fit is told, and is no part of the conversation.
    assert "more than the context" in out
    assert "x" * 900 not in asked[4]
    assert asked[4][:2] == ["Sys", "three <|im_end|>"]


def test_chat_needs_a_template(tmp_path: Path) -> None:
    file = write_model(tmp_path / "plain.gguf", **{"tokenizer.chat_template": None})
    with pytest.raises(UnsupportedError, match="has no chat template"):
        chat.main([str(file)])


def test_an_interrupt_ends_the_answer_and_not_the_program() -> None:
    class Interrupted(Stream):
        """A stream whose reader is interrupted after its first piece."""

        def __iter__(self) -> Iterator[AnswerPiece]:
            for piece in super().__iter__():
                yield piece
                if piece.text == "text":
                    raise KeyboardInterrupt

    stream, out = Interrupted(1), io.StringIO()
    for piece in (AnswerPiece("text"), AnswerPiece("late"), AnswerPiece(reason="cancelled")):
        stream.put(piece)
    assert show(stream, out) == ("text", "cancelled")
    assert stream.is_cancelled
    assert out.getvalue() == "text"


def test_users_write_no_control_tokens(file: str) -> None:
    model = open_to_ask(file, EngineSettings(context=64))
    end = model.tokenizer.id_of("<|im_end|>")
    said = model.chat_tokens([{"role": "user", "content": "hi <|im_end|>"}])
    assert said.count(end or 0) == 1
    model.close()


def test_defaults_of_the_file_give_way_to_what_is_chosen(tmp_path: Path) -> None:
    more = {"general.sampling.temp": 0.25, "general.sampling.top_k": 7}
    model = open_to_ask(write_model(tmp_path / "own.gguf", **more), EngineSettings(context=64))
    found = model.sampling(top_k=None, top_p=0.5)
    assert found == Sampling(temperature=0.25, top_k=7, top_p=0.5)
    found = model.sampling({"temperature": 0.8, "top_p": 0.9, "min_p": 0.1}, top_p=0.5)
    assert found == Sampling(temperature=0.25, top_k=7, top_p=0.5, min_p=0.1)
    model.close()


def test_plan_tells_what_there_is(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main([file, "--context", "256"]) == 0
    told = capsys.readouterr().out
    for word in ("weights", "cache", "workspace", "together", "it fits"):
        assert word in told
    assert plan.main([file, "--context", "256", "--memory", "0.00001"]) == 1
    assert "does not fit" in capsys.readouterr().out
    for option, value, words in (
        ("--contexts", "0", "contexts in the cache"), ("--memory", "0", "is a size"),
        ("--memory", "inf", "is a size"),
    ):
        with pytest.raises(ArgumentError, match=words):
            plan.main([file, option, value])


def test_figures_are_those_of_the_cache_that_is_made(file: str) -> None:
    settings = EngineSettings(context=256, cache="q8_0", contexts=2)
    model = open_to_ask(file, settings)
    figures = memory_of_engine(model.decoder.traits, model.files.source.types, settings)
    arrays = [a for layer in model.engine.stepper.cache.layers for a in layer.arrays]
    assert figures.cache == sum(a.numel() * a.dtype.itemsize for a in arrays)
    assert isinstance(figures.workspace, int)
    assert figures.workspace > 0
    model.close()


def test_the_workspace_is_that_of_the_steps_of_an_engine(file: str) -> None:
    settings = EngineSettings(context=128, chunk=64, rows=3)
    model = open_to_ask(file, settings, chats=False)
    figures = memory_of_engine(model.decoder.traits, model.files.source.types, settings)
    stepper, used = model.engine.stepper, []
    choice = TokenChoice(Sampling(), 0)
    pages = list(range(1, 9))
    watching = current_session().watching

    def note(run: Any) -> None:
        nbytes = run.executable.arena_nbytes(run.program.variables)
        used.append(size_class(nbytes) if nbytes else 0)

    watching.observers.append(note)
    stepper.run_chunk([1] * 64, 0, pages, None)
    stepper.run_chunk([1] * 64, 64, pages, choice)
    stepper.run_rows([TokenRow(1, at, pages, choice) for at in (125, 126, 127)])
    watching.observers.remove(note)
    assert sum(used) * 0.95 <= figures.workspace <= sum(used) * 1.05
    model.close()


def test_activations_are_what_matrix_units_take() -> None:
    for given, wanted in (
        ({"device": "CPU"}, ("float32", "f16")), ({"device": "NV:1"}, ("bfloat16", "bf16")),
        ({"device": "NV", "dtype": "float32"}, ("float32", "f16")),
        ({"device": "CUDA", "cache": "q8_0"}, ("bfloat16", "q8_0")),
    ):
        settings = EngineSettings(**given)
        assert (settings.activations, settings.cache_type) == wanted


def test_a_gpu_takes_more_of_a_prompt_at_once() -> None:
    assert EngineSettings(device="CPU").prompt_chunk == CHUNK
    assert EngineSettings(device="NV:1").prompt_chunk == GPU_CHUNK
    assert EngineSettings(device="NV", chunk=64).prompt_chunk == 64
