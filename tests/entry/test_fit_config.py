"""Config files of ``lightning-ding fit`` as those of distributed runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_ding.config import to_dict
from lightning_ding.entry import parallel
from lightning_ding.entry.config_file import read_config
from tests.processes import ROOT

CONFIGS = ROOT / "recipes" / "configs"
FILE = CONFIGS / "ppo_cartpole.yaml"


def written(folder: Path, **changed: Any) -> Path:
    content = {"policy": "ppo", "data": {"env_id": "CartPole-v1"}, **changed}
    file = folder / "fit.yaml"
    file.write_text(yaml.safe_dump({key: value for key, value in content.items() if value is not None}))
    return file


@pytest.mark.parametrize(("name", "collectors"), [("ppo_cartpole", 4), ("her_bitflip", 2)])
def test_file_of_fit_gives_the_run_that_the_file_of_parallel_describes(name: str, collectors: int) -> None:
    found = read_config(CONFIGS / f"{name}.yaml", [f"system.collector.num={collectors}"])
    expected = read_config(CONFIGS / f"parallel_{name}.yaml")
    mine, other = to_dict(found), to_dict(expected)
    assert mine["main"].pop("exp_name") == f"runs/{name}/parallel"
    other["main"].pop("exp_name")
    assert other["main"]["env"].pop("stop_value") == other["main"]["policy"]["eval"]["evaluator"]["stop_value"]
    assert mine["main"]["env"].pop("stop_value") is None  # that of the policy counts
    assert mine == other


def test_every_recipe_of_fit_is_read_or_refused_in_one_line() -> None:
    files = sorted(file for file in CONFIGS.glob("*.yaml") if not file.name.startswith("parallel_"))
    assert len(files) >= 70
    refused = {}
    for file in files:
        try:
            read_config(file)
        except ValueError as error:
            refused[file.stem] = str(error)
    assert len(files) - len(refused) >= 40
    for name, why in refused.items():
        assert "\n" not in why, name
        assert why.startswith(("main.", "data.", "policy must", "system.", "other.")), (name, why)


def test_envs_are_divided_among_the_collectors(tmp_path: Path) -> None:
    file = written(tmp_path, data={"env_id": "CartPole-v1", "num_envs": 6}, system={"collector": {"num": 3}})
    assert read_config(file).main.env.collector_env_num == 2
    assert read_config(file, ["system.collector.num=4"]).main.env.collector_env_num == 2
    assert read_config(file, ["main.env.collector_env_num=5"]).main.env.collector_env_num == 5


def test_ranks_of_fit_are_those_of_the_learner_and_have_their_envs_in_the_collectors(tmp_path: Path) -> None:
    trainer = {"devices": 2, "num_nodes": 2, "strategy": "ddp"}
    cfg = read_config(written(tmp_path, data={"env_id": "CartPole-v1", "num_envs": 3}, trainer=trainer))
    assert cfg.system.learner.multi_gpu
    assert cfg.system.learner.trainer == {"accelerator": "cpu", **trainer}
    assert cfg.main.env.collector_env_num == 6  # of 12 of all ranks
    assert not read_config(written(tmp_path, trainer={"devices": 1})).system.learner.multi_gpu


@pytest.mark.parametrize("devices", ["2", [0, 1], -1, True])
def test_devices_that_are_no_number_are_refused(tmp_path: Path, devices: Any) -> None:
    with pytest.raises(ValueError, match=r"trainer\.devices must be an integer >= 1 in a distributed run, got"):
        read_config(written(tmp_path, trainer={"devices": devices}))
    for accelerator in ("auto", "cpu"):  # as in a config that a run of `fit` has saved
        trainer = {"devices": "auto", "accelerator": accelerator, "num_nodes": 1}
        assert not read_config(written(tmp_path, trainer=trainer)).system.learner.multi_gpu


def test_arguments_of_data_trainer_and_model_reach_their_sections(tmp_path: Path) -> None:
    data = {"env_id": "CartPole-v1", "seed": 5, "max_env_step": 900, "norm_obs": True, "eval_every": 300}
    model = {"class_path": "PPOPolicy", "init_args": {"cfg": {"discount_factor": 0.9}}}
    trainer = {"max_time": "00:01:00:00", "logger": False}
    cfg = read_config(written(tmp_path, data=data, model=model, trainer=trainer, seed_everything=3))
    main, learner = cfg.main, cfg.system.learner
    assert (main.seed, main.max_env_step, main.norm_obs, main.exp_name) == (5, 900, True, "runs/parallel")
    assert (main.policy["discount_factor"], learner.eval_every) == (0.9, 300)
    assert learner.trainer == {"accelerator": "cpu", "max_time": "00:01:00:00", "logger": False}
    assert read_config(written(tmp_path, seed_everything=3)).main.seed == 3


def test_demonstrations_of_a_file_of_fit_are_those_of_the_run(tmp_path: Path) -> None:
    data = {"env_id": "CartPole-v1", "demonstrations": "d.npz", "demonstration_share": 0.3, "imitation_reward": True}
    main = read_config(written(tmp_path, policy="dqn", data=data)).main
    assert (main.demonstrations, main.demonstration_share, main.imitation_reward) == ("d.npz", 0.3, True)
    with pytest.raises(ValueError, match=r"main\.demonstrations must be a data set, because 'rlpd'"):
        read_config(written(tmp_path, policy="rlpd", data={"env_id": "Pendulum-v1"}))


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"data": {"env_id": "CartPole-v1", "overlap": True}}, "data.overlap must be left out in a distributed run"),
        ({"policy": None, "model": {"class_path": "PPOPolicy"}}, "policy must be the name of a registered policy"),
        ({"ckpt_path": "last"}, "ckpt_path must be left out: --resume continues"),
        ({"optimizer": {}}, r"the config file must be one with the keys .*, got \['optimizer'\]"),
        ({"model": {"cfg": {"lern": {}}}}, "lern"),
        ({"model": {"cfg": {}, "model": "my.Network"}}, "model must be the policy's cfg alone in a distributed run"),
        ({"model": {"cfg": "fast"}}, "model.cfg must be a mapping, got 'fast'"),
        ({"model": ["cfg"]}, r"model must be a mapping, got \['cfg'\]"),
        ({"data": "CartPole-v1"}, "data must be a mapping, got 'CartPole-v1'"),
        ({"trainer": [1]}, r"trainer must be a mapping, got \[1\]"),
        ({"system": 3}, "system must be a mapping, got 3"),
        ({"system": {"collector": 3}}, "system.collector must be a mapping, got 3"),
        ({"system": {"collector": {"num": 0}}}, "collector.num must be .*>= 1.*, got 0"),
        ({"data": {"env_id": "CartPole-v1", "num_envs": 2.5}}, "data.num_envs must be an integer >= 1, got 2.5"),
        ({"data": {"env_id": "CartPole-v1", "num_envs": "many"}}, "data.num_envs must be an integer >= 1, got 'many'"),
        ({"trainer": {"logger": {"class_path": "WandbLogger"}}}, "trainer.logger must be a TensorBoardLogger, false"),
        ({"trainer": {"logger": ["TensorBoardLogger"]}}, "trainer.logger must be a TensorBoardLogger, false or left"),
    ],
)
def test_what_a_distributed_run_cannot_do_is_refused(tmp_path: Path, changed: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        read_config(written(tmp_path, **changed))


@pytest.mark.parametrize("as_json", [False, True])
def test_last_line_is_for_people_or_the_result_for_programs(
    tmp_path: Path, as_json: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = {"env_step": 5, "train_iter": 2, "seconds": 1.0, "results": {}, "counters": {"restarts": 0}}
    monkeypatch.setattr(parallel, "parallel_pipeline", lambda cfg, resume: result)
    parallel.main(["parallel", "--config", str(written(tmp_path)), *["--json"] * as_json])
    told = capsys.readouterr().out
    line = "finished: 5 env steps, 2 updates, 1 s, 0 restarts; result in runs/parallel/result.json\n"
    assert json.loads(told) == result if as_json else told == line
