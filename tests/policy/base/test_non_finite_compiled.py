# ruff: noqa: F811 - fixtures
"""Compiled updates whose loss or gradient is not finite; as in test_compiled.py mostly without the compiler."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_ding.policy import NonFiniteError, load_dump
from tests.policy.base.test_compiled import batches, learn, make, no_compiler  # noqa: F401 - a fixture
from tests.policy.base.test_non_finite import equal, state_of, with_bad
from tests.processes import run_two_ranks

NAN = math.nan


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("mode", ["raise", "skip_update", "warn"])
@pytest.mark.parametrize("name", ["dqn", "sac", "ppo"])
def test_a_compiled_update_that_is_bad_does_what_an_eager_one_does(
    name: str,
    mode: str,
    no_compiler: list[list[bool]],
) -> None:
    check_one(name, mode)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["raise", "skip_update", "warn"])
def test_the_compiler_leaves_out_a_bad_update(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="lightning_ding"):
        check_one("dqn", mode)
    assert "eagerly" not in caplog.text


def check_one(name: str, mode: str) -> None:
    policy = make(name, True, {"on_non_finite": mode})
    data = batches(name, 4)
    learn(policy, data[:3])
    before = state_of(policy)
    bad = with_bad(data[3], "reward", NAN)
    if name == "ppo":
        bad = {**bad, "reward": bad["reward"] * NAN}
    if mode == "raise":
        with pytest.raises(NonFiniteError, match=r"the loss .* is nan, the norm of its gradient "):
            policy._learn(bad)  # compiled code may clamp the gradient of a NaN to a number: the loss tells
    else:
        policy._learn(bad)
    after = state_of(policy)
    assert len(after) == len(before)
    moved = [k for k, (one, other) in enumerate(zip(after, before, strict=True)) if not torch.equal(one, other)]
    names = list(policy.state_dict())
    if mode == "warn":
        assert moved
    else:  # SAC's targets move where the weights are
        assert not [k for k in moved if k >= len(names) or not names[k].startswith("target_model")] or name == "sac"
        assert all(torch.isfinite(tensor).all() for tensor in after)
    learn(policy, data[:1])


def test_finite_compiled_update_resets_the_count_of_consecutive_skips(no_compiler: list[list[bool]]) -> None:
    policy = make("dqn", True, {"on_non_finite": "skip_update"})
    (good,) = batches("dqn", 1)
    bad = with_bad(good, "reward", NAN)
    before = state_of(policy)
    for number in range(150):
        policy._learn(dict(good if number == 75 else bad))
    assert policy.updater.guard.skipped_updates == 149
    assert not equal(state_of(policy), before)


def test_updates_of_a_device_are_looked_at_once_a_round(
    no_compiler: list[list[bool]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from lightning_ding.policy.base import non_finite

    monkeypatch.setattr(non_finite, "READ_AT_ONCE", ())
    policy: Any = make("dqn", True)
    good = batches("dqn", 3)
    learn(policy, good)
    before = state_of(policy)
    policy._learn(with_bad(good[0], "reward", NAN))
    policy._learn(good[1])
    assert equal(state_of(policy), before)
    with pytest.raises(NonFiniteError, match="update 3: "):
        policy.updater.guard.look()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found."""
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(__file__).with_name("non_finite_ranks_script.py")
    run_two_ranks(script, folder, timeout=140)
    return [torch.load(folder / f"rank_{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("what", ["raise", "clip", "loss"])
def test_all_ranks_raise_at_the_update_in_which_one_has_a_bad_minibatch(what: str, ranks: list[dict[str, Any]]) -> None:
    one, other = (found[what] for found in ranks)
    assert one["update"] == other["update"] == 3
    assert one["is_unchanged"]
    assert other["is_unchanged"]
    assert torch.equal(one["weights"], other["weights"])
    numbers = [found["error"].split(";")[0] for found in (one, other)]
    assert numbers[0] == numbers[1]
    assert "is nan" in numbers[0]


def test_each_rank_writes_its_own_minibatch(ranks: list[dict[str, Any]]) -> None:
    folders = [Path(found["raise"]["folder"]) for found in ranks]
    assert [folder.name for folder in folders] == ["update_3_rank_0", "update_3_rank_1"]
    good, bad = (load_dump(folder) for folder in folders)
    assert good.batch["reward"].isfinite().all()
    assert bad.batch["reward"].isnan().sum() == 1
    good.repeat()
    with pytest.raises(NonFiniteError, match="update 3: "):
        bad.repeat()


def test_all_ranks_skip_the_update_in_which_one_has_a_bad_minibatch(ranks: list[dict[str, Any]]) -> None:
    one, other = (found["skip"] for found in ranks)
    assert one["error"] is other["error"] is None
    assert one["skipped"] == other["skipped"] == 1
    assert one["is_unchanged"]
    assert other["is_unchanged"]
    assert torch.equal(one["weights"], other["weights"])
    assert one["weights"].isfinite().all()
    assert not torch.equal(one["weights"], ranks[0]["raise"]["weights"])  # it went on
