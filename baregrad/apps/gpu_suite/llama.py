"""Decoding one word with a Llama of a billion parameters, in one text for both sides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from baregrad.apps.bench_measure import Array
from baregrad.apps.beside.draws import Draw
from baregrad.apps.beside.ours import Ours
from baregrad.apps.beside.peer import Peer
from baregrad.apps.beside.work import SideWork
from baregrad.apps.gpu_suite.row import GpuRow
from baregrad.engine.canonical import bind
from baregrad.ir.core.index import variable
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit

EPSILON = 1e-5
ROPE_BASE = 500000.0


@dataclass(frozen=True, slots=True)
class LlamaSizes:
    """The sizes of a Llama and its cache, by default those of Llama 3.2 1B."""

    depth: int = 16
    width: int = 2048
    heads: int = 32
    key_heads: int = 8
    hidden: int = 8192
    words: int = 128256
    length: int = 1024
    position: int = 512

    @property
    def head_width(self) -> int:
        """Return the width of a head."""
        return self.width // self.heads

    def draws(self) -> dict[str, Draw]:
        """Return the weights, and caches that are filled, by name."""
        width, keys = self.width, self.key_heads * self.head_width
        found = {"words": Draw((self.words, width), scale=0.05), "norm": _ones(width)}
        for number in range(self.depth):
            shapes = {
                "query": (width, width), "key": (keys, width), "value": (keys, width),
                "mix": (width, width), "gate": (self.hidden, width), "up": (self.hidden, width),
                "down": (width, self.hidden),
            }
            for name, shape in shapes.items():
                found[f"{name}.{number}"] = Draw(shape, scale=shape[1] ** -0.5)
            found |= {f"norm1.{number}": _ones(width), f"norm2.{number}": _ones(width)}
            cache = Draw((self.length, self.key_heads, self.head_width))
            found |= {f"keys.{number}": cache, f"values.{number}": cache}
        return found

    def angles(self) -> tuple[Array, Array]:
        """Return cosines and sines of each position's angles: (length, head width / 2)."""
        half = self.head_width // 2
        rates = ROPE_BASE ** (-np.arange(half) / half)
        angles = np.arange(self.length)[:, None] * rates
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _ones(width: int) -> Draw:
    return Draw((width,), scale=0.1, shift=1.0)


@dataclass(frozen=True, slots=True)
class Kit:
    """What the two sides call differently."""

    norm: Callable[[Any, Any], Any]
    attend: Callable[[Any, Any, Any], Any]
    embed: Callable[[Any, Any], Any]
    silu: Callable[[Any], Any]
    join: Callable[[list[Any]], Any]


def decode(kit: Kit, sizes: LlamaSizes, state: dict[str, Any], word: Any, at: Any) -> Any:
    """Return the scores (1, words) of the word after `word` (1,), which stands at place `at`.

    The caches in `state` take its keys and values.
    """
    cosines, sines = state["cosines"][at], state["sines"][at]

    def turned(heads: Any) -> Any:
        first, second = heads.chunk(2, -1)
        return kit.join([
            first * cosines - second * sines, second * cosines + first * sines,
        ])

    x = kit.embed(state["words"], word)
    for number in range(sizes.depth):
        def dense(name: str, x: Any, number: int = number) -> Any:
            return x @ state[f"{name}.{number}"].T

        h = kit.norm(x, state[f"norm1.{number}"])
        query, key, value = (
            dense(name, h).reshape(-1, sizes.head_width) for name in ("query", "key", "value")
        )
        keys, values = state[f"keys.{number}"], state[f"values.{number}"]
        keys[at] = turned(key)
        values[at] = value
        # (1, heads, 1, width) beside (1, key heads, places, width)
        mixed = kit.attend(
            turned(query)[None, :, None], keys[: at + 1].transpose(0, 1)[None],
            values[: at + 1].transpose(0, 1)[None],
        )
        x = x + dense("mix", mixed.reshape(1, -1))
        h = kit.norm(x, state[f"norm2.{number}"])
        x = x + dense("down", kit.silu(dense("gate", h)) * dense("up", h))
    return kit.norm(x, state["norm"]) @ state["words"].T


