"""Random statements about axes: views, indexing, joining, reductions, contractions, writes."""

from __future__ import annotations

import math
import random

from baregrad.tensor import Tensor
from baregrad.testing.fuzz_elementwise import is_certain, is_float, is_integer, mate
from baregrad.testing.fuzz_program import Maker
from baregrad.testing.fuzz_values import Data, Known, either, multiplied, settle, summed, wrapped


def factors(rng: random.Random, size: int) -> tuple[int, ...]:
    """A random shape of the given number of elements."""
    if size == 0:
        return rng.choice(((0,), (0, 3), (2, 0)))
    found = []
    for prime in (2, 2, 2, 3, 3, 5, 17):
        if size % prime == 0 and rng.random() < 0.6:
            found.append(prime)
            size //= prime
    found.append(size)
    rng.shuffle(found)
    while len(found) > 4:
        found.append(found.pop() * found.pop())
    if rng.random() < 0.2:
        found.insert(rng.randint(0, len(found)), 1)
    return tuple(found)


def slice_text(rng: random.Random, extent: int) -> str:
    """A slice of an axis, with a step or backwards now and then."""
    kind = rng.randrange(6)
    if kind == 0 or extent < 2:
        return ":"
    start = rng.randint(0, extent - 1)
    stop = rng.randint(start, extent) if rng.random() < 0.2 else rng.randint(start + 1, extent)
    if kind == 1:
        return f"::{rng.choice((2, 3, -1, -2))}"
    if kind == 2:
        return f"{start}:{stop}:2"
    if kind == 3:
        return f"{stop - extent - 1}:{start if start else ''}:-1" if start < stop - 1 else "::-1"
    return f"{start}:{stop}"


def index_text(maker: Maker, x: Tensor) -> str:
    """A basic key: slices, integers, None, an ellipsis."""
    rng = maker.rng
    entries = []
    for extent in x.shape:
        if extent and rng.random() < 0.2:
            entries.append(str(rng.randint(-extent, extent - 1)))
        else:
            entries.append(slice_text(rng, extent))
    if rng.random() < 0.2:
        entries.insert(rng.randint(0, len(entries)), "None")
    if rng.random() < 0.2 and entries:
        del entries[-1]
        entries.append("...")
    return ", ".join(entries) or "..."


def view(maker: Maker) -> bool:
    """A view or a movement of elements."""
    name = maker.pick()
    if name is None:
        return False
    x, rng, known = maker.values[name], maker.rng, maker.known[name]
    axis = rng.randrange(x.ndim) if x.ndim else 0
    kinds = ["reshape", "index", "index", "expand", "unsqueeze"]
    if x.ndim:
        kinds += ["flip", "roll", "repeat", "pad", "permute", "unfold", "narrow", "tri", "diagonal"]
    kind = rng.choice(kinds)
    text = _view_text(maker, kind, name, axis)
    if not text:
        return False
    fill = Known(1.0, 0.0, 0.25)
    given = either(known, fill) if kind in ("pad", "tri") else known
    return maker.run(f"{maker.fresh()} = {text}", lambda dtype: given)


def _view_text(maker: Maker, kind: str, name: str, axis: int) -> str:
    x, rng = maker.values[name], maker.rng
    extent = x.shape[axis] if x.ndim else 1
    if kind == "reshape":
        return f"{name}.reshape{factors(rng, x.numel())}"
    if kind == "index":
        return f"{name}[{index_text(maker, x)}]"
    if kind == "expand":
        wide = tuple(rng.choice((2, 3)) if e == 1 else e for e in x.shape)
        lead = (rng.randint(1, 3),) if rng.random() < 0.5 else ()
        return f"{name}.expand({(*lead, *wide)})"
    if kind == "permute":
        axes = list(range(x.ndim))
        rng.shuffle(axes)
        return f"{name}.permute({tuple(axes)})"
    if kind == "pad":
        pads = [rng.randint(0, 2) for _ in range(2 * rng.randint(1, x.ndim))]
        return f"{name}.pad({tuple(pads)}, value={rng.choice((0, 0, 1))})"
    if kind == "unfold":
        size = rng.randint(1, 3)
        return f"{name}.unfold({axis}, {size}, {rng.choice((1, 2))})" if extent >= size else ""
    if kind == "narrow":
        start = rng.randint(0, extent)
        return f"{name}.narrow({axis}, {start}, {rng.randint(0, extent - start)})"
    if kind in ("tri", "diagonal") and x.ndim < 2:
        return ""
    forms = {
        "unsqueeze": f"{name}.unsqueeze({rng.randint(0, x.ndim)})",
        "flip": f"{name}.flip({axis})",
        "roll": f"{name}.roll({rng.randint(-3, 3)}, {axis})",
        "repeat": f"{name}.repeat({tuple(rng.randint(1, 2) for _ in x.shape)})",
        "tri": f"{name}.{rng.choice(('tril', 'triu'))}({rng.randint(-1, 1)})",
        "diagonal": f"{name}.diagonal({rng.randint(-1, 1)})",
    }
    return forms[kind]


