"""What a file's metadata and tensors say of its decoder, and what is refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from baregrad.base.errors import FileFormatError, UnsupportedError
from baregrad.llm.models.architectures import read_traits
from baregrad.llm.models.traits import DecoderTraits
from tests.llm.models.plain_decoder import FAMILIES, Shapes


def told(name: str, **changes: Any) -> tuple[dict[str, Any], Shapes]:
    """The metadata and tensors of a family, with some keys changed; None takes one away."""
    plain = FAMILIES[name]
    metadata = {"general.architecture": plain.name, **plain.metadata()}
    for key, value in changes.items():
        metadata[f"{plain.name}.{key.replace('__', '.')}"] = value
    return {key: value for key, value in metadata.items() if value is not None}, plain.shapes()


def traits(name: str, context: int | None = None, **changes: Any) -> DecoderTraits:
    metadata, shapes = told(name, **changes)
    return read_traits(metadata, shapes, context=context)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_wants_the_tensors_that_its_files_hold(name: str) -> None:
    _, shapes = told(name)
    shapes.pop("rope_freqs.weight", None)
    found = traits(name).shapes()
    found.pop("rope_freqs.weight", None)
    assert found == shapes


def test_layers_alike_are_one_object() -> None:
    first, second = traits("llama").layers
    assert first is second
    local, whole = traits("gemma3").layers
    assert (local.window, whole.window) == (5, 0)
    assert local.rope is not None and whole.rope is not None
    assert (local.rope.base, whole.rope.base) == (10000.0, 1e6)


def test_an_unknown_architecture_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="'mamba7'.*llama, qwen2"):
        read_traits({"general.architecture": "mamba7"}, {})
    with pytest.raises(FileFormatError, match="general.architecture"):
        read_traits({}, {})


@pytest.mark.parametrize(("changes", "text"), [
    ({"rope__scaling__type": "ntk"}, "llama.rope.scaling.type: found 'ntk', wanted 'none' or"),
    ({"attention__clamp_kqv": 8.0}, "'llama.attention.clamp_kqv'"),
    ({"attention__temperature_scale": 0.1}, "temperature_scale"),
])  # fmt: skip
def test_an_unknown_value_or_key_is_refused_by_name(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(UnsupportedError, match=text):
        traits("llama", **changes)


@pytest.mark.parametrize(("changes", "text"), [
    ({"embedding_length": None}, "llama.embedding_length: found nothing"),
    ({"embedding_length": 0}, "found 0, wanted an integer from 1"),
    ({"attention__head_count": "4"}, "attention.head_count: found '4'"),
    ({"attention__head_count_kv": 3}, "wanted a divisor of 4"),
    ({"attention__head_count": [4]}, "a number for each of 2 layers"),
    ({"attention__layer_norm_rms_epsilon": True}, "wanted a number"),
    ({"rope__dimension_count": 7}, "an even number up to 8"),
    ({"feed_forward_length": 47}, r"blk.0.ffn_up.weight.*found \[48, 32\], wanted \[47, 32\]"),
])  # fmt: skip
def test_broken_metadata_is_refused_by_name(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(FileFormatError, match=text):
        traits("llama", **changes)


def test_a_tensor_that_is_missing_or_one_too_many_is_refused_by_name() -> None:
    metadata, shapes = told("gemma2")
    del shapes["blk.1.ffn_up.weight"]
    with pytest.raises(FileFormatError, match=r"lacks a tensor: wanted blk.1.ffn_up.weight"):
        read_traits(metadata, shapes)
    metadata, shapes = told("qwen2")
    with pytest.raises(UnsupportedError, match=r"'blk.0.attn_sinks.weight'"):
        read_traits(metadata, {**shapes, "blk.0.attn_sinks.weight": (4,)})
    for name in [name for name in shapes if name.endswith("bias")]:
        del shapes[name]
    with pytest.raises(FileFormatError, match=r"blk.0.attn_q.bias"):
        read_traits(metadata, shapes)


def test_layers_that_guess_further_words_are_left_aside() -> None:
    metadata, shapes = told("llama", nextn_predict_layers=1, block_count=3)
    ahead = {"blk.2.nextn.eh_proj.weight": (32, 64), "blk.2.attn_norm.weight": (32,)}
    assert read_traits(metadata, {**shapes, **ahead}).depth == 2


def test_long_factors_are_taken_for_long_use() -> None:
    keys = {"rope__scaling__type": "longrope", "rope__scaling__original_context_length": 32,
            "rope__scaling__attn_factor": 1.25}  # fmt: skip
    metadata, shapes = told("phi3", **keys)
    shapes |= {"rope_factors_long.weight": (4,), "rope_factors_short.weight": (4,)}
    for context, name in ((None, "short"), (32, "short"), (33, "long")):
        rope = read_traits(metadata, shapes, context=context).layers[0].rope
        assert rope is not None and rope.factors == f"rope_factors_{name}.weight"
        assert rope.magnitude == 1.25 and rope.scaling == "none"


def test_yarn_grows_what_is_turned_or_what_is_scored() -> None:
    keys = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
    rope = traits("qwen2", **keys).layers[0].rope
    assert rope is not None and rope.magnitude == pytest.approx(1 + 0.1 * math.log(4))
    plain = traits("deepseek2").layers[0]
    grown = traits("deepseek2", **keys, rope__scaling__yarn_log_multiplier=0.0707).layers[0]
    assert grown.rope is not None and grown.rope.magnitude == 1
    assert grown.scale / plain.scale == pytest.approx((1 + 0.0707 * math.log(4)) ** 2)


def test_the_widest_models_of_gemma_scale_scores_by_their_width() -> None:
    metadata, shapes = told("gemma2", block_count=46, attention__sliding_window=None)
    for name, shape in list(shapes.items()):
        if name.startswith("blk.1"):
            shapes |= {name.replace("blk.1", f"blk.{number}"): shape for number in range(2, 46)}
    found = read_traits(metadata, shapes)
    assert found.layers[0].scale == pytest.approx((32 / 4) ** -0.5)
    assert [layer.window for layer in found.layers[:3]] == [4096, 0, 4096]
