"""What a kernel does, found once: axes, accesses as strides, costs.

In: a KERNEL. Out: `Kernel` facts. Imports `language`.
"""
