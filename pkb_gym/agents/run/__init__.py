"""A run: an agent plays episodes on many problems, and every turn is recorded."""
