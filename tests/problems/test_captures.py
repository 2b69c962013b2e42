"""What declarations say of captures as CUDA graphs, against the code of their references."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pkb_gym.problems.catalogue import catalogue
from tests.problems.host_waits import META, fake_ranks, wait_of, wait_of_reference
from tests.problems.support import forget_state
from tests.problems.wrong_solutions import reference_of
from tests.whole_tables import sampled

pytestmark = pytest.mark.filterwarnings("ignore:`torch.distributed:FutureWarning")  # torch 2.13 renames collectives

WITHOUT_HOST_WAIT = {"SphericalConvolution"}
"""Not captured for another reason."""


@pytest.fixture(autouse=True, scope="module")
def process_group() -> Iterator[None]:
    with fake_ranks(2):
        yield
    forget_state()  # ranks of later tests are forked of this process


@pytest.mark.parametrize("problem", sampled(catalogue(), 4, 1), ids=lambda problem: problem.name)
def test_a_reference_waits_for_its_device_where_the_declaration_says_so(problem):
    found = wait_of_reference(problem, reference_of(problem), problem.axes(size="published", world_size=2, rank=0))
    if problem.name in WITHOUT_HOST_WAIT:
        assert found is None and problem.no_capture_because
    else:
        assert bool(found) == bool(problem.no_capture_because), found or problem.no_capture_because


def gathered_objects(x: torch.Tensor) -> None:
    dist.all_gather_object([None] * 2, len(x))


WAITS: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "branch": lambda x: 1 if x.sum() > 0 else 2,
    "int": lambda x: int(x.sum()),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "nonzero": lambda x: x.nonzero(),
    "where of one argument": lambda x: torch.where(x > 0),
    "boolean index": lambda x: x[x > 0],
    "unique": lambda x: x.unique(),
    "bincount": lambda x: x.long().bincount(),
    "repeats without a size": lambda x: x.repeat_interleave(x.long()),
    "list of indices": lambda x: x[[0, 2]],
    "list of indices in a tuple": lambda x: x[None, [0, 2]],
    "tensor": lambda x: torch.tensor([1.0], device=x.device),
    "as_tensor": lambda x: torch.as_tensor(1.0, device=x.device),
    "new_tensor": lambda x: x.new_tensor(1.0),
    "objects": gathered_objects,
}
NO_WAITS: dict[str, Callable[[torch.Tensor], Any]] = {
    "full": lambda x: x.new_full((), 1.0),
    "where": lambda x: torch.where(x.sum() > 0, x, 1.0),
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.0),
    "boolean index of an assignment": lambda x: x.__setitem__(x > 0, 0.0),
    "slices": lambda x: x[1:3, None],
    "index on the device": lambda x: x[torch.arange(2, device=x.device)],
    "static nonzero": lambda x: x.nonzero_static(size=2),
    "repeats of a size": lambda x: x.repeat_interleave(x.long(), output_size=5),
    "tensor on the host": lambda x: torch.tensor([1.0]).tolist(),
    "collective": lambda x: dist.all_reduce(x),
}


@pytest.mark.parametrize("name", WAITS)
def test_what_waits_is_found(name):
    assert wait_of(WAITS[name], torch.empty(4, device=META))


@pytest.mark.parametrize("name", NO_WAITS)
def test_what_does_not_wait_is_not(name):
    assert wait_of(NO_WAITS[name], torch.empty(4, device=META)) is None
