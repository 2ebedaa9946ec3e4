"""Compiled updates give the same numbers as eager ones.

Most tests of ``CompiledGradient`` replace the compiler by a function that compiles nothing, which is fast. One test
compiles the update of one algorithm; the slow tests compile those of all others.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning import Trainer
from lightning.pytorch import Callback
from torch import Tensor
from torch.nn.utils import parameters_to_vector
from torch.optim.lr_scheduler import StepLR
from torch.testing import assert_close

from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
from lightning_ding.policy import DQNPolicy, create_policy
from lightning_ding.policy.base import compile as compiled_module
from lightning_ding.policy.base.compile import Compiler
from tests.algorithms.table import ALGORITHMS
from tests.conftest import MakeTrainer
from tests.processes import run_two_ranks

Config = dict[str, Any]
DISCRETE: Config = {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [16], "activation": "tanh"}
CONFIGS: dict[str, Config] = {
    "dqn": {"model": DISCRETE, "learn": {"learning_rate": 1e-3}},
    "c51": {"model": DISCRETE, "learn": {"learning_rate": 1e-3}},
    "qrdqn": {"model": DISCRETE, "learn": {"learning_rate": 1e-3}},
    "mdqn": {"model": DISCRETE, "learn": {"learning_rate": 1e-3}},
    "iqn": {"model": DISCRETE, "learn": {"learning_rate": 1e-3}},
    "fqf": {"model": DISCRETE, "learn": {"learning_rate": 1e-3, "learning_rate_fraction": 1e-4}},
    "discrete_sac": {"model": DISCRETE},
    "ppo": {"model": DISCRETE | {"action_space": "discrete"}, "learn": {"batch_size": 16, "epoch_per_collect": 1}},
    "pqn": {"model": DISCRETE, "learn": {"batch_size": 16, "epoch_per_collect": 1, "learning_rate": 1e-3}},
    "sac": {"model": {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [16], "activation": "tanh"}},
}


def make(name: str, compiles: bool = True, *changes: Config, dtype: torch.dtype = torch.float32) -> Any:
    config = CONFIGS[name]
    for change in changes:
        config = deep_merge(config, change)
    torch.manual_seed(0)
    policy = create_policy({"type": name, "compile": compiles, **config})
    policy.seed(0)
    return policy.to(dtype)


def batches(name: str, number: int, size: int = 16, dtype: torch.dtype = torch.float32) -> list[Config]:
    """Return what the policy learns from in so many updates."""
    rng, found = np.random.default_rng(1), []
    for _ in range(number):
        batch = {key: torch.from_numpy(rng.normal(size=(size, 4))).to(dtype) for key in ("obs", "next_obs")}
        batch["reward"] = torch.from_numpy(rng.normal(size=size)).to(dtype)
        batch["terminated"] = torch.from_numpy(rng.random(size) < 0.2)
        batch["truncated"] = torch.zeros(size, dtype=torch.bool)
        batch["action"] = torch.from_numpy(rng.integers(2, size=size))
        if name == "sac":
            batch["action"] = torch.from_numpy(rng.uniform(-1, 1, (size, 2))).to(dtype)
        if name in ("ppo", "pqn"):
            batch["log_prob"] = torch.full((size,), 0.5, dtype=dtype).log()
            batch |= {key: torch.zeros(size, dtype=torch.long) for key in ("env_id", "episode_id")}
            batch["terminated"][:] = False
        found.append(batch)
    return found


def learn(policy: Any, data: list[Config]) -> Tensor:
    """Learn from all, and return the parameters."""
    for batch in data:
        policy._learn(dict(batch))
    return weights_of(policy)


def weights_of(policy: Any) -> Tensor:
    return parameters_to_vector(policy.parameters()).detach().clone()


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> list[list[bool]]:
    """Replace compiled code by the function itself, and note which of its arguments may have another length."""
    compiled: list[list[bool]] = []

    class NotCompiled:
        def __init__(self, function: Any, tensors: list[Tensor], sized: list[bool], fixed: int, graphs: bool) -> None:
            assert not any(tensor.requires_grad for tensor in tensors)
            self.function, self.used = function, list(range(len(tensors)))
            compiled.append(sized)

        def __call__(self, tensors: list[Tensor]) -> Any:
            return self.function(*tensors)

    monkeypatch.setattr(compiled_module, "Compiled", NotCompiled)
    monkeypatch.setattr(Compiler, "_give_up", refuse)
    return compiled


def refuse(compiler: Compiler, reason: str) -> None:
    """Let a test fail that would only compare eager updates with eager ones, unless a callback is what it is about."""
    compiler._has_failed = True
    logging.getLogger("lightning_ding").warning("compile=True, but updates run eagerly: %s", reason)
    assert reason.startswith("a callback"), reason


# The compiler


def check_equals_eager(name: str, dtype: torch.dtype, tolerance: float, activation: str, caplog: Any) -> None:
    model = {"model": {"activation": activation}}
    with caplog.at_level(logging.WARNING, logger="lightning_ding"):
        compiled, eager = (make(name, compiles, model, dtype=dtype) for compiles in (True, False))
        data = batches(name, 100, dtype=dtype)
        before = weights_of(eager)
        found, expected = learn(compiled, data), learn(eager, data)
    assert caplog.text == ""  # it was not made eagerly
    assert not torch.equal(before, expected)
    assert_close(found, expected, rtol=0, atol=tolerance)


def test_hundred_compiled_updates_equal_eager_ones(caplog: pytest.LogCaptureFixture) -> None:
    check_equals_eager("ppo", torch.float32, 1e-5, "tanh", caplog)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dqn", "c51", "qrdqn", "mdqn", "iqn", "fqf", "sac", "discrete_sac"])
def test_hundred_compiled_updates_of_every_algorithm_equal_eager_ones(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    check_equals_eager(name, torch.float32, 1e-5, "tanh", caplog)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_compiled_updates_equal_eager_ones_in_double_precision(name: str, caplog: pytest.LogCaptureFixture) -> None:
    check_equals_eager(name, torch.float64, 1e-9, "relu", caplog)


@pytest.mark.slow
def test_two_policies_in_one_process_do_not_share_compiled_code() -> None:
    configs: list[Config] = [{"discount_factor": 0.5}, {"discount_factor": 0.99}]
    data = batches("dqn", 5)
    expected = [learn(make("dqn", False, config), data) for config in configs]
    policies = [make("dqn", True, config) for config in configs]
    for batch in data:  # in turn
        for policy in policies:
            policy._learn(dict(batch))
    for policy, weights in zip(policies, expected, strict=True):
        assert_close(weights_of(policy), weights, rtol=0, atol=1e-5)


# Around it


@pytest.mark.parametrize("name", ["dqn", "c51", "qrdqn", "mdqn", "iqn", "fqf", "ppo", "pqn", "sac", "discrete_sac"])
def test_compiled_gradient_and_step_equal_an_eager_update(name: str, no_compiler: list[list[bool]]) -> None:
    data = batches(name, 20)
    assert_close(learn(make(name), data), learn(make(name, False), data), rtol=0, atol=1e-5)
    assert no_compiler


@pytest.mark.parametrize("limit", [None, 1e-3])
def test_gradient_is_clipped_inside(limit: float | None, no_compiler: list[list[bool]]) -> None:
    change = {
        "learn": {"grad_clip_norm": limit, "optimizer": {"eps": 1e-3}}
    }  # so that Adam's steps depend on the gradient's size
    data = batches("ppo", 5)
    found, expected = (learn(make("ppo", compiles, change), data) for compiles in (True, False))
    assert_close(found, expected, rtol=0, atol=1e-6)
    other = learn(make("ppo", False, {"learn": {"grad_clip_norm": 0.5, "optimizer": {"eps": 1e-3}}}), data)
    assert not torch.allclose(other, expected, rtol=0, atol=1e-6)


def test_state_that_is_loaded_between_updates_counts(no_compiler: list[list[bool]]) -> None:
    data = batches("dqn", 12)
    source, policy = make("dqn", False), make("dqn")
    learn(source, data[:6])
    learn(policy, data[3:5])
    policy.learn_mode.load_state_dict(source.learn_mode.state_dict())
    policy.progress.load_state_dict(source.progress.state_dict())
    assert_close(learn(policy, data[6:]), learn(source, data[6:]), rtol=0, atol=1e-6)


def test_optimizer_state_is_that_of_an_eager_run(no_compiler: list[list[bool]]) -> None:
    data = batches("dqn", 7)
    policies = [make("dqn", compiles) for compiles in (True, False)]
    for policy in policies:
        learn(policy, data)
    found, expected = (policy.updater.optimizers[0].state_dict()["state"] for policy in policies)
    assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert found[0]["step"] == 7


def test_parameters_of_another_type_are_compiled_again(no_compiler: list[list[bool]]) -> None:
    compiled, eager = (make("dqn", compiles) for compiles in (True, False))
    for policy in (compiled, eager):
        learn(policy, batches("dqn", 2))
        policy.double()
        for state in policy.updater.optimizers[0].state.values():
            state |= {name: state[name].double() for name in ("exp_avg", "exp_avg_sq")}
    data = batches("dqn", 2, dtype=torch.float64)
    assert_close(learn(compiled, data), learn(eager, data), rtol=0, atol=1e-5)
    assert no_compiler == 2 * [no_compiler[0]]


def test_compiled_updates_continue_eager_ones(no_compiler: list[list[bool]]) -> None:
    data = batches("dqn", 6)
    compiled, eager = (make("dqn", compiles) for compiles in (True, False))
    first = make("dqn", False)
    learn(first, data[:3])
    learn(eager, data[:3])
    compiled.learn_mode.load_state_dict(first.learn_mode.state_dict())
    assert_close(learn(compiled, data[3:]), learn(eager, data[3:]), rtol=0, atol=1e-6)
    steps = [state["step"] for state in compiled.updater.optimizers[0].state.values()]
    assert {float(step) for step in steps} == {6}


def test_compiling_is_announced_once_for_each_shape(
    no_compiler: list[list[bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(compiled_module, "rank_zero_info", lines.append)
    learn(make("dqn"), [*batches("dqn", 2), *batches("dqn", 2, size=8)])
    assert [line.split(";")[0].split(" in ")[0] for line in lines] == 2 * [
        "compiling an update with _loss_with_target",
        "compiled an update with _loss_with_target",
    ]


def test_learning_rate_of_now_counts(no_compiler: list[list[bool]]) -> None:
    falling = {"type": "linear", "unit": "env_step", "decay": 5}
    schedules = {f"{name}_scheduler": falling for name in ("lr", "clip_ratio", "entropy_weight")}
    data = batches("ppo", 6)
    policies = [
        make(
            "ppo", compiles, {"learn": {**schedules, "learning_rate": 0.01, "entropy_weight": 0.1, "value_norm": False}}
        )
        for compiles in (True, False)
    ]
    for policy in policies:
        for number, batch in enumerate(data):
            policy.progress.env_step = number
            policy.learn_mode.forward(dict(batch))
    found, expected = map(weights_of, policies)
    assert_close(found, expected, rtol=0, atol=1e-5)
    assert policies[0].cur_lr() == 0.0
    assert torch.equal(learn(policies[0], data[:1]), found)  # a rate of 0 changes nothing
    assert len(no_compiler) == 1  # nothing is compiled again


@pytest.mark.parametrize(
    "change",
    [{"optimizer": {"type": "adamw", "weight_decay": 0.5}}, {"grad_clip_value": 1e-4, "optimizer": {"eps": 1e-3}}],
)
def test_every_kind_of_step_that_can_be_compiled_equals_the_eager_one(
    no_compiler: list[list[bool]], change: dict[str, Any]
) -> None:
    data = batches("dqn", 4)
    found, expected, plain = (
        learn(make("dqn", compiles, {"learn": what}), data)
        for compiles, what in ((True, change), (False, change), (False, {}))
    )
    assert_close(found, expected, rtol=0, atol=1e-6)
    assert not torch.allclose(expected, plain, rtol=0, atol=1e-4)


class Halving(DQNPolicy):
    """DQN whose learning rate halves with every update."""

    def configure_optimizers(self) -> Any:
        optimizers, _ = super().configure_optimizers()
        return optimizers, [{"scheduler": StepLR(optimizers[0], 1, 0.5), "interval": "step"}]


def test_scheduler_of_updates_is_stepped_between_compiled_ones(no_compiler: list[list[bool]]) -> None:
    weights = []
    for compiles in (True, False):
        torch.manual_seed(0)
        policy = Halving({"model": DISCRETE, "compile": compiles, "learn": {"learning_rate": 0.01}})
        weights.append(learn(policy, batches("dqn", 5)))
        assert policy.cur_lr() == 0.01 * 0.5**5
    assert_close(*weights, rtol=0, atol=1e-6)
    assert no_compiler


def test_a_minibatch_that_is_prepared_after_an_update_that_raised_has_its_target(
    no_compiler: list[list[bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, (batch,) = make("dqn"), batches("dqn", 1)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no update")

    monkeypatch.setattr(policy.updater, "minimise", fail)
    with pytest.raises(RuntimeError, match="no update"):
        policy.learn_mode.forward(batch)
    assert set(policy.prepare(batch)["target"]) == {"logit"}


def test_batch_of_another_structure_works(no_compiler: list[list[bool]]) -> None:
    first, second = batches("dqn", 3), batches("dqn", 3, size=9)
    second = [batch | {"IS": torch.linspace(0.1, 1, 9)} for batch in second]
    found, expected = (learn(make("dqn", compiles), first + second + first) for compiles in (True, False))
    assert_close(found, expected, rtol=0, atol=1e-6)


def test_compiler_failure_is_logged_once_and_updates_run_eagerly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any) -> Any:
        raise RuntimeError("no C++ compiler\nand more lines")

    monkeypatch.setattr(compiled_module, "Compiled", fail)
    data = batches("dqn", 4)
    with caplog.at_level(logging.WARNING, logger="lightning_ding"):
        found = learn(make("dqn"), data)
    assert [record.getMessage() for record in caplog.records] == [
        "compile=True, but updates run eagerly: RuntimeError: no C++ compiler"
    ]
    assert torch.equal(found, learn(make("dqn", False), data))


class Listener(Callback):
    count = 0

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: Any, optimizer: Any) -> None:
        self.count += 1


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_callback_that_takes_part_in_updates_makes_them_eager_and_says_so(
    name: str, make_trainer: MakeTrainer, no_compiler: list[list[bool]], caplog: pytest.LogCaptureFixture
) -> None:
    listener = Listener()
    with caplog.at_level(logging.WARNING, logger="lightning_ding"):
        policy = fit(name, make_trainer, callbacks=[listener])
    assert listener.count == policy.progress.train_iter > 0
    assert no_compiler == []
    assert caplog.text.count("updates run eagerly: a callback, a profiler or the precision takes part") == 1


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_compiled_updates_of_a_fit_count_as_global_steps(
    name: str, make_trainer: MakeTrainer, no_compiler: list[list[bool]]
) -> None:
    policy = fit(name, make_trainer)
    assert no_compiler
    assert policy.trainer.global_step == policy.progress.train_iter > 0


def fit(name: str, make_trainer: MakeTrainer, **kwargs: Any) -> Any:
    policy = make(name, True, {"collect": {"n_sample": 16}})
    datamodule = RolloutDataModule if name == "ppo" else ReplayDataModule
    make_trainer(limit_val_batches=0, **kwargs).fit(policy, datamodule("CartPole-v1", num_envs=2, max_env_step=160))
    return policy


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_ranks_of_which_one_cannot_compile_learn_together(name: str, tmp_path: Path) -> None:
    run_two_ranks("-m", "tests.policy.base.compile_ranks_script", tmp_path, name, timeout=280)
    one, other = (torch.load(tmp_path / f"rank_{rank}.pt", weights_only=True) for rank in range(2))
    for name, weights in one.items():
        assert torch.equal(weights, other[name]), name
    for name in ("compiled", "alone"):
        assert_close(one[name], one["eager"], rtol=0, atol=1e-5)
        assert not torch.equal(one[name], torch.zeros_like(one[name]))


def test_second_length_is_compiled_for_all_lengths(no_compiler: list[list[bool]]) -> None:
    sizes = (16, 9, 16, 5, 30, 1, 1)
    data = [batches("dqn", 1, size=size)[0] for size in sizes]
    found, expected = (learn(make("dqn", compiles), data) for compiles in (True, False))
    assert_close(found, expected, rtol=0, atol=1e-6)
    assert [any(sized) for sized in no_compiler] == [False, True, False]  # a length of 1 is never general


def test_shapes_beyond_the_most_codes_run_eagerly(
    no_compiler: list[list[bool]], caplog: pytest.LogCaptureFixture
) -> None:
    first = [batch | {"rows": torch.zeros(2 + number)} for number, batch in enumerate(batches("dqn", 11))]
    found, expected = (learn(make("dqn", compiles), [*first, first[0], first[-1]]) for compiles in (True, False))
    assert_close(found, expected, rtol=0, atol=1e-6)
    assert len(no_compiler) == 8
    assert caplog.text.count("compiled for 8 shapes of batches; those with other shapes run eagerly") == 1


@pytest.mark.slow
def test_code_for_all_lengths_equals_eager_code(caplog: pytest.LogCaptureFixture) -> None:
    data = [batches("ppo", 1, size=size)[0] for size in (16, 9, 5, 30, 16)]
    found, expected = (learn(make("ppo", compiles), data) for compiles in (True, False))
    assert "eagerly" not in caplog.text
    assert_close(found, expected, rtol=0, atol=1e-5)


def test_loss_of_a_few_numbers_is_not_compiled(no_compiler: list[list[bool]]) -> None:
    policy = make("sac")
    learn(policy, batches("sac", 2))
    assert len(no_compiler) == 2  # critics and actor, without the temperature
    assert policy.temperature.grad is not None


class Partial(DQNPolicy):
    """DQN with a parameter that the loss does not read."""

    def _init_learn(self) -> None:
        self.model.unused = torch.nn.Parameter(torch.ones(3))
        super()._init_learn()


def test_parameter_that_the_loss_does_not_read_gets_no_gradient(no_compiler: list[list[bool]]) -> None:
    weights = []
    for compiles in (True, False):
        torch.manual_seed(0)
        decays = {"optimizer": {"type": "adamw", "weight_decay": 0.5}}
        policy = Partial({"model": DISCRETE, "compile": compiles, "learn": decays})
        weights.append(learn(policy, batches("dqn", 3)))
        assert policy.model.unused.grad is None
    assert no_compiler
    assert_close(*weights, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", [{"type": "rmsprop"}, {"type": "sgd"}])
def test_any_optimizer_makes_the_step(kind: Config, no_compiler: list[list[bool]]) -> None:
    data = batches("dqn", 4)
    found, expected = (learn(make("dqn", compiles, {"learn": {"optimizer": kind}}), data) for compiles in (True, False))
    assert no_compiler
    assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["dqn", "iqn", "mdqn"])
def test_rounds_in_which_the_target_network_changes_use_the_same_code(
    name: str, no_compiler: list[list[bool]], make_trainer: MakeTrainer
) -> None:
    sizes = {"collect": {"n_sample": 8}, "learn": {"update_per_collect": 4, "batch_size": 8, "target_update_freq": 6}}
    weights = []
    for compiles in (True, False):
        policy = make(name, compiles, sizes, {"random_collect_size": 8})
        datamodule = ReplayDataModule("CartPole-v1", num_envs=2, seed=0, max_env_step=64)
        make_trainer(limit_val_batches=0).fit(policy, datamodule)
        weights.append(parameters_to_vector(policy.model.parameters()))
    assert policy.progress.train_iter > 12  # the target network changed in the second round, not in the first
    assert len(no_compiler) == 1
    assert_close(*weights, rtol=0, atol=1e-5)
