"""Copies between the host and GPUs: by engines, by threads, and from GPU to GPU.

Imports `queue`.
"""
