"""What a process keeps on disk for those that come after it, beside compiled kernels."""
