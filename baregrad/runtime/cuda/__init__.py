"""The device CUDA: NVIDIA GPUs through the CUDA driver API, libcuda.so.1 by ctypes."""
