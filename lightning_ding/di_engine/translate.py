"""Translating a pair of DI-engine's configs into a run: a policy, a datamodule, a Trainer and its callbacks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_ding.config import closest, deep_merge, require, resolve, to_dict
from lightning_ding.di_engine.configs import (
    Config,
    differing,
    entry_of,
    flat,
    given_keys,
    merge,
    nested,
    policy_type,
    read_pair,
)
from lightning_ding.di_engine.defaults import ALWAYS_WITHOUT_KEY, DEFAULTS, TEAM_DEFAULTS, WITHOUT_KEY
from lightning_ding.di_engine.env_types import TranslatedEnvs, translate_envs
from lightning_ding.di_engine.keys import HOME_OF_GAMMA, KEYS, POLICIES, READ_BY_NOBODY, policy_class_of
from lightning_ding.di_engine.offline import TRANSFORMER, data_set_run, transformer_run
from lightning_ding.di_engine.own_form import is_own_form, own_run
from lightning_ding.di_engine.q_learning_keys import (
    EXPERT_KEYS,
    RANDOM_OF_EXPERT,
    demonstrations_of,
    demonstrations_of_sqil,
)
from lightning_ding.di_engine.reward_models import translate_reward_model
from lightning_ding.di_engine.run import READ_BY_RUN, UNLIMITED, Run, Times, is_consumed, limit, make_run, with_frames
from lightning_ding.di_engine.shared_keys import (
    EVAL_FREQ,
    HOOK,
    ON_POLICY,
    Key,
    Notes,
    misspelt,
    own_modules,
    per_round,
    translate_key,
)
from lightning_ding.di_engine.team_q_keys import without_mixer
from lightning_ding.di_engine.teams import as_team, pop_team
from lightning_ding.di_engine.world_model import as_mbpo, pop_world_model
from lightning_ding.policy import Policy
from lightning_ding.registry import POLICY_REGISTRY, import_modules

WITHOUT_N_SAMPLE = ("mdqn", "sql", "sqn", "bdq", "r2d2", "r2d2_gtrxl", "r2d3", "ngu", "dqfd", "ddpg", "td3", "pdqn")
"""Families whose configs in DI-engine have no default of ``collect.n_sample``, besides those on-policy."""
ENTRIES = (
    *(
        "serial",
        "onpolicy",
        "onpolicy_ppg",
        "dyna",
        "offline",
        "dt",
        "bc",
        "sqil",
        "dqfd",
        "r2d3",
        "ngu",
        "reward_model_ngu",
        "gail",
    ),
    *("reward_model_onpolicy", "reward_model_offpolicy", "guided_cost"),
    *("preference_based_irl", "preference_based_irl_onpolicy", "trex", "trex_onpolicy"),
    *("reward_model_trex", "reward_model_trex_onpolicy"),
)
"""DI-engine's serial entries that exist here, without ``serial_pipeline_``."""
REWARDS_OF_ENTRIES = {
    name: "trex" for name in ENTRIES if name.removesuffix("_onpolicy").endswith(("trex", "based_irl"))
}
REWARDS_OF_ENTRIES |= {"gail": "gail", "guided_cost": "guided_cost"}
"""The reward model of an entry whose config names none."""
SQIL_SAC = "sqil_sac"
"""DI-engine's type of SAC with the rewards of SQIL, whichever entry trains it."""


