"""Long reductions of a GPU in two steps, against the graphs as they were and NumPy."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from baregrad.dtypes import dtypes
from baregrad.graph import canonicalise
from baregrad.graph.views import expand, full, permute, reshape
from baregrad.ir.core.attrs import Param, Reduce, Window
from baregrad.ir.core.index import Dim, variable
from baregrad.ir.core.monoid import arg_extreme, primitive
from baregrad.ir.core.node import Node, alu, cast, const, make_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.evaluate.tensor_level import evaluate_all
from baregrad.schedule import make_plan
from tests.graph.graphs.gpu_graphs import F32, HOPPER, I32, RNG, argument, changed
from tests.schedule.graphs import param, sink

I64 = dtypes.int64


def stored(root: Node) -> list[tuple[int, ...]]:
    """The shapes of what is stored on the way."""
    return [node.shape for node in toposort(root) if node.op is Ops.CONTIGUOUS]


def total(value: Node, *axes: int) -> Node:
    return Node(Ops.REDUCE, value.dtype, (value,), Reduce(primitive(Ops.ADD, value.dtype), axes))


def parts_of(shape: tuple[Dim, ...], *axes: int) -> list[tuple[int, ...]]:
    root = Node(Ops.SINK, dtypes.token, (total(argument(0, F32, *shape), *axes),))
    return stored(canonicalise(root, None, HOPPER))


def test_long_sums_to_few_values_keep_a_gpu_busy() -> None:
    x = RNG.standard_normal((1024, 300)).astype(np.float32)
    made = changed(total(argument(0, F32, 1024, 300), 0, 1), [x])
    (shape,) = stored(made)
    assert 32 <= shape[0] <= 128
    assert stored(changed(total(argument(0, F32, 64, 64), 0, 1), [x[:64, :64]])) == []


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((1 << 18,), (1,)), ((1 << 12,), (0,)), ((1, 1 << 12), (0, 2))],
)
def test_parts_do_not_depend_on_the_number_of_results(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    """A batch's rows, and a matrix's columns, have the bits that they have one by one."""
    whole = []
    for results in (1, 3, 1000):
        if axes == (1,):
            (found,) = parts_of((results, *shape), *axes)
            whole.append(found[-1])
        elif axes == (0,):
            (found,) = parts_of((*shape, results + 1), *axes)
            whole.append(found[0])
        else:
            (found,) = parts_of((64, results + 1, *shape), 0, 2, 3)
            whole.append(found[0])
    assert len(set(whole)) == 1
    assert whole[0] > 1


def test_a_symbolic_number_is_cut_as_its_bound_and_filled_up() -> None:
    for shape, *axes in (((1024, 4), 0), ((3, 1 << 18), 1), ((64, 5, 160), 0, 2)):
        several: list[Dim] = [*shape]
        several[axes[0]] = variable("several", 1, shape[axes[0]])
        assert parts_of(tuple(several), *axes) == parts_of(shape, *axes) != []


def test_a_row_that_a_block_reads_is_whole() -> None:
    assert parts_of((4, 50304), 1) == []
    assert parts_of((50304, 4), 0) != []
    counts = cast(argument(0, dtypes.bool, 4, 50304), I32)
    root = Node(Ops.SINK, dtypes.token, (total(counts, 1),))
    assert stored(canonicalise(root, None, HOPPER)) == [(4, 12)]


@pytest.mark.parametrize(("length", "parts"), ((1 << 14, []), (50304, [(3, 12)])))
def test_sums_of_what_two_rows_make_are_cut_as_no_norm_is(
    length: int, parts: list[tuple[int, ...]]
) -> None:
    x, y = argument(0, F32, 3, length), argument(1, F32, 3, length)
    for value, found in ((alu(Ops.MUL, alu(Ops.SUB, x, y), x), parts), (alu(Ops.MUL, x, x), [])):
        root = Node(Ops.SINK, dtypes.token, (total(value, 1),))
        assert stored(canonicalise(root, None, HOPPER)) == found


def softmax_parts(value: Node) -> list[tuple[int, ...]]:
    """The parts of the maxima of a matrix's rows, and of the sums that are made with these."""
    largest = Node(Ops.REDUCE, F32, (value,), Reduce(primitive(Ops.MAX, F32), (1,)))
    rows = expand(reshape(largest, (value.shape[0], 1)), value.shape)
    powers = alu(Ops.EXP, alu(Ops.SUB, value, rows))
    root = Node(Ops.SINK, dtypes.token, (total(powers, 1), largest))
    return stored(canonicalise(root, None, HOPPER))