def reduce(maker: Maker) -> bool:
    """A reduction or a running one over some axes."""
    name = maker.pick()
    if name is None:
        return False
    x, rng, known = maker.values[name], maker.rng, maker.known[name]
    axes = tuple(a for a in range(x.ndim) if rng.random() < 0.6)
    most = maker.most(name)
    count = math.prod(most[a] for a in axes) if axes else math.prod(most)
    where = f"{axes}, keepdim={rng.random() < 0.4}" if axes else ""
    kind = rng.choice(
        ("sum", "sum", "mean", "amax", "amin", "any", "all", "softmax", "running", "var")
    )
    fresh = maker.fresh()
    if kind == "sum":
        return maker.run(f"{fresh} = {name}.sum({where})", lambda d: summed(known, count, d))
    if kind in ("amax", "amin"):
        return bool(count) and maker.run(f"{fresh} = {name}.{kind}({where})", lambda d: known)
    if kind in ("any", "all"):
        if not is_certain(x, known):
            return False
        return maker.run(f"{fresh} = ({name} != 0).{kind}({where})", lambda d: Known(1.0))
    if kind == "running":
        return _running(maker, name, fresh)
    if not is_float(x, known) or not count:
        return False
    if kind == "mean":
        total = Known(known.peak, known.error + 1e-12)
        return maker.run(
            f"{fresh} = {name}.mean({where})",
            lambda d: Known(known.peak, summed(total, count, d).error / count * 2),
        )
    if kind == "var":
        return maker.run(
            f"{fresh} = {name}.var({where or 'None'}, correction=0)"
            if not where
            else f"{fresh} = {name}.var({where}, correction=0)",
            lambda d: Known(
                known.peak**2,
                8 * (known.peak * (known.error + summed(Known(known.peak, 1e-12), count, d).error)),
            ),
        )
    if not x.ndim or known.peak > 30:
        return False
    axis = rng.randrange(x.ndim)
    return maker.run(
        f"{fresh} = {name}.softmax({axis})",
        lambda d: Known(
            1.0, 4 * known.error + summed(Known(1.0, 1e-12), most[axis], d).error * 8
        ),
    )


def _running(maker: Maker, name: str, fresh: str) -> bool:
    x, known = maker.values[name], maker.known[name]
    if not x.ndim:
        return False
    axis = maker.rng.randrange(x.ndim)
    kind = maker.rng.choice(
        ("cumsum({})", "cummax({})[0]", "sort({})[0]", "argmax({})", "cumsum({})")
    )
    extent = maker.most(name)[axis]
    if kind.startswith("arg") and (not is_certain(x, known) or not extent):
        return False
    if kind.startswith(("cummax", "arg")) and x.dtype.name == "bool":
        return False
    given = {"cumsum({})": None, "argmax({})": Known(float(extent), 0.0, 1.0)}.get(kind, known)
    return maker.run(
        f"{fresh} = {name}.{kind.format(axis)}", lambda d: given or summed(known, extent, d)
    )


