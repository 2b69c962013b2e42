"""Processes: gangs of ranks, the zygotes that fork them, the heaps they share, the sandbox they run in.

May import `compare`, which the reference ranks run, and the rooms below it.
"""
