"""Kernels that people really use for what problems ask, and their times beside the experts'.

A folder for each problem, a file for each rival. Python files hold a solution, as candidates do, and where production
has its arguments in memory of its own kind a function `place`, which puts them there. CUDA files are texts of our own
of published algorithms, in the native dialect. `python -m benchmarks.rivals` measures them.
"""
