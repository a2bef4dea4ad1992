"""Attention as reductions over the keys, so that tiles of keys stream through a GPU's kernels."""
