"""Results of a run: its log, the best kernels, summaries of a policy."""
