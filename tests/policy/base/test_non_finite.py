"""Updates whose loss or gradient is NaN or infinite: how they are handled, and how they are reproduced."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning import Trainer
from torch import Tensor, nn

from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
from lightning_ding.datamodules.replay_round import ReplayRound
from lightning_ding.policy import DQNPolicy, NonFiniteError, PPOPolicy, SACPolicy, create_policy, load_dump
from lightning_ding.policy.base import non_finite
from lightning_ding.policy.base.non_finite import NonFiniteGuard
from lightning_ding.worker import AdvancedReplayBuffer
from tests.conftest import MakeTrainer

Config = dict[str, Any]
NAN, INF = math.nan, math.inf
MODEL: Config = {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [16]}
CONFIGS: dict[str, Config] = {
    "dqn": {"model": MODEL | {"dueling": False}},
    "rainbow": {"model": MODEL | {"n_atom": 11}, "nstep": 1, "priority": False, "priority_IS_weight": False},
    "sac": {"model": MODEL},
    "td3": {"model": MODEL, "learn": {"actor_update_freq": 1}},
    "ppo": {"model": MODEL | {"action_space": "discrete"}, "learn": {"batch_size": 4, "epoch_per_collect": 2}},
}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make(name: str, mode: str = "raise", **changes: Any) -> Any:
    torch.manual_seed(0)
    policy = create_policy({"type": name, "on_non_finite": mode, **CONFIGS[name], **changes})
    policy.seed(0)
    return policy


def batch_for(name: str, seed: int = 0, size: int = 8) -> Config:
    rng = np.random.default_rng(seed)
    batch: Config = {key: torch.from_numpy(rng.normal(size=(size, 4))).float() for key in ("obs", "next_obs")}
    batch |= {"reward": torch.from_numpy(rng.normal(size=size)).float(), "action": torch.arange(size) % 2}
    batch |= {key: torch.zeros(size, dtype=torch.bool) for key in ("terminated", "truncated")}
    if name in ("sac", "td3"):
        batch["action"] = torch.from_numpy(rng.uniform(-1, 1, (size, 2))).float()
    if name == "ppo":
        batch["log_prob"] = torch.full((size,), 0.5).log()
        batch |= {key: torch.zeros(size, dtype=torch.long) for key in ("env_id", "episode_id")}
    return batch


def with_bad(batch: Config, name: str, value: float) -> Config:
    """Return a copy of a batch with one bad number in a column."""
    column = batch[name].clone()
    column.view(-1)[3] = value
    return {**batch, name: column}


def state_of(policy: Any) -> list[Tensor]:
    """Return copies of all weights, targets, and optimizer states."""
    of_optimizers = [
        tensor for one in policy.updater.optimizers for state in one.state.values() for tensor in state.values()
    ]
    return [tensor.clone() for tensor in (*policy.state_dict().values(), *of_optimizers)]


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def learn_often(policy: Any, batch: Config, times: int) -> None:
    for _ in range(times):
        policy.learn_mode.forward(batch)


def trained(name: str, mode: str = "raise", updates: int = 3, **changes: Any) -> Any:
    policy = make(name, mode, **changes)
    for number in range(updates):
        policy.learn_mode.forward(batch_for(name, number))
    return policy


BAD = pytest.mark.parametrize(
    ("name", "column", "value"),
    [
        ("dqn", "reward", NAN),
        ("dqn", "reward", INF),
        ("dqn", "obs", NAN),
        ("dqn", "next_obs", -INF),
        ("rainbow", "reward", NAN),
        ("sac", "action", NAN),
        ("sac", "reward", INF),
        ("td3", "obs", NAN),
    ],
)


@BAD
def test_an_update_of_something_that_is_not_finite_raises_and_is_not_made(name: str, column: str, value: float) -> None:
    policy = trained(name)
    before = state_of(policy)
    with pytest.raises(NonFiniteError) as caught:
        policy.learn_mode.forward(with_bad(batch_for(name), column, value))
    assert equal(state_of(policy), before)
    assert caught.value.update == policy.progress.train_iter == 3


@BAD
def test_an_update_that_is_skipped_changes_no_weight_and_no_optimizer(name: str, column: str, value: float) -> None:
    policy = trained(name, "skip_update")
    learner = policy.model.critic if name in ("sac", "td3") else policy.model  # the actor sees no rewards
    optimizer = policy.updater.optimizers[0]

    def state() -> list[Tensor]:
        moments = [tensor for one in optimizer.state.values() for tensor in one.values()]
        return [tensor.clone() for tensor in (*learner.state_dict().values(), *moments)]

    before = state()
    policy.learn_mode.forward(with_bad(batch_for(name), column, value))
    assert equal(state(), before)
    assert policy.progress.train_iter == 4
    assert policy.updater.guard.skipped_updates >= 1
    policy.learn_mode.forward(batch_for(name))
    assert not equal(state(), before)


def test_skipped_update_has_no_effect_on_later_updates() -> None:
    one, other = trained("dqn", "skip_update"), trained("dqn")
    one.learn_mode.forward(with_bad(batch_for("dqn"), "reward", NAN))
    for policy in (one, other):
        policy.learn_mode.forward(batch_for("dqn", 7))
    assert equal(state_of(one), state_of(other))


def test_a_warning_makes_the_update_nevertheless(caplog: pytest.LogCaptureFixture) -> None:
    policy = trained("dqn", "warn")
    policy.learn_mode.forward(with_bad(batch_for("dqn"), "reward", NAN))
    assert all(torch.isnan(weight).any() for weight in policy.model.parameters())
    assert policy.updater.guard.skipped_updates == 0
    (record,) = caplog.records
    assert "the optimizer step was taken" in record.getMessage()


class Rooted(nn.Module):
    """Action values to which the root of a parameter adds, whose gradient at 0 is infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.root = nn.Parameter(torch.ones(1))

    def forward(self, obs: Tensor) -> dict[str, Tensor]:
        return {"logit": self.linear(obs) + self.root.sqrt()}


