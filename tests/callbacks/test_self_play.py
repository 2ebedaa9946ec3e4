"""Self-play: which opponents play, when snapshots are taken, and that a resumed run continues exactly."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from lightning import Trainer
from lightning.pytorch import Callback

from lightning_ding.callbacks import RunCheckpoint, SelfPlay
from lightning_ding.callbacks.self_play import NEWEST
from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
from lightning_ding.envs import GameEnv
from lightning_ding.policy import DQNPolicy, PPOPolicy, R2D2Policy
from tests.conftest import MakeTrainer
from tests.toys.players import first

Config = dict[str, Any]
GAME = "pettingzoo:tictactoe_v3"


def data(max_env_step: int = 64, **arguments: Any) -> ReplayDataModule:
    made = {"num_envs": 4, "seed": 3, "max_env_step": max_env_step, "rounds_per_epoch": 4, **arguments}
    return ReplayDataModule(GAME, **made)


def weights(policy: Any) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(policy.model.parameters()).detach().clone()


class Rounds(Callback):
    """Notes the learner's weights, and the snapshots, after each round."""

    def __init__(self, self_play: SelfPlay) -> None:
        self.self_play = self_play
        self.weights: dict[int, torch.Tensor] = {}
        self.snapshots: dict[int, list[int]] = {}

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.weights[pl_module.progress.env_step] = weights(pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        self.weights[pl_module.progress.env_step] = weights(pl_module)
        self.snapshots[pl_module.progress.env_step] = list(self.self_play._snapshots)


def fit(make_trainer: MakeTrainer, config: Config, self_play: SelfPlay, **arguments: Any) -> tuple[DQNPolicy, Rounds]:
    torch.manual_seed(0)
    policy, rounds = DQNPolicy(config), Rounds(self_play)
    make_trainer(callbacks=[self_play, rounds]).fit(policy, data(**arguments))
    return policy, rounds


def test_snapshots_are_taken_at_intervals_and_the_oldest_one_leaves(make_trainer: MakeTrainer, small: Config) -> None:
    self_play = SelfPlay(snapshot_interval=20, max_snapshots=2)
    _, rounds = fit(make_trainer, small, self_play)  # rounds of 8 env steps, after 16 random ones
    assert rounds.snapshots == {
        **{24: [0, 24], 32: [0, 24], 40: [0, 24]},
        **{48: [24, 48], 56: [24, 48], 64: [24, 48]},
    }
    for number, one in self_play._snapshots.items():
        assert torch.equal(weights(one), rounds.weights[number])
    assert not torch.equal(rounds.weights[24], rounds.weights[48])


def test_opponents_are_drawn_by_their_shares(make_trainer: MakeTrainer, small: Config) -> None:
    self_play = SelfPlay(newest_share=0.5, past_share=0.3, snapshot_interval=20)
    fit(make_trainer, small, self_play)
    rng = np.random.default_rng(0)
    drawn = Counter(self_play.draw(rng) for _ in range(2000))
    assert set(drawn) == {NEWEST, 0, 24, 48, None}
    assert drawn[NEWEST] == pytest.approx(1000, abs=80)
    assert [drawn[number] for number in (0, 24, 48)] == pytest.approx([200, 200, 200], abs=50)
    assert drawn[None] == pytest.approx(400, abs=70)


def obs_of(player: Any) -> dict[str, Any]:
    """Return an empty board, on which the greedy move of a player depends on its network alone."""
    return {"observation": np.zeros((3, 3, 2), np.int8), "action_mask": np.ones(9, np.int8)}


def with_favourite(policy: Any, move: int) -> None:
    """Change the network so that one move has the largest value everywhere."""
    *_, bias = (value for name, value in policy.model.named_parameters() if name.endswith("bias"))
    with torch.no_grad():
        bias.copy_(torch.eye(9)[move] * 100)


def test_newest_opponent_has_the_learners_weights_and_snapshots_keep_theirs(
    make_trainer: MakeTrainer, small: Config
) -> None:
    self_play, rng = SelfPlay(snapshot_interval=1000, random_move=0.0), np.random.default_rng(0)
    policy, _ = fit(make_trainer, small, self_play)
    before = self_play.move(0, obs_of(policy), rng)
    for favourite in (2, 7):
        with_favourite(policy, favourite)
        assert self_play.move(NEWEST, obs_of(policy), rng) == favourite
        assert self_play.move(0, obs_of(policy), rng) == before
    mask = {**obs_of(policy), "action_mask": np.eye(9, dtype=np.int8)[4]}
    assert self_play.move(NEWEST, mask, rng) == 4


def test_oldest_snapshot_continues_the_games_of_one_that_left(make_trainer: MakeTrainer, small: Config) -> None:
    self_play, rng = SelfPlay(snapshot_interval=20, max_snapshots=2, random_move=0.0), np.random.default_rng(0)
    policy, _ = fit(make_trainer, small, self_play)
    with_favourite(self_play._snapshots[24], 5)
    with_favourite(self_play._snapshots[48], 6)
    assert [self_play.move(number, obs_of(policy), rng) for number in (0, 24, 48)] == [5, 5, 6]


def test_random_moves_are_legal_and_as_frequent_as_asked(make_trainer: MakeTrainer, small: Config) -> None:
    self_play, rng = SelfPlay(random_move=0.5), np.random.default_rng(0)
    policy, _ = fit(make_trainer, small, self_play)
    with_favourite(policy, 0)
    obs = {**obs_of(policy), "action_mask": np.array([1, 0, 0, 0, 0, 0, 0, 1, 1], np.int8)}
    moves = Counter(self_play.move(NEWEST, obs, rng) for _ in range(1200))
    assert set(moves) == {0, 7, 8}
    assert [moves[7], moves[8]] == pytest.approx([200, 200], abs=50)


def test_training_games_have_these_opponents_and_evaluations_their_own(
    make_trainer: MakeTrainer, small: Config
) -> None:
    class Seen(SelfPlay):
        def __init__(self) -> None:
            super().__init__(newest_share=1.0, past_share=0.0)
            self.moves = 0

        def move(self, number: int, obs: Any, rng: np.random.Generator) -> int:
            assert not trainer.validating
            self.moves += 1
            return super().move(number, obs, rng)

    self_play, trainer = Seen(), make_trainer()
    trainer.callbacks.append(self_play)  # type: ignore[attr-defined]
    policy, datamodule = DQNPolicy(small), data(eval_env_kwargs={"opponent": first, "seat": 0})
    trainer.fit(policy, datamodule)
    assert self_play.moves > 64 * 0.5
    (scores,) = trainer.validate(policy, datamodule, verbose=False)
    env = GameEnv("tictactoe_v3", first, seat=0)
    (obs, _), ended, reward = env.reset(), False, 0.0
    while not ended:
        obs, reward, ended, _, _ = env.step(policy.predict(obs))
    assert scores["eval/return_mean"] == reward


def test_rollouts_are_played_against_itself_too(make_trainer: MakeTrainer) -> None:
    config = {"model": {"encoder_hidden_size_list": [16]}, "learn": {"batch_size": 16}, "collect": {"n_sample": 32}}
    self_play = SelfPlay(snapshot_interval=32)
    policy = PPOPolicy(config | {"eval": {"evaluator": {"n_episode": 2}}})
    make_trainer(callbacks=[self_play]).fit(policy, RolloutDataModule(GAME, num_envs=4, max_env_step=96))
    assert list(self_play._snapshots) == [0, 32, 64, 96]


def halves(make_trainer: MakeTrainer, config: Config, folder: Path, share: float) -> list[torch.Tensor]:
    """Return the weights at the end of a whole run, and of one that was resumed at the half in a new process's way."""

    def run(max_env_step: int, file: Path | None = None) -> torch.Tensor:
        torch.manual_seed(0 if file is None else 9)
        policy = DQNPolicy(config)
        self_play = SelfPlay(share, 0.9 - share, snapshot_interval=16, max_snapshots=3)
        callbacks = [self_play, RunCheckpoint(folder / str(max_env_step))]
        trainer = make_trainer(enable_checkpointing=True, callbacks=callbacks)
        trainer.fit(policy, data(max_env_step), ckpt_path=file, weights_only=True)
        return weights(policy)

    whole = run(144)
    run(80)
    return [whole, run(144, folder / "80" / "last.ckpt")]


@pytest.mark.parametrize("share", [0.0, 0.6])
def test_resumed_run_ends_with_the_weights_of_a_whole_one(
    share: float, make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = deep_merge(small, {"learn": {"learning_rate": 0.03}})
    whole, resumed = halves(make_trainer, config, tmp_path, share)
    assert torch.equal(whole, resumed)
    assert "new episodes" not in caplog.text


def test_second_fit_keeps_its_snapshots_and_another_policy_gets_new_ones(
    make_trainer: MakeTrainer, small: Config
) -> None:
    self_play = SelfPlay(snapshot_interval=20)
    policy, _ = fit(make_trainer, small, self_play)
    make_trainer(callbacks=[self_play]).fit(policy, data(96))
    assert list(self_play._snapshots) == [0, 24, 48, 88]  # 16 random env steps again
    fit(make_trainer, small, self_play)
    assert list(self_play._snapshots) == [0, 24, 48]


def test_resumed_run_with_fewer_snapshots_keeps_the_newest(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    def run(max_env_step: int, max_snapshots: int, file: Path | None = None) -> Rounds:
        self_play = SelfPlay(snapshot_interval=20, max_snapshots=max_snapshots)
        callbacks = [self_play, rounds := Rounds(self_play), RunCheckpoint(tmp_path / str(max_env_step))]
        trainer = make_trainer(enable_checkpointing=True, callbacks=callbacks)
        trainer.fit(DQNPolicy(small), data(max_env_step), ckpt_path=file, weights_only=True)
        return rounds

    assert run(64, 10).snapshots[64] == [0, 24, 48]
    rounds = run(96, 2, tmp_path / "64" / "last.ckpt")
    assert rounds.snapshots == {72: [48, 72], 80: [48, 72], 88: [48, 72], 96: [72, 96]}


def test_list_of_snapshots_shrinks_to_a_smaller_maximum(make_trainer: MakeTrainer, small: Config) -> None:
    self_play = SelfPlay(snapshot_interval=20)
    policy, _ = fit(make_trainer, small, self_play)
    self_play.max_snapshots = 2
    make_trainer(callbacks=[self_play]).fit(policy, data(96))
    assert list(self_play._snapshots) == [48, 88]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"newest_share": 1.5}, "newest_share must be in [0, 1], got 1.5"),
        ({"past_share": -0.1}, "past_share must be in [0, 1], got -0.1"),
        ({"random_move": 2}, "random_move must be in [0, 1], got 2"),
        ({"newest_share": 0.75, "past_share": 0.5}, "newest_share + past_share must be at most 1, got 1.25"),
        ({"snapshot_interval": 0}, "snapshot_interval must be >= 1, got 0"),
        ({"max_snapshots": 0}, "max_snapshots must be >= 1, got 0"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        SelfPlay(**arguments)


@pytest.mark.parametrize(
    ("env_id", "mode", "message"),
    [
        ("CartPole-v1", "sync", "env_id must be a game, such as 'pettingzoo:tictactoe_v3', with SelfPlay, got "),
        (GAME, "async", 'mode must be "sync" in a datamodule that collects, with SelfPlay'),
    ],
)
def test_envs_without_opponents_are_refused(
    env_id: str, mode: Any, message: str, make_trainer: MakeTrainer, small: Config
) -> None:
    datamodule = ReplayDataModule(env_id, num_envs=1, mode=mode, max_env_step=64)
    with pytest.raises(ValueError, match=re.escape(message)):
        make_trainer(callbacks=[SelfPlay()]).fit(DQNPolicy(small), datamodule)


class Larger(gym.ObservationWrapper[Any, Any, Any]):
    """Scales the planes of a game, in the same space."""

    def observation(self, observation: Any) -> Any:
        return {**observation, "observation": observation["observation"] * 10}


class OtherMoves(gym.ActionWrapper[Any, Any, Any]):
    """Counts the moves from the other end."""

    def action(self, action: Any) -> Any:
        return 8 - action


class SeenTwice(gym.Wrapper[Any, Any, Any, Any]):
    """Repeats the planes, without being a wrapper of observations."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        planes = gym.spaces.Box(0, 1, (3, 3, 4), np.int8)
        mask = env.observation_space["action_mask"]  # type: ignore[index]
        self.observation_space = gym.spaces.Dict({"observation": planes, "action_mask": mask})

    def reset(self, **arguments: Any) -> Any:
        obs, info = self.env.reset(**arguments)
        return self._twice(obs), info

    def step(self, action: Any) -> Any:
        obs, *others = self.env.step(action)
        return self._twice(obs), *others

    def _twice(self, obs: Any) -> Any:
        return {**obs, "observation": np.concatenate([obs["observation"]] * 2, axis=-1)}


@pytest.mark.parametrize(
    ("place", "wrapper", "name"),
    [
        ("wrappers", Larger, "Larger"),
        ("train_wrappers", Larger, "Larger"),
        ("wrappers", OtherMoves, "OtherMoves"),
        ("wrappers", SeenTwice, "SeenTwice"),
    ],
)
def test_wrappers_that_opponents_do_not_have_are_refused(
    place: str, wrapper: Any, name: str, make_trainer: MakeTrainer, small: Config
) -> None:
    wanted = rf"wrappers must be ones that keep observations and actions, .*my_module\.make_game', got {name!r}"
    arguments: dict[str, Any] = {place: [wrapper, "clip_reward"]}
    with pytest.raises(ValueError, match=wanted):
        make_trainer(callbacks=[SelfPlay()]).fit(DQNPolicy(small), data(**arguments))


def test_wrappers_that_keep_observations_and_actions_are_allowed(make_trainer: MakeTrainer, small: Config) -> None:
    self_play = SelfPlay(snapshot_interval=20)
    wrappers = [{"scale_reward": {"scale": 0.5}}, {"time_limit": {"max_episode_steps": 3}}]
    config = deep_merge(small, {"collect": {"collector": {"env_fault": "drop"}}})
    fit(make_trainer, config, self_play, wrappers=wrappers)
    assert list(self_play._snapshots) == [0, 24, 48]


def test_policy_with_memory_is_refused(make_trainer: MakeTrainer) -> None:
    with pytest.raises(ValueError, match="policy must be one without memory, with SelfPlay, got 'R2D2Policy'"):
        make_trainer(callbacks=[SelfPlay()]).fit(R2D2Policy(), data())
