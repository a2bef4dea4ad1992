"""What is asked of the engine, and what comes back: requests, and streams of pieces."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from baregrad.base.errors import BaregradError
from baregrad.llm.generation.constraints import AnswerForm
from baregrad.llm.generation.sampling import Sampling


@dataclass(frozen=True)
class AnswerRequest:
    """A prompt as tokens, and how it is answered.

    form: what the answer has to be, if anything. client: whose turn it is when requests wait; each
    client's turns come as often as any other's. shown: control tokens that the text shows. salt:
    prompts find each other's beginnings in the cache only where it is the same. is_turn: whether
    a longer prompt is likely to follow that begins with this one and its answer, as in a chat.
    scored_from: the first token of the prompt that is told with its log-probability, of which the
    very first has none; None tells of none.
    """

    tokens: Sequence[int]
    sampling: Sampling = field(default_factory=Sampling)
    form: AnswerForm | None = None
    client: str = ""
    shown: tuple[str, ...] = ()
    salt: bytes = b""
    is_turn: bool = False
    scored_from: int | None = None


@dataclass(frozen=True)
class ChosenToken:
    """A token of an answer; with log-probabilities where they were asked for, best first."""

    token: int
    logprob: float | None = None
    best: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class AnswerPiece:
    """A part of an answer: text that is certain, and the tokens that were chosen meanwhile.

    Before the first of them come the tokens of the prompt whose log-probabilities were asked for.

    The last piece has a reason: "stop" (an end or a stop text, which is then `stop`), "length",
    "cancelled" or "error" (with the error).
    """

    text: str = ""
    tokens: tuple[ChosenToken, ...] = ()
    reason: str | None = None
    stop: str | None = None
    error: BaregradError | None = None
    prompt: tuple[ChosenToken, ...] = ()


@dataclass
class Usage:
    """Tokens of a request: of its prompt, of those found in the cache, and of the answer."""

    prompt: int = 0
    cached: int = 0
    answer: int = 0


class Stream:
    """The pieces of one answer as they come; iterating waits for them and ends after the last.

    An error of the engine is raised by whoever iterates.
    """

    def __init__(self, prompt: int) -> None:
        self.usage = Usage(prompt=prompt)
        self._pieces: queue.SimpleQueue[AnswerPiece] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._listener: Callable[[AnswerPiece], None] | None = None
        self._cancelled = threading.Event()

    def __iter__(self) -> Iterator[AnswerPiece]:
        while True:
            piece = self._pieces.get()
            if piece.error is not None:
                raise piece.error
            yield piece
            if piece.reason is not None:
                return

    def text(self) -> str:
        """Wait for the whole answer and return its text."""
        return "".join(piece.text for piece in self)

    def listen(self, listener: Callable[[AnswerPiece], None]) -> None:
        """Call `listener` with each piece, those that came already first, instead of iterating.

        It is called in the engine's thread and must not wait; its exceptions cancel the request.
        """
        with self._lock:
            self._listener = listener
            while not self._pieces.empty():
                self._tell(self._pieces.get())

    def cancel(self) -> None:
        """End the answer as soon as the engine looks; the last piece says "cancelled"."""
        self._cancelled.set()

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody has cancelled the answer."""
        return self._cancelled.is_set()

    def put(self, piece: AnswerPiece) -> None:
        """Hand on a piece (the engine does)."""
        with self._lock:
            self._tell(piece)

    def _tell(self, piece: AnswerPiece) -> None:
        if self._listener is None:
            self._pieces.put(piece)
            return
        try:
            self._listener(piece)
        except Exception:  # noqa: BLE001 - a listener's mistake is not the engine's
            self._cancelled.set()
            self._listener = lambda piece: None
