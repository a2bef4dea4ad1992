"""NVIDIA GPUs through their kernel driver alone: no CUDA driver or runtime library."""
