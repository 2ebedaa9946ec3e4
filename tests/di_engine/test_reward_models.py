"""The section ``reward_model`` of DI-engine's configs: its keys, its defaults, and runs that are translated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lightning import Trainer

from lightning_ding.config import resolve
from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
from lightning_ding.di_engine.reward_models import DATA, DEFAULTS, KEYS, translate_reward_model
from lightning_ding.di_engine.shared_keys import Notes
from lightning_ding.di_engine.translate import translate
from lightning_ding.registry import POLICY_REGISTRY, REWARD_MODEL_REGISTRY
from tests.di_engine.pairs import Pair, small_pair
from tests.reward_model.cases import QUIET, write_expert
from tests.toys.reference_policies import PlainDQN

CHANGES: dict[str, tuple[Any, Any]] = {  # a value of each key, and ours
    "learning_rate": (0.1, 0.1),
    "batch_size": (7, 7),
    "update_per_collect": (5, 5),
    "clear_buffer_per_iters": (9, 9),
    "hidden_size_list": ([3, 4], (3, 4)),
    "hidden_size": (5, (5,)),
    "intrinsic_reward_type": ("assign", "assign"),
    "intrinsic_reward_weight": (0.5, 0.5),
    "extrinsic_reward_norm": (False, False),
    "extrinsic_reward_norm_max": (4, 4.0),
    "obs_norm": (False, False),
    "obs_norm_clamp_min": (-3, -3.0),
    "obs_norm_clamp_max": (3, 3.0),
    "reverse_scale": (2.0, 128.0),  # times half the 128 features, of which DI-engine takes the mean
    "data_path": ("other.npz", "other.npz"),
    "collect_count": (11, 11),
    "num_trajs": (6, 6),
    "num_snippets": (70, 70),
    "min_snippet_length": (7, 7),
    "max_snippet_length": (110, 110),
    "num_trajs_per_bin": (3, 3),
    "sample_size": (12, 12),
    "sigma": (2, 2.0),
    "alpha": (0.25, 0.25),
    "beta": (2, 2.0),
    "horizon": (200, 200),
    "expert_data_path": ("other.npz", "other.npz"),
}
OF_KIND: dict[tuple[str, str], Any] = {
    ("guided_cost", "hidden_size"): (5, 5),
    ("red", "hidden_size"): (5, 1),
    ("trex", "update_per_collect"): 5 * 6000,  # passes through the pairs
    ("drex", "update_per_collect"): 5 * 6000,
}
NAMES = {"hidden_size": "hidden_size_list", "sample_size": "collect_count", "expert_data_path": "data_path"}
WITHOUT_EFFECT = {("trex", "batch_size"), ("drex", "batch_size"), ("drex", "hidden_size")}
WITHOUT_EFFECT |= {(kind, "clear_buffer_per_iters") for kind in ("trex", "drex", "red", "pwil")}


def translated(kind: str, **given: Any) -> tuple[Any, Notes]:
    """Return our section as a config, and the notes about the keys."""
    notes = Notes()
    more = {DATA[kind][0]: "expert.npz"} if kind in DATA else {}
    section = translate_reward_model({"reward_model": {**more, **given}}, {"reward_model": {"type": kind}}, notes)
    return resolve(REWARD_MODEL_REGISTRY.get(kind).config_class, section["reward_model"]), notes


def pair(reward_model: dict[str, Any], policy: str = "dqn") -> Pair:
    main, create = small_pair(policy, {"nstep": 1} if policy == "dqn" else {})
    return {**main, "reward_model": reward_model}, {**create, "reward_model": {"type": reward_model["type"]}}


@pytest.mark.parametrize(
    ("kind", "key"), [(kind, key) for kind, table in KEYS.items() for key in table if key in CHANGES]
)
def test_each_key_reaches_ours(kind: str, key: str) -> None:
    value, ours = CHANGES[key]
    config, notes = translated(kind, **{key: value})
    if (kind, key) in WITHOUT_EFFECT:
        assert config == translated(kind)[0]
        assert any(f"reward_model.{key} = {value!r} has no effect" in line for line in notes.warnings)
        return
    ours = OF_KIND.get((kind, key), ours)
    name = NAMES.get(key, key)
    assert getattr(config, name) == ours
    assert getattr(translated(kind)[0], name) != ours
    assert any(line.startswith(f"reward_model.{key} -> ") for line in notes.translated)


def test_every_key_is_tested_or_has_no_value_here() -> None:
    cfg = {**DEFAULTS["icm"], **DEFAULTS["trex"]}
    assert {key for table in KEYS.values() for key, one in table.items() if one.ours(1, cfg)} <= {
        *CHANGES,
        "type",
    }


def test_defaults_are_those_of_di_engine() -> None:
    config, _ = translated("rnd")
    clamp = (config.obs_norm_clamp_min, config.obs_norm_clamp_max)
    assert (clamp, config.intrinsic_reward_weight, config.intrinsic_reward_norm) == ((-1.0, 1.0), 0.01, "minmax")
    assert (config.update_per_collect, tuple(config.hidden_size_list)) == (100, (64, 64, 128))
    icm, _ = translated("icm")
    assert (icm.reverse_scale, icm.clear_buffer_per_iters, icm.obs_norm) == (64.0, 100, False)
    assert set(DEFAULTS) == set(KEYS)


def test_unread_and_misspelt_keys_are_warnings() -> None:
    _, notes = translated("rnd", learning_rat=0.1, reverse_scale=3)
    assert any(
        "learning_rat = 0.1 is not read by rnd; did you mean 'reward_model.learning_rate'?" in x for x in notes.warnings
    )
    assert any("reverse_scale = 3 is not read by rnd" in line for line in notes.warnings)
    _, notes = translated("rnd", intrinsic_reward_type="assign", intrinsic_reward_weight=0.5)
    assert any("intrinsic_reward_weight = 0.5 has no effect" in line for line in notes.warnings)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"type": "episodic"}, "reward_model.type must be one of rnd, icm, gail, .* no counterpart, got 'episodic'"),
        ({"type": "red"}, "reward_model.expert_data_path must be an .npz, .hdf5 or .safetensors file"),
        ({"type": "guided_cost"}, "reward_model.data_path must be an .npz.*with the network in collect.model_path"),
        ({"type": "rnd", "intrinsic_reward_type": "new"}, "intrinsic_reward_type must be 'add' or 'assign'"),
        (
            {"type": "gail"},
            "reward_model.data_path must be an .npz, .hdf5 or .safetensors file.*-m gail --expert-config",
        ),
        (
            {"type": "gail", "data_path": "expert_data.pkl"},
            "reward_model.data_path = 'expert_data.pkl' is a pickled file, which is not",
        ),
    ],
)
def test_what_has_no_counterpart_is_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        translate(pair(section))


@pytest.mark.parametrize(("kind", "policy"), [("rnd", "dqn"), ("icm", "ppo"), ("gail", "dqn")])
def test_pair_with_a_reward_model_trains(
    kind: str, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    section: dict[str, Any] = {"type": kind, "update_per_collect": 2, "batch_size": 8}
    section |= {"data_path": write_expert(tmp_path, False)} if kind == "gail" else {}
    run = translate(pair(section, policy), max_env_step=48)
    make, datamodule_class = run.policy_class, RolloutDataModule if run.on_policy else ReplayDataModule
    model, datamodule = make(run.policy_config), datamodule_class(**run.data)
    Trainer(limit_val_batches=0, enable_checkpointing=False, **QUIET).fit(model, datamodule)
    assert model.learner.rewards.is_on
    assert run.policy_config["reward_model"]["type"] == kind
    assert any("reward_model.batch_size -> model.cfg.reward_model.batch_size" in line for line in run.translated)


def test_entry_names_the_reward_model_where_the_config_does_not() -> None:
    main, create = pair({"type": "gail", "data_path": "expert.npz", "learning_rate": 0.1})
    for section in (main["reward_model"], create["reward_model"]):
        section.pop("type")
    create["reward_model"]["batch_size"] = 7
    found = translate((main, create), entry="gail").policy_config["reward_model"]
    assert (found["type"], found["batch_size"], found["learning_rate"]) == ("gail", 7, 0.1)
    with pytest.raises(ValueError, match=r"reward_model\.type must be one of .*, got None"):
        translate((main, create), entry="serial")


def test_ppo_from_replay_is_refused_before_a_data_set_is_looked_for() -> None:
    with pytest.raises(ValueError, match=r"reward_model\.type must be None with ppo_offpolicy, .* got 'gail'"):
        translate(pair({"type": "gail"}, "ppo_offpolicy"))


def test_policy_in_the_form_of_di_engine_takes_none() -> None:
    POLICY_REGISTRY.register("plain_dqn_without_rewards", force_overwrite=True)(PlainDQN)
    main, create = pair({"type": "rnd"})
    create["policy"]["type"] = "plain_dqn_without_rewards"
    try:
        with pytest.raises(ValueError, match="reward_model must be left out with a policy in DI-engine's form"):
            translate((main, create))
    finally:
        POLICY_REGISTRY._entries.pop("plain_dqn_without_rewards")
