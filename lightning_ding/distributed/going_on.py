"""What of the config must be as it was for a run to go on, and what may change and takes effect."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lightning_ding.config import resolve, to_dict
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.distributed.tasks import Task
from lightning_ding.policy import get_policy_cls

NOT_OPTIONS = ("type", "import_names", "cfg_type")  # of a policy's config


def fixed_part(config: ParallelConfig) -> dict[str, Any]:
    """Return what must be the same to the end of a run, as builtins and with defaults: policy, env, who plays."""
    policy, system = config.main.policy, config.system
    options = {name: value for name, value in policy.items() if name not in NOT_OPTIONS}
    whole = to_dict(resolve(get_policy_cls(policy).config_class, options))
    env: dict[str, Any] = {"env_id": config.main.env.env_id}
    env |= {"wrappers": config.main.env.wrappers} if config.main.env.wrappers else {}
    env |= {"train_wrappers": config.main.env.train_wrappers} if config.main.env.train_wrappers else {}
    main = {"policy": {"type": policy["type"], **whole}, "env": env}
    kinds = {"coordinator": {"commander": {"type": system.coordinator.commander.type}}}
    system_part = {**kinds, "collector": {"type": system.collector.type}}
    part: dict[str, Any] = json.loads(json.dumps({"main": main, "system": system_part}))
    return part


def check_fixed_part(saved: Mapping[str, Any], config: ParallelConfig) -> None:
    """Raise if a run cannot go on with a config.

    Args:
        saved: ``fixed_part`` of the config that it began with.
        config: To go on with.

    Raises:
        ValueError: If something else than it was would be learned; the message names the key.
    """
    path, was, got = next(_differences("", saved, fixed_part(config)), ("", None, None))
    if path:
        raise ValueError(f"{path} must be {was!r}, as in the run that goes on, got {got!r}")


def renew_learning(tasks: Iterable[Task], config: ParallelConfig) -> None:
    """Let learning tasks say what a config says, whatever it was when they were made."""
    for task in tasks:
        if task.role == "learner":
            about = {"learner_cfg": to_dict(config.system.learner), "main": to_dict(config.main)}
            task.info |= {**about, "policy": dict(config.main.policy)}


def _differences(path: str, was: Any, got: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(was, Mapping) and isinstance(got, Mapping):
        for name in [*was, *(new for new in got if new not in was)]:
            yield from _differences(f"{path}.{name}" if path else name, was.get(name), got.get(name))
    elif was != got:
        yield path, was, got
