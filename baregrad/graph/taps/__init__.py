"""Convolutions on GPUs whose taps are columns of a product: graphs come in, and go out."""
