"""Hardware: what this machine is, and what it can do at best.

May import `problem` and `support`.
"""
