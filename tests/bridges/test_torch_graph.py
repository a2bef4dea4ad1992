from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from baregrad.base.errors import UnsupportedDevice
from baregrad.base.options import options
from baregrad.bridges import torch_graph, torch_program
from baregrad.bridges.torch_graph import TorchGraph, missing


def test_a_graph_gives_what_pytorch_does_again_and_again() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x @ y + 1, x.sum(0)

    graph = make_fx(function)(torch.zeros(3, 4), torch.zeros(4, 5))
    assert not missing(graph)
    run = TorchGraph(graph)
    with options.override(device="CPU"):
        for seed in range(4):
            torch.manual_seed(seed)
            x, y = torch.randn(3, 4), torch.randn(4, 5)
            for found, wanted in zip(run(x, y), function(x, y), strict=True):
                torch.testing.assert_close(found, wanted)
    assert run.calls == 4


def test_sizes_that_were_used_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """And come out right when they are there again: of numbers given, and of arguments' shapes."""
    monkeypatch.setattr(torch_graph, "PROGRAMS_KEPT", 3)
    monkeypatch.setattr(torch_program, "KINDS_KEPT", 2)
    traced = make_fx(lambda x, n: x * n + x.sum(), tracing_mode="symbolic")(torch.zeros(3), 2)
    run, counts = TorchGraph(traced), (0, 1, 2, 3, 4, 0, 4, 1, 1, 1, 3)
    with options.override(device="CPU"):
        for size in (4, 5, 6, 4, 4, 4, 6):
            for n in counts:
                x = torch.randn(size)
                torch.testing.assert_close(run(x, n)[0], x * n + x.sum())
                assert len(run._programs) <= 3
                assert all(len(each._results) <= 2 for each in run._programs.values())


def test_constants_of_the_graph_are_read() -> None:
    held = torch.tensor([1.0, 2.0, 3.0])
    graph = make_fx(lambda x: x * held)(torch.zeros(3))
    with options.override(device="CPU"):
        (found,) = TorchGraph(graph)(torch.full((3,), 2.0))
    assert found.tolist() == [2, 4, 6]


def test_each_result_lies_in_memory_of_its_own() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y, y.clone(), torch.zeros(3), torch.zeros(3), x, y, x.view(3, 1), y.view(3, 1)

    run = TorchGraph(make_fx(function)(torch.zeros(3)))
    with options.override(device="CPU"):
        # The third call and later ones run over PyTorch's memory.
        for _ in range(6):
            x = torch.ones(3)
            results = run(x)
            assert results[4] is x
            results[0].fill_(9)
            results[2].fill_(9)
            assert results[1].tolist() == results[5].tolist() == [2, 2, 2]
            assert results[3].tolist() == [0, 0, 0]
            assert results[6].tolist() == [[1], [1], [1]]
            assert results[7].tolist() == [[2], [2], [2]]
            results[6].fill_(9)
            assert x.tolist() == [1, 1, 1]


def test_operators_that_we_lack_are_counted() -> None:
    graph = make_fx(lambda x: torch.linalg.det(x) + torch.linalg.det(x + 1))(torch.eye(3))
    lacking = missing(graph)
    assert sum(lacking.values()) >= 2
    assert all("linalg" in name for name in lacking)


def test_tensors_elsewhere_are_refused() -> None:
    graph = make_fx(lambda x: x + 1)(torch.zeros(3))
    with pytest.raises(UnsupportedDevice, match="does not lie on the CPU"):
        TorchGraph(graph)(torch.zeros(3, device="meta"))


def test_results_have_the_dtypes_that_were_traced() -> None:
    x = torch.arange(-3, 3)
    half = torch.linspace(-1, 1, 6).bfloat16()
    scale = torch.ones(6, dtype=torch.bfloat16)
    for function, argument in (
        (lambda x: torch.ops.aten.hardtanh(x, -0.5, 0.5), x),
        (lambda x: torch.ops.aten.native_layer_norm(x, [6], scale, scale, 1e-5), half),
    ):
        graph = make_fx(function)(argument)
        with options.override(device="CPU"):
            found = TorchGraph(graph)(argument)
        wanted = function(argument)
        several = wanted if isinstance(wanted, tuple) else (wanted,)
        for one, other in zip(found, several, strict=True):
            torch.testing.assert_close(one, other)


def test_overloads_with_other_arguments_are_missing() -> None:
    index = torch.zeros(1, 2, dtype=torch.int64)
    graph = make_fx(lambda x: x.scatter(0, index, 2.0, reduce="add"))(torch.zeros(2, 2))
    assert missing(graph)


def test_a_batch_of_nothing_is_normalised_in_groups() -> None:
    graph = make_fx(lambda x: torch.ops.aten.native_group_norm(x, None, None, 0, 2, 1, 1, 1e-5))(
        torch.zeros(0, 2)
    )
    with options.override(device="CPU"):
        found, *_ = TorchGraph(graph)(torch.zeros(0, 2))
    assert tuple(found.shape) == (0, 2)


def test_threads_of_changing_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One forgets what another is at."""
    monkeypatch.setattr(torch_program, "KINDS_KEPT", 2)
    run = TorchGraph(make_fx(lambda x: x * 2)(torch.ones(3)))

    def work(first: int) -> list[bool]:
        sizes = [(7 * turn + first) % 5 + 1 for turn in range(40)]
        return [run(torch.ones(size))[0].tolist() == [2.0] * size for size in sizes]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(6) as threads:
            assert all(all(right) for right in threads.map(work, range(6)))
    finally:
        sys.setswitchinterval(before)
