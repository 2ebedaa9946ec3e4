"""One optimisation step: alone, inside a fit, and on two processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader

from lightning_ding.policy.base import ddp
from lightning_ding.policy.base.config import GradClip, PolicyConfig
from lightning_ding.policy.base.ddp import average_gradients, first_difference
from lightning_ding.policy.base.trainer import attached_trainer
from lightning_ding.policy.base.update import Updater
from lightning_ding.utils.progress import Progress
from tests.processes import run_two_ranks

OBS = torch.arange(12.0).reshape(6, 2) / 6 - 1
TARGET = torch.tensor([1.0, -2.0, 0.5, 3.0, 0.0, 1.5])


class Regression(LightningModule):
    """Two linear networks, an optimizer each, and one update of the first for each batch."""

    def __init__(
        self, optimizer_class: type[torch.optim.Optimizer] = torch.optim.SGD, clip: float | None = None
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(2, 1), nn.Linear(2, 1)
        self.optimizer_list = [optimizer_class(m.parameters(), lr=0.1) for m in (self.first, self.second)]  # type: ignore[call-arg]
        self.clip = GradClip(clip)
        self.updater = Updater(self, PolicyConfig(), Progress())
        self.updater.optimizers = self.optimizer_list
        self.norm: Tensor | None = None

    def loss(self, obs: Tensor, target: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.first(obs).squeeze(1), target)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        obs, target = batch
        self.norm = self.updater.step(self.loss(obs, target), 0, self.clip)

    def configure_optimizers(self) -> Any:
        return self.optimizer_list


def weights(module: nn.Module) -> list[float]:
    """Return all parameters as numbers."""
    return [number for p in module.parameters() for number in p.flatten().tolist()]


@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_steps_on_one_device_are_those_of_plain_torch(
    optimizer_class: type[torch.optim.Optimizer], clip: float | None
) -> None:
    module, plain = Regression(optimizer_class, clip), Regression(optimizer_class)
    optimizer = plain.optimizer_list[0]
    for _ in range(3):
        module.training_step((OBS, TARGET), 0)
        optimizer.zero_grad()
        plain.loss(OBS, TARGET).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(plain.first.parameters(), clip)
        optimizer.step()
    assert weights(module) == weights(plain)


def test_a_step_returns_the_norm_before_clipping() -> None:
    module, plain = Regression(clip=0.5), Regression()
    plain.loss(OBS, TARGET).backward()
    module.training_step((OBS, TARGET), 0)
    before = torch.cat([p.grad.flatten() for p in plain.first.parameters() if p.grad is not None]).norm()
    after = torch.cat([p.grad.flatten() for p in module.first.parameters() if p.grad is not None]).norm()
    assert module.norm is not None
    assert_close((module.norm, after), (before, torch.tensor(0.5)), rtol=1e-5, atol=1e-6)


def test_a_step_without_a_limit_returns_no_norm() -> None:
    module = Regression()
    module.training_step((OBS, TARGET), 0)
    assert module.norm is None


def test_a_step_forgets_gradients_from_before() -> None:
    module, plain = Regression(), Regression()
    for parameter in module.first.parameters():
        parameter.grad = torch.full_like(parameter, 100.0)
    for each in (module, plain):
        each.training_step((OBS, TARGET), 0)
    assert weights(module) == weights(plain)


def test_a_step_touches_the_parameters_of_its_optimizer_only() -> None:
    module = Regression()
    before = weights(module.second)
    loss = module.loss(OBS, TARGET) + module.second(OBS).square().mean()
    module.updater.step(loss)
    assert weights(module.second) == before


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("direct", [False, True])
def test_steps_inside_a_fit_are_those_without_a_trainer(clip: float | None, direct: bool, tmp_path: Path) -> None:
    inside, outside = Regression(clip=clip), Regression(clip=clip)
    inside.updater.steps_directly = direct
    batches = [(OBS, TARGET), (OBS.flip(0), TARGET)]
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(inside, DataLoader(batches, batch_size=None))  # type: ignore[arg-type]
    for batch in batches:
        outside.training_step(batch, 0)
    assert weights(inside) == weights(outside)
    assert trainer.global_step == 2


def test_a_module_without_a_trainer_has_none_attached() -> None:
    assert attached_trainer(Regression()) is None


# Two processes


def run_rank(folder: str, number: str) -> None:
    """Write what each rank finds into ``folder``; the tests below read it."""
    rank = int(number)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    try:
        found = {"average": averaged_by(rank), "step": stepped_by(rank)}
    finally:
        dist.destroy_process_group()
    torch.save(found, f"{folder}/{rank}.pt")


def averaged_by(rank: int) -> list[Tensor | None]:
    """Average four parameters: with a gradient on both ranks, on rank 0, on rank 1, on none."""
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in ((2, 2), (3,), (1,), (2,))]
    if rank == 0:
        parameters[0].grad = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        parameters[1].grad = torch.tensor([2.0, 4.0, -6.0])
    else:
        parameters[0].grad = torch.tensor([[3.0, 0.0], [-3.0, 1.0]])
        parameters[2].grad = torch.tensor([5.0])
    assert average_gradients(parameters, torch.tensor(float(rank))) == 0.5
    return [p.grad for p in parameters]


def stepped_by(rank: int) -> tuple[list[Tensor], list[float], float]:
    """Make a clipped step from this rank's half of the batch; return gradient, weights, and norm."""
    module = Regression(clip=0.5)
    half = slice(3 * rank, 3 * rank + 3)
    module.training_step((OBS[half], TARGET[half]), 0)
    gradients = [p.grad for p in module.first.parameters() if p.grad is not None]
    assert module.norm is not None
    return gradients, weights(module), module.norm.item()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What rank 0 and rank 1 found."""
    folder = tmp_path_factory.mktemp("ranks")
    script = "import sys; from tests.policy.base.test_updater import run_rank; run_rank(*sys.argv[1:3])"
    run_two_ranks("-c", script, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("parameter", "expected"),
    [
        # ([[1, 2], [3, 4]] + [[3, 0], [-3, 1]]) / 2
        (0, [[2.0, 1.0], [0.0, 2.5]]),
        # the other rank has none, which counts as zero
        (1, [1.0, 2.0, -3.0]),
        (2, [2.5]),
    ],
)
def test_average_gradients_is_the_mean_over_all_ranks(
    ranks: list[dict[str, Any]], rank: int, parameter: int, expected: Any
) -> None:
    assert ranks[rank]["average"][parameter].tolist() == expected


@pytest.mark.parametrize("rank", [0, 1])
def test_average_gradients_leaves_none_where_no_rank_has_a_gradient(ranks: list[dict[str, Any]], rank: int) -> None:
    assert ranks[rank]["average"][3] is None


def test_two_ranks_with_half_the_batch_each_make_the_step_of_one_with_the_whole(ranks: list[dict[str, Any]]) -> None:
    whole = Regression(clip=0.5)
    whole.training_step((OBS, TARGET), 0)
    gradients, weights_after, norm = ranks[0]["step"]
    assert_close(gradients, [p.grad for p in whole.first.parameters()], rtol=1e-6, atol=1e-6)
    assert whole.norm is not None
    assert_close(
        (torch.tensor(weights_after), norm), (torch.tensor(weights(whole)), whole.norm.item()), rtol=1e-6, atol=1e-6
    )


def test_the_ranks_stay_equal_to_the_last_bit(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["step"][1:] == ranks[1]["step"][1:]


def first_difference_of(mine: Tensor, other: Tensor, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Return what a rank with weights ``mine`` finds, while another one has ``other``."""
    sent: list[Tensor] = []
    monkeypatch.setattr(ddp, "gather_rows", lambda row: sent.append(row) or row[None])  # type: ignore[func-returns-value]
    first_difference([("same", torch.ones(3)), ("weight", other)])
    monkeypatch.setattr(ddp, "gather_rows", lambda row: torch.stack([row, *sent]))
    return first_difference([("same", torch.ones(3)), ("weight", mine)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_difference_of_one_bit_is_found_in_any_type(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.tensor([[6e4, -6e4, 6e4], [1e-3, 0.0, float("nan")]], dtype=dtype).T  # not contiguous
    other = weight.clone()
    assert first_difference_of(weight, other, monkeypatch) is None
    other[0, 1] = torch.nextafter(other[0, 1], torch.ones((), dtype=dtype))
    assert first_difference_of(weight, other, monkeypatch) == "weight"


def test_differences_that_cancel_in_a_sum_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.tensor([1.0, 1.5, -3.0])
    other = torch.tensor([1.0 + 2**-23, 1.5 - 2**-23, -3.0])
    assert weight.double().sum() == other.double().sum()
    assert first_difference_of(weight, other, monkeypatch) == "weight"
    assert first_difference_of(weight, weight.clone(), monkeypatch) is None


def test_the_order_of_adding_up_makes_no_difference() -> None:
    weight = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert ddp.checksum(weight).item() == ddp.checksum(weight.flip(0)).item()
