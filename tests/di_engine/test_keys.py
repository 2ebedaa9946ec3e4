"""Each key of DI-engine's policies: where it goes, what is refused, and what has no effect."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lightning_ding.di_engine.configs import nested
from lightning_ding.di_engine.keys import HOME_OF_GAMMA, KEYS, READ_BY_NOBODY
from lightning_ding.di_engine.run import Run
from lightning_ding.di_engine.serial import make
from lightning_ding.di_engine.shared_keys import Key
from lightning_ding.di_engine.translate import translate
from tests.di_engine.pairs import CONTINUOUS, OFFLINE, ON_POLICY, REPLAYED, TYPES, VALUE_BASED, pair_of

Q_LEARNING = VALUE_BASED
REPLAY = (*Q_LEARNING, *CONTINUOUS)


def config_of(kind: str, **keys: Any) -> Any:
    """Return our config for keys of DI-engine, whose dots are written as two underscores."""
    return translate(pair_of(kind, nested({name.replace("__", "."): value for name, value in keys.items()})))


def ours(kind: str, path: str, **keys: Any) -> Any:
    """Return one value of our whole config, with the defaults of the policy."""
    run = config_of(kind, **keys)
    value: Any = run.policy_class(run.policy_config).config
    for part in path.split("."):
        value = value[part] if isinstance(value, dict) else getattr(value, part)
    return value


VALUES: dict[str, list[Any]] = {
    "model.obs_shape": [7],
    "model.action_shape": [3],
    "model.activation": [nn.Tanh()],
    "model.encoder_hidden_size_list": [[8, 8]],
    "model.action_space": ["continuous", "regression", "reparameterization"],
    "model.sigma_type": ["fixed"],
    "model.bound_type": ["tanh"],
    "model.head_hidden_size": [8],
    "model.norm_type": ["LN"],
    "model.dropout": [0.1],
    "model.init_bias": [0.0],
    "model.encoder": ["mine"],
    "model.lstm_type": ["gru"],
    "model.gru_gating": [False],
    "model.head_norm_type": ["LN"],
    "model.encoder_norm_type": ["LN"],
    "learn.init_memory": ["old"],
    "action_space": ["continuous"],
    "learn.grad_clip_type": ["clip_value"],
    "learn.betas": [(0.0, 0.99)],
    "learn.target_entropy": [-3.0],
    "learn.aux_train_epoch": [3],
    "learn.lr_scheduler": [{"epoch_num": 5, "min_lr_lambda": 0.1}],
    "learn.lr_scheduler.min_lr_lambda": [0.5],
    "other.eps.type": ["linear"],
    "eval.evaluator.type": ["metric"],
    "rnd_reward_model.hidden_size_list": [[32, 16]],
    "episodic_reward_model.hidden_size_list": [[32, 16]],
    "eval.evaluator.figure_path": ["figures"],
    "eval.evaluator.render.mode": ["envstep"],
    "collect.collector.type": ["episode"],
    "collect.n_episode": [4],
    "collect.collector.import_names": [["ding.worker"]],
    "other.replay_buffer.import_names": [["tests.di_engine.pairs"]],
    "other.replay_buffer.type": ["naive", "deque"],
    "other.replay_buffer.priority": [True],
    "other.replay_buffer.priority_IS_weight": [True],
}
"""Values for keys that are not numbers or switches."""
GIVEN: dict[str, dict[str, Any]] = {
    "other.replay_buffer.alpha": {"priority": True},
    "other.replay_buffer.beta": {"priority": True},
    "other.replay_buffer.anneal_step": {"priority": True},
    "other.replay_buffer.priority_power_factor": {"priority": True},
    "other.replay_buffer.IS_weight_power_factor": {"priority": True},
    "other.replay_buffer.IS_weight_anneal_train_iter": {"priority": True},
    "priority_IS_weight": {"priority": True},
    "other.replay_buffer.thruput_controller.window_seconds": {"other.replay_buffer.max_use": 5},
    "other.replay_buffer.thruput_controller.sample_min_limit_ratio": {"other.replay_buffer.max_use": 5},
    "model.fixed_sigma_value": {"model.sigma_type": "fixed"},
    "learn.lr_scheduler.min_lr_lambda": {"learn.lr_scheduler.epoch_num": 5},
    "learn.noise_sigma": {"learn.noise": True},
    "learn.noise_range.min": {"learn.noise": True},
    "learn.noise_range.max": {"learn.noise": True},
}
"""Further keys with which a key has an effect."""


def value_for(name: str, kind: str) -> Any:
    """Return a value for a key that differs from DI-engine's default."""
    if kind == "bcq" and name.endswith(("_hidden_size", "_dims")):  # a list in DI-engine
        return [6, 5]
    if name in VALUES:
        return VALUES[name][-1]
    if name.endswith(("theta", "alpha", "beta", "factor", "weight_power_factor", "gae_lambda", "start", "end", "min")):
        return 0.25
    switches: tuple[str, ...] = (
        "priority",
        "_norm",
        "dueling",
        "noise",
        "share_encoder",
        "twin_critic",
        "ignore_done",
        "_space",
    )
    switches += ("deterministic_eval", "recompute_adv", "param_init", "weight", "sync", "inf", "data", "agent", "logit")
    switches += ("obs", "sample", "shaping", "multi_buffer", "deepcopy", "return", "impala_cnn_encoder")
    if name.endswith(switches) and not name.endswith(("value_weight", "entropy_weight", "n_sample")):
        return not ours_default(name, kind)
    return 6


