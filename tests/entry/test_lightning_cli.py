from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ForwardRef, Literal, get_origin

import gymnasium as gym
import pytest
import torch
import yaml
from lightning import Trainer

from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.entry.lightning_cli import main
from lightning_ding.policy import DQNPolicy
from lightning_ding.registry import POLICY_REGISTRY
from tests.envs.own import SOURCE

Config = dict[str, Any]
LOGGER = {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": "runs", "name": "cartpole"}}


@pytest.fixture
def settings(small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Go into an empty folder with a config file ``run.yaml``, and return its content."""
    monkeypatch.chdir(tmp_path)
    flags = {"accelerator": "cpu", "logger": LOGGER, "enable_progress_bar": False, "enable_model_summary": False}
    data = {"env_id": "CartPole-v1", "num_envs": 2, "max_env_step": 64}
    found = {"seed_everything": 1, "policy": "dqn", "model": {"cfg": small}, "data": data, "trainer": flags}
    Path("run.yaml").write_text(yaml.safe_dump(found))
    return found


def run(*arguments: str) -> None:
    main([arguments[0], "--config", "run.yaml", *arguments[1:]])


def saved(name: str = "last.ckpt") -> Config:
    """Return the checkpoint of the one run that was made."""
    (file,) = Path("runs").rglob(name)
    state: Config = torch.load(file, weights_only=True)
    return state


def test_fit_trains_and_writes_its_run(settings: Config) -> None:
    run("fit")
    names = {file.name for file in Path("runs/cartpole/version_0").rglob("*")}
    assert {"config.yaml", "metrics.csv", "best.ckpt", "last.ckpt", "last-64"} <= names
    assert saved()["progress"] == {
        "env_step": 64,
        "train_iter": 12,
        "episode": saved()["progress"]["episode"],
        "sample": 64,
    }


def test_command_line_goes_before_the_file(settings: Config) -> None:
    run("fit", "--model.cfg.learn.update_per_collect", "3", "--data.max_env_step", "32")
    assert saved()["progress"]["train_iter"] == 6  # 16 random steps, then 2 rounds of 8
    written = yaml.safe_load(Path("runs/cartpole/version_0/config.yaml").read_text())
    assert written["model"]["cfg"]["learn"]["update_per_collect"] == 3
    assert written["model"]["cfg"]["learn"]["batch_size"] == 8  # of the file


@pytest.mark.parametrize(
    "config", [["--config", "run.yaml"], ["-c=run.yaml"], ["-c", "run.yaml", "--config=other.yaml"]]
)
def test_option_before_the_config_file_takes_precedence_too(
    settings: Config, config: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("other.yaml").write_text("data: {rounds_per_epoch: 5, max_env_step: 80}")
    with pytest.raises(SystemExit):
        main(["fit", "--data.max_env_step", "96", *config, "--print_config"])
    found = yaml.safe_load(capsys.readouterr().out)["data"]
    assert found["max_env_step"] == 96
    assert found["rounds_per_epoch"] == (5 if len(config) == 3 else None)


def test_run_from_the_written_config_is_the_same_run(settings: Config) -> None:
    run("fit")
    first = saved()["state_dict"]
    Path("run.yaml").write_text(Path("runs/cartpole/version_0/config.yaml").read_text())
    Path("runs").rename("first")
    run("fit")
    torch.testing.assert_close(saved()["state_dict"], first, rtol=0, atol=0)


def test_checkpoint_is_validated_and_tested(settings: Config, capsys: pytest.CaptureFixture[str]) -> None:
    run("fit")
    (file,) = Path("runs").rglob("last.ckpt")
    policy, datamodule = DQNPolicy(settings["model"]["cfg"]), ReplayDataModule(**settings["data"])
    trainer = Trainer(**{**settings["trainer"], "logger": False, "enable_checkpointing": False})
    for command, function in (("validate", trainer.validate), ("test", trainer.test)):
        (scores,) = function(policy, datamodule, ckpt_path=file, verbose=False)
        capsys.readouterr()
        run(command, "--ckpt_path", str(file))
        name = f"{'eval' if command == 'validate' else 'test'}/return_mean"
        assert re.search(rf"{name}\s+│\s+{scores[name]:.6g}", capsys.readouterr().out)


def test_last_checkpoint_of_the_runs_folder_is_gone_on_from(settings: Config) -> None:
    run("fit")
    run("fit", "--ckpt_path", "last", "--data.max_env_step", "96")
    files = sorted(Path("runs").rglob("last.ckpt"), key=lambda file: file.stat().st_mtime)
    assert torch.load(files[-1], weights_only=True)["progress"]["env_step"] == 96
    assert torch.load(files[-1], weights_only=True)["progress"]["train_iter"] == 20  # 12 before, 4 rounds of 2 since
    run("validate", "--ckpt_path", "last")


@pytest.mark.parametrize("command", ["fit", "validate", "test"])
def test_last_checkpoint_that_is_not_there_ends_in_one_line_before_anything_starts(
    settings: Config, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with pytest.raises(SystemExit) as exit_code:
        run(command, "--ckpt_path", "last")
    assert exit_code.value.code == 2
    assert_one_line(capsys.readouterr().err, 'ckpt_path="last" needs a complete checkpoint, but there is none')
    assert [file.name for file in Path().iterdir()] == ["run.yaml"]


def test_printed_config_holds_the_settings_and_can_be_fed_back(
    settings: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed() -> Config:
        with pytest.raises(SystemExit) as exit_code:
            run("fit", "--print_config")
        assert exit_code.value.code == 0
        read: Config = yaml.safe_load(capsys.readouterr().out)
        return read

    found = printed()
    assert found["policy"] == "dqn"
    assert deep_merge(found["model"], settings["model"]) == found["model"]  # nothing of the file is missing
    assert deep_merge(found["data"], settings["data"]) == found["data"]
    Path("run.yaml").write_text(yaml.safe_dump(found))
    assert printed() == found
    assert not Path("runs").exists()


def fields(config_class: Any, path: str = "model.cfg") -> Iterator[tuple[str, str]]:
    """Yield the dotted name and the documentation of every field that holds a value."""
    source = "".join(inspect.getsource(one) for one in config_class.__mro__ if hasattr(one, "__dataclass_fields__"))
    for field in dataclasses.fields(config_class):
        default = getattr(config_class(), field.name)
        if dataclasses.is_dataclass(default):
            yield from fields(type(default), f"{path}.{field.name}")
        else:
            text = re.search(rf'^    {field.name}: .*\n    """([^"]+)"""', source, re.MULTILINE)
            assert text is not None, f"{path}.{field.name} says nothing"
            yield f"{path}.{field.name}", text[1]


def arguments_of_the_datamodule() -> Iterator[tuple[str, str]]:
    """Yield the dotted name and the documentation of every argument."""
    constructors = [inspect.getdoc(vars(one).get("__init__")) or "" for one in ReplayDataModule.__mro__]
    documentation = "\n".join(constructors)
    for name in list(inspect.signature(ReplayDataModule).parameters):
        text = re.search(rf"^    {name}: (.+(?:\n     .+)*)", documentation, re.MULTILINE)
        assert text is not None, f"data.{name} says nothing"
        yield f"data.{name}", text[1]


def plain(text: str) -> str:
    """Return a text without the white space and markup in which two renderings of it may differ."""
    return re.sub(r"[\s`]+", "", text)


def test_help_lists_every_field_with_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_code:
        main(["fit", "--help"])
    assert exit_code.value.code == 0
    entries = re.split(r"\n  (?=--)", capsys.readouterr().out)
    shown = {found[1]: plain(entry) for entry in entries if (found := re.match(r"--([\w.]+)", entry))}
    asked = [*fields(DQNPolicy.config_class), *arguments_of_the_datamodule()]
    assert len(asked) >= 60 + 12
    for name, meaning in asked:
        assert name in shown, f"{name} is not listed"
        assert plain(meaning) in shown[name], f"{name} does not say {meaning!r}"
    assert f"Registeredname({','.join(POLICY_REGISTRY)})" in shown["policy"]


def quoted(alias: Any) -> bool:
    """Return whether a type contains another one as text."""
    arguments = () if get_origin(alias) is Literal else getattr(alias, "__args__", ())
    return any(isinstance(one, str | ForwardRef) or quoted(one) for one in arguments)


@pytest.mark.parametrize("name", POLICY_REGISTRY)
def test_no_alias_next_to_a_config_contains_a_quoted_type(name: str) -> None:
    """To find such a type, jsonargparse looks at every variable of every loaded module, for each class of a config."""
    modules = {one.__module__ for one in POLICY_REGISTRY.get(name).config_class.__mro__}
    aliases = {f"{module}.{key}": value for module in modules for key, value in vars(sys.modules[module]).items()}
    assert [key for key, value in aliases.items() if key.startswith("lightning_ding") and quoted(value)] == []


MISTAKES: list[tuple[str, Sequence[str], Config, str]] = [
    ("key", ["--model.cfg.learn.batchsize", "8"], {}, "did you mean 'model.cfg.learn.batch_size'?"),
    ("key with =", ["--data.num_env=3"], {}, "did you mean 'data.num_envs'?"),
    ("abbreviation", ["--trainer.max_epoch", "3"], {}, "did you mean 'trainer.max_epochs'?"),
    (
        "key in the file",
        [],
        {"model": {"cfg": {"learn": {"batchsize": 8}}}},
        "did you mean 'model.cfg.learn.batch_size'?",
    ),
    ("data in the file", [], {"data": {"max_env_steps": 8}}, "did you mean 'data.max_env_step'?"),
    ("option of before", ["--model.cfg.learn.lr_scheduler.epoch_num", "8"], {}, "set type: linear, which ends with"),
    ("policy", ["--policy", "dqnn"], {}, "no policy is registered as 'dqnn'; did you mean 'dqn'?"),
    ("policy in the file", [], {"policy": "dqnn"}, "no policy is registered as 'dqnn'; did you mean 'dqn'?"),
    ("dotted policy", ["--policy", "nowhere.Policy"], {}, "nowhere"),
    ("no policy", ["--policy", "os.path"], {}, "policy must name a Policy, got 'os.path'"),
    ("value", ["--model.cfg.learn.batch_size", "0"], {}, "learn.batch_size must be >= 1, got 0"),
    ("type", ["--model.cfg.learn.batch_size", "many"], {}, '"model.cfg.learn.batch_size"'),
    ("choice", ["--model.cfg.learn.loss", "huberr"], {}, '"model.cfg.learn.loss"'),
    (
        "option of another datamodule",
        ["--policy", "iql", "--data.max_env_step", "8"],
        {},
        "unknown option 'data.max_env_step'; it is one of ReplayDataModule and RolloutDataModule, and this policy "
        "trains with OfflineDataModule; did you mean 'max_train_iter'?",
    ),
    ("env", ["--data.env_id", "CartPol-v1"], {}, "did you mean 'CartPole-v1'?"),
]


@pytest.mark.parametrize(("arguments", "content", "message"), [pytest.param(*m[1:], id=m[0]) for m in MISTAKES])
def test_mistake_ends_in_one_line_before_anything_starts(
    settings: Config, capsys: pytest.CaptureFixture[str], arguments: Sequence[str], content: Config, message: str
) -> None:
    Path("run.yaml").write_text(yaml.safe_dump(deep_merge(settings, content)))
    with pytest.raises(SystemExit) as exit_code:
        run("fit", *arguments)
    assert exit_code.value.code == 2
    assert_one_line(capsys.readouterr().err, message)
    assert [file.name for file in Path().iterdir()] == ["run.yaml"]


def assert_one_line(err: str, message: str) -> None:
    (line,) = [text for text in err.splitlines() if not re.match("Seed set|GPU|TPU|💡", text)]  # Lightning's greetings
    assert line.startswith("error: ")
    assert message in line


@pytest.mark.parametrize("arguments", [["fitt"], []])
def test_command_that_does_not_exist_names_those_that_do(
    settings: Config, capsys: pytest.CaptureFixture[str], arguments: Sequence[str]
) -> None:
    with pytest.raises(SystemExit) as exit_code:
        main(arguments)
    assert exit_code.value.code == 2
    line = capsys.readouterr().err
    assert_one_line(line, "subcommand")
    assert all(command in line for command in ("fit", "validate", "test"))


USERS_POLICY = """
from dataclasses import dataclass
from lightning_ding.policy import DQNPolicy
from tests.envs.own import SOURCE
from lightning_ding.policy.dqn import DQNConfig

@dataclass(frozen=True)
class MyConfig(DQNConfig):
    patience: int = 3
    \"\"\"How long it waits.\"\"\"

class MyPolicy(DQNPolicy):
    config_class = MyConfig
    made = []
    def __init__(self, cfg=None, **kwargs):
        super().__init__(cfg, **kwargs)
        self.made.append(self)
"""


def test_policy_of_the_user_is_found_by_its_path(
    settings: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_policies.py").write_text(USERS_POLICY)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        run("fit", "--policy", "my_policies.MyPolicy", "--model.cfg.patience", "5")
        (policy,) = sys.modules["my_policies"].MyPolicy.made
    finally:
        sys.modules.pop("my_policies", None)
    assert policy.config.patience == 5
    assert policy.config.learn.batch_size == 8
    assert policy.progress.env_step == 64


FLATTEN = "gymnasium.wrappers.FlattenObservation"
SHORT = {"time_limit": {"max_episode_steps": 2}}
LIMIT = {"class_path": "gymnasium.wrappers.TimeLimit", "init_args": {"max_episode_steps": 2}}
OWN_ENVS: dict[str, tuple[Sequence[str], Config]] = {
    "module:id": (["--data.env_id", "own_envs:Own-v0"], {"env_id": "own_envs:Own-v0"}),
    "dotted path": (["--data.env_id=own_envs.OwnEnv"], {"env_id": "own_envs.OwnEnv"}),
    "function": (["--data.env_id=own_envs:make_own"], {"env_id": "own_envs:make_own"}),
    "class_path": (
        ["--data.env_id.class_path=own_envs.OwnEnv", "--data.env_id.init_args.size=4"],
        {"env_id": {"class_path": "own_envs.OwnEnv", "init_args": {"size": 4}}},
    ),
    "import_names": (
        ["--data.import_names=own_envs", "--data.env_id=Own-v0"],
        {"import_names": ["own_envs"], "env_id": "Own-v0"},
    ),
    "wrappers": (
        ["--data.env_id=own_envs.OwnEnv", f"--data.wrappers+={FLATTEN}", f"--data.train_wrappers+={json.dumps(LIMIT)}"],
        {"env_id": "own_envs.OwnEnv", "wrappers": [FLATTEN], "train_wrappers": [LIMIT]},
    ),
    "evaluation": (
        ["--data.env_id=own_envs.OwnEnv", "--data.eval_env_id=own_envs:Own-v0", f"--data.eval_wrappers={FLATTEN}",
         f"--data.train_wrappers=[{FLATTEN}]"],
        {"env_id": "own_envs.OwnEnv", "eval_env_id": "own_envs:Own-v0", "eval_wrappers": FLATTEN,
         "train_wrappers": [FLATTEN]},
    ),
}  # fmt: skip


@pytest.fixture
def own(settings: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Config]:
    """Write a module with a user-defined env next to a config without an env."""
    Path("own_envs.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    del settings["data"]["env_id"]
    settings["data"]["max_env_step"] = 32
    Path("run.yaml").write_text(yaml.safe_dump(settings))
    yield settings
    sys.modules.pop("own_envs", None)
    gym.registry.pop("Own-v0", None)


EVERY_FORM = [*OWN_ENVS["class_path"][0], *OWN_ENVS["evaluation"][0][1:3], "--data.import_names=own_envs"]
EVERY_FORM += ["--data.train_wrappers+=flatten", f"--data.train_wrappers+={json.dumps(SHORT)}"]


def test_an_own_env_and_its_wrappers_are_trained_resumed_exactly_validated_and_tested(own: Config) -> None:
    run("fit", *EVERY_FORM, "--data.max_env_step=48")
    whole = saved()
    (written,) = Path("runs").rglob("config.yaml")
    Path("run.yaml").write_text(written.read_text())
    Path("runs").rename("first")
    run("fit", "--data.max_env_step=32")
    run("fit", "--ckpt_path=last")
    files = sorted(Path("runs").rglob("last.ckpt"), key=lambda file: file.stat().st_mtime)
    resumed = torch.load(files[-1], weights_only=True)
    assert resumed["progress"] == whole["progress"]
    torch.testing.assert_close(resumed["state_dict"], whole["state_dict"], rtol=0, atol=0)
    for command in ("validate", "test"):
        run(command, "--ckpt_path=last")


def test_a_printed_config_names_own_envs_as_the_flags_did(own: Config, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*arguments: str) -> Config:
        with pytest.raises(SystemExit):
            run("fit", *arguments, "--print_config")
        text = capsys.readouterr().out
        Path("run.yaml").write_text(text)
        read: Config = yaml.safe_load(text)
        return read

    first = printed(*EVERY_FORM)
    assert first["data"]["train_wrappers"] == ["flatten", SHORT]
    assert first["data"]["eval_env_id"] == "own_envs:Own-v0"
    assert first["data"]["env_id"]["class_path"] == "own_envs.OwnEnv"
    assert printed() == first


@pytest.mark.slow  # tests/envs/test_named.py makes each form without a run
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("how", ["flags", "file"])
@pytest.mark.parametrize("form", OWN_ENVS)
def test_an_own_env_is_trained_and_evaluated_in(own: Config, form: str, how: str, mode: str) -> None:
    flags, data = OWN_ENVS[form]
    if how == "file":
        Path("run.yaml").write_text(yaml.safe_dump(deep_merge(own, {"data": data})))
        flags = []
    run("fit", *flags, f"--data.mode={mode}")
    assert saved()["progress"]["env_step"] == 32
    run("validate", *flags, f"--data.mode={mode}", "--ckpt_path=last")


REFUSED: list[tuple[str, Sequence[str], str]] = [
    ("flag that Lightning refuses", ["--trainer.max_steps=-5"], "max_steps"),
    ("flags that exclude each other", ["--trainer.strategy=nonsense"], "nonsense"),
    ("flag that is refused here", ["--trainer.accumulate_grad_batches=4"], "accumulate_grad_batches"),
    ("action space", ["--data.env_id=Pendulum-v1"], "action"),
    ("package that is missing", ["--data.env_id=Ant-v5"], "MuJoCo is not installed"),
    ("mode", ["--data.mode=native", "--data.env_id=Acrobot-v1"], "native"),
    ("file", ["--ckpt_path=nowhere.ckpt"], "nowhere.ckpt"),
    ("config file", ["--config=broken.yaml"], "parsing config"),
]


@pytest.mark.parametrize(("arguments", "message"), [pytest.param(*case[1:], id=case[0]) for case in REFUSED])
def test_a_run_that_is_refused_before_it_begins_ends_in_one_line(
    settings: Config, capsys: pytest.CaptureFixture[str], arguments: Sequence[str], message: str
) -> None:
    if message.startswith("MuJoCo") and importlib.util.find_spec("mujoco"):
        pytest.skip("MuJoCo is installed")
    Path("broken.yaml").write_text("data: {")
    with pytest.raises(SystemExit) as exit_code:
        run("fit", *arguments)
    assert exit_code.value.code == 2
    assert_one_line(capsys.readouterr().err, message)


BROKEN = """
from own_envs import OwnEnv as Sound
class OwnEnv(Sound):
    def reset(self, **kwargs):
        raise ValueError("a bug of the env")
"""


def test_a_bug_of_the_users_env_shows_its_traceback(own: Config) -> None:
    Path("broken_envs.py").write_text(BROKEN)
    with pytest.raises(ValueError, match="a bug of the env"):
        run("fit", "--data.env_id=broken_envs.OwnEnv", f"--data.wrappers+={FLATTEN}")


def test_printing_the_config_gives_no_warning(settings: Config, recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(SystemExit):
        run("fit", "--print_config")
    assert [str(one.message) for one in recwarn if "round-trip" in str(one.message)] == []
