"""What the blocks of a persistent grid do in their turns."""
