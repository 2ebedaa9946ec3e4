"""What PPO, A2C and REINFORCE have in common, and the options of all that learn from rollouts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Normal
from torch.testing import assert_close

from lightning_ding import nested, rl
from lightning_ding.config import deep_merge
from lightning_ding.envs import Timestep
from lightning_ding.policy import A2CPolicy, PGPolicy, PPOPolicy, PQNPolicy, RecurrentPPOPolicy
from lightning_ding.policy.on_policy import OnPolicyPolicy
from tests.algorithms.sequences import with_memory

Config = dict[str, Any]
PolicyClass = type[OnPolicyPolicy[Any]]
POLICIES: list[PolicyClass] = [PPOPolicy, A2CPolicy, PGPolicy]
WITH_CRITIC: list[PolicyClass] = [PPOPolicy, A2CPolicy]
WITH_OPTIONS: list[PolicyClass] = [*POLICIES, RecurrentPPOPolicy, PQNPolicy]
DISCRETE: Config = {"obs_shape": 3, "action_shape": 2, "action_space": "discrete", "encoder_hidden_size_list": [8]}
CONTINUOUS: Config = DISCRETE | {"action_space": "continuous"}


def make_policy(policy_class: PolicyClass, *changes: Config) -> Any:
    left_out = ("action_space",) if policy_class is PQNPolicy else ()  # whose actions are always discrete
    config: Config = {"model": {name: value for name, value in DISCRETE.items() if name not in left_out}}
    for change in changes:
        config = deep_merge(config, change)
    torch.manual_seed(0)
    policy = policy_class(config)
    policy.seed(0)
    return policy


def make_rollout(policy: Any, size: int = 12) -> Config:
    """Return a rollout of one env, with the policy's actions: an episode that terminates and one that is cut."""
    rng = np.random.default_rng(1)
    obs = torch.from_numpy(rng.normal(size=(size + 1, policy.config.model.obs_shape)).astype(np.float32))
    flags = torch.zeros(2, size, dtype=torch.bool)
    flags[0, size // 2], flags[1, -1] = True, True
    output = policy.collect_mode.forward(obs[:-1])
    steps = {"obs": obs[:-1], "next_obs": obs[1:], "action": output["drawn"], "log_prob": output["log_prob"]}
    steps["reward"] = torch.from_numpy(rng.normal(size=size).astype(np.float32))
    episode = torch.cat([torch.zeros(1), flags[0, :-1].long().cumsum(0)]).long()
    ids = {"env_id": torch.zeros(size, dtype=torch.long), "episode_id": episode}
    return with_memory(policy, steps | ids | {"terminated": flags[0], "truncated": flags[1]})


# Options


def leaves_of(config: Any, path: str = "") -> Iterator[str]:
    """Yield the dotted names of all options; the sections of workers count as one."""
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), f"{path}{field.name}"
        is_section = dataclasses.is_dataclass(value) and field.name not in ("collector", "evaluator", "reward_model")
        yield from leaves_of(value, f"{name}.") if is_section else [name]


def nest(name: str, value: Any) -> Config:
    """Return ``{"a": {"b": value}}`` of ``"a.b"``."""
    for part in reversed(name.split(".")):
        value = {part: value}
    return value  # type: ignore[no-any-return]


def schedule_changes(section: str, beside: Config) -> dict[str, tuple[Config, Any]]:
    """Return a change of each option of a section that schedules a value of ``learn``."""

    def given(**options: Any) -> Config:
        return {"learn": {**beside, section: options}}

    table = {"type": "piecewise", "points": [[0.0, 1.0], [1.0, 0.0]]}
    changes: dict[str, tuple[Config, Any]] = {
        "type": (given(), "linear"),
        "unit": (given(type="linear", decay=0.9), "env_step"),
        "end": (given(type="cosine"), 0.5),
        "decay": (given(type="exp"), 0.5),
        "points": (given(**table), [[0.0, 1.0], [1.0, 0.5]]),
    }
    return {f"learn.{section}.{name}": change for name, change in changes.items()}