def ours_default(name: str, kind: str) -> bool:
    """Return DI-engine's default of a switch."""
    is_prioritised = kind in ("rainbow", "d4pg", "r2d2", "r2d2_gtrxl", "r2d3", "ngu", "dqfd")
    true = {"learn.adv_norm": kind == "ppo", "learn.noise": kind in ("td3", "td3_bc"), "priority": is_prioritised}
    true |= {
        "priority_IS_weight": is_prioritised,
        "model.twin_critic": kind in ("td3", "sac", "discrete_sac", *OFFLINE),
    }
    true |= {"model.dueling": True, "model.share_encoder": kind in (*ON_POLICY, *REPLAYED), "deterministic_eval": True}
    true |= {
        "recompute_adv": True,
        "learn.ppo_param_init": True,
        "learn.value_norm": "ppg" not in kind,
        "bp_update_sync": True,
    }
    return bool(true.get(name, False))


EVERY = [(kind, name) for kind in TYPES for name in KEYS[kind]]


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_no_key_is_ignored_silently(kind: str, name: str) -> None:
    given = {} if kind in ON_POLICY and name.startswith("priority") else GIVEN.get(name, {})
    if kind in REPLAYED:
        given = {path: value for path, value in given.items() if path != "priority"}
    elif name.startswith("other.replay_buffer.") and ("_factor" in name or "_anneal" in name):
        given |= {"other.replay_buffer.type": "deque", "other.replay_buffer.priority": True}
    if name == "learn.lr_scheduler":
        given = {}
    before = translate(pair_of(kind, nested(given)))
    after = _translated_or_refused(kind, given | {name: value_for(name, kind)})
    if isinstance(after, str):
        assert any(part in after for part in (name.rpartition(".")[2], "disagree", "must be"))
        return
    said = [line for line in (*after.translated, *after.warnings) if line.startswith(f"policy.{name}")]
    is_replaced = KEYS[kind][name].why != ""
    assert said
    assert is_replaced or (after.policy_config, after.data) != (before.policy_config, before.data)


def _translated_or_refused(kind: str, keys: dict[str, Any]) -> Run | str:
    """Return the run, or the message of the error."""
    try:
        return translate(pair_of(kind, nested(keys)))
    except (ValueError, TypeError) as error:
        return str(error)


