"""Runs the ranks of a CUDA candidate on a model of GPUs, in one process and without a GPU; see `docs/emulator.md`.

`src/` holds the model: an interpreter of PTX, a CUDA runtime, a scheduler, a detector of races.
"""
