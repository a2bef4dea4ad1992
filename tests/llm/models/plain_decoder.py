"""Decoders of each family, small, with random weights: their files, and what PyTorch makes of them.

The forward pass is written from the papers in float64, without a cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants
from torch.nn import functional

WORDS = 61
DEPTH = 2
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Experts:
    count: int = 6
    used: int = 2
    hidden: int = 16
    shared: int = 0
    shared_gate: bool = False
    sigmoid: bool = False
    normalised: bool = True
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1
    bias: bool = False


@dataclass(frozen=True)
class Latent:
    rank: int = 16
    turned: int = 8
    plain: int = 12
    value: int = 10
    query_rank: int = 0
    split: bool = True


@dataclass(frozen=True)
class Plain:
    """One family: `keys` are what its files' metadata say beside the sizes."""

    name: str
    keys: dict[str, Any] = field(default_factory=dict)
    width: int = 32
    heads: int = 4
    key_heads: int = 2
    head: int = 8
    hidden: int = 48
    norm: str = "rms"
    rope: str = "neox"
    base: float = 10000.0
    local_base: float = 0.0
    factors: bool = False
    windows: tuple[int, ...] = (0,) * DEPTH
    scale: float = 0.0
    soft_cap: float = 0.0
    logit_cap: float = 0.0
    embedding_scale: float = 1.0
    qkv_bias: bool = False
    out_bias: bool = False
    head_norms: bool = False
    post_norms: bool = False
    fused: bool = False
    gate: str = "silu"
    gated: bool = True
    gate_fused: bool = False
    positions: bool = False
    tied: bool = False
    experts: Experts | None = None
    latent: Latent | None = None

    def shapes(self) -> Shapes:
        found: Shapes = {"token_embd.weight": (WORDS, self.width)} | self._norms("output_norm")
        if not self.tied:
            found["output.weight"] = (WORDS, self.width)
        if self.positions:
            found["position_embd.weight"] = (64, self.width)
        if self.factors:
            found["rope_freqs.weight"] = (self.head // 2,)
        for number in range(DEPTH):
            layer = self._norms("attn_norm", "ffn_norm") | self._attention() | self._hidden(number)
            if self.post_norms:
                layer |= self._norms("post_attention_norm", "post_ffw_norm")
            found |= {f"blk.{number}.{name}": shape for name, shape in layer.items()}
        return found

    def _norms(self, *names: str) -> Shapes:
        kinds = ("weight", "bias") if self.norm == "layer" else ("weight",)
        return {f"{name}.{kind}": (self.width,) for name in names for kind in kinds}

    def _attention(self) -> Shapes:
        width, heads = self.width, self.heads
        if self.latent is not None:
            one = self.latent
            query = heads * (one.turned + one.plain)
            found: Shapes = {
                "attn_kv_a_mqa.weight": (one.rank + one.turned, width),
                "attn_kv_a_norm.weight": (one.rank,),
                "attn_output.weight": (width, heads * one.value),
            }
            if one.query_rank:
                found |= {"attn_q_a.weight": (one.query_rank, width),
                          "attn_q_a_norm.weight": (one.query_rank,),
                          "attn_q_b.weight": (query, one.query_rank)}  # fmt: skip
            else:
                found["attn_q.weight"] = (query, width)
            if one.split:
                return found | {"attn_k_b.weight": (heads, one.rank, one.plain),
                                "attn_v_b.weight": (heads, one.value, one.rank)}  # fmt: skip
            return found | {"attn_kv_b.weight": (heads * (one.plain + one.value), one.rank)}
        rows = {"q": heads, "k": self.key_heads, "v": self.key_heads}
        rows = {"qkv": sum(rows.values())} if self.fused else rows
        found = {f"attn_{name}.weight": (n * self.head, width) for name, n in rows.items()}
        if self.qkv_bias:
            found |= {f"attn_{name}.bias": (n * self.head,) for name, n in rows.items()}
        if self.head_norms:
            found |= {f"attn_{name}_norm.weight": (self.head,) for name in "qk"}
        found["attn_output.weight"] = (width, heads * self.head)
        return found | ({"attn_output.bias": (width,)} if self.out_bias else {})

    def _hidden(self, number: int) -> Shapes:
        width, hidden, some = self.width, self.hidden, self.experts
        if some is not None and not (self.latent and number == 0):
            found: Shapes = {
                "ffn_gate_inp.weight": (some.count, width),
                "ffn_gate_exps.weight": (some.count, some.hidden, width),
                "ffn_up_exps.weight": (some.count, some.hidden, width),
                "ffn_down_exps.weight": (some.count, width, some.hidden),
            }
            if some.bias:
                found["exp_probs_b.bias"] = (some.count,)
            if some.shared:
                found |= {"ffn_gate_shexp.weight": (some.shared, width),
                          "ffn_up_shexp.weight": (some.shared, width),
                          "ffn_down_shexp.weight": (width, some.shared)}  # fmt: skip
            return found | ({"ffn_gate_inp_shexp.weight": (width,)} if some.shared_gate else {})
        wide = 2 * hidden if self.gate_fused else hidden
        found = {"ffn_up.weight": (wide, width), "ffn_down.weight": (width, hidden)}
        if self.gated and not self.gate_fused:
            found["ffn_gate.weight"] = (hidden, width)
        if self.out_bias:
            found |= {"ffn_up.bias": (wide,), "ffn_down.bias": (width,)}
        return found

    def draw(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Random weights in float32."""
        rng = np.random.default_rng(seed)
        found = {}
        for name, shape in self.shapes().items():
            numbers = rng.normal(size=shape) * (0.3 if len(shape) == 1 else shape[-1] ** -0.5)
            if name.endswith("norm.weight") or name.startswith("rope"):
                numbers = 1 + np.abs(numbers)
            if name.startswith("token"):
                numbers = numbers * 2
            found[name] = numbers.astype(np.float32)
        return found

    def metadata(self) -> dict[str, Any]:
        keys: dict[str, Any] = {
            "context_length": 64, "block_count": DEPTH, "embedding_length": self.width,
            "feed_forward_length": self.hidden, "attention.head_count": self.heads,
            "attention.head_count_kv": self.key_heads,
        }  # fmt: skip
        kind = "rms_" if self.norm == "rms" else ""
        keys[f"attention.layer_norm_{kind}epsilon"] = 1e-5
        if self.latent is None and self.head * self.heads != self.width:
            keys |= {"attention.key_length": self.head, "attention.value_length": self.head}
        if self.rope and self.base != 10000.0:
            keys["rope.freq_base"] = self.base
        if self.soft_cap:
            keys |= {"attn_logit_softcapping": self.soft_cap}
        if self.logit_cap:
            keys |= {"final_logit_softcapping": self.logit_cap}
        return {f"{self.name}.{key}": value for key, value in (keys | self.keys).items()}

    def write(
        self, path: Path, weights: dict[str, np.ndarray], kind: GGMLQuantizationType | None = None
    ) -> dict[str, np.ndarray]:
        """Write a file as others' tools would, matrices of a kind; return what it then holds."""
        writer = GGUFWriter(str(path), self.name)
        for key, value in self.metadata().items():
            add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
                   str: writer.add_string, list: writer.add_array}[type(value)]  # fmt: skip
            add(key, value)
        held = dict(weights)
        for name, numbers in weights.items():
            if kind is None or numbers.ndim == 1:
                writer.add_tensor(name, numbers)
                continue
            packed = quants.quantize(numbers, kind)
            writer.add_tensor(name, packed, raw_dtype=kind)
            held[name] = quants.dequantize(packed, kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return held

    def forward(self, weights: dict[str, np.ndarray], words: np.ndarray) -> np.ndarray:
        """The scores (T, words) after each of the words (T,), in float64."""
        return _Forward(self, weights).scores(torch.from_numpy(words.astype(np.int64)))


class _Forward:
    def __init__(self, plain: Plain, weights: dict[str, np.ndarray]) -> None:
        self.plain = plain
        self.all = {name: torch.from_numpy(w.astype(np.float64)) for name, w in weights.items()}
        self.number = 0

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.all[f"blk.{self.number}.{name}"]

    def dense(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(
            x, self[f"{name}.weight"], self.all.get(f"blk.{self.number}.{name}.bias")
        )

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight, bias = self.all[f"{name}.weight"], self.all.get(f"{name}.bias")
        if self.plain.norm == "layer":
            return functional.layer_norm(x, weight.shape, weight, bias, 1e-5)
        return functional.rms_norm(x, weight.shape, weight, 1e-5)

    def own_norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return self.norm(x, f"blk.{self.number}.{name}")

    def scores(self, words: torch.Tensor) -> np.ndarray:
        plain = self.plain
        x = self.all["token_embd.weight"][words] * plain.embedding_scale
        if plain.positions:
            x = x + self.all["position_embd.weight"][: len(words)]
        for self.number in range(DEPTH):
            h = self.own_norm(x, "attn_norm")
            h = self.latent(h) if plain.latent else self.attention(h)
            x = x + (self.own_norm(h, "post_attention_norm") if plain.post_norms else h)
            h = self.own_norm(x, "ffn_norm")
            h = self.experts(h) if f"blk.{self.number}.ffn_gate_inp.weight" in self.all else (
                self.hidden(h))  # fmt: skip
            x = x + (self.own_norm(h, "post_ffw_norm") if plain.post_norms else h)
        head = self.all["token_embd.weight" if plain.tied else "output.weight"]
        found = self.norm(x, "output_norm") @ head.T
        if plain.logit_cap:
            found = plain.logit_cap * torch.tanh(found / plain.logit_cap)
        return found.numpy()

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        """(T, heads, width): pairs are complex numbers, which are multiplied by exp(i angle)."""
        plain, width = self.plain, x.shape[-1]
        is_local = plain.local_base and plain.windows[self.number]
        base = plain.local_base if is_local else plain.base
        rates = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        if plain.factors:
            rates = rates / self.all["rope_freqs.weight"]
        angles = torch.arange(len(x), dtype=torch.float64)[:, None] * rates
        steps = torch.polar(torch.ones_like(angles), angles)[:, None]
        if plain.rope == "norm":
            pairs = torch.view_as_complex(x.reshape(*x.shape[:2], width // 2, 2).contiguous())
            return torch.view_as_real(pairs * steps).flatten(-2)
        pairs = torch.complex(x[..., : width // 2], x[..., width // 2 :]) * steps
        return torch.cat([pairs.real, pairs.imag], -1)

    def mixed(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
              scale: float) -> torch.Tensor:  # fmt: skip
        plain, count = self.plain, len(query)
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
        scores = torch.einsum("thd,shd->hts", query, key) * scale
        if plain.soft_cap:
            scores = plain.soft_cap * torch.tanh(scores / plain.soft_cap)
        age = torch.arange(count)[:, None] - torch.arange(count)
        seen = (age >= 0) & (age < (plain.windows[self.number] or count))
        weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
        return torch.einsum("hts,shd->thd", weights, value).flatten(1)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        plain = self.plain
        counts = [n * plain.head for n in (plain.heads, plain.key_heads, plain.key_heads)]
        if plain.fused:
            parts = list(self.dense("attn_qkv", x).split(counts, -1))
        else:
            parts = [self.dense(f"attn_{name}", x) for name in "qkv"]
        query, key, value = (part.reshape(len(x), -1, plain.head) for part in parts)
        if plain.head_norms:
            query, key = self.own_norm(query, "attn_q_norm"), self.own_norm(key, "attn_k_norm")
        if plain.rope:
            query, key = self.turned(query), self.turned(key)
        scale = plain.scale or plain.head**-0.5
        return self.dense("attn_output", self.mixed(query, key, value, scale))

    def latent(self, x: torch.Tensor) -> torch.Tensor:
        """Keys and values are written out, as they are while such a model is trained."""
        one, heads = self.plain.latent, self.plain.heads
        assert one is not None
        if one.query_rank:
            narrow = self.own_norm(self.dense("attn_q_a", x), "attn_q_a_norm")
            query = self.dense("attn_q_b", narrow)
        else:
            query = self.dense("attn_q", x)
        query = query.reshape(len(x), heads, -1)
        query = torch.cat([query[..., : one.plain], self.turned(query[..., one.plain :])], -1)
        both = self.dense("attn_kv_a_mqa", x)
        content = self.own_norm(both[:, : one.rank], "attn_kv_a_norm")
        shared = self.turned(both[:, None, one.rank :]).expand(-1, heads, -1)
        if one.split:
            key = torch.einsum("tr,hrp->thp", content, self["attn_k_b.weight"])
            value = torch.einsum("tr,hvr->thv", content, self["attn_v_b.weight"])
        else:
            whole = self.dense("attn_kv_b", content).reshape(len(x), heads, -1)
            key, value = whole[..., : one.plain], whole[..., one.plain :]
        scale = self.plain.scale or (one.plain + one.turned) ** -0.5
        mixed = self.mixed(query, torch.cat([key, shared], -1), value, scale)
        return self.dense("attn_output", mixed)

    def gate(self, x: torch.Tensor) -> torch.Tensor:
        if self.plain.gate == "silu":
            return functional.silu(x)
        return functional.gelu(x, approximate="tanh")

    def hidden(self, x: torch.Tensor, suffix: str = "") -> torch.Tensor:
        up = self.dense(f"ffn_up{suffix}", x)
        if self.plain.gate_fused:
            first, second = up.chunk(2, -1)
            wide = self.gate(first) * second
        elif self.plain.gated:
            wide = self.gate(self.dense(f"ffn_gate{suffix}", x)) * up
        else:
            wide = self.gate(up)
        return self.dense(f"ffn_down{suffix}", wide)

    def experts(self, x: torch.Tensor) -> torch.Tensor:
        """One token after the other, one expert after the other."""
        some = self.plain.experts
        assert some is not None
        rows = []
        for token in x:
            numbers = self["ffn_gate_inp.weight"] @ token
            scores = numbers.sigmoid() if some.sigmoid else numbers.softmax(-1)
            ranked = scores + self["exp_probs_b.bias"] if some.bias else scores.clone()
            groups = ranked.reshape(some.groups, -1)
            worth = groups.topk(2)[0].sum(-1) if some.bias else groups.max(-1)[0]
            for group in worth.argsort(descending=True)[some.groups_used :]:
                groups[group] = -math.inf
            taken = groups.flatten().topk(some.used)[1]
            shares = scores[taken] / (scores[taken].sum() if some.normalised else 1) * some.scale
            row = torch.zeros_like(token)
            for share, e in zip(shares, taken, strict=True):
                wide = self.gate(self["ffn_gate_exps.weight"][e] @ token)
                wide = wide * (self["ffn_up_exps.weight"][e] @ token)
                row = row + share * (self["ffn_down_exps.weight"][e] @ wide)
            if some.shared:
                beside = self.hidden(token, "_shexp")
                if some.shared_gate:
                    beside = beside * (self["ffn_gate_inp_shexp.weight"] @ token).sigmoid()
                row = row + beside
            rows.append(row)
        return torch.stack(rows)


_EXPERT_KEYS = {"expert_count": 6, "expert_used_count": 2}
_OWN_EXPERTS = {**_EXPERT_KEYS, "expert_feed_forward_length": 16}
FAMILIES = {
    "llama": Plain("llama", rope="norm", factors=True),
    "mistral": Plain("llama", {"attention.sliding_window": 5}, rope="norm", windows=(5, 5),
                     out_bias=False),
    "mixtral": Plain("llama", _EXPERT_KEYS, rope="norm", hidden=16, experts=Experts()),
    "qwen2": Plain("qwen2", qkv_bias=True, base=1e6, tied=True),
    "qwen2moe": Plain("qwen2moe", _OWN_EXPERTS, qkv_bias=True,
                      experts=Experts(shared=24, shared_gate=True, normalised=False)),
    "qwen3": Plain("qwen3", head=16, head_norms=True),
    "qwen3moe": Plain("qwen3moe", _OWN_EXPERTS, head_norms=True, experts=Experts()),
    "gemma2": Plain("gemma2", {"attention.sliding_window": 5}, head=16, post_norms=True,
                    gate="gelu", soft_cap=2.0, logit_cap=3.0, tied=True, windows=(5, 0),
                    embedding_scale=32**0.5),
    "gemma3": Plain("gemma3", {"attention.sliding_window": 5,
                               "attention.sliding_window_pattern": [True, False]},
                    head=16, post_norms=True, head_norms=True, gate="gelu", tied=True, base=1e6,
                    local_base=10000.0, windows=(5, 0), embedding_scale=32**0.5),
    "phi3": Plain("phi3", fused=True, gate_fused=True),
    "gpt2": Plain("gpt2", norm="layer", rope="", key_heads=4, fused=True, qkv_bias=True,
                  out_bias=True, gate="gelu", gated=False, positions=True, tied=True),
    "deepseek2": Plain(
        "deepseek2",
        {**_OWN_EXPERTS, "attention.head_count_kv": 1, "rope.dimension_count": 8,
         "attention.kv_lora_rank": 16, "attention.key_length": 24, "attention.value_length": 16,
         "attention.key_length_mla": 20, "attention.value_length_mla": 10,
         "leading_dense_block_count": 1, "expert_shared_count": 1, "expert_weights_scale": 2.0},
        rope="norm", latent=Latent(), experts=Experts(shared=16, normalised=False, scale=2.0),
    ),
    "deepseek3": Plain(
        "deepseek2",
        {**_OWN_EXPERTS, "attention.head_count_kv": 4, "rope.dimension_count": 8,
         "attention.kv_lora_rank": 16, "attention.q_lora_rank": 14, "attention.key_length": 20,
         "attention.value_length": 10, "expert_gating_func": 2, "expert_weights_norm": True,
         "expert_group_count": 3, "expert_group_used_count": 2},
        rope="norm", latent=Latent(query_rank=14, split=False),
        experts=Experts(sigmoid=True, bias=True, groups=3, groups_used=2),
    ),
}  # fmt: skip
