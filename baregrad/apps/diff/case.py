"""What a script that `baregrad diff` wrote runs: a graph over some arrays, on two devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from baregrad.apps.diff.judging import difference, tolerances, values_of
from baregrad.apps.diff.references import DeviceReference, Reference, TorchReference, run
from baregrad.apps.diff.smallest import unpacked
from baregrad.engine.backends import open_backend
from baregrad.engine.canonical import Canonical
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.node import toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.text.dump import parse


def reference_of(name: str) -> Reference:
    """Return PyTorch or a device to compare with, opened."""
    return TorchReference() if name == "torch" else DeviceReference(open_backend(name))


def differences(
    graph: str, arrays: Sequence[str], variables: Mapping[str, int], *, device: str,
    against: str, tolerance: float | None = None,
) -> list[str]:
    """Say how the results of a graph differ on two devices, nothing of those that do not."""
    sink = parse(graph)
    params: dict[int, Any] = {
        one.arg.slot: one for one in toposort(sink) if one.op is Ops.PARAM
    }  # fmt: skip
    refs = tuple([BufferRef(None, params[slot].shape, device) for slot in range(len(arrays))])
    raw = [unpacked(text) for text in arrays]
    program = Canonical(sink, refs, dict(variables), {})
    backend: Any = open_backend(device)
    reference = reference_of(against)
    try:
        results = run(backend, backend.execute, program, raw)
        wanted = reference.wanted(program, raw)
        allowed = tolerances(sink)
        told = [
            difference(node.dtype, values_of(one, node), two,
                       allowed[node] if tolerance is None else tolerance)
            for node, one, two in zip(sink.src, results, wanted, strict=True)
        ]  # fmt: skip
    finally:
        reference.close()
        backend.close()
    return [one for one in told if one]


def show(
    graph: str, arrays: Sequence[str], variables: Mapping[str, int], *, device: str,
    against: str, tolerance: float | None = None,
) -> None:
    """Print how a graph's results differ; the exit status is 1 where they do."""
    told = differences(
        graph, arrays, variables, device=device, against=against, tolerance=tolerance
    )
    print("\n".join(told) or "nothing differs")
    raise SystemExit(1 if told else 0)
