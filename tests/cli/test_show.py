"""`pkb show`."""

import json

import pytest

from pkb_gym.cli.shapes import shape_texts
from pkb_gym.engine.hardware.calibrate import limits_of
from pkb_gym.engine.hardware.peaks import HardwareSpec, Peaks
from pkb_gym.engine.hardware.tiers import MemoryTier
from pkb_gym.engine.problem.signature import cpp_signature
from pkb_gym.problems.catalogue import catalogue, find_problem, reference_source
from tests.whole_tables import sampled

RATES = dict.fromkeys(("bfloat16", "float16", "float32", "float64"), 1000000000.0)
PEAKS = Peaks(RATES, RATES, (MemoryTier("DRAM", None, 1e10),), 1e9, 1e-6, "made up")


@pytest.fixture(autouse=True)
def round_machine(monkeypatch):
    """One Gflop/s and one GB/s per core, without measuring anything."""
    machine = HardwareSpec(name="round", device="cpu", peaks=PEAKS, limits=limits_of(PEAKS), cores=1, core=PEAKS)
    monkeypatch.setattr("pkb_gym.cli.show.hardware_for", lambda device: machine)


def test_shows_task_signature_shapes_and_bound(pkb):
    ran = pkb("show", "AllReduce", "--world-size", 1, "--device", "cpu")
    assert (ran.status, ran.err) == (0, "")
    assert reference_source(find_problem("AllReduce")).splitlines()[-1] in ran.out
    assert cpp_signature(find_problem("AllReduce")).splitlines()[1] in ran.out
    row = next(line for line in ran.out.splitlines() if line.startswith("tensor "))
    assert "(32, 48)" in row and "(1024, 1024)" in row and "(8192, 4096)" in row
    # 2 * 32 * 48 elements of 2 bytes at 10 GB/s
    assert "roofline: 0.614 us at the peaks (bound by memory)" in ran.out
    assert "lower bound: no kernel is faster than 0.614 us (by memory)" in ran.out
    assert "least work: A rank's sum depends on every element of the others" in ran.out
    assert "peaks: made up" in ran.out and "limits: made up, products of bytes x 4" in ran.out


def test_json_is_one_record(pkb):
    ran = pkb("show", "AllReduce", "--world-size", 2, "--size", "M=8,N=4", "--device", "cpu", "--json")
    shown = json.loads(ran.out)
    assert shown["config"]["size"] == {"M": 8, "N": 4} and shown["config"]["world_size"] == 2
    assert shown["shapes"]["as asked"] == {"tensor": "(8, 4)", "-> out": "(8, 4)"}
    assert [cost["link_in_bytes"] for cost in shown["cost"]] == [64, 64]
    # one core for two ranks: half a GB/s each
    assert shown["roofline"]["times"]["link_us"] == pytest.approx(64 / 0.5e9 * 1e6)
    assert [cost["link_in_bytes"] for cost in shown["least_work"]] == [16, 16], "4 bits of 16"
    bound = shown["roofline"]["lower_bound"]
    assert (bound["binds"], bound["times"]["link_us"]) == ("memory", 0), "nothing has to cross in one memory"
    assert bound["time_us"] <= shown["roofline"]["ceiling_us"]
    assert shown["cpp_signature"] == cpp_signature(find_problem("AllReduce"))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["HyenaCPP"], "Did you mean 'HyenaCP'?"),
        (["AllReduce", "--size", "huge"], "AllReduce: no size 'huge'"),
        (["AllReduce", "--size", "Q=1"], "AllReduce: no axis Q"),
        (["AllReduce", "--world-size", "3"], "AllReduce: world size must be one of (1, 2, 4, 8), got 3"),
        (["AllReduce", "--dtype", "int4"], "AllReduce: dtype must be one of"),
    ],
)
def test_questions_without_sense_are_wrong_usage(pkb, argv, words):
    ran = pkb("show", *argv, "--device", "cpu")
    assert (ran.status, ran.out) == (2, "")
    assert words in ran.err


def test_ranks_that_differ_are_listed():
    problem = find_problem("SampleSort")
    ranks = [problem.axes(size="tiny", world_size=4, rank=rank) for rank in range(4)]
    texts = shape_texts(problem, ranks)
    assert texts["local_shard"] == "(37,) | (0,) | (5,) | (64,)"
    assert texts["group"] == "all ranks"


@pytest.mark.parametrize("problem", sampled(catalogue(), 4, 3), ids=lambda problem: problem.name)
def test_every_problem_can_be_shown(problem, pkb):
    ran = pkb("show", problem.name, "--json", "--device", "cpu")
    assert ran.status == 0, ran.err
    shapes = json.loads(ran.out)["shapes"]["tiny"]
    assert {arg.name for arg in problem.args} <= set(shapes)
