"""The evaluator: an unbiased mean over a fixed quota of episodes, and what follows from it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from lightning_ding.envs import FaultBarrier
from lightning_ding.worker import InteractionSerialEvaluator, create_serial_evaluator
from tests.toys.envs import CountingEnv
from tests.worker.evaluator.interaction_toys import StillPolicy, counting_envs, evaluator_of

MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED]


class SeedEnv(gym.Env[Any, Any]):
    """Its reward is a number drawn from the seed of the reset; so is the length of its episodes, 1 to 5."""

    observation_space = gym.spaces.Box(0, 1, (1,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left, self.reward = int(self.np_random.integers(1, 6)), float(self.np_random.random())
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return np.zeros(1, np.float32), self.reward, self.left == 0, False, {}


def seed_envs(num_envs: int, mode: AutoresetMode = AutoresetMode.DISABLED) -> VectorEnv:
    return SyncVectorEnv([SeedEnv] * num_envs, autoreset_mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_evaluator_does_not_prefer_short_episodes(mode: AutoresetMode) -> None:
    evaluator = evaluator_of(counting_envs([(1,), (3,), (8,)], mode))

    _, info = evaluator.eval(n_episode=6)

    # Two episodes of each env, with returns 1, 6 and 36, have the mean 43 / 3. The first six episodes to end would be
    # five of env 0 and one of env 1, with the mean 11 / 6.
    assert info["return_mean"] == pytest.approx(43 / 3, rel=1e-12)
    assert sorted(info["eval_episode_return"]) == [1, 1, 6, 6, 36, 36]


@pytest.mark.parametrize("mode", MODES)
def test_evaluator_measures_whole_episodes_one_by_one(mode: AutoresetMode) -> None:
    evaluator = evaluator_of(counting_envs([(1, 4), (2, 3)], mode))

    returns, lengths = evaluator.run(range(5))

    # Episodes 0, 2, 4 are of env 0 and 1, 3 of env 1; their lengths are 1, 4, 1 and 2, 3.
    assert lengths == [1, 2, 4, 3, 1]
    assert returns == [1, 3, 10, 6, 1]


def test_reward_of_a_step_that_only_resets_an_env_counts_nowhere() -> None:
    class Generous(SyncVectorEnv):
        """Gives 100 when it resets an env."""

        def step(self, actions: Any) -> Any:
            resets = self._autoreset_envs.copy()
            obs, reward, *rest = super().step(actions)
            return obs, reward + 100 * resets, *rest

    evaluator = evaluator_of(Generous([CountingEnv], autoreset_mode=AutoresetMode.NEXT_STEP))

    assert evaluator.run(range(3)) == ([6.0, 6.0, 6.0], [3, 3, 3])


@pytest.mark.parametrize("mode", MODES)
def test_evaluator_starts_every_evaluation_with_new_episodes(mode: AutoresetMode) -> None:
    evaluator = evaluator_of(counting_envs([(2,), (5,)], mode))

    lengths = [evaluator.run(range(2))[1] for _ in range(3)]

    assert lengths == [[2, 5]] * 3  # env 0 was in the middle of its third episode when env 1 had finished


def test_evaluator_leaves_envs_without_quota_out() -> None:
    returns, lengths = evaluator_of(counting_envs([(4,), (1,), (1,)])).run(range(1))

    assert (returns, lengths) == ([10.0], [4])


def test_evaluator_runs_the_same_episodes_on_any_number_of_envs() -> None:
    results = [evaluator_of(seed_envs(num_envs)).run(range(7)) for num_envs in (1, 2, 3, 7, 9)]

    assert len(set(results[0][0])) == 7
    assert all(result == results[0] for result in results)


def test_evaluator_runs_its_share_of_the_episodes_as_one_that_runs_all() -> None:
    everything = evaluator_of(seed_envs(2)).run(range(6))
    shares = [evaluator_of(seed_envs(2)).run(range(6)[rank::2]) for rank in range(2)]

    assert everything[0][0::2] == shares[0][0]
    assert everything[0][1::2] == shares[1][0]


def test_each_evaluation_draws_other_episodes_which_follow_from_its_seed_and_number() -> None:
    evaluator, same = evaluator_of(seed_envs(3)), evaluator_of(seed_envs(2))

    evaluations = [evaluator.run(range(7)) for _ in range(3)]

    assert len({reward for returns, _ in evaluations for reward in returns}) == 3 * 7
    assert [same.run(range(7)) for _ in range(3)] == evaluations


def test_evaluator_with_fixed_starts_runs_the_same_episodes_at_every_evaluation() -> None:
    evaluator = evaluator_of(seed_envs(3), fixed_starts=True)

    first = evaluator.run(range(7))

    assert first == evaluator.run(range(7)) == evaluator_of(seed_envs(3)).run(range(7))


def test_resumed_evaluator_draws_the_episodes_that_would_have_come_next() -> None:
    evaluator, resumed = evaluator_of(seed_envs(2)), evaluator_of(seed_envs(2))
    evaluator.eval(n_episode=4)

    resumed.load_state_dict(evaluator.state_dict())

    assert resumed.run(range(4)) == evaluator.run(range(4))
    resumed.reset()
    assert resumed.run(range(4)) == evaluator_of(seed_envs(2)).run(range(4))


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_evaluator_seeds_the_first_episode_of_each_env_if_the_env_resets_itself(mode: AutoresetMode) -> None:
    evaluator = evaluator_of(seed_envs(3, mode))

    assert evaluator.run(range(3)) == evaluator_of(seed_envs(3)).run(range(3))


def test_evaluator_runs_other_episodes_with_another_seed() -> None:
    first, second = (evaluator_of(seed_envs(2), seed=seed).run(range(4))[0] for seed in (0, 1))

    assert not set(first) & set(second)


def test_evaluator_resets_the_policy_at_the_start_and_where_an_episode_ended() -> None:
    policy = StillPolicy()
    evaluator = evaluator_of(counting_envs([(1,), (2,)]), policy)
    policy.resets.clear()

    evaluator.run(range(4))

    assert policy.resets == [None, [0], [0, 1], [0], [0, 1]]


@pytest.mark.parametrize("mode", MODES)
def test_evaluator_gives_a_policy_with_memory_the_same_episodes_in_every_mode(mode: AutoresetMode) -> None:
    class Metronome(StillPolicy):
        """Records the step of each observation, and the number of actions since the last reset of the env."""

        def __init__(self) -> None:
            super().__init__()
            self.ticks = np.zeros(2, dtype=np.int64)
            self.late = 0

        def forward(self, obs: Any, **kwargs: Any) -> dict[str, Any]:
            self.late += int((self.ticks > obs[:, 2]).sum())
            self.ticks += 1
            return super().forward(obs)

        def reset(self, data_id: Sequence[int] | None = None) -> None:
            self.ticks[slice(None) if data_id is None else list(data_id)] = 0

    policy = Metronome()

    evaluator_of(counting_envs([(1,), (3,)], mode), policy).run(range(8))

    assert policy.late == 0


def test_episodes_of_one_env_differ_so_that_the_deviation_is_not_understated() -> None:
    _, info = evaluator_of(seed_envs(2)).eval(n_episode=6)
    _, one_each = evaluator_of(seed_envs(6)).eval(n_episode=6)

    assert len(set(info["eval_episode_return"])) == 6  # the third episode of an env is not its first once more
    assert info["return_std"] == pytest.approx(np.std(info["eval_episode_return"]), rel=1e-12)
    assert info["return_std"] == one_each["return_std"] > 0


def test_env_may_put_anything_into_its_info() -> None:
    class Chatty(SeedEnv):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            *step, _ = super().step(action)
            return (*step, {"object": object(), "none": None, "text": "x"})

    evaluator = evaluator_of(SyncVectorEnv([Chatty] * 2, autoreset_mode=AutoresetMode.DISABLED))

    assert evaluator.run(range(4)) == evaluator_of(seed_envs(2)).run(range(4))


class FaultyEnv(SeedEnv):
    """A SeedEnv whose third step raises in some of its episodes, counted from 0 over all envs."""

    number = 0
    faulty: range = range(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(seed=seed, options=options)
        type(self).number += 1
        self.is_faulty = self.number - 1 in self.faulty
        return obs, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.is_faulty:
            raise OSError("the simulator is gone")
        return super().step(action)


def faulty_envs(num_envs: int, mode: AutoresetMode, faulty: range) -> VectorEnv:
    """Return envs that report a fault in the first step of these episodes."""
    numbered = type("NumberedEnv", (FaultyEnv,), {"faulty": faulty})
    return SyncVectorEnv([lambda: FaultBarrier(numbered(), max_faults=1000)] * num_envs, autoreset_mode=mode)


@pytest.mark.parametrize("num_envs", [1, 2, 3])
@pytest.mark.parametrize("faulty", [range(1), range(2), range(1, 4), range(2, 5)])
def test_episode_with_a_fault_is_run_again_with_its_seed(num_envs: int, faulty: range) -> None:
    policy = StillPolicy()
    evaluator = evaluator_of(faulty_envs(num_envs, AutoresetMode.DISABLED, faulty), policy)

    assert evaluator.run(range(5)) == evaluator_of(seed_envs(num_envs)).run(range(5))


@pytest.mark.parametrize("mode", MODES)
def test_episode_with_a_fault_counts_in_no_mode(mode: AutoresetMode) -> None:
    returns, lengths = evaluator_of(faulty_envs(2, mode, range(1, 4))).run(range(4))

    assert len(returns) == len(lengths) == 4
    assert min(returns) > 0  # an episode with a fault in its first step has a return and a length of 0
    assert min(lengths) > 0


@pytest.mark.parametrize("mode", MODES)
def test_evaluation_whose_envs_fail_again_and_again_ends_with_an_error(mode: AutoresetMode) -> None:
    evaluator = evaluator_of(faulty_envs(2, mode, range(1, 1000)))

    message = r"the envs reported 4 faults in an evaluation of 3 episodes.* in env .: OSError: the simulator is gone"
    with pytest.raises(RuntimeError, match=message):
        evaluator.eval(n_episode=3)


def test_as_many_faults_as_episodes_are_borne() -> None:
    returns, _ = evaluator_of(faulty_envs(1, AutoresetMode.DISABLED, range(3))).run(range(3))

    assert returns == evaluator_of(seed_envs(1)).run(range(3))[0]


def test_policy_forgets_an_episode_with_a_fault() -> None:
    policy = StillPolicy()
    evaluator = evaluator_of(faulty_envs(1, AutoresetMode.DISABLED, range(1)), policy)
    policy.resets.clear()

    _, (length,) = evaluator.run(range(1))

    assert policy.resets == [None, [0], [0]]  # at the start, after the fault, after the episode
    assert length >= 1


def test_evaluator_shows_its_env_and_policy() -> None:
    env, policy = counting_envs([(1,)]), StillPolicy().mode
    evaluator = InteractionSerialEvaluator(env=env, policy=policy)
    shown = (evaluator.env, evaluator.policy)
    evaluator.close()

    assert shown == (env, policy)
    assert (evaluator.env, evaluator.policy) == (None, None)


@pytest.mark.parametrize("evaluate", [lambda e: e.eval(n_episode=0), lambda e: e.run(range(0))])
def test_evaluator_needs_an_episode(evaluate: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match="n_episode must be >= 1, got 0"):
        evaluate(evaluator_of(counting_envs([(1,)])))


@pytest.mark.parametrize("given", ["nothing", "env", "policy"])
def test_evaluator_needs_env_and_policy(given: str) -> None:
    parts: dict[str, Any] = {"env": counting_envs([(1,)]), "policy": StillPolicy().mode}
    evaluator = InteractionSerialEvaluator(**{name: part for name, part in parts.items() if name == given})

    with pytest.raises(RuntimeError, match="the evaluator needs an env and a policy: pass them"):
        evaluator.eval()


def test_evaluator_takes_env_and_policy_later() -> None:
    evaluator = InteractionSerialEvaluator()
    evaluator.reset(policy=StillPolicy().mode, env=counting_envs([(2,)]))

    assert evaluator.run(range(1)) == ([3.0], [2])


def test_evaluator_leaves_its_env_open_and_forgets_it_when_its_context_ends() -> None:
    env = counting_envs([(2,)])
    with evaluator_of(env) as evaluator:
        pass

    assert not env.closed
    with pytest.raises(RuntimeError, match="needs an env"):
        evaluator.eval()


@pytest.mark.parametrize("name", ["eval_freq", "n_episode"])
def test_evaluator_refuses_numbers_that_are_none(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be >= 1, got 0"):
        InteractionSerialEvaluator({name: 0})


def test_create_serial_evaluator_makes_an_interaction_evaluator_if_nothing_is_said() -> None:
    evaluator = create_serial_evaluator({"eval_freq": 7}, env=counting_envs([(2,)]), policy=StillPolicy().mode)

    assert isinstance(evaluator, InteractionSerialEvaluator)
    assert evaluator.config.eval_freq == 7
    assert evaluator.run(range(1)) == ([3.0], [2])


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ({"q": 1}, r"the policy's forward must return a dict with 'action', got \['q'\]"),
        ([0, 0], "the policy's forward must return a dict with 'action', got list"),
        ({"action": torch.zeros(3, dtype=torch.int64)}, r"the policy must return actions of shape \(2,\), got \(3,\)"),
        ({"action": torch.zeros(2, 1)}, r"the policy must return actions of shape \(2,\), got \(2, 1\)"),
    ],
)
def test_evaluator_refuses_output_without_right_actions(output: Any, says: str) -> None:
    mode = StillPolicy().mode._replace(forward=lambda obs: output)
    with pytest.raises(ValueError, match=says):
        InteractionSerialEvaluator(env=seed_envs(2), policy=mode).run(range(2))


def test_evaluator_takes_the_eval_mode_of_a_whole_policy() -> None:
    whole: Any = SimpleNamespace(eval_mode=StillPolicy().mode)

    assert InteractionSerialEvaluator(env=counting_envs([(3,)]), policy=whole).run([0]) == ([6.0], [3])


def test_state_that_lacks_an_entry_is_refused_and_changes_nothing() -> None:
    evaluator = evaluator_of(counting_envs([(3,)]))
    before = evaluator.state_dict()

    with pytest.raises(
        ValueError, match=r"the state of a InteractionSerialEvaluator lacks \['best_return', 'evaluations'\], got"
    ):
        evaluator.load_state_dict({"last_eval_iter": 9, "last_film": 3})

    assert evaluator.state_dict() == before


@pytest.mark.parametrize("mode", MODES)
def test_evaluation_cuts_episodes_off_at_max_episode_steps_and_says_so_once(
    mode: AutoresetMode, caplog: pytest.LogCaptureFixture
) -> None:
    evaluator = evaluator_of(counting_envs([(1000,), (2,)], mode), max_episode_steps=4)

    with caplog.at_level(logging.WARNING):
        _, info = evaluator.eval(n_episode=4)
        evaluator.eval(n_episode=4)

    assert info["eval_episode_return"] == [10, 3, 10, 3]  # 1 + 2 + 3 + 4, and 1 + 2
    assert info["eval_episode_length"] == [4, 2, 4, 2]
    assert [record.message for record in caplog.records if "max_episode_steps" in record.message] == [
        "an evaluation episode was cut off at max_episode_steps=4; its return is partial"
    ]


def test_evaluation_of_episodes_that_are_cut_off_is_that_of_envs_with_a_time_limit() -> None:
    limited = SyncVectorEnv([lambda: gym.wrappers.TimeLimit(SeedEnv(), 3)] * 2, autoreset_mode=AutoresetMode.DISABLED)
    expected = evaluator_of(limited).run(range(7))

    for num_envs in (1, 2, 3):
        assert evaluator_of(seed_envs(num_envs), max_episode_steps=3).run(range(7)) == expected
    assert evaluator_of(seed_envs(2)).run(range(7)) != expected


def test_max_episode_steps_is_refused_where_an_env_cannot_be_reset_alone() -> None:
    env = gym.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")
    with pytest.raises(ValueError, match='max_episode_steps must be None with mode="native", got 5'):
        evaluator_of(env, max_episode_steps=5)
    env.close()
