"""Reference of all_reduce.cu."""


def reference(x):
    """The sum of all ranks' inputs, on each rank."""
    return {"out": [sum(x)] * len(x)}
