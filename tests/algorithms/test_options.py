"""Each option of an off-policy algorithm changes a number, or is refused: a walk over every field of the configs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from lightning import Trainer

from lightning_ding.config import deep_merge
from lightning_ding.model.encoder import MLPEncoder
from lightning_ding.policy import Policy, QLearningPolicy, create_policy
from lightning_ding.policy.on_policy import OnPolicyPolicy
from lightning_ding.policy.qac import QACPolicy
from lightning_ding.registry import ENCODER_REGISTRY, POLICY_REGISTRY
from tests.algorithms.sequences import to_sequences
from tests.algorithms.table import (
    CONTINUOUS_ONLY,
    DISCRETE_ONLY,
    make_datamodule,
    make_policy,
    names_of,
    plain,
    sample_of,
    with_first_step,
)

Flat = dict[str, Any]

Q_LEARNING, ACTOR_CRITIC = names_of(QLearningPolicy), names_of(QACPolicy)
REPLAYED = tuple(name for name in names_of(OnPolicyPolicy) if not POLICY_REGISTRY.get(name).on_policy)
ANY_ACTION = tuple(name for name in REPLAYED if name not in DISCRETE_ONLY)
CLONED = ("bc",)
EVERY = Q_LEARNING + ACTOR_CRITIC + REPLAYED + CLONED
CANNOT_BE_SET: list[tuple[str, str]] = [  # fields of a family that an algorithm refuses
    ("mdqn", "learn.double_q"),
    ("sql", "learn.double_q"),
    ("sqn", "learn.double_q"),
    ("sqil", "learn.double_q"),
    ("crossq", "learn.target_theta"),
    ("crossq", "learn.target_update_freq"),
    *[("mbpo", name) for name in ("nstep", "priority", "priority_IS_weight")],
    *[("xqc", f"model.{name}") for name in ("layer_norm", "last_layer_init")],
    ("bro", "model.layer_norm"),
    *[("td7", name) for name in ("learn.target_theta", "model.share_encoder")],
    ("discrete_sac", "collect.sde_sample_freq"),
    ("ngu", "model.core.residual"),
    ("ppg_offpolicy", "model.share_encoder"),
]
# Sections of the workers have tests in tests/worker, that of reward models in tests/reward_model; a compiled update
# gives the numbers of an eager one, which tests/policy/base/test_updater.py asserts; full_std needs actions of
# several dimensions, see tests/policy/test_on_policy.py, and so does mean_target, see tests/policy/test_bdq.py; whole
# episodes have tests in tests/datamodules/test_whole_episodes.py, kinds of layers in tests/model/test_residual.py, and
# the parts that are reset in tests/policy/base/test_reset.py.
LEFT_OUT = (
    "collect.collector.",
    "collect.n_episode",
    "eval.evaluator.",
    "other.replay_buffer.",
    "reward_model.",
    "model.actor_layers.",
    "model.critic_layers.",
    "learn.reset_parts",
    "compile",
    "on_non_finite",
    "dynamics.import_names",
    "model.full_std",
    "learn.mean_target",
)
BATCH_SIZE = 16


@ENCODER_REGISTRY.register("doubling_test_encoder")
class DoublingEncoder(MLPEncoder):
    """Twice the features."""

    def forward(self, obs: Any) -> Any:
        return 2 * super().forward(obs)


@dataclass(frozen=True)
class Option:
    """A non-default value of a field; a bool is negated."""

    value: Any = None
    given: Flat = field(default_factory=dict)
    """Options that are set in both configs, for options that depend on others."""
    also: Flat = field(default_factory=dict)
    """Options that must change together with the non-default value."""


HYBRID = {"model.action_shape": {"action_type_shape": 3, "action_args_shape": 1}}
CHOICES: dict[str, Flat] = {"ddpg": HYBRID, "td3": HYBRID, "pdqn": HYBRID, "d4pg": HYBRID}  # what chooses at random
HYBRID_ONLY = ("other.eps.", "model.action_start", "model.argument_mask")
FALLING = {"other.eps.start": 1.0, "other.eps.end": 0.1}
LINEAR: Flat = {"learn.lr_scheduler.type": "linear", "learn.lr_scheduler.decay": 0.9}
POINTS: Flat = {"learn.lr_scheduler.type": "piecewise", "learn.lr_scheduler.points": [[0.0, 1.0], [1.0, 0.0]]}
TWO_RATES: Flat = {f"learn.learning_rate_{part}": 0.001 for part in ("actor", "critic")} | {
    "model.share_encoder": False
}
TORQUE: Flat = {"model.action_space": "continuous", "model.action_shape": 1}
OF_TORQUES = (
    "action_low",
    "action_high",
    "action_integer",
    "sigma_type",
    "fixed_sigma_value",
    "log_std_init",
    "bound_type",
    "rpo_alpha",
    "loss_type",
)
"""Options that have no effect on a discrete action of policies that have all kinds of actions."""
ENTROPY: Flat = {"learn.entropy_weight": 0.5}
COMMON_BETAS: Flat = {"learn.optimizer.betas": [0.9, 0.999]}  # those that optimizers without betas are left at
OFTEN: dict[str, Any] = {"redq": {"learn": {"actor_update_freq": 2}}}  # so that the actor learns in a few updates
OFTEN["rlpd"] = OFTEN["redq"]
OFTEN["td7"] = {"learn": {"target_update_freq": 1}}  # so that next values count soon
OFTEN["r2d2"] = {"burnin_step": 2, "learn_unroll_len": 3, "nstep": 2, "model": {"core": {"hidden_size": 16}}}
OFTEN["r2d3"] = OFTEN["ngu"] = OFTEN["r2d2"]
SMOOTHED = {"learn.noise": True}
GTRXL: Flat = {"model.core.type": "gtrxl"}
SDE: Flat = {"model.use_sde": True}
LISTS: Flat = {"model.actor_hidden_size_list": [16], "model.critic_hidden_size_list": [16]}
PRIORITISED = {"priority": True, "priority_IS_weight": False, "other.replay_buffer.type": "advanced"}

IN_UPDATES_OR_ACTIONS: dict[str, Option] = {
    "priority_IS_weight": Option(given={"priority": True}),
    "model.encoder": Option("doubling_test_encoder"),
    "model.encoder_hidden_size_list": Option([8]),
    "model.head_hidden_size": Option(8, given={"model.head_layer_num": 1}),
    "model.head_layer_num": Option(2),
    "model.a_layer_num": Option(2),
    "model.v_layer_num": Option(2),
    "model.encoder_kwargs": Option({"activation": "silu"}),
    "model.activation": Option("tanh"),
    "model.core.type": Option("gru"),
    "model.core.hidden_size": Option(8),
    "model.core.num_layers": Option(2),
    "model.core.num_heads": Option(2, given=GTRXL),
    "model.core.head_size": Option(2, given=GTRXL),
    "model.core.memory_length": Option(1, given=GTRXL),
    "model.core.gate_bias": Option(0.0, given=GTRXL),
    "model.v_min": Option(-1.0),
    "model.v_max": Option(1.0),
    "model.n_atom": Option(11),
    "model.noise_std": Option(0.1, given={"model.noise": True}),
    "model.num_quantiles": Option(1, given={"learn.learning_rate": 0.1}, also={"learn.dropped_quantiles": 0}),
    "model.quantile_embedding_size": Option(8),
    "model.renorm_momentum": Option(0.5),
    "model.renorm_warmup": Option(2),
    "model.critic_dropout": Option(0.2),
    "model.ensemble_num": Option(3),
    "model.actor_head_hidden_size": Option(8),
    "model.actor_head_layer_num": Option(4),
    "model.critic_head_hidden_size": Option(8),
    "model.critic_head_layer_num": Option(4),
    "model.actor_hidden_size_list": Option([8], given=LISTS),
    "model.critic_hidden_size_list": Option([8], given=LISTS),
    "model.log_std_init": Option(0.5, given=SDE),
    "model.use_expln": Option(given={**SDE, "model.log_std_init": 0.5}),
    "model.clip_mean": Option(0.001, given=SDE),
    "model.share_encoder": Option(given={"model.encoder_hidden_size_list": [8]}),
    "model.last_layer_init": Option(0.5),
    "model.action_low": Option([-2.0]),
    "model.action_high": Option([2.0]),
    "model.action_integer": Option(True),
    "model.action_start": Option(4),
    "learn.learning_rate": Option(0.002),
    "learn.reset_freq": Option(1),
    "learn.reset_at": Option([1]),
    "learn.target_update_freq": Option(2, also={"learn.target_theta": None}),
    "learn.target_theta": Option(0.1),
    "learn.grad_clip_norm": Option(1e-9),
    "learn.grad_clip_value": Option(1e-9, given={"learn.grad_clip_norm": None}),
    "learn.optimizer.type": Option("rmsprop", also=COMMON_BETAS),
    "learn.optimizer.eps": Option(0.1),
    "learn.optimizer.weight_decay": Option(0.1),
    "learn.optimizer.betas": Option([0.5, 0.9]),
    "learn.optimizer.momentum": Option(0.9, given={"learn.optimizer.type": "sgd", **COMMON_BETAS}),
    "learn.lr_scheduler.type": Option("linear"),
    "learn.lr_scheduler.unit": Option("env_step", given=LINEAR),
    "learn.lr_scheduler.end": Option(0.5, given=LINEAR),
    "learn.lr_scheduler.decay": Option(0.6, given=LINEAR),
    "learn.lr_scheduler.points": Option([[0.0, 1.0], [1.0, 0.2]], given=POINTS),
    "learn.double_q": Option(given={"learn.learning_rate": 0.1}),
    "learn.loss": Option("mse"),
    "learn.kappa": Option(0.1),
    "learn.num_quantiles": Option(4),
    "learn.num_target_quantiles": Option(4),
    "learn.learning_rate_fraction": Option(0.002),
    "learn.ent_coef": Option(0.5, given={"learn.learning_rate_fraction": 0.1}),
    "entropy_tau": Option(0.5),
    "m_alpha": Option(0.5),
    "m_clip": Option(-0.01),
    "learn.learning_rate_actor": Option(0.002, given=TWO_RATES),
    "learn.learning_rate_critic": Option(0.002, given=TWO_RATES),
    "learn.learning_rate_q": Option(0.002),
    "learn.learning_rate_policy": Option(0.002),
    "learn.learning_rate_alpha": Option(0.002),
    "learn.actor_update_freq": Option(4),
    "learn.noise_sigma": Option(0.4, given=SMOOTHED),
    "learn.noise_range.min": Option(-0.01, given=SMOOTHED),
    "learn.noise_range.max": Option(0.01, given=SMOOTHED),
    "learn.alpha": Option(0.3),
    "learn.lambda1": Option(0.5),
    "learn.lambda2": Option(0.5),
    "learn.lambda3": Option(0.1),
    "learn.margin_function": Option(2.0),
    "learn.lambda_one_step_td": Option(0.5),
    "learn.target_entropy": Option(-3.0),
    "learn.learning_rate_value": Option(0.002),
    "learn.tau": Option(0.9),
    "learn.beta": Option(0.5),
    "learn.min_q_weight": Option(0.5),
    "learn.eta": Option(0.5),
    "learn.trust_region_value": Option(0.01, given={"learn.entropy_weight": 1.0}),
    "learn.num_actions": Option(3),
    "model.phi": Option(0.5),
    "model.latent_size": Option(3),
    "model.vae_hidden_size_list": Option([8]),
    "model.candidates": Option(2),
    "model.argument_mask": Option([[1], [0], [1]]),
    "learn.learning_rate_vae": Option(0.002),
    "learn.learning_rate_novelty": Option(0.002),
    "model.num_policies": Option(3),
    "model.embedding_size": Option(8),
    "model.embedding_hidden_size": Option(8),
    "model.critic_activation": Option("tanh"),
    "model.novelty_hidden_size_list": Option([8]),
    "discount_factor_last": Option(0.5),
    "beta": Option(1.0),
    "cross_mixture_ratio": Option(0.0),
    "learn.lmbda": Option(0.1),
    "learn.kl_weight": Option(0.9),
    "learn.kl_target": Option(0.5),
    "learn.optimism": Option(2.0),
    "learn.pessimism": Option(0.5),
    "learn.std_multiplier": Option(0.5),
    "learn.learning_rate_weights": Option(0.002),
    "learn.learning_rate_embedding": Option(0.002),
    "learn.turn": Option(2),
    "learn.lagrange_thresh": Option(-1.0, given={"learn.with_lagrange": True}),
    "learn.dropped_quantiles": Option(5),
    "learn.target_critics": Option(3),
    "learn.value_weight": Option(3.0, given={"learn.grad_clip_norm": None}),
    "learn.entropy_weight": Option(0.5),
    "learn.lambda_": Option(0.1),
    "learn.rho_clip_ratio": Option(0.1),
    "learn.c_clip_ratio": Option(0.1),
    "learn.rho_pg_clip_ratio": Option(0.1),
    "learn.clip_ratio": Option(0.001),
    "learn.aux_freq": Option(3),
    "learn.aux_train_epoch": Option(2),
    "learn.aux_bc_weight": Option(5.0),
    "learn.dual_clip": Option(1.001),
    "learn.value_clip": Option(0.001),
    "learn.value_norm": Option(True),
    "learn.rpo_alpha": Option(0.5),
    "learn.loss_type": Option("mse_loss"),
    "learn.ce_label_smooth": Option(0.2),
    "model.action_space": Option("continuous", also={"model.action_shape": 1}),
    "model.sigma_type": Option("conditioned"),
    "model.fixed_sigma_value": Option(0.5, given={"model.sigma_type": "fixed"}),
    "model.bound_type": Option("tanh"),
    "collect.noise_type": Option("ou"),
    "collect.sde_sample_freq": Option(1, given=SDE),
    "collect.noise_sigma": Option(0.3),
    "other.eps.type": Option("exp", given=FALLING),
    "other.eps.start": Option(0.5, given=FALLING),
    "other.eps.end": Option(0.9, given=FALLING),
    "other.eps.decay": Option(100, given=FALLING),
    "other.eps.unit": Option("budget", given={**FALLING, "other.eps.decay": 0.5}),
}
IN_A_RUN: dict[str, Option] = {
    "nstep": Option(5, given={"nstep": 1, "nstep_return": True}),
    "unroll_len": Option(4),
    "burnin_step": Option(1),
    "learn_unroll_len": Option(3),
    "sequence_period": Option(1),
    "discount_factor": Option(0.5),
    "num_neighbours": Option(2, given={"num_neighbours": 1}),
    "memory_size": Option(1, given={"num_neighbours": 1}),
    "lifelong_max": Option(1.0, given={"num_neighbours": 1}),
    "priority": Option(given=PRIORITISED),
    "random_collect_size": Option(32),
    "learn.update_per_collect": Option(3),
    "learn.batch_size": Option(9),
    "learn.per_train_iter_k": Option(1),
    "collect.n_sample": Option(24),
    "collect.gae_lambda": Option(0.1),
    "dynamics.ensemble_num": Option(4),
    "dynamics.elite_num": Option(1),
    "dynamics.hidden_size_list": Option((9,)),
    "dynamics.learning_rate": Option(1e-4),
    "dynamics.weight_decay": Option(0.1),
    "dynamics.batch_size": Option(5),
    "dynamics.holdout_ratio": Option(0.5),
    "dynamics.max_epochs_since_update": Option(0, given={"dynamics.max_epochs": 20}),
    "dynamics.max_epochs": Option(1),
    "dynamics.fit_freq": Option(8),
    "dynamics.terminated_fn": Option("lightning_ding.rl.dynamics.never_terminated"),
    "rollout.batch_size": Option(6),
    "rollout.length": Option(((0, 3),)),
    "rollout.retain": Option(1),
    "rollout.deterministic": Option(),
    "rollout.random_action_share": Option(0.5),
    "learn.real_ratio": Option(0.5),
}
for section, given in {"entropy_weight": ENTROPY, "clip_ratio": {}}.items():  # values that are scheduled
    for last, value in {"type": "linear", "unit": "env_step", "end": 0.5, "decay": 0.6, "points": [[0.0, 1.0]]}.items():
        start, kind = f"learn.{section}_scheduler.", {"type": None, "points": "piecewise"}.get(last, "linear")
        first = {"type": kind, "decay": 0.9} if kind == "linear" else {"type": kind, "points": [[0.0, 0.5]]}
        shape = {f"{start}{key}": one for key, one in first.items()} if kind else {}
        IN_UPDATES_OR_ACTIONS[f"{start}{last}"] = Option(value, given={**given, **shape})
REFUSED: dict[str, Any] = {"collect.unroll_len": 2, "model.obs_shape": 7, "model.action_shape": 7}
REFUSED["model.dict_encoder"] = "separate"  # observations are no dict


def leaves(config: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the default of every field that holds a value."""
    for one in dataclasses.fields(config):
        name, value = f"{path}{one.name}", getattr(config, one.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{name}.")
        elif not name.startswith(LEFT_OUT):
            yield name, value


def fields_of(name: str) -> dict[str, Any]:
    return dict(leaves(POLICY_REGISTRY.get(name).config_class()))


def nest(flat: Flat) -> dict[str, Any]:
    """Return the config that dotted names stand for."""
    config: dict[str, Any] = {}
    for path, value in flat.items():
        for part in reversed(path.split(".")):
            value = {part: value}
        config = deep_merge(config, value)
    return config


def cases(table: dict[str, Any]) -> list[tuple[str, str]]:
    found = [(name, path) for name in EVERY for path in fields_of(name) if path in table]
    return [case for case in found if case not in CANNOT_BE_SET]


def sides(name: str, path: str, option: Option) -> tuple[Flat, Flat]:
    """Return the options without and with the other value."""
    known = fields_of(name)
    given = dict(CHOICES.get(name, {}) if path.startswith(HYBRID_ONLY) else {})
    if name in ANY_ACTION + CLONED and path.endswith(OF_TORQUES):
        given |= TORQUE
    given |= {key: value for key, value in option.given.items() if key in known or key.startswith(LEFT_OUT)}
    if given.get("other.replay_buffer.type") == "advanced" and name in ("r2d2", "r2d3", "ngu"):
        given["other.replay_buffer.type"] = "prioritised_sequence"
    if path == "model.layer_norm" and "model.critic_layer_norm" in known:
        given["model.critic_layer_norm"] = False  # they exclude each other
    default = given.get(path, known[path])
    if path == "learn.loss" and default == "mse":
        return given, {**given, path: "huber"}
    value = not default if isinstance(default, bool) else option.value
    assert value != default
    return given, {**given, **{key: new for key, new in option.also.items() if key in known}, path: value}


def make(name: str, config: dict[str, Any]) -> Policy[Any]:
    torch.manual_seed(0)
    shapes: dict[str, Any] = {"obs_shape": 3, "action_shape": 1 if name in CONTINUOUS_ONLY else 3}
    sizes = {"actor_head_hidden_size": 16, "critic_head_hidden_size": 16}
    if name in ANY_ACTION + CLONED:
        shapes["action_space"] = "discrete"
    sizes = {} if "actor_hidden_size_list" in config.get("model", {}) else sizes
    base = {"model": shapes | (sizes if name in (*ACTOR_CRITIC, "acer") else {"encoder_hidden_size_list": [16]})}
    policy = create_policy({"type": name, **deep_merge(deep_merge(base, OFTEN.get(name, {})), config)})
    policy.seed(0)
    return policy


def make_batch(policy: Policy[Any]) -> dict[str, Any]:
    """Return a minibatch with large rewards, terminal states and weights of all sizes."""
    rng, shape, size = np.random.default_rng(0), policy.config.model.action_shape, BATCH_SIZE
    obs, next_obs = (torch.from_numpy(rng.standard_normal((size, 3), dtype=np.float32)) for _ in range(2))
    choice, torque = torch.from_numpy(rng.integers(3, size=size)), torch.from_numpy(rng.uniform(-1, 1, (size, 1)))
    action: Any = torque.float() if shape == 1 else choice
    if isinstance(shape, dict):
        action = {"action_type": choice, "action_args": torque.float()}
    ended = torch.arange(size) % 4 == 3
    batch = {
        "obs": obs,
        "action": action,
        "reward": 5 * obs[:, 0],
        "next_obs": next_obs,
        "terminated": ended,
        "truncated": torch.zeros_like(ended),
        "discount": torch.full((size,), 0.9),
        "IS": torch.linspace(0.1, 1, size),
    }
    if not isinstance(policy, OnPolicyPolicy):
        return with_first_step(policy, batch)
    ids = {name: torch.arange(size) // 4 for name in ("env_id", "episode_id")}
    return sample_of(policy, {**batch, **ids, "log_prob": torch.linspace(-2, -0.5, size)})


def updates_and_actions(name: str, options: Flat) -> Iterator[Any]:
    """Yield the weights after each of six updates, what these report, and the actions before and after them."""
    policy = make(name, nest(options))
    batch = make_batch(policy)
    obs = batch["obs"].flatten(0, -2)  # also of sequences
    batch = to_sequences(policy, batch)
    policy.progress.env_step, policy.progress.budget = 5000, 80_000
    for _ in range(6):
        yield plain(policy.collect_mode.forward(obs)["action"])
        yield plain(policy.learn_mode.forward(batch))
        yield plain(policy.state_dict())
    yield plain(policy.eval_mode.forward(obs)["action"])


OUTCOMES: dict[str, list[Any]] = {}


def known_updates_and_actions(name: str, options: Flat) -> list[Any]:
    """Return the same as a list, which is computed once for options that many cases share."""
    key = f"{name} {options}"
    if key not in OUTCOMES:
        OUTCOMES[key] = list(updates_and_actions(name, options))
    return OUTCOMES[key]


@cache
def run(name: str, options: tuple[tuple[str, Any], ...]) -> list[Any]:
    """Return the counters, the weights and the buffer that a short run ends with."""
    torch.manual_seed(0)
    policy, datamodule = make_policy(name, **nest(dict(options))), make_datamodule(name, max_env_step=64)
    flags: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    Trainer(accelerator="cpu", enable_checkpointing=False, limit_val_batches=0, **flags).fit(policy, datamodule)
    buffer: Any = datamodule.buffer  # type: ignore[attr-defined]
    return [policy.progress.state_dict(), plain(policy.state_dict()), buffer.count()]


@pytest.mark.parametrize("name", EVERY)
def test_the_walk_covers_every_field(name: str) -> None:
    found = fields_of(name)
    turned_over = {path for path, value in found.items() if isinstance(value, bool)}
    assert set(found) - turned_over - set(IN_UPDATES_OR_ACTIONS) - set(IN_A_RUN) - set(REFUSED) == set()


@pytest.mark.parametrize("table", [IN_UPDATES_OR_ACTIONS, IN_A_RUN, REFUSED])
def test_the_walk_knows_no_field_that_is_gone(table: dict[str, Any]) -> None:
    assert set(table) <= {path for name in EVERY for path in fields_of(name)}


def in_updates_or_actions() -> list[tuple[str, str]]:
    fields = {path: value for name in EVERY for path, value in fields_of(name).items()}
    turned_over = {path: Option() for path, value in fields.items() if isinstance(value, bool)}
    return cases({path: None for path in IN_UPDATES_OR_ACTIONS | turned_over if path not in IN_A_RUN})


@pytest.mark.parametrize(("name", "path"), in_updates_or_actions())
def test_an_option_changes_updates_or_actions(name: str, path: str) -> None:
    without, with_it = sides(name, path, IN_UPDATES_OR_ACTIONS.get(path, Option()))
    pairs = zip(updates_and_actions(name, with_it), known_updates_and_actions(name, without), strict=True)
    assert any(one != other for one, other in pairs)


@pytest.mark.parametrize(("name", "path"), cases(IN_A_RUN))
def test_an_option_changes_a_run(name: str, path: str) -> None:
    without, with_it = sides(name, path, IN_A_RUN[path])
    assert run(name, tuple(with_it.items())) != run(name, tuple(without.items()))


@pytest.mark.parametrize(("name", "path"), cases(REFUSED))
def test_a_value_that_cannot_be_is_refused(name: str, path: str) -> None:
    datamodule = make_datamodule(name)
    env = datamodule._make_env(datamodule.env_id, 1, (), {})
    with pytest.raises(ValueError, match=path.rpartition(".")[2]):
        make_policy(name, **nest({path: REFUSED[path]})).build(env.single_observation_space, env.single_action_space)
    env.close()


@pytest.mark.parametrize("name", EVERY)
def test_equal_configs_give_equal_numbers(name: str) -> None:
    assert list(updates_and_actions(name, {})) == list(updates_and_actions(name, {}))
    first = run(name, ())
    run.cache_clear()
    assert run(name, ()) == first
