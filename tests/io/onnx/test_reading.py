"""Files that are broken, or made to do harm."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from baregrad import io
from baregrad.base.errors import FileFormatError, OutOfMemory
from tests.io.onnx.models import made, node, value


def model(*nodes, **more):
    return made(list(nodes), [value("x", [2])], [value("y", [2])], **more)


def with_sparse(extents: list[int]):
    made_ = model(node("Add", ["x", "w"], ["y"]))
    values = numpy_helper.from_array(np.ones(2, np.float32), "w")
    places = numpy_helper.from_array(np.array([0, 9], np.int64), "i")
    made_.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, extents))
    return made_


def beside() -> bytes:
    made_ = model(node("Add", ["x", "w"], ["y"]))
    weight = TensorProto(name="w", dims=[2], data_type=1, data_location=TensorProto.EXTERNAL)
    entry = weight.external_data.add()
    entry.key, entry.value = "location", "weights.bin"
    made_.graph.initializer.append(weight)
    return made_.SerializeToString()


def doubling(levels: int):
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]

    def function(at: int):
        nodes = [node(f"F{at + 1}", ["a"], ["c"], domain="own"),
                 node(f"F{at + 1}", ["c"], ["b"], domain="own")]  # fmt: skip
        return helper.make_function(
            "own", f"F{at}", ["a"], ["b"], nodes if at < levels else [node("Relu", ["a"], ["b"])],
            imports,
        )  # fmt: skip

    return model(node("F0", ["x"], ["y"], domain="own"),
                 functions=[function(at) for at in range(levels + 1)])  # fmt: skip


@pytest.mark.parametrize(
    ("source", "match"),
    [
        (model(node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"])), "two nodes make one value"),
        (model(node("Neg", ["x"], ["x"]), node("Relu", ["x"], ["y"])), "two nodes make one value"),
        (with_sparse([2]), "index 9 is out of bounds"),
        (beside(), "load the model's own file"),
    ],
)
def test_a_broken_model_is_refused_by_name(source, match) -> None:
    with pytest.raises(FileFormatError, match=match):
        io.load_onnx(source)


def test_a_sparse_weight_without_end_is_out_of_memory() -> None:
    with pytest.raises(OutOfMemory, match="sparse"):
        io.load_onnx(with_sparse([1 << 45]))


def test_functions_that_double_each_other_are_not_expanded_without_end(monkeypatch) -> None:
    monkeypatch.setattr("baregrad.io.onnx.reading.MOST_NODES", 1 << 8)
    with pytest.raises(FileFormatError, match="called too often"):
        io.load_onnx(doubling(20))
    loaded = io.load_onnx(doubling(4))
    np.testing.assert_array_equal(loaded(np.array([-1, 2], np.float32))["y"].numpy(), [0, 2])