def join(maker: Maker) -> bool:
    """Values one after the other."""
    a = maker.pick(lambda x, known: x.ndim > 0)
    if a is None:
        return False
    x = maker.values[a]
    axis = maker.rng.randrange(x.ndim)

    def fits(y: Tensor, known: Known) -> bool:
        return y.ndim == x.ndim and all(
            i == axis or e == f for i, (e, f) in enumerate(zip(x.shape, y.shape, strict=True))
        )

    b, c = maker.pick(fits) or a, maker.pick(fits) or a
    given = either(either(maker.known[a], maker.known[b]), maker.known[c])
    form = maker.rng.choice(("cat([{a}, {b}], dim={d})", "cat([{a}, {b}, {c}], dim={d})"))
    if x.shape == maker.values[b].shape and maker.rng.random() < 0.4:
        form = "stack([{a}, {b}], dim={d})"
    text = form.format(a=a, b=b, c=c, d=axis)
    return maker.run(f"{maker.fresh()} = Tensor.{text}", lambda dtype: given)


def contract(maker: Maker) -> bool:
    """A matrix product, an outer product or a small convolution."""
    a = maker.pick(lambda x, known: x.ndim >= 1 and x.dtype.name != "bool")
    if a is None:
        return False
    x, known = maker.values[a], maker.known[a]
    dtype = x.dtype
    if x.ndim in (3, 4) and x.ndim == 4 and is_float(x, known) and min(x.shape) > 0:
        kernel = maker.rng.choice((1, 2, 3))
        data = Data((2, x.shape[1], kernel, kernel), dtype)
        b = maker.argument(data)
        count = x.shape[1] * kernel * kernel
        product = multiplied(known, data.known())
        options = f"padding={maker.rng.randint(0, 1)}, stride={maker.rng.randint(1, 2)}"
        return maker.run(
            f"{maker.fresh()} = {a}.conv2d({b}, {options})", lambda d: summed(product, count, d)
        )
    inner = x.shape[-1]
    found = maker.pick(lambda y, k: y.ndim >= 1 and y.dtype is dtype and y.shape[-1] == inner)
    if found is None or maker.rng.random() < 0.5:
        found = maker.argument(Data((maker.rng.choice((1, 5, 8, 17)), inner), dtype))
    b = found
    product, inner = multiplied(known, maker.known[b]), maker.most(a)[-1]
    other = f"{b}.mT" if maker.values[b].ndim >= 2 else b
    return maker.run(f"{maker.fresh()} = {a} @ {other}", lambda d: summed(product, inner, d))


def gather(maker: Maker) -> bool:
    """Reading by an index that is computed."""
    a = maker.pick(lambda x, known: x.ndim >= 1 and min(x.shape) > 0)
    i = maker.pick(is_integer)
    if a is None or i is None:
        return False
    x, known = maker.values[a], maker.known[a]
    places = maker.values[i]
    axis = maker.rng.randrange(x.ndim)
    extent = x.shape[axis]
    if (places.dtype.itemsize == 1 and extent > 60) or maker.may_be_empty(a, axis):
        return False
    shown = maker.extent(a, axis)
    safe = f"({i} % {shown})"
    kind = maker.rng.randrange(4)
    if kind == 0 and places.ndim == 1:
        text = f"{a}.index_select({axis}, {safe})"
    elif kind == 1 and places.shape == x.shape:
        text = f"{a}.gather({axis}, {safe}.long())"
    elif kind == 2 and places.dtype.kind == "int":
        text = f"{a}[{', '.join([':'] * axis + [f'{i} % (2 * {shown}) - {shown}'])}]"
        if places.dtype.itemsize == 1:
            text = text.replace(i, f"{i}.int()")
    else:
        text = f"{a}[{', '.join([':'] * axis + [safe])}]"
    return maker.run(f"{maker.fresh()} = {text}", lambda dtype: known)


def one_hot(maker: Maker) -> bool:
    """Ones at computed places, or a line of numbers."""
    rng = maker.rng
    if rng.random() < 0.5:
        count = rng.choice((3, 4, 7, 9, 17))
        dtype = rng.choice(("int32", "int64", "float32"))
        text = f"Tensor.arange({count}, dtype={dtype!r})"
        return maker.run(f"{maker.fresh()} = {text}", lambda d: Known(count, 0.0, 1.0))
    i = maker.pick(lambda x, known: is_integer(x, known) and x.ndim <= 2)
    if i is None:
        return False
    classes = rng.choice((3, 5))
    return maker.run(
        f"{maker.fresh()} = ({i} % {classes}).one_hot({classes})", lambda d: Known(1.0, 0.0, 1.0)
    )


