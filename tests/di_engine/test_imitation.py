"""The entries that learn from an expert or with a reward model, each with a run of a few rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_ding import entry
from lightning_ding.config import deep_merge
from lightning_ding.datamodules.dataset_files import load_dataset
from lightning_ding.di_engine import imitation
from lightning_ding.di_engine.configs import Missing
from lightning_ding.di_engine.imitation import play_expert
from lightning_ding.di_engine.serial import make_policy
from lightning_ding.di_engine.serial_cli import main as command
from lightning_ding.di_engine.translate import translate
from tests.di_engine.pairs import Pair, pair_of, small_pair

SMALL = {"model": {"encoder_hidden_size_list": [8], "obs_shape": 4, "action_shape": 2}}
FILE = """
main_config = {main!r}
create_config = {create!r}
if __name__ == "__main__":
    from ding.entry import serial_pipeline_{name}
    serial_pipeline_{name}([main_config, create_config], seed=0)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pair(kind: str, policy: dict[str, Any] | None = None, **sections: Any) -> Pair:
    main, create = small_pair(kind, deep_merge(SMALL, policy or {}))
    return {**main, **sections}, create


def expert() -> Pair:
    """Return the config of an expert, whose network is in ``expert.ckpt``."""
    main, create = pair("dqn")
    main["exp_name"] = "expert"
    return main, create


@pytest.fixture
def checkpoint() -> Any:
    """The expert's policy, which has been saved."""
    policy: Any = make_policy(translate(expert()))
    policy.configure_model()
    torch.save({"state_dict": policy.state_dict()}, "expert.ckpt")
    return policy


def test_expert_plays_the_greedy_actions_of_its_network(checkpoint: Any) -> None:
    path = play_expert(translate(expert()), "expert.ckpt", steps=50, seed=0)
    data = load_dataset(path)
    assert path == str(Path("expert") / "expert_data.npz")
    assert len(data) >= 50
    assert data.whole_episodes().all()
    greedy = checkpoint.model(torch.from_numpy(data.columns["obs"]))["logit"].argmax(1)
    assert (greedy.numpy() == data.columns["action"]).all()
    assert (data.columns["reward"] == 1).all()  # of the env: SQIL replaces them later
    again = load_dataset(play_expert(translate(expert()), "expert.ckpt", steps=50, seed=0))
    assert again.checksum == data.checksum  # the file of the earlier run is overwritten


def test_expert_without_a_checkpoint_ends_in_one_line() -> None:
    with pytest.raises(Missing, match="the expert's network must be a checkpoint, but there is no file 'gone'"):
        play_expert(translate(expert()), "gone", steps=50, seed=0)


def test_r2d3_learns_from_sequences_of_an_expert_in_the_same_file(checkpoint: Any) -> None:
    learn = {"batch_size": 8, "per_train_iter_k": 2}
    own = pair("r2d3", {"learn": learn, "collect": {"data_path": None}})
    expert_main, expert_create = expert()
    expert_main["policy"]["collect"] |= {"model_path": "expert.ckpt"}
    expert_main["policy"]["learn"] |= {"expert_replay_buffer_size": 60}
    expert_create["policy"]["type"] = "dqfd"  # played by a DQN
    file = f"main_config, create_config = {own!r}\nexpert_main_config, expert_create_config = "
    Path("r2d3_config.py").write_text(f"{file}{(expert_main, expert_create)!r}")
    policy: Any = entry.serial_pipeline_r2d3("r2d3_config.py", "r2d3_config.py", seed=0, max_env_step=48)
    assert (type(policy).__name__, policy.progress.env_step >= 48) == ("R2D3Policy", True)
    assert len(load_dataset("expert/expert_data.npz")) >= 60
    with pytest.raises(ValueError, match=r"policy\.type must be 'r2d3', got 'dqn'"):
        entry.serial_pipeline_r2d3(pair("dqn"), expert())


@pytest.mark.parametrize("kind", ["r2d2_collect_traj", "offppo_collect_traj"])
def test_policies_that_collect_for_r2d3_are_those_that_they_collect_with(kind: str) -> None:
    main, create = pair("r2d2" if kind.startswith("r2d2") else "ppo_offpolicy")
    main["policy"]["learn"]["expert_replay_buffer_size"] = 5
    main["policy"]["collect"] = {"unroll_len": 4}
    create["policy"]["type"] = kind
    main["policy"].pop("random_collect_size")
    run = imitation._expert_run((main, create), 0, None)
    assert run.policy == imitation.EXPERTS[kind]
    assert run.warnings == ()


