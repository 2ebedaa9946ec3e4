"""Every algorithm learns the same with ``compile: true``."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from lightning import seed_everything
from torch.testing import assert_close

from lightning_ding.utils import private_api
from tests.algorithms import half_batches_script
from tests.algorithms.table import ALGORITHMS, LAYERS, TEAMS, VARIANTS, make_datamodule, make_policy
from tests.conftest import MakeTrainer

EVERY = pytest.mark.parametrize("name", [*ALGORITHMS, *TEAMS])
WITH_VARIANTS = pytest.mark.parametrize("name", [*ALGORITHMS, *TEAMS, *VARIANTS, *LAYERS])


NO_NOISE = {"crossq": {"learn": {"optimizer": {"eps": 1e-3}}}}
"""Config of algorithms with gradients of 0 that batch normalisation leaves as rounding, which Adam makes steps of."""


def check(name: str, make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture) -> None:
    weights = []
    for compiles in (True, False):
        seed_everything(0)
        policy: Any = make_policy(name, compile=compiles, **NO_NOISE.get(name, {}))
        with caplog.at_level(logging.WARNING, logger="lightning_ding"):
            make_trainer(limit_val_batches=0).fit(policy, make_datamodule(name, max_env_step=64))
        assert policy.progress.train_iter > 1
        assert (policy.updater.compile_seconds > 0) == compiles
        weights.append(dict(policy.model.state_dict()))
    assert "eagerly" not in caplog.text
    assert_close(weights[0], weights[1], rtol=0, atol=1e-5)


@WITH_VARIANTS
def test_graph_of_every_loss_equals_the_loss(
    name: str, make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_compiled(graph: torch.fx.GraphModule, fakes: list[Any]) -> Any:
        return lambda tensors: graph(*tensors)

    monkeypatch.setattr(private_api, "_compile", not_compiled)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # of the parts of losses
    check(name, make_trainer, caplog)


@pytest.mark.slow
@WITH_VARIANTS
def test_every_algorithm_learns_the_same_in_compiled_code(
    name: str, make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    check(name, make_trainer, caplog)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_code_for_batches_of_any_length_equals_eager_code(name: str, caplog: pytest.LogCaptureFixture) -> None:
    weights = []
    for compiles in (True, False):
        policy = half_batches_script.make(name, compile=compiles)
        with caplog.at_level(logging.WARNING, logger="lightning_ding"):
            for number, envs in enumerate((4, 3, 2, 5, 4)):
                policy.learn_mode.forward(half_batches_script.whole_batch(policy, name, number, envs))
        assert (policy.updater.compile_seconds > 0) == compiles
        weights.append(dict(policy.model.state_dict()))
    assert "eagerly" not in caplog.text
    assert_close(weights[0], weights[1], rtol=0, atol=1e-5)
