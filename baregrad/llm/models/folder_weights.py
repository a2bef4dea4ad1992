"""The weights of a Hugging Face folder: safetensors, perhaps in parts with an index."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from baregrad.base.errors import FileFormatError
from baregrad.dtypes import dtypes
from baregrad.io.excerpt import excerpt
from baregrad.io.gguf import GgmlType, PackedWeight, by_name
from baregrad.io.tensors import safe_load
from baregrad.llm.models.folder_config import Family, Vectors
from baregrad.tensor import Tensor

_INDEX = "model.safetensors.index.json"
_WHOLE = MappingProxyType({
    "embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output",
    "wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm",
    "word_embeddings": "token_embd", "position_embeddings": "position_embd",
    "token_type_embeddings": "token_types", "LayerNorm": "token_embd_norm",
})
_LAYER = MappingProxyType({
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_kv_b",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up", "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
})  # fmt: skip
_EXPERT = MappingProxyType({
    "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down",
    "w1": "ffn_gate", "w3": "ffn_up", "w2": "ffn_down",
})
_NAME = re.compile(r"(?:.*\.)?(?:layers?|h)\.(?P<layer>\d+)\.(?P<part>.*)", re.DOTALL)
_ONE_EXPERT = re.compile(r"(?:mlp|block_sparse_moe)\.experts\.(?P<number>\d+)\.(?P<part>\w+)")
_SHARED = re.compile(r"mlp\.shared_experts?\.(?P<part>\w+)")
# Buffers that old files carry, masks and rates; what an encoder's training alone needs; the parts
# of a model that see.
_ASIDE = re.compile(
    r"(?:.*\.)?(?:rotary_emb\.inv_freq|attn\.(?:masked_)?bias|position_ids)|"
    r"(?:bert\.)?pooler\..*|cls\..*|(?:model\.)?(?:vision_tower|multi_modal_projector)\..*",
    re.DOTALL,
)
_TYPES = MappingProxyType({
    dtypes.float32: "F32", dtypes.float16: "F16", dtypes.bfloat16: "BF16", dtypes.float64: "F64",
})


class FolderWeights:
    """Weights of a folder under the names of GGUF files, mapped where they are stored as wanted.

    `factors` are vectors that a GGUF file would hold, and a config holds instead.
    """

    def __init__(
        self, folder: Path, family: Family, factors: Vectors, *, is_tied: bool,
        device: str | None = None,
    ) -> None:  # fmt: skip
        self._family = family
        self._tensors: dict[str, list[Tensor]] = {}
        for name, tensor in load_folder(folder, device).items():
            if _ASIDE.fullmatch(name):
                continue
            ours, place = canonical_name(name, family)
            if ours == "output.weight" and is_tied:
                continue
            parts = self._tensors.setdefault(ours, [])
            if place != len(parts):
                # Headers list names in any order, experts among them.
                parts.extend([tensor] * (place + 1 - len(parts)))
                parts[place] = tensor
            else:
                parts.append(tensor)
        self._stacks = {name for name in self._tensors if "_exps." in name}
        for name, vector in factors.items():
            self._tensors[name] = [Tensor(vector, dtype=dtypes.float32, device=device)]

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each tensor, as a GGUF file would say it."""
        found = {}
        for name, parts in self._tensors.items():
            shape = parts[0].shape
            if name in self._stacks and len(shape) == 2:
                shape = (len(parts), *shape)
            elif self._is_turned(name):
                shape = shape[::-1]
            elif name.endswith("ffn_gate_inp_shexp.weight"):
                shape = shape[-1:]
            found[name] = shape
        return found

    @property
    def types(self) -> Mapping[str, GgmlType]:
        """The type of each tensor, by its dtype. Raises FileFormatError for what has none."""
        return {name: _type(name, parts[0]) for name, parts in self._tensors.items()}

    def weight(self, name: str) -> PackedWeight:
        """Return a matrix, or a stack of them, in the dtype of the files."""
        parts = self._tensors[name]
        tensor = parts[0]
        if name in self._stacks and tensor.ndim == 2:
            tensor = Tensor.stack(parts).contiguous().realize()
        elif self._is_turned(name):
            tensor = tensor.T.contiguous().realize()
        return PackedWeight(_type(name, tensor), tensor.shape, tensor)

    def vector(self, name: str) -> Tensor:
        """Return a tensor in float32, in memory."""
        found = self._tensors[name][0].cast(dtypes.float32).reshape(*self.shapes[name])
        if self._family.is_offset and "norm" in name:
            found = found + 1
        return found.contiguous().realize()

    def _is_turned(self, name: str) -> bool:
        is_matrix = name.startswith("blk.") and self._tensors[name][0].ndim == 2
        return self._family.is_transposed and is_matrix


def _type(name: str, tensor: Tensor) -> GgmlType:
    if tensor.dtype not in _TYPES:
        raise FileFormatError(
            f"the weight {name}", found=f"dtype {tensor.dtype}", wanted=", ".join(_TYPES.values())
        )
    return by_name(_TYPES[tensor.dtype])


def canonical_name(name: str, family: Family) -> tuple[str, int]:
    """Return what GGUF files call a tensor, and the number of the expert that it is of (or 0).

    A name that no rule knows comes back as it is.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        stem, _, kind = name.rpartition(".")
        found = _WHOLE.get(stem.rpartition(".")[2])
        return (name if found is None else f"{found}.{kind}"), 0
    layer, part = f"blk.{match['layer']}", match["part"]
    stem, _, kind = part.rpartition(".")
    if part in _LAYER:
        return f"{layer}.{_LAYER[part]}", 0
    found = family.names.get(stem) or _LAYER.get(stem)
    if found is not None:
        return f"{layer}.{found}.{kind}", 0
    expert = _ONE_EXPERT.fullmatch(stem)
    if expert is not None and expert["part"] in _EXPERT:
        return f"{layer}.{_EXPERT[expert['part']]}_exps.{kind}", int(expert["number"])
    shared = _SHARED.fullmatch(stem)
    if shared is not None and shared["part"] in _EXPERT:
        return f"{layer}.{_EXPERT[shared['part']]}_shexp.{kind}", 0
    return name, 0


def load_folder(folder: Path, device: str | None = None) -> dict[str, Tensor]:
    """Return the tensors of a folder's safetensors by name, mapped.

    Raises FileFormatError for a folder without any, for a broken index, and for one that names a
    file elsewhere or a tensor that its file lacks.
    """
    index = folder / _INDEX
    if not index.is_file():
        whole = folder / "model.safetensors"
        if not whole.is_file():
            raise FileFormatError(
                f"{str(folder)!r} holds no weights", wanted=f"model.safetensors or {_INDEX}"
            )
        return safe_load(whole, device)
    try:
        table = json.loads(index.read_bytes())["weight_map"]
        places = {str(name): str(file) for name, file in table.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FileFormatError(f"{str(index)!r}", found=str(error), wanted="a weight_map") from error
    found: dict[str, Tensor] = {}
    files = {each.name for each in folder.iterdir() if each.is_file()}
    for file in sorted(set(places.values())):
        if file not in files:
            raise FileFormatError(
                f"{str(index)!r} names a file that the folder lacks", found=excerpt(file)
            )
        found |= safe_load(folder / file, device)
    missing = [name for name in places if name not in found]
    if missing:
        raise FileFormatError(f"{str(folder)!r} lacks a tensor", wanted=excerpt(missing[0]))
    return found
