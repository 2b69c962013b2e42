"""Right or wrong: the layout of a block of calls in the heap, and the comparison of its outputs.

Runs in the reference ranks; may import the rooms from `records` down.
"""
