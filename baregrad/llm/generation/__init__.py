"""Answers from prompts: the paged cache, sampling, constraints, and the engine that batches them.

In come a decoder (`llm/models`) and a tokenizer (`llm/text`); out go tokens and pieces of text. The
bits of an answer depend on its prompt, its sampling and the model alone: not on what else is in the
batch, on what of it lay in the cache, or on whether it was moved out in between.
"""
