"""Watching what a program asks of the NVIDIA driver: `baregrad trace`, by ptrace alone."""
