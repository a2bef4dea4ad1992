"""Training steps, and a block of a large Llama, beside what PyTorch's compiler makes of them.

PyTorch compiles the model with its loss and replays the step as a CUDA graph. That takes it a
minute or more, so these rows run only where they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from baregrad.apps.beside.draws import Draw
from baregrad.apps.beside.tensor_case import TensorCase
from baregrad.apps.gpu_suite.llama import EPSILON, LlamaSizes
from baregrad.apps.gpu_suite.row import COMPILED, GpuRow
from baregrad.apps.gpu_suite.training import TrainingCase, adamw, image_model, language_model, sgd
from baregrad.tensor import Tensor

BAR = 0.9
# What PyTorch may take to compile, capture and be compared; and what we may.
PEER_LIMIT_S, LIMIT_S = 240.0, 90.0


# --- training steps -------------------------------------------------------------------------------


def _compiled(case: TrainingCase, optimiser: Callable[..., Any]) -> TrainingCase:
    return replace(case, optimiser=optimiser, is_compiled=True)


def _adamw(module: Any, parameters: Iterable[Any], more: dict[str, Any]) -> Any:
    """AdamW; ours as PyTorch's, which keeps no parameter in float32 beside that of bf16."""
    return adamw(module, parameters, more or {"master_weights": False})


def _sgd(module: Any, parameters: Iterable[Any], more: dict[str, Any]) -> Any:
    """SGD likewise, which can be captured as it is."""
    kept = {name: value for name, value in more.items() if name != "capturable"}
    return sgd(module, parameters, kept or {"master_weights": False})


# --- a block --------------------------------------------------------------------------------------


class _Kit(NamedTuple):
    """What the two sides call differently."""

    norm: Callable[[Any, Any], Any]
    attend: Callable[[Any, Any, Any], Any]
    silu: Callable[[Any], Any]
    join: Callable[[list[Any]], Any]


# The block's inputs in order: numbers, weights of both norms and of seven products, and angles.
WEIGHTS = ("norm1", "norm2", "query", "key", "value", "mix", "gate", "up", "down")


@dataclass(frozen=True, slots=True)
class _Block:
    """A decoder block of these sizes on `length` places: attention in groups, and a gated layer."""

    sizes: LlamaSizes

    def draws(self) -> tuple[Draw, ...]:
        """The inputs: (1, length, width), weights, cosines and sines, and a result's gradient."""
        sizes = self.sizes
        width, keys = sizes.width, sizes.key_heads * sizes.head_width
        shapes = (
            (width, width), (keys, width), (keys, width), (width, width),
            (sizes.hidden, width), (sizes.hidden, width), (width, sizes.hidden),
        )
        weights = [Draw(shape, scale=shape[1] ** -0.5) for shape in shapes]
        norms = [Draw((width,), scale=0.1, shift=1.0)] * 2
        angles = [Draw((sizes.length, sizes.head_width // 2), scale=0.7)] * 2
        numbers = Draw((1, sizes.length, width))
        return (numbers, *norms, *weights, *angles, numbers)

    def apply(self, kit: _Kit, x: Any, weights: Iterable[Any], cosines: Any, sines: Any) -> Any:
        """(1, length, width) -> (1, length, width)."""
        named = dict(zip(WEIGHTS, weights, strict=True))
        shape = (1, self.sizes.length, -1, self.sizes.head_width)

        def turned(heads: Any) -> Any:
            first, second = heads.chunk(2, -1)
            return kit.join([
                first * cosines - second * sines, second * cosines + first * sines,
            ])

        h = kit.norm(x, named["norm1"])
        query, key, value = (
            (h @ named[name].T).reshape(*shape).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        mixed = kit.attend(turned(query), turned(key), value).transpose(1, 2)
        x = x + mixed.reshape(1, self.sizes.length, -1) @ named["mix"].T
        h = kit.norm(x, named["norm2"])
        return x + (kit.silu(h @ named["gate"].T) * (h @ named["up"].T)) @ named["down"].T

    def on_ours(self, x: Tensor, *rest: Tensor) -> Any:
        """The block by our tensors."""
        width = self.sizes.width
        kit = _Kit(
            lambda x, weight: x.rms_norm(width, weight, EPSILON),
            lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True, enable_gqa=True),
            lambda x: x.silu(), lambda parts: Tensor.cat(parts, dim=-1),
        )
        return self.apply(kit, x, rest[:-2], *rest[-2:])

    def on_torch(self, torch: Any, x: Any, *rest: Any) -> Any:
        """The block by PyTorch's."""
        functional, width = torch.nn.functional, self.sizes.width
        kit = _Kit(
            lambda x, weight: functional.rms_norm(x, (width,), weight, EPSILON),
            lambda q, k, v: functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=True
            ),
            functional.silu, lambda parts: torch.cat(parts, -1),
        )
        return self.apply(kit, x, rest[:-2], *rest[-2:])


def _block(is_tiny: bool) -> TensorCase:
    sizes = LlamaSizes(1, 4096, 32, 8, 14336, length=4096)
    if is_tiny:
        sizes = LlamaSizes(1, 64, 4, 2, 96, length=16)
    block = _Block(sizes)
    draws = block.draws()
    weights = sum(draw.shape[0] * draw.shape[1] for draw in draws[3:10])
    # Half of all pairs of places, for scores and for what they mix, once and twice again.
    attention = 2 * sizes.length**2 * sizes.width
    return TensorCase(
        draws, block.on_ours, block.on_torch, wanted=tuple(range(1 + len(WEIGHTS))),
        exact="float32", is_compiled=True, flops=6.0 * weights * sizes.length + 3.0 * attention,
    )


BESIDE_COMPILER = tuple(
    GpuRow(
        f"{name}, compiled", BAR, case, COMPILED, tolerance, limit_s=LIMIT_S,
        peer_limit_s=PEER_LIMIT_S,
    )
    for name, case, tolerance in (
        ("Llama 8B block s4096 with gradients", _block, 2.0**-5),
        ("GPT-2 124M training step b16x1024",
         lambda is_tiny: _compiled(language_model(16, is_tiny), _adamw), 2.0**-5),
        ("ResNet-50 training step b256",
         lambda is_tiny: _compiled(image_model(256, is_tiny), _sgd), 2.0**-4),
    )
)
