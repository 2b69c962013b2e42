"""Commands and recipes that take a cluster; what needs none to be tested."""

from __future__ import annotations

import argparse

import pytest

from pkb_gym.cli import doctor_ray
from pkb_gym.cli.evaluator_choice import add_evaluator_options, judged_here, open_chosen
from pkb_gym.cli.program import make_parser
from pkb_gym.cluster import inspection
from pkb_gym.cluster.evaluator import RayEvaluator
from pkb_gym.cluster.inspection import ClusterReport, NodeReport
from pkb_gym.cluster.placement import LaneLimits
from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.training.evaluation.owner import start_evaluation
from pkb_gym.training.processes.host_group import HostGroup

SOUND = NodeReport(
    node="10.0.0.11",
    host="gpu1",
    cpus=96,
    gpus=8,
    python="3.11.7",
    pkb_gym="0.1",
    torch="2.13",
    compiler=True,
    nvcc=True,
    sandbox=True,
    gpu_names=("NVIDIA H100",) * 8,
)


def test_an_evaluator_is_chosen_by_its_address():
    parser = argparse.ArgumentParser()
    add_evaluator_options(parser)
    args = parser.parse_args(["--evaluator", "ray?exclusive_most=2"])
    assert not judged_here(args)
    chosen = open_chosen(args, None, b"key")
    assert repr(chosen._evaluator) == "RayEvaluator('ray?exclusive_most=2')"
    chosen.close()
    with pytest.raises(ConfigError, match="no pool setting 'gangs'"):
        open_chosen(parser.parse_args(["--evaluator", "ray?gangs=2"]), None, None)
    with pytest.raises(SystemExit):
        parser.parse_args(["--evaluator", "ray", "--service", "http://node:1"])


@pytest.mark.parametrize("command", [["run", "--agent", "reference"], ["eval", "AllReduce", "-"]])
def test_commands_that_evaluate_take_an_address(command):
    args = make_parser().parse_args([*command, "--evaluator", "ray"])
    assert args.evaluator == "ray" and not judged_here(args)


def test_recipes_take_a_cluster(monkeypatch):
    schedule = start_evaluation("ray", HostGroup(), url="ray?exclusive_most=2", deadline_s=5.0)
    assert isinstance(schedule.evaluator, RayEvaluator) and schedule.evaluator.address == "ray?exclusive_most=2"
    assert not schedule.takes_turns, "evaluations disturb no rank"
    schedule.close()
    assert start_evaluation("ray", HostGroup()).evaluator.address == "ray"
    with pytest.raises(ConfigError, match="takes no evaluation GPUs"):
        start_evaluation("ray", HostGroup(), gpus=["0"])


@pytest.fixture
def findings(monkeypatch):
    """What doctor makes of a cluster of these nodes: finding by name."""

    def examine(*nodes: NodeReport) -> dict[str, doctor_ray.Diagnosis]:
        report = ClusterReport(ray="2.60.0", nodes=nodes)
        monkeypatch.setattr(inspection, "inspect_cluster", lambda _: report)
        monkeypatch.setattr(inspection, "limits_at", lambda *_: {8: LaneLimits(1, 3)})
        return {finding.name: finding for finding in doctor_ray.examine_cluster("ray")}

    return examine


def test_doctor_finds_a_sound_cluster(findings):
    found = findings(SOUND, SOUND.model_copy(update={"node": "10.0.0.12"}))
    assert all(finding.state == "ok" for finding in found.values())
    assert found["Ray cluster"].detail == "2 nodes, 192 CPUs, 16 GPUs"
    assert found["node 10.0.0.12"].detail == "96 CPUs, 8 GPUs NVIDIA H100; compilers and sandbox"
    assert found["gangs on cuda"].detail == "at most, of 8 ranks: 1 shared, 3 exclusive"


@pytest.mark.parametrize(
    ("changes", "name", "state", "words"),
    [
        ({"torch": "2.12"}, "versions", "missing", "torch 2.12 on 1 nodes"),
        ({"fault": "no module pkb_gym"}, "node 10.0.0.12", "missing", "no module pkb_gym"),
        ({"nvcc": False}, "node 10.0.0.12", "limited", "no nvcc"),
        ({"compiler": False}, "node 10.0.0.12", "limited", "no g++"),
        ({"sandbox": False}, "node 10.0.0.12", "limited", "no sandbox"),
    ],
)
def test_doctor_names_faults_and_their_places(findings, changes, name, state, words):
    found = findings(SOUND, SOUND.model_copy(update={"node": "10.0.0.12", **changes}))
    assert found[name].state == state and words in found[name].detail and found[name].remedy
    assert found["node 10.0.0.11"].state == "ok"


def test_doctor_reports_a_missing_cluster(monkeypatch):
    def refuse(_: str) -> ClusterReport:
        raise InfrastructureError("no Ray cluster can be reached (here)")

    monkeypatch.setattr(inspection, "inspect_cluster", refuse)
    (finding,) = doctor_ray.examine_cluster("ray")
    assert finding.state == "missing" and "ray start --head" in finding.remedy