@pytest.mark.parametrize("kind", TYPES)
def test_a_key_that_the_policy_never_reads_is_named_in_a_warning(kind: str) -> None:
    run = config_of(kind, learn__learnig_rate=0.1, learn__xyzzy=1)
    assert any("policy.learn.xyzzy = 1 is not read by" in line for line in run.warnings)
    misspelt = next(line for line in run.warnings if "learnig_rate" in line)
    assert kind == "fqf" or "did you mean 'policy.learn.learning_rate" in misspelt  # its rates have longer names


def test_a_key_of_another_policy_or_of_another_pipeline_is_not_a_misspelling() -> None:
    run = config_of("ppo", learn__update_per_collect=3, collect__data_type="hdf5")
    assert run.warnings == (
        "policy.collect.data_type = 'hdf5' is not read by ppo",
        "policy.learn.update_per_collect = 3 is not read by ppo",
    )


@pytest.mark.parametrize("name", READ_BY_NOBODY)
def test_keys_that_do_nothing_in_ding_are_named_with_the_reason(name: str) -> None:
    run = translate(pair_of("sac", nested({name: 1})))
    assert f"policy.{name} = 1 has no effect: {READ_BY_NOBODY[name]}" in run.warnings


HOMES = ("discount_factor", "learn.discount_factor", "collect.discount_factor")


@pytest.mark.parametrize("home", HOMES)
def test_discount_factor_has_no_effect_on_a_policy_without_returns(home: str) -> None:
    run = config_of("bc", **{home.replace(".", "__"): 0.5})
    assert run.warnings == (f"policy.{home} = 0.5 has no effect: no return is computed",)


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind != "bc"])
@pytest.mark.parametrize("home", HOMES)
def test_discount_factor_is_read_from_the_home_that_the_policy_has(kind: str, home: str) -> None:
    value = ours(kind, "discount_factor", **{home.replace(".", "__"): 0.5})
    run = config_of(kind, **{home.replace(".", "__"): 0.5})
    if home == HOME_OF_GAMMA[kind]:
        assert (value, run.warnings) == (0.5, ())
    else:
        default = {
            **dict.fromkeys((*VALUE_BASED, "pdqn", "discrete_cql"), 0.97),
            "rainbow": 0.99,
            "r2d2": 0.997,
            "r2d3": 0.997,
            "ngu": 0.997,
            "a2c": 0.9,
            "acer": 0.9,
        }.get(kind, 0.99)
        text = f"is not read by {kind}: it reads policy.{HOME_OF_GAMMA[kind]}, which is {default}"
        assert value == default
        assert run.warnings == (f"policy.{home} = 0.5 {text}",)


# ---------------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("kind", "keys", "expected"),
    [
        ("dqn", {"learn__update_per_collect": 5, "eval__evaluator__eval_freq": 40}, 40),  # 8 rounds
        ("c51", {"learn__update_per_collect": 3, "eval__evaluator__eval_freq": 40}, 42),  # 14 rounds: 13 are too few
        ("sac", {"eval__evaluator__eval_freq": 7}, 7),
        # 256 / 64 minibatches in 2 passes are 8 updates, of which 13 rounds reach 100
        ("ppo", {"collect__n_sample": 256, "learn__epoch_per_collect": 2, "eval__evaluator__eval_freq": 100}, 104),
        # A2C counts rounds, each of which makes 80 / 40 updates here
        ("a2c", {"collect__n_sample": 80, "learn__batch_size": 40, "eval__evaluator__eval_freq": 50}, 100),
        ("pg", {"eval__evaluator__eval_freq": 100}, 100),
    ],
)
def test_time_between_evaluations_is_that_of_ding_in_whole_rounds(
    kind: str, keys: dict[str, Any], expected: int
) -> None:
    assert ours(kind, "eval.evaluator.eval_freq", **keys) == expected


