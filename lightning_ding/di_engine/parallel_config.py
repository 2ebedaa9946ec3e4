"""Configs of distributed runs and of their workers in DI-engine's format, as configs of this project.

Sections that do the same work in another way are named in the log, once. A setting that cannot work raises an error.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lightning_ding.config import deep_merge, nearest, require, resolve
from lightning_ding.di_engine.env_types import translate_envs
from lightning_ding.di_engine.keys import KEYS
from lightning_ding.di_engine.translate import translate
from lightning_ding.distributed.config import CollectorTaskConfig, CommanderConfig, ParallelConfig, resolve_policy

logger = logging.getLogger(__name__)

WORKER_KEYS = (
    *("type", "import_names", "host", "port", "path_data", "path_policy", "exp_name", "cfg_type"),
    *("multi_gpu", "gpu_num", "aggregator", "node", "partition"),
)
"""Keys of a worker's config in DI-engine; ``exp_name`` is an addition."""
AGGREGATOR = "left out: several learners are the ranks of one learner, see system.learner.multi_gpu"


def run_of_worker(cfg: Mapping[str, Any], has_own_keys: bool) -> ParallelConfig:
    """Return the config of a run for DI-engine's config of one of its workers.

    The folder of the run, in which the coordinator writes its address, is the parent of ``path_data`` and
    ``path_policy``, or ``exp_name``.

    Args:
        cfg: Config of the worker.
        has_own_keys: Whether the config may have keys for a subclass.

    Raises:
        ValueError: If a key is unknown or a value cannot be used here.
        TypeError: If a value has the wrong type.
    """
    unknown = [] if has_own_keys else [key for key in cfg if key not in WORKER_KEYS]
    if unknown:
        raise ValueError(f"unknown config key {unknown[0]!r} of a worker; {nearest(unknown[0], WORKER_KEYS)}")
    require(not cfg.get("aggregator", False), "aggregator", AGGREGATOR, cfg.get("aggregator"))
    folders = {name: str(cfg[name]) for name in ("path_data", "path_policy") if cfg.get(name) is not None}
    parents = {str(Path(folder).parent) for folder in folders.values()}
    require(len(parents) <= 1, "path_data and path_policy", "two folders in the folder of the run", folders)
    found = [str(cfg["exp_name"])] if cfg.get("exp_name") is not None else [*parents]
    require(bool(found) or has_own_keys, "path_data", "a folder in the folder of the run", cfg.get("path_data"))
    _log_address(cfg)
    main: dict[str, Any] = {"exp_name": found[0]} if found else {}
    return resolve(ParallelConfig, {"main": main, "system": {**folders, "learner": _ranks(cfg)}})


