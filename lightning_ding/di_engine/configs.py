"""Reading a pair of DI-engine's configs, and merging it with DI-engine's defaults.

``main_config`` holds the values, ``create_config`` names the classes. The precedence is DI-engine's: its own defaults,
then ``create_config``, then ``main_config``.
"""

from __future__ import annotations

import copy
import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from easydict import EasyDict

from lightning_ding.config import deep_merge, nearest, require
from lightning_ding.di_engine.defaults import DEFAULTS
from lightning_ding.di_engine.ding_finder import names_of_ding
from lightning_ding.di_engine.team_keys import OF_TEAMS

Config = dict[str, Any]
PAIR = ("main_config", "create_config")
TRIPLE = (*PAIR, "system_config")
MAIN_KEYS = ("exp_name", "env", "policy", "dataset", "reward_model", "seed", "world_model")
CREATE_KEYS = (
    *("env", "env_manager", "policy", "replay_buffer", "collector", "evaluator", "reward_model"),
    *("world_model", "imagination_buffer"),
)
ENV_DEFAULTS = {"stop_value": 1e10, "n_evaluator_episode": 4}
ROLES = {"collector": "sample", "evaluator": "interaction", "replay_buffer": "advanced"}
"""The types of workers that ``create_config`` need not name."""
_PARALLEL = "describe a distributed run in a YAML file for `lightning-ding parallel`"
NOVELTY = ("rnd_reward_model", "episodic_reward_model")
"""Sections of NGU's networks of novelty, which are those of its policy here."""
REFUSED = {
    **dict.fromkeys(NOVELTY, "only ngu has them"),
    "learner": _PARALLEL,
    "commander": _PARALLEL,
    "comm_learner": _PARALLEL,
    "comm_collector": _PARALLEL,
    "system_config": _PARALLEL,
}
"""Sections that exist in DI-engine and not here, with the reason."""


class Missing(ValueError):  # noqa: N818 - a complete config, no error in it
    """A config that this package can run lacks a package or a file on this machine.

    Args:
        text: A sentence that names the missing thing and says how to get it.
        kind: Its kind: ``"env"``, ``"data set"`` or ``"checkpoint"``.
    """

    def __init__(self, text: str, kind: str) -> None:
        super().__init__(text)
        self.kind = kind


def read_pair(source: Any) -> tuple[Config, Config]:
    """Return copies of ``main_config`` and ``create_config``.

    A file is run as Python code, so only read files that you trust.

    Args:
        source: Path of a Python file that defines both, or the pair itself.

    Raises:
        ValueError: If there is no such file, the file or the pair lacks one of them, or a section is unknown.
        TypeError: If ``source`` is neither a path nor a pair of mappings.
    """
    if isinstance(source, (str, Path)):
        source = read_file(source, PAIR)
    is_pair = isinstance(source, (tuple, list)) and all(isinstance(one, Mapping) for one in source)
    if not is_pair:
        got = type(source).__name__
        raise TypeError(
            f"input_cfg must be the path of a config file or a pair (main_config, create_config), got {got}"
        )
    if len(source) != 2:
        parts = "three parts belong to a distributed run: " + _PARALLEL if len(source) == 3 else "two parts are needed"
        raise ValueError(f"input_cfg must be (main_config, create_config), got {len(source)} configs; {parts}")
    main, create = _with_novelty(*(plain(one) for one in source))
    _check_sections(main, "main_config", MAIN_KEYS, ("env", "policy"))
    _check_sections(create, "create_config", CREATE_KEYS, ("policy",))
    return main, create


def _with_novelty(main: Config, create: Config) -> tuple[Config, Config]:
    """Return a pair in which the sections of NGU's novelty are a part of the section of its policy."""
    sections = [one.get("policy", {}) for one in (main, create)]
    if not any(isinstance(one, Mapping) and str(one.get("type")).startswith("ngu") for one in sections):
        return main, create
    given = [name for name in NOVELTY if name in main or name in create]
    moved = {name: {**create.pop(name, {}), **main.pop(name, {})} for name in given}
    return {**main, "policy": {**main.get("policy", {}), **moved}}, create


def read_triple(path: str | Path) -> tuple[Any, ...]:
    """Return the three configs of a distributed run in a file; see :func:`read_file`."""
    return read_file(path, TRIPLE)


