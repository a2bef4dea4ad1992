"""The common operators of the domain `com.microsoft`.

Source: onnxruntime's docs/ContribOperators.md, version 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from baregrad.dtypes import dtypes
from baregrad.io.onnx.call import Function, NodeCall, Result, of_domain
from baregrad.io.onnx.ops import nn, quantised
from baregrad.io.onnx.ops.attention import (
    causal,
    heads_of,
    joined,
    rotated,
    scores_of,
    softmax_of,
    weighted,
)
from baregrad.io.onnx.ops.nn import convolved, normalised
from baregrad.tensor import Tensor

DOMAIN = "com.microsoft"


def _activation(call: NodeCall) -> Callable[[Tensor], Tensor]:
    """What a fused convolution or product ends with."""
    name = call.attribute("activation", "")
    numbers = list(call.attribute("activation_params") or [])
    if call.node.op == "FusedGemm":
        defaults = {"LeakyRelu": [0.01], "HardSigmoid": [0.2, 0.5]}.get(name, [])
        numbers = [call.attribute(f"activation_{kind}", default)
                   for kind, default in zip(("alpha", "beta"), defaults, strict=False)]
    plain: dict[str, Any] = {
        "": lambda x: x, "Relu": Tensor.relu, "Tanh": Tensor.tanh, "Sigmoid": Tensor.sigmoid,
        "LeakyRelu": lambda x: x.leaky_relu(*numbers),
        "Clip": lambda x: x.clamp(*numbers),
        "HardSigmoid": lambda x: (x * numbers[0] + numbers[1]).clamp(0, 1),
    }  # fmt: skip
    if name not in plain:
        raise call.refuse("ends with an activation that is not offered", found=name)
    found: Callable[[Tensor], Tensor] = plain[name]
    return found


def _fused_conv(call: NodeCall) -> Result:
    found = convolved(call, call[0], call[1], call.maybe(2))
    if call.has(3):
        found = found + call[3]
    return _activation(call)(found)


def _fused_matmul(call: NodeCall) -> Result:
    a, b = call[0], call[1]
    for name, at in (("transBatchA", 0), ("transBatchB", 1)):
        if call.attribute(name, 0):
            moved = (a, b)[at].movedim(0, -2)
            a, b = (moved, b) if at == 0 else (a, moved)
    a = a.mT if call.attribute("transA", 0) else a
    b = b.mT if call.attribute("transB", 0) else b
    return (a @ b) * call.attribute("alpha", 1.0)


def _with_bias(function: Callable[[Tensor], Tensor]) -> Function:
    return lambda call: function(call[0] + call[1] if call.has(1) else call[0])


def _quick_gelu(call: NodeCall) -> Result:
    x = call[0]
    return x * (x * call.attribute("alpha", 1.702)).sigmoid()


def _norm(x: Tensor, scale: Tensor, bias: Tensor | None, epsilon: float, centred: bool) -> Any:
    y, mean, inverse = normalised(x, [x.ndim - 1], epsilon, centred)
    y = (y * scale.cast(y.dtype)).cast(x.dtype)
    return (y if bias is None else y + bias), mean, inverse


def _skip_norm(centred: bool) -> Function:
    def run(call: NodeCall) -> Result:
        total = call[0] + call[1]
        bias_at = 4 if centred else 3
        if call.has(bias_at):
            total = total + call[bias_at]
        bias = call.maybe(3) if centred else None
        default = 1e-12 if centred else 1e-5
        y, mean, inverse = _norm(total, call[2], bias, call.attribute("epsilon", default), centred)
        return y, mean, inverse, total

    return run


def _simplified(call: NodeCall) -> Result:
    y, _, inverse = _norm(call[0], call[1], None, call.attribute("epsilon", 1e-5), False)
    return y, inverse


def _embed_norm(call: NodeCall) -> Result:
    words, segments = call[0].cast(dtypes.int64), call.maybe(1)
    n, length = words.shape
    positions = call[8].cast(dtypes.int64) if call.has(8) else (
        Tensor.arange(length, device=call.device)
    )
    total = call[2].embedding(words) + call[3].embedding(positions)
    if segments is not None and call.has(4):
        total = total + call[4].embedding(segments.cast(dtypes.int64))
    y, _, _ = _norm(total, call[5], call[6], call.attribute("epsilon", 1e-12), True)
    counts = call[7].cast(dtypes.int32).sum(1) if call.has(7) else (
        Tensor.zeros(n, dtype=dtypes.int32, device=call.device)
    )
    return y, counts.cast(dtypes.int32), total


# --- attention ------------------------------------------------------------------------------------


def _mask(call: NodeCall, mask: Tensor, rows: Any, columns: Any) -> Tensor:
    """Bools that broadcast to (N, heads, rows, columns), of the forms that masks have."""
    if mask.ndim == 1:
        # Where each sequence ends; or where all end, then where all start.
        count = call.shape(0)[0]
        if mask.shape[0] not in (count, 2 * count):
            raise call.refuse("has a mask of another form", found=list(mask.shape))
        places = Tensor.arange(columns, device=call.device)
        kept = places < mask[:count].reshape(-1, 1)
        if mask.shape[0] != count:
            kept = kept & (places >= mask[count:].reshape(-1, 1))
        return kept.reshape((count, 1, 1, columns))
    kept = mask != 0
    if mask.ndim == 2:
        return kept.reshape((mask.shape[0], 1, 1, columns))
    return kept.unsqueeze(1) if mask.ndim == 3 else kept


def _attended(
    call: NodeCall, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
    bias: Tensor | None, past: Any,
) -> Tensor:
    """`past`: how many keys lie before the first query, or None where all keys are seen."""
    scale = call.attribute("scale", 0.0) or 1 / math.sqrt(query.shape[-1])
    scores = scores_of(query, key, scale)
    if bias is not None:
        scores = scores + bias.cast(scores.dtype)
    rows, columns = query.shape[2], key.shape[2]
    if mask is not None:
        # A number that is added, as onnxruntime does: a row of nothing is even.
        low = call.attribute("mask_filter_value", -10000.0)
        scores = scores + _mask(call, mask, rows, columns).where(0.0, low)
    if past is not None:
        scores = causal(rows, columns, call.device, past).where(scores, float("-inf"))
    return joined(weighted(softmax_of(scores), value).cast(query.dtype))


def _attention(call: NodeCall) -> Result:
    x, heads = call[0], call.wanted("num_heads")
    made = x @ call[1]
    if call.has(2):
        made = made + call[2]
    sizes = call.attribute("qkv_hidden_sizes") or [made.shape[-1] // 3] * 3
    query, key, value = (heads_of(one, heads) for one in made.split(sizes, -1))
    if call.has(4):
        past = call[4]
        key = Tensor.cat([past[0], key], dim=2)
        value = Tensor.cat([past[1], value], dim=2)
    if call.attribute("do_rotary", 0):
        raise call.refuse("turns positions inside of Attention")
    before = call[4].shape[3] if call.has(4) else 0
    found = _attended(call, query, key, value, call.maybe(3), call.maybe(5),
                      before if call.attribute("unidirectional", 0) else None)  # fmt: skip
    if len(call.node.outputs) < 2:
        return found
    return found, Tensor.stack([key, value])


def _multi_head(call: NodeCall) -> Result:
    heads = call.wanted("num_heads")
    query = call[0]
    if query.ndim == 5:
        parts = [query[:, :, :, at].transpose(1, 2) for at in range(3)]
        query, key, value = parts
    else:
        bias = call.maybe(3)
        if call.has(1) and call[1].ndim == 5:
            packed = call[1]
            key, value = (packed[:, :, :, at].transpose(1, 2) for at in range(2))
        else:
            key, value = call[1], call[2]
        if bias is not None:
            width = query.shape[-1]
            parts = [bias[:width], bias[width : 2 * width], bias[2 * width :]]
            query = query + parts[0]
            key = key + parts[1] if key.ndim == 3 else key
            value = value + parts[2] if value.ndim == 3 else value
        query = heads_of(query, heads)
        key = heads_of(key, heads) if key.ndim == 3 else key
        value = heads_of(value, heads) if value.ndim == 3 else value
    if call.has(6):
        key = Tensor.cat([call[6], key], dim=2)
        value = Tensor.cat([call[7], value], dim=2)
    before = call[6].shape[2] if call.has(6) else 0
    rows, columns = query.shape[2], key.shape[2] - before
    if call.attribute("unidirectional", 0) and rows is not columns and rows != columns:
        raise call.refuse("looks back from another sequence than its own", found=[rows, columns])
    found = _attended(call, query, key, value, call.maybe(4), call.maybe(5),
                      before if call.attribute("unidirectional", 0) else None)  # fmt: skip
    return found, key, value


def _group_query(call: NodeCall) -> Result:
    heads, own = call.wanted("num_heads"), call.wanted("kv_num_heads")
    if call.attribute("smooth_softmax", 0) or call.has(11):
        raise call.refuse("has a softmax with a sink")
    query = call[0]
    if call.has(1):
        key, value = call[1], call[2]
    else:
        width = query.shape[-1] // (heads + 2 * own)
        query, key, value = query.split([heads * width, own * width, own * width], -1)
    query, key, value = heads_of(query, heads), heads_of(key, own), heads_of(value, own)
    n, _, length, width = query.shape
    totals = call[5].reshape(-1) + 1
    kept = call[3].shape[2] if call.has(3) else 0
    # A sequence's own places end at its total; the cache holds those before.
    before = totals - length
    before = (before < 0).where(0, before) if kept else Tensor.zeros_like(before)
    steps = Tensor.arange(length, device=call.device)
    places = before.reshape(-1, 1) + steps
    if call.attribute("do_rotary", 0):
        at = call[9] if call.has(9) else places
        rows = at.cast(dtypes.int64).reshape(-1)
        tables = [call[number].index_select(0, rows) for number in (7, 8)]
        cosine, sine = (one.reshape((n, length, -1)) for one in tables)
        interleaved = bool(call.attribute("rotary_interleaved", 0))
        turned = 2 * cosine.shape[-1]
        query = rotated(query, cosine, sine, interleaved, turned)
        key = rotated(key, cosine, sine, interleaved, turned)
    if kept:
        total = max(kept, int(call.number(6)))
        room = total - kept
        index = places.cast(dtypes.int64).reshape((n, 1, length, 1))
        present = []
        for past, new in ((call[3], key), (call[4], value)):
            base = past.pad([0, 0, 0, room]) if room else past
            present.append(base.scatter(2, index.expand(new.shape), new))
        key, value = present
    columns = key.shape[2]
    seen = Tensor.arange(columns, device=call.device) <= places.unsqueeze(-1)
    window = call.attribute("local_window_size", -1)
    if window > 0:
        seen = seen & (Tensor.arange(columns, device=call.device) > places.unsqueeze(-1) - window)
    scale = call.attribute("scale", 0.0) or 1 / math.sqrt(width)
    scores = scores_of(query, key, scale, call.attribute("softcap", 0.0))
    if call.has(10):
        scores = scores + call[10].cast(scores.dtype)
    weights = softmax_of(seen.unsqueeze(1).where(scores, float("-inf")))
    return joined(weighted(weights, value).cast(query.dtype)), key, value


def _rotary(call: NodeCall) -> Result:
    x, at = call[0], call[1].cast(dtypes.int64)
    cosine, sine = call[2], call[3]
    flat = x.ndim == 3
    width = call.attribute("rotary_embedding_dim", 0)
    size = (width or 2 * cosine.shape[-1]) // 2
    y = heads_of(x, call.attribute("num_heads", 0) or x.shape[-1] // (2 * size)) if flat else x
    n, length = y.shape[0], y.shape[2]
    if at.ndim < 2:
        at = at.reshape(-1, 1) + Tensor.arange(length, device=call.device)
        at = at.expand(n, length)
    rows = at.reshape(-1)
    tables = [one.index_select(0, rows).reshape((n, length, -1)) for one in (cosine, sine)]
    found = rotated(y, tables[0], tables[1], bool(call.attribute("interleaved", 0)), width)
    return joined(found) if flat else found


def _fused_scaled_matmul(call: NodeCall) -> Result:
    """DynamicQuantizeMatMul and MatMulIntegerToFloat, whose weights are integers with scales."""
    x = call[0]
    if call.node.op == "MatMulIntegerToFloat":
        a = quantised.dequantised(x, call[2].reshape(()), _zero(call, 4, x))
        scale, zero, bias = call[3], call.maybe(5), call.maybe(6)
    else:
        a = quantised.dequantised(*quantised.dynamic(x))
        scale, zero, bias = call[2], call.maybe(3), call.maybe(4)
    weight = call[1]
    wide = quantised.dequantised(
        weight, quantised.beside(weight, scale, -1),
        None if zero is None else quantised.beside(weight, zero, -1),
    )
    found = a @ wide
    return found if bias is None else found + bias


def _zero(call: NodeCall, at: int, x: Tensor) -> Tensor | None:
    return quantised.beside(x, call[at], -1) if call.has(at) else None


def _matmul_nbits(call: NodeCall) -> Result:
    x, packed, scales = call[0], call[1], call[2]
    bits, block = call.attribute("bits", 4), call.wanted("block_size")
    rows, columns = call.wanted("N"), call.wanted("K")
    if bits not in (4, 8):
        raise call.refuse("has weights of another width", found=f"{bits} bits")
    if call.has(4):
        raise call.refuse("has columns that are not in the order of their groups")
    blocks = -(-columns // block)

    def unpacked(codes: Tensor, count: int) -> Tensor:
        flat = codes.reshape((rows, -1)).cast(dtypes.int32)
        if bits == 4:
            flat = Tensor.stack([flat & 15, flat >> 4], dim=-1).reshape((rows, -1))
        return flat.narrow(1, 0, count)

    weight = unpacked(packed, blocks * block).reshape((rows, blocks, block))
    zero: Any = 1 << (bits - 1)
    if call.has(3):
        given = call[3]
        zero = given.reshape((rows, blocks, 1)) if given.dtype.kind == "float" else (
            unpacked(given, blocks).reshape((rows, blocks, 1)))  # fmt: skip
    wide = (weight - zero).cast(x.dtype) * scales.reshape((rows, blocks, 1)).cast(x.dtype)
    found = x @ wide.reshape((rows, blocks * block)).narrow(1, 0, columns).mT
    return found + call[5] if call.has(5) else found


def _fused_gemm(call: NodeCall) -> Result:
    from baregrad.io.onnx.ops.math import OPERATORS as STANDARD

    found = STANDARD[("", "Gemm")](call)
    assert isinstance(found, Tensor)
    return _activation(call)(found)


OPERATORS = MappingProxyType(of_domain(DOMAIN, {
    "Gelu": lambda call: call[0].gelu(), "QuickGelu": _quick_gelu,
    "FastGelu": _with_bias(lambda x: x.gelu(approximate="tanh")),
    "BiasGelu": _with_bias(Tensor.gelu), "FusedConv": _fused_conv,
    "FusedMatMul": _fused_matmul, "TransposeMatMul": _fused_matmul, "FusedGemm": _fused_gemm,
    "SkipLayerNormalization": _skip_norm(True),
    "SkipSimplifiedLayerNormalization": _skip_norm(False),
    "SimplifiedLayerNormalization": _simplified,
    "LayerNormalization": nn.OPERATORS[("", "LayerNormalization")],
    "EmbedLayerNormalization": _embed_norm, "Attention": _attention,
    "MultiHeadAttention": _multi_head, "GroupQueryAttention": _group_query,
    "RotaryEmbedding": _rotary, "MatMulNBits": _matmul_nbits,
    "DynamicQuantizeMatMul": _fused_scaled_matmul, "MatMulIntegerToFloat": _fused_scaled_matmul,
    **quantised.MICROSOFT,
})) | {("", "SimplifiedLayerNormalization"): _simplified}  # fmt: skip
