from __future__ import annotations

import builtins
import sys

import numpy as np
import pytest
from onnx import helper, numpy_helper

from baregrad import io
from baregrad.base.errors import (
    ArgumentError,
    FileFormatError,
    MissingDependency,
    ShapeError,
    UnsupportedError,
)
from baregrad.engine.control.loops import ControlExecutable
from baregrad.engine.session import current_session
from tests.io.onnx.models import BOOL, INT64, by_onnxruntime, made, node, value

rng = np.random.default_rng(0)


def array(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def network(rows: object = "rows"):
    weights = {"w1": array(6, 8), "b1": array(8), "w2": array(8, 3)}
    nodes = [
        node("Gemm", ["x", "w1", "b1"], ["h"]), node("Relu", ["h"], ["r"]),
        node("MatMul", ["r", "w2"], ["y"]),
    ]  # fmt: skip
    return made(nodes, [value("x", [rows, 6])], [value("y", [rows, 3])], weights), weights


def test_a_network_gives_what_numpy_gives_at_every_call() -> None:
    model, w = network()
    loaded = io.load_onnx(model)
    assert dict(loaded.operators) == {"Gemm": 1, "Relu": 1, "MatMul": 1}
    assert str(loaded.inputs["x"]) == "float32 [rows, 6]"
    for _ in range(4):
        x = array(5, 6)
        wanted = np.maximum(x @ w["w1"] + w["b1"], 0) @ w["w2"]
        np.testing.assert_allclose(loaded(x=x)["y"].numpy(), wanted, 1e-5, 1e-5)
    assert loaded.way == "captured"


def test_one_capture_serves_every_size_of_a_symbolic_dimension() -> None:
    model, w = network()
    loaded = io.load_onnx(model, dimensions={"rows": (1, 64)})
    for rows in (1, 3, 7, 2, 64, 11):
        x = array(rows, 6)
        wanted = np.maximum(x @ w["w1"] + w["b1"], 0) @ w["w2"]
        found = loaded(x)["y"]
        np.testing.assert_allclose(found.numpy().reshape(rows, 3), wanted, 1e-5, 1e-5)
    (function,) = loaded._captured.values()
    assert function.captures == 1
    assert function.replays == 3


def test_shapes_that_are_computed_from_shapes_stay_symbolic() -> None:
    """(n, t, 6) -> reshaped by Shape, Gather, Mul and Concat -> (n*t, 6) -> expanded again."""
    nodes = [
        node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["n"]),
        node("Gather", ["s", "one"], ["t"]), node("Mul", ["n", "t"], ["nt"]),
        node("Unsqueeze", ["nt", "axis"], ["nt1"]), node("Concat", ["nt1", "six"], ["to"], axis=0),
        node("Reshape", ["x", "to"], ["flat"]), node("ReduceSum", ["flat", "axis"], ["sum"]),
        node("Slice", ["s", "zero1", "two1"], ["front"]), node("Concat", ["front", "six"], ["back"],
                                                              axis=0),
        node("Reshape", ["flat", "back"], ["again"]), node("Sub", ["again", "sum"], ["y"]),
    ]  # fmt: skip
    constants = {
        "zero": np.array(0), "one": np.array(1), "axis": np.array([0]), "six": np.array([6]),
        "zero1": np.array([0]), "two1": np.array([2]),
    }  # fmt: skip
    inputs, outputs = [value("x", ["n", "t", 6])], [value("y", ["n", "t", 6])]
    model = made(nodes, inputs, outputs, constants)
    loaded = io.load_onnx(model, dimensions={"n": (1, 8), "t": (1, 32)})
    for n, t in ((2, 3), (1, 9), (8, 32), (3, 1)):
        x = array(n, t, 6)
        found = loaded(x=x)["y"].numpy()
        np.testing.assert_allclose(found.reshape(x.shape), x - x.sum((0, 1)), 1e-4, 1e-4)
    assert loaded.way == "captured"


def test_every_missing_operator_is_named_with_its_count() -> None:
    nodes = [
        node("Relu", ["x"], ["a"]), node("Wobble", ["a"], ["b"], domain="my.own"),
        node("Wobble", ["b"], ["c"], domain="my.own"), node("ImageDecoder", ["c"], ["d"]),
    ]  # fmt: skip
    model = made(nodes, [value("x", [2])], [value("d", [2])])
    with pytest.raises(UnsupportedError, match=r"my\.own\.Wobble \(2\), ImageDecoder \(1\)"):
        io.load_onnx(model)


