"""Shipped helpers for tests: random programs, fakes, comparisons."""
