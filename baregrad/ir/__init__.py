"""The one graph: nodes, op table, levels and verifier, rewriting, analyses, text, evaluator."""
