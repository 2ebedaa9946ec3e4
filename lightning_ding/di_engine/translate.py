"""Translating a pair of DI-engine's configs into a run: a policy, a datamodule, a Trainer and its callbacks."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from lightning_ding.config import closest, deep_merge, require, resolve, to_dict
from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
from lightning_ding.di_engine.configs import Config, flat, merge, nested, policy_type, read_pair
from lightning_ding.di_engine.defaults import ALWAYS_WITHOUT_KEY, DEFAULTS, WITHOUT_KEY
from lightning_ding.di_engine.env_types import BASE_ENV, TranslatedEnvs, translate_envs
from lightning_ding.di_engine.keys import HOME_OF_GAMMA, KEYS, READ_BY_NOBODY
from lightning_ding.di_engine.shared_keys import EVAL_FREQ, HOOK, Key, hooks_of, is_hook, own_modules, per_round
from lightning_ding.policy import Policy
from lightning_ding.registry import POLICY_REGISTRY, import_modules

UNLIMITED = int(1e10)
"""Env steps or updates from which on DI-engine's limits mean no limit."""
SIMILAR = 0.75  # share of equal letters from which on a key counts as misspelt
NEVER = 1e9  # stop values from here on are never reached
SAVE_EVERY, LOG_EVERY = 10_000, 100  # updates, DI-engine's defaults
DEVICE_KEYS = ("cuda", "multi_gpu")
LEARNER_KEYS = {
    f"{HOOK}load_ckpt_before_run": "the checkpoint that is loaded first",
    f"{HOOK}log_show_after_iter": "MetricsLogger(log_every_n_rounds)",
    f"{HOOK}save_ckpt_after_iter": "RunCheckpoint(every_n_epochs)",
    f"{HOOK}save_ckpt_after_run": "RunCheckpoint, which always writes the last checkpoint",
    "learn.resume_training": "the checkpoint also restores counters, optimizers and the buffer",
    "learn.learner.load_path": "the checkpoint of eval",
    "learn.learner.log_policy": "Lightning's summary of the model",
    "load_path": "the checkpoint of eval",
}
"""Keys that the run reads apart from the policy, and what they become."""
ITERATIONS = "learn.learner.train_iterations"
REGISTERED = ("type", "import_names", "on_policy", "learn.learner.import_names", "eval.evaluator.import_names")
"""Keys of the registries, and of the algorithm itself."""
Named = dict[str, Any]
"""A class: ``class_path``, its dotted path or the class itself, and ``init_args``."""


@dataclass(frozen=True)
class Run:
    """A run of this package, translated from a pair of DI-engine's configs."""

    family: str
    """The policy among DI-engine's whose keys and defaults apply."""
    policy: str
    """Registered name of the policy, or the dotted path of a class of the user."""
    policy_class: type[Policy[Any]]
    policy_config: Config
    """The policy's config, as a nested dict of what differs from its defaults, or is given."""
    data: Config
    """Arguments of the datamodule; callables where there are no names."""
    trainer: Config
    """Arguments of the Trainer, apart from its logger and callbacks."""
    exp_name: str
    """Folder of the run, which has not been created."""
    seed: int
    log_every_n_rounds: int
    """Rounds between two reports of metrics."""
    save_every_n_epochs: int
    """Evaluations between two checkpoints from which the run can be resumed."""
    eval_every_updates: int | None = None
    """Updates between two evaluations where a round has an unknown number of them; None counts rounds."""
    checkpoint: str = ""
    """Checkpoint to load at the start of training; empty for none."""
    resumes: bool = False
    """Whether training continues: with the counters, the optimizers and the buffer of the checkpoint."""
    evaluated: str = ""
    """Checkpoint that ``eval`` loads; empty for none."""
    hooks: tuple[Named, ...] = ()
    """Hooks of the learner that the pair describes in full form."""
    network: Config | None = None
    """``type`` and arguments of a registered network of the user; None for that of the policy."""
    translated: tuple[str, ...] = ()
    """One line for each key of the pair: what it became."""
    warnings: tuple[str, ...] = ()
    """One line for each key or value without the effect that a reader may expect."""

    @property
    def logger(self) -> Named:
        """The logger, which writes below the folder of the run."""
        where = {"save_dir": self.exp_name, "name": "log", "version": "serial"}
        return {"class_path": "lightning.pytorch.loggers.TensorBoardLogger", "init_args": where}

    @property
    def callbacks(self) -> list[Named]:
        """The callbacks that write metrics and checkpoints, that load the first weights, and the learner's hooks."""
        home, folder = "lightning_ding.callbacks.", os.path.join(self.exp_name, "ckpt")
        options: dict[str, Config] = {
            "MetricsLogger": {"log_every_n_rounds": self.log_every_n_rounds},
            "BestCheckpoint": {"dirpath": folder},
            "RunCheckpoint": {"dirpath": folder, "every_n_epochs": self.save_every_n_epochs},
        }
        if self.eval_every_updates is not None:
            options["EvaluationInterval"] = {"train_iter": self.eval_every_updates}
        if self.checkpoint and not self.resumes:
            options["InitialWeights"] = {"path": self.checkpoint}
        made: list[Named] = [{"class_path": f"{home}{name}", "init_args": given} for name, given in options.items()]
        return [*made, *self.hooks]

    @property
    def datamodule_class(self) -> type[ReplayDataModule] | type[RolloutDataModule]:
        """Class of the datamodule."""
        return RolloutDataModule if self.policy_class.on_policy else ReplayDataModule


