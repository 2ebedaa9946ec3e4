"""How often each step of an episode is learned from: sequences with fixed beginnings, also across episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from lightning_ding.policy import create_policy
from lightning_ding.worker import create_buffer

QUICK = settings(max_examples=40, deadline=None, derandomize=True)
Config = dict[str, Any]
ENDINGS = ("terminated", "truncated", "running", "gap")


class Env:
    """One env's steps, numbered from 0 on, each with its place in its chain and in its stream."""

    def __init__(self, env_id: int = 0) -> None:
        self.env_id, self.number = env_id, 1000 * env_id
        self.chain: dict[int, int] = {}
        self.stream: dict[int, int] = {}
        self.before: str = "terminated"
        self.last: int | None = None  # index of its last step among all that were pushed

    def steps(self, length: int, ending: str) -> list[Config]:
        """Return the next steps of the env, which go on with the episode unless it ended before."""
        rows: list[Config] = []
        if not length:
            return rows
        for step in range(length):
            ends = step == length - 1 and ending in ("terminated", "truncated")
            row = {"obs": float(self.number), "next_obs": self.number + (0.5 if ends else 1.0), "reward": self.number}
            row |= {"terminated": ends and ending == "terminated", "truncated": ends and ending == "truncated"}
            rows.append({**row, "env_id": self.env_id, "is_first": self.before in ("terminated", "truncated")})
            follows, streams = self.before == "running", self.before in ("running", "terminated")
            self.chain[self.number] = self.chain[self.number - 1] + 1 if follows and self.chain else 0
            self.stream[self.number] = self.stream[self.number - 1] + 1 if streams and self.stream else 0
            self.number += 1
            self.before = "running"
        self.before = ending
        self.number += ending == "gap"
        return rows


def push(buffer: Any, rows: list[Config]) -> None:
    if rows:
        buffer.push({name: np.array([row[name] for row in rows]) for name in rows[0]})


def counts(buffer: Any, batch_size: int = 800, **options: Any) -> dict[tuple[int, ...], int]:
    """Return how often sequences were drawn, by their real steps."""
    batch = buffer.sample(batch_size, **options)
    found: dict[tuple[int, ...], int] = {}
    for rewards, mask in zip(batch["reward"].T.int().tolist(), batch["mask"].T.tolist(), strict=True):
        real = tuple(reward for reward, is_real in zip(rewards, mask, strict=True) if is_real)
        assert rewards[len(real) :] == [real[-1]] * (len(rewards) - len(real))  # padding repeats the last step
        found[real] = found.get(real, 0) + 1
    return found


PIECES = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9), st.sampled_from(ENDINGS)), min_size=1, max_size=12)


