"""All rows of the suite `gpu`, and how a worker finds one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from baregrad.apps.beside.tensor_case import TensorCase
from baregrad.apps.beside.worker import Case
from baregrad.apps.gpu_suite.compiled import BESIDE_COMPILER
from baregrad.apps.gpu_suite.llama import DECODING
from baregrad.apps.gpu_suite.memory import BANDWIDTH, GRADIENTS, ORDERS
from baregrad.apps.gpu_suite.packed import PACKED
from baregrad.apps.gpu_suite.products import ATTENTIONS, CONVOLUTIONS, PRODUCTS
from baregrad.apps.gpu_suite.row import GpuRow
from baregrad.apps.gpu_suite.training import TRAINING

ROWS: tuple[GpuRow, ...] = (
    *PRODUCTS, *PACKED, *CONVOLUTIONS, *ATTENTIONS, *BANDWIDTH, *GRADIENTS, *ORDERS, *DECODING,
    *TRAINING, *BESIDE_COMPILER,
)

TINY_SETS = 2


def case_of(question: dict[str, Any]) -> Case:
    """Return the work of the row that a question names, at the size that it asks for."""
    row = next(row for row in ROWS if row.name == question["row"])
    case = row.case(question["tiny"])
    if question["tiny"] and isinstance(case, TensorCase):
        return replace(case, sets=case.sets or TINY_SETS)
    return case
