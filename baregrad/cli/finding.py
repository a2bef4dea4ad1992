"""What `baregrad doctor` found of one device or helper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from baregrad.base.errors import BaregradError

Verdict = Literal["ready", "missing", "optional", "not offered"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found for one device or helper: a verdict, facts, and what to do if anything."""

    subject: str
    verdict: Verdict
    needs: str
    facts: tuple[str, ...]
    advice: str = ""

    def __str__(self) -> str:
        lines = [f"{self.subject:<12} {self.verdict}", f"{'':<12}   needs: {self.needs}"]
        lines += [f"{'':<12}   found: {fact}" for fact in self.facts]
        if self.advice:
            lines.append(f"{'':<12}   to do: {self.advice}")
        return "\n".join(lines)


def find_ptxas() -> tuple[str, str]:
    """Return which assembler for GPUs was found, and what to do if none was."""
    from baregrad.assemble.ptxas import PtxAssembler

    try:
        lines = PtxAssembler("sm_90a").version.splitlines()
    except BaregradError as error:
        return str(error), 'pip install "baregrad[nvidia]"'
    return next((line for line in lines if "release" in line), lines[0]), ""