@pytest.mark.parametrize("mode", ["raise", "skip_update", "warn"])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_gradient_that_is_not_finite_is_seen_where_the_loss_is(mode: str, clip: float | None) -> None:
    torch.manual_seed(0)
    policy: Any = DQNPolicy({"on_non_finite": mode, "learn": {"grad_clip_norm": clip}}, model=Rooted())
    policy.learn_mode.forward(batch_for("dqn"))
    policy.model.root.data.zero_()
    before = state_of(policy)
    if mode == "raise":
        with pytest.raises(NonFiniteError, match=r"norm of its gradient inf, first in model\.root") as caught:
            policy.learn_mode.forward(batch_for("dqn"))
        assert math.isfinite(caught.value.loss)
        assert caught.value.parameter == "model.root"
    else:
        policy.learn_mode.forward(batch_for("dqn"))
    assert equal(state_of(policy), before) == (mode != "warn")


def test_the_error_says_which_loss_and_update_and_where_the_rest_lies(tmp_path: Path) -> None:
    policy = trained("sac", updates=2)
    with pytest.raises(NonFiniteError) as caught:
        policy.learn_mode.forward(with_bad(batch_for("sac"), "reward", NAN))
    folder = tmp_path / "non_finite" / "update_2_rank_0"
    assert str(caught.value) == (
        "update 2: the loss (critic_loss) of optimizer 0 is nan, the norm of its gradient nan, first in "
        f"{caught.value.parameter}; the optimizer step was skipped; files that reproduce it are in {folder}, see "
        "lightning_ding.policy.load_dump"
    )
    assert str(caught.value.parameter).startswith("model.critic.")
    assert caught.value.folder == folder
    assert sorted(file.name for file in folder.iterdir()) == ["batch.safetensors", "message.txt", "state.pt"]


def test_a_loss_that_a_user_optimises_by_hand_is_seen_too() -> None:
    policy = trained("dqn")
    before = state_of(policy)
    with pytest.raises(NonFiniteError, match="the loss of optimizer 0 is nan") as caught:
        policy.updater.step(sum(weight.sum() for weight in policy.model.parameters()) * NAN)
    assert equal(state_of(policy), before)
    with pytest.raises(ValueError, match="batch must be that of a learn_mode"):
        load_dump(caught.value.folder).repeat()  # type: ignore[arg-type]


