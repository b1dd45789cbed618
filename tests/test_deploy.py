"""The files in deploy/ start the same torchrun on every machine; no cluster is needed to see that."""

import os
import subprocess
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[1] / "deploy"
SCRIPTS = ("slurm.sbatch", "two-hosts.sh")


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_bash(name):
    subprocess.run(["bash", "-n", DEPLOY / name], check=True)


def test_slurm_starts_a_torchrun_on_every_machine(tmp_path):
    stand_ins = {
        "scontrol": "printf 'first\\nsecond\\n'",
        "srun": 'shift; for SLURM_NODEID in 0 1; do export SLURM_NODEID; "$@"; done',
        "torchrun": 'printf "%s|" "$@"; echo',
    }
    for name, text in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    given = {"SLURM_JOB_NODELIST": "machines[1-2]", "SLURM_NNODES": "2", "SLURM_JOB_ID": "7"}
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PROCESSES": "3", "INTERFACE": "ib0"} | given
    command = ["bash", DEPLOY / "slurm.sbatch", "demo", "--topology", "two words"]
    printed = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.strip("|").split("|") for line in printed] == [
        ["--nnodes", "2", "--node-rank", rank, "--nproc-per-node", "3", "--master-addr", "first",
         "--master-port", "29500", "-m", "cascadice", "run", "demo", "--topology", "two words",
         "--interface", "ib0", "--out", "runs/slurm-7"]
        for rank in ("0", "1")
    ]  # fmt: skip


def test_kubernetes_names_fit_together():
    yaml = pytest.importorskip("yaml")
    service, policy, job = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    assert [part["kind"] for part in (service, policy, job)] == ["Service", "NetworkPolicy", "Job"]
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    flags = dict(part.removeprefix("--").split("=", 1) for part in container["args"] if "=" in part)
    labels = spec["template"]["metadata"]["labels"]

    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == int(flags["nnodes"])
    assert flags["node-rank"] == f"$({container['env'][0]['name']})"
    assert "job-completion-index" in container["env"][0]["valueFrom"]["fieldRef"]["fieldPath"]

    assert service["spec"]["clusterIP"] == "None"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert flags["master-addr"] == f"{job['metadata']['name']}-0.{pod['subdomain']}"
    assert int(flags["master-port"]) == service["spec"]["ports"][0]["port"]
    assert service["spec"]["selector"] == labels

    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": {"matchLabels": labels}}]}]
    assert flags["out"].startswith(container["volumeMounts"][0]["mountPath"])
    assert {volume["name"] for volume in pod["volumes"]} == {mount["name"] for mount in container["volumeMounts"]}
