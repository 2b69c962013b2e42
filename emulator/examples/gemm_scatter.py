"""GEMM and reduce-scatter: rank r gets the sum of all ranks' products a @ b, of the rows of part r."""


def reference(a, b):
    product = sum(x @ y for x, y in zip(a, b, strict=True))
    return {"out": list(product)}