class Decoding:
    """The work of choosing one word; the chosen word is the next call's.

    With `is_symbolic`, our side gets the position as a symbolic integer, as one who decodes does.
    """

    def __init__(self, sizes: LlamaSizes, is_symbolic: bool) -> None:
        self.sizes = sizes
        self.is_symbolic = is_symbolic

    def on_ours(self, side: Ours) -> SideWork:
        """Decode in one replay; what is compared are scores."""
        sizes = self.sizes
        kit = Kit(
            lambda x, weight: x.rms_norm(sizes.width, weight, EPSILON),
            lambda q, k, v: q.scaled_dot_product_attention(k, v, enable_gqa=True),
            lambda weight, index: weight.embedding(index), lambda x: x.silu(),
            lambda parts: Tensor.cat(parts, dim=-1),
        )
        state: dict[str, Any] = {
            name: side.tensor(draw, self._random(name)) for name, draw in sizes.draws().items()
        }
        for name, angles in zip(("cosines", "sines"), sizes.angles(), strict=True):
            state[name] = Tensor(angles).cast("bfloat16").realize()
        at: Any = sizes.position
        if self.is_symbolic:
            at = bind(variable("position", 0, sizes.length - 1), sizes.position)

        @jit
        def step(word: Tensor, at: Any) -> Tensor:
            chosen: Tensor = decode(kit, sizes, state, word, at).argmax(-1)
            return chosen

        latest = [Tensor(np.zeros(1, np.int64)).realize()]

        def run() -> None:
            latest[0] = step(latest[0], at)

        def outputs() -> list[Array]:
            scores = jit(lambda word, at: decode(kit, sizes, state, word, at))
            return [side.array(scores(Tensor(np.zeros(1, np.int64)), at))]

        return SideWork(run, outputs, facts=self._facts())

    def on_peer(self, side: Peer) -> SideWork:
        """Decode in a CUDA graph, at a position that is part of it; exact are float32's scores."""
        sizes, torch = self.sizes, side.torch
        functional = torch.nn.functional
        kit = Kit(
            lambda x, weight: functional.rms_norm(x, (sizes.width,), weight, EPSILON),
            lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True),
            lambda weight, index: functional.embedding(index, weight), functional.silu,
            lambda parts: torch.cat(parts, -1),
        )
        state = {
            name: side.tensor(draw, self._random(name)) for name, draw in sizes.draws().items()
        }
        for name, angles in zip(("cosines", "sines"), sizes.angles(), strict=True):
            state[name] = torch.from_numpy(angles).to(side.device).bfloat16()
        word = torch.zeros(1, dtype=torch.int64, device=side.device)

        def scores(state: dict[str, Any]) -> Any:
            with torch.no_grad():
                return decode(kit, sizes, state, torch.zeros_like(word), sizes.position)

        def step() -> None:
            with torch.no_grad():
                word.copy_(decode(kit, sizes, state, word, sizes.position).argmax(-1))

        def exact() -> list[Array]:
            return [side.array(scores({name: one.float() for name, one in state.items()}))]

        return SideWork(
            side.captured(step), lambda: [side.array(scores(state))], exact=exact,
            facts=self._facts(),
        )

    def _random(self, name: str) -> np.random.Generator:
        return np.random.default_rng(sorted(self.sizes.draws()).index(name))

    def _facts(self) -> dict[str, Any]:
        weights = {k: v for k, v in self.sizes.draws().items() if not k.startswith(("keys", "val"))}
        return {"traffic": sum(draw.nbytes for draw in weights.values())}


_TINY = LlamaSizes(2, 64, 4, 2, 96, 80, 32, 11)
DECODING = tuple(
    GpuRow(
        f"Llama 1B decode at 512{name}", bar,
        lambda is_tiny, is_symbolic=is_symbolic: Decoding(  # type: ignore[misc]
            _TINY if is_tiny else LlamaSizes(), is_symbolic
        ),
        tolerance=2.0**-4, limit_s=60.0,
    )
    for name, is_symbolic, bar in (("", True, 1.0), (", fixed position", False, None))
)
