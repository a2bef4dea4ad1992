"""Five kernels written at every level: the worked examples of the kernel language."""