def test_an_option_that_is_unknown_is_refused() -> None:
    with pytest.raises(TypeError, match="on_non_finite"):
        make("dqn", "ignore")
    with pytest.raises(ValueError, match="on_non_finite must be one of raise, warn, skip_update, got 'ignore'"):
        NonFiniteGuard(make("dqn"), "ignore")  # type: ignore[arg-type]


# ------------------------------------------------------------------ skipping


def test_a_hundred_skipped_in_a_row_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, bad = make("dqn", "skip_update"), with_bad(batch_for("dqn"), "reward", NAN)
    for _ in range(99):
        policy.learn_mode.forward(bad)
    with pytest.raises(NonFiniteError, match="the 99 updates before it were not finite either"):
        policy.learn_mode.forward(bad)


def test_finite_update_resets_the_count_of_consecutive_skips() -> None:
    policy, bad = make("dqn", "skip_update"), with_bad(batch_for("dqn"), "reward", NAN)
    for number in range(199):
        policy.learn_mode.forward(batch_for("dqn") if number == 99 else bad)
    assert policy.updater.guard.skipped_updates == 198


def test_resumed_run_continues_the_count_of_skipped_updates() -> None:
    first, bad = make("dqn", "skip_update"), with_bad(batch_for("dqn"), "reward", NAN)
    for _ in range(60):
        first.learn_mode.forward(bad)
    checkpoint: Config = {}
    first.on_save_checkpoint(checkpoint)
    second = make("dqn", "skip_update")
    second.on_load_checkpoint(checkpoint)
    assert second.updater.guard.skipped_updates == 60
    for _ in range(39):
        second.learn_mode.forward(bad)
    with pytest.raises(NonFiniteError, match="the 99 updates before it were not finite either"):
        second.learn_mode.forward(bad)


def test_skipping_is_counted_for_each_optimizer() -> None:
    policy = make("sac", "skip_update")
    actor_loss = policy.actor_loss

    def bad(batch: Any) -> Any:
        loss, report = actor_loss(batch)
        return loss * NAN, report

    policy.actor_loss = bad
    with pytest.raises(NonFiniteError, match="of optimizer 1 is nan"):  # though the critics and the temperature learn
        learn_often(policy, batch_for("sac"), 100)
    assert policy.progress.train_iter == 99


