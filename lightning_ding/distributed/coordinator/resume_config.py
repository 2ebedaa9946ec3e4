"""Checks before a run is started or resumed: its folder, and the parts of its config that cannot change."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lightning_ding.config import MARK, deep_merge, to_dict, without_defaults
from lightning_ding.distributed.config import ParallelConfig, resolve_policy
from lightning_ding.distributed.coordinator.database import DamagedError, Database, Key
from lightning_ding.distributed.coordinator.older_files import STATE_FILE as OLDER_FILE
from lightning_ding.distributed.coordinator.tasks import Task
from lightning_ding.policy import get_policy_cls
from lightning_ding.policy.base.older_configs import renewed
from lightning_ding.registry import BUFFER_REGISTRY, import_modules
from lightning_ding.worker.config import ReplayBufferConfig


def fixed_part(config: ParallelConfig) -> dict[str, Any]:
    """Return the settings that cannot change during a run, with defaults: policy, env, and kinds of roles."""
    policy, system = config.main.policy, config.system
    whole = to_dict(resolve_policy(policy))
    wrappers = {name: getattr(config.main.env, name) for name in ("wrappers", "train_wrappers")}
    env = {"env_id": config.main.env.env_id, **{name: given for name, given in wrappers.items() if given}}
    main = {"policy": {"type": policy["type"], **whole}, "env": env}
    kinds = {"coordinator": {"commander": {"type": system.coordinator.commander.type}}}
    system_part = {**kinds, "collector": {"type": system.collector.type}}
    part: dict[str, Any] = json.loads(json.dumps({"main": main, "system": system_part}))
    import_modules(_buffer(part).get("import_names", ()))
    return _with_keys_of_buffer(part)


def check_fixed_part(saved: Mapping[str, Any], config: ParallelConfig) -> None:
    """Check that a run can be resumed with a config.

    Args:
        saved: ``fixed_part`` of the config with which the run was started.
        config: Config with which it is resumed.

    Raises:
        ValueError: If the config would change what is learned; the message names the key.
    """
    now = fixed_part(config)  # first, because it imports the modules that register buffers
    path, was, got = next(_differences("", _renewed(_with_keys_of_buffer(saved)), now), ("", None, None))
    if path:
        raise ValueError(f"{path} must be {was!r}, as in the run that is resumed, got {got!r}")


def renew_learning(tasks: Iterable[Task], config: ParallelConfig) -> None:
    """Update the contents of learning tasks to a config, which may have changed since they were made."""
    for task in tasks:
        if task.role == "learner":
            about = {"learner_cfg": to_dict(config.system.learner), "main": to_dict(config.main)}
            task.info = {**task.info, **about, "policy": dict(config.main.policy)}


def _buffer(part: Mapping[str, Any]) -> Mapping[str, Any]:
    section: Mapping[str, Any] = part["main"]["policy"].get("other", {}).get("replay_buffer", {})
    return section


def _with_keys_of_buffer(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a fixed part with all keys of its buffer, with defaults, and without those of other buffers."""
    section = _buffer(part)
    if not section:
        return dict(part)
    buffer = BUFFER_REGISTRY.get(section["type"]) if section["type"] in BUFFER_REGISTRY else None
    defaults = to_dict(getattr(buffer, "config_class", ReplayBufferConfig)())
    own = without_defaults(deep_merge(defaults, section), defaults, ReplayBufferConfig.variants())
    part = deep_merge(part, {})  # a copy
    part["main"]["policy"]["other"]["replay_buffer"] = own
    return part