def _ranks(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a learner on several GPUs."""
    if not cfg.get("multi_gpu", False):
        return {}
    return {"multi_gpu": True, "trainer": {"accelerator": "gpu", "devices": int(cfg.get("gpu_num") or -1)}}


def _log_address(cfg: Mapping[str, Any]) -> None:
    """Check the address of a worker, and log once that nothing listens there."""
    host, port = cfg.get("host"), cfg.get("port")
    ports = port if isinstance(port, (list, tuple)) else [port]
    for one in ports:
        good = one is None or one == "auto" or (isinstance(one, int) and not isinstance(one, bool) and 0 <= one < 65536)
        require(good, "port", "in [0, 65535]", one)
    if host is not None and not isinstance(host, str):
        raise TypeError(f"host must be a str, got {host!r}")
    if host is not None or port is not None:
        logger.info("nothing listens at %s:%s: workers connect to the coordinator of the run's folder", host, port)


def learner_section(learner_cfg: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the config of a plain learner, and the keys of DI-engine's ``learner_cfg`` that concern the run."""
    own = {"exp_name", "send_policy_freq", "learner_num", "cfg_type"}
    others = {name: learner_cfg[name] for name in own if name in learner_cfg}
    return {name: value for name, value in learner_cfg.items() if name not in own}, others


# ---------------------------------------------------------------------------------------------------- whole runs

WORKER = re.compile(r"(learner|collector)\d*")
SYSTEM_KEYS = {"communication_mode", "learner_gpu_num", "path_data", "path_policy", "comm_learner", "comm_collector"}
ANY_ENV = {"collector_env_num": 1, "evaluator_env_num": 1}
"""An env section for translating a policy alone."""
_LOGGED: set[str] = set()
EPISODES = ("collector_episode_num", "evaluator_episode_num")
"""Keys of an env section for the episodes of each env of a task."""
NO_KUBERNETES = "empty: there is no Kubernetes operator; start the workers with `lightning-ding collector`"


def run_of(cfg: Mapping[str, Any]) -> Any:
    """Return the config of a run for one in DI-engine's format, and any other one as it is."""
    return run_of_ding(cfg) if is_ding_run(cfg) else cfg


def compile_run(main: Mapping[str, Any], create: Mapping[str, Any], system: Mapping[str, Any], seed: int) -> Any:
    """Return a compiled config, which ``read_run`` takes, of DI-engine's three configs of a distributed run.

    Args:
        main: The ``main_config``.
        create: The ``create_config``, with the types of all parts.
        system: The ``system_config``.
        seed: Seed of the run, >= 0.

    Example:
        >>> create = {"env": {"type": "cartpole"}, "policy": {"type": "dqn_command"}, "comm_learner": {"type": "mine"}}
        >>> cfg = compile_run({"env": {}, "policy": {}}, create, {"path_data": "run/data"}, seed=3)
        >>> cfg["main"]["policy"]["type"], cfg["system"]["learner0"]
        ('dqn_command', {'type': 'mine'})
    """
    env = deep_merge(create.get("env", {}), main["env"])
    env["manager"] = deep_merge(create.get("env_manager", {}), env.get("manager", {}))
    workers = {"learn": "learner", "collect": "collector", "other": "commander"}
    parts = {section: {worker: create.get(worker, {})} for section, worker in workers.items()}
    parts["other"]["replay_buffer"] = create.get("replay_buffer", {})
    policy = deep_merge(deep_merge(create["policy"], parts), main["policy"])
    processes = {f"{kind}0": dict(create.get(f"comm_{kind}", {})) for kind in ("learner", "collector")}
    whole = {**main, "env": env, "policy": policy}
    return {"seed": seed, "main": whole, "system": {"coordinator": {}, **system, **processes}}


def is_ding_run(cfg: Any) -> bool:
    """Return whether the config of a run has DI-engine's format: with ``main`` and ``system``, or ``main`` alone."""
    if not isinstance(cfg, Mapping):
        return False
    if "main" not in cfg:
        return "policy" in cfg and "system" not in cfg
    system, env = cfg.get("system") or {}, _below(cfg, "main", "env")
    numbered = any(re.fullmatch(r"(learner|collector)(_aggregator)?\d+", key) for key in system)
    coordinator = _below(system, "coordinator").keys() & {"operator_server", "learner", "collector"}
    is_named = bool(env.keys() & {"type", "manager", "collector_episode_num", "evaluator_episode_num"})
    return numbered or bool(coordinator) or bool(SYSTEM_KEYS & system.keys() - {"path_data", "path_policy"}) or is_named


def run_of_ding(cfg: Mapping[str, Any]) -> ParallelConfig:
    """Return the config of a run for DI-engine's compiled config of it, or for its main part alone.

    Raises:
        ValueError: If a key is unknown or a value cannot be used here.
        TypeError: If a value has the wrong type.
    """
    main = cfg.get("main", cfg)
    system = cfg.get("system") or {}
    coordinator, policy = _below(system, "coordinator"), main["policy"]
    require(not coordinator.get("operator_server"), "coordinator.operator_server", NO_KUBERNETES, "a section")
    aggregators = [key for key in system if key.startswith("learner_aggregator")]
    require(not aggregators, "system", f"without learner aggregators: {AGGREGATOR}", aggregators)
    workers = {kind: _workers(system, coordinator, kind) for kind in ("learner", "collector")}
    learner, collector = _below(policy, "learn", "learner"), _below(policy, "collect", "collector")
    made: dict[str, Any] = {"main": {**_main(main, cfg), "policy": _policy(policy)}}
    updates = getattr(resolve_policy(made["main"]["policy"]).learn, "update_per_collect", 1)
    made["system"] = {
        **_classes(workers),
        **_paths(system, str(made["main"].get("exp_name", "")), workers),
        "coordinator": {
            **_kept(coordinator, "host", "port", "collector_task_timeout", "learner_task_timeout"),
            "commander": _commander(_below(policy, "other", "commander")),
        },
        "learner": _learner(learner, workers["learner"], system, updates),
        "collector": _collector(collector, workers["collector"]),
    }
    _log_replaced(learner, collector)
    return resolve(ParallelConfig, made)


def task_of(cfg: Mapping[str, Any], has_own_keys: bool) -> Any:
    """Return the ``collector_cfg`` of a task; one in DI-engine's format is translated.

    Args:
        cfg: The config.
        has_own_keys: Whether it may have keys for a subclass, which are left out.

    Raises:
        ValueError: If a value cannot be used here.
    """
    if has_own_keys:
        known = {*CollectorTaskConfig.__dataclass_fields__, "compressor", "cfg_type"}
        cfg = {key: value for key, value in cfg.items() if key in known}
    env, path = _below(cfg, "env"), cfg.get("policy_update_path")
    if not (isinstance(path, str) or "compressor" in cfg or "manager" in env or "type" in env):
        return cfg
    policies = cfg["policy"] if isinstance(cfg["policy"], (list, tuple)) else [cfg["policy"]]
    same = all(one == policies[0] for one in policies)
    require(same, "policy", "the same for all players, who differ in their weights", policies)
    policy, evaluates = dict(policies[0]), bool(cfg.get("eval_flag", False))
    kept = _kept(cfg, "type", "eval_flag", "collect_setting", "update_policy_second", "print_freq", "exp_name", "seed")
    made = {
        **kept,
        "policy": _policy(policy),
        "env": _env(env),
        "import_names": _importable(cfg.get("import_names", ())),
    }
    if path is not None:
        paths = [path] if isinstance(path, str) else list(path)
        made |= {"policy_update_path": paths, "policy_update_flag": cfg.get("policy_update_flag", [True] * len(paths))}
    collect = _below(policy, "collect")
    made["n_sample"] = collect.get("n_sample") or policy.get("n_sample") or 1
    number = int(env.get("evaluator_env_num" if evaluates else "collector_env_num", 4))
    episodes = _below(env, "manager").get("episode_num")
    if evaluates or (episodes is not None and episodes != float("inf")):
        made["n_episode"] = number * int(episodes or 1)
    return made


def _below(section: Any, *path: str) -> Mapping[str, Any]:
    for name in path:
        section = (section.get(name) if isinstance(section, Mapping) else None) or {}
    return section if isinstance(section, Mapping) else {}


def _kept(section: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: section[name] for name in names if section.get(name) is not None and section[name] != "auto"}


def _workers(system: Mapping[str, Any], coordinator: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the sections of the numbered workers of a kind, or the entries of the coordinator's table of them."""
    numbered = {key: system[key] for key in system if re.fullmatch(rf"{kind}\d+", key)}
    return numbered or {key: {} for key in _below(coordinator, kind)}


def _main(main: Mapping[str, Any], cfg: Mapping[str, Any]) -> dict[str, Any]:
    seed = cfg.get("seed", main.get("seed", 0))
    return {**_kept(main, "exp_name", "max_env_step", "max_train_iter"), "seed": seed, "env": _env(main.get("env", {}))}


def _env(env: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section of the env."""
    if "type" not in env:
        require("env_id" in env, "main.env", "a section with a 'type' or an 'env_id'", sorted(env))
        return {name: value for name, value in env.items() if name not in (*EPISODES, "manager", "cfg_type")}
    section = {name: value for name, value in env.items() if name not in (*EPISODES, "manager")}
    manager = {name: value for name, value in _below(env, "manager").items() if name != "episode_num"}
    found = translate_envs({}, section, {"type": "base", **manager})
    _log(found.translated, found.warnings)
    made = {"env_id": found.env, "mode": found.vector_mode, "stop_value": found.stop_value, **found.datamodule}
    made |= {"collector_env_num": found.num_envs, "evaluator_env_num": found.num_eval_envs}
    episodes = env.get("evaluator_episode_num")
    number = found.n_evaluator_episode if episodes is None else int(episodes) * found.num_eval_envs
    return {**made, "n_evaluator_episode": number}


def _policy(policy: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section of the policy, with DI-engine's defaults where it says nothing.

    The sections of the learner, the collector and the commander are left out. A policy that DI-engine does not have
    keeps its own keys and defaults.
    """
    own = {key: value for key, value in policy.items() if key not in ("multi_gpu", "cfg_type")}
    for section, worker in (("learn", "learner"), ("collect", "collector"), ("other", "commander")):
        own[section] = {key: value for key, value in _below(own, section).items() if key not in (worker, "multi_gpu")}
    kind = str(own.pop("type")).removesuffix("_command")
    if kind not in KEYS:
        return {"type": kind, **{key: value for key, value in own.items() if key != "cuda" and value != {}}}
    run = translate(({"env": ANY_ENV, "policy": own}, {"env": {"type": "cartpole"}, "policy": {"type": kind}}))
    _log(run.translated, run.warnings)
    return {"type": kind, **run.policy_config}


def _log(translated: Iterable[str], warnings: Iterable[str]) -> None:
    """Log what became of the keys, once in a process."""
    for level, lines in ((logging.INFO, translated), (logging.WARNING, warnings)):
        for line in lines:
            if line not in _LOGGED:
                _LOGGED.add(line)
                logger.log(level, "config of DI-engine: %s", line)


def _paths(system: Mapping[str, Any], exp_name: str, workers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the folders of data and policies, in which workers find the folder of the run."""
    sections = [system, *(one for of_kind in workers.values() for one in of_kind.values())]
    found = {}
    for name in ("path_data", "path_policy"):
        given = {str(one[name]) for one in sections if one.get(name) is not None}
        require(len(given) <= 1, f"system.{name}", "the same for all workers", sorted(given))
        if given:
            (found[name],) = given
            inside = Path(found[name]).parent == Path(exp_name)
            allowed = f"a folder in main.exp_name ({exp_name!r}), where workers find the coordinator's address"
            require(inside, f"system.{name}", allowed, found[name])
    return found


def _classes(workers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the registered classes of the workers, and the modules that register them."""
    made: dict[str, Any] = {"import_names": []}
    for kind, sections in workers.items():
        section: Mapping[str, Any] = next(iter(sections.values()), {})
        made["import_names"] += _importable(section.get("import_names", ()))
        if section.get("type", "flask_fs") != "flask_fs":
            made[f"comm_{kind}"] = section["type"]
    return made


def _commander(commander: Mapping[str, Any]) -> dict[str, Any]:
    known = set(CommanderConfig.__dataclass_fields__) | {"cfg_type", "path_policy"}
    for key in commander:
        if key not in known:
            raise ValueError(f"unknown config key 'policy.other.commander.{key}'; {nearest(key, known)}")
    section = {key: value for key, value in commander.items() if key not in ("cfg_type", "path_policy")}
    return {**section, "import_names": _importable(section.get("import_names", ()))}


def _importable(names: Any) -> list[str]:
    """Return modules to import first, without those of DI-engine, whose classes are registered here already."""
    return [name for name in names if name.partition(".")[0] not in ("ding", "dizoo")]


def _learner(
    section: Mapping[str, Any], workers: Mapping[str, Any], system: Mapping[str, Any], updates: int
) -> dict[str, Any]:
    """Return the section of the learner, which does not evaluate, because collectors do."""
    number = section.get("learner_num", len(workers) or 1)
    allowed = "1: several learners are the ranks of one learner, see system.learner.multi_gpu"
    require(number == 1, "policy.learn.learner.learner_num", allowed, number)
    first: Mapping[str, Any] = next(iter(workers.values()), {})
    gpus = int(first.get("gpu_num") or system.get("learner_gpu_num") or 1)
    ranks = _ranks({"multi_gpu": bool(first.get("multi_gpu", False)) or gpus > 1, "gpu_num": gpus})
    every = _below(section, "hook").get("save_ckpt_after_iter") or SAVE_EVERY
    saves = {"rounds_per_epoch": max(1, round(every / updates)), "validate": False}
    return {**_kept(section, "send_policy_freq"), **saves, **ranks}


def _collector(section: Mapping[str, Any], workers: Mapping[str, Any]) -> dict[str, Any]:
    made = {"num": section.get("collector_num", len(workers) or 1)}
    made |= _kept(section, "type", "update_policy_second", "print_freq")
    return {**made, "import_names": _importable(section.get("import_names", ()))}


SAVE_EVERY = 10_000  # updates between two checkpoints of the learner, DI-engine's default
HERE = {
    "compressor": "tensors are stored as they are",
    "hook": "the Trainer's callbacks write logs, and checkpoints every save_ckpt_after_iter updates",
    "dataloader": "system.learner.prefetch",
    "log_policy": "Lightning describes the policy",
    "train_iterations": "main.max_train_iter ends a run",
}
"""Keys of DI-engine's parallel workers, by what does their work here."""


def _log_replaced(*sections: Mapping[str, Any]) -> None:
    found = {key: why for section in sections for key, why in HERE.items() if key in section}
    if found:
        logger.info("config keys of DI-engine without effect here: %s", found)
