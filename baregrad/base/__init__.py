"""What every room stands on: errors, options, tracing spans, progress bars, integer helpers."""
