"""Models: what tells one from another, their weights, and how they turn words into scores."""