@pytest.mark.parametrize("kind", ["sql", "dqn"])
def test_sqil_learns_from_an_expert(kind: str, checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imitation, "SQIL_STEPS", 40)
    own = pair(kind, {"collect": {"model_path": "expert.ckpt"}})
    policy: Any = entry.serial_pipeline_sqil(own, expert(), seed=0, max_env_step=48)
    assert (policy.progress.env_step, policy.progress.train_iter > 0) == (48, True)
    assert len(load_dataset("expert/expert_data.npz")) >= 40
    run = imitation.sqil_run(own, expert(), 0, None, None, 10**10, 10**10)
    given = [run.data[name] for name in ("demonstrations", "demonstration_share", "imitation_reward")]
    assert given == [str(Path("expert") / "expert_data.npz"), 0.5, True]
    assert not any("model_path" in line for line in run.warnings)


def test_file_of_sqil_is_never_trained_as_another_algorithm() -> None:
    main, create = pair("sql", {"collect": {"model_path": "expert.ckpt"}})
    Path("sqil_config.py").write_text(FILE.format(main=main, create=create, name="sqil"))
    with pytest.raises(Missing, match=r"or give the config of an expert, .* -m sqil --expert-config FILE, got None"):
        translate("sqil_config.py")
    Path("plr_config.py").write_text(FILE.format(main=main, create=create, name="plr"))
    with pytest.raises(ValueError, match=r"serial_pipeline_\* of the file must be one of serial, onpolicy.*got 'plr'"):
        translate("plr_config.py")
    with pytest.raises(ValueError, match=r"policy\.type must be one that learns from replay, for SQIL, got 'ppo'"):
        translate(pair("ppo"), entry="sqil")


@pytest.mark.parametrize("called", ["serial", "sqil"])
def test_type_sqil_sac_is_sac_with_the_rewards_of_sqil_whatever_the_entry(called: str) -> None:
    main, create = pair_of("sac", {"collect": {"data_path": "expert.npz"}, "expert_random_collect_size": 100})
    create["policy"]["type"] = "sqil_sac"
    run = translate((main, create), entry=called)
    assert (run.policy, run.family) == ("sac", "sac")
    given = [run.data[name] for name in ("demonstrations", "demonstration_share", "imitation_reward")]
    assert given == ["expert.npz", 0.5, True]
    assert run.warnings == ("policy.expert_random_collect_size has no effect: an expert takes no random steps here",)
    del main["policy"]["collect"]["data_path"]
    with pytest.raises(Missing, match=r"policy\.collect\.data_path must be .* got None"):
        translate((main, create))


def test_ppg_has_an_entry_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[Any] = []
    monkeypatch.setattr("lightning_ding.di_engine.serial.train", lambda run, model: trained.append(run.policy))
    entry.serial_pipeline_onpolicy_ppg(pair_of("ppg"))
    assert trained == ["ppg"]
    with pytest.raises(ValueError, match=r"create_config\.policy\.type must be 'ppg', got 'ppo'"):
        entry.serial_pipeline_onpolicy_ppg(pair_of("ppo"))
    assert translate(pair_of("ppg"), entry="onpolicy_ppg").family == "ppg"


def test_dqfd_learns_from_an_expert(checkpoint: Any) -> None:
    learn = {"expert_replay_buffer_size": 40, "per_train_iter_k": 2, "lambda1": 1.0, "lambda2": 1.0}
    own = pair("dqfd", {"learn": learn, "collect": {"model_path": "expert.ckpt", "data_path": None}})
    dqfd_expert = pair("dqfd", {"collect": {"data_path": None}}, exp_name="expert")
    policy: Any = entry.serial_pipeline_dqfd(own, dqfd_expert, seed=0, max_env_step=48)
    assert (policy.progress.env_step, policy.progress.train_iter > 2) == (48, True)
    assert 40 <= len(load_dataset("expert/expert_data.npz")) < 400
    with pytest.raises(ValueError, match=r"policy\.type must be 'dqfd', got 'dqn'"):
        entry.serial_pipeline_dqfd(pair("dqn"), expert())


