"""Every call of a Trainer works, or raises an error that names the alternative; docs/lightning.md has the tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from lightning.pytorch.tuner.tuning import Tuner
from torch.utils.data import DataLoader

from lightning_ding.policy import DQNPolicy
from tests.toys.envs import CountingEnv
from tests.trainer.cases import Case, cases, check_case, run_case
from tests.trainer.test_flags import FLAGS
from tests.trainer.test_stock_callbacks import CALLBACKS

PAGE = Path(__file__).parents[2] / "docs" / "lightning.md"


def built(policy: DQNPolicy) -> DQNPolicy:
    env = CountingEnv()
    policy.build(env.observation_space, env.action_space)
    return policy


CALLS = [
    Case("fit", "trainer.fit(policy, datamodule)", "collects and learns"),
    Case(
        "validate",
        "trainer.validate(policy, datamodule)",
        "an evaluation",
        call=lambda trainer, *run: trainer.validate(*run, verbose=False),
        check=lambda run: run.seen.evaluations == [0],
    ),
    Case(
        "test",
        "trainer.test(policy, datamodule)",
        "an evaluation of other episodes",
        call=lambda trainer, *run: trainer.test(*run, verbose=False),
        check=lambda run: "test/return_mean" in run.trainer.callback_metrics,
    ),
    Case(
        "predict",
        "trainer.predict(policy, datamodule)",
        "`trainer.test`, or `policy(observations)`",
        call=lambda trainer, *run: trainer.predict(*run),
        refused=r"trainer.predict .*trainer.test .*policy\(observations\)",
    ),
    Case(
        "predict",
        "trainer.predict(policy, DataLoader(observations))",
        "greedy actions",
        call=lambda trainer, policy, data: trainer.predict(built(policy), DataLoader(cast(Any, torch.zeros(4, 3)), 2)),
        check=lambda run: True,
    ),
    Case(
        "lr_find",
        "Tuner(trainer).lr_find(policy, datamodule=datamodule)",
        "`learn.learning_rate` of the policy",
        call=lambda trainer, policy, data: Tuner(trainer).lr_find(policy, datamodule=data),
        refused="LearningRateFinder .*learn.learning_rate",
    ),
    Case(
        "scale_batch_size",
        "Tuner(trainer).scale_batch_size(policy, datamodule=datamodule)",
        "`learn.batch_size` of the policy",
        call=lambda trainer, policy, data: Tuner(trainer).scale_batch_size(policy, datamodule=data),
        refused="BatchSizeFinder .*learn.batch_size",
    ),
]


@cases(CALLS)
@pytest.mark.filterwarnings("ignore")
def test_call_works_or_is_refused_by_name_with_what_to_use(
    case: Case, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    check_case(case, tmp_path, capfd)


def test_page_shows_the_tables() -> None:
    shown = re.findall(r"^\| `.*\|$", PAGE.read_text(), re.MULTILINE)
    assert shown == [case.row() for case in [*FLAGS, *CALLBACKS, *CALLS]]


def test_loggers_are_notified_of_every_checkpoint(tmp_path: Path) -> None:
    done = run_case(Case("", "", "", {"enable_checkpointing": True}), tmp_path)
    assert done.notes.saved == ["best.ckpt", "last.ckpt", "last.ckpt"]


if __name__ == "__main__":
    for table in (FLAGS, CALLBACKS, CALLS):
        print("\n".join(case.row() for case in table), "\n")
