"""Linear algebra: products of matrices and vectors, einsum."""

from __future__ import annotations

from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.base.options import is_gpu, options
from baregrad.dtypes import DType, array_dtype, dtypes
from baregrad.ir.algebra.casts import halves_for
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import Op, Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.array.operands import accumulator, common_dtype, lift, result
from baregrad.tensor.array.tensor_like import Operand, Tensor

# Results that share a factor, from which on it is converted once for all of them.
_OFTEN = 64


def contract(a: Node, b: Node, axes: tuple[int, ...], out: DType | None = None) -> Node:
    """The product of two nodes that broadcast, summed over axes of the product.

    Narrow floats are multiplied and summed in float32 and rounded once, to `out` if it is given,
    where the nodes may be of any dtypes that `_summed_in` takes.
    """
    dtype = a.dtype if out is None else out
    wide = accumulator(dtype) if out is None else _summed_in(a.dtype, b.dtype, out)
    if dtype.kind == "bool":
        return nodes.reduce(Ops.OR, nodes.alu(Ops.AND, a, b), axes)
    product = nodes.mul(nodes.cast(a, wide), nodes.cast(b, wide))
    return nodes.cast(nodes.reduce(Ops.ADD, product, axes), dtype)


def widely_read(x: Node, beside: DType, times: Dim) -> Node:
    """A factor of floats of 8 or 4 bits that is read often, as 16-bit floats in memory.

    beside: the other factor's dtype. times: how many results of a row or column read an element.
    Converting each time would take longer than the products.
    """
    often = isinstance(times, int) and times >= _OFTEN
    if not often or x.dtype.bits > 8 or not x.dtype.is_float:
        return x
    dtype = halves_for(x.dtype, beside)
    return x if dtype is None else Node(Ops.CONTIGUOUS, dtype, (nodes.cast(x, dtype),))


def for_units(
    a: Node, b: Node, out: DType | None, device: str
) -> tuple[Node, Node, DType | None]:
    """The factors of a product of matrices, in tfloat32 if they are float32 and that is wanted.

    So says the option `matmul_precision`, of GPUs. It is the same for all shapes, so that no result
    depends on what is computed beside it. out: the dtype of the result, None for that of `a`.
    """
    if not a.dtype is b.dtype is dtypes.float32 or options.matmul_precision == "highest":
        return a, b, out
    if not is_gpu(device):
        return a, b, out
    found = [nodes.cast(factor, dtypes.tfloat32) for factor in (a, b)]
    return found[0], found[1], out or dtypes.float32


def _summed_in(left: DType, right: DType, out: DType) -> DType:
    """The dtype in which products of two dtypes are summed for a result of `out`.

    Raises DTypeError where a product of theirs is no such number.
    """
    if left.is_float and right.is_float and out.is_float:
        return dtypes.float64 if max(left.bits, right.bits) > 32 else dtypes.float32
    if left.is_int and right.is_int and out.is_int and out.bits >= max(left.bits, right.bits):
        return accumulator(out)
    raise DTypeError(
        "a matrix product of one kind of numbers gives that kind",
        found=f"{left} and {right} to {out}",
        wanted="floats to a float, or integers to an integer that is no narrower",
        hint="cast the operands",
    )


def _check_named(*factors: DType) -> None:
    """Raise DTypeError for a product of what is not computed with, unless its dtype is named."""
    narrow = [one for one in factors if one.storage_only]
    if narrow:
        wide = "float32" if narrow[0].is_float else "int32"
        raise DTypeError(
            f"a product of {narrow[0]} does not say which dtype it is of",
            found=" and ".join(map(str, factors)), wanted="the dtype of the result",
            hint=f"name it: matmul(..., out_dtype={wide!r}); or cast the factors",
        )