ELSEWHERE = {
    "compile": "tests/policy/base/test_compiled.py",
    "eval.evaluator": "tests/datamodules/test_rollout.py",
    "reward_model": "tests/reward_model/test_options.py",
}
ELSEWHERE |= {"on_non_finite": "tests/policy/base/test_non_finite.py"}
"""Options whose effect is tested in another file."""
LAYER = {"actor_head_layer_num": 1}
SMALL: Config = {"learn_unroll_len": 4, "model": {"core": {"hidden_size": 5}}, "learn": {"epoch_per_collect": 2}}
TWO_RATES: Config = {
    "model": {"share_encoder": False},
    "learn": {"learning_rate_actor": 0.05, "learning_rate_critic": 0.05},
}
CRITIC_LAYER = {"critic_head_layer_num": 1}
GTRXL: Config = {"model": {"core": {"type": "gtrxl", "hidden_size": 4, "num_heads": 2, "memory_length": 3}}}
SDE = CONTINUOUS | {"use_sde": True}
LISTS = {"actor_hidden_size_list": [4], "critic_hidden_size_list": [4]}
CHANGES: dict[str, tuple[Config, Any]] = {
    "discount_factor": ({}, 0.5),
    "recompute_adv": ({}, False),
    "learn_unroll_len": ({}, 2),
    "model.core.type": ({}, "gru"),
    "model.core.hidden_size": ({}, 8),
    "model.core.num_layers": ({}, 2),
    "model.core.residual": ({}, True),
    "model.core.num_heads": (GTRXL, 1),
    "model.core.head_size": (GTRXL, 3),
    "model.core.memory_length": (GTRXL, 2),
    "model.core.gate_bias": (GTRXL, 0.0),
    "deterministic_eval": ({}, False),
    "model.obs_shape": ({}, 4),
    "model.action_shape": ({}, 3),
    "model.action_space": ({}, "continuous"),
    "model.action_low": ({"model": CONTINUOUS | {"action_high": [3.0, 3.0]}}, [-3.0, -2.0]),
    "model.action_high": ({"model": CONTINUOUS | {"action_low": [-3.0, -3.0]}}, [3.0, 2.0]),
    "model.action_integer": ({"model": CONTINUOUS}, True),
    "model.action_start": ({}, 1),
    "model.dict_encoder": ({}, "separate"),  # refused for vectors; see test_network_options.py
    "model.encoder": ({}, "none of these"),
    "model.encoder_hidden_size_list": ({}, [8, 8]),
    "model.actor_head_layer_num": ({}, 1),
    "model.actor_head_hidden_size": ({"model": LAYER}, 4),
    "model.critic_head_layer_num": ({}, 1),
    "model.critic_head_hidden_size": ({"model": CRITIC_LAYER}, 4),
    "model.actor_hidden_size_list": ({"model": LISTS}, [8]),
    "model.critic_hidden_size_list": ({"model": LISTS}, [8]),
    "model.share_encoder": ({}, None),  # the other of both
    "model.encoder_kwargs": ({}, {"activation": "silu"}),
    "model.activation": ({}, "tanh"),
    "model.layer_norm": ({}, None),  # the other of both
    "model.dueling": ({}, True),
    "model.head_layer_num": ({}, 2),
    "model.head_hidden_size": ({"model": {"head_layer_num": 1}}, 4),
    "model.sigma_type": ({"model": CONTINUOUS}, "conditioned"),
    "model.fixed_sigma_value": ({"model": CONTINUOUS | {"sigma_type": "fixed"}}, 0.5),
    "model.bound_type": ({"model": CONTINUOUS}, "tanh"),
    "model.log_std_init": ({"model": CONTINUOUS}, 0.5),
    "model.use_sde": ({"model": CONTINUOUS}, True),
    "model.full_std": ({"model": SDE}, False),
    "model.use_expln": ({"model": SDE | {"log_std_init": 0.5}}, True),
    "collect.sde_sample_freq": ({"model": SDE}, 1),
    "learn.batch_size": ({}, 3),
    "learn.learning_rate": ({}, 0.01),
    "learn.learning_rate_actor": (TWO_RATES, 0.01),
    "learn.learning_rate_critic": (TWO_RATES, 0.01),
    "learn.rpo_alpha": ({"model": CONTINUOUS}, 0.5),
    "learn.optimizer.type": ({}, "rmsprop"),
    "learn.optimizer.betas": ({}, [0.5, 0.9]),
    "learn.optimizer.eps": ({}, 0.1),
    "learn.optimizer.weight_decay": ({}, 0.1),
    "learn.optimizer.momentum": ({"learn": {"optimizer": {"type": "sgd"}}}, 0.9),
    "learn.grad_clip_value": ({"learn": {"grad_clip_norm": None}}, 1e-6),
    "learn.entropy_weight": ({}, 0.5),
    "learn.grad_clip_norm": ({}, 1e-6),
    "learn.epoch_per_collect": ({}, 3),
    "learn.clip_ratio": ({}, 0.001),
    "learn.dual_clip": ({}, 1.001),
    "learn.value_weight": ({}, 3.0),
    "learn.value_clip": ({}, 0.001),
    "learn.value_norm": ({}, None),  # the other of both
    "learn.adv_norm": ({}, None),  # the other of both
    "learn.return_norm": ({}, False),
    "learn.target_kl": ({"learn": {"epoch_per_collect": 3}}, 1e-9),
    "learn.ppo_param_init": ({}, None),  # the other of both
    "learn.ignore_done": ({}, True),
    "learn.lambda_": ({}, 0.1),
    "other.eps.type": ({}, "exp"),
    "other.eps.start": ({}, 0.5),
    "other.eps.end": ({}, 0.9),
    "other.eps.decay": ({}, 0.9),
    "other.eps.unit": ({"other": {"eps": {"decay": 0.9}}}, "env_step"),
    "collect.n_sample": ({}, 8),
    "collect.n_episode": ({"collect": {"n_sample": None, "n_episode": 2, "collector": {"type": "episode"}}}, 3),
    "collect.unroll_len": ({}, 2),
    "collect.collector": ({}, {"get_train_sample": True}),
    "collect.gae_lambda": ({}, 0.1),
}
CHANGES |= schedule_changes("lr_scheduler", {})
CHANGES |= schedule_changes("entropy_weight_scheduler", {"entropy_weight": 0.5})
CHANGES |= schedule_changes("clip_ratio_scheduler", {})
OPTIONS = [(one, name) for one in WITH_OPTIONS for name in leaves_of(one.config_class()) if name not in ELSEWHERE]


