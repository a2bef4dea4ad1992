"""Rows of whole models: training steps, and the sentence encoder, in ours and in PyTorch.

Layers have PyTorch's names and arguments, so that one text builds a network from either's `nn`.
Both start from the same weights; what is compared is the losses of a few steps, without dropout,
whose random numbers differ. What is timed takes its batch from NumPy and its loss back at each
step, as a training loop does, and AdamW in one kernel for all parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from baregrad import nn, optim
from baregrad.apps.bench_measure import Array, Subject
from baregrad.apps.bench_rows import Inputs, Prepared, Row, generator, peer_module
from baregrad.tensor import Tensor
from baregrad.tensor.jit.jit import jit

MODEL_BAR = 1.0
CHECKED_STEPS = 3
BATCHES = 4
LEARNING_RATE = 1e-3
LOSS_TOLERANCE = 1e-4
# Outputs are unit vectors of 384 elements.
VECTOR_TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Network:
    """A network of either's layers: named layers, and how they are applied to one batch.

    `norms` are the names of layers whose weights begin as ones.
    """

    layers: dict[str, Any]
    forward: Callable[[dict[str, Any], Any], Any]

    def parameters(self) -> list[Any]:
        """Return the parameters, in order of the layers."""
        return [p for layer in self.layers.values() for p in layer.parameters()]

    def __call__(self, x: Any) -> Any:
        """Return the scores of a batch."""
        return self.forward(self.layers, x)


def initial_values(network: Network) -> list[Array]:
    """Return the same first weights for either framework's parameters."""
    random = np.random.default_rng(1)
    values = []
    for name, layer in network.layers.items():
        for p in layer.parameters():
            shape = tuple(p.shape)
            if len(shape) > 1:
                fan_in = int(np.prod(shape[1:]))
                values.append(random.standard_normal(shape, np.float32) / np.float32(fan_in**0.5))
            else:
                is_scale = "norm" in name and p is next(iter(layer.parameters()))
                values.append(np.full(shape, 1.0 if is_scale else 0.0, np.float32))
    return values


@dataclass(frozen=True, slots=True)
class Training:
    """A training step: `build(nn, attend, dropout)` makes the network, `draw` its batches."""

    build: Callable[[Any, Callable[..., Any], float, bool], Network]
    draw: Callable[[np.random.Generator, bool], tuple[Array, Array]]

    def prepare(self, is_quick: bool) -> Prepared:
        """Draw the batches: the leading axis of both arrays counts them."""
        inputs = self.draw(generator(), is_quick)

        def subject(step: Callable[[float, bool], Callable[[Array, Array], float]]) -> Any:
            return lambda inputs: _subject(inputs, step, is_quick)

        return Prepared(inputs, {"ours": subject(self._ours), "torch": subject(self._torch)})

    def _ours(self, dropout: float, is_quick: bool) -> Callable[[Array, Array], float]:
        network = self.build(nn, Tensor.scaled_dot_product_attention, dropout, is_quick)
        parameters = network.parameters()
        for p, value in zip(parameters, initial_values(network), strict=True):
            p.detach().assign(Tensor(value))
        optimiser = optim.AdamW(parameters, lr=LEARNING_RATE)

        @jit
        def step(x: Tensor, y: Tensor) -> Tensor:
            optimiser.zero_grad()
            loss: Tensor = network(x).cross_entropy(y)
            loss.backward()
            optimiser.step()
            return loss

        def run(x: Array, y: Array) -> float:
            return float(step(Tensor.from_numpy(x), Tensor.from_numpy(y)).item())

        return run

    def _torch(self, dropout: float, is_quick: bool) -> Callable[[Array, Array], float]:
        torch = peer_module("torch")
        functional = torch.nn.functional
        network = self.build(
            torch.nn, functional.scaled_dot_product_attention, dropout, is_quick
        )
        parameters = network.parameters()
        with torch.no_grad():
            for p, value in zip(parameters, initial_values(network), strict=True):
                p.copy_(torch.from_numpy(value))
        optimiser = torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=True)

        def step(x: Array, y: Array) -> float:
            optimiser.zero_grad()
            loss = functional.cross_entropy(network(torch.from_numpy(x)), torch.from_numpy(y))
            loss.backward()
            optimiser.step()
            return float(loss.item())

        return step


