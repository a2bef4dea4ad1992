"""Small real data sets and the loaders that feed them."""
