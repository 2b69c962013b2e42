"""What a recipe reads: its arguments, rows of prompts, conversations as tokens."""
