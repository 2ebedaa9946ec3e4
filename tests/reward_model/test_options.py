"""The section ``reward_model``: each option changes a number or is refused, and what a policy does with it."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch

from lightning_ding import nested
from lightning_ding.config import to_dict
from lightning_ding.datamodules import OfflineDataModule, ReplayDataModule
from lightning_ding.entry.lightning_cli import with_every_key
from lightning_ding.policy import DQNConfig, NonFiniteError, create_policy, load_dump
from lightning_ding.registry import REWARD_MODEL_REGISTRY
from tests.algorithms.table import make_policy, plain
from tests.conftest import MakeTrainer
from tests.reward_model.cases import fit, make, write_expert

KINDS = ("rnd", "icm", "gail", "trex", "drex", "guided_cost", "red", "pdeil", "pwil")
STARTS = {"drex": "ppo", "guided_cost": "ppo"}  # the policies of the cases, else dqn
CHANGES: dict[str, tuple[dict[str, Any], Any]] = {  # the other options that are set, and another value
    "learning_rate": ({}, 0.1),
    "batch_size": ({}, 9),
    "update_per_collect": ({}, 5),
    "hidden_size_list": ({}, [9]),
    "clear_buffer_per_iters": ({}, 2),
    "intrinsic_reward_type": ({}, "assign"),
    "intrinsic_reward_weight": ({}, 0.01),  # errors above 1 would have equal gradients
    "intrinsic_reward_norm": ({}, "minmax"),
    "extrinsic_reward_norm": ({"extrinsic_reward_norm_max": 5.0}, True),
    "extrinsic_reward_norm_max": ({"extrinsic_reward_norm": True}, 5.0),
    "obs_norm": ({}, False),
    "obs_norm_clamp_min": ({}, -0.5),
    "obs_norm_clamp_max": ({}, 0.5),
    "reverse_scale": ({}, 0.5),
    "collect_count": ({}, 3),
    "data_path": ({}, None),  # another file
    "ranking": ({}, "order"),
    "num_trajs": ({}, 7),
    "num_snippets": ({}, 21),
    "min_snippet_length": ({}, 4),
    "max_snippet_length": ({}, 9),
    "bounded": ({}, True),
    "num_trajs_per_bin": ({}, 1),
    "sigma": ({}, 3.0),
    "alpha": ({}, 0.1),
    "recent": ({}, 4),
    "beta": ({}, 1.0),
    "horizon": ({}, 9),
}
NO_NUMBER = ("type", "import_names")


@cache
def folder() -> Path:
    return Path(mkdtemp())


def trained(kind: str, options: dict[str, Any]) -> Any:
    """Return the weights that a short run ends with, or the error that it raises."""
    torch.manual_seed(0)
    try:
        policy, datamodule = make(
            f"{STARTS.get(kind, 'dqn')}_{kind}", folder(), reward_model={"clear_buffer_per_iters": 1, **options}
        )
    except ValueError as error:
        return str(error)
    fit(policy, datamodule, folder(), 1)
    return plain(policy.state_dict())


def cases() -> list[tuple[str, str]]:
    keys = {
        kind: {one.name for one in dataclasses.fields(REWARD_MODEL_REGISTRY.get(kind).config_class)} for kind in KINDS
    }
    return [(kind, name) for kind in KINDS for name in sorted(keys[kind]) if name not in NO_NUMBER]


def test_every_option_is_in_the_table() -> None:
    assert {name for _, name in cases()} == set(CHANGES)


@pytest.mark.parametrize(("kind", "name"), cases())
def test_option_changes_a_number_or_raises(kind: str, name: str) -> None:
    given, value = CHANGES[name]
    if name == "data_path":
        value = write_expert(folder(), False).replace(".npz", "_other.npz")
        with np.load(write_expert(folder(), False)) as file:
            np.savez(value, **{key: file[key] + (key in ("obs", "next_obs")) for key in file.files})
    assert trained(kind, {**given, name: value}) != trained(kind, given)


def test_equal_options_give_equal_numbers() -> None:
    assert trained("rnd", {}) == trained("rnd", {})


# ---------------------------------------------------------------------------------------------------- the section


def section(**keys: Any) -> Any:
    return create_policy({"type": "dqn", "reward_model": keys}).config.reward_model


def test_section_is_of_the_config_class_of_its_type() -> None:
    config = section(type="rnd", intrinsic_reward_weight=0.5)
    assert type(config).__name__ == "RNDConfig"
    assert (config.intrinsic_reward_weight, config.obs_norm_clamp_max) == (0.5, 5.0)
    assert section(type="gail").data_path == ""
    assert section().type is None


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"type": "rnt"}, "no reward model is registered as 'rnt'; did you mean 'rnd'"),
        ({"type": "rnd", "weight": 1.0}, "unknown config key 'reward_model.weight'"),
        ({"type": "rnd", "reverse_scale": 2.0}, "'reward_model.reverse_scale' does nothing with .* 'rnd', got 2.0"),
        ({"reverse_scale": 2.0}, "'reward_model.reverse_scale' does nothing with reward_model.type None"),
        ({"learning_rate": 0.1}, "reward_model.learning_rate must be left at its default .* without reward_model.type"),
        ({"type": "rnd", "learning_rate": 0.0}, "reward_model.learning_rate must be > 0, got 0.0"),
        ({"type": "rnd", "batch_size": 0}, "reward_model.batch_size must be >= 1, got 0"),
        ({"type": "rnd", "hidden_size_list": []}, "reward_model.hidden_size_list must be None or at least one width"),
        ({"type": "rnd", "obs_norm_clamp_min": 0.5}, "reward_model.obs_norm_clamp_min must be < 0, got 0.5"),
        ({"type": "rnd", "obs_norm_clamp_max": 0.0}, "reward_model.obs_norm_clamp_max must be > 0, got 0.0"),
        (
            {"type": "rnd", "obs_norm": False, "obs_norm_clamp_max": 3.0},
            "obs_norm_clamp_max must be left at its default without obs_norm, got 3.0",
        ),
        ({"type": "rnd", "intrinsic_reward_weight": -1.0}, "intrinsic_reward_weight must be >= 0, got -1.0"),
        ({"type": "rnd", "extrinsic_reward_norm_max": 2.0}, "must be 1 without extrinsic_reward_norm, got 2.0"),
        (
            {"type": "icm", "intrinsic_reward_type": "assign", "extrinsic_reward_norm": True},
            "extrinsic_reward_norm must be False with 'assign'",
        ),
        ({"type": "icm", "reverse_scale": 0.0}, "reward_model.reverse_scale must be > 0, got 0.0"),
        ({"type": "gail", "collect_count": 0}, "reward_model.collect_count must be >= 1 or None, got 0"),
    ],
)
def test_wrong_sections_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, KeyError), match=message):
        section(**keys)


def test_command_line_has_the_keys_of_all_reward_models() -> None:
    config = with_every_key(DQNConfig()).reward_model
    assert (config.type, config.data_path, config.reverse_scale, config.obs_norm_clamp_min) == (None, "", 4.0, -5.0)
    saved = {**to_dict(config), "type": "icm"}
    assert type(section(**saved)).__name__ == "ICMConfig"


def test_reward_model_rewards_single_steps() -> None:
    policy = create_policy({"type": "dqn", "reward_model": {"type": "rnd"}})
    assert policy.get_attribute("nstep") == 1
    assert create_policy({"type": "dqn"}).get_attribute("nstep") == 3
    with pytest.raises(ValueError, match=r"nstep must be 1 or None with a reward model.*got 3"):
        create_policy({"type": "rainbow", "reward_model": {"type": "rnd"}})


def test_policy_that_learns_from_several_rewards_of_a_transition_is_refused() -> None:
    model = {"obs_shape": 4, "action_shape": 2}
    with pytest.raises(ValueError, match=r"reward_model.type must be None with DQfDPolicy.*single rewarded steps"):
        create_policy({"type": "dqfd", "nstep": 1, "model": model, "reward_model": {"type": "rnd"}})


# ---------------------------------------------------------------------------------------------------- its policy


def test_weights_of_the_policy_start_as_without_a_reward_model() -> None:
    weights = []
    for keys in ({}, {"type": "icm"}):
        torch.manual_seed(0)
        policy = create_policy({"type": "dqn", "model": {"obs_shape": 4, "action_shape": 2}, "reward_model": keys})
        weights.append(plain(policy.model.state_dict()))
    assert weights[0] == weights[1]


def test_network_that_is_passed_gets_its_reward_model_with_the_spaces(make_trainer: MakeTrainer) -> None:
    network = create_policy({"type": "dqn", "model": {"obs_shape": 4, "action_shape": 2}}).model
    policy = create_policy({"type": "dqn", "reward_model": {"type": "rnd"}}, model=network)
    assert not policy.learner.rewards.is_on
    make_trainer(max_epochs=1, limit_val_batches=0).fit(policy, ReplayDataModule("CartPole-v1", rounds_per_epoch=1))
    assert policy.learner.rewards.is_on


def test_replayed_transitions_get_the_rewards_of_the_newest_model(tmp_path: Path) -> None:
    policy, datamodule = make("dqn_rnd", tmp_path)
    fit(policy, datamodule, tmp_path, 1)
    batch = datamodule.buffer.sample(8)  # type: ignore[attr-defined]
    before = policy.learner.rewards.estimate(dict(batch))["reward"]
    policy.learner.rewards.collect_data(batch)
    policy.learner.rewards.train()
    after = policy.learner.rewards.estimate(dict(batch))["reward"]
    assert not torch.equal(before, after)
    assert set(batch["reward"].tolist()) == {1.0}


def test_minibatches_of_a_round_get_the_rewards_that_each_of_them_gets_alone(tmp_path: Path) -> None:
    policy, datamodule = make("dqn_icm", tmp_path, reward_model={"intrinsic_reward_norm": "minmax"})
    fit(policy, datamodule, tmp_path, 1)
    data = datamodule.buffer.sample(8, num_batches=3)  # type: ignore[attr-defined]
    together = policy.learner.rewards.estimate(data)["reward"]
    for part, minibatch in zip(together, nested.unbind(data), strict=True):
        torch.testing.assert_close(policy.learner.rewards.estimate(minibatch)["reward"], part)


def test_rollout_is_rewarded_by_rnd_before_and_by_gail_after_it_is_learned_from(tmp_path: Path) -> None:
    for case, is_after in (("ppo_rnd", False), ("ppo_gail", True)):
        policy, datamodule = make(case, tmp_path)
        fit(policy, datamodule, tmp_path, 1)
        rewards, order = policy.learner.rewards, list[str]()
        rewards.train = lambda order=order: order.append("train")
        rewards.estimate = lambda batch, order=order: order.append("estimate")
        collected = datamodule._next_round()
        rewards.learn_from_rollout(collected, collected)
        assert order == (["train", "estimate"] if is_after else ["estimate", "train"])


@pytest.mark.parametrize("mode", ["raise", "skip_update"])
def test_loss_that_is_not_finite_is_treated_as_that_of_a_policy(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    policy, datamodule = make("dqn_rnd", tmp_path, on_non_finite=mode)
    fit(policy, datamodule, tmp_path, 1)
    batch = datamodule.buffer.sample(8)  # type: ignore[attr-defined]
    policy.learner.rewards.collect_data({**batch, "next_obs": batch["next_obs"] * torch.nan})
    model: Any = policy.reward_model
    before = plain(model.state_dict())
    if mode == "skip_update":
        policy.learner.rewards.train()
        assert policy.updater.guard.skipped_updates == 3
    else:
        with pytest.raises(NonFiniteError, match="reward_model_loss") as raised:
            policy.learner.rewards.train()
        dump = load_dump(raised.value.folder)  # type: ignore[arg-type]
        assert dump.loss_name == "reward_model_loss"
        with pytest.raises(NonFiniteError, match="reward_model_loss"):
            dump.repeat()
    assert plain(model.state_dict()) == before


def replayed(type_name: str = "rnd", **options: Any) -> tuple[Any, dict[str, Any]]:
    model = {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [8]}
    section = {"type": type_name, "hidden_size_list": [8], "batch_size": 4, **options}
    policy = create_policy({"type": "dqn", "nstep": 1, "model": model, "reward_model": section})
    batch: dict[str, Any] = {name: torch.randn(8, 4) for name in ("obs", "next_obs")}
    batch |= {"action": torch.randint(2, (8,)), "reward": torch.ones(8), "env_id": torch.zeros(8, dtype=torch.long)}
    return policy, batch | {"terminated": torch.zeros(8, dtype=torch.bool)}


@pytest.mark.parametrize(
    ("collected", "updates", "made", "times"),
    [  # minibatches of 4; the updates after each collection, and how often each transition is learned from
        ([8], None, [2], [1] * 8),
        ([2, 1, 1, 2], None, [0, 0, 1, 0], [1] * 4 + [0] * 4),
        ([3, 4], None, [0, 2], [1] * 6 + [2, 0]),  # the last minibatch starts again
        ([2, 2], 3, [3, 3], [6] * 4 + [0] * 4),
    ],
)
def test_updates_follow_the_number_of_collected_transitions(
    collected: list[int], updates: int | None, made: list[int], times: list[int]
) -> None:
    policy, batch = replayed(update_per_collect=updates)
    rewards, seen, found, start = policy.learner.rewards, list[Any](), list[int](), 0
    loss = rewards.model.loss

    def noted_loss(data: Any) -> Any:
        seen.append(data["obs"])
        return loss(data)

    rewards.model.loss = noted_loss
    for number in collected:
        before = len(seen)
        rewards.collect_data({name: column[start : start + number] for name, column in batch.items()})
        rewards.train()
        found.append(len(seen) - before)
        start += number
    occurs = (torch.cat(seen)[:, None] == batch["obs"][None]).all(2).sum(0)
    assert (found, sorted(occurs.tolist())) == (made, sorted(times))


def test_transitions_that_wait_for_a_minibatch_are_in_a_checkpoint() -> None:
    (policy, batch), (again, _) = replayed(), replayed()
    rewards, resumed = policy.learner.rewards, again.learner.rewards
    rewards.collect_data({name: column[:3] for name, column in batch.items()})
    resumed.load_state(rewards.state())
    assert (rewards._due_updates(), resumed._due_updates()) == (0, 0)
    resumed.collect_data({name: column[:1] for name, column in batch.items()})
    assert resumed._due_updates() == 1
    resumed.load_state({name: value for name, value in rewards.state().items() if name != "new"})  # an older version's
    assert resumed._due_updates() == 0


def test_replayed_batch_without_a_trained_model_is_refused() -> None:
    policy, batch = replayed()
    message = (
        r"'rnd' gives rewards of an untrained model.*rewards.collect_data\(transitions\) and learner.rewards.train"
    )
    with pytest.raises(RuntimeError, match=message):
        policy.learn_mode.forward(dict(batch))
    policy.learner.rewards.collect_data(batch)
    policy.learner.rewards.train()
    assert policy.learn_mode.forward(dict(batch))["total_loss"] > 0


@pytest.mark.parametrize("through_mode", [True, False])
def test_replayed_batch_gets_the_rewards_of_a_loaded_model(through_mode: bool) -> None:
    (trained_policy, batch), (policy, _) = replayed(), replayed()
    if through_mode:
        policy.learn_mode.load_state_dict(trained_policy.learn_mode.state_dict())
    else:
        policy.load_state_dict(trained_policy.state_dict())
    assert policy.learn_mode.forward(dict(batch))["total_loss"] > 0


def test_learning_rate_schedule_leaves_the_reward_model_alone(tmp_path: Path) -> None:
    falling = {"type": "linear", "unit": "env_step", "decay": 16, "end": 0.1}
    policy, datamodule = make("dqn_rnd", tmp_path, learn={"lr_scheduler": falling})
    fit(policy, datamodule, tmp_path, 1)
    first, last = (optimizer.param_groups[0]["lr"] for optimizer in policy.updater.optimizers)
    assert first == pytest.approx(0.1 * policy.config.learn.learning_rate)
    assert last == policy.config.reward_model.learning_rate


REPLACING: list[tuple[str, dict[str, Any]]] = [("gail", {}), ("rnd", {"intrinsic_reward_type": "assign"})]


@pytest.mark.parametrize(("kind", "options"), REPLACING)
def test_normalised_rewards_of_the_env_are_refused_where_they_are_replaced(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    for case in (f"dqn_{kind}", f"ppo_{kind}"):
        policy, datamodule = make(case, tmp_path, reward_model=options)
        datamodule._norm_asked["norm_reward"] = True
        with pytest.raises(ValueError, match=f"norm_reward must be False with reward_model.type '{kind}'"):
            fit(policy, datamodule, tmp_path, 1)


@pytest.mark.parametrize(("kind", "options"), REPLACING)
@pytest.mark.parametrize("name", ["dqn", "sqil"])
def test_rewards_of_demonstrations_are_refused_where_they_are_replaced(
    name: str, kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    expert = write_expert(tmp_path, False)
    section = {"type": kind, **options, **({"data_path": expert} if kind == "gail" else {})}
    given: Any = {"demonstrations": expert, "imitation_reward": name == "dqn"}
    policy = make_policy(name, nstep=1, reward_model=section)
    with pytest.raises(ValueError, match=f"reward_model.type must be None, or one that adds to .*, got '{kind}'"):
        fit(policy, ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=32, **given), tmp_path, 1)


def test_rewards_that_are_added_go_with_demonstrations_and_normalised_rewards(tmp_path: Path) -> None:
    policy = make_policy("sqil", nstep=1, reward_model={"type": "rnd"})
    data: Any = {"demonstrations": write_expert(tmp_path, False), "norm_reward": True}
    fit(policy, ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=32, **data), tmp_path, 1)
    assert policy.progress.train_iter > 0


def test_data_set_has_no_reward_model(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    policy, _ = make("dqn_rnd", tmp_path)
    message = (
        "reward_model.type must be None in a OfflineDataModule; a ReplayDataModule or a RolloutDataModule trains it"
    )
    with pytest.raises(ValueError, match=message):
        make_trainer().fit(policy, OfflineDataModule(write_expert(tmp_path, False), max_train_iter=2))
