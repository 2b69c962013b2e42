"""The files of deploy/ray: against schemas, and the Slurm script in a dry run with stand-ins for srun and scontrol."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from pkb_gym.cluster.address import ClusterAddress

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy" / "ray"


@pytest.fixture(scope="module")
def validate():
    return pytest.importorskip("jsonschema").validate


def read(name: str) -> dict:
    return yaml.safe_load((DEPLOY / name).read_text())


def pinned_ray() -> str:
    return re.search(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]


def test_the_cluster_file_meets_ray_s_own_schema(validate):
    ray = pytest.importorskip("ray")
    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    cluster = read("cluster.yaml")
    validate(cluster, schema)
    assert cluster["max_workers"] == len(cluster["provider"]["worker_ips"])
    with pytest.raises(Exception, match="head_starts"):
        validate(cluster | {"head_starts": []}, schema)


def test_the_kuberay_manifest_meets_the_schema_of_its_resource(validate):
    schema = json.loads((Path(__file__).parent / "raycluster.schema.json").read_text())
    manifest = read("kuberay.yaml")
    validate(manifest, schema)
    broken = copy.deepcopy(manifest)
    broken["spec"]["workerGroupSpecs"][0]["maxReplica"] = 3
    with pytest.raises(Exception, match="maxReplica"):
        validate(broken, schema)


def test_the_kuberay_manifest_holds_together():
    spec = read("kuberay.yaml")["spec"]
    assert spec["rayVersion"] == pinned_ray()
    for group in spec["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
        assert mounted == {volume["name"] for volume in pod.get("volumes", ())}
        assert container["securityContext"]["procMount"] == "Unmasked" and pod["hostUsers"] is False
    gpus = [group for group in spec["workerGroupSpecs"] if group["groupName"] == "gpu"]
    limits = gpus[0]["template"]["spec"]["containers"][0]["resources"]["limits"]
    text = (DEPLOY / "kuberay.yaml").read_text()
    settings = ClusterAddress.parse(re.search(r'RayEvaluator\("(.+)"\)', text)[1]).settings
    assert settings.gpus_per_node == int(limits["nvidia.com/gpu"])
    assert settings.shared_most + settings.exclusive_most == gpus[0]["maxReplicas"]


STANDINS = {
    "scontrol": 'printf "node%s\\n" 1 2 3',
    # srun runs the command here; what would stay until the end of the job ends when its file goes.
    "srun": """
node=""; while [[ $1 == --* ]]; do [[ $1 == --nodelist=* ]] && node=${1#*=}; shift; done
echo "$node $*" >> "$CALLS"
exec "$@"
""",
    "ray": 'case " $* " in *" --block "*) exec sleep 300;; *) [[ -z "${NO_HEAD:-}" ]];; esac',
}


@pytest.fixture
def slurm(tmp_path):
    """Runs the script as a job of three nodes; exit status and what was called on which node."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in STANDINS.items():
        path = folder / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)
    calls = tmp_path / "calls"

    def run(*command: str, **variables: str) -> tuple[int, list[str]]:
        environment = {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "CALLS": str(calls),
            "USER": "me",
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "node[1-3]",
            "SLURM_GPUS_PER_NODE": "8",
            **variables,
        }
        ran = subprocess.run(
            [str(DEPLOY / "slurm.sh"), *command], env=environment, capture_output=True, timeout=60, check=False
        )
        return ran.returncode, calls.read_text().splitlines() if calls.exists() else []

    return run


def test_the_slurm_script_starts_a_head_and_workers_and_runs_the_command(slurm, tmp_path):
    found = tmp_path / "found"
    variables = "$RAY_ADDRESS $RAY_USAGE_STATS_ENABLED $RAY_AUTH_MODE $RAY_AUTH_TOKEN"
    # The script ends its workers with the command: so the command waits until all of them have been started.
    command = f'until (($(grep -c "num-gpus=[0-9]" "$CALLS") == 3)); do :; done; echo "{variables}" > {found}; exit 5'
    status, calls = slurm("bash", "-c", command)
    assert status == 5, "the status is that of the command"
    assert re.fullmatch(r"node1:6379 0 token [0-9a-f]{64}\n", found.read_text())
    starts = {call for call in calls if "--block" in call}
    assert starts == {
        "node1 ray start --head --port=6379 --num-gpus=8 --block",
        "node2 ray start --address=node1:6379 --num-gpus=8 --block",
        "node3 ray start --address=node1:6379 --num-gpus=8 --block",
    }
    assert calls[-1].startswith("node1 bash") or any(call.startswith("node1 bash") for call in calls)


def test_the_slurm_script_names_a_missing_setting(slurm):
    assert slurm() == (2, [])
    status, calls = slurm("true", NO_HEAD="1", PKB_RAY_START_S="1")
    assert status == 3 and not any("--address=node1" in call and "--block" in call for call in calls)
