"""What every test shares: nothing that it started may outlive it."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.garbage import pause_collections, resume_collections
from tests.leaks import Lasting, leftovers, snapshot
from tests.whole_tables import examples

if TYPE_CHECKING:
    from pkb_gym.engine.evaluators.local import LocalEvaluator

PR_SET_CHILD_SUBREAPER = 36


def pytest_configure(config: pytest.Config) -> None:
    os.environ["PKB_EVALUATOR"] = "fresh"  # a background evaluator would outlive the test
    # Tests tell nobody of themselves: trainers would from a thread, which crashed where others set variables meanwhile.
    os.environ["DO_NOT_TRACK"] = "1"
    os.environ.pop("COLUMNS", None)  # test processes of xdist have one, and commands print as wide as it says
    # Orphans become children of this process instead of vanishing to init, so that they are found.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        if not _runs_on_gpus(config):
            _use_temporary_folder(Path(config.option.basetemp).parent / worker / "tmp")
    elif config.getoption("numprocesses", None):
        return  # it hands tests to other processes, and needs nothing of what they import
    pause_collections()
    import torch
    from hypothesis import settings

    settings.register_profile("project", deadline=None, derandomize=True, max_examples=examples(50))
    settings.load_profile("project")
    torch.set_num_threads(1)  # threads of test processes side by side wait for each other, at full load


def _runs_on_gpus(config: pytest.Config) -> bool:
    """Whether tests run on the machine's GPUs: test processes side by side then take turns at measuring."""
    return shutil.which("nvidia-smi") is not None and "not gpu" not in config.getoption("markexpr")


def _use_temporary_folder(folder: Path) -> None:
    """Locks that evaluators of one machine share lie there: test processes side by side do not wait for each other."""
    folder.mkdir(parents=True)
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None  # which was looked up before


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # A file goes to one test process as a whole: with the long ones first, all processes end at about the same time.
    slow = Counter(item.path for item in items if "slow" in item.keywords)
    items.sort(key=lambda item: (-slow[item.path], item.path.parts))
    if shutil.which("nvidia-smi") is None:
        no_gpu = pytest.mark.skip(reason="needs a CUDA GPU, and nvidia-smi is not on this machine")
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(no_gpu)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    # Test processes side by side begin with different folders: most files are compiled, and their assertions rewritten,
    # by one of them, and read by the others. The order of tests is none of this.
    report = yield
    if collector.path == Path(__file__).parent and report.passed:
        number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        of = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        first = number * len(report.result) // of
        report.result = [*report.result[first:], *report.result[:first]]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        resume_collections()


@pytest.fixture(scope="session")
def lasting() -> Lasting:
    """Where session-scoped fixtures name the processes and files that may outlive a test.

    An evaluator that starts its processes on first use registers a function: `lasting.keep_process(evaluator.pids)`.
    """
    return Lasting()


@pytest.fixture(scope="session")
def compiled_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all tests keep what they compiled: compilers take seconds for each kernel.

    Test processes that run side by side (pytest-xdist) share it; tests of doors do, where PKB_TEST_COMPILED names it.
    """
    if kept := os.environ.get("PKB_TEST_COMPILED"):
        return Path(kept)
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "compiled"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session", autouse=True)
def commands_share_caches(compiled_before: Path) -> Iterator[None]:
    """Programs that tests start find what the tests have compiled, and leave the user's caches alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PKB_CACHE_DIR", str(compiled_before))
        patch.setenv("PKB_TEST_TOKEN", "a secret")  # no candidate sees it
        yield


@pytest.fixture(scope="session")
def local_evaluator(compiled_before: Path, lasting: Lasting) -> Iterator[LocalEvaluator]:
    """The evaluator of all tests that really compile and run: its processes take seconds to start."""
    from pkb_gym.engine.evaluators.local import LocalEvaluator

    before = {child.pid for child in psutil.Process().children()}
    # Tests need many kinds of gangs, and of each one at a time: contexts of a larger stock would be made for nothing.
    with LocalEvaluator(key=b"tests", cache_dir=compiled_before, standby_gangs=2) as evaluator:
        evaluator.warm_up(2)
        lasting.keep_process(lambda: [each._process.pid for each in evaluator._races._pool._zygotes.values()])
        for child in psutil.Process().children():
            if child.pid not in before:
                lasting.keep_process(child.pid)
        yield evaluator


@pytest.fixture
def all_interrupted_calls() -> None:
    """For tests of missing synchronisation: checks interrupt and preempt ranks in as many calls as for users."""


@pytest.fixture(autouse=True)
def few_interrupted_calls(request: pytest.FixtureRequest) -> Iterator[None]:
    """Checks of `local_evaluator` interrupt and preempt ranks in the fewest calls: others take a third of a check."""
    names = request.fixturenames
    if "local_evaluator" not in names or "all_interrupted_calls" in names:
        yield
        return
    from pkb_gym.engine.stages import check

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "MAX_INTERRUPTED", 1)
        patch.setattr(check, "MAX_PREEMPTED", 1)
        yield


@pytest.fixture(scope="session")
def shared_service(local_evaluator: LocalEvaluator) -> Iterator[tuple[str, str]]:
    """Address and token of a service over `local_evaluator`: one that a command starts takes seconds."""
    from tests.serve.fake_owner import TOKEN
    from tests.serve.forwarding import Borrowed, serving

    with serving(lambda: Borrowed(local_evaluator), TOKEN) as server:
        yield server.url, TOKEN


@pytest.fixture(scope="session")
def emulator_is_built(compiled_before: Path) -> None:
    """The compiled emulator for tests that evaluate on emulated GPUs; those of emulator/ find it in the same folder."""
    from pkb_gym.engine.compile.cache import CompileCache
    from pkb_gym.engine.compile.emulator import build_key
    from pkb_gym.engine.compile.nvcc import nvcc_available
    from pkb_gym.engine.records.artifact import Artifact
    from rank_emulator import build

    if nvcc_available():
        binary = build(compiled_before).read_bytes()
        cache = CompileCache.in_folder(compiled_before)
        cache.put(build_key(), Artifact(ok=True, log="", duration_s=0.0, binary=binary))


@pytest.fixture(scope="session", autouse=True)
def reference_ranks(lasting: Lasting) -> Iterator[None]:
    """Ranks that call references, started when they are first needed; tests of problems and of pages share them."""
    from tests.problems import support

    lasting.keep_process(support.lasting_pids)
    yield
    support.end_lasting_processes()


@pytest.fixture(autouse=True)
def leaves_nothing_behind(lasting: Lasting) -> Iterator[None]:
    """Fail a test that leaves processes or files in /dev/shm behind."""
    before = snapshot()
    yield
    if found := leftovers(before, lasting):
        pytest.fail("left behind: " + "; ".join(found), pytrace=False)
