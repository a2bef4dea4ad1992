"""`baregrad quantize` on small models that are made here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, quants

from baregrad.base.errors import ArgumentError
from baregrad.cli.dispatch import main
from baregrad.io.gguf import Kind, TensorToWrite, TypedValue, by_name, write_gguf
from baregrad.llm.commands import quantize
from baregrad.llm.commands.quantize import quantise_model


def model(path: Path) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    tensors = {
        "token_embd.weight": rng.standard_normal((96, 512)).astype(np.float32),
        "output_norm.weight": np.ones(512, np.float32),
        "blk.0.ffn_up.weight": rng.standard_normal((64, 512)).astype(np.float16),
        "blk.0.ffn_down.weight": rng.standard_normal((512, 64)).astype(np.float32),
        "blk.0.ffn_up_exps.weight": rng.standard_normal((3, 8, 256)).astype(np.float32),
    }
    names = {np.dtype("f4"): "F32", np.dtype("f2"): "F16"}
    metadata = {
        "general.architecture": "llama", "general.file_type": 0,
        "scores": TypedValue([0.5, 1.0], Kind.ARRAY, Kind.FLOAT32),
        "split.count": TypedValue(1, Kind.UINT16),
    }  # fmt: skip
    write_gguf(path, metadata, {
        name: TensorToWrite(by_name(names[values.dtype]), values.shape, values)
        for name, values in tensors.items()
    })  # fmt: skip
    return tensors


def test_a_model_becomes_smaller_and_stays_what_it_was(tmp_path: Path) -> None:
    tensors = model(tmp_path / "a.gguf")
    text = quantise_model(str(tmp_path / "a.gguf"), str(tmp_path / "b.gguf"), "Q4_K")
    assert "2 Q4_K" in text
    reader = GGUFReader(tmp_path / "b.gguf")
    types = {tensor.name: GGMLQuantizationType(tensor.tensor_type).name
             for tensor in reader.tensors}  # fmt: skip
    assert types == {
        "token_embd.weight": "Q6_K", "output_norm.weight": "F32", "blk.0.ffn_up.weight": "Q4_K",
        "blk.0.ffn_down.weight": "Q5_0", "blk.0.ffn_up_exps.weight": "Q4_K",
    }  # fmt: skip
    for tensor in reader.tensors:
        values = tensors[tensor.name].astype(np.float32)
        found = quants.dequantize(tensor.data, tensor.tensor_type)
        assert found.shape == values.shape
        assert np.abs(found - values).max() <= 0.12 * np.abs(values).max()
    assert reader.fields["general.file_type"].contents() == 14
    assert reader.fields["scores"].contents() == [0.5, 1.0]
    assert "split.count" not in reader.fields


def test_the_command_writes_over_nothing_unless_told_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model(tmp_path / "a.gguf")
    words = ["quantize", str(tmp_path / "a.gguf"), str(tmp_path / "b.gguf"), "--type", "q8_0"]
    assert main(words) == 0
    assert "Q8_0" in capsys.readouterr().out
    assert main(words) == 2
    assert "--force writes over it" in capsys.readouterr().err
    assert main([*words, "--force"]) == 0


def test_what_is_quantised_again_is_told(tmp_path: Path) -> None:
    model(tmp_path / "a.gguf")
    quantise_model(str(tmp_path / "a.gguf"), str(tmp_path / "b.gguf"), "Q8_0")
    text = quantise_model(str(tmp_path / "b.gguf"), str(tmp_path / "c.gguf"), "Q4_0")
    assert "rounded twice" in text


@pytest.mark.parametrize("name", ["IQ2_XS", "Q9"])
def test_types_that_are_only_read_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="not quantised to this type") as told:
        quantise_model(str(tmp_path / "a.gguf"), str(tmp_path / "b.gguf"), name)
    assert name not in str(told.value).partition("wanted")[2]


@pytest.mark.parametrize(("names", "words"), [
    (("no.gguf", "b.gguf"), "no model there"),
    (("a.gguf", "nowhere/b.gguf"), "no model can be written there"),
    (("a.gguf", "."), "no model can be written there"),
    (("a.gguf", "b" * 300), "cannot be written: found b+: File name too long"),
    (("folder", "folder/model.safetensors", "--force"), "written over itself"),
    (("m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "--force"), "written over itself"),
    (("a.gguf", "./a.gguf", "--force"), "written over itself"),
    (("a.gguf", "there.gguf"), "is there already"),
])  # fmt: skip
def test_places_are_looked_at_before_anything_is_read(
    names: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    parts = "m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "folder/model.safetensors"
    for name in ("a.gguf", "there.gguf", *parts):
        Path(name).write_text("no model")
    with pytest.raises(ArgumentError, match=words):
        quantize.main(list(names))
    assert Path("a.gguf").read_text() == "no model"
