"""Tools for finding the mistakes of a kernel: kept runs, sanitizers, dumped outputs and their pictures.

Runs in the evaluator, which gives each run a `Debugger` that observes it; no stage knows of this room. The standalone
harness and the stack tracer of crashed ranks lie here as sources. May import `stages` and the rooms below it.
"""
