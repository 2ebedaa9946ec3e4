"""The tables and classes of the guides on own algorithms and on auxiliary losses."""

from __future__ import annotations

import inspect
import re
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_ding import policy as policies
from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
from lightning_ding.policy import Policy
from lightning_ding.registry import POLICY_REGISTRY
from tests.conftest import MakeTrainer
from tests.docs.pages import blocks_of
from tests.test_docs import ROOT
from tests.toys.bandits import BanditEnv

GUIDES = ROOT / "docs" / "guides"
CALL = re.compile(r"`(\w+)\(([^)]*)\)`")
ROW = re.compile(r"^\| (?P<change>[^|]+) \| (?P<base>[^|]+) \| (?P<methods>[^|]+) \|$", re.MULTILINE)


def module_of(page: str, file: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module that a page writes to a file."""
    (block,) = (one for one in blocks_of((GUIDES / page).read_text()) if one.file == file)
    entries = {name: POLICY_REGISTRY.get(name) for name in POLICY_REGISTRY}
    monkeypatch.setattr(POLICY_REGISTRY, "_entries", entries)
    module = types.ModuleType(file.removesuffix(".py"))
    monkeypatch.setitem(__import__("sys").modules, module.__name__, module)
    exec(compile(block.code, file, "exec"), vars(module))
    return module


def rows_of(page: str, heading: str) -> list[re.Match[str]]:
    """Return the rows of the table after a heading, without the line of titles."""
    section = (GUIDES / page).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return list(ROW.finditer(section))[1:]


def class_of(base: str) -> Any:
    """Return the first policy that a cell names; Policy for any."""
    found = re.search(r"`(?:lightning_ding\.policy\.)?(\w+)`", base)
    return Policy if found is None else getattr(policies, found[1])


def test_every_method_in_the_table_of_bases_has_the_arguments_of_the_class() -> None:
    rows = rows_of("own_algorithm.md", "Other bases")
    given = {(row["base"], name): arguments for row in rows for name, arguments in CALL.findall(row["methods"])}

    assert len(rows) == 8
    assert len(given) == 14
    for (base, name), arguments in given.items():
        parameters = list(inspect.signature(getattr(class_of(base), name)).parameters.values())[1:]
        written = [f"**{one.name}" if one.kind is one.VAR_KEYWORD else one.name for one in parameters]
        assert ", ".join(written) == arguments, f"{base}: {name}"


def test_every_loss_in_the_table_of_auxiliary_losses_exists() -> None:
    rows = re.findall(
        r"^\| [A-Z][^|]+\| `(\w+)\(batch\)` \|", (GUIDES / "auxiliary_losses.md").read_text(), re.MULTILINE
    )

    assert rows == ["loss", "loss", "critic_loss"]
    for cls, name in zip(("DQNPolicy", "PPOPolicy", "SACPolicy"), rows, strict=True):
        assert list(inspect.signature(getattr(getattr(policies, cls), name)).parameters) == ["self", "batch"]


def test_a_policy_with_the_methods_of_the_row_everything_learns(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = module_of("own_algorithm.md", "from_scratch.py", monkeypatch).ScratchPolicy
    (row,) = (one for one in rows_of("own_algorithm.md", "Other bases") if one["change"] == "everything")
    methods = {name for name, _ in CALL.findall(row["methods"])}
    assert scratch.__bases__ == (Policy,)
    assert methods == {name for name in vars(scratch) if hasattr(Policy, name) and callable(vars(scratch)[name])} - {
        "__doc__", "__module__"}  # fmt: skip
    policy = scratch({"learn": {"learning_rate": 0.01}, "model": {"encoder_hidden_size_list": [32]}})
    data = ReplayDataModule(BanditEnv, num_envs=4, max_env_step=640, n_evaluator_episode=20)
    trainer = make_trainer()

    trainer.fit(policy, data)

    assert trainer.validate(policy, data, verbose=False)[0]["eval/return_mean"] == 1.0


def weights_after(
    policy: Any, data: Any, steps: int, folder: Path, make_trainer: MakeTrainer, **options: Any
) -> dict[str, Tensor]:
    """Return the parameters of a policy at the end of a run."""
    torch.manual_seed(0)
    config: dict[str, Any] = {"collect": {"n_sample": 16}, "learn": {"batch_size": 8}}
    if issubclass(policy, policies.DQNPolicy):
        config |= {"random_collect_size": 16, "other": {"eps": {"start": 0.3, "end": 0.3}}}  # for a run of any length
    made = policy(config)
    trainer = make_trainer(default_root_dir=folder, enable_checkpointing=True)
    trainer.fit(made, data("CartPole-v1", num_envs=2, max_env_step=steps, n_evaluator_episode=1), **options)
    return {name: tensor.clone() for name, tensor in made.state_dict().items()}


@pytest.mark.parametrize(
    ("page", "file", "name", "data"),
    [
        ("own_algorithm.md", "from_scratch.py", "ScratchPolicy", ReplayDataModule),
        ("auxiliary_losses.md", "forward_prediction.py", "PredictiveDQN", ReplayDataModule),
        ("auxiliary_losses.md", "forward_prediction.py", "PredictivePPO", RolloutDataModule),
    ],
)
def test_a_resumed_run_of_a_class_of_the_guides_ends_as_one_without_a_break(
    page: str, file: str, name: str, data: Any, make_trainer: MakeTrainer, tmp_path: Path, monkeypatch: Any
) -> None:
    policy = getattr(module_of(page, file, monkeypatch), name)
    whole = weights_after(policy, data, 96, tmp_path / "whole", make_trainer)
    half = weights_after(policy, data, 48, tmp_path / "parts", make_trainer)

    resumed = weights_after(policy, data, 96, tmp_path / "parts", make_trainer, ckpt_path="last")

    assert any(not torch.equal(half[key], whole[key]) for key in whole)
    assert {key for key in whole if not torch.equal(resumed[key], whole[key])} == set()


def test_the_head_of_an_auxiliary_loss_is_trained_and_part_of_the_state_for_learning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = module_of("auxiliary_losses.md", "forward_prediction.py", monkeypatch)
    policy = module.PredictiveDQN({"model": {"obs_shape": 4, "action_shape": 2}})
    before = policy.learn_mode.state_dict()
    before = {key: value.clone() for key, value in before["predictor"].items()}
    batch = {"obs": torch.randn(8, 4), "next_obs": torch.randn(8, 4), "action": torch.arange(8) % 2}

    policy.learn_mode.forward({**batch, "reward": torch.ones(8), "terminated": torch.zeros(8, dtype=torch.bool)})

    after = policy.learn_mode.state_dict()["predictor"]
    assert all(not torch.equal(before[key], after[key]) for key in before)
    other = module.PredictiveDQN({"model": {"obs_shape": 4, "action_shape": 2}})
    other.learn_mode.load_state_dict(policy.learn_mode.state_dict())
    assert torch.equal(other.predictor[0].weight, policy.predictor[0].weight)
