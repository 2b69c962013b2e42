"""Evaluation during training: its owners and its times."""
