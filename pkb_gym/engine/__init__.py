"""The engine: everything that judges a kernel. One room for one question; each imports only those below it.

    evaluators > debugging > stages > compile > emulator > gangs > reference
        > compare > records > hardware > problem > support > rankside > wire

Imports nothing of `envs`, `rewards`, `problems` or anything above them; import-linter checks both.
"""
