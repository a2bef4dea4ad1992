"""Kinds of random statements and programs, each about one part of what tensors can do."""
