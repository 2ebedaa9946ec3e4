"""Acting, values and env steps with ``mode="tensor"`` and ``compile``."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_ding.envs.tensor import CartPole, Pendulum
from lightning_ding.policy import PPOPolicy, PQNPolicy, RecurrentPPOPolicy
from lightning_ding.policy.base import compile as compile_module
from lightning_ding.utils import compiled
from tests.datamodules.test_tensor_mode import N, run_to, set_up, short

ACTING, VALUES = "calls of OnPolicyPolicy._forward_collect", "calls of ActorCriticPolicy._critic_output"
CODES = {ACTING, VALUES, "steps of CartPole"}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Replace compiled code by the function itself, and return the names of what is compiled, as it grows."""
    names: list[str] = []
    inner = compiled.CompiledFunction._code_for

    class NotCompiled:
        def __init__(self, function: Any, tensors: list[Tensor], sized: list[bool], fixed: int, graphs: bool) -> None:
            assert not any(tensor.requires_grad for tensor in tensors)
            self.function, self.used = function, list(range(len(tensors)))
            with torch.random.fork_rng():
                function(*tensors)  # as recording does

        def __call__(self, tensors: list[Tensor]) -> Any:
            return self.function(*tensors)

    def code_for(self: Any, batch: Any) -> Any:
        names.append(self._name)
        return inner(self, batch)

    monkeypatch.setattr(compiled, "Compiled", NotCompiled)
    monkeypatch.setattr(compiled.CompiledFunction, "_code_for", code_for)
    return names


def rollouts(policy: Any, env: Any = "CartPole-v1", number: int = 2, **kwargs: Any) -> list[dict[str, Any]]:
    """Return rollouts of a policy, which learns from all but the last one."""
    datamodule = set_up(policy, "tensor", env, **kwargs)
    datamodule._start()
    found = []
    for index in range(number):
        found.append({name: column.clone() for name, column in datamodule._next_round().items()})
        if index < number - 1:
            policy.training_step(found[-1], index)
    datamodule.close()
    return found


# ---------------------------------------------------------------------- with the compiler


def test_compiled_code_gives_the_same_rollout_up_to_rounding() -> None:
    policies = [short(compile=compiles) for compiles in (True, False)]
    policies[0].model.load_state_dict(policies[1].model.state_dict())
    found = []
    for policy in policies:
        policy.seed(1)
        found += rollouts(policy, number=1)
    assert {function._name for function in policies[0].updater.compiler.functions.values()} == CODES - {VALUES}
    one, other = found
    assert one.keys() == other.keys()
    for name, column in one.items():
        assert column.dtype == other[name].dtype, name
        torch.testing.assert_close(column, other[name], rtol=1e-4, atol=1e-5)
    assert torch.equal(one["action"], other["action"])
    assert one["terminated"].any()
    values = [policy._values(one["obs"]) for policy in policies]
    torch.testing.assert_close(*values)


def test_a_compiled_run_repeats_and_resumes_exactly(tmp_path: Path) -> None:
    whole, again = (run_to(tmp_path / name, 512, compile=True) for name in ("whole", "again"))
    run_to(tmp_path / "half", 256, compile=True)
    last = tmp_path / "half" / "last.ckpt"
    resumed = run_to(tmp_path / "half", 512, compile=True, ckpt_path=last)
    assert {function._name for function in whole.updater.compiler.functions.values()} == CODES
    assert not any(function.has_failed for function in whole.updater.compiler.functions.values())
    for (name, one), *others in zip(
        whole.state_dict().items(), again.state_dict().values(), resumed.state_dict().values(), strict=True
    ):
        assert all(torch.equal(one, other) for other in others), name


# ---------------------------------------------------------------------- what is compiled


@pytest.mark.parametrize("policy_class", [PPOPolicy, PQNPolicy, RecurrentPPOPolicy])
def test_rollouts_equal_those_without_compiling(policy_class: Any, made: list[str]) -> None:
    found = []
    for compiles in (True, False):
        torch.manual_seed(0)
        policy = short(policy_class, compile=compiles)
        policy.seed(1)
        if policy.updater.compiler is not None:  # updates stay eager: their own tests compare them
            policy.updater.compiler.differentiate = lambda *args: None
        found.append(rollouts(policy, env_kwargs={"max_episode_steps": 9}))
    for one, other in zip(*found, strict=True):
        for name in one:
            assert torch.equal(one[name], other[name]), name
    own = {
        PPOPolicy: {ACTING, VALUES},
        PQNPolicy: {"calls of PQNPolicy._forward_collect", "calls of PQNPolicy._largest_value"},
        RecurrentPPOPolicy: set(),
    }
    assert set(made) == own[policy_class] | {"steps of CartPole"}
    assert len(made) == len(set(made))


