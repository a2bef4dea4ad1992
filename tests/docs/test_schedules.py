"""What docs/schedules.md shows is what happens: its examples run as they stand."""

from __future__ import annotations

import doctest
import re

import pytest

from baregrad.base.errors import CompilerBug
from baregrad.ir.analysis.outline import outline
from baregrad.kernel import Schedule, lower
from baregrad.kernel.language.schedule import _WORDS
from baregrad.testing.examples import nests
from baregrad.testing.examples.levels import example_target
from tests.house.source import ROOT

PAGE = (ROOT / "docs" / "schedules.md").read_text()
BLOCKS = re.findall(r"^```pycon\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_examples_of_the_page_run() -> None:
    text = "\n".join(BLOCKS)
    test = doctest.DocTestParser().get_doctest(text, {}, "schedules.md", "docs/schedules.md", 0)
    assert len(test.examples) > 30
    told: list[str] = []
    results = doctest.DocTestRunner(verbose=False).run(test, out=told.append)
    assert results.failed == 0, "".join(told)


def test_every_word_of_the_language_has_an_example() -> None:
    code = "\n".join(BLOCKS)
    words = {*_WORDS, "vectorise", "unroll", "parallelise"}
    assert {word for word in words if f"{word}(" in code} == words


@pytest.mark.parametrize("title", [
    "split", "specialise", "collapse", "reorder", "bind", "vectorise", "unroll", "stage: an input",
    "stage: a factor", "stage: a sum", "swizzle and pad", "epilogue", "tensorize", "stream tiles",
    "pipeline", "roles", "persist", "clusters", "stage output",
])
def test_every_primitive_has_a_picture(title: str) -> None:
    section = re.search(rf"^## {re.escape(title)}.*?(?=^## )", PAGE, re.DOTALL | re.MULTILINE)
    assert section, title
    pictures = re.findall(r"^```\n(.*?)^```", section[0], re.DOTALL | re.MULTILINE)
    # A tail and a mask are drawn where splits are.
    assert pictures or title == "specialise"


def test_a_nest_that_computes_something_else_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    other = lower(nests.product(4, 4, 4), example_target(), Schedule())
    monkeypatch.setattr(nests, "lower", lambda *_: other)
    with pytest.raises(CompilerBug, match="something else"):
        nests.nest(nests.product_negated(4, 4, 4))


def test_an_outline_is_cut_and_has_a_line_a_statement() -> None:
    loop = lower(nests.product(8, 64, 32), example_target(), Schedule())
    lines = outline(loop).splitlines()
    assert [len(line) - len(line.lstrip()) for line in lines] == [0, 2, 4, 4, 6, 4]
    assert all(len(line) < 200 for line in lines)