@dataclass
class _Notes:
    """Lines about the keys of a pair."""

    translated: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def translate(
    source: Any,
    seed: int = 0,
    env_setting: Sequence[Any] | None = None,
    max_train_iter: int = UNLIMITED,
    max_env_step: int = UNLIMITED,
    dynamic_seed: bool | None = None,
    evaluates: bool = False,
    replay_path: str | None = None,
) -> Run:
    """Return the run that a pair of DI-engine's configs describes.

    Args:
        source: Path of a config file, which is run as Python code, or the pair ``(main_config, create_config)``.
        seed: Seed of the run, >= 0.
        env_setting: The env's class or function, and a list of configs for the training and for the evaluation envs;
            None means the ``env`` section of the pair.
        max_train_iter: Updates after which the run ends, counted as DI-engine does, >= 1; 10^10 for no limit.
        max_env_step: Env steps after which the run ends, >= 1; 10^10 for no limit.
        dynamic_seed: Whether the episodes of a training env differ; None and True, which is the only possibility.
        evaluates: Whether the run only evaluates a policy, and writes the videos that the config or the next argument
            asks for.
        replay_path: Folder for the videos of an evaluation; None means the config's ``env.replay_path``.

    Raises:
        ValueError: If a key or value has no counterpart, or a key that is needed is missing.
        TypeError: If ``source`` is neither a path nor a pair, or a value has the wrong type.
    """
    fixed = "None or True: with False each episode of a training env would be the same"
    require(dynamic_seed is not False, "dynamic_seed", fixed, dynamic_seed)
    for name, value in (("seed", seed), ("max_train_iter", max_train_iter), ("max_env_step", max_env_step)):
        least = 0 if name == "seed" else 1
        whole = isinstance(value, (int, float)) and not isinstance(value, bool) and value == value // 1
        require(whole and value >= least, name, f"a whole number >= {least}", value)
    main, create = read_pair(source)
    envs = translate_envs(main["env"], create.get("env", {}), create.get("env_manager", {}), _triple(env_setting))
    if evaluates:
        envs = envs.with_replay(replay_path)
    return _run(main, create, envs, {"seed": seed}, int(max_train_iter), int(max_env_step))


