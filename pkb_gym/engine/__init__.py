"""The engine: problem and feedback records, compile, ranks, check, timing, profile, roofline, integrity.

Imports nothing of `envs`, `rewards`, `problems` or anything above them.
"""