def _subject(
    inputs: Inputs, make: Callable[[float, bool], Callable[[Array, Array], float]], is_quick: bool
) -> Subject:
    xs, ys = inputs
    step = make(0.5, is_quick)
    turn = count()

    def run() -> float:
        number = next(turn) % BATCHES
        return step(xs[number], ys[number])

    def outputs() -> Array:
        checked = make(0.0, is_quick)
        steps = range(CHECKED_STEPS)
        return np.array([checked(xs[number % BATCHES], ys[number % BATCHES]) for number in steps])

    return Subject(run, outputs)


# --- the networks ---------------------------------------------------------------------------------


def _in_order(layers: dict[str, Any], x: Any) -> Any:
    for layer in layers.values():
        x = layer(x)
    return x


def digits_network(nn: Any, attend: object, dropout: float, is_quick: bool) -> Network:
    """The network of `baregrad demo digits`."""
    layers = {
        "conv1": nn.Conv2d(1, 16, 3, padding=1), "relu1": nn.ReLU(),
        "conv2": nn.Conv2d(16, 32, 3, padding=1), "relu2": nn.ReLU(),
        "pool": nn.MaxPool2d(2), "flatten": nn.Flatten(), "dropout1": nn.Dropout(dropout),
        "wide": nn.Linear(512, 128), "relu3": nn.ReLU(), "dropout2": nn.Dropout(dropout),
        "scores": nn.Linear(128, 10),
    }
    return Network(layers, _in_order)


def _digits_batches(random: np.random.Generator, is_quick: bool) -> tuple[Array, Array]:
    size = 4 if is_quick else 128
    return random.random((BATCHES, size, 1, 8, 8), np.float32), random.integers(
        0, 10, (BATCHES, size)
    )


def _mlp(nn: Any, attend: object, dropout: float, is_quick: bool) -> Network:
    width = 16 if is_quick else 512
    layers = {
        "first": nn.Linear(784, width), "relu1": nn.ReLU(),
        "second": nn.Linear(width, width), "relu2": nn.ReLU(), "scores": nn.Linear(width, 10),
    }
    return Network(layers, _in_order)


def _mlp_batches(random: np.random.Generator, is_quick: bool) -> tuple[Array, Array]:
    size = 4 if is_quick else 128
    return random.random((BATCHES, size, 784), np.float32), random.integers(0, 10, (BATCHES, size))


VOCABULARY = 512
HEAD_WIDTH = 64


def transformer_network(
    nn: Any, attend: Callable[..., Any], dropout: float, is_quick: bool
) -> Network:
    """Blocks that normalise first, causal attention, GELU, no dropout: 5 million parameters."""
    width, depth, length = (64, 1, 16) if is_quick else (256, 6, 128)
    layers: dict[str, Any] = {
        "words": nn.Embedding(VOCABULARY, width), "places": nn.Embedding(length, width),
    }
    for number in range(depth):
        layers |= {
            f"norm1.{number}": nn.LayerNorm(width), f"qkv.{number}": nn.Linear(width, 3 * width),
            f"mix.{number}": nn.Linear(width, width), f"norm2.{number}": nn.LayerNorm(width),
            f"up.{number}": nn.Linear(width, 4 * width), f"gelu.{number}": nn.GELU(),
            f"down.{number}": nn.Linear(4 * width, width),
        }
    layers |= {"norm": nn.LayerNorm(width), "scores": nn.Linear(width, VOCABULARY)}

    def forward(layers: dict[str, Any], ids: Any) -> Any:
        x = layers["words"](ids) + layers["places"].weight
        for number in range(depth):
            parts = layers[f"qkv.{number}"](layers[f"norm1.{number}"](x)).chunk(3, -1)
            heads = [
                part.reshape(*part.shape[:2], -1, HEAD_WIDTH).transpose(1, 2) for part in parts
            ]
            mixed = attend(*heads, is_causal=True).transpose(1, 2).flatten(2)
            x = x + layers[f"mix.{number}"](mixed)
            wide = layers[f"up.{number}"](layers[f"norm2.{number}"](x))
            x = x + layers[f"down.{number}"](layers[f"gelu.{number}"](wide))
        return layers["scores"](layers["norm"](x)).flatten(0, 1)

    return Network(layers, forward)


def _transformer_batches(random: np.random.Generator, is_quick: bool) -> tuple[Array, Array]:
    size, length = (2, 16) if is_quick else (8, 128)
    words = random.integers(0, VOCABULARY, (BATCHES, size, length + 1))
    return words[..., :-1].copy(), words[..., 1:].reshape(BATCHES, -1)


