"""R2D2: its loss against a loop over single steps, and the state that it keeps for each env."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.datamodules import OfflineDataModule, ReplayDataModule, replay
from lightning_ding.envs import make_vector_env
from lightning_ding.policy import R2D2Policy
from lightning_ding.worker import InteractionSerialEvaluator, SampleSerialCollector
from tests.algorithms.table import VARIANTS, make_policy
from tests.conftest import MakeTrainer
from tests.toys.memory import CueEnv

GAMMA = 0.9
LENGTHS = torch.tensor([8, 8, 6, 3, 1, 8])  # real steps of six sequences of 2 + 4 + 3 - 1 = 8 steps
TERMINATED, TRUNCATED = (1, 2), (3,)  # the others are cut


def make(**changes: Any) -> R2D2Policy:
    torch.manual_seed(0)
    sizes = {"obs_shape": 3, "action_shape": 2, "core": {"hidden_size": 5}, "encoder_hidden_size_list": [6]}
    config = {"burnin_step": 2, "learn_unroll_len": 4, "nstep": 3, "discount_factor": GAMMA, "model": sizes}
    policy = R2D2Policy({**config, **changes})
    for parameter in policy.target_model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return policy


def sequences(policy: R2D2Policy) -> Any:
    """Return six sequences; after its end one repeats its last step, as those of a buffer do."""
    torch.manual_seed(1)
    steps, size = 8, len(LENGTHS)
    place = torch.minimum(torch.arange(steps).unsqueeze(1), LENGTHS - 1)
    columns = torch.arange(size)
    obs = torch.randn(steps + 1, size, 3)
    terminated = torch.zeros(steps, size, dtype=torch.bool)
    for column in TERMINATED:
        terminated[LENGTHS[column] - 1, column] = True
    drawn = {"action": torch.randint(2, (steps, size)), "reward": 3 * torch.randn(steps, size)}
    drawn |= {"obs": obs[:-1], "next_obs": obs[1:], "terminated": terminated}
    batch: dict[str, Any] = {name: column[place, columns] for name, column in drawn.items()}
    state = torch.randn(size, 10)
    is_first = torch.tensor([False, True, False, True, True, False])
    return batch | {
        "mask": torch.arange(steps).unsqueeze(1) < LENGTHS,
        "recurrent_state": state.masked_fill(is_first.unsqueeze(1), 0.0),
        "is_first": is_first,
        "IS": torch.linspace(0.2, 1.0, size),
        "priority": torch.arange(10.0, 16.0),
    }


def values_by_loop(network: Any, batch: dict[str, Any], column: int) -> list[Tensor]:
    """Return the action values of each observation of one sequence, and of the one after its last real step."""
    observations = [*batch["obs"][: LENGTHS[column], column], batch["next_obs"][LENGTHS[column] - 1, column]]
    state, found = batch["recurrent_state"][column : column + 1], []
    for obs in observations:
        output = network.act(obs.unsqueeze(0), state)
        found.append(output["logit"][0])
        state = output["state"]
    return found


def h(x: float) -> float:
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 0.001 * x


def inverse(y: float) -> float:
    """Return the x with h(x) = y, by bisection."""
    low, high = -1e4, 1e4
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if h(middle) < y else (low, middle)
    return low


def errors_by_loop(policy: R2D2Policy, batch: dict[str, Any], column: int) -> list[float]:
    """Return target minus prediction of each step of a sequence that is learned from."""
    online = values_by_loop(policy.model, batch, column)
    target = values_by_loop(policy.target_model, batch, column)
    end, found = int(LENGTHS[column]), []
    for begin in range(0 if batch["is_first"][column] else 2, min(end, 6)):
        last = min(begin + 3, end)
        total = sum(GAMMA**number * float(batch["reward"][begin + number, column]) for number in range(last - begin))
        if not batch["terminated"][last - 1, column]:
            total += GAMMA ** (last - begin) * inverse(float(target[last][online[last].argmax()]))
        found.append(h(total) - float(online[begin].detach()[batch["action"][begin, column]]))
    return found


@pytest.mark.parametrize("weighted", [True, False])
def test_loss_and_priorities_are_those_of_a_loop_over_steps(weighted: bool) -> None:
    policy = make(priority_IS_weight=weighted)
    batch = sequences(policy)
    loss, report = policy.loss(batch)
    errors = [errors_by_loop(policy, batch, column) for column in range(6)]
    assert [len(of_one) for of_one in errors] == [4, 6, 4, 3, 1, 4]
    weights = batch["IS"] if weighted else torch.ones(6)
    total = sum(float(w) * sum(e**2 for e in of_one) for w, of_one in zip(weights, errors, strict=True))
    assert_close(loss, torch.tensor(total / (4 * 6)), rtol=1e-4, atol=1e-5)
    sizes = [[abs(e) for e in of_one] for of_one in errors]
    expected = [0.9 * max(of_one) + 0.1 * sum(of_one) / len(of_one) for of_one in sizes]
    assert_close(report["priority"], torch.tensor(expected), rtol=1e-4, atol=1e-4)


def test_a_sequence_that_ends_within_its_burn_in_changes_nothing_and_keeps_its_priority() -> None:
    policy = make()
    batch = sequences(policy)
    batch["is_first"][4] = False  # one real step
    loss, report = policy.loss(batch)
    assert float(report["priority"][4]) == 14.0
    batch["reward"][:, 4] = 1e6
    assert_close(policy.loss(batch)[0], loss)


def test_padding_changes_nothing() -> None:
    policy = make()
    batch = sequences(policy)
    loss, report = policy.loss(batch)
    for name in ("reward", "obs"):
        batch[name] = batch[name].clone()
        batch[name][~batch["mask"]] = 50.0
    changed, changed_report = policy.loss(batch)
    assert_close(changed, loss)
    assert_close(changed_report["priority"], report["priority"])


def test_ignoring_ends_bootstraps_from_terminal_states() -> None:
    policy = make(learn={"ignore_done": True})
    batch = sequences(policy)
    batch["terminated"][:] = False
    expected = make().loss(batch)[0]
    assert_close(policy.loss(sequences(policy))[0], expected)


def test_illegal_actions_are_not_bootstrapped_from() -> None:
    policy = make(model={"obs_shape": {"x": 3, "action_mask": 2}, "action_shape": 2, "core": {"hidden_size": 5}})
    batch = sequences(policy)
    mask = torch.ones(8, 6, 2)
    losses = []
    for illegal in (0, 1):
        next_mask = mask.clone()
        next_mask[..., illegal] = 0
        masked = {"obs": {"x": batch["obs"], "action_mask": mask}}
        masked |= {"next_obs": {"x": batch["next_obs"], "action_mask": next_mask}}
        losses.append(float(policy.loss(batch | masked)[0].detach()))
    assert losses[0] != losses[1]
    assert all(map(math.isfinite, losses))


# ---------------------------------------------------------------------- the state of each env


def act(policy: Any, obs: Tensor, state: Tensor) -> tuple[int, Tensor]:
    output = policy.model.act(obs.unsqueeze(0), state)
    return int(output["logit"].argmax()), output["state"]


@pytest.mark.parametrize("mode", ["collect", "eval"])
def test_each_env_has_its_own_state_until_it_is_reset(mode: str) -> None:
    policy = make()
    torch.manual_seed(3)
    functions: Any = getattr(policy, f"{mode}_mode")
    kwargs = {"eps": 0.0} if mode == "collect" else {}
    states = {env_id: torch.zeros(1, 10) for env_id in (0, 1, 5)}
    resets = {3: [1], 6: [0, 5], 9: None}
    for step in range(12):
        if step in resets:
            functions.reset(resets[step])
            states |= {env_id: torch.zeros(1, 10) for env_id in resets[step] or states}
        envs = [0, 1, 5] if step % 2 else [5, 0]
        obs = {env_id: 5 * torch.randn(3) for env_id in envs}
        found = functions.forward(obs, **kwargs)
        for env_id in envs:
            before = states[env_id]
            action, states[env_id] = act(policy, obs[env_id], before)
            assert int(found[env_id]["action"]) == action
            if mode == "collect":
                assert_close(found[env_id]["recurrent_state"], before[0])
                assert bool(found[env_id]["is_first"]) == bool((before == 0).all())


@pytest.mark.parametrize("name", ["r2d2", "recurrent_ppo", *VARIANTS])
def test_forward_acts_as_at_the_start_of_an_episode_and_keeps_no_state(name: str) -> None:
    torch.manual_seed(0)
    policy: Any = make_policy(name).build(spaces.Box(-1, 1, (3,)), spaces.Discrete(2))
    seen, act_once = list[Tensor](), policy.model.act

    def act(obs: Any, state: Tensor) -> Any:
        seen.append(state)
        return act_once(obs, state)

    policy.model.act = act
    obs = torch.randn(4, 3)
    policy.eval_mode.forward(obs)
    policy(obs)
    policy(obs)
    policy.eval_mode.forward(obs)
    assert [bool(state.any()) for state in seen] == [False, False, False, True]


def test_evaluating_does_not_change_the_state_of_collecting() -> None:
    policy = make()
    policy.collect_mode.forward(torch.ones(2, 3), eps=0.0)
    memory = policy.collect_memory()["state"].clone()
    policy.eval_mode.forward(-torch.ones(2, 3))
    policy.eval_mode.reset()
    assert_close(policy.collect_memory()["state"], memory)


@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("name", ["r2d2", "r2d2-gtrxl"])
def test_collected_states_are_those_of_reading_each_episode_from_its_start(
    name: str, autoreset: Any, random: bool
) -> None:
    policy: Any = make_policy(name, model={"obs_shape": 4, "action_shape": 2})
    policy.seed(0)
    env = make_vector_env("CartPole-v1", 3, autoreset=autoreset)
    env.reset(seed=0)
    env.action_space.seed(0)
    collector = SampleSerialCollector({}, env=env, policy=policy.collect_mode)
    kwargs: dict[str, Any] = {"random_collect": True} if random else {"policy_kwargs": {"eps": 1.0}}
    data = collector.collect(200, **kwargs)
    episodes = np.unique(data["episode_id"])
    assert len(episodes) > 6
    for episode in episodes:
        rows = np.flatnonzero(data["episode_id"] == episode)
        state = torch.zeros(1, policy.model.state_size)
        assert data["is_first"][rows].tolist() == [True] + [False] * (len(rows) - 1)
        for row in rows:
            assert_close(torch.from_numpy(data["recurrent_state"][row]), state[0])
            state = policy.model.act(torch.from_numpy(data["obs"][row : row + 1]), state)["state"].detach()


def test_result_of_an_evaluation_does_not_depend_on_the_number_of_envs() -> None:
    results = []
    for num_envs in (1, 4):
        policy = make_policy("r2d2", model={"obs_shape": 4, "action_shape": 2, "core": {"hidden_size": 32}})
        torch.manual_seed(0)
        for parameter in policy.model.parameters():
            parameter.data.normal_(0, 0.7)
        env = make_vector_env("CartPole-v1", num_envs, autoreset="disabled")
        evaluator = InteractionSerialEvaluator({}, env=env, policy=policy.eval_mode, seed=0)
        results.append(evaluator.run(range(8)))
    assert results[0] == results[1]
    assert len(set(results[0][1])) > 2


def test_memory_is_saved_and_restored() -> None:
    policy, other = make(), make()
    policy.collect_mode.forward(torch.ones(2, 3), eps=0.0)
    policy.collect_mode.reset([1])
    other.load_collect_memory(policy.collect_memory())
    expected, found = (one.collect_mode.forward(torch.ones(2, 3), eps=0.0) for one in (policy, other))
    assert_close(found["recurrent_state"], expected["recurrent_state"])
    assert found["is_first"].tolist() == [False, True]


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        ({"type": "advanced"}, "other.replay_buffer.type must be one whose samples are sequences"),
        ({"type": "sequence"}, "priority needs a prioritised buffer.*'prioritised_sequence'"),
        ({"type": "prioritised_sequence", "sequence_length": 9}, "other.replay_buffer.sequence_length must be None"),
        ({"type": "prioritised_sequence", "sequence_length": 9, "burn_in": 2}, "other.replay_buffer"),
    ],
)
def test_buffers_that_do_not_fit_are_refused(buffer: dict[str, Any], message: str, make_trainer: MakeTrainer) -> None:
    policy = make_policy("r2d2", other={"replay_buffer": buffer})
    with pytest.raises(ValueError, match=message):
        make_trainer().fit(policy, ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=32))


def test_a_data_set_of_transitions_is_refused(make_trainer: MakeTrainer) -> None:
    rows = np.zeros(16, dtype=np.float32)
    columns = {"obs": rows[:, None].repeat(4, 1), "action": rows.astype(int), "reward": rows}
    columns |= {"terminated": rows > 0, "truncated": np.arange(16) == 15}
    data = OfflineDataModule(columns, "CartPole-v1", max_train_iter=1)
    with pytest.raises(
        ValueError, match=r"policy must be one that learns from single transitions or .*, got 'R2D2Policy'"
    ):
        make_trainer().fit(make_policy("r2d2"), data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"burnin_step": -1}, "burnin_step must be >= 0"),
        ({"learn_unroll_len": 0}, "learn_unroll_len must be >= 1"),
        ({"sequence_period": 0}, r"sequence_period must be in \[1, learn_unroll_len\] = \[1, 4\] or None, got 0"),
        ({"sequence_period": 5}, r"sequence_period must be in \[1, learn_unroll_len\] = \[1, 4\] or None, got 5"),
    ],
)
def test_values_out_of_range_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_it_trains_without_priorities_on_uniformly_drawn_sequences(make_trainer: MakeTrainer) -> None:
    uniform = {"priority": False, "priority_IS_weight": False, "other": {"replay_buffer": {"type": "sequence"}}}
    policy = make_policy("r2d2", model={"obs_shape": 4, "action_shape": 2}, **uniform)
    before = [parameter.clone() for parameter in policy.model.parameters()]
    make_trainer(limit_val_batches=0).fit(policy, ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=64))
    assert any(bool((a != b).any()) for a, b in zip(before, policy.model.parameters(), strict=True))


@pytest.mark.parametrize(("learn_unroll_len", "warns"), [(80, True), (20, False)])
def test_a_run_warns_once_if_most_of_its_minibatches_is_padding(
    learn_unroll_len: int,
    warns: bool,
    make_trainer: MakeTrainer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replay, "UPDATES_BEFORE_WARNING", 4)
    policy = make_policy("r2d2", burnin_step=0, learn_unroll_len=learn_unroll_len)
    data = ReplayDataModule(CueEnv, env_kwargs={"length": 20}, num_envs=2, max_env_step=400)
    with caplog.at_level(logging.WARNING, logger="lightning_ding"):
        make_trainer(limit_val_batches=0).fit(policy, data)
    assert data.buffer is not None
    assert (data.buffer.padding > 0.5) == warns
    text = "because most episodes are shorter than a sequence (81 steps): set learn_unroll_len to about"
    assert [text in record.getMessage() for record in caplog.records].count(True) == warns
