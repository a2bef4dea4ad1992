"""`custom_kernel`: a function of tensors whose kernel its author wrote, as C, CUDA C or PTX."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
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
from baregrad.engine.control.texts import loaded
from baregrad.engine.session import current_session
from baregrad.func.custom import custom_gradient
from baregrad.func.loops import body_of, made_tensors
from baregrad.func.regions import are_there, traced_region
from baregrad.func.stand_ins import drawing, results_of
from baregrad.ir.core.control import call_form
from baregrad.ir.core.node import Node
from baregrad.tensor.array.arguments import explained
from baregrad.tensor.array.grad_mode import no_grad
from baregrad.tensor.tensor import Tensor

_ARRAY = re.compile(r"\s*(\w+)\s*:\s*(\w+)\s*\[([^\]]*)\]\s*")
_LANGUAGES = ("c", "cuda", "ptx")
# The CUDA programming guide's limits of a launch, the same for all GPUs that there are.
_MOST_BLOCKS, _MOST_THREADS = ((1 << 31) - 1, 65535, 65535), 1024
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
        self.grid, self.block, self.shared_nbytes = grid, _three(block, "block"), shared_nbytes
        self.rtol, self.atol = rtol, atol
        self._check = check
        self._checked: set[tuple[Any, ...]] = set()

    def __call__(self, *tensors: Tensor) -> Any:
        """Return what the kernel makes of tensors, and gradients by the reference's.

        Raises DTypeError or ShapeError for what the signature does not say, DeviceError for
        tensors of a device that does not run the language, CompileError for a text that does not
        compile or does not give what the reference does.
        """
        sizes = self._sizes(tensors)
        made: Any
        if self.gradient is None:
            made = self._made(tensors, sizes)
        else:
            made = custom_gradient(self._with_gradient)(*tensors)
        key = (tensors[0].device, tuple(sorted(sizes.items())))
        if self._check == "never" or (self._check == "first" and key in self._checked):
            return made
        watching = current_session().watching
        lazy = watching.downloads or watching.keeps_choices
        if lazy or not are_there([x._value() for x in tensors]):
            if self._check == "always":
                raise JitError(
                    f"{self.entry} is compared with its reference at each call, and nothing can be "
                    "compared in captured or transformed functions", hint='check="first"',
                )
            return made
        self._compare(tensors, _several(made))
        self._checked.add(key)
        return made

    def _with_gradient(self, *tensors: Tensor) -> tuple[Any, Callable[..., Any]]:
        with no_grad():
            made = self._made(tensors, self._sizes(tensors))
        return made, lambda *grads: self.gradient(tensors, grads)  # type: ignore[misc]

    def _made(self, tensors: Sequence[Tensor], sizes: Mapping[str, int]) -> Any:
        """The results, nodes of the graph whose reference goes along with them."""
        device, values = tensors[0].device, [x.node for x in tensors]

        def call(ones: list[Tensor]) -> tuple[Any, list[Tensor]]:
            found = self.reference(*ones)
            return found, results_of(found, what)

        what = f"custom_kernel {self.entry}"
        with drawing("error", what):
            traced = traced_region(call, values, device, what)
        body = body_of(traced, what)
        self._check_results(body.src, sizes)
        names = tuple([array.name for array in (*self.outputs, *self.inputs)])
        if not any(math.prod(array.shape(sizes)) for array in self.outputs):
            # Nobody need be launched for nothing.
            return self.reference(*tensors)
        grid = (1,) if self.grid is None else self.grid(**sizes)
        form = call_form(
            body, len(tensors), self.language, self.entry, self.text, names,
            tuple(sorted(sizes.items())), _three(grid, "grid"), self.block, self.shared_nbytes,
        )
        sources = [*values, *traced.captured]
        # A text that does not compile is told here, and not where results are asked for.
        loaded(current_session().backend(device), form, sources)
        made = made_tensors(form, sources, tensors, len(body.src), device)
        return made[0] if len(made) == 1 else tuple(made)

    def _check_results(self, results: Sequence[Node], sizes: Mapping[str, int]) -> None:
        """Raise where the reference gives other results than the signature says."""
        if len(results) != len(self.outputs):
            raise ArgumentError(
                f"the reference of {self.entry} gives as many results as its signature has",
                found=len(results), wanted=len(self.outputs),
            )
        for array, one in zip(self.outputs, results, strict=True):
            what = f"the reference of {self.entry} gives another {array.name}"
            if one.dtype is not array.dtype:
                raise DTypeError(what, found=one.dtype, wanted=array.dtype)
            if one.shape != array.shape(sizes):
                raise ShapeError(what, found=list(one.shape), wanted=list(array.shape(sizes)))

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

    def check(self, *tensors: Tensor) -> None:
        """Run the kernel and compare with the reference. Raises CompileError where they differ."""
        with no_grad():
            self._compare(tensors, _several(self._made(tensors, self._sizes(tensors))))

    def _compare(self, tensors: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        with no_grad():
            wanted = _several(self.reference(*[x.detach() for x in tensors]))
        for array, ours, theirs in zip(self.outputs, results, wanted, strict=True):
            a, b = ours.detach().numpy(), theirs.numpy()
            same = np.isclose(a, b, rtol=self.rtol, atol=self.atol, equal_nan=True)
            if not same.all():
                place = tuple(int(i) for i in np.argwhere(~np.atleast_1d(same))[0])
                raise CompileError(
                    f"{self.entry} does not give what its reference does: {array.name}"
                    f"{list(place)} is {np.atleast_1d(a)[place]}, and was to be "
                    f"{np.atleast_1d(b)[place]} ({int((~same).sum())} of {same.size} differ)",
                    source=self.text,
                )


def _three(sizes: Sequence[int], what: str) -> tuple[int, int, int]:
    """The three sizes of a grid or a block. Raises ArgumentError for what no GPU launches."""
    given = [int(one) for one in sizes]
    if not 1 <= len(given) <= 3:
        raise ArgumentError("a grid and a block have one to three sizes", found=list(sizes))
    x, y, z = (*given, 1, 1)[:3]
    most = _MOST_BLOCKS if what == "grid" else (_MOST_THREADS,) * 3
    fits = all(1 <= one <= limit for one, limit in zip((x, y, z), most, strict=True))
    if not fits or (what == "block" and x * y * z > _MOST_THREADS):
        raise ArgumentError(
            f"a {what} of impossible size", found=given,
            wanted=f"sizes from 1 to {list(most)}" if what == "grid"
            else f"1 to {_MOST_THREADS} threads",
            hint="round up what a grid divides: -(-n // 128)" if what == "grid" else "",
        )
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
    gradients of outputs)` gives them. The kernel is a node of the graph: it is part of captured
    functions, and of transformed ones, in which there is nothing to compare yet; under `vmap` it is
    launched for each example. Raises ArgumentError for what is no signature.
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
