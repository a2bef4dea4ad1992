"""A program over PyTorch's memory, at its first calls and replayed."""

from __future__ import annotations

from typing import Any

import torch

from baregrad import Tensor
from baregrad.base.options import options
from baregrad.bridges.torch_program import TorchProgram

CALLS = 6


def _counted(program: TorchProgram) -> list[int]:
    """What later calls are counted in, unless they are replayed over PyTorch's memory."""
    in_full, counts = program._in_full, [0]

    def noted(arguments: Any) -> Any:
        counts[0] += 1
        return in_full(arguments)

    program._in_full = noted  # type: ignore[method-assign]
    return counts


def test_replays_follow_arguments_wherever_they_lie() -> None:
    with options.override(device="CPU"):
        program = TorchProgram(lambda x, y: [x @ y, x.permute(1, 0), 7, y.sum(0), x], "CPU")
        counts = _counted(program)
        kept = torch.randn(3, 4)
        for call in range(CALLS):
            y = torch.randn(5, 4).T if call % 2 else torch.randn(4, 5)
            product, turned, seven, summed, given = program([kept, y])
            torch.testing.assert_close(product, kept @ y)
            assert torch.equal(turned, kept.T)
            assert turned.is_contiguous()
            assert seven == 7
            torch.testing.assert_close(summed, y.sum(0))
            assert torch.equal(given, kept)
            given.fill_(0), turned.fill_(0)
            kept.add_(1)
    assert counts == [2]


def test_calls_of_other_kinds_have_replays_of_their_own() -> None:
    with options.override(device="CPU"):
        program = TorchProgram(lambda x: [x + x, x.shape[0], x.reshape(1, -1)], "CPU")
        counts = _counted(program)
        for _ in range(CALLS):
            for shape, dtype in (((3,), torch.float32), ((4,), torch.float32), ((4,), torch.int64)):
                x = torch.ones(shape, dtype=dtype)
                found, count, wide = program([x])
                assert found.dtype == dtype
                assert torch.equal(found, x + x)
                assert count == shape[0]
                assert tuple(wide.shape) == (1, *shape)
    assert counts == [6]


def test_a_kind_that_is_captured_late_is_replayed_as_itself() -> None:
    with options.override(device="CPU"):
        program = TorchProgram(lambda x: [x * 2 + 1], "CPU")
        for length in (3, 3, 5, 3, 5, 5, 3, 5):
            x = torch.arange(float(length))
            assert torch.equal(program([x])[0], x * 2 + 1)


def test_a_replay_draws_new_numbers_and_leaves_earlier_results_alone() -> None:
    with options.override(device="CPU"):
        program = TorchProgram(lambda x: [Tensor.rand(64) + x], "CPU")
        counts = _counted(program)
        drawn = [program([torch.zeros(64)])[0] for _ in range(CALLS)]
    copies = {tuple(one.tolist()) for one in drawn}
    assert len(copies) == CALLS
    assert all(0 <= value < 1 for one in copies for value in one)
    assert counts == [2]


def test_replays_are_checked_where_that_is_asked_for() -> None:
    with options.override(device="CPU", jit_check=True):
        program = TorchProgram(lambda x: [x * 2], "CPU")
        counts = _counted(program)
        for _ in range(CALLS):
            assert program([torch.ones(3)])[0].tolist() == [2, 2, 2]
    assert counts == [CALLS]


def test_results_of_all_sizes_lie_as_pytorch_would_lay_them() -> None:
    sizes = ((0, 3), (2,), (1, 1), (), (300, 200))
    with options.override(device="CPU"):
        program = TorchProgram(lambda *given: [one + 1 for one in given], "CPU")
        counts, earlier = _counted(program), []
        for call in range(CALLS):
            results = program([torch.full(size, float(call)) for size in sizes])
            for one, size in zip(results, sizes, strict=True):
                assert one.stride() == torch.empty(size).stride()
                assert torch.equal(one, torch.full(size, call + 1.0))
            earlier.append(results[-1])
    assert [float(one.amax()) for one in earlier] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert counts == [2]


def test_results_are_no_views_to_pytorch() -> None:
    """It refuses to have views changed in place where gradients are recorded."""
    with options.override(device="CPU"):
        program = TorchProgram(lambda x: [x + 1, x + 1, (x * 2).reshape(-1), x], "CPU")
        for shape in ((2, 3), (300, 200)):
            for _ in range(4):
                results = program([torch.zeros(shape)])
                assert not any(one._is_view() for one in results)