# --- the sentence encoder -------------------------------------------------------------------------

_SUBJECTS = ("A man", "The old ship", "Nobody in the village", "My sister's new teacher")
_DOINGS = (
    "is eating.", "was seen at the harbour on a clear night in early spring.",
    "plays the guitar while the children sleep.", "has never been to the city.",
    "said that the train would be late, and that we had better walk home.", "sings.",
    "found a letter between two pages of a book about the history of glass.",
    "will not answer questions about the price of bread.",
)
SENTENCES = tuple(f"{subject} {doing}" for subject in _SUBJECTS for doing in _DOINGS)


def _prepare_minilm(is_quick: bool) -> Prepared:
    """Make tokens of the sentences; raises MissingDependency without weights or tokenizer."""
    from baregrad.apps.minilm import SentenceEncoder

    encoder = SentenceEncoder()
    batch = encoder.tokenizer.encode(SENTENCES[:2] if is_quick else SENTENCES)
    inputs = (batch.input_ids, batch.attention_mask, batch.token_type_ids)

    def ours(inputs: Inputs) -> Subject:
        # Of kinds of token sentences have one.
        inputs = inputs[:2]
        function = jit(encoder.model.embed_texts)

        def run() -> Tensor:
            with Tensor.no_grad():
                found: Tensor = function(*(Tensor(array) for array in inputs))
            return found

        return Subject(run, lambda: run().numpy())

    return Prepared(inputs, {"ours": ours, "torch": _minilm_of_torch})


def _minilm_of_torch(inputs: Inputs) -> Subject:
    """BERT's encoder by functions alone: nothing between them and the library's kernels."""
    from baregrad.data.minilm import find_files
    from baregrad.io import safe_load
    from baregrad.llm.models.loading import open_model

    torch = peer_module("torch")
    functional = torch.nn.functional
    files = find_files()
    traits = open_model(files.weights.parent).encoder().traits
    state = {
        name: torch.from_numpy(value.numpy().copy())
        for name, value in safe_load(files.weights).items()
    }
    width, heads = traits.width, traits.heads

    def norm(x: Any, name: str) -> Any:
        weight, bias = state[f"{name}.weight"], state[f"{name}.bias"]
        return functional.layer_norm(x, (width,), weight, bias, traits.epsilon)

    def dense(x: Any, name: str) -> Any:
        return functional.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

    def encode(ids: Any, mask: Any, types: Any) -> Any:
        part = "embeddings."
        x = state[part + "word_embeddings.weight"][ids]
        x = x + state[part + "token_type_embeddings.weight"][types]
        x = norm(x + state[part + "position_embeddings.weight"][: ids.shape[1]], part + "LayerNorm")
        takes_part = (mask != 0)[:, None, None, :]
        for number in range(traits.depth):
            part = f"encoder.layer.{number}."
            query, key, value = (
                dense(x, f"{part}attention.self.{name}").unflatten(-1, (heads, -1)).transpose(1, 2)
                for name in ("query", "key", "value")
            )
            mixed = functional.scaled_dot_product_attention(query, key, value, takes_part)
            name = part + "attention.output."
            mixed = dense(mixed.transpose(1, 2).flatten(2), name + "dense")
            x = norm(mixed + x, name + "LayerNorm")
            wide = functional.gelu(dense(x, part + "intermediate.dense"))
            x = norm(dense(wide, part + "output.dense") + x, part + "output.LayerNorm")
        share = mask[..., None].float()
        return functional.normalize((x * share).sum(1) / share.sum(1), dim=1)

    def run() -> Any:
        with torch.no_grad():
            return encode(*(torch.from_numpy(array) for array in inputs))

    return Subject(run, lambda: np.asarray(run().numpy()))


def _training(name: str, training: Training) -> Row:
    return Row(f"{name} training step", MODEL_BAR, training.prepare, LOSS_TOLERANCE)


MODEL_ROWS = (
    _training("digits network, batch 128,", Training(digits_network, _digits_batches)),
    _training("MLP 784-512-512-10, batch 128,", Training(_mlp, _mlp_batches)),
    _training(
        "transformer 6x256, 8x128 tokens,", Training(transformer_network, _transformer_batches)
    ),
    Row("MiniLM forward, 32 sentences", MODEL_BAR, _prepare_minilm, VECTOR_TOLERANCE),
)