def branching():
    """y = x + 1 where the setting is 16000, else x * 2."""
    branches = [
        helper.make_graph([node(op, ["x", "k"], [f"y_{op}"])], op, [], [value(f"y_{op}", [4])])
        for op in ("Add", "Mul")
    ]
    nodes = [
        node("Equal", ["rate", "known"], ["is"]),
        node("If", ["is"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    inputs = [value("x", [4]), value("rate", [], INT64)]
    constants = {"known": np.array(16000), "k": np.array(2, np.float32)}
    return made(nodes, inputs, [value("y", [4])], constants)


def test_a_branch_on_a_small_input_is_captured_for_each_value() -> None:
    loaded = io.load_onnx(branching())
    for rate in (16000, 8000, 16000, 16000, 8000, 8000, 16000):
        x = array(4)
        found = loaded(x=x, rate=rate)["y"].numpy()
        np.testing.assert_allclose(found, x + 2 if rate == 16000 else x * 2)
    assert loaded.way == "captured for each value of rate"
    assert len(loaded._captured) == 2


def test_a_loop_whose_count_depends_on_data_runs_node_by_node() -> None:
    """Doubles x until its sum is above 1000."""
    body = helper.make_graph(
        [
            node("Add", ["x_in", "x_in"], ["x_out"]), node("ReduceSum", ["x_out"], ["sum"],
                                                          keepdims=0),
            node("Less", ["sum", "limit"], ["go"]), node("Identity", ["sum"], ["seen"]),
        ],
        "body", [value("i", [], INT64), value("c", [], BOOL), value("x_in", [100])],
        [value("go", [], BOOL), value("x_out", [100]), value("seen", [])],
    )  # fmt: skip
    nodes = [node("Loop", ["", "true", "x"], ["y", "sums"], body=body)]
    model = made(nodes, [value("x", [100])], [value("y", [100]), value("sums", ["n"])],
                 {"true": np.array(True), "limit": np.array(1000, np.float32)})  # fmt: skip
    loaded = io.load_onnx(model)
    for scale in (1.0, 0.01, 7.0):
        x = np.full(100, scale, np.float32)
        found = loaded(x=x)
        wanted, sums = x, []
        while True:
            wanted = wanted * 2
            sums.append(wanted.sum())
            if not sums[-1] < 1000:
                break
        np.testing.assert_allclose(found["y"].numpy(), wanted, 1e-5)
        np.testing.assert_allclose(found["sums"].numpy(), sums, 1e-5)
    assert loaded.way.startswith("node by node")


def loops_run(loaded, **inputs):
    """The results of a model, and how many loops ran as nodes of the graph."""
    runs = []
    with current_session().watching.observing(runs.append):
        found = {name: one.numpy() for name, one in loaded(**inputs).items()}
    return found, sum(isinstance(run.executable, ControlExecutable) for run in runs)


def test_a_loop_of_known_count_is_one_node_with_a_branch_in_it() -> None:
    """x = (sqrt(x) if its sum is above a half else x / 2) + i, nine times."""
    root = helper.make_graph([node("Sqrt", ["x_in"], ["y_root"])], "root", [],
                             [value("y_root", [5])])  # fmt: skip
    less = helper.make_graph([node("Mul", ["x_in", "half"], ["y_less"])], "less", [],
                             [value("y_less", [5])])  # fmt: skip
    body = helper.make_graph(
        [
            node("ReduceSum", ["x_in"], ["s"], keepdims=0), node("Greater", ["s", "half"], ["is"]),
            node("If", ["is"], ["a"], then_branch=root, else_branch=less),
            node("Cast", ["i"], ["number"], to=1), node("Add", ["a", "number"], ["x_out"]),
            node("Identity", ["c"], ["go"]), node("Identity", ["s"], ["seen"]),
        ],
        "body", [value("i", [], INT64), value("c", [], BOOL), value("x_in", [5])],
        [value("go", [], BOOL), value("x_out", [5]), value("seen", [])],
    )  # fmt: skip
    model = made(
        [node("Loop", ["n", "true", "x"], ["y", "sums"], body=body)], [value("x", [5])],
        [value("y", [5]), value("sums", ["n"])],
        {"true": np.array(True), "n": np.array(9), "half": np.array(0.5, np.float32)},
    )  # fmt: skip
    loaded = io.load_onnx(model)
    for scale in (1.0, 0.01, 7.0):
        x = np.full(5, scale, np.float32)
        found, loops = loops_run(loaded, x=x)
        sums = []
        for i in range(9):
            sums.append(x.sum())
            x = (np.sqrt(x) if x.sum() > 0.5 else x / 2) + i
        np.testing.assert_allclose(found["y"], x, 1e-5)
        np.testing.assert_allclose(found["sums"], sums, 1e-5)
        assert loops == 1
    assert loaded.way == "captured"


def test_a_scan_is_one_node_whatever_its_axes_and_directions() -> None:
    body = helper.make_graph(
        [node("MatMul", ["h", "w"], ["hw"]), node("Add", ["hw", "row"], ["next"]),
         node("Neg", ["next"], ["seen"])],
        "body", [value("h", [2, 4]), value("row", [2, 4])],
        [value("next", [2, 4]), value("seen", [2, 4])],
    )  # fmt: skip
    scan = node("Scan", ["h0", "xs"], ["y", "ys"], body=body, num_scan_inputs=1,
                scan_input_axes=[1], scan_input_directions=[1], scan_output_axes=[1],
                scan_output_directions=[1])  # fmt: skip
    w, h, xs = array(4, 4), array(2, 4), array(2, 6, 4)
    outputs = [value("y", [2, 4]), value("ys", [2, 6, 4])]
    loaded = io.load_onnx(made([scan], [value("h0", [2, 4]), value("xs", [2, 6, 4])], outputs,
                               {"w": w}))
    found, loops = loops_run(loaded, h0=h, xs=xs)
    wanted = np.empty((2, 6, 4), np.float32)
    for k in reversed(range(6)):
        h = h @ w + xs[:, k]
        wanted[:, k] = -h
    np.testing.assert_allclose(found["y"], h, 1e-4, 1e-5)
    np.testing.assert_allclose(found["ys"], wanted, 1e-4, 1e-5)
    assert loops == 1


def test_a_loop_whose_state_grows_is_written_out() -> None:
    body = helper.make_graph(
        [node("Concat", ["x_in", "x_in"], ["x_out"], axis=0), node("Identity", ["c"], ["go"])],
        "body", [value("i", [], INT64), value("c", [], BOOL), value("x_in", ["a"])],
        [value("go", [], BOOL), value("x_out", ["b"])],
    )  # fmt: skip
    model = made([node("Loop", ["n", "true", "x"], ["y"], body=body)], [value("x", [3])],
                 [value("y", ["z"])], {"true": np.array(True), "n": np.array(4)})  # fmt: skip
    x = array(3)
    found, loops = loops_run(io.load_onnx(model), x=x)
    np.testing.assert_array_equal(found["y"], np.tile(x, 16))
    assert loops == 0


def test_a_branch_that_needs_more_is_noticed_when_it_is_taken() -> None:
    """Of at most four elements the positive ones, doubled; of more, all of them doubled."""
    many = helper.make_graph([node("Identity", ["twice"], ["y_many"])], "many", [],
                             [value("y_many", None)])  # fmt: skip
    few = helper.make_graph(
        [node("Greater", ["x", "zero"], ["kept"]), node("Compress", ["twice", "kept"], ["y_few"],
                                                        axis=0)],
        "few", [], [value("y_few", None)],
    )  # fmt: skip
    nodes = [
        node("Size", ["x"], ["size"]), node("Greater", ["size", "four"], ["is"]),
        node("Add", ["x", "x"], ["twice"]),
        node("If", ["is"], ["y"], then_branch=many, else_branch=few),
    ]  # fmt: skip
    constants = {"four": np.array(4), "zero": np.array(0, np.float32)}
    model = made(nodes, [value("x", ["n"])], [value("y", ["m"])], constants)
    loaded = io.load_onnx(model)
    for size in (100, 100, 100, 4, 4, 3, 4, 100, 100):
        x = array(size)
        wanted = 2 * x if size > 4 else 2 * x[x > 0]
        np.testing.assert_allclose(loaded(x=x)["y"].numpy(), wanted)


def test_external_data_is_read_from_beside_the_file(tmp_path) -> None:
    import onnx

    model, w = network(4)
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert path.stat().st_size < (tmp_path / "weights.bin").stat().st_size + 1000
    x = array(4, 6)
    found = io.load_onnx(path)(x=x)["y"].numpy()
    np.testing.assert_allclose(found, np.maximum(x @ w["w1"] + w["b1"], 0) @ w["w2"], 1e-5, 1e-5)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(FileFormatError, match="cannot be read"):
        io.load_onnx(path)


def test_functions_of_the_model_are_expanded_with_their_attributes() -> None:
    function = helper.make_function(
        "own", "Scaled", ["a", "b"], ["c"],
        [
            node("Add", ["a", "b"], ["t"]),
            helper.make_node("LeakyRelu", ["t"], ["c"]),
        ],
        [helper.make_opsetid("", 21)], ["slope"],
    )  # fmt: skip
    reference = function.node[1].attribute.add()
    reference.name, reference.ref_attr_name, reference.type = "alpha", "slope", 1
    nodes = [
        node("Scaled", ["x", "x"], ["h"], domain="own", slope=0.5),
        node("Scaled", ["h", "x"], ["y"], domain="own", slope=0.25),
    ]
    model = made(nodes, [value("x", [5])], [value("y", [5])], functions=[function])
    model.opset_import.append(helper.make_opsetid("own", 1))
    x = array(5)
    first = np.where(2 * x < 0, x, 2 * x)
    wanted = np.where(first + x < 0, (first + x) * 0.25, first + x)
    np.testing.assert_allclose(io.load_onnx(model)(x=x)["y"].numpy(), wanted, 1e-6)


def test_wrong_inputs_are_told() -> None:
    loaded = io.load_onnx(network()[0])
    with pytest.raises(ArgumentError, match="wanted 'x'"):
        loaded(z=array(2, 6))
    with pytest.raises(ShapeError, match="'x' is of another shape"):
        loaded(x=array(2, 7))
    with pytest.raises(ArgumentError, match="float64"):
        loaded(x=np.zeros((2, 6)))
    with pytest.raises(ArgumentError, match="no dimension of that name"):
        io.load_onnx(network()[0], dimensions={"columns": (1, 2)})


def test_what_is_no_model_is_refused(tmp_path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"\xff" * 100)
    for source in (tmp_path / "bad.onnx", b"", b"nothing"):
        with pytest.raises(FileFormatError):
            io.load_onnx(source)
    old = made([node("Relu", ["x"], ["y"])], [value("x", [2])], [value("y", [2])], opset=5)
    with pytest.raises(FileFormatError, match="operator set"):
        io.load_onnx(old)


def test_without_the_package_it_says_what_to_install(monkeypatch) -> None:
    real = builtins.__import__

    def without(name, *rest, **more):
        if name.split(".")[0] == "onnx":
            raise ImportError(name)
        return real(name, *rest, **more)

    for name in [one for one in sys.modules if one.split(".")[0] == "onnx"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependency, match=r'pip install "baregrad\[onnx\]"'):
        io.load_onnx(b"")


def test_quantised_weights_are_folded_once() -> None:
    weight = rng.integers(-128, 127, (6, 4)).astype(np.int8)
    nodes = [
        node("DequantizeLinear", ["w", "scale"], ["wide"], axis=1),
        node("MatMul", ["x", "wide"], ["y"]),
    ]
    scale = rng.random(4).astype(np.float32)
    model = made(nodes, [value("x", [3, 6])], [value("y", [3, 4])], {"w": weight, "scale": scale})
    loaded = io.load_onnx(model)
    x = array(3, 6)
    for _ in range(3):
        np.testing.assert_allclose(loaded(x=x)["y"].numpy(), x @ (weight * scale), 1e-4, 1e-4)
    assert "wide" in loaded._folded


def test_convolutions_agree_with_onnxruntime() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"], auto_pad="SAME_UPPER", strides=[2, 2]),
        node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]), node("Relu", ["n"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
        node("ConvTranspose", ["p", "t"], ["y"], strides=[2, 2], pads=[0, 0, 1, 1]),
    ]  # fmt: skip
    constants = {
        "w": array(5, 3, 3, 3), "s": array(5), "b": array(5), "m": array(5),
        "v": np.abs(array(5)) + 0.5, "t": array(5, 2, 3, 3),
    }  # fmt: skip
    model = made(nodes, [value("x", [1, 3, 15, 14])], [value("y", None)], constants)
    x = array(1, 3, 15, 14)
    (wanted,) = by_onnxruntime(model, {"x": x})
    np.testing.assert_allclose(io.load_onnx(model)(x=x)["y"].numpy(), wanted, 1e-4, 1e-4)


def test_arrays_of_initialisers_may_be_inputs_too() -> None:
    model = made([node("Add", ["x", "k"], ["y"])], [value("x", [2]), value("k", [2])],
                 [value("y", [2])], {"k": np.ones(2, np.float32)})  # fmt: skip
    assert numpy_helper.to_array(model.graph.initializer[0]).tolist() == [1, 1]
    loaded = io.load_onnx(model)
    assert list(loaded.inputs) == ["x"]
    assert loaded(x=np.zeros(2, np.float32))["y"].tolist() == [1, 1]


def test_a_symbolic_extent_is_compared_at_every_size() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["n"]),
        node("Equal", ["n", "one"], ["is"]), node("Cast", ["is"], ["add"], to=1),
        node("Add", ["x", "add"], ["y"]),
    ]  # fmt: skip
    constants = {"zero": np.array(0), "one": np.array(1)}
    model = made(nodes, [value("x", ["n", 2])], [value("y", ["n", 2])], constants)
    loaded = io.load_onnx(model, dimensions={"n": (1, 8)})
    for n in (1, 3, 1, 8, 1):
        x = array(n, 2)
        np.testing.assert_array_equal(loaded(x)["y"].numpy().reshape(n, 2), x + (n == 1))


