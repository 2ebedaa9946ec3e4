"""Private names of torch and Lightning stand in one file, and what only saves time changes no weight."""

from __future__ import annotations

import ast
import gc
import re
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from lightning_ding.utils import private_api
from tests.algorithms.table import make_datamodule, make_policy
from tests.test_imports import ROOT, source_files

PACKAGES = ("torch", "lightning", "nn", "dist", "F")
"""Names under which modules import torch and Lightning."""
OWN = ("self", "cls", "super")
OF_OTHERS = re.compile(
    r"_(parameters|buffers|modules|(forward|backward)(_pre)?_hooks|call_batch_hook|(checkpoint|logger)_connector|"
    r"select_ckpt_path|optimizer_step_\w+|step_supports_amp_scaling|execution_engine|every_n_\w+|fit_loop)"
)
"""Private attributes of objects of torch and Lightning that this package has used."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def root_of(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def private_names(tree: ast.AST) -> Iterator[str]:
    """Yield the private names of torch and Lightning that a module uses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in PACKAGES:
            path = [*(node.module or "").split("."), *(one.name for one in node.names)]
            yield from (f"{node.module}: {one}" for one in path if is_private(one))
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names if any(map(is_private, one.name.split("."))))
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            is_own = isinstance(node.value, ast.Name) and node.value.id in OWN
            if root_of(node.value) in PACKAGES or (OF_OTHERS.fullmatch(node.attr) and not is_own):
                yield ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and OF_OTHERS.fullmatch(node.value):
            yield node.value


def test_private_names_of_torch_and_lightning_stand_in_one_file() -> None:
    own = Path(private_api.__file__).resolve()
    found = {path: sorted(private_names(ast.parse(path.read_text()))) for path in source_files()}
    assert found.pop(own)
    assert {path.relative_to(ROOT).as_posix(): names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    [
        "from torch._inductor import config",
        "from lightning.pytorch.utilities.model_helpers import _restricted_classmethod",
        "import torch._dynamo",
        "torch._foreach_mul_(a, b)",
        "trainer._checkpoint_connector",
        'getattr(optimizer, "_step_supports_amp_scaling")',
        "layer._forward_hooks",
    ],
)
def test_private_name_is_found(line: str) -> None:
    assert list(private_names(ast.parse(line)))


@pytest.mark.parametrize("line", ["self._modules", "policy._forward_learn", "import torch.nn", "torch.__version__"])
def test_other_name_is_not_found(line: str) -> None:
    assert not list(private_names(ast.parse(line)))


@pytest.mark.parametrize("missing", ["ADAM", "ENGINE", "UNSCALE"])
def test_names_that_save_time_change_no_weight(
    missing: str, make_trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = []
    for value in (getattr(private_api, missing), None):
        monkeypatch.setattr(private_api, missing, value)
        torch.manual_seed(0)
        policy, data = make_policy("dqn"), make_datamodule("dqn", max_train_iter=8, seed=0)
        make_trainer(limit_val_batches=0).fit(policy, data)
        ends.append(dict(policy.state_dict()))
    torch.testing.assert_close(*ends, rtol=0, atol=0)


@pytest.mark.parametrize("has_name", [True, False])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_value_that_is_not_finite_is_found(has_name: bool, bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_name:
        monkeypatch.setattr(private_api, "UNSCALE", None)
    good, found = [torch.ones(2), torch.zeros(3, 2)], torch.zeros(())
    assert private_api.note_non_finite(good, found).item() == 0
    assert private_api.note_non_finite([*good, torch.tensor([1.0, bad])], found).item() == 1
    assert private_api.note_non_finite(good, found).item() == 1  # it stays


class Names(nn.Module):
    """A network with a buffer, a shared layer and layers in layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.below: Any = nn.Sequential(nn.BatchNorm1d(3), nn.Sequential(nn.Linear(3, 3), self.first))


def replace_layer(module: Names) -> None:
    module.below[1][0] = nn.Linear(3, 4)


def replace_weight(module: Names) -> None:
    module.first.weight = nn.Parameter(torch.ones(3, 2))


def replace_buffer(module: Names) -> None:
    module.below[0].running_mean = torch.ones(3)


def add_layer(module: Names) -> None:
    module.below[1].append(nn.Linear(1, 1))


def remove_layer(module: Names) -> None:
    del module.below[0]


def parametrise(module: Names) -> None:
    nn.utils.parametrizations.weight_norm(module.below[1][0])


@pytest.mark.parametrize(
    "change", [lambda _: None, replace_layer, replace_weight, replace_buffer, add_layer, remove_layer, parametrise]
)
def test_tensors_of_a_module_are_those_that_torch_finds(change: Callable[[Names], None]) -> None:
    module = Names()
    private_api.tensors_of(module)
    change(module)
    parameters, buffers = private_api.tensors_of(module)
    assert list(map(id, parameters)) == list(map(id, module.parameters()))
    assert list(map(id, buffers)) == list(map(id, module.buffers()))


def test_tensors_of_a_module_do_not_keep_it() -> None:
    module = Names()
    private_api.tensors_of(module)
    known = weakref.ref(module)
    del module
    gc.collect()
    assert known() is None


class Moving(DQNPolicy):
    """Counts the batches that it may change before they are moved."""

    moved = 0

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.moved += 1
        return batch


class MovingData(ReplayDataModule):
    """Counts the batches that it may change after they were moved."""

    moved = 0

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.moved += 1
        return batch


@pytest.mark.parametrize(("policy_class", "data_class"), [(Moving, ReplayDataModule), (DQNPolicy, MovingData)])
def test_hooks_of_the_transfer_of_batches_are_called(
    policy_class: Any, data_class: Any, make_trainer: Any, small: dict[str, Any]
) -> None:
    policy, data = policy_class(small), data_class("CartPole-v1", num_envs=2, max_train_iter=4)
    plain = DQNPolicy(small)
    make_trainer(limit_val_batches=0).fit(policy, data)
    assert not policy.learner.keeps_batches
    assert policy.progress.train_iter == 4
    assert max(getattr(policy, "moved", 0), getattr(data, "moved", 0)) == 4 // policy.update_per_collect
    make_trainer(limit_val_batches=0).fit(plain, ReplayDataModule("CartPole-v1", num_envs=2, max_train_iter=4))
    assert plain.learner.keeps_batches