def outcomes(policy_class: PolicyClass, *changes: Config) -> Iterator[Tensor]:
    """Yield in numbers all that a policy does in each of three rounds: actions, weights, and what the workers ask."""
    small = SMALL if policy_class is RecurrentPPOPolicy else {}  # whose updates take longer
    policy = make_policy(policy_class, {"learn": {"learning_rate": 0.05, "batch_size": 4}}, small, *changes)
    policy.progress.budget = 4000
    for number in range(3):
        policy.progress.env_step = 1000 * number
        policy.learn_mode.forward(make_rollout(policy))
        rollout = make_rollout(policy)
        asked = ("n_sample", "n_episode", "batch_size", "update_per_collect")
        kept: list[Any] = [policy.eval_mode.forward(rollout["obs"])["action"], rollout["action"], policy.cur_lr()]
        kept += [[policy.get_attribute(name) or 0 for name in asked], policy.progress.train_iter]
        yield torch.cat([torch.as_tensor(one).double().reshape(-1) for one in (*kept, *policy.state_dict().values())])


OUTCOMES: dict[str, list[Tensor]] = {}


def known_outcomes(policy_class: PolicyClass, base: Config) -> list[Tensor]:
    """Return the same as a list, which is computed once for options that many cases share."""
    key = f"{policy_class.__name__} {base}"
    if key not in OUTCOMES:
        OUTCOMES[key] = list(outcomes(policy_class, base))
    return OUTCOMES[key]


def differ(some: Iterable[Tensor], others: Iterable[Tensor]) -> bool:
    """Return whether a round differs; rounds after that are not computed."""
    return not all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


@pytest.mark.parametrize(("policy_class", "name"), OPTIONS)
def test_every_option_changes_a_number_or_raises(policy_class: PolicyClass, name: str) -> None:
    base, value = CHANGES[name]
    if base is TWO_RATES:
        if policy_class is RecurrentPPOPolicy:  # which refuses the rates
            base = {"model": {"share_encoder": False}}
        base = deep_merge(base, {"learn": {"learning_rate": policy_class.default_config().learn.learning_rate}})
    if base == {"model": LISTS} and policy_class is PGPolicy:  # which has no critic
        base = {"model": {"actor_hidden_size_list": [4]}}
    if base == {"model": SDE} and policy_class is RecurrentPPOPolicy:  # which has no such noise
        base = {}
    if name == "learn.lr_scheduler.type":  # those of A2C and PQN are linear
        base = {"learn": {"lr_scheduler": {"type": "constant"}}}
    before = known_outcomes(policy_class, base)
    if value is None:
        section, _, last = name.partition(".")
        value = not getattr(getattr(policy_class.config_class(), section), last)
    try:
        changes_or_says_what = differ(outcomes(policy_class, base, nest(name, value)), before)
    except (ValueError, KeyError) as error:
        changes_or_says_what = name.rsplit(".", 1)[-1] in str(error) or str(value) in str(error)
    assert changes_or_says_what


