"""Dispatch: a token goes to the rank that its first value says; out[s] has the tokens of rank s in their order."""

import numpy as np


def reference(x, world_size):
    outputs = []
    for rank in range(world_size):
        out = np.zeros((world_size, *x[0].shape), x[0].dtype)
        for source, tokens in enumerate(x):
            kept = tokens[tokens[:, 0] % world_size == rank]
            out[source, : len(kept)] = kept
        outputs.append(out)
    return {"out": outputs}
