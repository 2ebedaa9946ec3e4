"""A config file of ``lightning-ding fit`` as the config of a distributed run.

Both train the same policy, with the same settings, in the same envs. The envs of all ranks are divided among the
collectors, which ``system.collector.num`` counts; a section ``system`` in the file or ``--set`` may set that and
everything else there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from lightning_ding.config import require
from lightning_ding.distributed.config import ParallelCollectorConfig, resolve_policy

SECTIONS = frozenset({"policy", "seed_everything", "trainer", "model", "data", "ckpt_path", "system"})
"""Keys of a file of ``fit``; ``system`` is only read here."""
MAIN = (
    *("seed", "max_env_step", "max_train_iter", "norm_obs", "norm_reward", "monitor"),
    *("demonstrations", "demonstration_share", "imitation_reward"),
)
ENV = (
    *("env_id", "env_kwargs", "mode", "wrappers", "train_wrappers", "eval_wrappers", "eval_env_id", "eval_env_kwargs"),
    *("import_names", "info_keys", "evaluator_env_num", "n_evaluator_episode", "stop_value"),
)
LEARNER = ("rounds_per_epoch", "eval_every", "checkpoint_every")
"""Arguments of the datamodule by the section that has them here."""
NUM_ENVS = 8  # of a datamodule, unless the file says otherwise


def is_of_fit(content: Mapping[str, Any]) -> bool:
    """Return whether a config file is one of ``fit``.

    Example:
        >>> is_of_fit({"policy": "ppo", "data": {"env_id": "CartPole-v1"}}), is_of_fit({"main": {}})
        (True, False)
    """
    return "main" not in content and not content.keys().isdisjoint(SECTIONS - {"system"})


def run_of_fit(content: Mapping[str, Any], system: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of the distributed run that trains as ``fit`` would with a file.

    The run's folder is ``parallel`` in the folder of the file's logger, or ``main.exp_name``'s default. The learner
    evaluates, and logs to TensorBoard in that folder.

    Args:
        content: Content of the file.
        system: Settings of the section ``system``, from the file and the command line.

    Raises:
        ValueError: If a key has no meaning in a distributed run, or the policy is unknown or wrong.
        TypeError: If a value of the policy's config has the wrong type.
        KeyError: If the policy is not registered.
    """
    unknown = sorted(content.keys() - SECTIONS)
    require(not unknown, "the config file", f"one with the keys {', '.join(sorted(SECTIONS))}", unknown)
    path = content.get("ckpt_path")
    require(path is None, "ckpt_path", "left out: --resume continues a distributed run", path)
    name, trainer = content.get("policy"), _mapping("trainer", content.get("trainer"))
    require(isinstance(name, str), "policy", "the name of a registered policy in a distributed run", name)
    model = _arguments("model", content.get("model"))
    policy = {"type": name, **_mapping("model.cfg", model.pop("cfg", None))}
    given = {key: value for key, value in model.items() if value is not None}
    require(not given, "model", "the policy's cfg alone in a distributed run", given)
    data = {key: value for key, value in _arguments("data", content.get("data")).items() if value is not None}
    evaluator, num_envs = resolve_policy(policy).eval.evaluator, data.pop("num_envs", NUM_ENVS)
    require(_is_count(num_envs), "data.num_envs", "an integer >= 1", num_envs)
    others = sorted(data.keys() - {*MAIN, *ENV, *LEARNER})
    given = {key: data[key] for key in others}
    require(not given, f"data.{others[0] if others else ''}", "left out in a distributed run", given)
    main, env, learner = ({key: data[key] for key in names if key in data} for names in (MAIN, ENV, LEARNER))
    seed = content.get("seed_everything")
    main = {"seed": seed if isinstance(seed, int) and not isinstance(seed, bool) else 0, "policy": policy, **main}
    episodes = env.setdefault("n_evaluator_episode", evaluator.n_episode)
    env.setdefault("evaluator_env_num", min(episodes, num_envs))
    number = _mapping("system.collector", system.get("collector")).get("num", ParallelCollectorConfig().num)
    ranks = _number_of_ranks(trainer)
    env["collector_env_num"] = math.ceil(ranks * num_envs / (number if _is_count(number) else 1))
    folder = _folder(trainer)
    return {
        "main": {**({} if folder is None else {"exp_name": folder}), **main, "env": env},
        "system": {
            "learner": {**learner, "multi_gpu": ranks > 1, "trainer": {"accelerator": "cpu", **trainer}},
            "coordinator": {"commander": {"eval_interval": None}},
        },
    }


def _number_of_ranks(trainer: Mapping[str, Any]) -> int:
    """Return the number of the learner's ranks: devices times nodes, where nothing is given one of each.

    Raises:
        ValueError: If ``devices`` or ``num_nodes`` is no integer >= 1; ``devices`` may be "auto" without a GPU.
    """
    given = {name: trainer.get(name) for name in ("devices", "num_nodes")}
    for name, number in given.items():
        is_auto = (name, number) == ("devices", "auto") and trainer.get("accelerator", "cpu") in ("auto", "cpu")
        is_known = number is None or is_auto or _is_count(number)
        require(is_known, f"trainer.{name}", "an integer >= 1 in a distributed run", number)
    return int(math.prod(cast(int, number) for number in given.values() if _is_count(number)))


def _mapping(name: str, section: Any) -> dict[str, Any]:
    """Return a section of a file; nothing there is an empty one."""
    require(section is None or isinstance(section, Mapping), name, "a mapping", section)
    return dict(section or {})


def _arguments(name: str, section: Any) -> dict[str, Any]:
    """Return the arguments in a section, with or without the class, which ``policy`` decides."""
    found = _mapping(name, section)
    return _mapping(f"{name}.init_args", found.get("init_args")) if "class_path" in found else found


def _is_count(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1


def _folder(trainer: dict[str, Any]) -> str | None:
    """Take the logger out of the Trainer's arguments, unless it is False; return the folder of its run, if it has one.

    Raises:
        ValueError: If it is not the logger of a distributed run.
    """
    logger = trainer.get("logger")
    if logger is False:
        return None
    trainer.pop("logger", None)
    is_own = isinstance(logger, Mapping) and str(logger.get("class_path")).endswith("TensorBoardLogger")
    allowed = "a TensorBoardLogger, false or left out in a distributed run"
    require(is_own or logger in (None, True), "trainer.logger", allowed, logger)
    about = _arguments("trainer.logger", logger) if is_own else {}
    parts = [about.get("save_dir"), about.get("name", "run"), "parallel"]
    return None if parts[0] is None else "/".join(str(part) for part in parts if part)
