"""`pkb show` and `pkb demo` on machines with and without GPUs."""

from __future__ import annotations

import json

import pytest

from pkb_gym.cli.demo import CONFIG
from tests.fake_gpus import pretend

H200 = ("NVIDIA H200",) * 4


def shown(pkb, *argv):
    ran = pkb("show", "AllReduce", *argv, "--json")
    assert ran.status == 0, ran.err
    return json.loads(ran.out)


def test_gpus_are_the_default_and_their_datasheet_the_ceiling(pkb, monkeypatch):
    pretend(monkeypatch, *H200)
    record = shown(pkb)
    assert (record["config"]["device"], record["config"]["world_size"], record["config"]["size"]) == (
        "cuda",
        4,
        "published",
    )
    # At 450 GB/s.
    assert record["roofline"]["times"]["link_us"] == pytest.approx(record["cost"][0]["link_in_bytes"] / 450e3)
    assert record["roofline"]["peaks_source"].startswith("datasheet NVIDIA H200")
    bound = record["roofline"]["lower_bound"]
    # Over NVLink and PCIe.
    assert bound["times"]["link_us"] == pytest.approx(record["least_work"][0]["link_in_bytes"] / 514e3)
    assert bound["limits_source"].endswith("at the highest clocks (1980 and 3201 MHz)")
    assert "18 links up on each GPU" in record["task"]


def test_ranks_may_share_gpus(pkb, monkeypatch):
    pretend(monkeypatch, *H200[:2])
    record = shown(pkb, "--world-size", "8", "--ranks-per-gpu", "4")
    assert (record["config"]["ranks_per_gpu"], record["config"]["until"]) == (4, "check")
    ran = pkb("show", "AllReduce", "--world-size", "8")
    assert ran.status == 2 and "Ranks may share GPUs until stage 'check': ranks_per_gpu=4" in " ".join(ran.err.split())


@pytest.mark.parametrize(
    ("names", "why"),
    [((), "no GPU; CUDA sources are only compiled"), (("NVIDIA Imaginary",) * 2, "no peaks are known")],
)
def test_without_peaks_the_work_is_shown_alone(pkb, monkeypatch, names, why):
    pretend(monkeypatch, *names)
    assert shown(pkb, "--device", "cuda")["roofline"] is None
    ran = pkb("show", "AllReduce", "--device", "cuda")
    assert (ran.status, ran.err) == (0, "")
    assert why in ran.out and "link_in_bytes" in ran.out
    assert "peak of a rank" not in ran.out and "comm.device()" in ran.out


def test_without_gpu_and_nvcc_cuda_is_wrong_usage(pkb, monkeypatch):
    pretend(monkeypatch, nvcc=False)
    ran = pkb("show", "AllReduce", "--device", "cuda")
    assert (ran.status, ran.out) == (2, "")
    assert "neither an NVIDIA GPU nor nvcc" in ran.err


def test_the_demo_stays_on_the_cpu():
    """Its kernels are C++, whatever the machine has."""
    assert CONFIG.device == "cpu"