def test_a_setting_is_checked_at_every_call() -> None:
    inputs = [value("x", [2, 3]), value("s", [2], INT64)]
    model = made([node("Reshape", ["x", "s"], ["y"])], inputs, [value("y", None)])
    loaded = io.load_onnx(model)
    x = array(2, 3)
    for _ in range(3):
        assert loaded(x, np.array([3, 2]))["y"].shape == (3, 2)
        with pytest.raises(ArgumentError, match="another dtype"):
            loaded(x, np.array([3.7, 2.2]))
        with pytest.raises(ShapeError, match="another shape"):
            loaded(x, np.array([1, 2, 3]))


@pytest.mark.parametrize("given", ["text", object(), [[1], [2, 3]]])
def test_what_is_no_array_is_refused_by_name(given) -> None:
    model, _ = network()
    with pytest.raises(ArgumentError, match="is not an array"):
        io.load_onnx(model)(given)


def test_branches_may_name_values_of_their_own_alike() -> None:
    """Each makes a shape called `to`: of an input in one branch, of a constant in the other."""
    branches = [
        helper.make_graph(
            [node("Add", [source, "one"], ["to"]), node("Reshape", ["x", "to"], [f"y_{source}"])],
            source, [], [value(f"y_{source}", None)],
        ) for source in ("shape", "fixed")
    ]  # fmt: skip
    inputs = [value("x", [2, 3]), value("which", [], BOOL), value("shape", [2], INT64)]
    model = made(
        [node("If", ["which"], ["y"], then_branch=branches[0], else_branch=branches[1])], inputs,
        [value("y", None)], {"one": np.array([1]), "fixed": np.array([0, 5])},
    )  # fmt: skip
    loaded = io.load_onnx(model)
    x = array(2, 3)
    for which, shape in ((True, (2, 1)), (True, (5, 0)), (False, (0, 0)), (True, (2, 1)),
                         (True, (1, 2))):  # fmt: skip
        found = loaded(x, np.array(which), np.array(shape))["y"].numpy()
        wanted = tuple(one + 1 for one in shape) if which else (1, 6)
        assert found.shape == wanted
        np.testing.assert_array_equal(found.reshape(-1), x.reshape(-1))
