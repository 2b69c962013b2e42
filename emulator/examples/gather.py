"""All-gather: every rank gets all ranks' inputs, one after the other."""

import numpy as np


def reference(x):
    return {"out": [np.stack(x)] * len(x)}
