"""NVIDIA GPUs through the kernel driver alone: ioctl and mmap on `/dev/nvidia*`, no vendor library.

`abi` knows the wire, `port` the calls of the operating system; what stands on them is testable
without a GPU.
"""
