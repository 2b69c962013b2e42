"""Measurements of the evaluator and of the expert kernels; each module is run with `python -m`."""
