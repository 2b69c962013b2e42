"""The congestion of a rank's GPU, with a library that notes what is enqueued."""

from types import SimpleNamespace

import pytest
import torch

from pkb_gym.engine.rankside.congestion import READERS, GpuCongestion
from pkb_gym.engine.wire import abi


class Enqueued:
    """A function of the compiled library."""

    def __init__(self, status: int = 0) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.status = status

    def __call__(self, *given: object) -> int:
        self.calls.append(given)
        return self.status


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    return SimpleNamespace(pkb_enqueue_congestion=Enqueued(), pkb_enqueue_end_of_congestion=Enqueued())


def test_readers_take_turns(library: SimpleNamespace) -> None:
    congestion = GpuCongestion(library, 7, SimpleNamespace(control=4096))
    for _ in range(len(READERS) + 1):
        congestion.begin(1000)
        congestion.end()
    kernels = [(readers.threads, readers.is_uneven) for readers in (*READERS, READERS[0])]
    begun = [(7, 4096, abi.HOST_CONTROL_BYTES, 132, *kernel, 1000) for kernel in kernels]
    assert library.pkb_enqueue_congestion.calls == begun
    assert library.pkb_enqueue_end_of_congestion.calls == [(7,)] * (len(READERS) + 1)


def test_nothing_is_enqueued_for_a_call_without_congestion(library: SimpleNamespace) -> None:
    congestion = GpuCongestion(library, 7, SimpleNamespace(control=4096))
    congestion.begin(0)
    congestion.end()
    assert not library.pkb_enqueue_congestion.calls and not library.pkb_enqueue_end_of_congestion.calls


def test_a_congestion_that_cannot_be_enqueued_is_an_error(library: SimpleNamespace) -> None:
    library.pkb_enqueue_congestion.status = 2
    congestion = GpuCongestion(library, 7, SimpleNamespace(control=4096))
    with pytest.raises(RuntimeError, match="CUDA error 2"):
        congestion.begin(1000)
