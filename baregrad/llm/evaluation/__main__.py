"""`python -m baregrad.llm.evaluation run --model baregrad --model_args path=FILE --tasks ...`."""

from __future__ import annotations

from baregrad.llm.evaluation.harness import harness_class


def main() -> None:
    """Run lm_eval's own command, to which our models are known."""
    harness_class()
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
