"""Attributes that are named tuples are attributes, not tuples: in digests, texts and rules."""

from __future__ import annotations

import dataclasses

import pytest

from baregrad.base.errors import FileFormatError
from baregrad.dtypes import dtypes
from baregrad.ir.core import attrs, axes
from baregrad.ir.core.attribute_fields import attribute_fields
from baregrad.ir.core.digest import digest, stable_repr
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import Ops, form_fault
from baregrad.ir.text.dump import dump, parse

ATTRIBUTES = (
    attrs.Access(8, 2, 3, 16, True),
    attrs.Alloc(1, "shared", (2, 3), None, 2, "tile"),
    attrs.KernelInfo("k", grid=(2,)),
    attrs.Out(None),
    attrs.Param(2, (3, 4), "x"),
    axes.Range(4, "M", "pool"),
    attrs.Reg(3, 8),
)


def test_fields_of_both_kinds_of_classes_read_alike() -> None:
    @dataclasses.dataclass(frozen=True)
    class Range:
        id: int
        axis: str = ""
        bind: str = "loop"

    assert attribute_fields(axes.Range) == attribute_fields(Range)
    assert attribute_fields(tuple) is None
    assert attribute_fields(int) is None


@pytest.mark.parametrize("attribute", ATTRIBUTES, ids=lambda one: type(one).__name__)
def test_a_digest_tells_an_attribute_from_a_tuple(attribute: tuple[object, ...]) -> None:
    text = stable_repr(attribute)
    assert text.startswith(type(attribute).__name__ + "(")
    assert text != stable_repr(tuple(attribute))


def test_digests_are_those_of_the_same_fields_in_a_dataclass() -> None:
    assert stable_repr(attrs.Access(8, 2, 3, 16, True)) == "Access(8,2,3,16,True,0,(),False,())"
    assert stable_repr(attrs.Param(2, (3, 4), "x")) == "Param(2,(3,4),'x',False,0,())"


def test_text_names_the_fields_that_are_not_default_and_comes_back() -> None:
    size = const(5, dtypes.index)
    array = Node(Ops.PARAM, dtypes.float32, (), attrs.Param(0, (size, 4)))
    text = dump(array)
    assert "Param(slot=0, shape=(%0, 4))" in text
    assert parse(text) is array
    register = Node(Ops.REG, dtypes.float32, (), attrs.Reg(1, 1))
    assert dump(register) == "%0 = REG f32[] : Reg(id=1)\n"
    assert parse(dump(register)) is register
    assert digest(register) != digest(array)


def test_an_attribute_does_not_pass_for_a_tuple() -> None:
    assert form_fault(Ops.RESHAPE, 1, (2, 3)) is None
    assert form_fault(Ops.RESHAPE, 1, attrs.Reg(2, 3)) is not None
    with pytest.raises(FileFormatError, match="shape=Reg"):
        parse("%0 = PARAM f32[2,3] : Param(slot=0, shape=Reg(id=2, width=3))")
