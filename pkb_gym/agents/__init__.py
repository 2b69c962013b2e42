"""Agents: what writes kernels. `pkb run` has them play episodes and records every turn."""
