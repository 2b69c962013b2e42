import torch
import torch.distributed as dist

COEFFICIENTS = {
    "simple": [(3.4445, -4.7750, 2.0315)],
    "quintic": [
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ],
    "polar_express": [
        (8.2051, -22.9019, 16.4607),
        (4.0664, -2.8612, 0.5184),
        (3.9096, -2.8234, 0.5250),
        (3.2856, -2.4647, 0.5074),
        (2.2779, -1.6447, 0.4162),
        (1.8726, -1.2307, 0.3585),
        (1.8564, -1.2132, 0.3568),
        (1.8750, -1.2500, 0.3750),
    ],
    "aol": [
        (4.0098, -7.0585, 2.4635),
        (3.4585, -5.5479, 2.5959),
        (2.7573, -3.2939, 1.4254),
        (2.7215, -3.0494, 1.3169),
    ],
}


@torch.no_grad()
def solution(
    x: torch.Tensor,
    steps: int = 5,
    coefficient_type: str = "quintic",
    partition_dim: int = 1,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Makes a matrix approximately orthogonal by Newton-Schulz iterations; its columns or rows are split over ranks.

    Args:
        x: (m, n_r) with partition_dim 1, (n_r, m) with 0: this rank's shard.
        steps: number of iterations, a multiple of the length of the coefficients' table.
        coefficient_type: which table.
        partition_dim: the dimension that is split over the ranks.
        group: tensor-parallel group.

    Returns:
        This rank's shard of the orthogonalised matrix, shape and dtype of x.
    """
    assert x.ndim == 2, f"x must be a matrix, got shape {tuple(x.shape)}"
    assert partition_dim in (0, 1), f"partition_dim must be 0 or 1, got {partition_dim}"
    assert coefficient_type in COEFFICIENTS, f"no coefficients called {coefficient_type!r}"
    table = COEFFICIENTS[coefficient_type]
    assert steps % len(table) == 0, f"steps must be a multiple of {len(table)}, got {steps}"

    X = (x if partition_dim == 1 else x.T).float()
    norm_squared = X.square().sum()
    dist.all_reduce(norm_squared, op=dist.ReduceOp.SUM, group=group)
    X = X / norm_squared.sqrt().clamp(min=1e-7)

    for step in range(steps):
        a, b, c = table[step % len(table)]
        gram = X @ X.T
        dist.all_reduce(gram, op=dist.ReduceOp.SUM, group=group)
        polynomial = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        X = torch.addmm(X, polynomial, X, beta=a)

    y = X if partition_dim == 1 else X.T
    return y.to(x.dtype).contiguous()