def matmul(x: Tensor, other: Operand, out_dtype: DType | str | None = None) -> Tensor:
    """Return the matrix product: (..., M, K), (..., K, N) -> (..., M, N), batches broadcasting.

    A vector stands for a row at the left and a column at the right, and its axis goes. With
    `out_dtype` the operands keep their dtypes, tfloat32 and 8-bit floats among them: floats are
    summed in float32 (float64 where one is of that) and rounded once; integers are summed in
    `out_dtype`, whose sums wrap. Matrices of float32 are rounded to tfloat32 on GPUs where the
    option `matmul_precision` is "high". Raises ShapeError when the inner extents differ or an
    operand is a scalar, DTypeError for dtypes that have no such product.
    """
    right = lift(other, x)
    if not (x.ndim and getattr(right, "ndim", 0)):
        raise ShapeError("matmul wants at least one axis each", hint="use * for a scalar")
    assert not isinstance(right, bool | int | float | Node)
    out = None if out_dtype is None else array_dtype(out_dtype)
    if out is None:
        _check_named(x.dtype, right.dtype)
        dtype = common_dtype((x, right))
        wide = accumulator(dtype)
        a, b = nodes.cast(x.node, dtype), nodes.cast(right.node, dtype)
    else:
        dtype, a, b = out, x.node, right.node
        wide = _summed_in(a.dtype, b.dtype, out)
        if len(a.shape) > 1 and len(b.shape) > 1:
            kinds = a.dtype, b.dtype
            a = widely_read(a, kinds[1], b.shape[-1])
            b = widely_read(b, kinds[0], a.shape[-2])
    if a.shape[-1] != b.shape[-2 if right.ndim > 1 else -1]:
        raise ShapeError(
            "the inner extents of a matrix product differ",
            found=f"{list(a.shape)} and {list(b.shape)}",
            wanted="(..., M, K) and (..., K, N)",
            hint="transpose one of them, for example with mT",
        )
    if right.ndim == 1:
        product = nodes.mul(nodes.cast(a, wide), nodes.cast(b, wide))
        summed = nodes.cast(nodes.reduce(Ops.ADD, product, (x.ndim - 1,)), dtype)
        return result(summed, x, right)
    a, b, out = for_units(a, b, out, x.device)
    columns = nodes.permute(b, (*range(right.ndim - 2), right.ndim - 1, right.ndim - 2))
    rows = nodes.unsqueeze(a, x.ndim - 1)
    columns = nodes.unsqueeze(columns, right.ndim - 2)
    last = max(len(rows.shape), len(columns.shape)) - 1
    found = contract(rows, columns, (last,), out)
    if x.ndim == 1:
        found = nodes.reshape(found, (*found.shape[:-2], found.shape[-1]))
    return result(found, x, right)


def rmatmul(x: Tensor, other: Operand) -> Tensor:
    """Return other @ x."""
    left = lift(other, x)
    if isinstance(left, bool | int | float | Node):
        raise ShapeError("matmul wants at least one axis each", hint="use * for a scalar")
    return matmul(left, x)


def dot(x: Tensor, other: Tensor) -> Tensor:
    """Return the inner product of two vectors."""
    if x.ndim != 1 or other.ndim != 1:
        raise ShapeError("dot is of vectors", found=f"{list(x.shape)} and {list(other.shape)}")
    return x @ other


def fma(x: Tensor, other: Tensor, total: Tensor) -> Tensor:
    """Return `x * other + total` rounded once, of tensors of one dtype that broadcast.

    Raises DTypeError for different dtypes.
    """
    if not x.dtype is other.dtype is total.dtype:
        raise DTypeError(
            "a product and what it is added to are of one dtype",
            found=f"{x.dtype}, {other.dtype}, {total.dtype}", hint="cast them",
        )  # fmt: skip
    return result(nodes.alu(Ops.FMA, x.node, other.node, total.node), x, other, total)


def dot_bytes(x: Tensor, other: Tensor, total: Tensor | int = 0) -> Tensor:
    """Return `total` plus the products of four bytes a word, element by element, as int32.

    The bytes of `x` are unsigned, those of `other` signed; all are of int32 and broadcast. Sums
    wrap. Words are made of bytes by `view(dtypes.int32)`. Raises DTypeError for other dtypes.
    """
    return _word_products(Ops.DOT4, x, other, total)