def test_warnings_and_dumps_do_not_flood(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    policy, bad = make("dqn", "skip_update"), with_bad(batch_for("dqn"), "reward", NAN)
    for _ in range(99):
        policy.learn_mode.forward(bad)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["update 0", "update 9"]
    assert [folder.name for folder in (tmp_path / "non_finite").iterdir()] == ["update_0_rank_0"]


def test_the_temperature_is_skipped_by_itself() -> None:
    policy = trained("sac", "skip_update")
    actor_loss = policy.actor_loss
    policy.actor_loss = lambda batch: (lambda loss, report: (loss, report | {"log_prob": report["log_prob"] * NAN}))(*actor_loss(batch))  # fmt: skip  # noqa: E501
    before, critic = policy.temperature.clone(), next(policy.model.critic.parameters()).clone()
    policy.learn_mode.forward(batch_for("sac"))
    assert torch.equal(policy.temperature, before)
    assert not torch.equal(next(policy.model.critic.parameters()), critic)
    assert policy.updater.guard.skipped_updates == 1


def test_a_prioritised_buffer_keeps_the_priorities_of_a_skipped_update() -> None:
    policy = make("dqn", "skip_update", priority=True)
    buffer = AdvancedReplayBuffer({"replay_buffer_size": 8}, seed=0)
    buffer.push({**batch_for("dqn"), "priority": np.arange(8.0)})
    before = buffer._priority.copy()
    bad_round = ReplayRound(buffer, 2, 8, 0, {})
    process = policy._forward_learn
    policy._forward_learn = lambda batch: process(with_bad(batch, "reward", NAN))
    policy.training_step(bad_round, 0)
    assert policy.updater.guard.skipped_updates == 2
    assert np.array_equal(buffer._priority, before)
    policy._forward_learn = process
    policy.training_step(ReplayRound(buffer, 2, 8, 2, {}), 0)
    assert not np.array_equal(buffer._priority, before)


# ------------------------------------------------------------------ rollouts


def test_a_rollout_with_a_bad_reward_skips_the_minibatches_that_it_reaches() -> None:
    policy = trained("ppo", "skip_update", updates=1, learn={"batch_size": 4, "epoch_per_collect": 2, "value_norm": True})  # fmt: skip  # noqa: E501
    before = state_of(policy)
    policy.learn_mode.forward(with_bad(batch_for("ppo"), "reward", NAN))  # the last ones of the sequence are fine
    assert policy.updater.guard.skipped_updates >= 2
    assert all(torch.isfinite(tensor).all() for tensor in state_of(policy))
    assert policy.progress.train_iter == 2 * 2 * 2
    assert len(before) == len(state_of(policy))


def test_running_statistics_of_returns_leave_out_what_is_not_finite() -> None:
    policy = make("ppo", "skip_update", learn={"value_norm": True, "epoch_per_collect": 1})
    policy.learn_mode.forward(with_bad(batch_for("ppo"), "reward", NAN))
    assert policy.return_statistics.count == 4  # steps 4 to 7: a bad reward reaches back only
    assert torch.isfinite(policy.return_statistics.root_mean_square)


def test_a_skipped_minibatch_does_not_switch_off_the_limit_of_the_divergence() -> None:
    policy = make("ppo", "skip_update", learn={"target_kl": 0.1, "batch_size": 4})
    nan, large, small = torch.tensor(NAN), torch.tensor(1.0), torch.tensor(0.01)
    assert policy._has_moved_far([nan, large])
    assert not policy._has_moved_far([nan, small])
    assert not policy._has_moved_far([nan, nan])


# ------------------------------------------------------------------ files that reproduce an update


def too_large(name: str) -> Config:
    """Return a batch whose loss is finite and whose gradient is not, as its squares are beyond all numbers."""
    batch = batch_for(name)
    return {**batch, "obs": batch["obs"] * 1e25}


@pytest.mark.parametrize("mode", ["raise", "skip_update", "warn"])
@pytest.mark.parametrize("name", ["dqn", "sac", "ppo"])
def test_a_dump_makes_the_same_update_again(name: str, mode: str, tmp_path: Path) -> None:
    learn = {**CONFIGS[name].get("learn", {}), "grad_clip_norm": 0.5}  # so that its norm is looked at
    policy = trained(name, mode, updates=2, learn=learn)
    made: list[Any] = []
    meet = policy.updater.guard._meet

    def note(*args: Any, **kwargs: Any) -> Any:
        made.append(args[1:4])
        return meet(*args, **kwargs)

    policy.updater.guard._meet = note
    bad = too_large("dqn") if name == "dqn" else with_bad(batch_for(name), "reward", NAN)
    if mode == "raise":
        with pytest.raises(NonFiniteError):
            policy.learn_mode.forward(bad)
    else:
        policy.learn_mode.forward(bad)
    loss, norm, parameter = made[0]
    assert name != "dqn" or math.isfinite(loss)
    (folder,) = (tmp_path / "non_finite").iterdir()
    dump = load_dump(folder)
    assert dump.is_exact
    for _ in range(2):  # the first time has changed nothing
        with pytest.raises(NonFiniteError) as again:
            dump.repeat()
        assert (again.value.loss, again.value.norm) == pytest.approx((loss, norm), rel=0, abs=0, nan_ok=True)
        assert again.value.parameter == parameter
        assert again.value.folder is None
        assert f"_{again.value.update}_" in folder.name
    assert torch.load(folder / "state.pt", weights_only=True)["message"].startswith(f"update {again.value.update}: ")


def test_the_policy_of_a_dump_raises_when_it_learns_from_its_batch(tmp_path: Path) -> None:
    policy = trained("rainbow")
    with pytest.raises(NonFiniteError) as caught:
        policy.learn_mode.forward(with_bad(batch_for("rainbow"), "reward", NAN))
    assert caught.value.folder is not None
    dump = load_dump(caught.value.folder)
    assert equal(list(dump.policy.model.state_dict().values()), list(policy.model.state_dict().values()))
    with pytest.raises(NonFiniteError):
        dump.policy.learn_mode.forward(dump.batch)


def test_a_dump_keeps_the_noise_of_the_moment() -> None:
    policy = trained("rainbow")
    with pytest.raises(NonFiniteError) as caught:
        policy.learn_mode.forward(with_bad(batch_for("rainbow"), "reward", NAN))
    dump = load_dump(caught.value.folder)  # type: ignore[arg-type]
    noises = [dict(one.named_buffers()) for one in (policy, dump.policy)]
    noisy = [name for name in noises[0] if name.endswith("noise")]
    assert noisy
    for name in noisy:
        assert torch.equal(noises[0][name], noises[1][name]), name


def test_a_dump_of_a_network_of_ones_own_needs_it() -> None:
    policy: Any = DQNPolicy({"on_non_finite": "raise"}, model=Rooted())
    policy.model.root.data.zero_()
    with pytest.raises(NonFiniteError) as caught:
        policy.learn_mode.forward(batch_for("dqn"))
    folder = caught.value.folder
    assert folder is not None
    with pytest.raises(RuntimeError, match="has no spaces"):
        load_dump(folder)
    with pytest.raises(NonFiniteError) as again:
        load_dump(folder, model=Rooted()).repeat()
    assert again.value.loss == caught.value.loss


class OwnPolicy(DQNPolicy):
    """A policy that is not registered."""


def test_a_dump_of_a_policy_that_is_not_registered_needs_its_class() -> None:
    policy = OwnPolicy(CONFIGS["dqn"])
    with pytest.raises(NonFiniteError) as caught:
        policy.learn_mode.forward(with_bad(batch_for("dqn"), "reward", NAN))
    assert caught.value.folder is not None
    with pytest.raises(ValueError, match=r"policy_class must be given.*OwnPolicy, is not registered"):
        load_dump(caught.value.folder)
    assert isinstance(load_dump(caught.value.folder, OwnPolicy).policy, OwnPolicy)


def test_dump_is_written_to_the_folder_of_the_guard(tmp_path: Path) -> None:
    policy = make("dqn")
    policy.updater.guard.folder = tmp_path / "elsewhere"
    with pytest.raises(NonFiniteError) as caught:
        policy.learn_mode.forward(with_bad(batch_for("dqn"), "reward", NAN))
    assert caught.value.folder == tmp_path / "elsewhere" / "update_0_rank_0"


def test_a_dump_that_cannot_be_written_does_not_hide_the_error(tmp_path: Path) -> None:
    policy = make("dqn")
    (tmp_path / "file").touch()
    policy.updater.guard.folder = tmp_path / "file"
    with pytest.raises(NonFiniteError, match="files that reproduce it could not be written") as caught:
        policy.learn_mode.forward(with_bad(batch_for("dqn"), "reward", NAN))
    assert caught.value.folder is None


# ------------------------------------------------------------------ in a Trainer


def fit(policy: Any, make_trainer: MakeTrainer, **kwargs: Any) -> Trainer:
    datamodule = RolloutDataModule if policy.on_policy else ReplayDataModule
    trainer = make_trainer(limit_val_batches=0, log_every_n_steps=5, **kwargs)
    trainer.fit(policy, datamodule("CartPole-v1", num_envs=2, max_env_step=160))
    return trainer


def poison(policy: Any, rounds: tuple[int, ...]) -> None:
    """Let some rounds of a policy have a minibatch with a bad reward."""
    prepare, seen = policy._prepare_round, [0]

    def prepared(data: Config) -> Config:
        seen[0] += 1
        return prepare(with_bad(data, "reward", NAN) if seen[0] in rounds else data)  # type: ignore[no-any-return]

    policy._prepare_round = prepared


def test_a_fit_ends_with_the_error_and_the_dump_in_its_folder(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    policy = DQNPolicy(small)
    poison(policy, (3,))
    with pytest.raises(NonFiniteError, match="update 4: ") as caught:
        fit(policy, make_trainer, default_root_dir=tmp_path / "root")
    assert caught.value.folder == tmp_path / "root" / "non_finite" / "update_4_rank_0"
    with pytest.raises(NonFiniteError, match="update 4: "):
        load_dump(caught.value.folder).repeat()


@pytest.mark.parametrize("listens", [False, True])
def test_a_fit_that_skips_continues_and_counts(listens: bool, make_trainer: MakeTrainer, small: Config) -> None:
    policy = DQNPolicy({**small, "on_non_finite": "skip_update"})
    poison(policy, (3, 5, 18))
    trainer = fit(policy, make_trainer, **({"profiler": "simple"} if listens else {}))
    assert policy.progress.env_step == 160
    assert policy.updater.guard.skipped_updates == 3
    assert all(torch.isfinite(weight).all() for weight in policy.model.parameters())
    assert trainer.global_step == policy.progress.train_iter == 36
    metrics = trainer.callback_metrics
    assert metrics["learn/skipped_updates"] == pytest.approx(1 / 3)  # of the last three rounds, on average
    assert torch.isfinite(metrics["learn/total_loss"])


def test_a_run_that_skips_nothing_says_so(make_trainer: MakeTrainer, small: Config) -> None:
    metrics = fit(DQNPolicy({**small, "on_non_finite": "skip_update"}), make_trainer).callback_metrics
    assert metrics["learn/skipped_updates"] == 0
    assert "learn/skipped_updates" not in fit(DQNPolicy(small), make_trainer).callback_metrics


# ------------------------------------------------------------------ devices without synchronisation


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the CPU as a device on which reading a value is expensive."""
    monkeypatch.setattr(non_finite, "READ_AT_ONCE", ())


def test_a_device_skips_a_bad_step_and_all_later_ones_until_the_result_is_read(on_device: None) -> None:
    policy = trained("dqn")
    before = state_of(policy)
    policy._learn(batch_for("dqn"))
    good = state_of(policy)
    policy._learn(with_bad(batch_for("dqn"), "reward", NAN))
    policy._learn(batch_for("dqn", 5))
    assert not equal(good, before)
    assert equal(state_of(policy), good)
    with pytest.raises(NonFiniteError, match=r"update 4: the loss \(loss\) of optimizer 0 is nan") as caught:
        policy.updater.guard.look()
    assert load_dump(caught.value.folder).is_exact  # type: ignore[arg-type]
    assert not hasattr(policy.updater.optimizers[0], "found_inf")
    policy._learn(batch_for("dqn", 5))  # training can continue after the error is caught
    assert not equal(state_of(policy), good)


def test_a_device_skips_bad_steps_alone(on_device: None) -> None:
    one, other = trained("dqn", "skip_update"), trained("dqn")
    one._learn(with_bad(batch_for("dqn"), "reward", INF))
    one._learn(batch_for("dqn", 5))
    other._learn(batch_for("dqn", 5))
    assert equal(state_of(one), state_of(other))
    one.updater.guard.look()
    assert one.updater.guard.skipped_updates == 1


@pytest.mark.parametrize("mode", ["raise", "skip_update"])
def test_a_device_is_looked_at_before_too_much_is_kept(
    mode: str, on_device: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, bad = trained("dqn", mode), with_bad(batch_for("dqn"), "reward", NAN)
    monkeypatch.setattr(non_finite, "MAX_UNSEEN", 4)
    for _ in range(4):
        policy._learn(bad)
    if mode == "raise":
        with pytest.raises(NonFiniteError, match="update 3: "):
            policy._learn(bad)
    else:
        policy._learn(bad)
        assert policy.updater.guard.skipped_updates == 4


def test_a_fit_on_a_device_skips_as_on_the_cpu(on_device: None, make_trainer: MakeTrainer, small: Config) -> None:
    policy = DQNPolicy({**small, "on_non_finite": "skip_update"})
    poison(policy, (3, 5, 18))
    trainer = fit(policy, make_trainer)
    assert policy.updater.guard.skipped_updates == 3
    assert torch.isfinite(trainer.callback_metrics["learn/total_loss"])
    assert trainer.callback_metrics["learn/skipped_updates"] == pytest.approx(1 / 3)


def test_priorities_wait_for_the_device(on_device: None) -> None:
    policy = make("dqn", "skip_update", priority=True)
    output = policy.learn_mode.forward(with_bad(batch_for("dqn"), "reward", NAN))
    assert "priority" not in output
    assert "priority" in policy.learn_mode.forward(batch_for("dqn"))


def test_policies_by_class_have_the_option() -> None:
    for policy_class in (DQNPolicy, SACPolicy, PPOPolicy):
        assert policy_class.default_config().on_non_finite == "raise"
