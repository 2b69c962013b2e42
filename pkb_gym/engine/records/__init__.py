"""Records: what crosses a wire or is stored.

May import `hardware`, `problem` and `support`; holds no logic but validation.
"""
