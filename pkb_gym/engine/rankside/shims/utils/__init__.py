"""The package `utils` that solutions written for ParallelKernelBench import; on the path of gangs alone."""
