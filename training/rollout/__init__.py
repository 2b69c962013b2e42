"""Rollouts of a policy: tokens, sampling, tool calls, submissions."""
