"""Models in harnesses that measure them: `lm_eval`, run by `python -m baregrad.llm.evaluation`."""

from baregrad.llm.evaluation.harness import HarnessModel, harness_class

__all__ = ["HarnessModel", "harness_class"]
