"""From source text to what a gang loads: compilers in a sandbox, and a content-addressed cache of their results.

May import `ranks` (the sandbox, and the gang that imports Python sources) and the rooms below it.
"""
