"""The page of operations, `docs/ops.md`: what each takes and gives, found out by calling it."""
