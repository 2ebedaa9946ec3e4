"""Algorithms that a user writes outside the package: what they draw, store, log and update by themselves."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning import Trainer
from torch import Tensor

from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
from lightning_ding.datamodules.rank_state import read_collecting, restore_collecting
from lightning_ding.datamodules.resume import Seeds
from lightning_ding.policy import (
    A2CPolicy,
    DDPGPolicy,
    DiscreteSACPolicy,
    DQNPolicy,
    IMPALAPolicy,
    PGPolicy,
    Policy,
    PolicyConfig,
    PPOOffPolicy,
    PPOPolicy,
    RecurrentPPOPolicy,
)
from lightning_ding.policy.base.config import NetworkConfig
from lightning_ding.worker.config import CollectorConfig
from tests.conftest import MakeTrainer
from tests.policy.own_policies import Boltzmann, DrawsByItself, with_tenfold
from tests.policy.test_on_policy import make_policy, make_rollout
from tests.processes import run_ranks_of_lightning, run_two_ranks
from tests.toys.envs import CountingEnv

FOLDER = Path(__file__).parent
SIZES = {"model": {"obs_shape": 3, "action_shape": 2, "encoder_hidden_size_list": [8]}}
Reports = list[dict[str, Any]]


def reports_of(folder: Path) -> Reports:
    return [torch.load(folder / f"rank_{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    folder = tmp_path_factory.mktemp("own_ranks")
    run_two_ranks(FOLDER / "own_ranks_script.py", folder)
    return reports_of(folder)


@pytest.fixture
def keeps_generators() -> Any:
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    yield
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])


# Random numbers


def actions_of(seed: Any) -> list[int]:
    torch.manual_seed(0)
    policy = DrawsByItself(SIZES)
    policy.seed(seed)
    found: list[int] = policy.collect_mode.forward(torch.zeros(64, 3))["action"].tolist()
    return found


@pytest.mark.usefixtures("keeps_generators")
def test_seed_makes_exploration_from_global_generators_repeatable_and_different_on_each_rank() -> None:
    first, second = (Seeds(0, rank).of("exploration") for rank in range(2))

    assert actions_of(3) == actions_of(3) != actions_of(4)
    assert actions_of(first) == actions_of(first) != actions_of(second)


@pytest.mark.usefixtures("keeps_generators")
@pytest.mark.parametrize("seed", [5, np.random.SeedSequence([1, 2])])
def test_seed_gives_the_generator_of_numpy_that_it_always_gave(seed: Any) -> None:
    policy = DrawsByItself(SIZES)
    policy.seed(seed)

    assert policy.rng.random(9).tolist() == np.random.default_rng(seed).random(9).tolist()


def test_two_ranks_explore_differently_and_are_told_that_their_weights_differ(tmp_path: Path) -> None:
    run_ranks_of_lightning(FOLDER / "own_fit_script.py", tmp_path)
    one, other = reports_of(tmp_path)

    assert len(one["action"]) == len(other["action"]) == 48
    assert one["action"].tolist() != other["action"].tolist()
    assert other["messages"] == []
    (message,) = one["messages"]
    assert (
        "first in model.encoder.layers.0.weight: a Own._forward_learn with its own backward pass has to call "
        in message
    )
    assert "self.sync_gradients(self.model) before its optimizer steps" in message


# Updates


def test_ranks_that_do_not_average_are_reported_once_after_the_first_round(ranks: Reports) -> None:
    one, other = (rank["apart"] for rank in ranks)

    assert not torch.equal(one["weights"]["encoder.layers.0.weight"], other["weights"]["encoder.layers.0.weight"])
    assert (one["counts"], other["counts"]) == ([1] * 6, [0] * 6)
    assert "self.updater.minimise(self.loss, batch) does that itself" in one["messages"][0]


def test_ranks_that_part_later_are_reported_after_the_epoch(ranks: Reports) -> None:
    assert ranks[0]["late"]["counts"] == [0, 0, 1, 1, 1, 1]


def test_ranks_with_sync_gradients_have_equal_weights_and_are_not_reported(ranks: Reports) -> None:
    one, other = (rank["together"] for rank in ranks)

    assert one["counts"] == [0] * 6
    for name, value in one["weights"].items():
        assert torch.equal(value, other["weights"][name]), name


def test_metrics_of_updates_are_means_over_the_ranks_that_have_them(ranks: Reports) -> None:
    assert [report["updates"] for report in ranks] == [{"both": 1.5, "second": 5.0}] * 2
    assert [report["episodes"] for report in ranks] == [{"collect/return_mean": 5.0, "collect/length_mean": 1.0}] * 2


def test_metrics_of_collecting_are_means_over_the_ranks_that_have_them(ranks: Reports) -> None:
    assert [rank["metrics"] for rank in ranks] == [{"both": 2.5, "first": 5.0}] * 2  # of 2 and 3
    assert [rank["nothing"] for rank in ranks] == [{}, {}]


# Columns


def observing(policy_class: Any, columns: tuple[str, ...] = ()) -> tuple[Any, list[dict[str, Any]]]:
    """Return a subclass whose transitions have a further column, and the minibatches that its loss gets."""
    seen: list[dict[str, Any]] = []

    class Observing(policy_class):  # type: ignore[misc]
        loss_columns = columns

        def _process_transition(self, obs: Any, output: Mapping[str, Any], timestep: Any) -> dict[str, Any]:
            return with_tenfold(super()._process_transition(obs, output, timestep), obs)

        def loss(self, batch: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
            seen.append(dict(batch))
            found: tuple[Tensor, dict[str, Tensor]] = super().loss(batch)
            return found

    return Observing, seen


CRITIC_COLUMNS = {"obs", "action", "log_prob", "value", "advantage", "return"}
OF_MEMORY = {"sequences", "rows", "recurrent_state", "is_first"}
USUAL = {
    PPOPolicy: CRITIC_COLUMNS,
    A2CPolicy: CRITIC_COLUMNS,
    PGPolicy: {"obs", "action", "return"},
    RecurrentPPOPolicy: CRITIC_COLUMNS | OF_MEMORY,
}


@pytest.mark.parametrize("policy_class", USUAL)
def test_loss_of_a_rollout_gets_the_columns_that_a_subclass_adds_and_asks_for(policy_class: Any) -> None:
    observing_class, seen = observing(policy_class, ("next_obs",))
    policy = make_policy(observing_class, {"learn": {"batch_size": 4}})
    rollout = make_rollout(policy)
    rollout["tenfold"] = 10 * rollout["obs"][:, 0]
    next_of = {float(obs[0]): after for obs, after in zip(rollout["obs"], rollout["next_obs"], strict=True)}

    policy.learn_mode.forward(rollout)

    assert seen
    for batch in seen:
        assert batch.keys() == USUAL[policy_class] | {"tenfold", "next_obs"}
        assert torch.equal(batch["tenfold"], 10 * batch["obs"][:, 0])
        assert torch.equal(batch["next_obs"], torch.stack([next_of[float(obs[0])] for obs in batch["obs"]]))


@pytest.mark.parametrize("policy_class", USUAL)
def test_loss_of_a_rollout_gets_no_column_that_it_does_not_need(policy_class: Any) -> None:
    observing_class, seen = observing(policy_class)
    policy = make_policy(observing_class)
    extra = ("policy_version", "seed")

    policy.learn_mode.forward(make_rollout(policy) | {name: torch.zeros(12) for name in extra})

    assert seen[0].keys() == USUAL[policy_class]


def test_a_name_of_no_column_in_loss_columns_is_refused() -> None:
    policy = make_policy(observing(PPOPolicy, ("next_observation",))[0])

    with pytest.raises(ValueError, match=r"loss_columns must be names of columns, one of \['action'.*next_observation"):
        policy.learn_mode.forward(make_rollout(policy))


def fit(policy: Any, data: Any, trainer: Trainer) -> None:
    trainer.fit(policy, data("CartPole-v1", num_envs=2, max_env_step=64, n_evaluator_episode=1))


@pytest.mark.parametrize(
    ("policy_class", "data"), [(PPOPolicy, RolloutDataModule), (IMPALAPolicy, ReplayDataModule),
                               (PPOOffPolicy, ReplayDataModule), (DQNPolicy, ReplayDataModule)]
)  # fmt: skip
def test_a_column_reaches_the_loss_from_the_collector_and_the_buffer(
    policy_class: Any, data: Any, make_trainer: MakeTrainer
) -> None:
    observing_class, seen = observing(policy_class)
    config = {"collect": {"n_sample": 32}, "learn": {"batch_size": 4}, "model": {"encoder_hidden_size_list": [8]}}

    fit(observing_class(config), data, make_trainer())

    assert seen
    for batch in seen:
        assert torch.equal(batch["tenfold"], 10 * batch["obs"][..., 0])
        assert policy_class is DQNPolicy or "next_obs" not in batch


@pytest.mark.parametrize("policy_class", [IMPALAPolicy, PPOOffPolicy])
def test_loss_of_replayed_rollouts_gets_the_next_observations_if_it_asks_for_them(
    policy_class: Any, make_trainer: MakeTrainer
) -> None:
    observing_class, seen = observing(policy_class, ("next_obs",))
    config = {"collect": {"n_sample": 32}, "learn": {"batch_size": 4}, "model": {"encoder_hidden_size_list": [8]}}

    fit(observing_class(config), ReplayDataModule, make_trainer())

    change = (seen[0]["next_obs"] - seen[0]["obs"])[..., 0]
    torch.testing.assert_close(change, 0.02 * seen[0]["obs"][..., 1])  # CartPole adds its velocity times 0.02 s


# Settings and metrics of collecting


class Greedy(DQNPolicy):
    """Does not explore."""

    def _forward_collect(self, obs: Any) -> dict[str, Tensor]:  # type: ignore[override]
        return self._forward_eval(obs)


class Passing(DQNPolicy):
    """Passes all settings on."""

    def _forward_collect(self, obs: Any, **kwargs: Any) -> dict[str, Tensor]:
        return super()._forward_collect(obs, **kwargs)


class GreedyHybrid(DDPGPolicy):
    """Does not explore."""

    def _forward_collect(self, obs: Any) -> dict[str, Tensor]:  # type: ignore[override]
        return self._forward_eval(obs)


class GreedySAC(DiscreteSACPolicy):
    """Does not explore."""

    def _forward_collect(self, obs: Any) -> dict[str, Tensor]:  # type: ignore[override]
        return self._forward_eval(obs)


HYBRID = {"model": {"obs_shape": 3, "action_shape": {"action_type_shape": 3, "action_args_shape": 1}}}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (DQNPolicy(SIZES), {"eps": 1.0}),
        (Passing(SIZES), {"eps": 1.0}),
        (Greedy(SIZES), {}),
        (DDPGPolicy(HYBRID), {"eps": 1.0}),
        (GreedyHybrid(HYBRID), {}),
        (DiscreteSACPolicy(SIZES), {"eps": 0.0}),
        (GreedySAC(SIZES), {}),
        (Boltzmann(SIZES), {"temperature": 1.0}),
    ],
    ids=lambda one: type(one).__name__,
)
def test_epsilon_is_a_setting_of_policies_that_take_it(policy: Any, expected: dict[str, float]) -> None:
    settings = policy.command_mode.get_setting_collect({"envstep": 0, "learner_step": 0})

    assert settings.keys() == expected.keys()
    policy.collect_mode.forward(torch.zeros(2, 3), **settings)


def run_of(make_trainer: MakeTrainer, max_env_step: int, **options: Any) -> tuple[Trainer, Any]:
    policy = Boltzmann({"collect": {"n_sample": 16}, "learn": {"batch_size": 8}})
    trainer = make_trainer(enable_checkpointing=True)
    datamodule = ReplayDataModule(CountingEnv, num_envs=2, max_env_step=max_env_step, n_evaluator_episode=1)
    trainer.fit(policy, datamodule, **options)
    return trainer, policy


def test_settings_and_metrics_of_collecting_are_logged_and_no_epsilon_is(make_trainer: MakeTrainer) -> None:
    trainer, policy = run_of(make_trainer, 64)

    found = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("collect/")}
    own = {name: value for name, value in found.items() if name.split("/")[1] not in ("return_mean", "length_mean")}
    assert own == pytest.approx({"collect/temperature": 1 / 49, "collect/envs": 2.0, "collect/half": 0.5})
    assert policy.collect_metrics.flush() == {}


def test_metrics_of_collecting_continue_in_a_resumed_run() -> None:
    one, other = Boltzmann(SIZES), Boltzmann(SIZES)
    one.collect_mode.forward(torch.zeros(4, 3))
    nothing: Any = type("Nothing", (), {"state_dict": dict, "load_state_dict": lambda *_, **__: None})()
    state = read_collecting(one, nothing, nothing, nothing)
    restore_collecting(state, other, nothing, nothing, nothing)

    assert other.collect_metrics.flush() == {"envs": 4.0, "half": 0.5}


# Config


@dataclass(frozen=True, kw_only=True)
class OwnCollectConfig:
    """Options for collecting."""

    n_sample: int = 8
    """Transitions of a round."""
    collector: CollectorConfig = field(default_factory=CollectorConfig)
    """The collector."""


@dataclass(frozen=True, kw_only=True)
class WithoutCollect(PolicyConfig):
    """A config without a section for collecting."""

    model: NetworkConfig = field(default_factory=NetworkConfig)
    """The network."""


@dataclass(frozen=True, kw_only=True)
class WithoutBuffer(WithoutCollect):
    """A config with neither a buffer nor a size of minibatches."""

    collect: OwnCollectConfig = field(default_factory=OwnCollectConfig)
    """Options for collecting."""


class Bare(Policy[Any]):
    """A policy of which only the shapes are known."""

    def default_model(self) -> tuple[str, list[str]]:
        """Return DQN's network."""
        return "dqn", ["lightning_ding.model.dqn"]

    def _shapes_of(self, observation_space: Any, action_space: Any) -> dict[str, Any]:
        return {"obs_shape": observation_space.shape[0], "action_shape": int(action_space.n)}


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        (WithoutCollect, "'collect.collector', which ReplayDataModule reads, but its WithoutCollect has no 'collect'"),
        (WithoutBuffer, "'other.replay_buffer', which ReplayDataModule reads, but its WithoutBuffer has no 'other'"),
    ],
)
def test_a_missing_field_of_a_config_is_named(config: Any, missing: str, make_trainer: MakeTrainer) -> None:
    policy = type("Missing", (Bare,), {"config_class": config})()

    with pytest.raises(ValueError, match=f"the config of Missing must have the field {missing}"):
        make_trainer().fit(policy, ReplayDataModule(CountingEnv, num_envs=2, max_env_step=16))


@pytest.mark.parametrize("name", ["discount_factor", "learn.batch_size", "learn.update_per_collect"])
def test_a_missing_attribute_says_how_to_set_it(name: str) -> None:
    policy = type("Missing", (Bare,), {"config_class": WithoutBuffer})()
    attribute = name.rpartition(".")[2]

    with pytest.raises(NotImplementedError, match=f"set {name} in its config, or add a method _get_{attribute}"):
        policy.get_attribute(attribute)