def dot_halves(x: Tensor, low: Tensor, high: Tensor, total: Tensor | int = 0) -> Tensor:
    """Return `total` plus the products of four bytes a word and signed halves of two, as int32.

    The bytes of `x` are unsigned; its lower two are multiplied by the halves of `low`, the others
    by those of `high`. All are of int32 and broadcast. Sums wrap. Raises DTypeError for others.
    """
    return _word_products(Ops.DOT2HI, x, high, _word_products(Ops.DOT2LO, x, low, total))


def _word_products(op: Op, x: Tensor, other: Tensor, total: Tensor | int) -> Tensor:
    wanted = dtypes.int32
    third = const(total, wanted) if isinstance(total, int) else total.node
    operands = (x.node, other.node, third)
    if any(one.dtype is not wanted for one in operands):
        raise DTypeError(
            "products of bytes are of words",
            found=", ".join([str(one.dtype) for one in operands]), wanted="int32",
        )  # fmt: skip
    return result(nodes.alu(op, *operands), x, other)


def mm(x: Tensor, other: Tensor) -> Tensor:
    """Return the product of two matrices."""
    if x.ndim != 2 or other.ndim != 2:
        raise ShapeError("mm is of matrices", found=f"{list(x.shape)} and {list(other.shape)}")
    return x @ other


def mv(x: Tensor, other: Tensor) -> Tensor:
    """Return the product of a matrix and a vector."""
    if x.ndim != 2 or other.ndim != 1:
        raise ShapeError(
            "mv is of a matrix and a vector", found=f"{list(x.shape)} and {list(other.shape)}"
        )
    return x @ other


def bmm(x: Tensor, other: Tensor) -> Tensor:
    """Return the products of two batches of matrices: (B, M, K), (B, K, N) -> (B, M, N)."""
    if x.ndim != 3 or other.ndim != 3 or x.shape[0] != other.shape[0]:
        raise ShapeError(
            "bmm is of two batches of equal size", found=f"{list(x.shape)} and {list(other.shape)}"
        )
    return x @ other


def outer(x: Tensor, other: Tensor) -> Tensor:
    """Return all products of two vectors: (M), (N) -> (M, N)."""
    if x.ndim != 1 or other.ndim != 1:
        raise ShapeError("outer is of vectors", found=f"{list(x.shape)} and {list(other.shape)}")
    return x.unsqueeze(1) * other


