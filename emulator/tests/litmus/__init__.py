"""Litmus programs of the PTX memory model, with the answers that its axioms give.

`program` describes programs, and `families` makes them by tables. `paths`, `frame` and `model` find their executions
by the axioms, `verdicts` their outcomes and races. `ptx` writes their kernels, `emulate` runs them with the race
detector, and `compare` holds the two answers against each other.
"""
