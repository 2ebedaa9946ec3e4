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
SBATCH = {"job-name", "nodes", "ntasks-per-node", "cpus-per-task", "mem", "time", "requeue", "exclusive"}
SLURM = {
    "SLURM_JOB_NODELIST": "node[1-4]",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_CPUS_PER_TASK": "8",
    "SLURM_NTASKS": "32",
}
STAND_INS = {
    "lightning-ding": 'echo "$(printf "%s|" "$@")" >> $CALLS; '  # in one piece, because several run at a time
    "code=0; [ -e $CALLS.$1 ] && read -r code < $CALLS.$1 && rm $CALLS.$1; exit $code",
    "scontrol": 'test "$*" = "show hostnames node[1-4]" && printf "node%d\\n" 1 2 3 4',
    "srun": 'echo "$@" > $CALLS.srun; while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
    "sleep": "exit 0",
    "openssl": "echo 0123456789abcdef0123456789abcdef",
    "ray": 'echo "$@" > $CALLS.ray; while [ "$1" != -- ]; do shift; done; shift; exec "$@"',
}
"""Programs that a script calls, each as a line of shell; a file names the exit code of the first call of a role."""


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


def roles_of(found: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ParallelConfig, Any]]:
    """Return role, config and options of calls of single roles."""
    started: list[tuple[str, ParallelConfig, Any]] = []
    monkeypatch.setattr(roles, "_run", lambda *about: started.append(about) or 0)  # type: ignore[func-returns-value]
    for arguments in found:
        with pytest.raises(SystemExit):
            roles.main(arguments)
    return started