@QUICK
@given(
    pieces=PIECES,
    capacity=st.integers(9, 40),
    length=st.integers(1, 6),
    period=st.integers(1, 6),
    across=st.booleans(),
)
@pytest.mark.parametrize("kind", ["sequence", "prioritised_sequence"])
def test_sequences_with_a_period_are_those_that_a_walk_finds(
    kind: str, pieces: Any, capacity: int, length: int, period: int, across: bool
) -> None:
    buffer: Any = create_buffer({"type": kind, "replay_buffer_size": capacity}, seed=0)
    envs, pushed = [Env(0), Env(1)], list[int]()
    options = {"sequence": length, "period": period, "across_episodes": across}
    for env_id, size, ending in pieces:
        env = envs[env_id]
        if env.last is not None and len(pushed) + size - env.last > capacity:
            env.before = "overwritten"  # nothing of the env is left, so a chain begins
        rows = env.steps(size, ending)
        push(buffer, rows)
        pushed += [int(row["reward"]) for row in rows]
        env.last = len(pushed) - 1 if rows else env.last
        if pushed and size % 3 == 0:  # a draw in between changes nothing
            place = {k: v for env in envs for k, v in (env.stream if across else env.chain).items()}
            if any(place[number] % period == 0 for number in pushed[-capacity:]):
                buffer.sample(2, **options)
    kept = pushed[-capacity:]
    place = {k: v for env in envs for k, v in (env.stream if across else env.chain).items()}
    whole, growing = set[tuple[int, ...]](), set[tuple[int, ...]]()
    for number in kept:
        if place[number] % period:
            continue
        chain = [number]
        while len(chain) < length and place.get(after := _after(chain[-1], place), -1) == place[chain[-1]] + 1:
            chain.append(after)
        env = envs[number // 1000]
        may_go_on = (
            ("running", "gap", "terminated") if across else ("running", "gap")
        )  # the gap shows with the next step
        is_open = chain[-1] == max(env.chain) and env.before in may_go_on
        (growing if is_open and len(chain) < length else whole).add(tuple(chain))
    if not whole | growing:
        with pytest.raises(ValueError, match="batch_size must be at most the 0"):
            buffer.sample(1, **options)
        return
    found = counts(buffer, **options)
    if kind == "sequence":
        assert found.keys() <= (whole or growing)
        assert len(found) == len(whole or growing)
    else:
        assert found.keys() <= whole | growing
        assert whole <= found.keys()


def _after(number: int, place: dict[int, int]) -> int:
    """Return the number of the env's next step; a number is left out where a step is missing."""
    return number + 1 if number + 1 in place else number + 2


def filled(kind: str, lengths: tuple[int, ...], ending: str = "terminated", **config: Any) -> tuple[Any, Env]:
    """Return a buffer with episodes of one env."""
    buffer, env = create_buffer({"type": kind, "replay_buffer_size": 10_000, **config}, seed=0), Env()
    for length in lengths:
        for row in env.steps(length, ending):
            push(buffer, [row])
    return buffer, env


def weights(policy: Any, buffer: Any, steps: int) -> np.ndarray[Any, Any]:
    """Return the weight of each step in the loss, in units of their mean, with equal priorities."""
    total = np.zeros(steps)
    for _ in range(20):
        batch = buffer.sample(400, **policy.get_attribute("sample_options"))
        learned = policy._learned(batch) if hasattr(policy, "_learned") else batch["mask"]
        np.add.at(total, batch["reward"][learned].long().numpy(), 1.0)
    weight: np.ndarray[Any, Any] = total / total.mean()
    return weight


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
@pytest.mark.parametrize("length", [32, 20, 75])
def test_all_steps_of_an_episode_have_the_same_weight_in_the_loss_of_impala(length: int, ending: str) -> None:
    # Of 640 steps in episodes of 32, the first step of each had 1 / 16.5 = 0.06 of the mean weight when unrolls began
    # at drawn steps.
    policy = create_policy({"type": "impala", "unroll_len": 32})
    number = 640 // length
    buffer, _ = filled("sequence", (length,) * number, ending)
    if ending == "terminated":
        push(buffer, Env(1).steps(1, "truncated"))  # of another env, which ends nothing
    weight = weights(policy, buffer, 1001)[: length * number]
    weight = weight / weight.max()
    last_unroll = (length * number) // 32 * 32 if ending == "terminated" else length * number
    by_step = weight[:last_unroll][: last_unroll // length * length].reshape(-1, length).mean(0)
    assert by_step.min() > 0.85 * by_step.max()


@pytest.mark.parametrize("kind", ["sequence", "prioritised_sequence"])
def test_steps_of_an_episode_have_the_weight_of_the_sequences_that_they_belong_to_in_r2d2(kind: str) -> None:
    # Sequences of 2 + 8 steps and 2 more for the return begin at 0, 4, 8, ...: the first learns from the steps 0 to 9,
    # that from step 4 from 6 to 13, and so on. So the steps 0 to 5 belong to one sequence, all later ones to two. When
    # sequences began at drawn steps, the first step had the weight of one sequence of 60, step 30 that of eight.
    policy = create_policy({"type": "r2d2", "burnin_step": 2, "learn_unroll_len": 8, "nstep": 3})
    buffer, _ = filled(kind, (60,) * 8)
    by_step = weights(policy, buffer, 480).reshape(8, 60).mean(0)
    expected = np.where(np.arange(60) < 6, 1.0, 2.0)
    np.testing.assert_allclose(by_step, expected / expected.mean(), rtol=0.12)


def test_an_episode_shorter_than_the_period_is_one_sequence_from_its_first_step() -> None:
    policy: Any = create_policy({"type": "r2d2"})
    buffer, _ = filled("prioritised_sequence", (11,) * 20)
    batch = buffer.sample(20, **policy.get_attribute("sample_options"))
    assert sorted(batch["reward"][0].int().tolist()) == list(range(0, 220, 11))
    assert batch["mask"].sum(0).tolist() == [11] * 20
    assert policy._learned(batch).sum(0).tolist() == [11] * 20
    assert buffer.padding == pytest.approx(1 - 11 / 104)


def test_a_sequence_gets_the_largest_priority_once_it_is_over() -> None:
    options: Config = {"sequence": 4, "period": 2}
    buffer, env = filled("prioritised_sequence", (3,), "running", alpha=1.0)
    batch = buffer.sample(2, **options)  # none is over
    assert sorted(batch["reward"][0].int().tolist()) == [0, 2]
    buffer.update({**batch, "priority": torch.tensor([3.0, 0.5])})
    push(buffer, env.steps(1, "running"))  # the one from step 0 is over
    batch = buffer.sample(70, **options)
    found = {
        int(reward): float(priority) for reward, priority in zip(batch["reward"][0], batch["priority"], strict=True)
    }
    assert found == {0: pytest.approx(3.0, abs=1e-3), 2: pytest.approx(0.5, abs=1e-3)}
    buffer.update({**batch, "priority": torch.where(batch["reward"][0] == 0, 5.0, 0.25)})
    push(buffer, env.steps(1, "terminated"))
    batch = buffer.sample(70, **options)
    found = {
        int(reward): float(priority) for reward, priority in zip(batch["reward"][0], batch["priority"], strict=True)
    }
    assert found == pytest.approx(dict.fromkeys((0, 2, 4), 5.0), abs=1e-3)


def test_transitions_of_a_buffer_with_a_period_are_all_that_are_kept() -> None:
    buffer, _ = filled("prioritised_sequence", (5, 5))
    buffer.sample(4, sequence=4, period=3)
    assert buffer.count() == 10
    assert buffer.transitions()["reward"].tolist() == list(range(10))


@pytest.mark.parametrize("kind", ["sequence", "prioritised_sequence"])
def test_a_restored_buffer_draws_the_same_sequences_after_the_beginning_of_a_chain_was_overwritten(kind: str) -> None:
    options: Config = {"sequence": 5, "period": 5, "across_episodes": kind == "sequence"}
    buffer, env = filled(kind, (23,), "running", replay_buffer_size=20)  # the steps 0 to 2 are gone, so 5 is the first
    assert {real[0] for real in counts(buffer, **options)} == {5, 10, 15}
    other: Any = create_buffer(buffer.config, seed=1)
    other.load_state_dict(buffer.state_dict())
    rows = env.steps(4, "running")
    push(buffer, rows)
    push(other, rows)
    drawn = [one.sample(9, **options) for one in (buffer, other)]
    assert torch.equal(drawn[0]["reward"], drawn[1]["reward"])
    assert {real[0] for real in counts(other, **options)} == {10, 15, 20}


def test_merged_buffers_keep_the_beginnings_of_their_sequences(tmp_path: Any) -> None:
    files = []
    for number in range(2):
        buffer, _ = filled("prioritised_sequence", (23,), "terminated", replay_buffer_size=20)
        buffer.sample(4, sequence=5, period=5)
        files.append(tmp_path / f"{number}.safetensors")
        buffer.save_data(files[-1])
    merged: Any = create_buffer({"type": "prioritised_sequence", "replay_buffer_size": 20}, seed=0)
    assert merged.load_files(files, np.random.SeedSequence(0)) == 2
    assert {real[0] for real in counts(merged, sequence=5, period=5)} == {15, 20}


def test_a_sequence_across_episodes_stops_at_a_dropped_one() -> None:
    buffer, env = create_buffer({"type": "sequence", "replay_buffer_size": 50}, seed=0), Env()
    for episode in range(3):
        rows = env.steps(3, "terminated" if episode < 2 else "running")
        push(buffer, [{**row, "episode_id": episode} for row in rows])
    options: Config = {"sequence": 9, "period": 9, "across_episodes": True}
    assert counts(buffer, **options).keys() == {tuple(range(9))}
    buffer.drop_episodes([2])
    assert counts(buffer, **options).keys() == {tuple(range(6))}


@pytest.mark.parametrize("kind", ["sequence", "prioritised_sequence"])
def test_sequences_cross_time_limits_if_they_may(kind: str) -> None:
    buffer, env = create_buffer({"type": kind, "replay_buffer_size": 50}, seed=0), Env()
    for ending in ("truncated", "terminated", "running"):
        push(buffer, env.steps(3, ending))
    for crosses, longest in ((False, 6), (True, 9)):
        options: Config = {"sequence": 9, "across_episodes": True, "across_time_limits": crosses}
        found = counts(buffer, **options)
        assert max(map(len, found)) == longest
        assert (tuple(range(9)) in found) == crosses
    for other in ({"across_episodes": False}, {"period": 9}):
        with pytest.raises(ValueError, match="across_time_limits must be False without across_episodes or with"):
            buffer.sample(2, **{**options, **other})


@pytest.mark.parametrize("kind", ["sequence", "prioritised_sequence"])
def test_a_period_below_one_is_refused(kind: str) -> None:
    buffer, _ = filled(kind, (4,))
    with pytest.raises(ValueError, match="period must be >= 1 or None, got 0"):
        buffer.sample(2, sequence=2, period=0)