def translate(
    source: Any,
    seed: int = 0,
    env_setting: Sequence[Any] | None = None,
    max_train_iter: int = UNLIMITED,
    max_env_step: int = UNLIMITED,
    dynamic_seed: bool | None = None,
    evaluates: bool = False,
    replay_path: str | None = None,
    entry: str | None = None,
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
        entry: The entry of DI-engine that the pair is for: ``"sqil"``, which replaces the rewards, ``"gail"``, or
            another one, all of which the pair itself tells apart; None reads it from the file, if there is one.

    Raises:
        ValueError: If a key or value has no counterpart, or a key that is needed is missing.
        TypeError: If ``source`` is neither a path nor a pair, or a value has the wrong type.
        Missing: If all keys have counterparts, and the data set is not on this machine or the env does not run with
            this package.
    """
    fixed = "None or True: with False each episode of a training env would be the same"
    require(dynamic_seed is not False, "dynamic_seed", fixed, dynamic_seed)
    for name, value in (("seed", seed), ("max_train_iter", max_train_iter), ("max_env_step", max_env_step)):
        least = 0 if name == "seed" else 1
        whole = isinstance(value, (int, float)) and not isinstance(value, bool) and value == value // 1
        require(whole and value >= least, name, f"a whole number >= {least}", value)
    entry = entry_of(source) if entry is None and not evaluates else entry
    main, create = read_pair(source)
    if entry in REWARDS_OF_ENTRIES and "type" not in create.get("reward_model", {}):
        main["reward_model"] = {"type": REWARDS_OF_ENTRIES[entry], **main.get("reward_model", {})}
    if main["policy"].get("other", {}).get("her") and create.get("env", {}).get("type") == "bitflip":
        main = deep_merge(main, {"env": {"with_goals": True}})
        main["policy"].get("model", {}).pop("obs_shape", None)  # observations have three entries
    envs = translate_envs(main["env"], create.get("env", {}), create.get("env_manager", {}), _triple(env_setting))
    if evaluates:
        envs = envs.with_replay(replay_path)
    run = _run(main, create, envs, {"seed": seed}, int(max_train_iter), int(max_env_step), entry == "sqil")
    run.check_needs(installed=False)
    allowed = f"one of {', '.join(ENTRIES)}: another one trains something else"
    require(entry is None or entry in ENTRIES, "the entry serial_pipeline_* of the file", allowed, entry)
    return run


def _run(
    main: Config,
    create: Config,
    envs: TranslatedEnvs,
    data: Config,
    max_train_iter: int,
    max_env_step: int,
    is_sqil: bool = False,
) -> Run:
    """Return the run of a pair whose envs are translated already; ``data`` has further arguments of the datamodule."""
    import_modules(own_modules(create["policy"].get("import_names", ())))
    kind = policy_type(main, create)
    if kind == SQIL_SAC:
        kind, is_sqil = "sac", True
    if kind == TRANSFORMER:
        _check_without_steps(main, create, kind, max_env_step, "whose loss has no rewards")
        run = transformer_run(main, create, envs, data["seed"], max_train_iter)
        return dataclasses.replace(run, policy_config=without_defaults(run.policy_config, run.policy_class))
    require("dataset" not in main, "main_config.dataset", f"left out with {kind}, which collects", main.get("dataset"))
    policy, policy_class, family = find_policy(without_mixer(kind, main))
    if not family:
        is_plain = not (main.get("reward_model") or create.get("reward_model"))
        require(is_plain, "reward_model", "left out with a policy in DI-engine's form", policy)
        limits = {"max_env_step": limit(max_env_step), "max_train_iter": limit(max_train_iter)}
        return own_run(main, create, envs, {**limits, **data}, policy_class)
    is_offline = policy_class.trains_on == "dataset"
    replays = not (is_offline or policy_class.on_policy)
    require(replays or not is_sqil, "create_config.policy.type", "one that learns from replay, for SQIL", policy)
    if is_offline:
        _check_without_steps(main, create, kind, max_env_step, "which learns from the rewards of its data set")
    return _run_of((policy, policy_class, family), main, create, envs, data, max_train_iter, max_env_step, is_sqil)


def _run_of(
    found: tuple[str, type[Policy[Any]], str],
    main: Config,
    create: Config,
    envs: TranslatedEnvs,
    data: Config,
    max_train_iter: int,
    max_env_step: int,
    is_sqil: bool,
) -> Run:
    """Return the run of a pair whose policy was found: its name, its class and its family; see :func:`_run`."""
    policy, policy_class, family = found
    cfg = merge(main, create, DEFAULTS[family])
    keys, given, notes = dict(flat(cfg["policy"])), given_keys(main, create), Notes()
    expert = {name: keys.pop(name, None) for name in EXPERT_KEYS} if is_sqil else {}
    team = pop_team(keys, family)
    config, network = policy_config(keys, given, family, notes)
    if team is not None:
        policy, policy_class, config = as_team(deep_merge(implied(family), config), family, team)
        notes.translated.append(f"policy.multi_agent -> the policy {policy}")
    model = pop_world_model(main, create, family, str(envs.env), notes)
    if model is not None:
        policy, policy_class, config = as_mbpo(deep_merge(implied(family), config), model)
    config = deep_merge(config, {"collect": {"collector": envs.collector}} if envs.collector else {})
    rewards = {**main.get("reward_model", {}), **create.get("reward_model", {})}.get("type")
    late = f"None with {family}, which computes advantages when data are collected"
    require(rewards is None or family not in ("ppo_offpolicy", "ppg_offpolicy"), "reward_model.type", late, rewards)
    config = deep_merge(config, translate_reward_model(main, create, notes))
    theirs, here = per_round(keys, family)
    has_episodes = policy_class.on_policy and keys["collect.collector.type"] == "episode"  # of unknown lengths
    counts_rounds = has_episodes and family == "a2c"
    times = Times.of(keys, config["eval"]["evaluator"]["eval_freq"], None if has_episodes else here, counts_rounds)
    limits = {"max_env_step": limit(max_env_step), "max_train_iter": _updates(max_train_iter, theirs, here)}
    described = {
        "family": family,
        "policy": policy,
        "policy_class": policy_class,
        "on_policy": policy_class.on_policy,
        "policy_config": without_defaults(deep_merge(implied(family) if team is None else {}, config), policy_class),
        "network": network,
    }
    envs = with_frames(envs, config["eval"]["evaluator"])
    cfg = {**cfg, "seed": main.get("seed", data["seed"])}
    if policy_class.trains_on == "dataset":
        return data_set_run(described, cfg, given, envs, data["seed"], max_train_iter, notes)
    demonstrations = demonstrations_of(keys, family) if family in ("dqfd", "r2d3") else {}
    if is_sqil:
        demonstrations = _steps_of_expert(expert, notes)
    for path in (demonstrations.get("demonstrations"), config.get("reward_model", {}).get("data_path")):
        envs = envs.for_data(path)
    if envs.norm_by_data:
        notes.warnings.append(
            "env.norm_obs has no effect: its offline_stats are those of a data set, and there is none"
        )
    data = {**limits, "rounds_per_epoch": times.rounds_per_epoch, **demonstrations, **data}
    return make_run(described, cfg, given, envs, data, times, notes)


def _steps_of_expert(expert: Config, notes: Notes) -> Config:
    """Return the arguments of the datamodule that SQIL needs, for the keys of an expert."""
    notes.translated.append("serial_pipeline_sqil -> demonstrations and imitation_reward of the datamodule")
    if expert[RANDOM_OF_EXPERT] is not None:
        notes.warnings.append(f"policy.{RANDOM_OF_EXPERT} has no effect: an expert takes no random steps here")
    return demonstrations_of_sqil(expert["collect.data_path"])


def _check_without_steps(main: Config, create: Config, kind: str, max_env_step: int, why: str) -> None:
    """Check that a pair whose policy learns from a data set has neither a limit of env steps nor a reward model."""
    require(max_env_step >= UNLIMITED, "max_env_step", f"left out with {kind}, which takes no steps", max_env_step)
    rewards = main.get("reward_model") or create.get("reward_model")
    require(not rewards, "reward_model", f"left out with {kind}, {why}", rewards)


def implied(family: str) -> Config:
    """Return the settings that DI-engine has no key for, as a part of our config."""
    return nested(WITHOUT_KEY.get(family, {}) | ALWAYS_WITHOUT_KEY)


def find_policy(kind: str) -> tuple[str, type[Policy[Any]], str]:
    """Return the name and the class of a policy, and the policy of DI-engine whose keys it has.

    A class in DI-engine's form has its own keys: the third is empty then. As in DI-engine, a class that is registered
    with ``_command`` after the name takes precedence.

    Raises:
        ValueError: If the policy is not one of ``KEYS``, nor a registered subclass of one of them, nor in DI-engine's
            form.
    """
    known = {policy_class_of(name): name for name in KEYS if name not in POLICIES}
    if kind in KEYS:
        return POLICIES.get(kind, kind), policy_class_of(kind), kind
    registered = [name for name in (f"{kind}_command", kind) if name in POLICY_REGISTRY]
    found = POLICY_REGISTRY.get(registered[0]) if registered else None
    bases = [known[base] for base in getattr(found, "__mro__", ()) if base in known]
    if found is None or not (bases or is_own_form(found)):
        names = ", ".join([*KEYS, TRANSFORMER, SQIL_SAC])
        allowed = f"one of {names}, or the name of a registered subclass of Policy or of one of these policies"
        if found is not None and found.__module__.startswith("lightning_ding."):
            allowed += f"; {kind} has no table of DI-engine's keys here: describe the run for lightning-ding fit"
        raise ValueError(f"create_config.policy.type must be {allowed}, got {kind!r}")
    return f"{found.__module__}.{found.__qualname__}", found, bases[0] if bases else ""


def without_defaults(config: Config, policy_class: type[Policy[Any]]) -> Config:
    """Return a policy's config without the values that are the defaults of its class, in the order of its keys.

    Raises:
        ValueError: If a value is out of its range.
        TypeError: If a value has the wrong type.
    """
    resolve(policy_class.config_class, config)
    return differing(config, to_dict(policy_class.config_class()))


# ---------------------------------------------------------------------------------------------------- the policy


def policy_config(keys: Config, given: set[str], family: str, notes: Notes) -> tuple[Config, Config | None]:
    """Return our config of a policy, and the user's own network if the pair names one."""
    network = _network(keys, family)
    table, ours, origin = KEYS[family], dict[str, Any](), dict[str, str]()
    for name, value in keys.items():
        if is_consumed(name) or (network is not None and name.startswith("model.") and name not in SHAPES):
            continue
        if name not in table:
            notes.warnings += [_unread(name, value, keys, table, family)] if name in given else []
            continue
        for path, translated in translate_key(name, value, keys, table[name], family, name in given, notes).items():
            if ours.get(path, translated) != translated:
                raise ValueError(f"policy.{name} and policy.{origin[path]} disagree about {path}: {value!r}")
            ours[path], origin[path] = translated, name
    ours.setdefault(EVAL_FREQ, table[EVAL_FREQ].ours(1000, keys)[EVAL_FREQ])
    _check_amount(keys, family)
    if KEYS[family].get("collect.n_episode", Key()).allowed is None and keys["collect.collector.type"] == "episode":
        ours |= {"collect.collector.type": "episode", "collect.n_sample": None}
    return nested(ours), network


SHAPES = ("model.obs_shape", "model.action_shape")


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
        home, config_class = HOME_OF_GAMMA[family], policy_class_of(family).config_class
        used = f"it reads policy.{home}, which is {keys.get(home, config_class().discount_factor)}"
        return f"policy.{name} = {value!r} is not read by {family}: {used}"
    return f"policy.{name} = {value!r} is not read by {family}{_hint(name, table)}"


def _hint(name: str, table: Mapping[str, Key]) -> str:
    """Return a question that names the key which a misspelt one may mean; empty for a key of another policy."""
    return "" if any(name in others for others in KEYS.values()) else misspelt(name, [*table, *READ_BY_RUN])


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
    collects = policy_class_of(family).trains_on == "envs"
    known = ("sample", "episode") if collects else ("sample",)
    require(kind in known, "create_config.collector.type", f"one of {known} for {family}", kind)
    is_whole = kind == "episode" or family != "pg"
    require(is_whole, "create_config.collector.type", "'episode' for pg, whose returns need whole episodes", kind)
    name = "collect.n_episode" if kind == "episode" else "collect.n_sample"
    has_default = kind == "sample" and family not in (*WITHOUT_N_SAMPLE, *ON_POLICY, *TEAM_DEFAULTS)
    require(has_default or keys.get(name) is not None, f"policy.{name}", f"set for {family}", keys.get(name))


def _triple(env_setting: Sequence[Any] | None) -> tuple[Any, Any, Any] | None:
    if env_setting is None:
        return None
    require(len(env_setting) == 3, "env_setting", "(env_fn, collector_env_cfg, evaluator_env_cfg)", env_setting)
    return env_setting[0], env_setting[1], env_setting[2]


def _updates(value: int, theirs: int, here: int) -> int | None:
    """Return the limit of updates for one of DI-engine's, whose rounds count ``theirs`` and not ``here`` updates."""
    return limit(value) if value >= UNLIMITED or theirs == here else -(-value // theirs) * here
