"""What each PTX instruction does, by family."""
