"""`custom_kernel`: a function of tensors whose kernel its author wrote, as C, CUDA C or PTX."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from baregrad.base.errors import (
    ArgumentError,
    CompileError,
    DeviceError,
    DTypeError,
    JitError,
    ShapeError,
    UnsupportedError,
)
from baregrad.dtypes import DType, as_dtype
from baregrad.engine.session import current_session
from baregrad.func.custom import custom_gradient
from baregrad.func.regions import are_there, stored
from baregrad.ir.core.attrs import BufferRef
from baregrad.program import CPU_OBJECT, CUBIN, GpuLaunch, ParamSpec, Program
from baregrad.runtime.commands import Kernel
from baregrad.tensor.array.arguments import explained
from baregrad.tensor.array.grad_mode import enable_grad, no_grad
from baregrad.tensor.array.storage import buffer_node
from baregrad.tensor.autograd.backward import gradients
from baregrad.tensor.tensor import Tensor

_ARRAY = re.compile(r"\s*(\w+)\s*:\s*(\w+)\s*\[([^\]]*)\]\s*")
_C_TYPES = MappingProxyType({
    "float32": "float", "float64": "double", "int8": "int8_t", "int16": "int16_t",
    "int32": "int32_t", "int64": "int64_t", "uint8": "uint8_t", "uint16": "uint16_t",
    "uint32": "uint32_t", "uint64": "uint64_t", "bool": "uint8_t",
})  # fmt: skip
_LANGUAGES = ("c", "cuda", "ptx")
_CHECKS = ("first", "always", "never")


class _Array(NamedTuple):
    """An array of a signature: each extent is a number or a name that stands for one."""

    name: str
    dtype: DType
    extents: tuple[str, ...]

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple([int(one) if one.isdecimal() else sizes[one] for one in self.extents])


def _arrays(text: str) -> tuple[_Array, ...]:
    """The arrays of one side of a signature. Raises ArgumentError."""
    found, rest = [], text
    while rest.strip():
        match = _ARRAY.match(rest)
        if match is None:
            raise ArgumentError(
                "a signature names arrays, their dtypes and extents", found=repr(rest.strip()),
                wanted="for example 'x: float32[n, m], v: float32[m] -> out: float32[n]'",
            )
        name, dtype, extents = match.groups()
        parts = tuple([one.strip() for one in extents.split(",") if one.strip()])
        bad = [one for one in parts if not one.isidentifier() and not one.isdecimal()]
        if bad:
            raise ArgumentError("an extent is a number or a name", found=repr(bad[0]))
        found.append(_Array(name, as_dtype(dtype), parts))
        rest = rest[match.end() :].removeprefix(",")
    return tuple(found)


class CustomKernel:
    """A function of tensors by a kernel of its author's; see `custom_kernel`."""

    def __init__(
        self, text: str, signature: str, reference: Callable[..., Any], language: str,
        entry: str, grid: Callable[..., Sequence[int]] | None, block: Sequence[int],
        shared_nbytes: int, check: str, rtol: float, atol: float,
        gradient: Callable[..., Any] | None,
    ) -> None:
        before, arrow, after = signature.partition("->")
        self.inputs, self.outputs = _arrays(before), _arrays(after)
        if not arrow or not self.inputs or not self.outputs:
            raise ArgumentError("a signature has arrays on both sides of ->", found=signature)
        named = {one for array in self.inputs for one in array.extents}
        for array in self.outputs:
            for one in array.extents:
                if not one.isdecimal() and one not in named:
                    raise ArgumentError(
                        f"the extent {one!r} of {array.name} is in none of the inputs",
                        found=signature,
                    )
        self.text, self.language, self.entry = text, language, entry
        self.reference, self.gradient = reference, gradient
        self.grid, self.block, self.shared_nbytes = grid, block, shared_nbytes
        self.rtol, self.atol = rtol, atol
        self._check = check
        self._checked: set[tuple[Any, ...]] = set()
        self._loaded: dict[tuple[Any, ...], tuple[Kernel, Any]] = {}

    def __call__(self, *tensors: Tensor) -> Any:
        """Return what the kernel makes of tensors, and gradients by the reference's.

        Raises DTypeError or ShapeError for what the signature does not say, and DeviceError for
        tensors of a device that does not run the language.
        """
        self._sizes(tensors)
        return custom_gradient(self._called)(*tensors)

    def _called(self, *tensors: Tensor) -> tuple[Any, Callable[..., Any]]:
        def backward(*grads: Tensor) -> Any:
            if self.gradient is not None:
                return self.gradient(tensors, grads)
            return self._of_reference(tensors, grads)

        return self._run(tensors), backward

    def _of_reference(
        self, tensors: Sequence[Tensor], grads: Sequence[Tensor]
    ) -> tuple[Tensor | None, ...]:
        """The gradients of the reference at the same values."""
        with enable_grad():
            leaves = [x.detach().requires_grad_(x.dtype.is_float) for x in tensors]
            made = _several(self.reference(*leaves))
            wanted = [x for x in leaves if x.requires_grad]
            pairs = [(y, g) for y, g in zip(made, grads, strict=True) if y.requires_grad]
            if not pairs or not wanted:
                return tuple([None] * len(leaves))
            found = iter(gradients(
                [y for y, _ in pairs], wanted, [g for _, g in pairs], False, True
            ))  # fmt: skip
        return tuple([next(found) if x.requires_grad else None for x in leaves])

    def _sizes(self, tensors: Sequence[Any]) -> dict[str, int]:
        """What the names of extents stand for. Raises where tensors do not fit the signature."""
        if len(tensors) != len(self.inputs):
            raise ArgumentError(f"{self.entry} takes {len(self.inputs)} tensors",
                                found=len(tensors))
        sizes: dict[str, int] = {}
        for array, x in zip(self.inputs, tensors, strict=True):
            if not isinstance(x, Tensor) or x.dtype is not array.dtype:
                kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
                raise DTypeError(f"{self.entry} takes another {array.name}", found=kind,
                                 wanted=array.dtype)
            fits = len(x.shape) == len(array.extents)
            for one, extent in zip(array.extents, x.shape, strict=False):
                if extent.__class__ is not int:
                    raise UnsupportedError("a kernel of text wants extents that are numbers",
                                           found=f"{array.name} {list(x.shape)}")
                known = int(one) if one.isdecimal() else sizes.setdefault(one, extent)
                fits = fits and known == extent
            if not fits:
                raise ShapeError(
                    f"{self.entry} takes another {array.name}", found=list(x.shape),
                    wanted=f"[{', '.join(array.extents)}]"
                    + (f" where {sizes}" if sizes else ""),
                )
            if x.device != tensors[0].device:
                raise DeviceError("tensors of one device", found=f"{x.device}",
                                  wanted=tensors[0].device)
        return sizes

    def _run(self, tensors: Sequence[Tensor]) -> Any:
        session, device = current_session(), tensors[0].device
        nodes = [x._value() for x in tensors]
        if session.watching.downloads or not are_there(nodes):
            raise JitError(
                f"{self.entry} is a kernel of text, which runs when it is called: it is no part of "
                "captured or transformed functions",
                hint="call it outside, or use its reference inside",
            )
        sizes = self._sizes(tensors)
        held = stored(nodes, device)
        kernel, target = self._kernel(device, sizes)
        shapes = [array.shape(sizes) for array in self.outputs]
        made = [
            target.allocate(int(np.prod(shape)) * array.dtype.itemsize)
            for shape, array in zip(shapes, self.outputs, strict=True)
        ]
        with session.lock:
            target.run(kernel, [*made, *[node.arg.handle for node in held]])
        results = [
            Tensor._make(buffer_node(BufferRef(buffer, shape, device), array.dtype), device)
            for buffer, shape, array in zip(made, shapes, self.outputs, strict=True)
        ]
        key = (device, tuple(sorted(sizes.items())))
        if self._check == "always" or (self._check == "first" and key not in self._checked):
            self._compare(tensors, results)
            self._checked.add(key)
        return results[0] if len(results) == 1 else tuple(results)

    def check(self, *tensors: Tensor) -> None:
        """Run the kernel and compare with the reference. Raises CompileError where they differ."""
        with no_grad():
            self._compare(tensors, _several(self._run(tensors)))

    def _compare(self, tensors: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        with no_grad():
            wanted = _several(self.reference(*[x.detach() for x in tensors]))
        if len(wanted) != len(results):
            raise ArgumentError(
                f"the reference of {self.entry} gives as many results as its signature has",
                found=len(wanted), wanted=len(results),
            )
        for array, ours, theirs in zip(self.outputs, results, wanted, strict=True):
            if ours.shape != theirs.shape:
                raise ShapeError(
                    f"the reference of {self.entry} gives another {array.name}",
                    found=list(theirs.shape), wanted=list(ours.shape),
                )
            a, b = ours.numpy(), theirs.numpy()
            same = np.isclose(a, b, rtol=self.rtol, atol=self.atol, equal_nan=True)
            if not same.all():
                place = tuple(int(i) for i in np.argwhere(~np.atleast_1d(same))[0])
                raise CompileError(
                    f"{self.entry} does not give what its reference does: {array.name}"
                    f"{list(place)} is {np.atleast_1d(a)[place]}, and was to be "
                    f"{np.atleast_1d(b)[place]} ({int((~same).sum())} of {same.size} differ)",
                    source=self.text,
                )

    # --- the program ------------------------------------------------------------------------------

    def _kernel(self, device: str, sizes: Mapping[str, int]) -> tuple[Kernel, Any]:
        key = (device, id(current_session()), tuple(sorted(sizes.items())))
        found = self._loaded.get(key)
        if found is None:
            backend: Any = current_session().backend(device)
            program = self._program(device, backend, sizes)
            found = self._loaded[key] = (backend.device.load(program), backend.device)
        return found

    def _program(self, device: str, backend: Any, sizes: Mapping[str, int]) -> Program:
        on_cpu = self.language == "c"
        if on_cpu != (device.partition(":")[0] == "CPU"):
            raise DeviceError(
                f"{self.entry} is written in {self.language}", found=f"tensors on {device}",
                wanted="tensors on the CPU" if on_cpu else "tensors on an NVIDIA GPU",
            )
        params = [
            ParamSpec(array.name, array.dtype.name, int(np.prod(array.shape(sizes)))
                      * array.dtype.itemsize, access)
            for access, side in (("w", self.outputs), ("r", self.inputs)) for array in side
        ]
        if on_cpu:
            from baregrad.assemble.cc import CAssembler

            source, entry = self._c_text(sizes)
            code = CAssembler(None).assemble(source)
            return Program(self.entry, CPU_OBJECT, code, entry, tuple(params), source=source)
        source = self.text
        assembler = backend.compiler.assembler
        if self.language == "cuda":
            from baregrad.assemble.nvrtc import CudaAssembler

            assembler = CudaAssembler(backend.device.architecture)
            source = "\n".join((*_constants(sizes), self.text))
        assert self.grid is not None
        grid, block = (_three(one) for one in (self.grid(**sizes), self.block))
        return Program(
            self.entry, CUBIN, assembler.assemble(source), self.entry, tuple(params),
            source=source, launch=GpuLaunch(grid, block, shared_nbytes=self.shared_nbytes),
        )

    def _c_text(self, sizes: Mapping[str, int]) -> tuple[str, str]:
        """The author's text with what calls it as kernels of the CPU are called."""
        types = _C_TYPES
        arguments = []
        for place, array in enumerate((*self.outputs, *self.inputs)):
            if array.dtype.name not in types:
                raise DTypeError(f"C has no type for {array.name}", found=array.dtype,
                                 wanted=", ".join(types))
            const = "const " if place >= len(self.outputs) else ""
            arguments.append(f"({const}{types[array.dtype.name]} *)buffers[{place}]")
        entry = f"baregrad_{self.entry}"
        call = (
            f"void {entry}(void **buffers, const int64_t *variables, int64_t chunk_begin, "
            "int64_t chunk_end, void *scratch) {\n"
            f"  {self.entry}({', '.join(arguments)});\n}}\n"
        )
        lines = ("#include <stdint.h>", *_constants(sizes), self.text, call)
        return "\n".join(lines), entry


def _constants(sizes: Mapping[str, int]) -> list[str]:
    """The names of extents as constants of C."""
    return [f"enum {{ {name} = {value} }};" for name, value in sorted(sizes.items())]


def _three(sizes: Sequence[int]) -> tuple[int, int, int]:
    given = [int(one) for one in sizes]
    if not 1 <= len(given) <= 3:
        raise ArgumentError("a grid and a block have one to three sizes", found=list(sizes))
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z


def _several(made: Any) -> list[Tensor]:
    return list(made) if isinstance(made, tuple | list) else [made]


@explained
def custom_kernel(
    text: str, signature: str, reference: Callable[..., Any], *, language: str = "c",
    entry: str = "", grid: Callable[..., Sequence[int]] | None = None,
    block: Sequence[int] = (128,), shared_nbytes: int = 0, check: str = "first",
    rtol: float = 1e-4, atol: float = 1e-5, gradient: Callable[..., Any] | None = None,
) -> CustomKernel:
    """Return a function of tensors by a kernel whose text is given.

    signature: "x: float32[n, m], v: float32[m] -> out: float32[n]"; names of extents are constants
    of the text in C and CUDA C. The function `entry`, the first one in the text unless told, takes
    pointers to the outputs, then to the inputs, in row-major order. language: "c", for the CPU, by
    an installed compiler; "cuda", by the package nvidia-cuda-nvrtc (`extern "C" __global__`); or
    "ptx". GPUs want `grid`, a function of the extents by name, and `block`. `reference` computes
    the same with tensors: results are compared with its at the first call of each set of sizes
    (check "first"), "always" or "never", and gradients are its own, unless `gradient(inputs,
    gradients of outputs)` gives them. A kernel runs when it is called, so inside `jit`, `vmap` and
    their like it is refused. Raises ArgumentError for what is no signature.
    """
    if language not in _LANGUAGES or check not in _CHECKS:
        raise ArgumentError(
            "a language and when to check", found=f"{language!r}, {check!r}",
            wanted=f"{' or '.join(_LANGUAGES)}; {' or '.join(_CHECKS)}",
        )
    if language != "c" and grid is None:
        raise ArgumentError("a GPU's kernel has a grid", wanted="grid=lambda n: (n // 128,)")
    if not entry:
        pattern = r"\.entry\s+(\w+)" if language == "ptx" else r"\bvoid\s+(\w+)\s*\("
        match = re.search(pattern, text)
        if match is None:
            raise ArgumentError("the text has no function that is a kernel", found=text[:60],
                                hint="name it: entry='...'")
        entry = match.group(1)
    return CustomKernel(text, signature, reference, language, entry, grid, block, shared_nbytes,
                        check, rtol, atol, gradient)