def test_gail_learns_from_an_expert(checkpoint: Any) -> None:
    rewards = {"type": "gail", "expert_model_path": "expert.ckpt", "collect_count": 40, "data_path": "run_data"}
    rewards |= {"input_size": 6, "hidden_size": 8, "batch_size": 8, "update_per_collect": 1}
    policy: Any = entry.serial_pipeline_gail(pair("dqn", reward_model=rewards), expert(), seed=0, max_env_step=48)
    assert policy.progress.env_step == 48
    run = imitation.gail_run(pair("dqn", reward_model=rewards), expert(), 0, 10**10, 10**10)
    assert run.policy_config["reward_model"]["data_path"] == str(Path("expert") / "expert_data.npz")
    with pytest.raises(Missing, match=r"dataset must be the path of a file, got 'run_data/expert_data\.npz'"):
        entry.serial_pipeline_gail(pair("dqn", reward_model=rewards), expert(), collect_data=False)
    with pytest.raises(ValueError, match=r"reward_model\.type must be 'gail', got 'rnd'"):
        entry.serial_pipeline_gail(pair("dqn", reward_model={"type": "rnd"}), expert())


def write_demonstrations() -> str:
    """Write 64 steps whose action is whether the first entry of the observation is positive."""
    obs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    ends = {"terminated": np.arange(64) % 16 == 15, "truncated": np.zeros(64, bool)}
    columns = {"obs": obs, "action": (obs[:, 0] > 0).astype(int), "reward": np.ones(64), **ends}
    np.savez("demos.npz", **columns, action_n=2, action_start=0)
    return "demos.npz"


def test_bc_imitates_its_data_set() -> None:
    learn = {"train_epoch": 60, "batch_size": 16, "learning_rate": 0.1, "weight_decay": 0.0}
    main, create = pair("bc", {"continuous": False, "learn": learn, "eval": {"evaluator": {"eval_freq": 1000}}})
    path = write_demonstrations()
    policy: Any = entry.serial_pipeline_bc((main, create), 0, path)
    assert (policy.progress.train_iter, policy.progress.env_step) == (60 * 4, 0)
    data = load_dataset(path).columns
    chosen = policy.eval_mode.forward(torch.from_numpy(data["obs"]))["action"]
    assert (chosen.numpy() == data["action"]).mean() > 0.95
    policy = entry.serial_pipeline_bc((main, create), 0, path, max_iter=3)
    assert policy.progress.train_iter == 3
    with pytest.raises(ValueError, match=r"policy\.type must be 'bc', got 'dqn'"):
        entry.serial_pipeline_bc(pair("dqn"), 0, path)


RND = {"type": "rnd", "obs_shape": 4, "hidden_size_list": [8], "batch_size": 8, "update_per_collect": 1}


def test_reward_models_with_replay_and_with_rollouts() -> None:
    off = pair("dqn", reward_model={**RND, "intrinsic_reward_weight": None})
    policy: Any = entry.serial_pipeline_reward_model_offpolicy(off, seed=0, max_env_step=48)
    assert policy.progress.env_step == 48
    assert "reward_model.intrinsic_reward_weight = None: it is 0.01, DI-engine's default" in translate(off).warnings
    on = pair("ppo", reward_model=RND)
    policy = entry.serial_pipeline_reward_model_onpolicy(on, seed=0, max_env_step=32)
    assert policy.progress.env_step == 32
    with pytest.raises(ValueError, match=r"rollouts \(serial_pipeline_reward_model_offpolicy trains the others\)"):
        entry.serial_pipeline_reward_model_onpolicy(off)
    with pytest.raises(ValueError, match=r"replay \(serial_pipeline_reward_model_onpolicy trains the others\)"):
        entry.serial_pipeline_reward_model_offpolicy(on)
    with pytest.raises(ValueError, match="reward_model must be a section of the config with a type"):
        entry.serial_pipeline_reward_model_offpolicy(pair("dqn"))


def test_modes_of_the_command(checkpoint: Any, capsys: pytest.CaptureFixture[str]) -> None:
    own = pair("sql", {"collect": {"model_path": "expert.ckpt"}})
    Path("own_config.py").write_text(FILE.format(main=own[0], create=own[1], name="sqil"))
    Path("expert_config.py").write_text(FILE.format(main=expert()[0], create=expert()[1], name="sqil"))
    arguments = ["serial", "-c", "own_config.py", "-m", "serial_sqil", "--env-step", "32"]
    command([*arguments, "--data-path", write_demonstrations()])
    assert "serial_pipeline_sqil -> demonstrations and imitation_reward" in capsys.readouterr().out
    for given, message in (
        (
            ["--expert-config", "expert_config.py", "-m", "onpolicy"],
            "--expert-config must be left out with the mode on",
        ),
        (["-m", "offline"], "--mode must be 'serial' for sql, got 'offline'"),
        (["-m", "reward_model_onpolicy"], "reward_model must be a section of the config with a type"),
    ):
        with pytest.raises(SystemExit):
            command(["serial", "-c", "own_config.py", *given])
        assert message in capsys.readouterr().err
