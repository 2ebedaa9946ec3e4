"""What Q-learning of teams reaches in games whose best returns are known, with actions that are uniformly random.

In the two-step game the sum of VDN chooses the safe game, and QMIX the better one (Rashid et al. 2018, section 5). In
the matrix game with the payoffs [[8, -12, -12], [-12, 0, 0], [-12, 0, 0]] the best joint action looks worst to each
agent alone (Son et al. 2019, table 1): QTRAN and weighted QMIX find it, VDN does not, and QMIX does from some initial
weights only.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from lightning.pytorch import seed_everything

from lightning_ding import nested
from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.envs.teams import games
from lightning_ding.policy import create_policy
from tests.conftest import MakeTrainer

CONFIG: dict[str, Any] = {
    "random_collect_size": 256,
    "learn": {"learning_rate": 1e-3, "target_theta": 0.05, "update_per_collect": 12},
    "other": {"eps": {"start": 1.0, "end": 1.0}},
}
QUICK: dict[str, Any] = {"learn": {"learning_rate": 2e-3, "update_per_collect": 4}}
SEEDS = range(5)


def reached(make_trainer: MakeTrainer, name: str, game: str, seed: int, steps: int = 4000, **changes: Any) -> float:
    """Return the return of the current policy after training."""
    seed_everything(seed, verbose=False)
    policy: Any = create_policy({"type": name, **deep_merge(CONFIG, changes)})
    kind, arguments = ("TwoStepGame", {}) if game == "two steps" else ("MatrixGame", {"payoff": game})
    where = f"lightning_ding.envs.teams.games.{kind}"
    data = ReplayDataModule(where, num_envs=8, max_env_step=steps, env_kwargs=arguments, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make_trainer().fit(policy, data)
    env: Any = getattr(games, kind)(**arguments)
    obs, _ = env.reset()
    total, is_over = 0.0, False
    while not is_over:
        action = policy(nested.apply(lambda x: torch.as_tensor(x)[None], nested.to_tensor(obs)))[0].numpy()
        obs, reward, is_over, _, _ = env.step(action)
        total += reward
    return total


@pytest.mark.parametrize(("name", "best"), [("qmix", 8.0), ("vdn", 7.0)])
def test_qmix_solves_the_two_step_game_and_vdn_chooses_the_safe_one(
    name: str, best: float, make_trainer: MakeTrainer
) -> None:
    assert reached(make_trainer, name, "two steps", seed=0, steps=2500, **QUICK) == best


@pytest.mark.slow
@pytest.mark.parametrize(("name", "best"), [("qmix", 8.0), ("wqmix", 8.0), ("vdn", 7.0)])
def test_two_step_game_with_five_seeds(name: str, best: float, make_trainer: MakeTrainer) -> None:
    assert [reached(make_trainer, name, "two steps", seed) for seed in SEEDS] == [best] * 5


def test_weighted_qmix_finds_the_joint_action_that_vdn_misses(make_trainer: MakeTrainer) -> None:
    found = {name: reached(make_trainer, name, "nonmonotonic", 0, 4000, **QUICK) for name in ("wqmix", "vdn")}
    assert found == {"wqmix": 8.0, "vdn": 0.0}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qtran", "wqmix", "wqmix, central", "vdn", "qmix"])
def test_game_that_is_not_monotonic_with_five_seeds(name: str, make_trainer: MakeTrainer) -> None:
    kind, _, weighting = name.partition(", ")
    changes: dict[str, Any] = {"learn": {"wqmix_ow": False}} if weighting else {}
    found = [reached(make_trainer, kind, "nonmonotonic", seed, **changes) for seed in SEEDS]
    if kind in ("qtran", "wqmix"):
        assert found == [8.0] * 5
    elif kind == "vdn":
        assert found == [0.0] * 5
    else:  # 8 is among the values that a monotonic function of uniform data may choose
        assert sorted(found)[:4] == [0.0] * 4
