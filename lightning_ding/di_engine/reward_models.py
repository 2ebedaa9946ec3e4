"""Translating the section ``reward_model`` of DI-engine's configs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_ding.config import require
from lightning_ding.di_engine.configs import Config
from lightning_ding.di_engine.data_sets import FILES, find_data_set
from lightning_ding.di_engine.q_learning_keys import EXPERT
from lightning_ding.di_engine.shared_keys import Key, Notes, misspelt, replaced, to, translate_key

_SPACES = "the spaces of the env"
_EXPERT = EXPERT.format(name="gail").replace("collect.model_path", "expert_model_path")
_SHARED: dict[str, Key] = {
    "type": to("reward_model.type"),
    "learning_rate": to("reward_model.learning_rate"),
    "batch_size": to("reward_model.batch_size"),
    "update_per_collect": to("reward_model.update_per_collect"),
    "clear_buffer_per_iters": to("reward_model.clear_buffer_per_iters"),
    "target_new_data_count": replaced("policy.collect.n_sample is collected in each round"),
    "reward_model_path": replaced("checkpoints of the run contain the reward model"),
    **dict.fromkeys(("obs_shape", "action_shape", "input_size", "action_size"), replaced(_SPACES)),
}
_ADDS = "the reward of the env is not used with 'assign'"


def _if_adds(name: str) -> Key:
    return to(f"reward_model.{name}", needs=lambda cfg: cfg["intrinsic_reward_type"] == "add", why=_ADDS)


def _reverse_scale(value: Any, cfg: Mapping[str, Any]) -> Config:
    """Return the weight of the inverse model next to half the sum of the forward error; DI-engine takes its mean."""
    return {"reward_model.reverse_scale": value * cfg["hidden_size_list"][-1] / 2}


_INTRINSIC: dict[str, Key] = {
    **_SHARED,
    "hidden_size_list": to("reward_model.hidden_size_list"),
    "intrinsic_reward_type": Key(
        lambda value, _: {"reward_model.intrinsic_reward_type": value},
        why="no policy here reads a separate intrinsic reward",
        allowed=("add", "assign"),
    ),
    "intrinsic_reward_weight": _if_adds("intrinsic_reward_weight"),
    "extrinsic_reward_norm": _if_adds("extrinsic_reward_norm"),
    "extrinsic_reward_norm_max": to(
        "reward_model.extrinsic_reward_norm_max",
        needs=lambda cfg: cfg["intrinsic_reward_type"] == "add" and cfg["extrinsic_reward_norm"],
        why="it needs extrinsic_reward_norm and 'add'",
        convert=float,
    ),
}
_PLAYED = replaced("the expert, which plays before training")
RANKED_FILE = "ranked_data.npz"
"""Name of the ranked trajectories of an expert in the folder of a run."""
_PREFERENCE: dict[str, Key] = {
    **_SHARED,
    "update_per_collect": Key(
        lambda value, cfg: {"reward_model.update_per_collect": value * (cfg["num_trajs"] + cfg["num_snippets"])}
    ),
    "batch_size": Key(needs=lambda _: False, why="an update learns from one pair"),
    "data_path": to("reward_model.data_path"),
    **{
        name: to(f"reward_model.{name}")
        for name in ("num_trajs", "num_snippets", "min_snippet_length", "max_snippet_length")
    },
    **dict.fromkeys(("expert_model_path", "checkpoint_min", "checkpoint_max", "checkpoint_step"), _PLAYED),
    "offline_data_path": replaced("reward_model.data_path"),
    "continuous": replaced(_SPACES),
    "clear_buffer_per_iters": Key(needs=lambda _: False, why="it learns before the policy"),
}
_CLAMP: dict[str, Any] = {"needs": lambda cfg: cfg["obs_norm"], "why": "it needs obs_norm", "convert": float}
KEYS: dict[str, dict[str, Key]] = {
    "rnd": {
        **_INTRINSIC,
        "obs_norm": to("reward_model.obs_norm"),
        "obs_norm_clamp_min": to("reward_model.obs_norm_clamp_min", **_CLAMP),
        "obs_norm_clamp_max": to("reward_model.obs_norm_clamp_max", **_CLAMP),
    },
    "icm": {**_INTRINSIC, "reverse_scale": Key(_reverse_scale)},
    "gail": {
        **_SHARED,
        "hidden_size": to("reward_model.hidden_size_list", convert=lambda value: [value]),
        "data_path": to("reward_model.data_path"),
        "expert_model_path": replaced("the network of the expert, which plays before training"),
        "collect_count": to("reward_model.collect_count"),
    },
    "trex": _PREFERENCE,
    "drex": {
        **_PREFERENCE,
        "num_trajs_per_bin": to("reward_model.num_trajs_per_bin"),
        "hidden_size": Key(needs=lambda _: False, why="DI-engine does not read it either"),
        **dict.fromkeys(("eps_list", "bc_path", "bc_iterations"), replaced("the clone of the expert, which plays")),
    },
    "guided_cost": {
        **_SHARED,
        "hidden_size": to("reward_model.hidden_size_list", convert=lambda value: [value, value]),
        "data_path": to("reward_model.data_path"),
        "continuous": replaced(_SPACES),
        "log_every_n_train": replaced("MetricsLogger(log_every_n_rounds)"),
        "store_model_every_n_train": replaced("checkpoints of the run contain the reward model"),
    },
    "red": {
        **_SHARED,
        "hidden_size": to("reward_model.hidden_size_list", convert=lambda value: [value, 1]),
        "sample_size": to("reward_model.collect_count"),
        "sigma": to("reward_model.sigma", convert=float),
        "expert_data_path": to("reward_model.data_path"),
        "clear_buffer_per_iters": Key(needs=lambda _: False, why="it learns before the policy"),
    },
    "pdeil": {
        **_SHARED,
        "alpha": to("reward_model.alpha", convert=float),
        "expert_data_path": to("reward_model.data_path"),
        "discrete_action": replaced(_SPACES),
    },
    "pwil": {
        "type": to("reward_model.type"),
        "alpha": to("reward_model.alpha", convert=float),
        "beta": to("reward_model.beta", convert=float),
        "horizon": to("reward_model.horizon"),
        "sample_size": to("reward_model.collect_count"),
        "expert_data_path": to("reward_model.data_path"),
        **dict.fromkeys(("s_size", "a_size"), replaced(_SPACES)),
        "clear_buffer_per_iters": Key(needs=lambda _: False, why="a step gets its reward when it is collected"),
    },
}
"""Keys of each reward model of DI-engine that exists here."""
_LAYERS: Config = {"hidden_size_list": [64, 64, 128]}
_EVERY: Config = {"learning_rate": 1e-3, "batch_size": 64, "update_per_collect": 100}
_SCALE: Config = {"intrinsic_reward_type": "add", "extrinsic_reward_norm": True, "extrinsic_reward_norm_max": 1}
_PAIRS: Config = {"learning_rate": 1e-5, "update_per_collect": 100, "num_trajs": 0, "num_snippets": 6000}
DEFAULTS: dict[str, Config] = {
    "rnd": {
        **_EVERY,
        **_LAYERS,
        **_SCALE,
        "intrinsic_reward_weight": 0.01,
        "obs_norm": True,
        "obs_norm_clamp_min": -1,
        "obs_norm_clamp_max": 1,
    },
    "icm": {**_EVERY, **_LAYERS, **_SCALE, "intrinsic_reward_weight": 0.003, "reverse_scale": 1},
    "gail": {**_EVERY, "hidden_size": 128, "collect_count": 100_000},
    "trex": {**_PAIRS},
    "drex": {**_PAIRS, "num_trajs_per_bin": 20},
    "guided_cost": {**_EVERY, "hidden_size": 128},
    "red": {**_EVERY, "hidden_size": 128, "sample_size": 1000, "sigma": 0.5},
    "pdeil": {"alpha": 0.5},
    "pwil": {"alpha": 5, "beta": 5, "sample_size": 1000},
}
DEFAULTS["icm"]["clear_buffer_per_iters"] = 100
WITHOUT_KEY: dict[str, Config] = {
    "rnd": {"intrinsic_reward_norm": "minmax"},
    "icm": {"intrinsic_reward_norm": "minmax", "obs_norm": False},
    "gail": {},
    "trex": {"hidden_size_list": [512, 64], "batch_size": 1, "ranking": "order"},
    "drex": {"hidden_size_list": [512, 64], "batch_size": 1},
    "guided_cost": {},
    "red": {},
    "pdeil": {},
    "pwil": {},
}
"""Settings that DI-engine has no key for."""
OTHERS = "rnd-ngu", "episodic"
_TRAJECTORIES = "or let the checkpoints of expert_model_path play: -m preference_based_irl, or trex_collecting_data"
_GUIDE = "or let the expert play with the network in collect.model_path: -m guided_cost"
_RED = "which lightning-ding collect writes"
DATA: dict[str, tuple[str, str]] = {
    "gail": ("data_path", _EXPERT),
    "trex": ("data_path", _TRAJECTORIES),
    "drex": ("data_path", _TRAJECTORIES),
    "guided_cost": ("data_path", _GUIDE),
    "red": ("expert_data_path", _RED),
    "pdeil": ("expert_data_path", _RED),
    "pwil": ("expert_data_path", _RED),
}
"""The key of the data set of a reward model that has one, and how to make the data set."""


def translate_reward_model(main: Config, create: Config, notes: Notes) -> Config:
    """Return our section ``reward_model`` of a pair, as a part of a policy's config; empty if the pair has none.

    Args:
        main: ``main_config``.
        create: ``create_config``.
        notes: Lines to which those about the keys are added.

    Raises:
        ValueError: If there is no such reward model here, or no translation of a key.
    """
    given: Any = {**main.get("reward_model", {}), **create.get("reward_model", {})}
    if not given:
        return {}
    given.pop("import_names", None)
    kind = given.get("type")
    allowed = f"one of {', '.join(KEYS)}; {', '.join(OTHERS)} have no counterpart"
    require(kind in KEYS, "reward_model.type", allowed, kind)
    if "intrinsic_reward_weight" in given and given["intrinsic_reward_weight"] is None:
        weight = DEFAULTS[str(kind)].get("intrinsic_reward_weight")
        notes.warnings.append(f"reward_model.intrinsic_reward_weight = None: it is {weight}, DI-engine's default")
        del given["intrinsic_reward_weight"]
    cfg = {**DEFAULTS[str(kind)], **given}
    if kind in DATA:
        name, hint = DATA[str(kind)]
        path = given.get(name)
        if kind in ("trex", "drex") and not str(path or "").endswith(FILES):  # DI-engine's folders of other files
            path = Path(main.get("exp_name", "")) / RANKED_FILE
        given[name] = cfg[name] = find_data_set(f"reward_model.{name}", path, hint)
    found: Config = {**WITHOUT_KEY[str(kind)]}
    for name, value in cfg.items():
        ours = _translate(name, value, cfg, KEYS[str(kind)], name in given, notes)
        found |= {path.removeprefix("reward_model."): one for path, one in ours.items()}
    return {"reward_model": found}


def _translate(
    name: str, value: Any, cfg: Mapping[str, Any], table: Mapping[str, Key], is_given: bool, notes: Notes
) -> Config:
    if name not in table:
        hint = misspelt(name, list(table)).replace("policy.", "reward_model.")
        notes.warnings.append(f"reward_model.{name} = {value!r} is not read by {cfg['type']}{hint}")
        return {}
    own = Notes(notes.home)
    ours = translate_key(name, value, cfg, table[name], str(cfg["type"]), is_given, own)
    notes.translated += [line.replace("policy.", "reward_model.", 1) for line in own.translated]
    notes.warnings += [line.replace("policy.", "reward_model.", 1) for line in own.warnings]
    return ours