def _renewed(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved fixed part with the keys of its policy in their present meaning, and defaults for new ones."""
    config_class, given = get_policy_cls(part["main"]["policy"]).config_class, dict(part["main"]["policy"])
    named = {"type": given.pop("type"), MARK: config_class.__name__}
    defaults = json.loads(json.dumps(to_dict(config_class())))
    return {**part, "main": {**part["main"], "policy": named | deep_merge(defaults, renewed(config_class, given))}}


def _differences(path: str, was: Any, got: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(was, Mapping) and isinstance(got, Mapping):
        for name in [*was, *(new for new in got if new not in was)]:
            yield from _differences(f"{path}.{name}" if path else name, was.get(name), got.get(name))
    elif was != got:
        yield path, was, got


COORDINATOR = "coordinator"
"""Folder of the coordinator's files in the folder of a run."""
DATABASE_FILE = "run.db"
"""Database of a run, in that folder; there is one as long as the run can be resumed."""
PARTS_OF_STATE = ("scheduler", "results", "buffers", "fixed")


def holds_run(folder: Path) -> bool:
    """Return whether a folder holds a run that can be resumed, also one of an earlier version."""
    return any((folder / COORDINATOR / name).exists() for name in (DATABASE_FILE, OLDER_FILE))


def check_folder(folder: Path, resume: bool) -> None:
    """Check that a run can be started or resumed in a folder, before anything is written there.

    Args:
        folder: ``main.exp_name`` of the run.
        resume: Whether a run is to be resumed.

    Raises:
        ValueError: If the folder holds files of a run and ``resume`` is false, or no state of a run and ``resume`` is
            true.
    """
    if not resume and not holds_run(folder) and (folder / "learner").exists():
        raise _is_over(folder)
    check_folder_of_coordinator(folder, resume)


def check_folder_of_coordinator(folder: Path, resume: bool) -> None:
    """Check a folder as :func:`check_folder` does, but allow that a learner has written into it already.

    Args:
        folder: ``main.exp_name`` of the run.
        resume: Whether a run is to be resumed.

    Raises:
        ValueError: If the folder holds files of another run and ``resume`` is false, or no state of a run and
            ``resume`` is true.
    """
    name, files = name_of(folder), folder / COORDINATOR
    if holds_run(folder):
        if not resume:
            raise ValueError(
                f"{name} contains a run: --resume continues it, a finished one with a larger limit such as "
                "main.max_env_step, or choose another folder"
            )
        return
    if (folder / "result.json").exists():
        raise _has_no_data(folder) if resume else _is_over(folder)
    left = next((file for file in files.rglob("[!.]*") if file.is_file()), None)
    if left is not None:
        file = f"{COORDINATOR}/{DATABASE_FILE}"
        raise ValueError(
            f"{name} contains files of a run, such as {left.relative_to(folder)}, but not {file}, without which it "
            "cannot be resumed; nothing was changed: restore that file, or choose another folder"
        )
    if resume:
        raise ValueError(f"{name} contains no run to resume: start without --resume, or correct main.exp_name")


def database_of(folder: Path) -> Database:
    """Return the database of a run, which need not exist.

    Args:
        folder: ``main.exp_name`` of the run.
    """
    return Database(folder / COORDINATOR / DATABASE_FILE)


def records_of(state: Mapping[str, Any]) -> dict[Key, Any]:
    """Return the records of a state, of which a change of a task rewrites few."""
    records: dict[Key, Any] = {("state", name): state[name] for name in (*PARTS_OF_STATE, "least", "finished")}
    for task_id, task in state["tasks"].items():
        records["contents", task_id] = task["info"]
        records["task", task_id] = {name: value for name, value in task.items() if name != "info"}
    return records


def read_state(database: Database) -> dict[str, Any]:
    """Return the state of a run.

    Raises:
        DamagedError: If a record of it is missing or damaged.
    """
    kinds = {kind: dict(database.read(kind)) for kind in ("state", "task", "contents")}
    found, tasks, contents = kinds["state"], kinds["task"], kinds["contents"]
    is_whole = found.keys() >= set(PARTS_OF_STATE) and tasks.keys() == contents.keys()
    damaged = next((one for part in kinds.values() for one in part.values() if isinstance(one, DamagedError)), None)
    if damaged is not None or not is_whole:
        why = damaged or f"it has the records {sorted(found)}"
        raise DamagedError(f"{database.file} is damaged, so the run cannot be resumed: {why}")
    return {
        "least": {},
        "finished": None,
        **found,
        "tasks": {name: {**task, "info": contents[name]} for name, task in tasks.items()},
    }


def _is_over(folder: Path) -> ValueError:
    return ValueError(f"{name_of(folder)} contains a finished run: choose another folder")


def _has_no_data(folder: Path) -> ValueError:
    return ValueError(
        f"{name_of(folder)} contains a finished run without its data, which main.keep_data=false deletes, so it cannot "
        "be continued: choose another folder"
    )


def name_of(folder: Path) -> str:
    """Return the name of a run's folder in messages."""
    return f"main.exp_name={str(folder)!r}"
