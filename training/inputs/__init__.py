"""Inputs of a recipe: its arguments, rows of prompts, conversations as tokens."""
