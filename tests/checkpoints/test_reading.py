"""A damaged checkpoint ends a run in one line that names the file and another checkpoint that is whole."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer

from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.checkpoints import TornCheckpointError
from lightning_ding.checkpoints.reading import _check_algorithm, class_named
from lightning_ding.config import MARK
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import C51Policy, DQNPolicy, TD3Policy, load_policy
from lightning_ding.registry import POLICY_REGISTRY
from tests.processes import run

MARKER = "code_was_run"


class Bomb:
    """Makes a file when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, (f"touch {MARKER}",)


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing run.ckpt": (lambda folder: (folder / "run.ckpt").unlink(), "run.ckpt is missing"),
    "missing rng": (lambda folder: (folder / "rank_0/rng.pt").unlink(), "rank_0/rng.pt is missing"),
    "flipped byte of the manifest": (
        lambda folder: (folder / "manifest.json").write_text(
            (folder / "manifest.json").read_text().replace('"crc32"', '"crc22"', 1)
        ),
        "manifest.json must have size and crc32 of ",
    ),
    "missing manifest": (lambda folder: (folder / "manifest.json").unlink(), "has no manifest.json"),
    "truncated": (lambda folder: os.truncate(folder / "rank_0/buffer.safetensors", 100), "has 100 bytes, and had"),
    "flipped byte": (lambda folder: flip(folder / "rank_0/buffer.safetensors"), "has changed since it was written"),
    "pickle": (lambda folder: (folder / "run.ckpt").write_bytes(pickle.dumps(Bomb())), "bytes, and had"),
}


def fit(make_trainer: Any, small: Any, folder: Path, file: Any, budget: int, policy: Any = DQNPolicy) -> Trainer:
    datamodule = ReplayDataModule("CartPole-v1", num_envs=2, seed=3, max_env_step=budget, rounds_per_epoch=3)
    trainer: Trainer = make_trainer(enable_checkpointing=True, callbacks=[RunCheckpoint(folder, keep_last=2)])
    trainer.fit(policy(small), datamodule, ckpt_path=file)
    return trainer


