"""``compile: auto`` compiles the updates of long runs, and says what it does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy, create_policy
from lightning_ding.policy.base import compile as compiled_module
from lightning_ding.policy.base.compile import Compiler
from lightning_ding.utils import private_api
from lightning_ding.utils.compiled import Compiled
from tests.conftest import MakeTrainer

Config = dict[str, Any]
DISCRETE: Config = {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [16]}


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the compiler tells the user."""
    lines: list[str] = []
    monkeypatch.setattr(compiled_module, "rank_zero_info", lines.append)
    return lines


@pytest.mark.parametrize(
    ("name", "changes", "num_ranks", "expected"),
    [
        ("dqn", {"collect": {"n_sample": 8}, "learn": {"update_per_collect": 5}}, 1, 6_250),
        ("dqn", {"collect": {"n_sample": 8}, "learn": {"update_per_collect": 5}}, 2, 3_125),
        ("ppo", {"collect": {"n_sample": 64}, "learn": {"batch_size": 16, "epoch_per_collect": 3}}, 1, 1_875),
        ("pg", {"collect": {"n_episode": 2}}, 1, None),
    ],
)
def test_updates_of_a_run_are_expected_from_its_config(
    name: str, changes: Config, num_ranks: int, expected: int | None
) -> None:
    policy: Any = create_policy({"type": name, "model": {"obs_shape": 4, "action_shape": 2}, **changes})
    assert compiled_module.expected_updates(policy, num_ranks) is None
    policy.progress.budget = 10_000
    assert compiled_module.expected_updates(policy, num_ranks) == expected


def test_updates_of_a_run_on_a_data_set_are_its_budget() -> None:
    policy: Any = create_policy({"type": "bc", "model": {"obs_shape": 4, "action_shape": 2}})
    policy.progress.budget, policy.progress.axis = 700, "train_iter"
    assert compiled_module.expected_updates(policy, 2) == 700


@pytest.mark.parametrize(
    ("least", "max_env_step", "is_compiled", "reason"),
    [
        (16, 64, True, "updates run compiled, because the run makes about 16 updates, and compiling pays from 16 on"),
        (17, 64, False, "updates run eagerly, because the run makes about 16 updates, and compiling pays from 17 on"),
        (1, None, False, "updates run eagerly, because the length of the run is not known"),
    ],
)
def test_auto_compiles_long_runs_and_says_so(
    least: int,
    max_env_step: int | None,
    is_compiled: bool,
    reason: str,
    make_trainer: MakeTrainer,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiled_module, "AUTO_UPDATES", least)
    monkeypatch.setattr(private_api, "_compile", lambda graph, fakes: lambda tensors: graph(*tensors))
    sizes = {"collect": {"n_sample": 8}, "learn": {"update_per_collect": 2, "batch_size": 8}}
    policy = create_policy({"type": "dqn", "compile": "auto", "model": DISCRETE, **sizes})
    datamodule = ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=max_env_step, max_train_iter=4)
    make_trainer(limit_val_batches=0).fit(policy, datamodule)
    assert (policy.updater.compile_seconds > 0) == is_compiled
    assert reason in said[0]


def test_auto_leaves_convolutions_on_a_cpu_eager(said: list[str]) -> None:
    policy: Any = create_policy({"type": "dqn", "model": {"obs_shape": [1, 84, 84], "action_shape": 2}})
    policy.progress.budget = 10_000_000
    assert compiled_module.automatic_compiler(policy, None, 1) is None
    assert said == ["compile='auto': updates run eagerly, because on a CPU, compiled convolutions are not faster"]


def test_auto_uses_the_code_of_an_earlier_fit_again() -> None:
    policy = DQNPolicy({"model": DISCRETE})
    known = Compiler(policy)
    policy.progress.budget = 10_000_000
    assert compiled_module.automatic_compiler(policy, known, 1) is known


def test_unknown_value_of_compile_is_refused() -> None:
    with pytest.raises((ValueError, TypeError), match=r"compile.*'auto'.*'cuda_graphs', got str: 'always'"):
        create_policy({"type": "dqn", "compile": "always"})


X, WEIGHT, BIAS = torch.randn(5, 3), torch.randn(3, 2), torch.randn(2)
XS, WEIGHTS, BIASES = torch.randn(4, 5, 3), torch.randn(4, 3, 2), torch.randn(4, 1, 2)


def operators_of(function: Any, tensors: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the operators of a function's graph, after a check that the graph computes the same."""
    graphs: list[torch.fx.GraphModule] = []

    def kept(graph: torch.fx.GraphModule, fakes: list[Any]) -> Any:
        graphs.append(graph)
        return lambda given: graph(*given)

    monkeypatch.setattr(private_api, "_compile", kept)
    made = Compiled(function, tensors, [False] * len(tensors), 0)(tensors)
    assert_close(made[0], function(*tensors)[0])
    return {str(node.target) for node in graphs[0].graph.nodes if node.op == "call_function"}


def test_product_and_bias_are_two_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    one = operators_of(lambda b, x, w: [torch.addmm(b, x, w)], [BIAS, X, WEIGHT], monkeypatch)
    assert {"aten.bmm.default", "aten.add.Tensor"} <= one
    assert "aten.addmm.default" not in one
    several = operators_of(lambda b, x, w: [torch.baddbmm(b, x, w)], [BIASES, XS, WEIGHTS], monkeypatch)
    assert several == {"aten.bmm.default", "aten.add.Tensor"}


def test_scaled_product_stays_one_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    one = operators_of(lambda b, x, w: [torch.addmm(b, x, w, alpha=2)], [BIAS, X, WEIGHT], monkeypatch)
    assert one == {"aten.addmm.default"}
    several = operators_of(lambda b, x, w: [torch.baddbmm(b, x, w, beta=0.5)], [BIASES, XS, WEIGHTS], monkeypatch)
    assert several == {"aten.baddbmm.default"}