def test_whole_episodes_are_evaluated_after_a_number_of_updates() -> None:
    run = config_of("pg", eval__evaluator__eval_freq=100)
    (interval,) = (one for one in run.callbacks if one["class_path"].endswith(".EvaluationInterval"))
    assert (interval["init_args"], run.data["rounds_per_epoch"]) == ({"train_iter": 100}, 1)


def test_a2c_with_whole_episodes_counts_rounds() -> None:
    main, create = pair_of("a2c", {"collect": {"n_episode": 4}, "eval": {"evaluator": {"eval_freq": 50}}})
    run = translate((main, create | {"collector": {"type": "episode"}}))
    assert (run.data["rounds_per_epoch"], run.eval_every_updates) == (50, None)
    assert run.policy_config["collect"] == {"n_sample": None, "n_episode": 4, "collector": {"type": "episode"}}


@pytest.mark.parametrize(("kind", "limit", "expected"), [("dqn", 7, 7), ("ppo", 9, 9), ("a2c", 3, 6)])
def test_limit_of_updates_counts_as_ding_does(kind: str, limit: int, expected: int) -> None:
    keys = {"collect": {"n_sample": 80}, "learn": {"batch_size": 40}} if kind == "a2c" else {}
    assert translate(pair_of(kind, keys), max_train_iter=limit).data["max_train_iter"] == expected


def test_limits_that_are_not_set_are_left_out() -> None:
    assert not {"max_env_step", "max_train_iter"} & set(translate(pair_of("dqn")).data)
    assert translate(pair_of("dqn"), max_env_step=5).data["max_env_step"] == 5


def test_target_of_td3_gets_as_far_as_one_that_moves_with_every_update() -> None:
    assert ours("td3", "learn.target_theta") == pytest.approx(1 - 0.995**2)
    assert ours("td3", "learn.target_theta", learn__actor_update_freq=3) == pytest.approx(1 - 0.995**3)
    assert ours("ddpg", "learn.target_theta") == 0.005


@pytest.mark.parametrize("kind", Q_LEARNING)
def test_soft_update_of_q_learning_is_not_read_as_in_ding(kind: str) -> None:
    run = config_of(kind, learn__target_theta=0.1)
    assert "policy.learn.target_theta = 0.1 has no effect" in run.warnings[0]
    assert ours(kind, "learn.target_theta", learn__target_theta=0.1) is None


def test_values_of_ppo_are_clipped_by_the_same_distance_as_its_ratio() -> None:
    run = config_of("ppo", learn__clip_ratio=0.3)
    assert (run.policy_config["learn"]["clip_ratio"], run.policy_config["learn"]["value_clip"]) == (0.3, 0.3)


@pytest.mark.parametrize(("kind", "expected"), [("clip_norm", (3.0, None)), ("clip_value", (None, 3.0))])
def test_gradients_of_ppo_are_clipped_in_the_chosen_way(kind: str, expected: tuple[Any, Any]) -> None:
    keys = {"learn__grad_clip_type": kind, "learn__grad_clip_value": 3.0}
    assert tuple(ours("ppo", f"learn.grad_clip_{name}", **keys) for name in ("norm", "value")) == expected


def test_gradients_of_ppo_are_clipped_by_dings_default_size() -> None:
    assert ours("ppo", "learn.grad_clip_value", learn__grad_clip_type="clip_value") == 0.5


