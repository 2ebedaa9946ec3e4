"""What commands for trained policies share: reading a checkpoint, its policy, and the env of its run."""

from __future__ import annotations

import argparse
import pickle
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gymnasium import spaces

from lightning_ding.config import MARK, require
from lightning_ding.entry.lightning_cli import is_refusal, line_of, policy_class
from lightning_ding.entry.serial_cli import CommandParser
from lightning_ding.envs.wrapper_names import as_list, for_evaluation
from lightning_ding.policy import Policy
from lightning_ding.registry import POLICY_REGISTRY

ARGUMENTS = "datamodule_hyper_parameters"
"""Lightning's key of the datamodule's arguments in a checkpoint."""
LONG_RUN = 10**12
"""Env steps after which every schedule of exploration has reached its end."""


class EnvOfRun(NamedTuple):
    """The env of a run, by the arguments of :func:`make_vector_env`."""

    env: Any
    wrappers: tuple[Any, ...]
    env_kwargs: dict[str, Any]
    import_names: tuple[str, ...]


def read_checkpoint(ckpt: str | Path) -> dict[str, Any]:
    """Return the content of a checkpoint, of which no code is run.

    Raises:
        ValueError: If there is no such file, or it is not a checkpoint of a policy.
    """
    require(Path(ckpt).is_file(), "ckpt", "the path of a checkpoint", str(ckpt))
    try:
        saved: dict[str, Any] = torch.load(ckpt, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, EOFError, RuntimeError) as error:
        raise ValueError(f"ckpt must be a checkpoint of a run, got {str(ckpt)!r}, which cannot be read") from error
    is_known = isinstance(saved, dict) and {"state_dict", "hyper_parameters"} <= saved.keys()
    require(is_known, "ckpt", "a checkpoint of a run, with weights and config", str(ckpt))
    return saved


def env_of_run(saved: Mapping[str, Any], env_id: str | None = None, evaluation: bool = False) -> EnvOfRun:
    """Return the env of a checkpoint's run.

    Args:
        saved: Content of a checkpoint; empty without one.
        env_id: Another env, with the wrappers of the run.
        evaluation: Return the env of evaluations, if the run had another one for them.

    Raises:
        ValueError: If neither the checkpoint nor ``env_id`` names an env.
    """
    arguments = saved.get(ARGUMENTS, {})
    wrappers = [*for_evaluation(arguments.get("wrappers") or ())]
    name, kwargs = arguments.get("env_id"), arguments.get("env_kwargs")
    if evaluation:
        name, own_kwargs = arguments.get("eval_env_id") or name, arguments.get("eval_env_kwargs")
        kwargs = kwargs if own_kwargs is None else own_kwargs
        wrappers += as_list(arguments.get("eval_wrappers") or ())
    found: Any = env_id or name
    require(bool(found), "env_id", "an env, because the checkpoint names none", None)
    modules = arguments.get("import_names") or ()
    modules = (modules,) if isinstance(modules, str) else tuple(modules)
    return EnvOfRun(found, tuple(wrappers), dict(kwargs or {}) if env_id is None else {}, modules)


def class_of(saved: Mapping[str, Any], name: str | None = None) -> type[Policy[Any]]:
    """Return the class of a checkpoint's policy.

    Args:
        saved: Content of a checkpoint.
        name: Name or dotted path of the policy; None reads it from the checkpoint.

    Raises:
        ValueError: If the checkpoint names no policy.
        KeyError: If there is no policy of that name.
    """
    if name is None:
        mark = saved["hyper_parameters"].get("cfg", {}).get(MARK, "")
        known = {f"{POLICY_REGISTRY.get(one).__name__}Dict": one for one in POLICY_REGISTRY}
        allowed = "the name of the policy, because the checkpoint does not tell it"
        require(mark in known, "policy", allowed, mark or None)
        name = known[mark]
    return policy_class(name)


def load(
    file: str | Path,
    saved: Mapping[str, Any],
    found: type[Policy[Any]],
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
) -> Policy[Any]:
    """Return the policy of a checkpoint, with its network, as it acted at the end of its run.

    Args:
        file: The checkpoint.
        saved: Its content.
        found: Class of the policy.
        observation_space: Observation space of one env.
        action_space: Action space of one env.

    Raises:
        ValueError: If the policy does not fit the spaces.
        TypeError: If the policy does not support such a space.
    """
    policy = found.load_from_checkpoint(file, map_location="cpu", weights_only=True)
    policy.build(observation_space, action_space)
    policy.progress.budget = saved.get(ARGUMENTS, {}).get("max_env_step")  # of schedules
    if policy.progress.train_iter and not policy.progress.env_step:
        policy.progress.env_step = LONG_RUN  # it was trained on a data set, where epsilon does not fall
    return policy.eval()


def command_parser(command: str, description: str | None) -> CommandParser:
    """Return a parser for a command whose first argument is a checkpoint, with the options that all of them have."""
    shown = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    parser = CommandParser(prog=f"lightning-ding {command}", description=description, **shown)  # type: ignore[arg-type]
    parser.add_argument("ckpt", help="checkpoint of a run")
    parser.add_argument("--env_id", help="another env than that of the run")
    parser.add_argument("--policy", help="name or dotted path of the policy, if the checkpoint does not tell it")
    return parser


def in_one_line(run: Callable[[], Any]) -> Any:
    """Return the result of a command; an error of a setting ends the process with one line and code 2."""
    try:
        return run()
    except Exception as error:
        if not is_refusal(error):
            raise
        print("error:", line_of(error), file=sys.stderr)
        raise SystemExit(2) from error
