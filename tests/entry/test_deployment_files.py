"""The files for Kubernetes and Slurm in docs/distributed.md: they are parsed, and their commands are understood."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.entry import parallel, roles

PAGE = (Path(__file__).parents[2] / "docs" / "distributed.md").read_text()
JOBS = re.findall(r"^```yaml\n(apiVersion.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
SCRIPTS = re.findall(r"^```bash\n(#!/bin/bash.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
JOB_KEYS = {"entrypoint", "backoffLimit", "shutdownAfterJobFinishes", "rayClusterSpec"}
CLUSTER_KEYS = {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
GROUP_KEYS = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
SBATCH = {"job-name", "nodes", "ntasks-per-node", "cpus-per-task", "mem", "time", "requeue"}
SLURM = {
    "SLURM_JOB_NODELIST": "node[1-4]",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_CPUS_PER_TASK": "8",
    "SLURM_NTASKS": "32",
}
STAND_INS = {
    "lightning-ding": 'echo "$(printf "%s|" "$@")" >> $CALLS',  # in one piece, because several run at a time
    "scontrol": 'test "$*" = "show hostnames node[1-4]" && printf "node%d\\n" 1 2 3 4',
    "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
    "openssl": "echo 0123456789abcdef0123456789abcdef",
    "ray": 'echo "$@" > $CALLS.ray; while [ "$1" != -- ]; do shift; done; shift; exec "$@"',
}
"""Programs that a script calls, each as a line of shell."""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file in which the stand-in of ``lightning-ding`` writes the arguments of each call."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, line in STAND_INS.items():
        (programs / name).write_text(f"#!/bin/bash\n{line}\n")
        (programs / name).chmod(0o700)
    (tmp_path / "run.yaml").write_text("main: {policy: {type: dqn}}")
    for name, value in {**SLURM, "PATH": f"{programs}:/usr/bin:/bin", "CALLS": str(tmp_path / "calls")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_SUBMIT_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "calls"


def calls_of(command: list[str], calls: Path) -> list[list[str]]:
    """Return the arguments of each call of ``lightning-ding`` by a command, sorted."""
    calls.unlink(missing_ok=True)
    subprocess.run(command, check=True, timeout=60)
    return sorted(line.split("|")[:-1] for line in calls.read_text().splitlines())


def parsed(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[ParallelConfig, bool]:
    """Return the config that ``lightning-ding parallel`` gets from arguments, and whether it resumes."""
    found: list[Any] = []
    monkeypatch.setattr(parallel, "parallel_pipeline", lambda cfg, resume: found.append((cfg, resume)))
    parallel.main(arguments)
    ((cfg, resumes),) = found
    return cfg, resumes


def test_job_of_kuberay_has_the_parts_of_one() -> None:
    (job,) = map(yaml.safe_load, JOBS)

    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert job["spec"].keys() == JOB_KEYS
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster.keys() == CLUSTER_KEYS
    (workers,) = cluster["workerGroupSpecs"]
    assert workers.keys() == GROUP_KEYS
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
    pods = [group["template"]["spec"] for group in (cluster["headGroupSpec"], workers)]
    containers = [container for pod in pods for container in pod["containers"]]
    assert len({container["image"] for container in containers}) == 1
    for pod, container in zip(pods, containers, strict=True):
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts.keys() == {volume["name"] for volume in pod["volumes"]}
        assert mounts["runs"] == "/runs"


@pytest.mark.parametrize("resumes", [False, True])
def test_entrypoint_of_the_job_starts_or_resumes_the_run(
    resumes: bool, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = map(yaml.safe_load, JOBS)
    folder = calls.parent
    command = shlex.split(job["spec"]["entrypoint"].replace("/runs/", f"{folder}/"))
    if resumes:
        (folder / "dqn" / "coordinator").mkdir(parents=True)
        (folder / "dqn" / "coordinator" / "state.json").touch()

    (arguments,) = calls_of(command, calls)

    cfg, is_resumed = parsed(arguments, monkeypatch)
    assert is_resumed == resumes
    assert cfg.main.exp_name == str(folder / "dqn")
    assert (cfg.system.transport, cfg.system.ray_address, cfg.system.collector.num) == ("ray", "auto", "auto")


def test_scripts_for_slurm_have_its_options_and_no_mistake_of_syntax() -> None:
    assert len(SCRIPTS) == 2
    for script in SCRIPTS:
        options = re.findall(r"^#SBATCH --([\w-]+)(?:=\S+)?$", script, flags=re.MULTILINE)
        assert len(options) == script.count("#SBATCH")
        assert set(options) <= SBATCH
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize("resumes", [False, True])
def test_script_for_ray_on_slurm_starts_or_resumes_the_run(
    resumes: bool, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = calls.parent / "runs" / "dqn"
    if resumes:
        (folder / "coordinator").mkdir(parents=True)
        (folder / "coordinator" / "state.json").touch()

    (arguments,) = calls_of(["bash", "-c", SCRIPTS[0]], calls)

    ray = calls.with_suffix(".ray").read_text()
    assert ray.startswith("symmetric-run --address node1:6379 --min-nodes 4 --num-cpus 8 -- lightning-ding parallel")
    cfg, is_resumed = parsed(arguments, monkeypatch)
    assert is_resumed == resumes
    assert cfg.main.exp_name == str(folder)
    assert (cfg.system.transport, cfg.system.ray_address, cfg.system.collector.num) == ("ray", "auto", "auto")


def test_script_without_ray_starts_every_role_with_one_token(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def be(role: str, cfg: ParallelConfig, options: Any) -> int:
        started[role] = (cfg.main.exp_name, options.host)
        return 0

    started: dict[str, Any] = {}
    folder = calls.parent / "runs" / "dqn"

    found = calls_of(["bash", "-c", SCRIPTS[1] + "\nwait"], calls)

    monkeypatch.setattr(roles, "_run", be)
    for arguments in found:
        with pytest.raises(SystemExit):
            roles.main(arguments)
    here = str(folder)
    assert started == {"collector": (here, None), "coordinator": (here, "0.0.0.0"), "learner": (here, None)}
    token = folder / "token"
    assert token.stat().st_mode & 0o777 == 0o600
    assert len(token.read_text().strip()) >= 16