@pytest.mark.parametrize(("epoch", "factor"), [(0, 1.0), (5, 0.55), (10, 0.1), (20, 0.1)])
def test_learning_rate_of_ppo_falls_as_in_ding(epoch: int, factor: float) -> None:
    schedule = {"epoch_num": 10, "min_lr_lambda": 0.1}  # 1 - epoch * 0.9 / 10, at least 0.1
    section = ours("ppo", "learn.lr_scheduler", collect__n_sample=256, learn__lr_scheduler=schedule)
    assert section.schedule().value(epoch * 256) == pytest.approx(factor)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, ("naive", False)),  # DI-engine's advanced buffer draws uniformly without priorities
        ({"priority": True}, ("advanced", True)),
        ({"priority": True, "other.replay_buffer.type": "naive"}, ("naive", False)),
        ({"priority": True, "other.replay_buffer.type": "deque"}, ("naive", False)),
        ({"priority": True, "other.replay_buffer": {"type": "deque", "priority": True}}, ("advanced", True)),
        ({"other.replay_buffer.max_use": 16}, ("advanced", False)),
        ({"other.replay_buffer.max_use": float("inf")}, ("naive", False)),
    ],
)
def test_buffer_is_the_one_that_draws_as_dings(keys: dict[str, Any], expected: tuple[str, bool]) -> None:
    run = translate(pair_of("dqn", nested(keys)))
    config: Any = run.policy_class(run.policy_config).config
    assert (config.other.replay_buffer.type, config.priority) == expected


def test_priority_that_the_buffer_ignores_is_a_warning() -> None:
    run = translate(pair_of("dqn", {"priority": True, "other": {"replay_buffer": {"type": "naive"}}}))
    assert run.warnings == ("policy.priority = True has no effect: the buffer of this config ignores priorities",)


def test_rainbow_draws_by_priority_without_a_key() -> None:
    assert ours("rainbow", "other.replay_buffer.type") == "advanced"
    assert ours("rainbow", "priority_IS_weight") is True


def test_flat_epsilon_has_no_shape() -> None:
    run = config_of("rainbow", other__eps={"type": "exp", "start": 0.1, "end": 0.1, "decay": 100})
    assert run.policy_config["other"]["eps"] == {"start": 0.1, "end": 0.1}
    assert [line for line in run.warnings if "epsilon is constant" in line]


def test_epsilon_of_rainbow_falls_as_in_ding_once_it_starts_higher() -> None:
    assert config_of("rainbow", other__eps__start=0.95).policy_config["other"]["eps"] == {
        "type": "exp",
        "start": 0.95,
        "decay": 100_000,
    }


@pytest.mark.parametrize(("kind", "is_on"), [("ddpg", False), ("td3", True)])
def test_size_of_the_target_noise_needs_the_noise(kind: str, is_on: bool) -> None:
    run = config_of(kind, learn__noise_sigma=0.4)
    assert (run.warnings == ()) == is_on
    assert ("noise_sigma" in run.policy_config.get("learn", {})) == is_on


def test_fixed_temperature_has_no_learning_rate() -> None:
    run = config_of("sac", learn__auto_alpha=False, learn__learning_rate_alpha=0.5, learn__alpha=0.3)
    assert run.policy_config["learn"] == {"auto_alpha": False, "alpha": 0.3}
    assert run.warnings == ("policy.learn.learning_rate_alpha = 0.5 has no effect: learn.auto_alpha is False",)


@pytest.mark.parametrize("side", [48, 84, 120])
@pytest.mark.parametrize(
    ("widths", "channels", "features"), [([8, 8, 16], [8, 8, 16], 16), ([4, 8, 8, 16], [4, 8, 8], 16)]
)
def test_image_encoder_has_dings_convolutions(widths: list[int], channels: list[int], features: int, side: int) -> None:
    keys = {"obs_shape": [4, side, side], "action_shape": 3, "encoder_hidden_size_list": widths}
    policy, _ = make(translate(pair_of("dqn", {"model": keys})))
    encoder: Any = policy.model.encoder
    found = [(one.out_channels, one.kernel_size[0], one.stride[0]) for one in encoder.convolutions]
    assert found == list(zip(channels, (8, 4, 3), (4, 2, 1), strict=True))
    assert encoder.output_size == features
    assert [one.padding for one in encoder.convolutions] == [(0, 0)] * 3
    assert encoder.pool is None
    assert encoder(torch.rand(5, 4, side, side)).min() < 0  # the features are not activated


