"""All-reduce: every rank gets the sum of all ranks' inputs."""


def reference(x):
    return {"out": [sum(x)] * len(x)}
