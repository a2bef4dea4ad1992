"""Language models: their weights, their tokenizers, generation, and the commands around them."""