def _run(
    main: Config, create: Config, envs: TranslatedEnvs, data: Config, max_train_iter: int, max_env_step: int
) -> Run:
    """Return the run of a pair whose envs are translated already; ``data`` has further arguments of the datamodule."""
    import_modules(own_modules(create["policy"].get("import_names", ())))
    policy, policy_class, family = find_policy(policy_type(main, create))
    cfg = merge(main, create, DEFAULTS[family])
    keys, given, notes = dict(flat(cfg["policy"])), given_keys(main, create), _Notes()
    config, network = _policy_config(keys, given, family, notes)
    config = deep_merge(config, {"collect": {"collector": envs.collector}} if envs.collector else {})
    if config["eval"]["evaluator"].get("render", {}).get("render_freq", -1) > 0 and envs.env != BASE_ENV:
        envs = envs.with_rendering()
    hooks = hooks_of(cfg["policy"].get("learn", {}).get("learner", {}))
    notes.translated += [f"policy.{HOOK}{key} -> the callback {one['class_path'].__name__}" for key, one in hooks]
    times = _Times(keys, family, config["eval"]["evaluator"]["eval_freq"])
    limits = {"max_env_step": _limit(max_env_step), "max_train_iter": times.updates(max_train_iter)}
    _learner_notes(keys, given, notes)
    if main.get("seed", data["seed"]) != data["seed"]:
        notes.warnings.append(f"seed = {main['seed']!r} has no effect: the seed of the run is {data['seed']}")
    return Run(
        family=family,
        policy=policy,
        policy_class=policy_class,
        policy_config=without_defaults(deep_merge(implied(family), config), policy_class),
        data=_data(envs, {**limits, "rounds_per_epoch": times.rounds_per_epoch, **data}),
        trainer=_trainer(keys, given, notes),
        exp_name=str(cfg["exp_name"]),
        seed=data["seed"],
        log_every_n_rounds=times.log_every_n_rounds,
        save_every_n_epochs=times.save_every_n_epochs,
        eval_every_updates=times.eval_every_updates,
        checkpoint=str(keys.get(f"{HOOK}load_ckpt_before_run") or ""),
        resumes=bool(keys.get("learn.resume_training", False)),
        evaluated=str(keys.get("learn.learner.load_path") or keys.get("load_path") or ""),
        hooks=tuple(one for _, one in hooks),
        network=network,
        translated=(*notes.translated, *envs.translated),
        warnings=(*notes.warnings, *envs.warnings),
    )


def implied(family: str) -> Config:
    """Return the settings that DI-engine has no key for, as a part of our config."""
    return nested(WITHOUT_KEY.get(family, {}) | ALWAYS_WITHOUT_KEY)


def find_policy(kind: str) -> tuple[str, type[Policy[Any]], str]:
    """Return the name and the class of a policy, and the policy of DI-engine whose keys it has.

    Raises:
        ValueError: If the policy is not one of the ten, nor a registered subclass of one of them.
    """
    known = {POLICY_REGISTRY.get(name): name for name in KEYS}
    if kind in KEYS:
        return kind, POLICY_REGISTRY.get(kind), kind
    found = POLICY_REGISTRY.get(kind) if kind in POLICY_REGISTRY else None
    bases = [known[base] for base in getattr(found, "__mro__", ()) if base in known]
    allowed = f"one of {', '.join(KEYS)}, or the name of a registered subclass of one of these policies"
    if found is None or not bases:
        raise ValueError(f"create_config.policy.type must be {allowed}, got {kind!r}")
    return f"{found.__module__}.{found.__qualname__}", found, bases[0]


def without_defaults(config: Config, policy_class: type[Policy[Any]]) -> Config:
    """Return a policy's config without the values that are the defaults of its class, in the order of its keys.

    Raises:
        ValueError: If a value is out of its range.
        TypeError: If a value has the wrong type.
    """
    resolve(policy_class.config_class, config)
    return _differing(config, to_dict(policy_class.config_class()))


