"""`baregrad bench --suite sweep`: random work beside PyTorch's, in search of cliffs."""
