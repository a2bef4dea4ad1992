"""Random contractions and attentions of all dtypes and layouts, beside NumPy's in float64.

    python -m baregrad.testing.fuzz_products --cases 50000 --seed 0 --minutes 4 --processes 14

In comes a seed, from which a case follows (`cases.py`); out goes what is wrong with its results.
Imports tensors, sessions and `fuzz_workers`.
"""