def test_layer_normalisation_is_that_of_the_heads() -> None:
    section = ours("dqn", "model", model__norm_type="LN")
    assert (section.layer_norm, section.encoder_kwargs) == (True, {"layer_norm": False})
    with pytest.raises(ValueError, match=r"policy\.model\.norm_type must be None or 'LN' for dqn"):
        config_of("dqn", model__norm_type="BN")


def test_image_encoder_of_sac_has_dings_convolutions() -> None:
    keys = {"obs_shape": [3, 48, 48], "action_shape": 1, "encoder_hidden_size_list": [8, 8, 16]}
    policy, _ = make(translate(pair_of("sac", {"model": keys})))
    model: Any = policy.model
    encoder = model.critic.encoder
    found = [(one.out_channels, one.kernel_size[0], one.stride[0]) for one in encoder.convolutions]
    assert found == [(8, 3, 2), (8, 3, 1), (16, 3, 1)]
    assert encoder.output_size == 16


@pytest.mark.parametrize("kind", ["dqn", "ppo", "sac"])
def test_features_of_images_are_not_activated(kind: str) -> None:
    sizes = {"encoder_hidden_size_list": [8, 8, 16]} | ({"action_space": "discrete"} if kind == "ppo" else {})
    keys = {"obs_shape": [3, 48, 48], "action_shape": 2, **sizes}
    policy, _ = make(translate(pair_of(kind, {"model": keys})))
    network: Any = policy.model
    encoder: Any = network.critic.encoder if kind == "sac" else network.encoder
    features = encoder(torch.randn(8, 3, 48, 48))
    assert features.min() < 0


@pytest.mark.parametrize("kind", [kind for kind in CONTINUOUS if kind != "pdqn"])
def test_heads_have_as_many_layers_as_dings(kind: str) -> None:
    keys = {"obs_shape": 3, "action_shape": 1, "actor_head_layer_num": 2, "actor_head_hidden_size": 8}
    policy, _ = make(translate(pair_of(kind, {"model": keys})))
    model: Any = policy.model
    outputs = 2 if kind == "sac" else 1
    assert [one.out_features for one in model.actor.head.layers] == [8, 8, 8, outputs]  # DI-engine: one layer more
    values = 51 if kind == "d4pg" else 1
    assert [weight.shape[2] for weight in model.critic.head.weights] == [64, 64, values]


def test_shape_of_one_number_is_that_number() -> None:
    section = ours("sac", "model", model__obs_shape=(3,), model__action_shape=[1])
    assert (section.obs_shape, section.action_shape) == (3, 1)


@pytest.mark.parametrize("given", [nn.Tanh(), "Tanh", "tanh"])
def test_activation_is_read_from_a_module(given: Any) -> None:
    assert ours("ppo", "model.activation", model__activation=given) == "tanh"


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"policy.model.duelling is no argument of .* dqn; did you mean .*dueling"):
        config_of("dqn", model__duelling=True)
    with pytest.raises(ValueError, match=r"policy\.\S*action_space and policy\.\S*action_space disagree"):
        config_of("ppo", action_space="continuous", model__action_space="discrete")
    with pytest.raises(ValueError, match=r"policy.model.activation must be one of ReLU, .*got Sigmoid"):
        config_of("ppo", model__activation=nn.Sigmoid())


def test_head_without_layers_needs_no_width() -> None:
    section = ours("ppo", "model", model__actor_head_layer_num=0, model__actor_head_hidden_size=128)
    assert (section.actor_head_layer_num, section.actor_head_hidden_size) == (0, None)


def test_fixed_standard_deviation_of_continuous_actions_is_dings() -> None:
    keys = {"action_space": "continuous", "model__sigma_type": "fixed", "model__fixed_sigma_value": 0.3}
    assert ours("ppo", "model.fixed_sigma_value", **keys) == 1.0


