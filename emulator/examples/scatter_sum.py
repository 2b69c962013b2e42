"""Reduce-scatter: rank r gets the sum of all ranks' parts r."""


def reference(x):
    return {"out": [sum(part[rank] for part in x) for rank in range(len(x))]}
