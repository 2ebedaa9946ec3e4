"""DI-engine's ``ding.config``: reading a pair of configs, and merging one with the defaults of a script's classes."""

from __future__ import annotations

import pprint
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from easydict import EasyDict

from lightning_ding.config import deep_merge, require
from lightning_ding.di_engine.configs import Config, merge, plain, policy_type, read_file
from lightning_ding.di_engine.keys import KEYS
from lightning_ding.di_engine.own_form import is_own_form
from lightning_ding.di_engine.policy_section import FAMILIES, family_of, policy_defaults
from lightning_ding.registry import POLICY_REGISTRY, import_modules
from lightning_ding.utils.ranks import rank_and_world_size

__all__ = ["compile_config", "read_config", "save_config"]


def read_config(path: str | Path) -> tuple[EasyDict, EasyDict]:
    """Return ``main_config`` and ``create_config`` of a file, which is run as Python code.

    Raises:
        ValueError: If there is no such file, or it lacks one of them.
    """
    main, create = read_file(path, ("main_config", "create_config"))
    return EasyDict(plain(main)), EasyDict(plain(create))


def compile_config(
    cfg: Mapping[str, Any],
    env_manager: Any = None,
    policy: Any = None,
    learner: Any = None,
    collector: Any = None,
    evaluator: Any = None,
    buffer: Any = None,
    env: Any = None,
    reward_model: Any = None,
    world_model: None = None,
    seed: int | None = None,
    auto: bool = False,
    create_cfg: Mapping[str, Any] | None = None,
    save_cfg: bool = True,
    save_path: str = "total_config.py",
    renew_dir: bool = True,
) -> EasyDict:
    """Return one config with the defaults of the classes, in DI-engine's keys.

    The values are, in this order of precedence, those of ``cfg``, of ``create_cfg``, and the defaults of DI-engine, or
    of this package where they are the same.

    Args:
        cfg: The ``main_config``; it is not changed.
        env_manager: Class of the env managers.
        policy: Class of the policy; with ``auto``, ``create_cfg`` names it.
        learner: Class of the learner.
        collector: Class of the collector.
        evaluator: Class of the evaluator.
        buffer: Class of the replay buffer.
        env: Class of the envs, whose ``default_config()`` is merged into the section ``env``.
        reward_model: Class of the reward model, whose ``config`` is merged into the section ``reward_model``.
        world_model: Only None.
        seed: Seed of the run; None means that of ``cfg``, or 0.
        auto: Use ``create_cfg``.
        create_cfg: The ``create_config``.
        save_cfg: Write the config to ``{exp_name}/{save_path}``, on the first rank.
        save_path: Name of that file.
        renew_dir: Add the time to ``exp_name`` if the config is written and a folder of this name exists.

    Raises:
        ValueError: If neither a policy's class nor its type is given, or no policy has this type.

    Example:
        >>> from lightning_ding.di_engine.policy import DQNPolicy
        >>> cfg = compile_config({"policy": {"learn": {"batch_size": 8}}}, policy=DQNPolicy, save_cfg=False)
        >>> cfg.policy.learn.batch_size, cfg.policy.discount_factor, cfg.policy.other.eps.start
        (8, 0.97, 0.95)
    """
    require(world_model is None, "world_model", "None: there are no world models here", world_model)
    create = plain(create_cfg or {}) if auto else {}
    main = {"env": {}, **plain(cfg)}
    main.setdefault("policy", {})
    create.setdefault("policy", {})
    import_modules(create["policy"].get("import_names", ()))
    kind, policy_class = _policy_of(policy, main, create)
    create["policy"] = {**create["policy"], "type": kind}
    workers = {"collector": collector, "evaluator": evaluator, "learner": learner, "replay_buffer": buffer}
    for role, given in {"env_manager": env_manager, **workers}.items():
        create[role] = {**_defaults_of(given), **create.get(role, {})}
    if env is not None and hasattr(env, "default_config"):
        create["env"] = deep_merge(plain(env.default_config()), create.get("env", {}))
    merged = merge(main, create, policy_defaults(kind, policy_class))
    section = merged["policy"]
    learn = section.setdefault("learn", {})
    learn["learner"] = deep_merge(create["learner"], learn.get("learner", {}))
    ends = {"n_episode": merged["env"]["n_evaluator_episode"], "stop_value": merged["env"]["stop_value"]}
    section["eval"]["evaluator"] = ends | section["eval"]["evaluator"]
    merged |= {name: main[name] for name in main if name not in merged}
    merged["seed"] = main.get("seed", 0) if seed is None else seed
    if reward_model is not None:
        merged["reward_model"] = deep_merge(plain(getattr(reward_model, "config", {})), merged.get("reward_model", {}))
    result = EasyDict(merged)
    if save_cfg and rank_and_world_size()[0] == 0:
        if renew_dir and Path(result.exp_name).exists():
            result.exp_name += time.strftime("_%y%m%d_%H%M%S")
        save_config(result, Path(result.exp_name) / save_path)
    return result


def save_config(config: Mapping[str, Any], path: str | Path) -> None:
    """Write a config as a Python file with the dict ``exp_config``; its folder is made."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"exp_config = {pprint.pformat(plain(config), sort_dicts=False)}\n")


def _policy_of(policy: Any, main: Config, create: Config) -> tuple[str, Any]:
    """Return the type and the class of the policy."""
    if policy is None:
        kind = policy_type(main, create)
        found = POLICY_REGISTRY.get(FAMILIES.get(kind, kind)) if kind not in KEYS else None
        return kind, found
    if is_own_form(policy):
        return str(plain(policy.default_config()).get("type", policy.__name__)), policy
    return family_of(policy), policy


def _defaults_of(worker: Any) -> Config:
    """Return the type of the class of a worker or a manager, and those of its defaults that DI-engine has too."""
    if worker is None:
        return {}
    section = plain(worker.default_config()) if hasattr(worker, "default_config") else {}
    names = [worker.registry.name_of(one) for one in worker.__mro__] if hasattr(worker, "registry") else []
    kind = next((one for one in (*names, section.get("type")) if one), None)
    shown = {name: section[name] for name in getattr(worker, "SHOWN", ()) if name in section}
    return shown if kind is None else shown | {"type": kind}
