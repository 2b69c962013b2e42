"""GaussianSplatting against the projection of one Gaussian into one camera at a time, in float64."""

import math

import numpy as np
import pytest
import torch

from pkb_gym.engine.errors import SizeError
from pkb_gym.engine.problem.axes import Axes
from tests.problems.support import Run, find_problem, make_axes, run_reference

NAME = "GaussianSplatting"
NAMES = (
    "camera_ids",
    "gaussian_ids",
    "radii",
    "means2d",
    "depths",
    "conics",
    "opacities_out",
    "colors_out",
)


def seen(mean: np.ndarray, quat: np.ndarray, scale: np.ndarray, view: np.ndarray, K: np.ndarray, ax: Axes):
    """(radii, means2d, depth, conic) of one Gaussian in one camera, or None."""
    m = view[:3, :3] @ mean + view[:3, 3]
    if not ax["near_plane"] < m[2] < ax["far_plane"]:
        return None
    w, v = quat[0] / np.linalg.norm(quat), quat[1:] / np.linalg.norm(quat)
    columns = [2 * v[i] * v + (w * w - v @ v) * np.eye(3)[i] + 2 * w * np.cross(v, np.eye(3)[i]) for i in range(3)]
    axes = np.stack(columns, axis=1) * scale  # the rotated axes, as columns
    local = view[:3, :3] @ axes
    (fx, _, cx), (_, fy, cy) = K[:2]
    tan_x, tan_y = 0.5 * ax.width / fx, 0.5 * ax.height / fy
    x = m[2] * min(max(m[0] / m[2], -(cx / fx + 0.3 * tan_x)), (ax.width - cx) / fx + 0.3 * tan_x)
    y = m[2] * min(max(m[1] / m[2], -(cy / fy + 0.3 * tan_y)), (ax.height - cy) / fy + 0.3 * tan_y)
    J = np.array([[fx / m[2], 0, -fx * x / m[2] ** 2], [0, fy / m[2], -fy * y / m[2] ** 2]])
    cov = J @ local @ local.T @ J.T + ax["eps2d"] * np.eye(2)
    place = K[:2] @ m / m[2]
    radii = [math.ceil(3.33 * math.sqrt(cov[i, i])) for i in range(2)]
    if any(place[i] + radii[i] <= 0 or place[i] - radii[i] >= (ax.width, ax.height)[i] for i in range(2)):
        return None
    inverse = np.linalg.inv(cov)
    return radii, place.tolist(), m[2], [inverse[0, 0], inverse[0, 1], inverse[1, 1]]


def expected(run: Run, rank: int) -> dict[str, torch.Tensor]:
    rows: dict[str, list] = {name: [] for name in NAMES}
    ax, mine = run.axes[rank], run.args[rank]
    offset = sum(other.n for other in run.axes[:rank])  # the receiver's
    for source in run.args:
        parts = [source[name].double().numpy() for name in ("means", "quats", "scales")]
        for c in range(ax.C):
            view, K = mine["viewmats"][c].double().numpy(), mine["Ks"][c].double().numpy()
            for g in range(len(parts[0])):
                if (found := seen(*(part[g] for part in parts), view, K, ax)) is None:
                    continue
                carried = source["opacities"][g].item(), source["colors"][g].tolist()
                for name, value in zip(NAMES, (c, g + offset, *found, *carried), strict=True):
                    rows[name].append(value)
    truth = run.outputs[rank]
    return {name: torch.tensor(values).to(truth[name].dtype) for name, values in rows.items()}


@pytest.mark.parametrize(
    ("protocol", "trial", "world_size"),
    [("robust", 0, 4), ("robust", 1, 2), ("robust", 2, 2), ("robust", 3, 1), ("published", 0, 2), ("published", 1, 1)],
)
def test_trials_match_pair_by_pair(protocol: str, trial: int, world_size: int) -> None:
    run = run_reference(NAME, world_size=world_size, trial=trial, protocol=protocol)
    for rank, truth in enumerate(run.outputs):
        for name, want in expected(run, rank).items():
            assert want.shape == truth[name].shape, name
            if protocol == "robust":
                assert run.wrong(rank, name, want).sum() == 0, name
            elif name != "radii":  # published Gaussians may lie where rounding decides
                torch.testing.assert_close(truth[name], want, rtol=1e-2, atol=1e-2)


def test_a_good_share_of_pairs_is_seen_and_unequally() -> None:
    shares = []
    for trial in (0, 2):
        run = run_reference(NAME, world_size=4, trial=trial)
        shares += [len(outputs["depths"]) / ax.pairs for outputs, ax in zip(run.outputs, run.axes, strict=True)]
    assert all(0.2 < share < 0.95 for share in shares)
    assert 0.3 < sum(shares) / len(shares) < 0.75
    assert max(shares) - min(shares) > 0.1


def test_a_rank_may_see_nothing() -> None:
    run = run_reference(NAME, world_size=2, trial=0)
    args = [dict(part) for part in run.args]
    args[1]["viewmats"] = args[1]["viewmats"].clone()
    args[1]["viewmats"][:, 2, 3] -= 1e4  # all lies behind rank 1's cameras
    got = run_reference(NAME, world_size=2, trial=0, args=args)
    assert len(got.outputs[1]["camera_ids"]) == 0
    assert torch.equal(got.outputs[0]["means2d"], run.outputs[0]["means2d"])


@pytest.mark.parametrize(
    ("leaf", "steps"),
    [("means2d", 2.0**7), ("depths", 2.0**13), ("conics", 2.0**13)],  # in 16 bits, of hundreds of pixels and of 4
)
def test_numbers_of_16_bits_are_too_coarse(leaf: str, steps: float) -> None:
    run = run_reference(NAME, timed=True)
    run.assert_passes_own_checks()
    for rank, outputs in enumerate(run.outputs):
        assert run.wrong(rank, leaf, (outputs[leaf] * steps).round() / steps).any()


def test_cost_trials_and_sizes() -> None:
    problem = find_problem(NAME)
    ax = make_axes(problem, size="published", protocol="published")[0]
    least = problem.cost(ax)
    assert least.vector_flops == pytest.approx(1.07e6, rel=1e-2)
    assert least.memory_bytes == 2 * 28_722 + 4096 * (16 + 8 + 40)
    assert least.link_in_bytes == least.link_out_bytes == 3 * 1024 * 40
    assert problem.cost(problem.axes(size="published", world_size=4, rank=0)).link_in_bytes == 3 * 1024 * 10
    axes = make_axes(problem, trial=1)
    assert len({ax.n for ax in axes}) > 1
    assert axes[0].C == 3
    assert make_axes(problem, trial=1, timed=True)[0].n == 64
    with pytest.raises(SizeError, match="needs a Gaussian and a camera"):
        problem.axes(size={"N": 0}, world_size=4, rank=0)