@pytest.mark.parametrize(
    ("kind", "keys", "message"),
    [
        ("dqn", {"multi_agent": True}, "policy.multi_agent must be False for dqn here"),
        ("dqn", {"collect__unroll_len": 2}, "policy.collect.unroll_len must be 1"),
        ("ppo_offpolicy", {"other__her__her_strategy": "future"}, "hindsight replay"),
        ("ddpg", {"reward_batch_norm": True}, "norm_reward"),
        ("pg", {"learn__ignore_done": True}, "policy.learn.ignore_done must be False"),
        ("ppo", {"nstep_return": True}, "policy.nstep_return must be False"),
        ("ddpg", {"collect__n_sample": None}, "policy.collect.n_sample must be set for ddpg"),
        ("dqn", {"collect__collector__type": "episode"}, "policy.collect.n_episode must be set for dqn, got None"),
        ("bc", {"collect__collector__type": "episode"}, "create_config.collector.type must be one of"),
        ("pg", {"collect__collector__type": "sample"}, "'episode' for pg"),
    ],
)
def test_what_cannot_be_done_is_refused(kind: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_of(kind, **keys)


def test_every_key_has_a_meaning() -> None:
    assert len(EVERY) >= 400
    assert all(isinstance(KEYS[kind][name], Key) for kind, name in EVERY)


@pytest.mark.parametrize("name", ["ddpg", "td3", "sac"])
@pytest.mark.parametrize("head", ["actor", "critic"])
def test_number_of_layers_of_a_head_has_one_meaning(name: str, head: str) -> None:
    section = ours(name, "model", **{f"model__{head}_head_layer_num": 2})
    assert getattr(section, f"{head}_head_layer_num") == 2


def test_weight_of_the_critic_of_a2c_has_one_meaning() -> None:
    assert ours("a2c", "learn").value_weight == 0.5
    assert ours("a2c", "learn", learn__value_weight=0.3).value_weight == 0.3


def test_sequences_of_r2d2_become_transitions_and_its_learned_steps_stay() -> None:
    keys: dict[str, Any] = {"burnin_step": 2, "learn_unroll_len": 40, "nstep": 5, "collect__n_sample": 32}
    assert ours("r2d2", "collect.n_sample", **keys) == 32 * 42
    assert ours("r2d2", "other.replay_buffer.replay_buffer_size", **keys) == 10_000 * 42
    assert ours("r2d2", "learn_unroll_len", **keys) == 35
    assert ours("r2d2", "model.core.hidden_size", model__encoder_hidden_size_list=[8, 16]) == 16
    assert ours("r2d2", "model.core.hidden_size", model__head_hidden_size=24) == 24
    assert ours("r2d2", "model.core.type", model__lstm_type="gru") == "gru"


def test_r2d2_draws_by_priority_where_its_buffer_does() -> None:
    kind, path = "r2d2", "other.replay_buffer.type"
    assert (ours(kind, path), ours(kind, "priority")) == ("prioritised_sequence", True)
    without = {"other__replay_buffer__type": "naive"}
    assert (ours(kind, path, **without), ours(kind, "priority_IS_weight", **without)) == ("sequence", False)
    assert ours(kind, path, priority=False) == "sequence"


def test_noisy_layers_of_dqn_have_the_scale_of_ding() -> None:
    network = config_of("dqn", model__noise=True, noisy_net=True).policy_config["model"]
    assert {name: network[name] for name in ("noise", "noise_std")} == {"noise": True, "noise_std": 0.4}
    assert "noise" not in config_of("dqn", noisy_net=True).policy_config.get("model", {})  # no layer to reset there


def test_noisy_layers_whose_noise_ding_would_not_use_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^policy.noisy_net must be True with policy.model.noise.*got False"):
        config_of("dqn", model__noise=True)
