"""The programs of reference ranks: inputs, baseline blocks, handovers, samples of outputs, comparison.

Runs in the trusted ranks of reference gangs, which never load candidate code; `orders` is what the evaluator sends
them. The compiled handover server and output sampler lie beside the modules that load them. May import `compare`, the
rooms below it, and of `rankside` the parts that every rank program has: devices, heaps, process groups.
"""
