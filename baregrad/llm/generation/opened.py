"""A model that is ready to answer: its files, tokenizer, chat template and engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from baregrad.base.collecting import uncollected
from baregrad.base.errors import ArgumentError, UnsupportedError
from baregrad.base.options import is_gpu
from baregrad.engine.session import current_session
from baregrad.io.gguf import GgmlType, PackedWeight
from baregrad.llm.generation.constraints import AnswerForm
from baregrad.llm.generation.draft_guesser import DraftGuesser
from baregrad.llm.generation.engine import AnswerEngine
from baregrad.llm.generation.guessing import Guesser, LookupGuesser
from baregrad.llm.generation.paged_cache import PagedCache, cache_nbytes, pages_of
from baregrad.llm.generation.request import AnswerRequest, Stream
from baregrad.llm.generation.sampling import Sampling
from baregrad.llm.generation.stepper import Stepper, TokenChoice, TokenRow
from baregrad.llm.models.decoder import LanguageModel
from baregrad.llm.models.loading import ModelFiles, open_model
from baregrad.llm.models.memory import MemoryFigures, weights_nbytes, workspace_nbytes
from baregrad.llm.models.traits import DecoderTraits
from baregrad.llm.models.weights import WeightSource, WrappedWeights
from baregrad.llm.text import Tokenizer, tokenizer_of, tokenizer_of_folder
from baregrad.llm.text.templates import ChatTemplate
from baregrad.tensor import Tensor

DEFAULT_CONTEXT = 4096
# Tokens of a prompt in one step; so many fill a GPU.
CHUNK, GPU_CHUNK = 256, 2048
Advance = Callable[[int], None]


@dataclass(frozen=True)
class EngineSettings:
    """What an engine is made for.

    context: the most tokens of a prompt and its answer, None for those that the model was made for,
    DEFAULT_CONTEXT at most. rows: answers that are written at once. contexts: whole contexts that
    the cache holds. cache: the type of its keys and values, by default bf16 beside activations of
    bfloat16, else f16. dtype: of activations, by default bfloat16 on GPUs, whose matrix units take
    them, else float32. chunk: tokens of a prompt in one step, by default CHUNK, GPU_CHUNK on GPUs.
    guesses: tokens that are guessed ahead for an answer. most_waiting: requests that may wait.
    exact: products take activations as they are, where they would be rounded to integers.
    whole_cache: a host gives the memory of the whole cache when the engine begins, so that it grows
    no more; otherwise as pages are first used.
    """

    context: int | None = None
    rows: int = 8
    contexts: int = 1
    cache: str | None = None
    dtype: str | None = None
    chunk: int | None = None
    guesses: int = 0
    most_waiting: int = 256
    device: str | None = None
    exact: bool = False
    whole_cache: bool = False

    def __post_init__(self) -> None:
        for what, count, least in (
            ("tokens guessed ahead", self.guesses, 0), ("answers written at once", self.rows, 1),
            ("contexts in the cache", self.contexts, 1),
            ("requests that may wait", self.most_waiting, 0),
        ):
            if count < least:
                raise ArgumentError(what, found=count, wanted=f"{least} or more")

    def context_of(self, traits: DecoderTraits) -> int:
        """Return how many tokens a prompt and its answer may have. Raises ArgumentError."""
        if self.context is None:
            return min(traits.context, DEFAULT_CONTEXT)
        if not 2 <= self.context <= traits.context:
            raise ArgumentError(
                "the model was made for other contexts", found=f"{self.context} tokens",
                wanted=f"2 to {traits.context}",
            )
        return self.context

    @property
    def activations(self) -> str:
        """Return the dtype of activations."""
        return self.dtype or ("bfloat16" if self._is_on_gpu else "float32")

    @property
    def prompt_chunk(self) -> int:
        """Return the tokens of a prompt in one step."""
        return self.chunk or (GPU_CHUNK if self._is_on_gpu else CHUNK)

    @property
    def _is_on_gpu(self) -> bool:
        device = self.device or current_session().default_device()
        return is_gpu(device)

    @property
    def cache_type(self) -> str:
        """Return the type of cached keys and values."""
        return self.cache or ("bf16" if self.activations == "bfloat16" else "f16")

    def pages_of(self, traits: DecoderTraits) -> int:
        """Return how many pages the cache has, the empty one among them."""
        return 1 + max(self.contexts, 1) * pages_of(self.context_of(traits))


@dataclass(frozen=True)
class OpenedModel:
    """A decoder that can be asked. `template` is None where the model has none."""

    name: str
    files: ModelFiles
    decoder: LanguageModel
    tokenizer: Tokenizer
    template: ChatTemplate | None
    engine: AnswerEngine

    def sampling(self, usual: Mapping[str, Any] | None = None, /, **chosen: Any) -> Sampling:
        """Return the model's own defaults of sampling with what was chosen (None: not chosen).

        `usual` is taken where neither says anything.
        """
        own = {
            name: self.files.sampling[key]
            for name, key in _OWN_DEFAULTS if key in self.files.sampling
        }
        if "top_k" in own:
            own["top_k"] = int(own["top_k"])
        given = {name: value for name, value in chosen.items() if value is not None}
        return Sampling(**{**(usual or {}), **own, **given})

    def chat_tokens(self, messages: Sequence[Mapping[str, Any]], **more: Any) -> list[int]:
        """Return the tokens of a chat up to where the answer begins.

        What users wrote never becomes a control token. Raises UnsupportedError for a model that has
        no chat template.
        """
        if self.template is None:
            raise UnsupportedError(
                f"{self.name} has no chat template", hint="it continues texts: baregrad generate"
            )
        return self.tokenizer.encode_spans(self.template.render_spans(messages, **more))

    def ask(
        self, tokens: Sequence[int], sampling: Sampling, form: AnswerForm | None = None
    ) -> Stream:
        """Submit a prompt to the engine; an answer of a form begins at once, without a thought."""
        return self.engine.submit(AnswerRequest(tokens, sampling, form))

    def close(self) -> None:
        """End all answers."""
        self.engine.close()
        if self.template is not None:
            self.template.close()


_OWN_DEFAULTS = (
    ("temperature", "temp"), ("top_k", "top_k"), ("top_p", "top_p"), ("min_p", "min_p"),
    ("repeat_penalty", "penalty_repeat"),
)  # fmt: skip


def open_to_ask(
    model: str | os.PathLike[str] | ModelFiles,
    settings: EngineSettings | None = None,
    advance: Advance | None = None,
    draft: str | os.PathLike[str] | None = None,
    *,
    chats: bool = True,
) -> OpenedModel:
    """Open a GGUF file or a folder and make it ready to answer; `engine.start()` lets it.

    model: where it lies, or its files, already opened. advance: told bytes of weights as they are
    loaded. draft: a smaller model of the same tokens, which guesses ahead; without it guesses are
    looked up where the last tokens stood before. chats: whether chats are expected, so that what
    renders their template starts while the weights are read. Raises what reading the files raises.
    """
    with uncollected:
        return _opened(model, settings or EngineSettings(), advance, draft, chats)


def _opened(
    model: str | os.PathLike[str] | ModelFiles,
    wanted: EngineSettings,
    advance: Advance | None,
    draft: str | os.PathLike[str] | None,
    chats: bool,
) -> OpenedModel:
    files = model if isinstance(model, ModelFiles) else open_model(model, wanted.device)
    if files.is_encoder:
        raise UnsupportedError("an encoder writes no answers", found=str(files.path))
    tokenizer = tokenizer_of_files(files)
    template = chat_template_of(files, tokenizer)
    if template is not None and chats:
        template.prepare()
    if advance is not None:
        files = replace(files, source=_Watched(files.source, advance))
    decoder = files.decoder(
        context=wanted.context, dtype=wanted.activations, device=wanted.device,
        exact=wanted.exact,
    )  # fmt: skip
    stepper = _stepper(decoder, wanted)
    guesser: Guesser | None = LookupGuesser() if wanted.guesses else None
    if draft is not None:
        smaller = open_model(draft, wanted.device).decoder(
            dtype=wanted.activations, device=wanted.device, exact=wanted.exact
        )
        own = replace(wanted, context=min(stepper.context, smaller.traits.context))
        guesser = DraftGuesser(_stepper(smaller, own), stepper.words)
    engine = AnswerEngine(
        stepper, tokenizer, most_waiting=wanted.most_waiting, guesses=wanted.guesses,
        guesser=guesser,
    )
    return OpenedModel(files.path.stem, files, decoder, tokenizer, template, engine)


def _stepper(decoder: LanguageModel, wanted: EngineSettings) -> Stepper:
    traits = decoder.traits
    pages = wanted.pages_of(traits)
    cache = PagedCache(
        decoder.cache_rows(), pages, wanted.cache_type, wanted.device,
        is_touched=wanted.whole_cache,
    )  # fmt: skip
    return Stepper(
        decoder, cache, traits.words, rows=wanted.rows, chunk=wanted.prompt_chunk,
        context=wanted.context_of(traits), device=wanted.device,
    )


def tokenizer_of_files(files: ModelFiles) -> Tokenizer:
    """Return a model's tokenizer."""
    if files.folder is not None:
        return tokenizer_of_folder(files.folder)
    return tokenizer_of(files.metadata)


