"""From source text to what a gang loads: compilers in a sandbox, and a content-addressed cache of their results."""
