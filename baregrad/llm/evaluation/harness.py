"""A model as `lm_eval` asks for it: log-likelihoods of texts behind others, and answers.

Facts of the interface are lm_eval 0.4's: `lm_eval.api.model.TemplateLM`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Protocol, TypeVar

from baregrad.base.errors import MissingDependency, UnsupportedError
from baregrad.llm.generation.engine import AnswerEngine
from baregrad.llm.generation.opened import EngineSettings, OpenedModel, open_to_ask
from baregrad.llm.generation.request import AnswerRequest, Stream
from baregrad.llm.generation.sampling import Sampling
from baregrad.llm.text.templates import ChatTemplate
from baregrad.llm.text.tokenizer import Tokenizer

T = TypeVar("T")
# Requests that wait in the engine: enough to fill its rows, few enough for its queue.
_AT_ONCE = 64
_TOKENS = 256


class AskedModel(Protocol):
    """What of an opened model is used."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokeniser."""

    @property
    def template(self) -> ChatTemplate | None:
        """Its chat template, or None."""

    @property
    def engine(self) -> AnswerEngine:
        """What answers, and has been started."""


class HarnessModel:
    """Scores and continues texts for lm_eval; `harness_class` makes it one of lm_eval's models."""

    backend = "causal"

    def __init__(self, model: AskedModel) -> None:
        super().__init__()
        self._model = model

    @classmethod
    def create_from_arg_obj(
        cls, arguments: Mapping[str, Any], more: Mapping[str, Any] | None = None
    ) -> HarnessModel:
        """Open a model: `path`, and any of EngineSettings.

        What lm_eval adds as `more`, a device of PyTorch and a size of batches, says nothing here.
        """
        chosen = dict(arguments)
        path = chosen.pop("path")
        model: OpenedModel = open_to_ask(path, EngineSettings(**chosen))
        model.engine.start()
        return cls(model)

    # --- what lm_eval asks about the model -------------------------------------------------------

    @property
    def eot_token_id(self) -> int | None:
        """The token that ends a text."""
        return self._model.tokenizer.eos

    @property
    def prefix_token_id(self) -> int | None:
        """What stands before a text that nothing comes before."""
        bos = self._model.tokenizer.bos
        return self.eot_token_id if bos is None else bos

    @property
    def max_length(self) -> int:
        """How many tokens another one may be predicted from."""
        # The engine's context has room for what is predicted, and for one token of an answer.
        return self._model.engine.stepper.context - 2

    @property
    def max_gen_toks(self) -> int:
        """How many tokens an answer has at most where a task says nothing."""
        return _TOKENS

    @property
    def tokenizer_name(self) -> str:
        """What answers that lm_eval keeps are told apart by."""
        return self._model.name

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **options: Any
    ) -> list[int]:
        """Return the tokens of a text, behind what the model's texts begin with."""
        tokenizer = self._model.tokenizer
        tokens = tokenizer.encode(
            string, specials=True, add_bos=False if add_special_tokens is False else None
        )
        if tokens[:2] == [tokenizer.bos] * 2:
            del tokens[0]
        return tokens

    def tok_decode(self, tokens: Sequence[int], **options: Any) -> str:
        """Return the text of tokens."""
        return self._model.tokenizer.decode(tokens)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the model's own template."""
        return None if self._model.template is None else self._model.template.text

    def apply_chat_template(
        self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Return the prompt of a chat."""
        if self._model.template is None:
            raise UnsupportedError(f"{self._model.name} has no chat template")
        return self._model.template.render(
            chat_history, add_generation_prompt=add_generation_prompt
        )

    # --- what lm_eval asks the model -------------------------------------------------------------

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **options: Any
    ) -> list[tuple[float, bool]]:
        """Return log-likelihoods of the second tokens behind the first, and if they are greedy."""
        return self._answers((self._scored(*tokens) for _, *tokens in requests), _likelihood)

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Return log-likelihoods of whole texts, in windows of the context."""
        totals = [0.0] * len(requests)
        windows = [
            (number, window)
            for number, request in enumerate(requests)
            for window in self._windows(self.tok_encode(request.args[0]))
        ]
        found = self._answers((self._scored(*window) for _, window in windows), _likelihood)
        for (number, _), (value, _) in zip(windows, found, strict=True):
            totals[number] += value
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return what continues texts, up to the stops that each request names."""
        asked = (self._asked(*request.args) for request in requests)
        return self._answers(asked, lambda stream: stream.text())

    def close(self) -> None:
        """End what was opened."""
        self._model.engine.close()
        if self._model.template is not None:
            self._model.template.close()

    # --- requests --------------------------------------------------------------------------------

    def _scored(self, before: Sequence[int], tokens: Sequence[int]) -> AnswerRequest:
        """Return the request for scores of tokens; of too much before them the end is kept."""
        whole = [*before, *tokens][-(self.max_length + 1) :]
        settings = Sampling(temperature=0.0, max_tokens=1, logprobs=1)
        return AnswerRequest(whole, settings, scored_from=max(len(whole) - len(tokens), 0))

    def _asked(self, text: str, options: Mapping[str, Any]) -> AnswerRequest:
        stops = options.get("until") or ()
        most = int(options.get("max_gen_toks") or self.max_gen_toks)
        settings = Sampling(
            temperature=float(options.get("temperature") or 0.0),
            top_p=float(options.get("top_p") or 1.0), max_tokens=most, seed=0,
            stops=(stops,) if isinstance(stops, str) else tuple(filter(None, stops)),
        )
        room = max(self.max_length - most, 1)
        return AnswerRequest(self.tok_encode(text)[-room:], settings)

    def _windows(self, tokens: Sequence[int]) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """Yield parts of a text, each behind what of the text before it has room."""
        prefix = self.prefix_token_id
        whole = [*([] if prefix is None else [prefix]), *tokens]
        most, done = self.max_length, len(whole) - len(tokens)
        while done < len(whole):
            end = min(done + most, len(whole))
            yield whole[max(end - most - 1, 0) : done], whole[done:end]
            done = end

    def _answers(
        self, requests: Iterable[AnswerRequest], read: Callable[[Stream], T]
    ) -> list[T]:
        """Return what is read of each request's answer, some of them at once."""
        waiting: deque[Stream] = deque()
        found: list[T] = []
        for request in requests:
            if len(waiting) == _AT_ONCE:
                found.append(read(waiting.popleft()))
            waiting.append(self._model.engine.submit(request))
        return found + [read(stream) for stream in waiting]


def _likelihood(stream: Stream) -> tuple[float, bool]:
    rows = [row for piece in stream for row in piece.prompt if row.logprob is not None]
    total = sum(row.logprob for row in rows if row.logprob is not None)
    return total, all(row.best[0][0] == row.token for row in rows)


@cache
def harness_class() -> Any:
    """Return the class of lm_eval's models that ours are, known to it as "baregrad".

    Raises MissingDependency where there is no lm_eval.
    """
    try:
        from lm_eval.api.model import TemplateLM
        from lm_eval.api.registry import register_model
    except ImportError as error:
        raise MissingDependency(package="lm_eval", extra="eval") from error
    made = type("BaregradModel", (HarnessModel, TemplateLM), {})
    return register_model("baregrad")(made)
