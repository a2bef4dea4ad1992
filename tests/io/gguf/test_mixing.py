"""Which tensors of a model are quantised, and to what."""

from __future__ import annotations

import pytest

from baregrad.io.gguf import by_name
from baregrad.io.gguf.mixing import fitting, type_for


@pytest.mark.parametrize("wanted, width, found", [
    ("Q4_K", 4096, "Q4_K"), ("Q4_K", 576, "Q5_0"), ("Q5_K", 896, "Q5_1"), ("Q6_K", 576, "Q8_0"),
    ("Q4_0", 576, "Q4_0"), ("Q4_K", 80, "F16"), ("Q8_0", 100, "F16"), ("BF16", 7, "BF16"),
])  # fmt: skip
def test_rows_get_a_type_whose_blocks_divide_them(wanted: str, width: int, found: str) -> None:
    assert fitting(by_name(wanted), width).name == found


@pytest.mark.parametrize("name, shape, has_head, found", [
    ("blk.0.attn_q.weight", (512, 512), True, "Q4_K"),
    ("blk.0.attn_q.bias", (512,), True, "F32"),
    ("blk.0.attn_norm.weight", (512,), True, "F32"),
    ("blk.0.attn_q_norm.weight", (2, 512), True, "F32"),
    ("blk.0.ffn_gate_inp.weight", (8, 512), True, "F32"),
    ("blk.0.ffn_up_exps.weight", (8, 256, 512), True, "Q4_K"),
    ("output.weight", (999, 512), True, "Q6_K"),
    ("token_embd.weight", (999, 512), True, "Q4_K"),
    ("token_embd.weight", (999, 512), False, "Q6_K"),
    ("position_embd.weight", (64, 512), False, "F32"),
])  # fmt: skip
def test_what_is_small_or_delicate_keeps_more(
    name: str, shape: tuple[int, ...], has_head: bool, found: str
) -> None:
    chosen = type_for(name, shape, by_name("F32"), by_name("Q4_K"), has_head)
    assert chosen.name == found
