"""The Hopper matmul of machine instructions on a real GPU.

    python tests/render/hardware_hopper.py

Needs a GPU of compute capability 9.0, the vendor's driver library and ptxas. Prints one line for
each size: the largest error against NumPy relative to the largest element, and the rate of the best
of several runs. Ends with status 1 where a result is wrong.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from baregrad import render
from baregrad.assemble.ptxas import PtxAssembler
from baregrad.dtypes import decode, dtypes, encode
from baregrad.render.gpu import GpuSignature, gpu_signature
from baregrad.runtime.tensor_map import map_of
from baregrad.target.gpu import gpu_row
from baregrad.testing.examples.matmul_hopper import MatmulSizes
from baregrad.testing.examples.matmul_hopper_linear import linear_level

HOPPER = gpu_row("sm_90a")
CASES = (
    MatmulSizes(),
    MatmulSizes(rows=256, columns=64, depth=192, clusters=2, cluster=1),
    MatmulSizes(rows=1024, columns=1024, depth=1024, n=128, k=64, stages=4, clusters=32),
    MatmulSizes(rows=4096, columns=4096, depth=4096, n=256, k=64, stages=4, clusters=66),
)
# CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES of `cuda.h`.
_MAX_DYNAMIC = 8
RUNS = 20
Address = ctypes.c_uint64


class Driver:
    """The vendor's driver library: calls that fail raise RuntimeError."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} failed with status {status}")

    def put(self, array: Any) -> Address:
        """An array's copy in the GPU's memory."""
        address = Address()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(array.nbytes))
        self.call(
            "cuMemcpyHtoD_v2", address, ctypes.c_void_p(array.ctypes.data),
            ctypes.c_size_t(array.nbytes),
        )  # fmt: skip
        return address

    def get(self, address: Address, array: Any) -> None:
        """Copy back into an array."""
        self.call(
            "cuMemcpyDtoH_v2", ctypes.c_void_p(array.ctypes.data), address,
            ctypes.c_size_t(array.nbytes),
        )  # fmt: skip


def maps_of(sig: GpuSignature, places: Sequence[Address]) -> list[Any]:
    """The tensor maps that a kernel takes, 64-byte aligned as the driver copies them."""
    found = []
    for box in sig.boxes:
        data = map_of(box.spec, places[box.spec.param].value or 0)
        found.append((ctypes.c_uint8 * len(data)).from_buffer_copy(data))
    return found


def measure(driver: Driver, sizes: MatmulSizes) -> bool:
    """Run one size; print what came out, and return whether it is right."""
    program = linear_level(sizes)
    sig = gpu_signature(program)
    cubin = PtxAssembler(HOPPER.name).assemble(render.get("ptx").render(program, HOPPER))
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuModuleLoadData", ctypes.byref(module), cubin)
    driver.call("cuModuleGetFunction", ctypes.byref(function), module, sig.call.entry.encode())
    generator = np.random.default_rng(7)
    shapes = (sizes.rows, sizes.columns), (sizes.rows, sizes.depth), (sizes.columns, sizes.depth)
    arrays = [
        encode(generator.standard_normal(shape, np.float32), dtypes.bfloat16) for shape in shapes
    ]
    places = [driver.put(array) for array in arrays]
    values = [*places, *maps_of(sig, places)]
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    dynamic = sig.dynamic_nbytes(HOPPER)
    if dynamic:
        driver.call("cuFuncSetAttribute", function, _MAX_DYNAMIC, dynamic)
    blocks = sizes.clusters * sizes.cluster
    best = float("inf")
    for _ in range(RUNS):
        begin = time.perf_counter()
        driver.call(
            "cuLaunchKernel", function, blocks, 1, 1, sig.threads, 1, 1, dynamic, None,
            pointers, None,
        )  # fmt: skip
        driver.call("cuCtxSynchronize")
        best = min(best, time.perf_counter() - begin)
    driver.get(places[0], arrays[0])
    c, a, b = (decode(array, dtypes.bfloat16) for array in arrays)
    wanted = a @ b.T
    error = float(np.abs(c - wanted).max() / np.abs(wanted).max())
    rate = 2 * sizes.rows * sizes.columns * sizes.depth / best / 1e12
    good = error < 2**-7
    print(
        f"{'PASS' if good else 'FAIL'} {sizes.rows} x {sizes.columns} x {sizes.depth}, clusters of "
        f"{sizes.cluster}: error {error:.2e}, {best * 1e6:.1f} us with launch and wait, "
        f"{rate:.1f} TFLOP/s"
    )
    for place in places:
        driver.call("cuMemFree_v2", place)
    return good


def main() -> int:
    """Run every size."""
    driver = Driver()
    results = [measure(driver, sizes) for sizes in CASES]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