@pytest.mark.parametrize("rows", [1, 20])
def test_what_takes_long_to_compute_is_cut_sooner(rows: int) -> None:
    """All sums of a row alike, however much more the later ones are made of."""
    x = argument(0, F32, rows, 50_000)
    assert softmax_parts(x) == []
    value = x
    for _ in range(6):
        value = alu(Ops.TANH, value)
    first, second = softmax_parts(value)
    assert first == second and first[0] == rows and first[1] >= 8
    assert parts_of((rows, 50_000), 1) == []


def test_a_loss_of_many_operations_has_many_blocks() -> None:
    x, y = (RNG.standard_normal(14_296).astype(np.float32) for _ in range(2))

    def loss(a: Node, b: Node, deep: int) -> Node:
        for _ in range(deep):
            a, b = alu(Ops.TANH, a), alu(Ops.SIN, b)
        return total(alu(Ops.MUL, a, b), 0)

    given = [argument(slot, F32, 14_296) for slot in range(2)]
    assert stored(changed(loss(*given, 0), [x, y])) == []
    (shape,) = stored(changed(loss(*given, 10), [x, y]))
    assert stored(changed(loss(*given, 5), [x, y])) == []
    assert shape[0] >= 4


def test_what_all_rows_share_is_an_array_of_a_lone_row_too() -> None:
    """A sum of rows and a bias has a row's bits in any batch; of a softmax it is cut in none."""
    for rows in (1, 3):
        x, bias = argument(0, F32, rows, 50304), argument(1, F32, 1, 50304)
        value = alu(Ops.ADD, x, expand(bias, x.shape))
        most = Node(Ops.REDUCE, F32, (value,), Reduce(primitive(Ops.MAX, F32), (1,)))
        below = alu(Ops.SUB, value, expand(reshape(most, (rows, 1)), x.shape))
        scaled = alu(Ops.MUL, x, expand(argument(1, F32, rows, 1), x.shape))
        for each, found in ((value, [(rows, 12)]), (alu(Ops.EXP2, below), []), (scaled, [])):
            root = Node(Ops.SINK, dtypes.token, (total(each, 1),))
            assert stored(canonicalise(root, None, HOPPER)) == found


@pytest.mark.parametrize("shape", (
    (6937, 256), (6937, 257), (13, 17, 19, 23, 29), (64, 64, 56, 56), (128, 3, 224, 224), (3, 99991)
), ids=str)  # fmt: skip
def test_parts_of_all_elements_lie_together_and_are_many(shape: tuple[int, ...]) -> None:
    """Whatever divides the axes: what blocks read is whole rows, or long parts of them."""
    axes = tuple(range(len(shape)))
    root = Node(Ops.SINK, dtypes.token, (total(argument(0, F32, *shape), *axes),))
    made = canonicalise(root, None, HOPPER)
    ((parts,),) = stored(made)
    assert 64 <= parts <= 512
    (first,) = (node for node in toposort(made) if node.op is Ops.REDUCE and node.shape == (parts,))
    inner = first.src[0].shape[-1]
    assert inner == shape[-1] or inner >= 64


def test_parts_of_several_axes_have_the_sum_of_all() -> None:
    for shape in ((1201, 130), (11, 13, 17, 73), (2, 3, 30011)):
        x = RNG.standard_normal(shape).astype(np.float32)
        assert stored(changed(total(argument(0, F32, *shape), *range(len(shape))), [x])) != []


def test_rows_of_a_permuted_array_are_columns() -> None:
    """Their parts are read along what lies together, and lie beside each other themselves."""
    x, w = (RNG.standard_normal(shape).astype(np.float32) for shape in ((9000, 5), (9000,)))
    turned = permute(argument(0, F32, 9000, 5), (1, 0))
    weights = argument(1, F32, 9000)
    wide = make_node(Ops.EXPAND, F32, (reshape(weights, (1, 9000)),), (5, 9000))
    for value in (turned, alu(Ops.MUL, turned, wide), alu(Ops.ADD, turned, turned)):
        made = changed(total(value, 1), [x, w])
        ((parts, columns),) = stored(made)
        assert columns == 5 and 32 <= parts <= 256
    plain = permute(argument(0, F32, 9000, 5), (0, 1))
    assert stored(changed(total(plain, 1), [x])) == []