@pytest.fixture
def saved(make_trainer: Any, small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the newer of two checkpoints of a run."""
    monkeypatch.chdir(tmp_path)
    fit(make_trainer, small, tmp_path / "run", None, 100)
    return max((tmp_path / "run").glob("last-*"), key=lambda one: int(one.name.split("-")[1]))


def test_every_damage_ends_in_one_line_that_names_the_file_and_a_whole_checkpoint(
    make_trainer: Any, small: Any, saved: Path
) -> None:
    older = min(saved.parent.glob("last-*"), key=lambda one: int(one.name.split("-")[1]))
    for damage, said in DAMAGES.values():
        copied = saved.parents[1] / "copied"
        shutil.rmtree(copied, ignore_errors=True)
        shutil.copytree(saved.parent, copied)
        damage(copied / saved.name)
        with pytest.raises(TornCheckpointError) as caught:
            fit(make_trainer, small, copied, copied / saved.name / "run.ckpt", 110)
        text = str(caught.value)
        assert said in text
        assert text.endswith(f"; {copied / older.name / 'run.ckpt'} is whole")
        assert "\n" not in text
    assert not Path(MARKER).exists()


def test_flipped_bit_of_a_weight_is_found_in_a_checkpoint_without_a_manifest(
    make_trainer: Any, small: Any, saved: Path
) -> None:
    file = Path(shutil.copy(saved / "run.ckpt", saved.parent / "best.ckpt"))
    weights = torch.load(file, weights_only=True)["state_dict"]
    stored = max(weights.values(), key=torch.Tensor.numel).numpy().tobytes()
    data = bytearray(file.read_bytes())
    data[data.index(stored) + len(stored) // 2] ^= 1
    file.write_bytes(data)
    assert torch.load(file, weights_only=True)  # torch does not notice

    with pytest.raises(TornCheckpointError, match=r"best.ckpt has changed .*: its entry .*; .*run.ckpt is whole$"):
        fit(make_trainer, small, saved.parent, file, 110)
    with pytest.raises(TornCheckpointError, match=r"best.ckpt has changed since it was written: its entry"):
        load_policy(file)


@pytest.mark.parametrize("is_torch", [True, False])
def test_pickle_that_could_run_code_is_refused_without_torch_s_advice(
    make_trainer: Any, small: Any, saved: Path, is_torch: bool
) -> None:
    file = saved.parent / "best.ckpt"
    if is_torch:
        torch.save({"state_dict": {}, "bomb": Bomb()}, file)
    else:
        file.write_bytes(pickle.dumps(Bomb()))

    with pytest.raises(TornCheckpointError, match=r"best.ckpt is refused, because it contains .*run.ckpt is whole$"):
        fit(make_trainer, small, saved.parent, file, 110)
    assert not Path(MARKER).exists()


def test_checkpoint_of_another_algorithm_is_refused(make_trainer: Any, small: Any, saved: Path) -> None:
    said = r"run.ckpt must be a checkpoint of C51Policy, got one of DQNPolicy; there is no other whole checkpoint in"
    with pytest.raises(ValueError, match=said):
        fit(make_trainer, small, saved.parent, saved / "run.ckpt", 110, C51Policy)


def test_newest_whole_checkpoint_is_found_after_damage(make_trainer: Any, small: Any, saved: Path) -> None:
    flip(saved / "run.ckpt")
    trainer = fit(make_trainer, small, saved.parent, "last", 110)
    assert saved.name not in str(trainer.ckpt_path)


FEW_POLICIES = """
import sys
from lightning_ding.checkpoints.reading import _check_algorithm, class_named
from lightning_ding.config import MARK
from lightning_ding.entry.lightning_cli import make_run
assert class_named("SACPolicy").__module__ == "lightning_ding.policy.sac"
make_run(["--policy", "sac", "--data.env_id", "Pendulum-v1", "--trainer.accelerator", "cpu"])
assert "lightning_ding.policy.tqc" not in sys.modules
assert class_named("TQCPolicies") is class_named("Policy") is class_named("") is None
assert "lightning_ding.policy.tqc" in sys.modules
"""


def test_the_policy_of_a_checkpoint_and_that_of_a_run_are_imported_without_the_others() -> None:
    run("-c", FEW_POLICIES)


def test_every_registered_policy_is_found_by_the_name_of_its_class() -> None:
    policies = [POLICY_REGISTRY.get(name) for name in POLICY_REGISTRY]
    assert [one for one in policies if class_named(one.__name__) is not one] == []


def test_a_class_of_the_user_hides_one_of_the_package_that_was_not_imported(tmp_path: Path) -> None:
    program = """
from lightning_ding.checkpoints.reading import class_named
from lightning_ding.policy import DQNPolicy
from lightning_ding.registry import POLICY_REGISTRY
own = POLICY_REGISTRY.register("my_own_sac")(type("SACPolicy", (DQNPolicy,), {}))
assert class_named("SACPolicy") is own
"""
    run("-c", program, folder=tmp_path)


def test_a_registered_class_of_the_user_hides_that_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    content = {"hyper_parameters": {"cfg": {MARK: "C51PolicyDict"}}}
    own: type = type("C51Policy", (DQNPolicy,), {})
    monkeypatch.setattr(POLICY_REGISTRY, "_entries", {**POLICY_REGISTRY._entries, "a_c51": own})
    assert class_named("C51Policy") is own
    assert class_named("DQNPolicy") is DQNPolicy
    assert _check_algorithm(Path("last.ckpt"), content, own) is None  # type: ignore[func-returns-value]
    with pytest.raises(ValueError, match="must be a checkpoint of TD3Policy, got one of C51Policy"):
        _check_algorithm(Path("last.ckpt"), content, TD3Policy)
