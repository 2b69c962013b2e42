"""Inspect AI: the tasks of `pkb export harbor` as an evaluation."""