@pytest.mark.parametrize("policy_class", [PPOPolicy, RecurrentPPOPolicy])
def test_same_options_give_the_same_numbers(policy_class: PolicyClass) -> None:
    assert not differ(outcomes(policy_class), outcomes(policy_class))


@pytest.mark.parametrize("way", ["popart", "symlog"])
def test_critic_of_a_recurrent_network_is_scaled_in_other_ways_too(way: str) -> None:
    scaled = list(outcomes(RecurrentPPOPolicy, nest("learn.value_norm", way)))
    for one in (True, False):
        assert differ(scaled, known_outcomes(RecurrentPPOPolicy, nest("learn.value_norm", one)))


@pytest.mark.parametrize("policy_class", POLICIES)
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"discount_factor": 1.1}, r"discount_factor must be in \[0, 1\], got 1.1"),
        ({"learn": {"batch_size": 0}}, "learn.batch_size must be >= 1 or None, got 0"),
        ({"learn": {"learning_rate": 0.0}}, "learn.learning_rate must be > 0, got 0.0"),
        ({"learn": {"optimizer": {"eps": 0.0}}}, "learn.optimizer.eps must be > 0, got 0.0"),
        ({"learn": {"eps": 1e-5}}, "learn.eps' does not exist here: set optimizer.eps"),
        ({"learn": {"entropy_weight": -1.0}}, "learn.entropy_weight must be >= 0"),
        ({"learn": {"grad_clip_norm": 0.0}}, "learn.grad_clip_norm must be > 0 or None"),
        ({"learn": {"lr_scheduler": {"epoch_num": 9}}}, "learn.lr_scheduler.epoch_num' does not exist here: set type"),
        ({"learn": {"lr_scheduler": {"min_lr_lambda": 0.1}}}, "min_lr_lambda' does not exist here: set end"),
        ({"learn": {"entropy_weight_scheduler": {"type": "linear"}, "entropy_weight": 0.0}}, "with entropy_weight 0"),
        ({"collect": {"n_sample": 4, "n_episode": 4}}, "collect.n_sample must be set when n_episode is None"),
        ({"collect": {"n_sample": None, "n_episode": None}}, "collect.n_sample must be set when n_episode is None"),
        ({"priority": True}, "there is no replay"),
        ({"learn": {"update_per_collect": 3}}, "epoch_per_collect"),
    ],
)
def test_option_out_of_its_range_is_refused(policy_class: PolicyClass, config: Config, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        policy_class(config)


# Acting


def step_of(obs: Tensor) -> Timestep:
    flag = np.zeros(len(obs), dtype=bool)
    return Timestep(
        next_obs=obs.numpy(),
        reward=np.ones(len(obs), np.float32),
        terminated=flag,
        truncated=flag,
        valid=~flag,
        abnormal=flag,
        info={},
    )


@pytest.mark.parametrize("policy_class", POLICIES)
def test_env_gets_the_clipped_action_in_its_units_and_the_drawn_one_is_kept(policy_class: PolicyClass) -> None:
    box = {"action_low": [-2.0, 0.0], "action_high": [2.0, 6.0]}
    policy = make_policy(policy_class, {"model": CONTINUOUS | box | {"sigma_type": "fixed", "fixed_sigma_value": 2.0}})
    obs = torch.randn(64, 3)
    output = policy.collect_mode.forward(obs)
    drawn = output["drawn"]
    assert (drawn.abs() > 1).any()
    expected = drawn.clamp(-1, 1) * torch.tensor([2.0, 3.0]) + torch.tensor([0.0, 3.0])
    assert_close(output["action"], expected)
    kept = policy.collect_mode.process_transition(obs, output, step_of(obs))
    assert torch.equal(kept["action"], drawn)
    normal = Normal(policy._logit(obs)["mu"], 2.0)
    assert_close(kept["log_prob"], normal.log_prob(drawn).sum(1).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("policy_class", POLICIES)
def test_nothing_is_clipped_where_the_env_has_no_bounds(policy_class: PolicyClass) -> None:
    policy = make_policy(policy_class, {"model": CONTINUOUS | {"sigma_type": "fixed", "fixed_sigma_value": 5.0}})
    policy.build(spaces.Box(-1, 1, (3,)), spaces.Box(-np.inf, np.inf, (2,)))
    output = policy.collect_mode.forward(torch.randn(64, 3))
    assert (output["drawn"].abs() > 5).any()
    assert torch.equal(output["action"], output["drawn"])


@pytest.mark.parametrize("policy_class", POLICIES)
def test_policy_made_of_shapes_takes_the_bounds_of_the_env_it_meets(policy_class: PolicyClass) -> None:
    policy = make_policy(policy_class, {"model": CONTINUOUS})
    obs = torch.randn(4, 3)
    before = policy.eval_mode.forward(obs)["action"]
    policy.build(spaces.Box(-1, 1, (3,)), spaces.Box(-2.0, 2.0, (2,)))
    assert_close(policy.eval_mode.forward(obs)["action"], 2 * before)
    assert policy.config.model.action_high == (2.0, 2.0)


@pytest.mark.parametrize("policy_class", POLICIES)
def test_hybrid_action_has_a_type_as_it_is_and_arguments_in_the_units_of_the_env(policy_class: PolicyClass) -> None:
    shape = {"action_type_shape": 3, "action_args_shape": 1}
    hybrid = {"action_space": "hybrid", "action_shape": shape, "action_low": [-4.0], "action_high": [4.0]}
    policy = make_policy(policy_class, {"model": hybrid | {"sigma_type": "fixed", "fixed_sigma_value": 2.0}})
    output = policy.collect_mode.forward(torch.randn(64, 3))
    action, drawn = output["action"], output["drawn"]
    assert torch.equal(action["action_type"], drawn["action_type"])
    assert set(action["action_type"].tolist()) == {0, 1, 2}
    assert_close(action["action_args"], 4 * drawn["action_args"].clamp(-1, 1))


@pytest.mark.parametrize("policy_class", POLICIES)
@pytest.mark.parametrize("model", [DISCRETE, CONTINUOUS, DISCRETE | {"action_shape": [3, 2]}])
def test_actions_are_drawn_with_the_policys_own_seed_alone(policy_class: PolicyClass, model: Config) -> None:
    obs = torch.randn(64, 3)
    policy = make_policy(policy_class, {"model": model})

    def drawn(seed: int, others: int) -> Tensor:
        policy.seed(seed)
        torch.manual_seed(others)
        found: Tensor = policy.collect_mode.forward(obs)["action"]
        return found

    first = drawn(5, others=1)
    assert torch.equal(drawn(5, others=2), first)
    assert not torch.equal(drawn(6, others=1), first)
    torch_rng, numpy_rng = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]
    policy._learn(make_rollout(policy))
    assert torch.equal(torch.get_rng_state(), torch_rng)
    assert np.random.get_state()[1].tolist() == numpy_rng  # type: ignore[index]


def test_network_of_ones_own_needs_no_shapes() -> None:
    class Uniform(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.logit = nn.Parameter(torch.zeros(2))

        def forward(self, obs: Tensor) -> dict[str, Tensor]:
            return {"logit": self.logit.expand(len(obs), 2)}

    policy = PGPolicy(model=Uniform())
    assert policy.eval_mode.forward(torch.zeros(3, 1))["action"].tolist() == [0, 0, 0]


class Leaning(nn.Module):
    """A network of one's own for continuous actions: mean 3 and 0."""

    def __init__(self) -> None:
        super().__init__()
        self.mu = nn.Parameter(torch.tensor([3.0, 0.0]))

    def forward(self, obs: Tensor) -> dict[str, dict[str, Tensor]]:
        mu = self.mu.expand(len(obs), 2)
        return {"logit": {"mu": mu, "sigma": torch.ones_like(mu)}}


@pytest.mark.parametrize("model", [{}, {"action_space": "continuous"}, {"action_shape": 2}])
def test_continuous_actions_of_an_unknown_env_are_refused_by_the_names_of_their_keys(model: Config) -> None:
    policy = PGPolicy({"model": model}, model=Leaning())
    with pytest.raises(ValueError, match=r"model.action_space and model.action_shape must be set if .* no env"):
        policy.eval_mode.forward(torch.zeros(3, 1))


def test_continuous_network_of_ones_own_takes_shapes_from_config_or_env() -> None:
    policy = PGPolicy({"model": {"action_space": "continuous", "action_shape": 2}}, model=Leaning())
    assert policy.eval_mode.forward(torch.zeros(1, 1))["action"].tolist() == [[1.0, 0.0]]
    policy = PGPolicy(model=Leaning())
    policy.build(spaces.Box(-1, 1, (1,)), spaces.Box(-2, 2, (2,)))
    assert policy.eval_mode.forward(torch.zeros(1, 1))["action"].tolist() == [[2.0, 0.0]]


@pytest.mark.parametrize("policy_class", POLICIES)
def test_the_one_bound_of_a_dimension_is_kept(policy_class: PolicyClass) -> None:
    policy = make_policy(policy_class, {"model": CONTINUOUS | {"sigma_type": "fixed", "fixed_sigma_value": 5.0}})
    policy.build(spaces.Box(-1, 1, (3,)), spaces.Box(0, np.inf, (2,)))
    output = policy.collect_mode.forward(torch.randn(64, 3))
    assert (output["drawn"] < 0).any()
    assert torch.equal(output["action"], output["drawn"].clamp(min=0))


# Advantages


class LinearCritic(nn.Module):
    """Values of 3 times the first entry of an observation."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(3.0))

    def compute_critic(self, obs: Tensor) -> Mapping[str, Tensor]:
        return {"value": self.weight * obs[:, 0]}


def rows_of_envs(lengths: list[int]) -> list[Config]:
    """Return the rows of each env: some steps terminate or are truncated, the last continues in the next rollout."""
    rng = np.random.default_rng(0)
    envs, episode = [], 0
    for env_id, length in enumerate(lengths):
        rows, obs = [], rng.normal()
        for _ in range(length):
            next_obs = rng.normal()
            terminated, truncated = rng.random() < 0.2, rng.random() < 0.2
            row = {"obs": [obs], "next_obs": [next_obs], "reward": rng.normal(), "terminated": terminated}
            rows.append(row | {"truncated": truncated, "env_id": env_id, "episode_id": episode})
            is_over = terminated or truncated
            obs, episode = (rng.normal() if is_over else next_obs), episode + is_over  # reset to somewhere else
        episode += 1
        envs.append(rows)
    return envs  # type: ignore[return-value]


def slow_advantage(rows: list[Config], gamma: float, lam: float) -> list[float]:
    """Return the advantages of the rows of one env, one by one from the back (Schulman et al. 2016, eq. 16)."""
    found: list[float] = []
    behind = 0.0
    for row in reversed(rows):
        delta = row["reward"] + gamma * 3 * row["next_obs"][0] * (not row["terminated"]) - 3 * row["obs"][0]
        continues = not (row["terminated"] or row["truncated"]) and bool(found)
        behind = delta + gamma * lam * behind * continues
        found.append(behind)
    return found[::-1]


def interleaved(envs: Any, how: str) -> list[tuple[int, int]]:
    """Return the env and the number of each row of a rollout."""
    if how == "whole sequences":
        return [(env, step) for env, rows in enumerate(envs) for step in range(len(rows))]
    if how == "step by step":
        return [(env, step) for step in range(len(envs[0])) for env in range(len(envs))]
    order = np.random.default_rng(3).permutation(np.repeat(np.arange(len(envs)), [len(rows) for rows in envs]))
    count = dict.fromkeys(range(len(envs)), -1)
    return [(env, count.__setitem__(env, count[env] + 1) or count[env]) for env in order.tolist()]  # type: ignore[func-returns-value]


@pytest.mark.parametrize("policy_class", WITH_CRITIC)
@pytest.mark.parametrize(
    ("lengths", "how"),
    [([20, 20, 20], "step by step"), ([20, 7, 13], "whole sequences"), ([20, 1, 13], "any order"), ([1], "any order")],
)
def test_advantages_and_returns_are_those_of_a_slow_loop(
    policy_class: PolicyClass, lengths: list[int], how: str
) -> None:
    config = {"discount_factor": 0.9, "collect": {"gae_lambda": 0.8}, "model": {"action_space": "discrete"}}
    policy: Any = policy_class(config, model=LinearCritic())
    envs: Any = rows_of_envs(lengths)
    slow = [slow_advantage(rows, 0.9, 0.8) for rows in envs]
    order = interleaved(envs, how)
    rollout: Any = nested.stack([envs[env][step] for env, step in order])
    rollout |= {"action": rollout["env_id"], "log_prob": rollout["reward"]}
    data = policy._learning_data(rollout, sequences_of(rollout))
    expected = torch.tensor([slow[env][step] for env, step in order])
    assert_close(data["advantage"], expected, rtol=1e-5, atol=1e-5)
    assert_close(data["return"], expected + 3 * rollout["obs"][:, 0], rtol=1e-5, atol=1e-5)
    assert_close(data["value"], 3 * rollout["obs"][:, 0])


def sequences_of(rollout: Config) -> rl.Sequences:
    return rl.time_major(rollout["env_id"], rollout["episode_id"])


@pytest.mark.parametrize("policy_class", WITH_CRITIC)
@pytest.mark.parametrize(("ignore_done", "expected"), [(False, 1.0 - 3.0), (True, 1.0 + 0.5 * 6.0 - 3.0)])
def test_terminal_state_has_no_value_unless_termination_is_ignored(
    policy_class: PolicyClass, ignore_done: bool, expected: float
) -> None:
    config = {"discount_factor": 0.5, "learn": {"ignore_done": ignore_done}, "model": {"action_space": "discrete"}}
    policy: Any = policy_class(config, model=LinearCritic())
    row = {"obs": [1.0], "next_obs": [2.0], "reward": 1.0, "terminated": True, "truncated": False, "env_id": 0}
    rollout: Any = nested.stack([row | {"episode_id": 0, "action": 0, "log_prob": 0.0}])
    assert policy._learning_data(rollout, sequences_of(rollout))["advantage"].tolist() == [expected]


# Minibatches and schedule


@pytest.mark.parametrize("policy_class", POLICIES)
@pytest.mark.parametrize(
    ("size", "batch_size", "sizes"),
    [(10, 4, [5, 5]), (11, 4, [4, 4, 3]), (12, 4, [4, 4, 4]), (5, 64, [5]), (7, None, [7]), (3, 1, [1, 1, 1])],
)
def test_pass_uses_every_row_once_in_minibatches_of_nearly_one_size(
    policy_class: PolicyClass, size: int, batch_size: int | None, sizes: list[int]
) -> None:
    policy = make_policy(policy_class, {"learn": {"batch_size": batch_size}})
    seen: list[Config] = []
    minimise = policy.updater.minimise

    def spy(loss: Any, batch: Config, **kwargs: Any) -> Any:
        seen.append(batch)
        return minimise(loss, batch, **kwargs)

    policy.updater.minimise = spy
    rollout = make_rollout(policy, size)
    policy._learn(rollout)
    passes = 10 if policy_class is PPOPolicy else 1
    assert [nested.length(batch) for batch in seen] == sizes * passes
    assert policy.progress.train_iter == len(sizes) * passes
    orders = []
    for number in range(passes):
        obs = torch.cat([batch["obs"] for batch in seen[number * len(sizes) : (number + 1) * len(sizes)]])
        orders.append([rollout["obs"].tolist().index(row) for row in obs.tolist()])
        assert sorted(orders[-1]) == list(range(size))
    if size > 9:
        assert len({tuple(order) for order in orders}) == passes  # shuffled again


@pytest.mark.parametrize("policy_class", POLICIES)
def test_gradient_is_clipped_to_its_norm(policy_class: PolicyClass) -> None:
    one_pass = {"epoch_per_collect": 1} if policy_class is PPOPolicy else {}
    policy = make_policy(policy_class, {"learn": {"grad_clip_norm": 0.01, "batch_size": None, **one_pass}})
    policy._minibatches = lambda data, one=policy._minibatches: [next(one(data))]
    policy._learn(make_rollout(policy))
    moments = [state["exp_avg"] for state in policy.updater.optimizers[0].state.values()]  # 0.1 times the gradient
    assert torch.cat([one.reshape(-1) for one in moments]).norm().item() == pytest.approx(0.1 * 0.01, rel=1e-3)
