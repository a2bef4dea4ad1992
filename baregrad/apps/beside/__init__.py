"""Ours and PyTorch beside each other on one device, each side a process of its own."""
