"""The feed-forward part of a layer: a hidden vector with a gate, or a few of many experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from baregrad.dtypes import dtypes
from baregrad.io.gguf import PackedWeight
from baregrad.llm.models.expert_groups import ExpertGroups, rows_of_tile
from baregrad.llm.models.traits import ExpertTraits, LayerTraits
from baregrad.tensor import Tensor
from baregrad.tensor.ops.shapes import stored


def gate(kind: str, x: Tensor) -> Tensor:
    """Return "silu", "gelu" (by tanh) or "gelu_exact" of `x`."""
    if kind == "silu":
        return x.silu()
    return x.gelu(approximate="tanh" if kind == "gelu" else "none")


class FeedForward:
    """The one part that all tokens take: weights ffn_gate, ffn_up, ffn_down and their biases."""

    def __init__(
        self,
        traits: LayerTraits,
        weights: Mapping[str, PackedWeight],
        vectors: Mapping[str, Tensor],
        suffix: str = "",
    ) -> None:
        self.traits = traits
        self.up = weights[f"ffn_up{suffix}.weight"]
        self.down = weights[f"ffn_down{suffix}.weight"]
        self.gate = weights.get(f"ffn_gate{suffix}.weight")
        self.up_bias, self.down_bias = vectors.get("ffn_up.bias"), vectors.get("ffn_down.bias")

    def __call__(self, x: Tensor) -> Tensor:
        """Return (T, width) of (T, width)."""
        traits = self.traits
        wide = self.up.linear(x)
        if self.up_bias is not None:
            wide = wide + self.up_bias.cast(x.dtype)
        if self.gate is not None:
            wide = gate(traits.gate, self.gate.linear(x)) * wide
        elif traits.is_gated:
            hidden = traits.hidden
            wide = gate(traits.gate, wide[..., :hidden]) * wide[..., hidden:]
        else:
            wide = gate(traits.gate, wide)
        found = self.down.linear(wide)
        return found if self.down_bias is None else found + self.down_bias.cast(x.dtype)


class Experts:
    """A few of many parts for each token; only the bytes of those that are taken are read."""

    def __init__(
        self,
        traits: LayerTraits,
        experts: ExpertTraits,
        weights: Mapping[str, PackedWeight],
        vectors: Mapping[str, Tensor],
    ) -> None:
        self.kind = traits.gate
        self.traits = experts
        self.router = weights["ffn_gate_inp.weight"]
        self.gate = weights.get("ffn_gate_exps.weight")
        up = "ffn_gate_up_exps.weight" if experts.is_gate_fused else "ffn_up_exps.weight"
        self.up, self.down = weights[up], weights["ffn_down_exps.weight"]
        self.bias = vectors.get("exp_probs_b.bias")
        self.shared: FeedForward | None = None
        if experts.shared:
            self.shared = FeedForward(traits, weights, {}, "_shexp")
        self.shared_gate = vectors.get("ffn_gate_inp_shexp.weight")

    def __call__(self, x: Tensor) -> Tensor:
        """Return (T, width) of (T, width)."""
        index, shares = self.routes(x)
        rows = rows_of_tile(index, self.traits.count)
        if rows:
            groups = ExpertGroups(index, self.traits.count, rows)
            parts = groups.gather(self._wide(groups.spread(x), groups.times))
        else:
            parts = self._wide(x.unsqueeze(1), lambda weight, x: weight.at(index).each(x))
        found = (parts * shares.unsqueeze(-1).cast(x.dtype)).sum(1)
        if self.shared is None:
            return found
        beside = self.shared(x)
        if self.shared_gate is not None:
            share = (x.cast(dtypes.float32) * self.shared_gate).sum(-1, True).sigmoid()
            beside = beside * share.cast(x.dtype)
        return found + beside

    def _wide(self, x: Tensor, times: Callable[[PackedWeight, Tensor], Tensor]) -> Tensor:
        """What experts make of rows. times: a stack of matrices, each its own by its own rows."""
        wide = times(self.up, x)
        if self.gate is not None:
            wide = gate(self.kind, times(self.gate, x)) * wide
        else:
            hidden = self.traits.hidden
            wide = gate(self.kind, wide[..., :hidden]) * wide[..., hidden:]
        # The products of an expert are summed whole before those of several experts are.
        return stored(times(self.down, wide))

    def routes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return which experts each token takes, and how much of each: (T, used) both."""
        traits = self.traits
        numbers = self.router.linear(x.cast(dtypes.float32))
        scores = numbers.softmax(-1) if traits.scoring == "softmax" else numbers.sigmoid()
        ranked = scores if self.bias is None else scores + self.bias
        if traits.groups_used < traits.groups:
            ranked = self._of_best_groups(ranked)
        index = _best(ranked, traits.used)[1]
        shares = scores.gather(-1, index)
        if traits.is_normalised:
            shares = shares / shares.sum(-1, True)
        return index, shares * traits.scale if traits.scale != 1 else shares

    def _of_best_groups(self, ranked: Tensor) -> Tensor:
        """Scores (T, count), of which those outside the best groups are -inf."""
        traits = self.traits
        grouped = ranked.reshape(ranked.shape[0], traits.groups, traits.count // traits.groups)
        if traits.has_bias:
            worth = _best(grouped, 2)[0].sum(-1)
        else:
            worth = grouped.amax(-1)
        least = _best(worth, traits.groups_used)[0][:, -1:]
        taken = (worth >= least).unsqueeze(-1)
        return taken.where(grouped, float("-inf")).reshape(*ranked.shape)


def _best(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The greatest along the last axis, and where they stand; in any order where all are."""
    if count < x.shape[-1]:
        found = x.topk(count, -1)
        return found[0], found[1]
    return x, Tensor.arange(count, device=x.device).expand(*x.shape)