def addmm(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Return beta*x + alpha*(a @ b)."""
    product = mm(a, b)
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else (x if beta == 1 else x * beta) + product


def baddbmm(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Return beta*x + alpha*(a @ b) of batches of matrices."""
    product = bmm(a, b)
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else (x if beta == 1 else x * beta) + product


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias: (..., I), (O, I), (O) -> (..., O)."""
    if weight.ndim not in (1, 2):
        raise ShapeError("linear's weight is (outputs, inputs)", found=list(weight.shape))
    product = x @ weight.T
    return product if bias is None else product + bias


def trace(x: Tensor) -> Tensor:
    """Return the sum of a matrix's diagonal."""
    if x.ndim != 2:
        raise ShapeError("trace is of matrices", found=f"{x.ndim} axes")
    return x.diagonal().sum()


def kron(x: Tensor, other: Tensor) -> Tensor:
    """Return the Kronecker product."""
    ndim = max(x.ndim, other.ndim)
    left, right = ((1,) * (ndim - y.ndim) + y.shape for y in (x, other))
    a = x.reshape(tuple(e for extent in left for e in (extent, 1)))
    b = other.reshape(tuple(e for extent in right for e in (1, extent)))
    return (a * b).reshape(tuple(m * n for m, n in zip(left, right, strict=True)))


# --- einsum -------------------------------------------------------------------------------------


def _subscripts(equation: str, operands: tuple[Tensor, ...]) -> tuple[list[str], str]:
    """The letters of each operand's axes and of the result's; an ellipsis becomes capitals."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise ShapeError(
            "einsum wants a term for each operand", found=equation, wanted=f"{len(operands)} terms"
        )
    strange = set(equation) - set(_SPARE) - set(" ,.->")
    if strange:
        raise ArgumentError(
            f"einsum's axes are letters, not {''.join(sorted(strange))!r}", found=equation
        )
    free = [c for c in _SPARE if c not in equation]
    wide = 0
    for term, operand in zip(terms, operands, strict=True):
        named = len(term.replace("...", ""))
        if ("..." not in term and named != operand.ndim) or named > operand.ndim:
            raise ShapeError(
                f"the term {term!r} does not fit its operand", found=f"shape {list(operand.shape)}"
            )
        wide = max(wide, operand.ndim - named)
    spare = "".join(free[:wide])
    spelled = []
    for term, operand in zip(terms, operands, strict=True):
        count = operand.ndim - len(term.replace("...", ""))
        spelled.append(term.replace("...", spare[wide - count :]))
    if arrow:
        return spelled, right.replace("...", spare)
    joined = "".join(spelled)
    once = sorted(c for c in set(joined) - set(spare) if joined.count(c) == 1)
    return spelled, spare + "".join(once)


_SPARE = "ZYXWVUTSRQPONMLKJIHGFEDCBAzyxwvutsrqponmlkjihgfedcba"


def einsum(equation: str, *operands: Tensor) -> Tensor:
    """Return the sum of products that an equation such as "bij,bjk->bik" names.

    `...` stands for leading axes that broadcast; a letter repeated in one term takes a diagonal.
    Several operands are contracted from left to right.
    """
    terms, target = _subscripts(equation, operands)
    unknown = set(target) - set("".join(terms))
    if unknown or len(set(target)) != len(target):
        raise ShapeError("einsum's result names axes of the operands, once each", found=equation)
    work = [_diagonals(x, term) for x, term in zip(operands, terms, strict=True)]
    value, letters = work[0]
    for position, (other, theirs) in enumerate(work[1:], 1):
        later = set(target).union(*(term for _, term in work[position + 1 :]))
        value, letters = _contract_pair(value, letters, other, theirs, later)
    gone = [axis for axis, c in enumerate(letters) if c not in target]
    if gone:
        value = value.sum(gone, dtype=value.dtype)
        letters = "".join(c for c in letters if c in target)
    return value.permute([letters.index(c) for c in target])


def _diagonals(x: Tensor, term: str) -> tuple[Tensor, str]:
    for letter in sorted(set(term)):
        while term.count(letter) > 1:
            first = term.index(letter)
            second = term.index(letter, first + 1)
            if x.shape[first] != x.shape[second]:
                raise ShapeError("a repeated letter wants equal extents", found=list(x.shape))
            x = x.diagonal(0, first, second)
            term = "".join(c for i, c in enumerate(term) if i not in (first, second)) + letter
    return x, term


def _contract_pair(
    a: Tensor, left: str, b: Tensor, right: str, later: set[str]
) -> tuple[Tensor, str]:
    """The product of two operands summed over the letters that nobody needs later."""
    letters = left + "".join(c for c in right if c not in left)
    summed = tuple(i for i, c in enumerate(letters) if c not in later)
    dtype = common_dtype((a, b))
    for letter in set(left) & set(right):
        extents = a.shape[left.index(letter)], b.shape[right.index(letter)]
        if extents[0] != extents[1] and 1 not in extents:
            raise ShapeError(
                "a letter of einsum names axes of one extent",
                found=f"{extents[0]} and {extents[1]} for {letter!r}",
                wanted="equal extents, or 1",
            )
    framed = []
    for x, own in ((a, left), (b, right)):
        order = [own.index(c) for c in letters if c in own]
        shape = tuple(x.shape[own.index(c)] if c in own else 1 for c in letters)
        framed.append(nodes.reshape(nodes.permute(nodes.cast(x.node, dtype), tuple(order)), shape))
    left_factor, right_factor, out = for_units(framed[0], framed[1], None, a.device)
    found = contract(left_factor, right_factor, summed, out)
    return result(found, a, b), "".join(c for i, c in enumerate(letters) if i not in summed)