def scatter(maker: Maker) -> bool:
    """Writing by a computed index, into a copy."""
    a = maker.pick(lambda x, known: x.ndim >= 1 and min(x.shape) > 0 and x.dtype.name != "bool")
    if a is None:
        return False
    x, known = maker.values[a], maker.known[a]
    i = maker.pick(lambda y, k: is_integer(y, k) and y.ndim == x.ndim and y.shape == x.shape)
    b = maker.pick(lambda y, k: y.dtype is x.dtype and y.shape == x.shape)
    if i is None or b is None:
        return False
    axis = maker.rng.randrange(x.ndim)
    extent = x.shape[axis]
    if (maker.values[i].dtype.itemsize == 1 and extent > 60) or maker.may_be_empty(a, axis):
        return False
    extent = maker.most(a)[axis]
    safe = f"({i} % {maker.extent(a, axis)}).long()"
    both = either(known, maker.known[b])
    if maker.rng.random() < 0.5:
        text = f"{a}.scatter_add({axis}, {safe}, {b})"
        return maker.run(f"{maker.fresh()} = {text}", lambda d: summed(both, extent + 1, d))
    reduce = maker.rng.choice(("amax", "amin", "sum"))
    text = f"{a}.scatter_reduce({axis}, {safe}, {b}, {reduce!r})"
    return maker.run(f"{maker.fresh()} = {text}", lambda d: summed(both, extent + 1, d))


# --- writes --------------------------------------------------------------------------------------


def write(maker: Maker) -> bool:
    """A change in place: of the whole, of a part, by a mask, or through a view made before."""
    target = maker.pick()
    if target is None:
        return False
    x, rng, known = maker.values[target], maker.rng, maker.known[target]
    kind = rng.choice(("slice", "slice", "arithmetic", "mask", "fill", "index"))
    if kind == "slice":
        key = index_text(maker, x)
        value = mate(maker, target) if rng.random() < 0.6 else None
        # What is written into itself is not, and with symbolic sizes it is not looked at.
        itself = maker.sizes and value == target
        if value is None or itself or _outranks(maker, value, target):
            value = str(rng.choice((0, 1, 2)))
        incoming = maker.known.get(value, Known(2.0, 0.0, 1.0))
        shown = f"{value}[{key}]" if value in maker.values and rng.random() < 0.7 else value
        return maker.write(f"{target}[{key}] = {shown}", target, incoming)
    if kind == "mask":
        mask = maker.pick(lambda y, k: y.dtype.name == "bool" and y.shape == x.shape)
        if mask is None:
            return False
        return maker.write(f"{target}[{mask}] = 1", target, Known(1.0, 0.0, 1.0))
    if kind == "fill" and not maker.sizes:
        # What is written over whole is not computed, nor are its sizes looked at.
        return maker.write(f"{target}.fill_(1)", target, Known(1.0, 0.0, 1.0))
    known_rows = x.ndim and x.shape[0] and not maker.is_symbolic(target, 0)
    if kind == "index" and known_rows and rng.random() < 0.7:
        places = f"[{rng.randrange(x.shape[0])}, {rng.randrange(x.shape[0])}]"
        return maker.write(f"{target}[{places}] = 2", target, Known(2.0, 0.0, 1.0))
    value = mate(maker, target)
    if value is None or _outranks(maker, value, target) or x.dtype.name == "bool":
        return False
    other = maker.known[value]
    op = rng.choice(("add_", "sub_", "mul_"))
    if maker.values[value].dtype.name == "bool" and op == "sub_":
        return False
    given = (
        multiplied(known, other)
        if op == "mul_"
        else Known(
            known.peak + other.peak, known.error + other.error, min(known.grain, other.grain)
        )
    )
    if op == "sub_":
        given = wrapped(given, x.dtype)
    if settle(given, x.dtype) is None:
        return False
    return maker.write(f"{target}.{op}({value})", target, given)


def _outranks(maker: Maker, value: str, target: str) -> bool:
    rank = {"bool": 0, "uint": 1, "int": 1, "float": 2}
    a, b = maker.values[value].dtype.kind, maker.values[target].dtype.kind
    return rank[a] > rank[b]
