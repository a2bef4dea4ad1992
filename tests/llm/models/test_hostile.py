"""Metadata and configs of which parts are replaced by nonsense: read, or refused as ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baregrad.base.errors import BaregradError
from baregrad.llm.models.architectures import read_traits
from baregrad.llm.models.folder_config import metadata_of, read_config
from tests.llm.models.plain_decoder import FAMILIES
from tests.llm.models.test_architectures import told
from tests.llm.models.test_folders import SIZES

NONSENSE = (
    0, -1, 1, 3, 7, (1 << 31) - 1, 1 << 31, 1 << 62, 1 << 1100, 0.0, -0.5, 1e-300, 1e29, 1e300,
    float("nan"), float("inf"), True, False, "", "yarn", "longrope", [], [0], [1, 2, 3], ["a"],
    [[]], [None], {}, {"a": 1}, None,
)  # fmt: skip
MORE_KEYS = (
    "attention.sliding_window", "attention.sliding_window_pattern", "attention.scale",
    "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast", "rope.freq_base", "rope.freq_base_swa", "rope.dimension_count",
    "attention.key_length", "attention.value_length", "expert_group_count", "expert_used_count",
    "expert_count", "expert_group_used_count", "nextn_predict_layers", "attention.kv_lora_rank",
    "rope.scaling.yarn_log_multiplier", "attention.causal",
)  # fmt: skip
ROPES: tuple[dict[str, Any], ...] = (
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 32},
    {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.7},
    {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
    {"type": "linear", "factor": 2.0},
)  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_metadata_is_read_or_refused(name: str) -> None:
    rng = np.random.default_rng(len(name))
    metadata, shapes = told(name)
    prefix = metadata["general.architecture"]
    keys = [*metadata, *(f"{prefix}.{key}" for key in MORE_KEYS)]
    read = 0
    for _ in range(400):
        changed = dict(metadata)
        for key in rng.choice(keys, rng.integers(1, 4)):
            changed[str(key)] = NONSENSE[rng.integers(len(NONSENSE))]
        try:
            read_traits(changed, shapes)
            read += 1
        except BaregradError as error:
            assert len(str(error)) < 1000
    assert 0 < read < 400


@pytest.mark.parametrize("rope", ROPES)
def test_a_config_is_read_or_refused(rope: dict[str, Any], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    config = {
        **SIZES, "model_type": "qwen2", "rope_theta": 1e4, "sliding_window": 4, "head_dim": 8,
        "use_sliding_window": True, "max_window_layers": 1, "layer_types": None,
        "partial_rotary_factor": 1.0, "query_pre_attn_scalar": None, "rope_scaling": rope,
    }  # fmt: skip
    read = 0
    for _ in range(400):
        changed: dict[str, Any] = dict(config)
        inner = dict(rope)
        table = changed if rng.random() < 0.5 else inner
        key = str(rng.choice(list(table)))
        changed["rope_scaling"] = inner
        table[key] = NONSENSE[rng.integers(len(NONSENSE))]
        (tmp_path / "config.json").write_text(json.dumps(changed))
        try:
            metadata_of(read_config(tmp_path))
            read += 1
        except BaregradError as error:
            assert len(str(error)) < 1000
    assert 0 < read < 400
