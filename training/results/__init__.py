"""What a run writes: its log, the best kernels, summaries of a policy."""
