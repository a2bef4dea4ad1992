"""`baregrad ops`: the page of operations, written from the code.

baregrad ops > docs/ops.md
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from baregrad.testing.op_page.facts import OpFacts, facts_of
from baregrad.testing.op_page.samples import DIFFERENCES, operations

_HEAD = """# Operations

Every operation on tensors, as a method of `Tensor`; functions of the same names are attributes of
`baregrad` (`import baregrad as torch`), layers without state of `baregrad.nn.functional`, linear
algebra of `baregrad.linalg`. `baregrad ops` writes this page by calling each of them once with each
kind of dtype. Where it says nothing else, names, arguments and results are PyTorch's.

- **call**: one that works, of the tensors below, and the shape that it gives;
- **dtypes**: the kinds that it takes, *floats* (float32, float64), *narrow floats* (float16,
  bfloat16), *integers*, *unsigned*, *bools*, *complex*; after →, of what dtype the result is where
  it is not its operands';
- **gradient**: whether gradients pass it;
- **reads**: it looks at numbers, so it cannot be part of a captured function (`jit`).

All run on every device: `REF` evaluates them by NumPy, the others run kernels that one compiler
makes of the same graph. Tests of a family are in `tests/tensor/ops`, and
`tests/testing/test_op_page.py` runs the calls below beside PyTorch.

The calls' tensors: `x`, `y` (2, 3), `m` (3, 4), `v` (3,), `p` in (0, 1) and (2, 3), `s` (3, 3), of
floats; `n`, `k` (2, 3) of integers, `b` (2, 3) of bools, `i` two places, `ids` two classes; `line`
(1, 2, 6), `img` (1, 2, 6, 6), `cube` (1, 2, 4, 4, 4) and weights `w1`, `w2`, `w3` of convolutions;
`T` is `Tensor`.
"""


def ops_page(names: Iterable[str]) -> str:
    """The page of some operations, by family."""
    families: dict[str, list[OpFacts]] = {}
    for name in names:
        found = facts_of(name)
        families.setdefault(found.family, []).append(found)
    parts = [_HEAD]
    for family in sorted(families):
        parts.append(f"\n## {family.replace('_', ' ')}\n")
        parts.append("| operation | meaning | call | dtypes | gradient | beside PyTorch |")
        parts.append("|---|---|---|---|---|---|")
        parts += [_row(one) for one in families[family]]
    return "\n".join(parts) + "\n"


def _row(one: OpFacts) -> str:
    dtypes = "; ".join(filter(None, (one.takes, one.gives))) or "-"
    gradient = one.gradient + (", reads" if one.reads else "")
    cells = (f"`{one.name}{one.signature}`", one.sentence, f"`{one.call}` {one.shape}", dtypes,
             gradient, DIFFERENCES.get(one.name, ""))  # fmt: skip
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def main(argv: list[str]) -> int:
    """Print the page."""
    parser = argparse.ArgumentParser(
        prog="baregrad ops", description="Print the page of operations, docs/ops.md."
    )
    parser.parse_args(argv)
    print(ops_page(operations()), end="")
    return 0
