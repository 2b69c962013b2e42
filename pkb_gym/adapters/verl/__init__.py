"""verl: an agent loop, a tool, the reward function with its advantage estimator, and prompts as parquet."""
