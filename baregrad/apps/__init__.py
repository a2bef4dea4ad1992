"""Whole programs that do a job, such as the demonstrations."""
