"""Runs of a program that was run before, over other arrays: no graph is made or looked up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from baregrad.engine.session import Run, Session
from baregrad.ir.core.attrs import BufferRef


def run_again(
    session: Session, run: Run, inputs: Sequence[BufferRef], variables: Mapping[str, int]
) -> list[BufferRef]:
    """Run a program over other arrays of the shapes and dtypes that it had; where results lie.

    variables: those that have other values, none of which a result's shape depends on. Results that
    were written over inputs are so again: nobody else may read these inputs later.
    """
    slots = {id(ref.handle): slot for slot, ref in enumerate(run.program.inputs)}
    with session.lock:
        session.watching.touched += 1
        bound = {**run.program.variables, **variables}
        program = replace(run.program, inputs=tuple(inputs), variables=bound)
        results = run.backend.execute(run.executable, program, session.where)
        refs = []
        for buffer, old in zip(results, run.outputs, strict=True):
            ref = BufferRef(buffer, old.shape, old.device)
            slot = slots.get(id(old.handle))
            if slot is not None and inputs[slot].handle is buffer:
                session.forget((id(buffer),))
                ref = ref.renewed()
            refs.append(ref)
        made = Run(run.backend, run.executable, program, tuple(refs))
        for observer in session.watching.observers:
            observer(made)
        return refs
