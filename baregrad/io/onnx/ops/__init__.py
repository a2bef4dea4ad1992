"""Operators of ONNX, by theme, and the table of them all."""
