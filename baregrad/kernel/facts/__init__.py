"""What a kernel does, found once: axes, accesses as strides, costs; and the table of its axes.

In: a KERNEL. Out: `Facts` and `AxisTable`. Imports `language`.
"""
