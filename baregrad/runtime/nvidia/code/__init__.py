"""Kernels as the GPU reads them: cubins, constant banks, launch descriptors, tensor maps.

Imports `driver`.
"""
