"""pkb-gym: the 87 multi-GPU problems of ParallelKernelBench as Gymnasium environments."""

__version__ = "0.1.0"
