"""Proves problems: what `pkb check-problem` looks at. Imports the engine and `problems` only."""
