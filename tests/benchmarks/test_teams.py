"""The benchmark of teams: what its episodes of ``simple_tag`` give, and the speeds and settings of EPyMARL."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import teams, teams_epymarl


def test_four_kinds_of_episodes_replace_one_side_both_or_none() -> None:
    returns = teams._pairs(lambda random: {side: float(side in random) for side in ("predators", "prey")})
    assert returns == {
        f"{one} predators, {two} prey": {"predators": float(one == "random"), "prey": float(two == "random")}
        for one in ("learned", "random")
        for two in ("learned", "random")
    }


@pytest.mark.parametrize("random", [[], ["prey"], ["predators"]])
def test_returns_of_tag_are_those_of_the_game(random: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    game = pytest.importorskip("mpe2.simple_tag_v3").parallel_env(max_cycles=25)
    monkeypatch.setattr(teams, "N_TEST", 3)
    chosen = torch.tensor([[1, 2, 3, 4]])
    policy = SimpleNamespace(eval_mode=SimpleNamespace(forward=lambda obs: {"action": chosen}))
    found = teams._tag_of_ours(policy, 2, random)

    rng, returns = np.random.default_rng(2), np.zeros(4)
    is_random = ["predators" in random] * 3 + ["prey" in random]
    for episode in range(3):
        game.reset(seed=1_000_006 + episode)
        while game.agents:
            drawn = rng.integers(0, [5, 5, 5, 5])
            moves = [int(drawn[i] if is_random[i] else chosen[0, i]) for i in range(4)]
            _, rewards, *_ = game.step(dict(zip(game.possible_agents, moves, strict=True)))
            returns += [rewards[agent] for agent in game.possible_agents]
    assert found == pytest.approx({"predators": returns[:3].mean() / 3, "prey": returns[3] / 3})


def test_speeds_of_epymarl_leave_out_the_warm_up_and_count_the_envs() -> None:
    clock = teams_epymarl.Clock()
    clock.marks = [  # wall clock, CPU, that of envs, steps, updates, wall clock and CPU of updates
        (0.0, 0.0, 0.0, 0, 0, 0.0, 0.0),
        (100.0, 50.0, 40.0, 100, 4, 30.0, 20.0),
        (110.0, 54.0, 42.0, 600, 12, 32.0, 21.0),
        (120.0, 58.0, 44.0, 1100, 20, 34.0, 22.0),
    ]
    assert clock.report(1) == {
        "env_steps_per_s": 50.0,  # 1000 / 20
        "updates_per_s": 0.8,  # 16 / 20
        "learn_updates_per_s": 4.0,  # 16 / 4
        "learn_updates_per_cpu_s": 8.0,  # 16 / 2
        "cpu_s_per_1000_steps": 12.0,  # 8 + 4
    }
    assert clock.report(99) == clock.report(2)  # of a run that ended in its warm-up


def test_updates_of_epymarl_are_counted_and_timed() -> None:
    clock = teams_epymarl.Clock()
    assert clock.times(lambda one, *, other: one + other, 4)(1, other=2) == 3
    assert clock.times(lambda: None, 0)() is None
    assert (clock.updates, clock.learning > 0) == (4, True)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "config").mkdir()
    for folder, text in (("default", "gamma: 0.99"), ("envs/gymma", "env_args: {}"), ("algs/mappo", "use_rnn: true")):
        file = tmp_path / "config" / f"{folder}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    monkeypatch.chdir(tmp_path)
    options = {"algorithm": "mappo", "task": "simple_spread", "steps": 100, "seed": 3, "envs": None, "units": None}
    return lambda **changed: teams_epymarl.config_of(argparse.Namespace(**{**options, **changed}))


def test_agents_of_tag_have_rewards_of_their_own_in_epymarl(config: Any) -> None:
    keys = ("common_reward", "gamma")
    assert [config()[key] for key in keys] == [True, 0.99]
    assert [config(task="simple_tag")[key] for key in keys] == [False, 0.9]
    assert config(task="simple_tag")["env_args"]["task"] == "simple_tag"


def test_units_are_those_of_feed_forward_networks_in_epymarl(config: Any) -> None:
    assert config()["use_rnn"]
    changed = config(units=64, envs=7)
    assert (changed["hidden_dim"], changed["use_rnn"], changed["batch_size_run"]) == (64, False, 7)
