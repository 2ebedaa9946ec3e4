"""DI-engine's configs of QMIX, VDN, weighted QMIX and QTRAN become those of the same policies here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightning_ding.di_engine.configs import flat
from lightning_ding.di_engine.defaults import TEAM_DEFAULTS, TEAM_WITHOUT_KEY
from lightning_ding.di_engine.keys import policy_class_of
from lightning_ding.di_engine.policy_section import translated
from lightning_ding.di_engine.serial import serial_pipeline
from lightning_ding.di_engine.team_q_keys import without_mixer
from lightning_ding.envs.teams import TwoStepGame
from lightning_ding.policy import create_policy

NAMES = ("qmix", "vdn", "wqmix", "qtran", "madqn")
MODEL: dict[str, Any] = {
    **{"agent_num": 3, "obs_shape": 18, "global_obs_shape": 30, "action_shape": 5, "hidden_size_list": [128, 64]}
}
"""Of dizoo's ``ptz_simple_spread_qmix_config.py``, with fewer layers."""
POLICY: dict[str, Any] = {
    "learn": {"update_per_collect": 100, "learning_rate": 0.001, "target_update_theta": 0.002, "discount_factor": 0.9},
    "collect": {"n_sample": 600, "unroll_len": 16, "env_num": 8},
    "other": {"eps": {"type": "exp", "start": 1.0, "end": 0.1, "decay": 100_000}},
}


def config_of(kind: str, **learn: Any) -> Any:
    """Return the config here for a config of DI-engine."""
    model = MODEL | ({"mixer": False} if kind == "vdn" else {})
    cfg = {**POLICY, "model": model, "learn": {**POLICY["learn"], **learn}}
    return create_policy({"type": kind, **translated(cfg, kind)}).config


@pytest.mark.parametrize("kind", NAMES)
def test_config_of_ding_becomes_ours(kind: str) -> None:
    config = config_of(kind)
    model, learn = config.model, config.learn
    assert (model.agent_num, model.agent_obs_shape, model.global_obs_shape, model.action_shape) == (
        *(3, 18, None if kind == "madqn" else 30, 5),
    )
    assert list(model.encoder_hidden_size_list) == [128, 64]
    assert (model.core.type, model.core.hidden_size, model.agent_id) == ("gru", 64, False)
    assert (config.discount_factor, config.learn_unroll_len, config.nstep) == (0.9, 16, 3 if kind == "madqn" else 1)
    assert (config.collect.n_sample, config.other.replay_buffer.replay_buffer_size) == (600 * 16, 5000 * 16)
    assert (learn.update_per_collect, learn.batch_size, learn.learning_rate) == (100, 32, 0.001)
    assert learn.target_theta == (1.0 if kind == "wqmix" else 0.002)
    assert learn.grad_clip_norm == (None if kind == "qtran" else 100)
    assert learn.double_q == (kind in ("wqmix", "qtran"))
    assert (learn.optimizer.type, learn.optimizer.eps) == ("rmsprop", 1e-5)
    assert (config.other.eps.end, config.other.replay_buffer.type) == (0.1, "sequence")


def test_options_of_single_policies() -> None:
    assert config_of("qmix").model.mixing_embed_dim == 64
    assert config_of("wqmix", wqmix_ow=False, alpha=0.75).learn.alpha == 0.75
    qtran = config_of("qtran", opt_weight=0.1).learn
    assert (qtran.td_weight, qtran.opt_weight, qtran.nopt_min_weight) == (1, 0.1, 0.0001)


def test_qmix_without_a_mixer_is_vdn() -> None:
    assert without_mixer("qmix", {"policy": {"model": MODEL | {"mixer": False}}}) == "vdn"
    assert without_mixer("qmix", {"policy": {"model": MODEL}}) == "qmix"
    assert without_mixer("dqn", {}) == "dqn"


def test_widths_of_agents_that_see_images_are_those_of_the_encoder() -> None:
    shapes = {"obs_shape": (3, 64, 64), "global_obs_shape": (3, 80, 96), "hidden_size_list": [8, 16, 16, 32]}
    model = create_policy({"type": "qmix", **translated({**POLICY, "model": MODEL | shapes}, "qmix")}).config.model
    assert (model.agent_obs_shape, model.global_obs_shape) == (None, None)  # the env has the channels last
    assert dict(model.encoder_kwargs) == {"channels": (8, 16, 16), "feature_size": 32, "activate_features": False}
    assert (list(model.encoder_hidden_size_list), model.core.hidden_size, model.mixing_embed_dim) == ([], 32, 32)


def test_shape_that_is_neither_a_vector_nor_an_image_is_refused() -> None:
    with pytest.raises(ValueError, match=r"policy\.model\.obs_shape must be the size of a vector or the shape of an"):
        translated({**POLICY, "model": MODEL | {"obs_shape": (64, 64)}}, "qmix")


@pytest.mark.parametrize("kind", NAMES)
def test_defaults_of_ding_differ_from_ours(kind: str) -> None:
    ours = dict(flat(create_policy({"type": kind}).cfg))
    shared = {name: value for name, value in flat(TEAM_DEFAULTS[kind]) if name in ours}
    assert len(shared) >= 5
    same = {name for name, value in shared.items() if ours[name] == value}
    assert same <= {"learn.double_q", "learn.wqmix_ow", "learn.alpha", "other.eps.start", "other.eps.end"}
    assert all(ours[name] != value for name, value in TEAM_WITHOUT_KEY[kind].items())


@pytest.mark.parametrize("kind", NAMES)
def test_such_a_config_trains(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model: Any = {"agent_num": 2, "obs_shape": 3, "global_obs_shape": 3, "action_shape": 2, "hidden_size_list": [8]}
    model |= {"mixer": False} if kind == "vdn" else {}
    policy: Any = {"model": model, "learn": {"update_per_collect": 2, "batch_size": 4}}
    policy |= {"collect": {"n_sample": 8, "unroll_len": 2}, "other": {"eps": {"decay": 100}}}
    env = {"collector_env_num": 2, "evaluator_env_num": 2, "n_evaluator_episode": 2, "stop_value": 100}
    create = {"env": {"type": "game"}, "env_manager": {"type": "base"}, "policy": {"type": kind}}
    pair = {"exp_name": "run", "env": env, "policy": policy}, create
    trained = serial_pipeline(pair, env_setting=(lambda cfg: TwoStepGame(), [{}, {}], [{}, {}]), max_train_iter=4)
    assert type(trained) is policy_class_of(kind)
    assert (trained.progress.train_iter, trained.progress.env_step) == (4, 32)