class OwnDraw(PPOPolicy):
    """A policy with a method of its own in acting, which compiled code might call only once."""

    calls = 0

    def _draw(self, distribution: Any, logit: Any) -> Any:
        self.calls += 1
        return super()._draw(distribution, logit)


def test_own_methods_of_acting_are_called_in_each_step(made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(compile_module, "rank_zero_info", said.append)
    policy = short(OwnDraw, compile=True)
    rollouts(policy, number=1)
    assert policy.calls == 16
    assert made == ["steps of CartPole"]
    assert said == ["acting is not compiled, because OwnDraw has its own _draw"]


def test_a_short_run_with_auto_compiles_nothing(made: list[str], tmp_path: Path) -> None:
    run_to(tmp_path, 128, compile="auto")
    assert made == []


# ---------------------------------------------------------------------- env steps


class Scaled(CartPole):
    """An env with a tensor and a number of its own."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.bonus, self.scale = torch.linspace(0, 1, num_envs), 2.0

    def _advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state, reward, terminated = super()._advance(state, action)
        return state, reward * self.scale + self.bonus, terminated


def test_own_attributes_of_an_env_count_and_numbers_are_compiled_again(made: list[str]) -> None:
    env = Scaled(3)
    env.reset(seed=0)
    function = env.compile_steps()
    action = torch.zeros(3, dtype=torch.int64)
    assert env.step(action)[1].tolist() == [2.0, 2.5, 3.0]
    env.bonus = env.bonus * 2
    assert env.step(action)[1].tolist() == [2.0, 3.0, 4.0]
    assert made == ["steps of Scaled"]
    env.scale = 2.0  # as before
    env.step(action)
    assert made == ["steps of Scaled"]
    env.scale = 1.0
    assert env.step(action)[1].tolist() == [1.0, 2.0, 3.0]
    assert made == 2 * ["steps of Scaled"]
    for scale in range(2, 12):
        env.scale = float(scale)
        assert env.step(action)[1].tolist() == [scale, scale + 1, scale + 2]
    assert function.has_failed
    assert len(made) == 9


def test_an_env_that_was_compiled_steps_eagerly_in_a_later_fit_without_compile(made: list[str]) -> None:
    env = CartPole(N)
    rollouts(short(compile=True), env, number=1)
    assert "steps of CartPole" in made
    made.clear()
    rollouts(short(), env, number=1)
    assert env._compiled is None
    assert made == []


class Remembers(Pendulum):
    """An env whose step sets an attribute."""

    def _advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.last = action
        return super()._advance(state, action)


def test_steps_that_set_attributes_stay_eager(made: list[str], caplog: pytest.LogCaptureFixture) -> None:
    env, same = Remembers(N), Pendulum(N)
    for one in (env, same):
        one.reset(seed=0)
        one.max_episode_steps = 1  # new states are drawn in each step
    env.compile_steps()
    action = torch.linspace(-2, 2, N)[:, None]
    with caplog.at_level(logging.WARNING, logger="lightning_ding"):
        for _ in range(2):
            assert torch.equal(env.step(action)[0], same.step(action)[0])
    assert torch.equal(env.last, action)
    assert [line.message for line in caplog.records] == [
        "compile=True, but steps of Remembers run eagerly: RuntimeError: a step sets last"
    ]
    assert torch.equal(env._generator.get_state(), same._generator.get_state())


# ---------------------------------------------------------------------- on a device


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_run_on_a_device_repeats_and_resumes_exactly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gpu: dict[str, Any] = {"compile": "cuda_graphs", "accelerator": "gpu"}
    whole, again = (run_to(tmp_path / name, 512, **gpu) for name in ("whole", "again"))
    run_to(tmp_path / "half", 256, **gpu)
    resumed = run_to(tmp_path / "half", 512, **gpu, ckpt_path=tmp_path / "half" / "last.ckpt")
    assert "without CUDA graphs" not in caplog.text
    for (name, one), *others in zip(
        whole.state_dict().items(), again.state_dict().values(), resumed.state_dict().values(), strict=True
    ):
        assert all(torch.equal(one, other) for other in others), name