def chat_template_of(files: ModelFiles, tokenizer: Tokenizer) -> ChatTemplate | None:
    """Return a model's chat template, None where it has none."""
    if files.template is None:
        return None
    bos, eos = (
        "" if token is None else tokenizer.decode([token], specials=True)
        for token in (tokenizer.bos, tokenizer.eos)
    )
    return ChatTemplate(files.template, bos, eos)


def memory_of_engine(
    traits: DecoderTraits, types: Mapping[str, GgmlType], settings: EngineSettings
) -> MemoryFigures:
    """Return what a model and its engine take, before any weight is read.

    The workspace is that of the steps of an engine at their largest, each of which keeps its own: a
    chunk of a prompt, the last one, and a row of every answer.
    """

    def work(decoder: LanguageModel) -> None:
        stepper = _stepper(decoder, replace(settings, device="NULL", contexts=1, whole_cache=False))
        context, pages = stepper.context, list(range(1, stepper.table_width + 1))
        words = [0] * min(stepper.chunk, context)
        choice = TokenChoice(Sampling(), 0)
        if len(words) < context:
            stepper.run_chunk(words, context - len(words), pages, None)
        stepper.run_chunk(words, context - len(words), pages, choice)
        stepper.run_rows([TokenRow(0, context - 1, pages, choice)] * stepper.rows)

    rows = [layer.cache_row for layer in traits.layers]
    tokens = settings.pages_of(traits) * 16
    return MemoryFigures(
        weights_nbytes(traits, types), cache_nbytes(rows, tokens, settings.cache_type),
        workspace_nbytes(traits, types, work, dtype=settings.activations),
    )


def generate(model: OpenedModel, prompt: str, sampling: Sampling) -> Iterator[str]:
    """Yield the text that continues a prompt, in pieces. The engine has to be started."""
    for piece in model.ask(model.tokenizer.encode(prompt), sampling):
        yield piece.text


class _Watched(WrappedWeights):
    """A source of weights that tells how many bytes it has handed out."""

    def __init__(self, source: WeightSource, advance: Advance) -> None:
        super().__init__(source)
        self._advance = advance

    def weight(self, name: str) -> PackedWeight:
        """Return a matrix, on its device."""
        found = super().weight(name)
        found.bytes.realize()
        self._advance(found.nbytes)
        return found

    def vector(self, name: str) -> Tensor:
        """Return a vector."""
        found = super().vector(name)
        self._advance(found.numel() * 4)
        return found