def parsed(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[ParallelConfig, bool]:
    """Return the config that ``lightning-ding parallel`` gets from arguments, and whether it resumes."""
    found: list[Any] = []
    monkeypatch.setattr(parallel, "parallel_pipeline", lambda cfg, resume: found.append((cfg, resume)))
    monkeypatch.setattr(parallel, "last_line", lambda *_: "finished")
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
        (folder / "dqn" / "coordinator" / "run.db").touch()

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
        (folder / "coordinator" / "run.db").touch()

    (arguments,) = calls_of(["bash", "-c", SCRIPTS[0]], calls)

    ray = calls.with_suffix(".ray").read_text()
    assert ray.startswith("symmetric-run --address node1:6379 --min-nodes 4 --num-cpus 8 --object-store-memory")
    cfg, is_resumed = parsed(arguments, monkeypatch)
    assert is_resumed == resumes
    assert cfg.main.exp_name == str(folder)
    assert (cfg.system.transport, cfg.system.ray_address, cfg.system.collector.num) == ("ray", "auto", "auto")


def test_script_without_ray_starts_every_role_with_one_token(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = calls.parent / "runs" / "dqn"

    found = calls_of(["bash", "-c", SCRIPTS[1] + "\nwait"], calls)

    started = roles_of(found, monkeypatch)
    hosts = {role: (cfg.main.exp_name, options.host) for role, cfg, options in started}
    here = str(folder)
    assert hosts == {"collector": (here, None), "coordinator": (here, "0.0.0.0"), "learner": (here, None)}
    token = folder / "token"
    assert token.stat().st_mode & 0o777 == 0o600
    assert len(token.read_text().strip()) >= 16


def test_script_without_ray_asks_for_as_many_tasks_as_it_starts_collectors(
    calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = calls_of(["bash", "-c", SCRIPTS[1] + "\nwait"], calls)

    started = re.match(r"--ntasks=(\d+) bash ", calls.with_suffix(".srun").read_text())
    assert started is not None
    numbers = {role: cfg.system.collector.num for role, cfg, _ in roles_of(found, monkeypatch)}
    assert numbers == dict.fromkeys(("collector", "coordinator", "learner"), int(started[1]))
    assert int(started[1]) == int(SLURM["SLURM_NTASKS"]) - 2


@pytest.mark.parametrize("role", ["coordinator", "learner", "collector"])
@pytest.mark.parametrize(("code", "number"), [(1, 2), (137, 2), (125, 2), (0, 1), (2, 1), (3, 1), (143, 1)])
def test_script_without_ray_restarts_a_role_that_dies(
    role: str, code: int, number: int, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = calls.parent / "runs" / "dqn" / "coordinator"
    calls.with_suffix(f".{role}").write_text(f"{code}\n")  # the exit code of the first one
    script = SCRIPTS[1].replace("set -e", "set -")  # the test waits for all roles, whatever the coordinator's code is

    found = calls_of(["bash", "-c", f"{script}\nwait"], calls)

    assert sum(arguments[0] == role for arguments in found) == number
    assert len(found) == 2 + number
    assert not folder.exists()


def test_script_without_ray_ends_with_the_code_of_its_coordinator(calls: Path) -> None:
    calls.with_suffix(".coordinator").write_text("3\n")
    assert subprocess.run(["bash", "-c", SCRIPTS[1]], timeout=60).returncode == 3


def test_coordinator_that_dies_after_it_has_written_its_state_is_resumed(
    calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls.with_suffix(".coordinator").write_text("1\n")
    state = calls.parent / "runs" / "dqn" / "coordinator" / "run.db"
    script = SCRIPTS[1].replace("    sleep 5", f"    mkdir -p {state.parent}; touch {state}")

    found = calls_of(["bash", "-c", script + "\nwait"], calls)

    resumed = [options.resume for role, _, options in roles_of(found, monkeypatch) if role == "coordinator"]
    assert sorted(resumed) == [False, True]


def ray_options() -> set[str]:
    """Return the options of ``ray start`` in the installed Ray, with their dashes."""
    scripts = pytest.importorskip("ray.scripts.scripts")
    return {option for parameter in scripts.start.params for option in parameter.opts}


def test_options_of_ray_in_the_files_are_those_of_the_installed_ray() -> None:
    known = ray_options()
    (job,) = map(yaml.safe_load, JOBS)
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert {f"--{name}" for name in group["rayStartParams"]} <= known
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())  # as KubeRay wants it
    command = PAGE[PAGE.index("srun ray symmetric-run") :].partition(" -- ")[0]
    symmetric = pytest.importorskip("ray.scripts.symmetric_run").symmetric_run
    known |= {option for parameter in symmetric.params for option in parameter.opts}
    assert set(re.findall(r"--[\w-]+", command)) <= known
    started = set(re.findall(r"^    ray start (--[\w-]+)", PAGE, flags=re.MULTILINE))
    assert started == {"--head", "--address"}
    assert started <= known


def bytes_of(size: str) -> int:
    """Return the bytes of a quantity of Kubernetes."""
    number, unit = re.fullmatch(r"(\d+)([MG]i)", size).groups()  # type: ignore[union-attr]
    return int(number) * {"Mi": 2**20, "Gi": 2**30}[unit]


def test_object_store_of_the_job_has_room_in_its_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    services, utils = (pytest.importorskip(f"ray._private.{name}") for name in ("services", "utils"))
    (job,) = map(yaml.safe_load, JOBS)
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod, store = group["template"]["spec"], int(group["rayStartParams"]["object-store-memory"])
        mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
        (volume,) = [volume["emptyDir"] for volume in pod["volumes"] if volume["name"] == "memory"]
        size = bytes_of(volume["sizeLimit"])
        monkeypatch.setattr(utils, "get_shared_memory_bytes", lambda size=size: size)
        directory = services.determine_plasma_store_config(store, "/tmp")[0]
        assert (mounts["memory"], directory, volume["medium"]) == ("/dev/shm", "/dev/shm", "Memory")
        memory = pod["containers"][0]["resources"]["limits"]["memory"]
        assert size <= bytes_of(memory) / 2


def test_job_that_ends_ray_on_its_machines_has_them_for_itself() -> None:
    for script in SCRIPTS:
        ends_ray = "ray symmetric-run" in script or "ray stop" in script
        assert ends_ray == ("\n#SBATCH --exclusive\n" in script)
