"""An interpreter of PTX: text to syntax to programs that run, with races and faults reported."""
