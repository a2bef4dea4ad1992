"""Tensor level to tensor level: canonical forms, constant folding, dead code."""

from __future__ import annotations

from baregrad.graph.pipeline import INPUT, canonicalise, passes, replaced, stages

__all__ = ["INPUT", "canonicalise", "passes", "replaced", "stages"]
