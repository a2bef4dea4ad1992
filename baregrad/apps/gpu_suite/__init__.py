"""`baregrad bench --suite gpu`: what a GPU is asked for every day, beside PyTorch on the same."""
