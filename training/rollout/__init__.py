"""How a policy plays episodes: tokens, sampling, tool calls, submissions."""
