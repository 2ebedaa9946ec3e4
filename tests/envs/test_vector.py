"""Vector envs: creation, seeding, and errors for invalid arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, get_args

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from lightning_ding.datamodules import RolloutDataModule
from lightning_ding.envs import ProcessVectorEnv, make_vector_env
from lightning_ding.envs.vector import MODES, AutoresetName, VectorMode
from lightning_ding.policy import PGPolicy
from tests.toys.envs import ChainEnv, CountingEnv

MakeEnv = Callable[..., VectorEnv]


@pytest.fixture
def make() -> Iterator[MakeEnv]:
    """Make vector envs that are closed after the test."""
    made: list[VectorEnv] = []

    def make_and_remember(*args: Any, **kwargs: Any) -> VectorEnv:
        made.append(make_vector_env(*args, **kwargs))
        return made[-1]

    yield make_and_remember
    for env in made:
        env.close()


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("same_step", AutoresetMode.SAME_STEP),
        ("next_step", AutoresetMode.NEXT_STEP),
        ("disabled", AutoresetMode.DISABLED),
    ],
)
def test_make_vector_env_sets_the_autoreset_mode_of_a_sync_env(
    make: MakeEnv, name: AutoresetName, mode: AutoresetMode
) -> None:
    env = make("CartPole-v1", num_envs=2, autoreset=name)

    assert isinstance(env, SyncVectorEnv)
    assert env.metadata["autoreset_mode"] is mode


def test_make_vector_env_sets_the_autoreset_mode_of_an_async_env(make: MakeEnv) -> None:
    env = make("CartPole-v1", num_envs=1, mode="async", autoreset="disabled")

    assert isinstance(env, ProcessVectorEnv)
    assert env.metadata["autoreset_mode"] is AutoresetMode.DISABLED


def test_make_vector_env_leaves_the_autoreset_mode_of_a_native_env_to_the_env(make: MakeEnv) -> None:
    env = make("CartPole-v1", num_envs=2, mode="native")

    assert not isinstance(env, SyncVectorEnv)
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP


def test_make_vector_env_resets_in_the_same_step_by_default(make: MakeEnv) -> None:
    assert make("CartPole-v1").metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


class ViewEnv(CountingEnv):
    """A CountingEnv that writes all observations into the same memory."""

    def __init__(self) -> None:
        super().__init__(lengths=(2,))
        self.memory = np.zeros(3, dtype=np.float32)

    def _observe(self) -> Any:
        self.memory[...] = super()._observe()
        return self.memory


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_make_vector_env_keeps_the_last_observation_of_an_env_that_writes_into_its_memory(
    make: MakeEnv, mode: str
) -> None:
    env = make(ViewEnv, mode=mode)
    env.reset()
    env.step(np.array([0]))
    obs, _, _, _, info = env.step(np.array([0]))

    assert obs.tolist() == [[0, 1, 0]]
    assert info["final_obs"][0].tolist() == [0, 0, 2]


def test_make_vector_env_makes_as_many_envs_as_asked(make: MakeEnv) -> None:
    assert make("CartPole-v1", num_envs=3).num_envs == 3


def test_make_vector_env_gives_every_env_its_own_stream(make: MakeEnv) -> None:
    obs, _ = make("CartPole-v1", num_envs=4, seed=0).reset()

    assert len({tuple(row) for row in obs.tolist()}) == 4


@pytest.mark.parametrize("mode", ["sync", "native"])
def test_make_vector_env_is_reproducible_from_its_seed(make: MakeEnv, mode: str) -> None:
    first, second = (make("CartPole-v1", num_envs=2, mode=mode, seed=5) for _ in range(2))

    np.testing.assert_array_equal(first.reset()[0], second.reset()[0])


@pytest.mark.parametrize("mode", ["sync", "native"])
def test_make_vector_env_starts_elsewhere_from_another_seed(make: MakeEnv, mode: str) -> None:
    first, second = (make("CartPole-v1", num_envs=2, mode=mode, seed=seed) for seed in (5, 6))

    assert not np.isin(first.reset()[0], second.reset()[0]).any()


def test_make_vector_env_seeds_alike_in_one_process_and_in_many(make: MakeEnv) -> None:
    sync, parallel = (make("CartPole-v1", num_envs=2, mode=mode, seed=5) for mode in ("sync", "async"))

    np.testing.assert_array_equal(sync.reset()[0], parallel.reset()[0])


def test_make_vector_env_seeds_the_action_space(make: MakeEnv) -> None:
    first, second, other = (make("CartPole-v1", num_envs=8, seed=seed).action_space for seed in (5, 5, 6))

    actions = [[space.sample().tolist() for _ in range(4)] for space in (first, second, other)]

    assert actions[0] == actions[1] != actions[2]


def test_make_vector_env_takes_a_seed_sequence(make: MakeEnv) -> None:
    by_number = make("CartPole-v1", num_envs=2, seed=5)
    by_sequence = make("CartPole-v1", num_envs=2, seed=np.random.SeedSequence(5))

    np.testing.assert_array_equal(by_number.reset()[0], by_sequence.reset()[0])


def test_make_vector_env_applies_wrappers_in_order(make: MakeEnv) -> None:
    double = functools.partial(gym.wrappers.TransformReward, func=lambda reward: 2 * float(reward))
    add_one = functools.partial(gym.wrappers.TransformReward, func=lambda reward: float(reward) + 1)

    env = make("CartPole-v1", wrappers=[double, add_one])
    env.reset()

    assert env.step(np.array([0]))[1].tolist() == [3.0]  # 2 * 1 + 1, and not 2 * (1 + 1)


def test_make_vector_env_applies_vector_wrappers_to_a_native_env(make: MakeEnv) -> None:
    triple = functools.partial(gym.wrappers.vector.TransformReward, func=lambda reward: 3 * reward)

    env = make("CartPole-v1", num_envs=2, mode="native", wrappers=[triple])
    env.reset()

    assert env.step(np.array([0, 1]))[1].tolist() == [3.0, 3.0]


@pytest.mark.parametrize("mode", ["sync", "native"])
def test_make_vector_env_hands_the_arguments_to_a_registered_env(make: MakeEnv, mode: str) -> None:
    env = make("CartPole-v1", mode=mode, env_kwargs={"sutton_barto_reward": True})
    env.reset()

    assert env.step(np.array([0]))[1].tolist() == [0.0]  # where the usual reward is 1


def test_make_vector_env_hands_the_arguments_to_a_callable(make: MakeEnv) -> None:
    env = make(ChainEnv, num_envs=2, env_kwargs={"length": 7})

    assert env.single_observation_space.shape == (7,)


def test_make_vector_env_calls_the_callable_once_for_each_env(make: MakeEnv) -> None:
    made: list[ChainEnv] = []

    def make_one() -> ChainEnv:
        made.append(ChainEnv())
        return made[-1]

    make(make_one, num_envs=3)

    assert len({id(env) for env in made}) == 3


def test_make_vector_env_takes_a_callable_that_makes_a_native_vector_env(make: MakeEnv) -> None:
    native = functools.partial(gym.make_vec, "CartPole-v1", num_envs=5, vectorization_mode="vector_entry_point")

    assert make(native, 5, mode="native").num_envs == 5
    with pytest.raises(ValueError, match=r"num_envs must be 5, for training and evaluation, .* got 4"):
        make(native, 4, mode="native")


def test_make_vector_env_hands_the_number_of_envs_to_a_callable_that_takes_it(make: MakeEnv) -> None:
    native = functools.partial(gym.make_vec, "CartPole-v1", vectorization_mode="vector_entry_point")

    assert make(native, 4, mode="native").num_envs == 4


def test_mistakes_are_named(make: MakeEnv) -> None:
    with pytest.raises(ValueError, match=r"autoreset must be one of \(None,\) with mode='native', got 'same_step'"):
        make("CartPole-v1", num_envs=2, mode="native", autoreset="same_step")
    with pytest.raises(ValueError, match='mode must be "native" with an env_id that creates a vector env'):
        make(functools.partial(gym.make_vec, "CartPole-v1"), 4)


@pytest.mark.parametrize("num_envs", [0, -1])
def test_make_vector_env_needs_an_env(num_envs: int) -> None:
    with pytest.raises(ValueError, match=f"num_envs must be >= 1, got {num_envs}"):
        make_vector_env("CartPole-v1", num_envs=num_envs)


def test_the_type_of_a_mode_lists_the_modes_there_are() -> None:
    assert get_args(VectorMode) == tuple(MODES)


def test_a_mode_of_the_list_is_all_that_a_datamodule_needs(make_trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODES, "mirrored", MODES["sync"])  # type: ignore[misc]
    datamodule = RolloutDataModule("CartPole-v1", num_envs=2, mode="mirrored")  # type: ignore[arg-type]
    trainer = make_trainer(max_epochs=1, limit_train_batches=1, limit_val_batches=1)
    trainer.fit(PGPolicy(), datamodule=datamodule)
    assert trainer.global_step > 0


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_make_vector_env_refuses_a_callable_that_makes_no_env(mode: Any) -> None:
    with pytest.raises(TypeError, match=r"env_id must create a gymnasium\.Env, got dict"):
        make_vector_env(dict, mode=mode)


@pytest.mark.parametrize(
    ("argument", "allowed"),
    [({"on_env_error": "restart"}, 'on_env_error must be "raise"'), ({"env_timeout": 3.0}, "env_timeout must be")],
)
@pytest.mark.parametrize("mode", ["sync", "native"])
def test_make_vector_env_refuses_in_other_modes_what_is_for_processes(mode: Any, argument: Any, allowed: str) -> None:
    with pytest.raises(ValueError, match=f"{allowed}.* with mode='{mode}', got"):
        make_vector_env("CartPole-v1", mode=mode, **argument)


@pytest.mark.parametrize("env_timeout", [0, -1.0, (1.0, 0.0), (1.0,), "soon"])
def test_make_vector_env_refuses_timeouts_that_are_none(env_timeout: Any) -> None:
    with pytest.raises(ValueError, match=r"env_timeout must be > 0, None, a pair of these, or .* got"):
        make_vector_env("CartPole-v1", mode="async", env_timeout=env_timeout)


def test_make_vector_env_makes_envs_in_processes_that_are_registered_in_this_one_alone(make: MakeEnv) -> None:
    gym.register("OnlyHere-v0", lambda **_: ChainEnv())
    try:
        assert make("OnlyHere-v0", mode="async").num_envs == 1
    finally:
        gym.registry.pop("OnlyHere-v0")


def test_other_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"env_id .* got 'CartPol-v1'; did you mean 'CartPole-v1'"):
        make_vector_env("CartPol-v1")
    with pytest.raises(ValueError, match=r"env_id .* got 'CartPole-v99': .*`v0`, `v1`"):
        make_vector_env("CartPole-v99")
    with pytest.raises(ValueError, match=r"env_id .* got 'no_such_module:Thing-v0'"):
        make_vector_env("no_such_module:Thing-v0")
    with pytest.raises(ValueError, match=r"mode must be one of \('sync', 'async', 'native', 'tensor'\), got 'sub"):
        make_vector_env("CartPole-v1", mode="subprocess")  # type: ignore[arg-type]
    allowed = (
        r"autoreset must be one of \(None, 'same_step', 'next_step', 'disabled'\) with mode='sync', got 'SAME_STEP'"
    )
    with pytest.raises(ValueError, match=allowed):
        make_vector_env("CartPole-v1", autoreset="SAME_STEP")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"env_id must be a registered gymnasium id, .*, got 3"):
        make_vector_env(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match='with mode="native", env_id must create a gymnasium VectorEnv, got ChainEnv'):
        make_vector_env(ChainEnv, mode="native")
    with pytest.raises(ValueError, match=r"mode must be one of \('sync', 'async'\) for 'Acrobot-v1'"):
        make_vector_env("Acrobot-v1", mode="native")


class CachingFactory:
    """Makes one env and returns it at each call."""

    def __init__(self) -> None:
        self.env = gym.make("CartPole-v1")

    def make(self) -> Any:
        return self.env

    def make_wrapped(self) -> Any:
        return gym.wrappers.TimeLimit(self.env, 5)


@pytest.mark.parametrize("name", ["make", "make_wrapped"])
def test_factory_that_returns_the_same_env_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="must create a new env at each call, got the same CartPoleEnv for env 1"):
        make_vector_env(getattr(CachingFactory(), name), 3)


def test_env_of_an_open_vector_env_is_refused_and_of_a_closed_one_is_not() -> None:
    factory = CachingFactory()
    first = make_vector_env(factory.make, 1)
    with pytest.raises(ValueError, match="got the same CartPoleEnv for two vector envs; training and evaluation need"):
        make_vector_env(factory.make, 1)
    first.close()
    make_vector_env(factory.make, 1).close()


def test_native_vector_env_that_is_returned_twice_is_refused() -> None:
    envs = gym.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")
    first = make_vector_env(lambda: envs, 2, "native")
    with pytest.raises(ValueError, match="for two vector envs"):
        make_vector_env(lambda: envs, 2, "native")
    first.close()
