"""Whatever is not differentiated is computed in evaluation mode, by every algorithm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lightning_ding.model
from lightning_ding import rl
from lightning_ding.registry import ENCODER_REGISTRY
from tests.algorithms.half_batches_script import make, whole_batch
from tests.algorithms.table import ALGORITHMS, WITHOUT_COLLECTING, make_datamodule, make_policy
from tests.conftest import MakeTrainer

NO_ENCODERS = ("dreamerv3", "tdmpc2")
"""Algorithms whose networks have no other encoders."""
EVERY = pytest.mark.parametrize("name", [*(one for one in ALGORITHMS if one not in NO_ENCODERS), *WITHOUT_COLLECTING])
ALL_DIFFERENTIATED = ("bc", "dt", "pg")
"""Algorithms that compute nothing but their loss."""


class NotingEncoder(nn.Module):
    """A linear layer, and a layer that depends on the mode; notes for each call whether it is in training mode."""

    def __init__(self, obs_shape: Any, hidden_size_list: Sequence[int] | None, activation: str) -> None:
        super().__init__()
        self.output_size = 8
        self.linear, self.after = nn.Linear(obs_shape, 8), self.layer()
        self.seen: set[tuple[bool, bool]] = set()  # with gradient, in training mode
        self.calls_in_training = 0

    def layer(self) -> nn.Module:
        raise NotImplementedError

    def forward(self, obs: Tensor) -> Tensor:
        self.seen.add((torch.is_grad_enabled(), self.after.training))
        self.calls_in_training += self.after.training
        return self.after(self.linear(obs)).tanh()  # type: ignore[no-any-return]


@ENCODER_REGISTRY.register("test_eval_mode_batch_norm", force_overwrite=True)
class BatchNormEncoder(NotingEncoder):
    def layer(self) -> nn.Module:
        return nn.BatchNorm1d(8)


@ENCODER_REGISTRY.register("test_eval_mode_dropout", force_overwrite=True)
class DropoutEncoder(NotingEncoder):
    def layer(self) -> nn.Module:
        return nn.Dropout(0.5)


def encoders_of(policy: Any) -> list[NotingEncoder]:
    return [module for module in policy.modules() if isinstance(module, NotingEncoder)]


def updated(name: str, layer: str, **model: Any) -> tuple[Any, dict[str, Any]]:
    """Return a policy after an update on random data, and its report."""
    policy = make(name, model={"encoder": f"test_eval_mode_{layer}", **model})
    batch = whole_batch(policy, name, 0)
    return policy, policy.learn_mode.forward(batch)


@EVERY
@pytest.mark.parametrize("layer", ["batch_norm", "dropout"])
def test_only_what_is_differentiated_is_computed_in_training_mode(name: str, layer: str) -> None:
    policy, _ = updated(name, layer)
    seen = set.union(*(encoder.seen for encoder in encoders_of(policy)))
    expected = {(True, True)} if name in ALL_DIFFERENTIATED else {(True, True), (False, False)}
    assert seen == expected | ({(True, False)} if name == "trpo" else set())  # whose divergences have no dropout
    assert all(encoder.after.training for encoder in encoders_of(policy))
    if layer == "batch_norm":
        target = getattr(policy, "target_model", None)
        trained: list[Any] = [one for one in encoders_of(policy) if target is None or one not in set(target.modules())]
        assert [int(one.after.num_batches_tracked) for one in trained] == [one.calls_in_training for one in trained]
        assert sum(one.calls_in_training for one in trained) > 0


@EVERY
def test_targets_and_advantages_do_not_depend_on_the_units_that_a_dropout_leaves_out(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Tensor] = []
    for function in ("gae", "vtrace", "retrace"):
        monkeypatch.setattr(rl, function, noting(getattr(rl, function), found))
    reports = []
    for seed in (1, 2):
        policy = make(name, model={"encoder": "test_eval_mode_dropout"})
        batch, kept = whole_batch(policy, name, 0), len(found)
        torch.manual_seed(seed)
        is_critic = hasattr(policy, "critic_loss")
        with policy._target_in_eval_mode if is_critic and policy.has_target else nullcontext():
            reports.append(policy.critic_loss(batch)[1] if is_critic else policy.learn_mode.forward(batch))
        del found[kept + 1 :]  # later ones follow from other weights
    one, other = reports
    targets = [report["target_q_value"] for report in reports if "target_q_value" in report] or found
    assert len(targets) == (0 if name in ALL_DIFFERENTIATED else 2)
    assert not torch.equal(*(torch.cat([report[key].flatten() for key in one]) for report in (one, other)))
    is_joined = name == "crossq"  # its targets come from the pass that is differentiated
    assert all(torch.equal(*targets) != is_joined for _ in targets)


def noting(function: Callable[..., Any], found: list[Tensor]) -> Callable[..., Any]:
    """Return a function that also adds what it returns to a list."""

    def noted(*args: Any) -> Any:
        output = function(*args)
        found.append(output if isinstance(output, Tensor) else torch.stack([output.target, output.advantage]))
        return output

    return noted


@pytest.mark.parametrize(("name", "calls"), [("sac", 2), ("ddpg", 2), ("crossq", 2), ("discrete_sac", 1)])
def test_features_that_the_actor_takes_from_the_critics_are_computed_in_evaluation_mode(name: str, calls: int) -> None:
    policy, _ = updated(name, "batch_norm", share_encoder=True)
    encoder = policy.model.critic.encoder
    assert {(True, True), (True, False)} <= encoder.seen <= {(True, True), (True, False), (False, False)}
    assert encoder.after.num_batches_tracked == encoder.calls_in_training == calls  # critics' loss, actions' values


@pytest.mark.parametrize("name", ["ppo", "a2c", "ppo_offpolicy", "recurrent_ppo", "impala"])
def test_a_batch_norm_learns_from_a_single_env(name: str, make_trainer: MakeTrainer) -> None:
    policy = make_policy(name, model={"encoder": "test_eval_mode_batch_norm"})
    make_trainer(limit_val_batches=0).fit(policy, make_datamodule(name, num_envs=1, max_env_step=64))
    assert policy.progress.train_iter > 0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_networks_of_plain_layers_are_not_switched(name: str) -> None:
    policy = make(name)
    assert not policy._in_eval_mode.matters
    assert not hasattr(policy, "target_model") or not policy._target_in_eval_mode.matters


def test_no_network_reads_its_mode_itself() -> None:
    (folder,) = lightning_ding.model.__path__
    files = [file for file in Path(folder).glob("*.py") if file.name != "layers.py"]
    assert len(files) > 20
    assert not [file.name for file in files if "self.training" in file.read_text()]