def _differing(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> Config:
    order = [*(name for name in defaults if name in config), *(name for name in config if name not in defaults)]
    found: Config = {}
    for name in order:
        value, default = config[name], defaults.get(name, config)
        if isinstance(value, Mapping) and isinstance(default, Mapping) and default is not config:
            value = _differing(value, default)
            if not value:
                continue
        if value != default:
            found[name] = value
    return found


def given_keys(main: Mapping[str, Any], create: Mapping[str, Any]) -> set[str]:
    """Return the dotted keys of the policy that a pair sets."""
    sections = {"collector": "collect.collector", "evaluator": "eval.evaluator", "replay_buffer": "other.replay_buffer"}
    roles = {f"{path}.{key}" for name, path in sections.items() for key, _ in flat(create.get(name, {}))}
    return roles | {key for config in (main, create) for key, _ in flat(config["policy"])}


# ---------------------------------------------------------------------------------------------------- the policy


def _policy_config(keys: Config, given: set[str], family: str, notes: _Notes) -> tuple[Config, Config | None]:
    """Return our config of a policy, and the user's own network if the pair names one."""
    network = _network(keys, family)
    table, ours, origin = KEYS[family], dict[str, Any](), dict[str, str]()
    for name, value in keys.items():
        if _is_consumed(name) or (network is not None and name.startswith("model.") and name not in SHAPES):
            continue
        for path, translated in _translated(name, value, keys, table, family, name in given, notes).items():
            if ours.get(path, translated) != translated:
                raise ValueError(f"policy.{name} and policy.{origin[path]} disagree about {path}: {value!r}")
            ours[path], origin[path] = translated, name
    ours.setdefault(EVAL_FREQ, table[EVAL_FREQ].ours(1000, keys)[EVAL_FREQ])
    _check_amount(keys, family)
    if KEYS[family].get("collect.n_episode", Key()).allowed is None and keys["collect.collector.type"] == "episode":
        ours |= {"collect.collector.type": "episode", "collect.n_sample": None}
    return nested(ours), network


SHAPES = ("model.obs_shape", "model.action_shape")


def _translated(
    name: str, value: Any, keys: Config, table: Mapping[str, Key], family: str, is_given: bool, notes: _Notes
) -> Config:
    """Return our values for one key, and note what became of it."""
    key = table.get(name)
    if key is None and not is_given:
        return {}
    if key is None:
        notes.warnings.append(_unread(name, value, keys, table, family))
        return {}
    if key.allowed is not None and value not in key.allowed:
        allowed = " or ".join(map(repr, key.allowed))
        raise ValueError(f"policy.{name} must be {allowed} for {family} here ({key.why}), got {value!r}")
    if key.needs is not None and not key.needs(keys):
        if is_given:
            notes.warnings.append(f"policy.{name} = {value!r} has no effect: {key.why}")
        return {}
    ours = key.ours(value, keys)
    if is_given:
        goals = [f"model.cfg.{path}{'' if to == value else f' = {to!r}'}" for path, to in ours.items()]
        notes.translated.append(f"policy.{name} -> {', '.join(goals) or key.why or 'implied'}")
    return ours


def _unread(name: str, value: Any, keys: Config, table: Mapping[str, Key], family: str) -> str:
    """Return the warning about a key that DI-engine's policy never reads.

    Raises:
        ValueError: For an argument that the network does not have, or a section that needs another pipeline.
    """
    if name.startswith("model."):
        near = closest(name, [one for one in table if one.startswith("model.")])
        hint = f"; did you mean 'policy.{near}'?" if near else ""
        raise ValueError(f"policy.{name} is no argument of the network of {family}{hint}")
    if name.startswith("other.her."):
        raise ValueError(f"policy.{name} has no counterpart: hindsight replay")
    if name.startswith(HOOK):
        raise ValueError(f"policy.{name} is no hook of a learner: give a mapping with a 'type' and a 'position'")
    if name in READ_BY_NOBODY:
        return f"policy.{name} = {value!r} has no effect: {READ_BY_NOBODY[name]}"
    if name.endswith("discount_factor"):
        home = HOME_OF_GAMMA[family]
        used = f"it reads policy.{home}, which is {keys.get(home, 0.99)}"
        return f"policy.{name} = {value!r} is not read by {family}: {used}"
    return f"policy.{name} = {value!r} is not read by {family}{_hint(name, table)}"


def _hint(name: str, table: Mapping[str, Key]) -> str:
    """Return a question that names the key which a misspelt one may mean; empty for a key of another policy."""
    if any(name in others for others in KEYS.values()):
        return ""
    near = closest(name, [*table, *LEARNER_KEYS, *DEVICE_KEYS]) or ""
    last, last_of_near = name.rpartition(".")[2], near.rpartition(".")[2]
    is_similar = difflib.SequenceMatcher(None, last, last_of_near).ratio() >= SIMILAR
    return f"; did you mean 'policy.{near}'?" if is_similar else ""


def _is_consumed(name: str) -> bool:
    """Return whether a key is read elsewhere, or belongs to the registries."""
    last = name.rpartition(".")[2]
    is_learner = name in LEARNER_KEYS or name in (ITERATIONS, "learn.learner.type")
    return is_learner or is_hook(name) or name in (*DEVICE_KEYS, *REGISTERED) or last == "cfg_type"


def _network(keys: Config, family: str) -> Config | None:
    """Return type and arguments of the network that a pair names, if it does."""
    kind = keys.get("model.type")
    if kind is None:
        return None
    defaults = {f"model.{name}" for name, _ in flat(DEFAULTS[family].get("model", {}))}
    arguments = {
        name: value
        for name, value in keys.items()
        if name.startswith("model.") and name not in defaults and name != "model.import_names"
    }
    import_modules(own_modules(keys.get("model.import_names", ())))
    network: Config = nested(arguments)["model"]
    return network


def _check_amount(keys: Config, family: str) -> None:
    kind = keys["collect.collector.type"]
    on_policy = family in ("a2c", "ppo", "pg")
    known = ("sample", "episode") if on_policy else ("sample",)
    require(kind in known, "create_config.collector.type", f"one of {known} for {family}", kind)
    is_whole = kind == "episode" or family != "pg"
    require(is_whole, "create_config.collector.type", "'episode' for pg, whose returns need whole episodes", kind)
    name = "collect.n_episode" if kind == "episode" else "collect.n_sample"
    has_default = family in ("dqn", "c51", "qrdqn", "rainbow", "sac")
    require(has_default or keys.get(name) is not None, f"policy.{name}", f"set for {family}", keys.get(name))


# ---------------------------------------------------------------------------------------------------- envs, Trainer


def _data(envs: TranslatedEnvs, further: Config) -> Config:
    """Return the arguments of the datamodule."""
    data = {**envs.datamodule_kwargs(), **further}
    if data["stop_value"] >= NEVER:
        data["stop_value"] = None
    return {name: value for name, value in data.items() if value is not None}


def _triple(env_setting: Sequence[Any] | None) -> tuple[Any, Any, Any] | None:
    if env_setting is None:
        return None
    require(len(env_setting) == 3, "env_setting", "(env_fn, collector_env_cfg, evaluator_env_cfg)", env_setting)
    return env_setting[0], env_setting[1], env_setting[2]


def _trainer(keys: Config, given: set[str], notes: _Notes) -> Config:
    """Return the arguments of the Trainer."""
    cuda = bool(keys.get("cuda", False))
    if cuda and not torch.cuda.is_available():
        notes.warnings.append("policy.cuda = True, but there is no GPU: training on the CPU")
    trainer: Config = {"accelerator": "auto" if cuda else "cpu", "max_epochs": -1}
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if keys.get("multi_gpu", False) or world > 1:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))
        devices = local if world > 1 else max(1, torch.cuda.device_count())
        trainer |= {"strategy": "ddp", "devices": devices, "num_nodes": max(1, world // local)}
    else:
        trainer["devices"] = 1
    for name, option in zip(DEVICE_KEYS, ("accelerator", "strategy"), strict=True):
        if name in given:
            notes.translated.append(f"policy.{name} -> trainer.{option} = {trainer.get(option, 'auto')!r}")
    return trainer


def _learner_notes(keys: Config, given: set[str], notes: _Notes) -> None:
    for name in sorted(given & set(LEARNER_KEYS)):
        notes.translated.append(f"policy.{name} -> {LEARNER_KEYS[name]}")
    if ITERATIONS in given:
        notes.warnings.append(f"policy.{ITERATIONS} has no effect: max_train_iter limits the updates of a serial run")
    if keys.get(f"{HOOK}save_ckpt_after_run") is False:
        notes.warnings.append(f"policy.{HOOK}save_ckpt_after_run = False has no effect: a run always saves its end")


class _Times:
    """DI-engine's numbers of updates as numbers of our rounds, epochs and updates.

    Args:
        keys: The policy's config in DI-engine's format, with dotted keys.
        family: Type of the policy.
        eval_freq: Our ``eval.evaluator.eval_freq``.
    """

    def __init__(self, keys: Config, family: str, eval_freq: int) -> None:
        self._theirs, self._here = per_round(keys, family)
        has_episodes = keys["collect.collector.type"] == "episode"  # a round has an unknown number of updates
        counts_rounds = has_episodes and family == "a2c"
        log = keys.get(f"{HOOK}log_show_after_iter", LOG_EVERY)
        save = keys.get(f"{HOOK}save_ckpt_after_iter", SAVE_EVERY)
        self.log_every_n_rounds = 1 if has_episodes else max(1, round((log or SAVE_EVERY) / self._here))
        self.save_every_n_epochs = max(1, round((save or NEVER) / eval_freq))
        self.eval_every_updates = eval_freq if has_episodes and not counts_rounds else None
        self.rounds_per_epoch = eval_freq if counts_rounds else 1 if has_episodes else None

    def updates(self, limit: int) -> int | None:
        """Return a limit of updates; None for no limit."""
        if limit >= UNLIMITED or self._theirs == self._here:
            return _limit(limit)
        return -(-limit // self._theirs) * self._here


def _limit(value: int) -> int | None:
    return None if value >= UNLIMITED else value
