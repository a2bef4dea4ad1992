"""Strings, and tables of strings and numbers, on the host."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Any

import numpy as np

from baregrad.dtypes import from_numpy
from baregrad.io.onnx.call import NodeCall, Result, of_domain, standard
from baregrad.io.onnx.values import HostArray, is_text
from baregrad.tensor import Tensor


def _concat(call: NodeCall) -> Result:
    return np.asarray(np.char.add(*np.broadcast_arrays(call.host(0), call.host(1))), str)


def _full_match(call: NodeCall) -> Result:
    pattern = re.compile(call.wanted("pattern"))
    texts = call.host(0)
    found = [pattern.fullmatch(one) is not None for one in texts.reshape(-1).tolist()]
    return np.array(found, np.bool_).reshape(texts.shape)


def _split(call: NodeCall) -> Result:
    texts = call.host(0)
    delimiter, most = call.attribute("delimiter"), call.attribute("maxsplit", -1)
    parts = [one.split(delimiter or None, most) for one in texts.reshape(-1).tolist()]
    width = max(map(len, parts), default=0)
    rows = np.array([one + [""] * (width - len(one)) for one in parts], str)
    counts = np.array([len(one) for one in parts], np.int64)
    return rows.reshape((*texts.shape, width)), counts.reshape(texts.shape)


def _normalized(call: NodeCall) -> Result:
    texts = call.host(0)
    change = call.attribute("case_change_action", "NONE")
    stops = call.attribute("stopwords") or []
    exact = bool(call.attribute("is_case_sensitive", 0))
    known = set(stops) if exact else {one.lower() for one in stops}
    words = texts.reshape(-1).tolist()
    kept = [one for one in words if (one if exact else one.lower()) not in known]
    how = {"LOWER": str.lower, "UPPER": str.upper}.get(change, str)
    kept = [how(one) for one in kept] or [""]
    return np.array(kept, str).reshape((1, -1) if texts.ndim == 2 else (-1,))


def _tf_idf(call: NodeCall) -> Result:
    rows = call.host(0)
    single = rows.ndim == 1
    rows = rows.reshape(1, -1) if single else rows
    pool: list[Any] = call.attribute("pool_strings") or call.wanted("pool_int64s")
    starts, places = call.wanted("ngram_counts"), call.wanted("ngram_indexes")
    low, high = call.wanted("min_gram_length"), call.wanted("max_gram_length")
    grams: dict[tuple[Any, ...], int] = {}
    number = 0
    for length, start in enumerate(starts, 1):
        end = starts[length] if length < len(starts) else len(pool)
        for at in range(start, end, length):
            grams[tuple(pool[at : at + length])] = number
            number += 1
    found = np.zeros((len(rows), max(places) + 1), np.float32)
    for row, line in enumerate(rows.tolist()):
        for length in range(low, high + 1):
            for skip in range(call.wanted("max_skip_count") + 1 if length > 1 else 1):
                _count(found[row], line, length, skip + 1, grams, places)
    weights = call.attribute("weights")
    scale = np.ones(found.shape[1], np.float32)
    if weights:
        scale[np.array(places)] = weights
    mode = call.wanted("mode")
    if mode != "TF":
        found = (found > 0) * scale if mode == "IDF" else found * scale
    found = found.astype(np.float32)
    return Tensor(found[0] if single else found, device=call.device)


def _count(
    counts: HostArray, line: list[Any], length: int, step: int,
    grams: dict[tuple[Any, ...], int], places: list[int],
) -> None:
    for start in range(len(line) - (length - 1) * step):
        number = grams.get(tuple(line[start : start + length * step : step]))
        if number is not None:
            counts[places[number]] += 1


# --- tables ---------------------------------------------------------------------------------------


def _label_encoder(call: NodeCall) -> Result:
    keys = _listed(call, "keys")
    values = _listed(call, "values")
    names = ("values_strings", "values_int64s", "values_floats", "values_tensor")
    kind = next((name for name in names if name in call.node.attributes), "")
    default: Any = {"values_strings": "_Unused", "values_int64s": -1}.get(kind, -0.0)
    for name in ("default_string", "default_int64", "default_float"):
        if name.split("_")[1] in kind:
            default = call.attribute(name, default)
    if call.attribute("default_tensor") is not None:
        default = call.wanted("default_tensor").reshape(-1)[0].item()
    table = dict(zip(keys, values, strict=True))
    nan = next((value for key, value in table.items() if key != key), default)
    array = call.host(0)
    found = [nan if one != one else table.get(one, default) for one in array.reshape(-1).tolist()]
    kinds = {"values_strings": str, "values_int64s": np.int64, "values_floats": np.float32}
    dtype: Any = kinds.get(kind)
    dtype = call.wanted("values_tensor").dtype if dtype is None else dtype
    made = np.array(found, dtype).reshape(array.shape)
    return made if is_text(made) else Tensor(made, device=call.device)


def _listed(call: NodeCall, name: str) -> list[Any]:
    for ending in ("strings", "int64s", "floats", "tensor"):
        found = call.attribute(f"{name}_{ending}")
        if found is not None:
            return found.reshape(-1).tolist() if isinstance(found, np.ndarray) else list(found)
    return []


def _binarizer(call: NodeCall) -> Result:
    x = call[0]
    return (x > call.attribute("threshold", 0.0)).cast(x.dtype)


def _feature_extractor(call: NodeCall) -> Result:
    places = call.integers(1)
    value = call.value(0)
    if is_text(value):
        return np.take(call.host(0), places, -1)
    return call[0].index_select(-1, Tensor(np.array(places, np.int64), device=call.device))


def _tree_ensemble(call: NodeCall) -> Result:
    x = call.host(0)
    rows = x.shape[0]
    leaves = call.wanted("leaf_weights")
    ids, targets = call.wanted("leaf_targetids"), call.wanted("n_targets")
    aggregate = call.attribute("aggregate_function", 1)
    found: list[list[list[float]]] = [[[] for _ in range(targets)] for _ in range(rows)]
    members = _members(call)
    for row in range(rows):
        for root in call.wanted("tree_roots"):
            for leaf in _leaves(call, x[row], root, members):
                found[row][ids[leaf]].append(float(leaves[leaf]))
    how: Any = {0: lambda v: sum(v) / len(call.wanted("tree_roots")), 1: sum, 2: min, 3: max}
    made = np.array([[how[aggregate](one) if one else 0.0 for one in row] for row in found])
    post = call.attribute("post_transform", 0)
    if post not in (0, 1, 2):
        raise call.refuse("has a post_transform that is not offered", found=post)
    y = Tensor(made.astype(x.dtype), dtype=from_numpy(x.dtype), device=call.device)
    return (y, y.softmax(-1), y.sigmoid())[{0: 0, 1: 1, 2: 2}[post]]


def _members(call: NodeCall) -> list[list[float]]:
    """The values of each node that asks for membership."""
    values = call.attribute("membership_values")
    groups: list[list[float]] = [[]]
    for one in [] if values is None else values.reshape(-1).tolist():
        if one != one:
            groups.append([])
        else:
            groups[-1].append(one)
    return groups


def _leaves(call: NodeCall, row: HostArray, root: int, members: list[list[float]]) -> list[int]:
    modes, splits = call.wanted("nodes_modes"), call.wanted("nodes_splits")
    features = call.wanted("nodes_featureids")
    asked = np.cumsum([mode == 6 for mode in modes])
    missing = call.attribute("nodes_missing_value_tracks_true") or [0] * len(modes)
    node = root
    while True:
        value, split = row[features[node]], splits[node]
        tests = (value <= split, value < split, value >= split, value > split, value == split,
                 value != split)  # fmt: skip
        mode = int(modes[node])
        taken = value in members[asked[node] - 1] if mode == 6 else bool(tests[mode])
        taken = taken or (bool(missing[node]) and value != value)
        kind = "true" if taken else "false"
        following = call.wanted(f"nodes_{kind}nodeids")[node]
        if call.wanted(f"nodes_{kind}leafs")[node]:
            return [following]
        node = following


OPERATORS = MappingProxyType({
    **standard({
        "StringConcat": _concat, "RegexFullMatch": _full_match, "StringSplit": _split,
        "StringNormalizer": _normalized, "TfIdfVectorizer": _tf_idf,
    }),
    **of_domain("ai.onnx.ml", {
        "LabelEncoder": _label_encoder, "Binarizer": _binarizer,
        "ArrayFeatureExtractor": _feature_extractor, "TreeEnsemble": _tree_ensemble,
    }),
})  # fmt: skip
