# expect: passed
# until: time
# A module that changes what programs can change for themselves: warnings, dtypes, collections, signals, streams, modes.
from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import gc
import io
import logging
import signal
import sys
import tempfile
import typing
import warnings
from multiprocessing.pool import ThreadPool
from pathlib import Path

import torch
import torch.distributed as dist

warnings.simplefilter("error")
logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
torch.set_flush_denormal(True)
torch.set_grad_enabled(True)
torch.manual_seed(3)
gc.set_threshold(500)
sys.setrecursionlimit(5000)
sys.setswitchinterval(1e-4)
faulthandler.enable()
signal.signal(signal.SIGALRM, lambda *_: None)

folder = tempfile.mkdtemp()
Path(folder, "my_helpers.py").write_text("def pieces_of(tensor, count):\n    yield from tensor.chunk(count)\n")
sys.path.insert(0, folder)
import my_helpers  # noqa: E402

pool = ThreadPool(2)


@dataclasses.dataclass(slots=True, frozen=True)
class Plan:
    count: int = 3
    names: tuple[str, ...] = dataclasses.field(default_factory=tuple)

    def pieces(self, tensor: torch.Tensor) -> typing.Iterator[torch.Tensor]:
        yield from my_helpers.pieces_of(tensor, self.count)


plan, hints = Plan(), typing.get_type_hints(Plan)


def solution(tensor: torch.Tensor) -> torch.Tensor:
    gc.enable()
    signal.setitimer(signal.ITIMER_REAL, 0.0001)
    out = torch.cat(pool.map(torch.clone, list(plan.pieces(tensor))))
    with contextlib.redirect_stdout(io.StringIO()):
        print("nothing")
    for work in [dist.all_reduce(piece, async_op=True) for piece in plan.pieces(out)]:
        work.wait()
    return out.mul_(torch.nn.Parameter(torch.ones(1)).to(tensor.dtype).detach())


logging.getLogger(__name__).debug("loaded")
