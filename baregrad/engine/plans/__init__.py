"""What becomes of a plan before it is run on GPUs: launches joined, and others beside them."""
