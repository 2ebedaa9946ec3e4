"""The policy's part of a resumed run: attributes of a subclass, changed settings, checkpoints without rank folder."""

from __future__ import annotations

import random
import threading
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning import Trainer
from lightning.pytorch import Callback
from torch import Tensor, nn

from lightning_ding.callbacks import BestCheckpoint, RunCheckpoint
from lightning_ding.config import deep_merge
from lightning_ding.datamodules import OfflineDataModule, ReplayDataModule, RolloutDataModule
from lightning_ding.datamodules.rank_state import load_own_state, save_own_state
from lightning_ding.policy import DQNPolicy, PPOPolicy
from tests.algorithms.table import ALGORITHMS, make_datamodule, make_policy
from tests.conftest import MakeTrainer

Config = dict[str, Any]
PPO = ALGORITHMS["ppo"].config


class Averages:
    """An average of the weights, in an object that has no methods for its state."""

    def __init__(self) -> None:
        self.shadow: dict[str, Tensor] = {}
        self.recent: deque[float] = deque(maxlen=3)

    def update(self, module: nn.Module) -> None:
        for name, value in module.state_dict().items():
            self.shadow[name] = 0.9 * self.shadow.get(name, torch.zeros_like(value)) + 0.1 * value
        self.recent.append(float(next(iter(self.shadow.values())).mean()))


