"""Evaluators: who judges a source, where, and how many at a time.

The top room of the engine: may import every other one.
"""