def read_file(path: str | Path, names: Sequence[str]) -> tuple[Any, ...]:
    """Return the configs of a file, which is run as Python code, so only read files that you trust.

    While it runs, ``import ding`` finds the names of this package, unless DI-engine itself is imported already.

    Args:
        path: The file.
        names: Names of the configs, such as ``main_config``.

    Raises:
        ValueError: If there is no such file, or it lacks one of the configs.
    """
    file = Path(path)
    wanted = " and ".join(names)
    if file.suffix != ".py" or not file.is_file():
        raise ValueError(f"input_cfg must be a Python file with {wanted}, got {str(file)!r}")
    spec = importlib.util.spec_from_file_location(f"_config_{file.stem}", file)
    module = importlib.util.module_from_spec(cast(Any, spec))
    with names_of_ding():
        cast(Any, spec).loader.exec_module(module)
    for name in names:
        if not isinstance(getattr(module, name, None), Mapping):
            raise ValueError(f"{str(file)!r} must define {wanted}, but has no {name}")
    return tuple(getattr(module, name) for name in names)


ENTRY = re.compile(r"\bserial_pipeline_(\w+)\(")


def entry_of(source: Any) -> str | None:
    """Return the entry of DI-engine that a config file calls when it is run, without ``serial_pipeline_``.

    Args:
        source: Path of the file; None is returned for a pair.
    """
    if not isinstance(source, (str, Path)) or not Path(source).is_file():
        return None
    found = ENTRY.findall(Path(source).read_text(errors="replace"))
    return found[-1] if found else None


CLASSES = ("env_manager", "policy", "learner", "collector", "evaluator", "buffer", "env", "reward_model", "world_model")
"""Arguments of DI-engine's ``compile_config`` that are classes."""
NO_CLASSES = (
    "left out: create_config names the classes by their registered types, and serial_pipeline takes an env and a "
    "network of your own as env_setting and model"
)


def compile_config(
    main: Mapping[str, Any],
    create: Mapping[str, Any] | None = None,
    *more: type,
    seed: int = 0,
    family: str | None = None,
    create_cfg: Mapping[str, Any] | None = None,
    auto: bool = True,
    save_cfg: bool = False,
    **classes: type | None,
) -> EasyDict:
    """Return one config, merged as DI-engine merges it; the arguments are not changed.

    Only the defaults of DI-engine that differ from this package's are filled in; see
    :data:`~lightning_ding.di_engine.defaults.DEFAULTS`. The result has the keys ``exp_name``, ``seed``, ``env`` with
    the section ``manager``, and ``policy``.

    Args:
        main: The ``main_config``.
        create: The ``create_config``.
        *more: Refused, as ``classes``.
        seed: Seed of the run.
        family: Type of policy whose defaults apply; None means that of ``create_config``.
        create_cfg: DI-engine's name of ``create``.
        auto: Only True, with which DI-engine reads ``create_cfg``.
        save_cfg: Only False: nothing is written; the entries write ``config.yaml``.
        **classes: Refused: DI-engine's arguments for classes in place of a ``create_config``.

    Raises:
        ValueError: If there is no ``create_config`` or classes are given, or the policy has no type, or its type is
            not among those of ``DEFAULTS``.
        TypeError: If an argument is unknown.

    Example:
        >>> main = {"env": {}, "policy": {"learn": {"batch_size": 8}}}
        >>> cfg = compile_config(main, {"env": {"type": "cartpole"}, "policy": {"type": "dqn"}})
        >>> cfg.policy.learn.batch_size, cfg.policy.discount_factor
        (8, 0.97)
    """
    given = {name: value for name, value in classes.items() if value is not None}
    unknown = [name for name in classes if name not in CLASSES]
    if unknown:
        raise TypeError(
            f"compile_config has no argument {unknown[0]!r}; {nearest(unknown[0], (*CLASSES, 'create_cfg'))}"
        )
    listed = [create, *more] if more or isinstance(create, type) else []
    require(not (given or listed), "the classes of compile_config", NO_CLASSES, given or listed)
    create = create_cfg if create is None else create
    require(isinstance(create, Mapping) and auto, "create_cfg", "a create_config, with auto=True", create)
    require(not save_cfg, "save_cfg", "False: serial_pipeline and the other entries write config.yaml", save_cfg)
    main, create = plain(main), plain(cast(Config, create))
    kind = family or policy_type(main, create)
    if kind not in DEFAULTS:
        raise ValueError(f"create_config.policy.type must be one of {', '.join(DEFAULTS)}, got {kind!r}")
    return EasyDict(merge(main, create, DEFAULTS[kind]) | {"seed": seed})