class Curious(DQNPolicy):
    """Keeps all kinds of state in attributes, and learns from some of them."""

    scale = 1.0

    def __init__(self, cfg: Any = None, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        self.gen = torch.Generator().manual_seed(5)
        self.own_rng, self.own_random = np.random.default_rng(7), random.Random(3)
        self.ema: dict[str, Tensor] = {}
        self.averages = Averages()
        self.count, self.gain = 0, self.scale
        self.bonus = torch.zeros(2, requires_grad=True)
        self.bonus_optimizer = torch.optim.Adam([self.bonus], lr=0.1)
        self.visits = np.zeros(3)
        self.same_visits = [self.visits]
        self.names = {"model": self.model, "function": torch.sum}

    def on_train_start(self) -> None:
        super().on_train_start()
        self.late = torch.zeros(1)

    def _forward_learn(self, batch: Any) -> dict[str, Any]:
        noise = torch.rand(len(batch["reward"]), generator=self.gen) + self.own_rng.random() + self.own_random.random()
        self.count += 1
        self.late += 1
        self.same_visits[0][self.count % 3] += 1
        self.bonus_optimizer.zero_grad()
        (self.bonus * noise[:2]).sum().backward()
        self.bonus_optimizer.step()
        extra = float(self.bonus.detach().sum() + self.visits[0] + self.late) * self.gain + 0.01 * self.count
        report = super()._forward_learn({**batch, "reward": batch["reward"] + noise + extra})
        self.ema = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.averages.update(self.model)
        return report


class Stop(Callback):
    """Stops a run after some rounds."""

    def __init__(self, rounds: int | None) -> None:
        self.rounds = rounds

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        trainer.should_stop |= batch_idx + 1 == self.rounds


def fit(make_trainer: MakeTrainer, folder: Path, policy: Any, data: Any, file: Path | None = None, **flags: Any) -> Any:
    trainer = make_trainer(enable_checkpointing=True, limit_val_batches=0, callbacks=[RunCheckpoint(folder)], **flags)
    trainer.fit(policy, data, ckpt_path=file)
    return policy


def replay(max_env_step: int, **arguments: Any) -> ReplayDataModule:
    return ReplayDataModule("CartPole-v1", **{"num_envs": 2, "seed": 3, "max_env_step": max_env_step, **arguments})


def seeded(policy_class: Any, config: Config) -> Any:
    torch.manual_seed(0)
    return policy_class(config)


def offline(**arguments: Any) -> OfflineDataModule:
    rng = np.random.default_rng(0)
    steps = {
        "obs": rng.normal(size=(40, 4)).astype(np.float32),
        "action": rng.integers(0, 2, 40),
        "reward": np.ones(40),
    }
    ends = {"terminated": np.arange(40) % 10 == 9, "truncated": np.zeros(40, dtype=bool)}
    return OfflineDataModule({**steps, **ends}, **arguments)


def bits(policy: Any) -> dict[str, Any]:
    """Return what the run of a Curious policy ended with, as comparable builtins."""
    shadow = {name: value.tolist() for name, value in policy.averages.shadow.items()}
    return {
        "weights": {name: value.tolist() for name, value in policy.state_dict().items()},
        "ema": {name: value.tolist() for name, value in policy.ema.items()},
        "averages": (shadow, list(policy.averages.recent), policy.averages.recent.maxlen),
        "numbers": (policy.count, policy.late.tolist(), policy.bonus.tolist(), policy.visits.tolist()),
        "generators": (policy.gen.get_state().tolist(), policy.own_rng.random(), policy.own_random.random()),
    }


def fit_rounds(make_trainer: MakeTrainer, folder: Path, policy: Any, kind: str, stop: int | None, file: Any) -> Any:
    """Make 12 rounds of training, or stop after some, or resume."""
    data: Any = replay(1000, rounds_per_epoch=12) if kind == "replay" else offline(rounds_per_epoch=12)
    callbacks = [RunCheckpoint(folder), Stop(stop)]
    trainer = make_trainer(enable_checkpointing=True, limit_val_batches=0, max_epochs=1, callbacks=callbacks)
    trainer.fit(policy, data, ckpt_path=file)
    return policy


@pytest.mark.parametrize("kind", ["replay", "offline"])
def test_run_of_a_subclass_with_attributes_of_its_own_resumes_exactly(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    straight = fit_rounds(make_trainer, tmp_path / "straight", seeded(Curious, small), kind, None, None)
    fit_rounds(make_trainer, tmp_path / "half", seeded(Curious, small), kind, 5, None)
    torch.manual_seed(9)
    resumed = fit_rounds(make_trainer, tmp_path / "half", Curious(small), kind, None, tmp_path / "half" / "last.ckpt")
    assert bits(resumed) == bits(straight)
    assert resumed.same_visits[0] is resumed.visits
    assert resumed.bonus_optimizer.param_groups[0]["params"][0] is resumed.bonus
    assert not [line for line in caplog.messages if "differently" in line]


def test_other_ranks_save_and_restore_their_attributes_in_their_folders(small: Config, tmp_path: Path) -> None:
    config = deep_merge(small, {"model": {"obs_shape": 4, "action_shape": 2}})
    policy, first, other = Curious(config), Curious(config), Curious(config)
    for one in (policy, first, other):
        one.learner.own_state.begin()
    policy.count, policy.late = 7, torch.ones(2)
    torch.rand(3, generator=policy.gen)
    for is_zero, loaded in ((True, first), (False, other)):
        folder = tmp_path / str(is_zero)
        folder.mkdir()
        save_own_state(policy, SimpleNamespace(is_global_zero=is_zero), folder)  # type: ignore[arg-type]
        load_own_state(loaded, folder)
    assert (first.count, hasattr(first, "late")) == (0, False)
    assert (other.count, other.late.tolist()) == (7, [1, 1])
    assert torch.rand(1, generator=other.gen) == torch.rand(1, generator=policy.gen)


def test_attribute_that_only_rank_zero_has_changed_is_not_changed_on_other_ranks(small: Config, tmp_path: Path) -> None:
    config = deep_merge(small, {"model": {"obs_shape": 4, "action_shape": 2}})
    zero, one, resumed, constant = (Curious(config) for _ in range(4))
    for policy in (zero, one, resumed):
        policy.learner.own_state.begin()
    zero.count, zero.visits[0], one.visits[1] = 5, 1, 2
    constant.gain = 3.0  # as its code makes it in the second run
    save_own_state(one, SimpleNamespace(is_global_zero=False), tmp_path)  # type: ignore[arg-type]
    for policy in (resumed, constant):
        policy.learner.own_state.load(zero.learner.own_state.state())
        load_own_state(policy, tmp_path)
        assert (policy.count, policy.visits.tolist()) == (0, [0, 2, 0])
    assert (resumed.gain, constant.gain) == (1.0, 3.0)


def test_attribute_that_is_set_after_loading_a_checkpoint_counts_in_the_next_fit(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    fit(make_trainer, tmp_path, Curious(small), replay(60))
    policy = Curious.load_from_checkpoint(tmp_path / "last.ckpt")
    assert policy.count > 10
    policy.count, policy.gain = 0, 0.5
    make_trainer(limit_val_batches=0, max_epochs=1).fit(policy, replay(100, rounds_per_epoch=3))
    assert (policy.count, policy.gain) == (3 * small["learn"]["update_per_collect"], 0.5)


def test_checkpoint_alone_gives_the_attributes_of_a_subclass(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    policy = fit(make_trainer, tmp_path, seeded(Curious, small), replay(60))
    loaded = Curious.load_from_checkpoint(tmp_path / "last.ckpt")
    assert bits(loaded) == bits(policy)


def test_constant_that_the_code_has_changed_has_its_new_value(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(make_trainer, tmp_path, Curious(small), replay(60))
    monkeypatch.setattr(Curious, "scale", 2.0)
    resumed = fit(make_trainer, tmp_path, Curious(small), replay(100), tmp_path / "last.ckpt")
    assert resumed.gain == 2.0
    assert resumed.count > 20


class Locked(DQNPolicy):
    """Has an attribute that cannot be saved."""

    def __init__(self, cfg: Any = None, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        self.lock = threading.Lock()
        self.numbers: list[int] = []


def test_attribute_that_cannot_be_saved_is_reported_at_the_start_and_after_resuming(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fit(make_trainer, tmp_path, Locked(small), replay(60))
    start = "the checkpoints of this run will not contain everything that its policy depends on"
    resumed = "this run may continue differently, because the checkpoint does not contain everything that the policy"
    assert [caplog.text.count(text) for text in (start, resumed, "Locked.lock is a _thread.lock")] == [1, 0, 1]
    caplog.clear()
    fit(make_trainer, tmp_path, Locked(small), replay(100), tmp_path / "last.ckpt")
    assert [caplog.text.count(text) for text in (start, resumed, "Locked.lock is a _thread.lock")] == [1, 1, 2]


def test_attribute_that_shares_an_object_with_one_that_cannot_be_saved_is_saved(small: Config) -> None:
    config = deep_merge(small, {"model": {"obs_shape": 4, "action_shape": 2}})
    policy, loaded = Locked(config), Locked(config)
    policy.learner.own_state.begin()
    numbers = [1, 2]
    policy.lock = [numbers, threading.Lock()]  # type: ignore[assignment]
    policy.numbers = numbers
    loaded.learner.own_state.load(policy.learner.own_state.state())
    assert loaded.learner.own_state.restore() == ["Locked.lock[1] is a _thread.lock"]
    assert loaded.numbers == [1, 2]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithms_of_this_package_keep_no_other_state_in_attributes(make_trainer: MakeTrainer, name: str) -> None:
    policy = make_policy(name)
    make_trainer(limit_val_batches=0, max_epochs=1).fit(policy, make_datamodule(name, rounds_per_epoch=3))
    assert policy.learner.own_state.state() == {"attributes": {}, "deleted": [], "missing": []}


# ---------------------------------------------------------------------- without the folder of the ranks


@pytest.mark.parametrize("name", ["ppo", "trpo", "a2c", "pqn", "pg", "recurrent_ppo"])
def test_on_policy_run_resumed_without_its_rank_folder_says_what_it_lacks(
    make_trainer: MakeTrainer, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    best = BestCheckpoint(tmp_path)
    trainer = make_trainer(enable_checkpointing=True, callbacks=[best])
    trainer.fit(make_policy(name), make_datamodule(name, max_env_step=32, rounds_per_epoch=1))
    caplog.clear()
    file = tmp_path / "best.ckpt"
    resumed = fit(make_trainer, tmp_path, make_policy(name), make_datamodule(name, max_env_step=200), file)
    text = f"{file} contains no state of envs and random number generators: continuing with new episodes and new random"
    assert caplog.text.count(text) == 1
    assert resumed.progress.env_step >= 200


class OtherData(RolloutDataModule):
    """A datamodule whose state no checkpoint of a RolloutDataModule has."""


def test_run_resumed_with_a_datamodule_of_another_class_says_what_it_lacks(
    make_trainer: MakeTrainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fit(make_trainer, tmp_path, PPOPolicy(PPO), RolloutDataModule("CartPole-v1", 2, max_env_step=32))
    caplog.clear()
    data = OtherData("CartPole-v1", 2, max_env_step=64)
    fit(make_trainer, tmp_path, PPOPolicy(PPO), data, tmp_path / "last.ckpt")
    assert caplog.text.count("contains no state of envs and random number generators") == 1


# ---------------------------------------------------------------------- settings that have changed

CHANGES: dict[str, tuple[Config, str, Any, str]] = {
    "lr": ({"learning_rate": 0.5}, "lr", 0.5, "lr 0.5, not 0.001"),
    "weight_decay": ({"optimizer": {"weight_decay": 0.1}}, "weight_decay", 0.1, "weight_decay 0.1, not 0.0"),
    "betas": ({"optimizer": {"betas": [0.8, 0.9]}}, "betas", (0.8, 0.9), "betas (0.8, 0.9), not (0.9, 0.999)"),
    "eps": ({"optimizer": {"eps": 1e-5}}, "eps", 1e-5, "eps 1e-05, not 1e-08"),
    "adamw": ({"optimizer": {"type": "adamw"}}, "decoupled_weight_decay", True, "type AdamW, not Adam"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_settings_of_optimizers_that_the_user_changes_are_used_and_reported(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    change, key, expected, text = CHANGES[name]
    fit(make_trainer, tmp_path, DQNPolicy(small), replay(60))
    other = deep_merge(small, {"learn": change})
    policy = fit(make_trainer, tmp_path, DQNPolicy(other), replay(76), tmp_path / "last.ckpt")
    (group,) = policy.updater.optimizers[0].param_groups
    assert group[key] == expected
    (line,) = [line for line in caplog.messages if line.startswith("optimizer 0")]
    assert line.startswith("optimizer 0 uses the settings of this run: ")
    assert text in line
    assert policy.updater.optimizers[0].state  # the moments continue
    caplog.clear()
    fit(make_trainer, tmp_path, DQNPolicy(other), replay(92), tmp_path / "last.ckpt")
    assert "optimizer 0" not in caplog.text


def test_momentum_that_the_user_changes_is_used(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = deep_merge(small, {"learn": {"optimizer": {"type": "sgd", "momentum": 0.5}}})
    fit(make_trainer, tmp_path, DQNPolicy(before), replay(60))
    other = deep_merge(before, {"learn": {"optimizer": {"momentum": 0.9}}})
    policy = fit(make_trainer, tmp_path, DQNPolicy(other), replay(76), tmp_path / "last.ckpt")
    assert policy.updater.optimizers[0].param_groups[0]["momentum"] == 0.9
    assert "optimizer 0 uses the settings of this run: momentum 0.9, not 0.5 of the checkpoint" in caplog.text


def test_optimizer_of_another_type_begins_without_state_and_says_so(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fit(make_trainer, tmp_path, DQNPolicy(small), replay(60))
    other = deep_merge(small, {"learn": {"optimizer": {"type": "rmsprop", "momentum": 0.5}}})
    policy = fit(make_trainer, tmp_path, DQNPolicy(other), replay(76), tmp_path / "last.ckpt")
    optimizer = policy.updater.optimizers[0]
    assert (optimizer.param_groups[0]["momentum"], optimizer.param_groups[0]["alpha"]) == (0.5, 0.99)
    assert "optimizer 0 begins with the settings of this run and no state, because it is of type RMSprop" in caplog.text


class Halving(Callback):
    """Changes the learning rate in training."""

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        pl_module.updater.optimizers[0].param_groups[0]["lr"] *= 0.5


def test_learning_rate_that_training_changed_continues_silently(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(
        enable_checkpointing=True, limit_val_batches=0, callbacks=[RunCheckpoint(tmp_path), Halving()]
    )
    halved = DQNPolicy(small)
    trainer.fit(halved, replay(60))
    resumed = fit(make_trainer, tmp_path, DQNPolicy(small), replay(76), tmp_path / "last.ckpt")
    assert resumed.cur_lr() == halved.cur_lr() < 1e-3
    assert "optimizer 0" not in caplog.text


class Scheduled(DQNPolicy):
    """Has a scheduler of torch."""

    def configure_optimizers(self) -> Any:
        (optimizer,) = self.updater.made[0]
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 4), "interval": "step"}]


def test_learning_rate_of_a_scheduler_continues_and_the_run_says_so(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fit(make_trainer, tmp_path, Scheduled(small), replay(60))
    other = deep_merge(small, {"learn": {"learning_rate": 0.5}})
    resumed = fit(make_trainer, tmp_path, Scheduled(other), replay(76), tmp_path / "last.ckpt")
    assert resumed.cur_lr() < 1e-3
    text = "optimizer 0 continues with those of the checkpoint, because a scheduler of configure_optimizers continues"
    assert f"{text} from it: lr 0.001, not 0.5 of this run" in caplog.text


def test_settings_of_a_checkpoint_of_an_older_version_are_used_and_reported(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(enable_checkpointing=True, limit_val_batches=0)
    trainer.fit(DQNPolicy(small), replay(60))
    trainer.save_checkpoint(tmp_path / "older.ckpt")
    content = torch.load(tmp_path / "older.ckpt", weights_only=True)
    del content["optimizer_settings"], content["own_state"]
    torch.save(content, tmp_path / "older.ckpt")
    other = deep_merge(small, {"learn": {"learning_rate": 0.5, "optimizer": {"weight_decay": 0.1}}})
    policy = fit(make_trainer, tmp_path, DQNPolicy(other), replay(76), tmp_path / "older.ckpt")
    assert policy.cur_lr() == 0.001
    text = (
        "continues with those of the checkpoint, because an older version wrote it: lr 0.001, not 0.5; weight_decay 0.0"
    )
    assert f"optimizer 0 {text}, not 0.1 of this run" in caplog.text


def test_checkpoint_that_was_written_without_a_fit_is_resumed_with_the_settings_of_the_run(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = make_trainer(limit_val_batches=1)
    trainer.validate(DQNPolicy(small), replay(60))
    trainer.save_checkpoint(tmp_path / "validated.ckpt")
    policy = fit(make_trainer, tmp_path, DQNPolicy(small), replay(60), tmp_path / "validated.ckpt")
    assert (policy.progress.env_step, policy.cur_lr()) == (64, 0.001)
    assert "optimizer 0" not in caplog.text


class AtStart(Callback):
    """Notes the state of the exploration and the buffer that a run starts with."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if not hasattr(self, "count"):
            self.exploration = pl_module.rng.bit_generator.state
            self.count = trainer.datamodule.buffer.count()  # type: ignore[attr-defined]


def test_changed_seed_is_used_and_reported(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fit(make_trainer, tmp_path, DQNPolicy(small), replay(60))
    starts = []
    for seed in (3, 4):
        start = AtStart()
        trainer = make_trainer(limit_val_batches=0, callbacks=[start])
        trainer.fit(DQNPolicy(small), replay(76, seed=seed), ckpt_path=tmp_path / "last.ckpt")
        starts.append(start)
        text = "was written with seed 3 and is resumed with 4: weights, counters and buffers continue, in new episodes"
        assert caplog.text.count(text) == (seed == 4)
    assert starts[0].exploration != starts[1].exploration
    assert starts[0].count == starts[1].count > 60


def test_seed_of_the_process_has_no_effect_and_the_run_says_so(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "1")
    fit(make_trainer, tmp_path, DQNPolicy(small), replay(60))
    for seed in ("1", "2"):
        monkeypatch.setenv("PL_GLOBAL_SEED", seed)
        make_trainer(limit_val_batches=0).fit(DQNPolicy(small), replay(76), ckpt_path=tmp_path / "last.ckpt")
        assert caplog.text.count("seed_everything 2 has no effect, because the random numbers of") == (seed == "2")


REFUSED: dict[str, tuple[Config, Config, str]] = {
    "norm_obs": ({}, {"norm_obs": True}, r"norm_obs must be False, as in the checkpoint, got True"),
    "norm_reward": ({}, {"norm_reward": True}, r"norm_reward must be False, as in the checkpoint, got True"),
    "network": (
        {"model": {"encoder_hidden_size_list": [32]}},
        {},
        r"model.encoder_hidden_size_list must be \[16\], as in the checkpoint, got \[32\]",
    ),
    "dueling": ({"model": {"dueling": True}}, {}, r"model.dueling must be False, as in the checkpoint, got True"),
    "reward model": (
        {"reward_model": {"type": "rnd"}},
        {},
        r"reward_model.type must be None, as in the checkpoint, got 'rnd'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_setting_for_which_the_weights_do_not_fit_is_named_in_one_line(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, name: str
) -> None:
    change, arguments, text = REFUSED[name]
    fit(make_trainer, tmp_path, DQNPolicy(small), replay(60))
    with pytest.raises(ValueError, match=f"^{text}$"):
        fit(
            make_trainer,
            tmp_path,
            DQNPolicy(deep_merge(small, change)),
            replay(76, **arguments),
            tmp_path / "last.ckpt",
        )


def test_network_of_the_user_that_differs_is_reported_in_one_line(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    fit(make_trainer, tmp_path, DQNPolicy(small), replay(60))
    other = DQNPolicy(small)
    other.add_module("extra", nn.Linear(1, 1))
    text = r"^the networks must be those of the checkpoint, but no setting differs: it has no extra.bias \(1 of 2\)$"
    with pytest.raises(ValueError, match=text):
        fit(make_trainer, tmp_path, other, replay(76), tmp_path / "last.ckpt")
