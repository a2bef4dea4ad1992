"""The CPU device: an ELF loader, a native executor of command lists and its thread pool."""