@pytest.mark.parametrize("length", [1 << 18, (1 << 18) - 5, 150001])
def test_lengths_that_nothing_divides(length: int) -> None:
    x = RNG.standard_normal((2, length)).astype(np.float32)
    for op, plain in ((Ops.ADD, np.add), (Ops.MAX, np.maximum), (Ops.MUL, np.multiply)):
        reduce = Reduce(primitive(op, F32), (1,))
        given = x if op is not Ops.MUL else 1 + x * np.float32(1e-4)
        root = Node(Ops.SINK, dtypes.token, (
            Node(Ops.REDUCE, F32, (argument(0, F32, 2, length),), reduce),
        ))
        made = canonicalise(root, None, HOPPER)
        assert stored(made)
        (found,) = evaluate_all(made.src, {0: given})
        wanted = plain.reduce(given.astype(np.float64), axis=1)
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("length", [1 << 16, 100003])
def test_places_of_extremes_are_cut_too(length: int) -> None:
    """The first of equal maxima wins, in whatever part it lies; a NaN beats all."""
    x = RNG.integers(0, 50, (3, length)).astype(np.float32)
    x[1, length // 3] = np.nan
    x[2] = -np.inf
    value = argument(0, F32, 3, length)
    iota = Node(Ops.IOTA, I64, (), length)
    places = Node(Ops.EXPAND, I64, (Node(Ops.RESHAPE, I64, (iota,), (1, length)),), (3, length))
    whole = Node(Ops.REDUCE, F32, (value, places), Reduce(arg_extreme(Ops.MAX, F32), (1,)))
    root = Node(Ops.SINK, dtypes.token, tuple(
        [Node(Ops.PROJ, dtype, (whole,), part) for part, dtype in enumerate((F32, I64))]
    ))
    made = canonicalise(root, None, HOPPER)
    assert len(stored(made)) == 2
    largest, place = evaluate_all(made.src, {0: x})
    np.testing.assert_array_equal(place, np.argmax(x, axis=1))
    np.testing.assert_array_equal(largest, np.max(x, axis=1))


def test_partial_sums_of_narrow_floats_are_not_rounded() -> None:
    value = argument(0, dtypes.bfloat16, 1 << 12, 8)
    root = Node(Ops.SINK, dtypes.token, (total(value, 0),))
    made = canonicalise(root, None, HOPPER)
    kept = [node for node in toposort(made) if node.op is Ops.CONTIGUOUS]
    assert [node.dtype for node in kept] == [F32]
    ones = np.ones((1 << 12, 8), np.float32)
    (found,) = evaluate_all(made.src, {0: (ones.view(np.uint32) >> 16).astype(np.uint16)})
    np.testing.assert_array_equal(found, 4096)


def test_all_and_any() -> None:
    x = np.zeros((1 << 18,), np.int32)
    x[77777] = 1
    hit = alu(Ops.CMPLT, full(const(0, I32), x.shape), argument(0, I32, *x.shape))
    for op in (Ops.OR, Ops.AND):
        node = Node(Ops.REDUCE, dtypes.bool, (hit,), Reduce(primitive(op, dtypes.bool), (0,)))
        assert stored(changed(node, [x]))


def test_products_with_much_to_sum_are_cut() -> None:
    m, n, depth = 8, 12, 1 << 14

    def spread(value: Node, place: tuple[int, ...]) -> Node:
        one = Node(Ops.RESHAPE, F32, (value,), place)
        return Node(Ops.EXPAND, F32, (one,), (m, n, depth))

    left = spread(argument(0, F32, m, depth), (m, 1, depth))
    right = spread(argument(1, F32, n, depth), (1, n, depth))
    value = total(alu(Ops.MUL, left, right), 2)
    arrays = [RNG.standard_normal((e, depth)).astype(np.float32) * 0.01 for e in (m, n)]
    # One tile: parts are as short as is worth it, so as to be for many blocks.
    assert [int(np.prod(shape)) for shape in stored(changed(value, arrays))] == [128 * m * n]


def test_products_of_a_symbolic_number_of_rows_are_cut_into_fewer_parts() -> None:
    """There may be many rows, whose partial results would be written and read again."""
    found = []
    for rows in (8, variable("n", 1, 1 << 12)):
        shape = (rows, 12, 1 << 14)
        left = Node(Ops.PARAM, F32, (), Param(0, (rows, 1, 1 << 14)))
        right = argument(1, F32, 1, 12, 1 << 14)
        value = alu(Ops.MUL, *(Node(Ops.EXPAND, F32, (one,), shape) for one in (left, right)))
        root = Node(Ops.SINK, dtypes.token, (total(value, 2),))
        (part,) = stored(canonicalise(root, None, HOPPER))
        found.append(next(extent for extent in part if isinstance(extent, int) and extent != 12))
    assert found[1] < found[0]


@pytest.mark.parametrize(("m", "n", "depth", "parts"), [
    (256, 256, 1 << 16, 32), (16, 4096, 4096, 8), (16, 8192, 8192, 1), (1024, 1024, 1024, 1),
    (256, 256, 8 * 5003, 4), (64, 768, 3072, 1), (512, 768, 3072, 1), (4096, 768, 3072, 1),
    (512, 512, 4096, 4), (16, 685, 4387, 8), (32, 408, 3067, 5),
])  # fmt: skip
def test_few_tiles_for_matrix_units_are_cut_along_the_depth(
    m: int, n: int, depth: int, parts: int
) -> None:
    def spread(place: int, size: int, shape: tuple[int, ...]) -> Node:
        wide = Node(Ops.CAST, F32, (argument(place, dtypes.bfloat16, size, depth),))
        return Node(Ops.EXPAND, F32, (Node(Ops.RESHAPE, F32, (wide,), shape),), (m, n, depth))

    value = alu(Ops.MUL, spread(0, m, (m, 1, depth)), spread(1, n, (1, n, depth)))
    root = canonicalise(Node(Ops.SINK, dtypes.token, (total(value, 2),)), None, HOPPER)
    found = [shape for shape in stored(root) if len(shape) > 2]
    assert found == ([(parts, m, n)] if parts > 1 else [])
    # Zeros behind the last part are beside what units multiply.
    padded = [node for node in toposort(root) if node.op is Ops.PAD]
    assert len(padded) == (2 if parts > 1 and depth % parts else 0)
    assert all(node.dtype is dtypes.bfloat16 for node in padded)


@pytest.mark.parametrize(("side", "parts"), [(94, 47), (96, 32), (97, 7)])
def test_long_sums_of_few_results_are_parts_whatever_divides_them(side: int, parts: int) -> None:
    """Half of 94 is a prime number, 97 is one: two parts would be two blocks, of 8,836 steps.

    Of parts that are not equal each has whole accesses.
    """
    wide = (16, 49, 2, side, side)
    factors = []
    for place, shape in enumerate(((16, 1, 2, side, side), (1, 49, 2, side, side))):
        one = Node(Ops.CAST, F32, (argument(place, dtypes.bfloat16, *shape),))
        factors.append(Node(Ops.EXPAND, F32, (one,), wide))
    value = total(alu(Ops.MUL, *factors), 2, 3, 4)
    root = canonicalise(Node(Ops.SINK, dtypes.token, (value,)), None, HOPPER)
    (found,) = [shape for shape in stored(root) if {16, 49} <= set(shape)]
    assert prod(found) // (16 * 49) == parts


@pytest.mark.parametrize(("rows", "parts"), [(16, 16), (64, 16), (128, 1)])
def test_more_rows_are_few_where_a_factor_is_unpacked(rows: int, parts: int) -> None:
    """A block waits for the words of each panel, and few tiles have few panels under way."""
    shape = (rows, 2048, 8192)
    words = cast(argument(1, dtypes.uint8, 2048, 8192), dtypes.bfloat16)
    plain = argument(2, dtypes.bfloat16, 2048, 8192)
    for other, wanted in ((words, parts), (plain, parts if rows == 16 else 1)):
        row = expand(reshape(argument(0, dtypes.bfloat16, rows, 8192), (rows, 1, 8192)), shape)
        factors = [cast(one, F32) for one in (row, expand(reshape(other, (1, *shape[1:])), shape))]
        root = Node(Ops.SINK, dtypes.token, (total(alu(Ops.MUL, *factors), 2),))
        kept = stored(canonicalise(root, None, HOPPER))
        assert kept == ([] if wanted == 1 else [(wanted, rows, 2048)])


def test_parts_of_windows_are_stored_along_the_channels() -> None:
    rows, channels, taps, depth = 32, 32, 3, 4096
    wide = (rows, channels, taps, depth)
    left = argument(0, dtypes.float16, rows, depth)
    right = argument(1, dtypes.float16, depth + taps - 1, channels)
    left = Node(Ops.EXPAND, F32, (reshape(cast(left, F32), (rows, 1, 1, depth)),), wide)
    right = make_node(Ops.WINDOW, F32, (cast(right, F32),), Window(0, taps, 1, 1))
    right = permute(right, (1, 2, 0))
    right = Node(Ops.EXPAND, F32, (reshape(right, (1, channels, taps, depth)),), wide)
    value = total(alu(Ops.MUL, left, right), 3)
    shapes = (rows, depth), (depth + taps - 1, channels)
    arrays = [RNG.standard_normal(shape).astype(np.float16) * 0.05 for shape in shapes]
    (found,) = [node.shape for node in toposort(changed(value, arrays))
                if node.op is Ops.CONTIGUOUS and node.dtype is F32]  # fmt: skip
    assert found == (8, rows, taps, channels)


@pytest.mark.parametrize(("side", "parts"), [(28, (14, 16)), (56, (7, 32))])
def test_parts_of_images_keep_whole_words(side: int, parts: tuple[int, ...]) -> None:
    """Of rows of 28 elements two are whole copies of 8; 128 blocks run at once, or twice that.

    Of 56, eight rows are whole panels of 64, and so are images.
    """
    images = [
        Node(Ops.CAST, F32, (argument(place, dtypes.bfloat16, size, 64, side, side),))
        for place, size in enumerate((128, 1152))
    ]
    wide = (128, 1152, 64, side, side)
    left = Node(Ops.EXPAND, F32, (reshape(images[0], (128, 1, 64, side, side)),), wide)
    right = Node(Ops.EXPAND, F32, (reshape(images[1], (1, 1152, 64, side, side)),), wide)
    value = total(alu(Ops.MUL, left, right), 2, 3, 4)
    root = Node(Ops.SINK, dtypes.token, (value,))
    ((found, *_),) = stored(canonicalise(root, None, HOPPER))
    assert found in parts


def test_squares_and_a_matrix_times_a_vector_are_no_contractions() -> None:
    x = argument(0, F32, 256, 8192)
    root = Node(Ops.SINK, dtypes.token, (total(alu(Ops.MUL, x, x), 1),))
    assert stored(canonicalise(root, None, HOPPER)) == []
    vector = Node(Ops.RESHAPE, F32, (argument(1, F32, 8192),), (1, 8192))
    wide = Node(Ops.EXPAND, F32, (vector,), (256, 8192))
    root = Node(Ops.SINK, dtypes.token, (total(alu(Ops.MUL, x, wide), 1),))
    assert stored(canonicalise(root, None, HOPPER)) == []


def test_squares_of_narrow_floats_are_cut_where_nothing_divides_them() -> None:
    x = Node(Ops.CAST, F32, (argument(0, dtypes.bfloat16, 1 << 20 | 7),))
    root = Node(Ops.SINK, dtypes.token, (total(alu(Ops.MUL, x, x), 0),))
    assert stored(canonicalise(root, None, HOPPER))


def test_sums_of_long_sums_are_kernels_of_their_own() -> None:
    x, w = param(0, 1, 4096), param(1, 8192, 4096)
    logits = (x * w).sum(1)
    for value in (logits.max(), (logits * logits).sum()):
        plan = make_plan(canonicalise(sink(value), None, HOPPER), donate={}, target=HOPPER)
        assert len(plan.kernels) == 2


@pytest.mark.parametrize("shape", [(64, 3, 512), (1 << 12, 5, 1), (4099, 5, 1), (5003, 2, 3)])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_squared_distances_from_a_mean_are_summed_in_one_pass(
    shape: tuple[int, ...], offset: float
) -> None:
    """Far from 0 as well, where squares less the mean's square would be rounding errors."""
    x = (RNG.standard_normal(shape) + offset).astype(np.float32)
    x[:, 1] += np.linspace(-50, 50, shape[0], dtype=np.float32)[:, None]
    value = param(0, *shape)
    distance = value - value.mean(0, 2, keep=True)
    made = canonicalise(sink((distance * distance).sum(0, 2)), None, HOPPER)
    assert len(stored(made)) == 2
    (found,) = evaluate_all(made.src, {0: x})
    wanted = x.astype(np.float64).var(axis=(0, 2)) * (shape[0] * shape[2])
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    assert len(make_plan(made, target=HOPPER).steps) == 2


def test_distances_from_another_mean_are_summed_as_they_are() -> None:
    x, y = param(0, 64, 3, 512), param(1, 64, 3, 512)
    distance = x - y.mean(0, 2, keep=True)
    made = canonicalise(sink((distance * distance).sum(0, 2)), None, HOPPER)
    arrays = [RNG.standard_normal((64, 3, 512)).astype(np.float32) for _ in range(2)]
    (found,) = evaluate_all(made.src, dict(enumerate(arrays)))
    mean = arrays[1].mean(axis=(0, 2), keepdims=True, dtype=np.float64)
    np.testing.assert_allclose(found, ((arrays[0] - mean) ** 2).sum(axis=(0, 2)), rtol=1e-4)
    assert len(make_plan(made, target=HOPPER).steps) == 4


@pytest.mark.parametrize("channels", [1, 5])
def test_runs_that_no_wide_access_reads_are_columns(channels: int) -> None:
    """Images of 7 x 7: sums of each place are made first, of neighbouring channels as one."""
    shape = (64, channels, 7, 7)
    x = (RNG.standard_normal(shape) + 30).astype(np.float32)
    value = param(0, *shape)
    distance = value - value.mean(0, 2, 3, keep=True)
    sums = [value.sum(0, 2, 3), value.max(0, 2, 3), (distance * distance).sum(0, 2, 3)]
    made = canonicalise(sink(*sums), None, HOPPER)
    assert set(stored(made)) == {(channels, 49)}
    found = evaluate_all(made.src, {0: x})
    wide = x.astype(np.float64)
    wanted = [wide.sum((0, 2, 3)), wide.max((0, 2, 3)), wide.var((0, 2, 3)) * 64 * 49]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    assert parts_of((64, 5, 8, 8), 0, 2, 3) == []
    assert parts_of((8, 5, 7, 7), 0, 2, 3) == []


def test_taps_of_windows_are_no_run_that_lies_together() -> None:
    """As in an image's gradient by one channel: each place of 5 x 5 would be an image of sums."""
    y = RNG.standard_normal((2, 64, 12, 12)).astype(np.float32)
    w = RNG.standard_normal((64, 5, 5)).astype(np.float32)
    image = param(0, *y.shape).window(3, 5).window(2, 5)  # (2, 64, 8, 8, 5, 5)
    taps = param(1, *w.shape).reshape(1, 64, 1, 1, 5, 5).expand(2, 64, 8, 8, 5, 5)
    value = (image.permute(0, 1, 2, 3, 5, 4) * taps).sum(1, 4, 5)
    made = canonicalise(sink(value), None, HOPPER)
    assert all(25 not in one for one in stored(made))
    (found,) = evaluate_all(made.src, {0: y, 1: w})
    seen = np.lib.stride_tricks.sliding_window_view(y.astype(np.float64), (5, 5), (2, 3))
    np.testing.assert_allclose(found, np.einsum("bcyxuv,cuv->byx", seen, w), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(4, 96), (4, 1 << 18)])
def test_what_is_left_without_the_mean_sums_up_to_nothing(shape: tuple[int, int]) -> None:
    """It is not summed: rounding errors are no gradient. What is no number remains that."""
    x = RNG.standard_normal(shape).astype(np.float32) + 3
    x[2, 1], x[3, 5] = np.inf, np.nan
    value = param(0, *shape)
    mean = value.mean(1, keep=True)
    made = canonicalise(sink((value - mean).sum(1), (value - mean * 0.5).sum(1)), None, HOPPER)
    with np.errstate(invalid="ignore"):
        balanced, half = evaluate_all(made.src, {0: x})
    np.testing.assert_array_equal(balanced, [0, 0, np.nan, np.nan])
    np.testing.assert_allclose(half[:2], x[:2].sum(1, dtype=np.float64) / 2, rtol=1e-5)
    sums = [one for one in toposort(made) if one.op is Ops.REDUCE and one.src[0].op is Ops.SUB]
    assert len(sums) == (shape[1] == 96)
