"""Random statements that draw random numbers."""

from __future__ import annotations

from baregrad.testing.fuzz_program import Maker
from baregrad.testing.fuzz_values import Known, draw_shape, round_off


def draw(maker: Maker) -> bool:
    """Fresh random numbers, of a shape that is plain or has sizes in it."""
    rng = maker.rng
    extents = [str(extent) for extent in draw_shape(rng)]
    for name in maker.sizes:
        if rng.random() < 0.7 and extents:
            extents[rng.randrange(len(extents))] = name
    shape = "(" + "".join(f"{extent}, " for extent in extents) + ")"
    kind = rng.choice(("rand", "rand", "randn", "randint", "dropout", "like", "in place"))
    fresh = maker.fresh()
    even = Known(1.0)
    if kind == "rand":
        dtype = rng.choice(("float32", "float32", "float64", "float16", "bfloat16"))
        return maker.run(f"{fresh} = Tensor.rand({shape}, dtype={dtype!r})", lambda d: even)
    if kind == "randint":
        low, high = rng.choice(((0, 5), (-3, 4), (0, 1), (1, 100)))
        text = f"{fresh} = Tensor.randint({low}, {high}, {shape})"
        return maker.run(text, lambda d: Known(100.0, 0.0, 1.0))
    if kind == "randn":
        text = f"{fresh} = Tensor.randn({shape})"
        return maker.run(text, lambda d: Known(9.0, 64 * round_off(d)))
    a = maker.pick(lambda x, known: x.dtype.kind == "float")
    if a is None:
        return False
    known = maker.known[a]
    if kind == "dropout":
        given = Known(2 * known.peak, 2 * known.error, known.grain)
        return maker.run(f"{fresh} = {a}.dropout(0.5)", lambda d: given)
    if kind == "like":
        return maker.run(f"{fresh} = {a}.rand_like()", lambda d: even)
    return maker.write(f"{a}.uniform_()", a, even)
