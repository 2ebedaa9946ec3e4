from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from lightning_ding.config import deep_merge, resolve
from lightning_ding.distributed import ParallelConfig
from lightning_ding.distributed.coordinator.coordinator import Coordinator
from lightning_ding.distributed.coordinator.folder import check_folder, holds_run
from lightning_ding.distributed.coordinator.resume import check_fixed_part, fixed_part
from lightning_ding.registry import BUFFER_REGISTRY, NotRegisteredError
from tests.distributed.coordinator.coordinating import POLICY, Run, config

STATE, RESULT, LEARNER = "coordinator/run.db", "result.json", "learner/metrics.csv"
JOURNAL = "coordinator/journal/buffer/000000000001_a_0.safetensors"
OVER = "a finished run: choose another folder"
NONE = "no run to resume: start without --resume, or correct main.exp_name"
LOST = (
    f"files of a run, such as {JOURNAL}, but not coordinator/run.db, without which it cannot be resumed; "
    "nothing was changed: restore that file, or choose another folder"
)
GONE = (
    "a finished run without its data, which main.keep_data=false deletes, so it cannot be continued: "
    "choose another folder"
)
RUNS = (
    "a run: --resume continues it, a finished one with a larger limit such as main.max_env_step, "
    "or choose another folder"
)


@pytest.mark.parametrize(
    ("files", "of_new", "of_resumed"),
    [
        ([], None, NONE),
        (["config.json"], None, NONE),
        ([STATE], RUNS, None),
        ([STATE, RESULT, LEARNER], RUNS, None),  # it was given up
        ([RESULT], OVER, GONE),
        ([LEARNER], OVER, NONE),
        ([JOURNAL], LOST, LOST),
        ([JOURNAL, "coordinator/.run.db.new"], LOST, LOST),
        (["coordinator/.run.db.new"], None, NONE),  # it was killed before it had done anything
        ([JOURNAL, LEARNER], OVER, LOST),
    ],
)
def test_folder_takes_a_new_run_only_without_another_and_resuming_needs_one_that_is_not_over(
    tmp_path: Path, files: list[str], of_new: str | None, of_resumed: str | None
) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()

    assert holds_run(tmp_path) == (STATE in files)
    with _refusal(tmp_path, of_new):
        check_folder(tmp_path, resume=False)
    with _refusal(tmp_path, of_resumed):
        check_folder(tmp_path, resume=True)


def config_of(policy: str, **buffer: Any) -> ParallelConfig:
    described = {"type": policy, "other": {"replay_buffer": buffer}}
    main = {"exp_name": "x", "policy": described, "env": {"env_id": "CartPole-v1"}}
    return resolve(ParallelConfig, {"main": main})


def with_keys_of_all_buffers(part: dict[str, Any]) -> dict[str, Any]:
    """Return the fixed part as runs saved it that had the keys of all buffers in their section."""
    section = part["main"]["policy"]["other"]["replay_buffer"]
    every = [BUFFER_REGISTRY.get(name).default_config() for name in BUFFER_REGISTRY]
    defaults = {key: value for one in every for key, value in one.items() if key != "cfg_type"}
    part["main"]["policy"]["other"]["replay_buffer"] = {**defaults, **section}
    return part


@pytest.mark.parametrize(
    ("policy", "buffer"),
    [("dqn", {}), ("rainbow", {}), ("dqn", {"type": "advanced", "alpha": 0.4}), ("dqn", {"type": "not registered"})],
)
def test_run_that_saved_the_keys_of_all_buffers_can_be_resumed(policy: str, buffer: dict[str, Any]) -> None:
    config = config_of(policy, **buffer)
    check_fixed_part(with_keys_of_all_buffers(fixed_part(config)), config)


def test_default_of_a_buffer_may_be_left_out_or_given_when_a_run_is_resumed() -> None:
    without, given, other = (config_of("rainbow", **keys) for keys in ({}, {"alpha": 0.6}, {"alpha": 0.5}))
    check_fixed_part(fixed_part(without), given)
    check_fixed_part(fixed_part(given), without)
    for was, now, message in (
        (without, other, "0.6, as in the run that is resumed, got 0.5"),
        (other, without, "0.5, as in the run that is resumed, got 0.6"),
    ):
        with pytest.raises(ValueError, match=f"^main.policy.other.replay_buffer.alpha must be {re.escape(message)}$"):
            check_fixed_part(fixed_part(was), now)


def test_section_without_own_keys_that_was_saved_is_compared_with_its_defaults() -> None:
    saved = fixed_part(config_of("rainbow"))
    section = saved["main"]["policy"]["other"]["replay_buffer"]
    for key in ("alpha", "thruput_controller"):
        del section[key]
    check_fixed_part(saved, config_of("rainbow", alpha=0.6))


def test_another_buffer_is_named_by_its_type_when_a_run_is_resumed() -> None:
    with pytest.raises(ValueError, match=r"^main.policy.other.replay_buffer.type must be 'advanced', as in the run"):
        check_fixed_part(fixed_part(config_of("rainbow")), config_of("rainbow", type="naive", alpha=0.6))


def _refusal(folder: Path, reason: str | None) -> Any:
    """Return what expects an error with a reason, or none."""
    if reason is None:
        return nullcontext()
    return pytest.raises(ValueError, match=f"^{re.escape(f'main.exp_name={str(folder)!r} contains {reason}')}$")


@pytest.mark.parametrize("sections", [("collect", "collector"), ("eval", "evaluator")])
def test_module_that_only_workers_import_is_in_the_config_of_a_resumed_run(
    sections: tuple[str, str], tmp_path: Path
) -> None:
    part, worker = sections
    policy = deep_merge(POLICY, {part: {worker: {"import_names": ["absent_module"]}}})
    run = Run(config(tmp_path, policy))
    run.restart()
    run.coordinator.run.database.close()
    other = config(tmp_path)
    with pytest.raises(
        NotRegisteredError, match=rf"'absent_module' \(fixed.main.policy.{part}.{worker}.import_names\)"
    ):
        Coordinator(other, run.store, resume=True)


def test_run_of_an_older_version_is_resumed_with_the_same_network() -> None:
    config = config_of("sac")
    saved = fixed_part(config)
    policy = saved["main"]["policy"]
    del policy["cfg_type"]
    policy["model"] |= {"actor_head_layer_num": 2, "critic_head_layer_num": 2}  # both counted the first layer
    check_fixed_part(saved, config)
    policy["model"]["actor_head_layer_num"] = 3
    with pytest.raises(ValueError, match=r"main.policy.model.actor_head_layer_num must be 2, as in the run"):
        check_fixed_part(saved, config)