def merge(main: Mapping[str, Any], create: Mapping[str, Any], defaults: Mapping[str, Any]) -> Config:
    """Return a config from a pair and the defaults of a policy, which have the lowest precedence."""
    roles = {"collect": "collector", "eval": "evaluator", "other": "replay_buffer"}
    types = {section: {role: {"type": ROLES[role]}} for section, role in roles.items()}
    chosen = {section: {role: create.get(role, {})} for section, role in roles.items()}
    policy: Config = types
    for layer in (defaults, chosen, create["policy"], main["policy"]):
        policy = deep_merge(policy, layer)
    if "unroll_len" in policy:
        policy["collect"]["unroll_len"] = policy.pop("unroll_len")
    env = deep_merge(ENV_DEFAULTS | create.get("env", {}), main["env"])
    env["manager"] = deep_merge({"type": "base", **create.get("env_manager", {})}, env.get("manager", {}))
    return {"exp_name": main.get("exp_name", "default_experiment"), "env": env, "policy": policy}


OLDER_NAMES = {"cql_discrete": "discrete_cql", "sac_discrete": "discrete_sac"}
"""Names of policies in configs that are older than DI-engine's own."""


def policy_type(main: Mapping[str, Any], create: Mapping[str, Any]) -> str:
    """Return the type of the policy without ``_command``; with ``multi_agent`` that of a team.

    Raises:
        ValueError: If ``create_config`` has none.
    """
    kind = main["policy"].get("type", create["policy"].get("type"))
    kind = OLDER_NAMES.get(kind, kind) if isinstance(kind, str) else kind
    if not isinstance(kind, str):
        raise ValueError(f"create_config.policy.type must be the name of a policy, got {kind!r}")
    kind = kind.removesuffix("_command")
    return OF_TEAMS.get(kind, kind) if main["policy"].get("multi_agent") else kind


def flat(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of every entry that is not a section; empty sections yield nothing.

    Example:
        >>> list(flat({"learn": {"learner": {}, "batch_size": 8}}))
        [('learn.batch_size', 8)]
    """
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def nested(leaves: Mapping[str, Any]) -> Config:
    """Return nested dicts for dotted keys.

    Example:
        >>> nested({"learn.batch_size": 8, "nstep": 1})
        {'learn': {'batch_size': 8}, 'nstep': 1}
    """
    result: Config = {}
    for path, value in leaves.items():
        *sections, key = path.split(".")
        below = result
        for section in sections:
            below = below.setdefault(section, {})
        below[key] = value
    return result


def given_keys(main: Mapping[str, Any], create: Mapping[str, Any]) -> set[str]:
    """Return the dotted keys of the policy that a pair sets."""
    sections = {"collector": "collect.collector", "evaluator": "eval.evaluator", "replay_buffer": "other.replay_buffer"}
    roles = {f"{path}.{key}" for name, path in sections.items() for key, _ in flat(create.get(name, {}))}
    return roles | {key for config in (main, create) for key, _ in flat(config["policy"])}


def differing(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> Config:
    """Return the values of a config that differ from the defaults, in the order of the defaults."""
    order = [*(name for name in defaults if name in config), *(name for name in config if name not in defaults)]
    found: Config = {}
    for name in order:
        value, default = config[name], defaults.get(name, config)
        if isinstance(value, Mapping) and isinstance(default, Mapping) and default is not config:
            value = differing(value, default)
            if not value:
                continue
        if value != default:
            found[name] = value
    return found


def plain(value: Any) -> Any:
    """Return a deep copy in which every mapping, such as an EasyDict, is a dict."""
    if isinstance(value, Mapping):
        return {str(key): plain(below) for key, below in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain(below) for below in value)
    return value if callable(value) else copy.deepcopy(value)


def _check_sections(config: Config, name: str, known: tuple[str, ...], needed: tuple[str, ...]) -> None:
    for key in config:
        if key in REFUSED:
            raise ValueError(f"{name}.{key} has no counterpart: {REFUSED[key]}")
        if key not in known:
            raise ValueError(f"unknown section {f'{name}.{key}'!r}; {nearest(key, known)}")
    for key in needed:
        if not isinstance(config.get(key), Mapping):
            raise ValueError(f"{name} must have the section {key!r}, got {sorted(config)}")
