"""Which runs on data sets are repeated, and which data they have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import offline, proofs
from lightning_ding.datamodules.dataset_files import load_dataset


@pytest.fixture
def result(tmp_path: Path) -> Path:
    """Return a result file with seed 0 of ``bc``, made now."""
    file = tmp_path / "offline.json"
    offline.save("bc", {"seed": 0, "return": 1.0, "config": offline.settings_of("bc", "ours")}, file)
    return file


@pytest.mark.parametrize(
    ("seed", "side", "keep", "expected"),
    [
        (0, "ours", "none", False),
        (0, "ours", "config", True),
        (0, "ours", "commit", True),
        (1, "ours", "config", False),
    ],
)
def test_run_with_the_same_settings_is_kept_if_asked_for(
    seed: int, side: str, keep: str, expected: bool, result: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = json.loads(result.read_text())["bc"][0]["commit"].rstrip("+")
    result.write_text(result.read_text().replace("+", ""))
    monkeypatch.setattr(offline, "commit", lambda: made)
    assert offline.is_made("bc", side, seed, keep, result) is expected


def test_run_of_another_commit_or_of_changed_files_is_repeated(result: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for commit in ("0000000", "0000000+"):
        monkeypatch.setattr(offline, "commit", lambda commit=commit: commit)
        assert offline.is_made("bc", "ours", 0, "commit", result) is False


def test_run_with_other_settings_is_repeated(tmp_path: Path) -> None:
    file = tmp_path / "offline.json"
    offline.save("bc", {"seed": 0, "return": 1.0, "config": {"updates": 1}}, file)
    assert offline.is_made("bc", "ours", 0, "config", file) is False


@pytest.mark.parametrize("name", offline.ALGORITHMS)
def test_data_set_of_a_run_is_of_its_env(name: str) -> None:
    source = offline.SETS[offline.ALGORITHMS[name]]
    assert offline.recipe_of(name)[2] == proofs.load(source.recipe).ENV_ID


@pytest.mark.parametrize("name", sorted(set(offline.ALGORITHMS) - set(offline.OTHER_ENVS)))
def test_recipe_says_how_to_make_the_data_that_it_is_measured_with(name: str) -> None:
    source = offline.SETS[offline.ALGORITHMS[name]]
    says, file = str(offline.recipe_of(name)[1].__doc__), offline.file_of(offline.ALGORITHMS[name]).name
    if source.buffer_size is None:
        assert f"python recipes/{source.recipe}.py --max-env-step {source.env_steps}\n" in says
        assert f"--out {file} --episodes {source.n_episode}\n" in says
    elif not source.settings:
        assert f"python recipes/{source.recipe}.py --max-env-step {source.env_steps}\n" in says
        assert f"/checkpoints/last-*/rank_0/buffer.safetensors {file}\n" in says
    else:
        assert f"fit --config recipes/configs/{source.recipe}_cartpole.yaml" in says
        assert source.env_steps == proofs.load(source.recipe).MAX_ENV_STEP
        assert f"--model.cfg.other.replay_buffer.replay_buffer_size {source.buffer_size}\n" in says
        assert f"/checkpoints/last-*/rank_0/buffer.safetensors {file}\n" in says
    assert not source.is_greedy


def test_run_on_another_env_has_the_settings_of_its_recipe() -> None:
    assert offline.recipe_of("bc_cartpole")[::2] == ("bc", "CartPole-v1")
    assert offline.settings_of("bc_cartpole", "ours") == offline.settings_of("bc", "ours")


def test_replay_buffer_of_a_training_is_a_data_set_with_all_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(offline.SETS, "small", offline.Source("qrdqn", 128, buffer_size=1000))
    file = offline.make_data("small", tmp_path)
    assert file == tmp_path / "small.safetensors"
    found = load_dataset(file)
    assert found.statistics().transitions >= 128
    written = file.stat().st_mtime_ns
    assert offline.make_data("small", tmp_path).stat().st_mtime_ns == written
