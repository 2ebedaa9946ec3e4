"""The entries that learn a reward from an expert's checkpoints, each with a run of a few rounds."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_ding import entry
from lightning_ding.datamodules.dataset_files import load_dataset
from lightning_ding.di_engine import entry as ding_entry, inverse_rl
from lightning_ding.di_engine.configs import Missing
from lightning_ding.di_engine.serial import make_policy
from lightning_ding.di_engine.serial_cli import main as command
from lightning_ding.di_engine.translate import translate
from tests.di_engine.pairs import Pair
from tests.di_engine.test_imitation import FILE, folder, pair

FOLDER = folder  # a fixture that moves to an empty folder
EXPERT = {"expert_model_path": "expert", "checkpoint_min": 0, "checkpoint_max": 20, "checkpoint_step": 10}
PREFERENCE = {"min_snippet_length": 2, "max_snippet_length": 9, "num_snippets": 40, "update_per_collect": 1}


def own(kind: str = "trex", policy: str = "dqn", **changes: Any) -> Pair:
    rewards = {"type": kind, **EXPERT, **PREFERENCE, "learning_rate": 1e-5, **changes}
    return pair(policy, None, reward_model=rewards, exp_name="run")


@pytest.fixture
def checkpoints() -> list[Any]:
    """Three checkpoints of an expert, in ``expert/ckpt``."""
    return [write(f"expert/ckpt/iteration_{number}.ckpt", number) for number in (0, 10, 20)]


def write(path: str, seed: int, kind: str = "dqn") -> Any:
    torch.manual_seed(seed)
    given = pair(kind, {"action_space": "discrete", "model": {"action_space": "discrete"}} if kind == "ppo" else {})
    policy: Any = make_policy(translate(given))
    policy.configure_model()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    torch.save({"state_dict": policy.state_dict()}, path)
    return policy


def test_each_checkpoint_plays_an_episode_the_earliest_first(checkpoints: list[Any]) -> None:
    main, create = own()
    main["policy"]["other"] = {"eps": {"collect": 0.0, "start": 0.9, "end": 0.1, "decay": 10, "type": "exp"}}
    path = entry.trex_collecting_data(Namespace(cfg=(main, create), seed=0))
    assert ding_entry.trex_collecting_data is inverse_rl.trex_collecting_data
    data = load_dataset(path)
    assert path == str(Path("run") / "ranked_data.npz")
    assert data.whole_episodes().tolist() == [True] * 3
    bounds = data.bounds()
    for place, policy in enumerate(checkpoints):
        rows = slice(bounds[place], bounds[place + 1])
        greedy = policy.model(torch.from_numpy(data.columns["obs"][rows]))["logit"].argmax(1)
        assert (greedy.numpy() == data.columns["action"][rows]).all()
    main["policy"]["other"]["eps"]["collect"] = 1.0
    noisy = load_dataset(entry.trex_collecting_data(Namespace(cfg=(main, create), seed=0)))
    assert noisy.checksum != data.checksum  # and the file of the earlier run is overwritten


@pytest.mark.parametrize(("kind", "policy"), [("trex", "dqn"), ("trex", "ppo"), ("drex", "dqn")])
def test_policy_learns_from_the_ranked_trajectories_of_an_expert(
    kind: str, policy: str, checkpoints: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if policy == "ppo":
        for number in (0, 10, 20):
            write(f"expert/ckpt/iteration_{number}.ckpt", number, "ppo")
    more = {"eps_list": [0, 1], "num_trajs_per_bin": 3, "bc_iterations": 20} if kind == "drex" else {}
    given = own(kind, policy, **more)
    train: Any = {
        "dqn": entry.serial_pipeline_preference_based_irl,
        "ppo": entry.serial_pipeline_preference_based_irl_onpolicy,
    }[policy]
    trained = train(given, seed=0, max_env_step=48)
    assert trained.progress.env_step == 48
    assert bool(trained.reward_model.is_trained)
    model = trained.reward_model
    assert len(model.pairs) == 40
    assert [layer.out_features for layer in model.head.layers] == [512, 64, 1]
    data = load_dataset("run/ranked_data.npz")
    assert len(data.returns()) == (6 if kind == "drex" else 3)
    assert np.unique(model.ranks(data)).tolist() == ([0, 1] if kind == "drex" else [0, 1, 2])
    monkeypatch.setattr(inverse_rl, "play_ranked", None)  # the file that exists is used
    train(given, seed=0, max_env_step=16)


def test_clone_of_drex_imitates_and_plays_with_falling_noise(checkpoints: list[Any]) -> None:
    given = own("drex", eps_list=[0.0, 1.0], num_trajs_per_bin=4, bc_iterations=300)
    data = load_dataset(inverse_rl.play_ranked(given, 0, None))
    bounds, expert = data.bounds(), checkpoints[-1]
    chosen = expert.model(torch.from_numpy(data.columns["obs"]))["logit"].argmax(1).numpy()
    equal = chosen == data.columns["action"]
    assert equal[bounds[4] :].mean() > 0.9 > 0.7 > equal[: bounds[4]].mean()
    write("bc.ckpt", 10)
    given[0]["reward_model"]["bc_path"] = "bc.ckpt"  # a clone of the user's
    other = load_dataset(inverse_rl.play_ranked(given, 0, None))
    clone = make_policy(translate(pair("dqn")))
    clone.configure_model()
    clone.load_state_dict(torch.load("bc.ckpt", weights_only=True)["state_dict"])
    rows = slice(other.bounds()[4], None)
    greedy = clone.model(torch.from_numpy(other.columns["obs"][rows]))["logit"].argmax(1)
    assert (greedy.numpy() == other.columns["action"][rows]).all()


def test_guided_cost_learns_from_an_expert(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inverse_rl, "GUIDED_STEPS", 40)
    write("expert.ckpt", 0, "ppo")
    rewards = {"input_size": 5, "batch_size": 8, "continuous": False, "update_per_collect": 2, "learning_rate": 0.001}
    given = pair("ppo", {"collect": {"model_path": "expert.ckpt", "collector_logit": True}}, exp_name="run")
    given = {**given[0], "reward_model": rewards}, {**given[1], "reward_model": {"type": "guided_cost"}}
    policy: Any = entry.serial_pipeline_guided_cost(given, seed=0, max_env_step=32)
    assert policy.progress.env_step == 32
    assert [layer.out_features for layer in policy.reward_model.head.layers] == [128, 128, 1]
    run = inverse_rl.guided_cost_run(given, 0, None, 10**10, 10**10)
    assert not any("model_path" in line or "logit" in line for line in run.warnings)
    main, create = pair("sac", {"collect": {"model_path": "expert.ckpt"}}, reward_model=rewards)
    main["env"]["env_id"] = "Pendulum-v1"
    with pytest.raises(
        ValueError, match=r"create_config\.policy\.type must be one that learns from rollouts, got 'sac'"
    ):
        entry.serial_pipeline_guided_cost((main, {**create, "reward_model": {"type": "guided_cost"}}))


def test_what_is_missing_ends_in_one_line() -> None:
    with pytest.raises(Missing, match=r"no file 'expert/ckpt/iteration_0\.pth\.tar'"):
        entry.serial_pipeline_preference_based_irl(own())
    with pytest.raises(
        ValueError, match=r"reward_model\.expert_model_path must be given, for the checkpoints of the ex"
    ):
        entry.serial_pipeline_preference_based_irl(own(expert_model_path=None))
    with pytest.raises(ValueError, match=r"reward_model\.type must be one of trex, drex, got 'rnd'"):
        entry.serial_pipeline_preference_based_irl(own("rnd"))
    with pytest.raises(ValueError, match=r"reward_model\.checkpoint_step must be >= 1, got 0"):
        entry.serial_pipeline_preference_based_irl(own(checkpoint_step=0))


def test_mode_of_the_command(checkpoints: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    main, create = own()
    Path("own_config.py").write_text(FILE.format(main=main, create=create, name="trex"))
    command(["serial", "-c", "own_config.py", "--env-step", "32"])  # the entry of the file
    assert "reward_model.num_snippets -> model.cfg.reward_model.num_snippets" in capsys.readouterr().out
    assert Path("run/ranked_data.npz").is_file()
    with pytest.raises(SystemExit):
        command(["serial", "-c", "own_config.py", "-m", "trex_onpolicy"])
    assert "one that learns from rollouts" in capsys.readouterr().err
