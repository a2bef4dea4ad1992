"""The pipeline as a list of passes: realisation, compile caches, JIT capture, explanation."""
