"""The stages of one evaluation: what happens to one candidate, in order.

May import every room of the engine but `evaluators`.
"""
