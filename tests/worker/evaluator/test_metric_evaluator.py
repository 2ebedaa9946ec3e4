"""The metric evaluator: a mean over all examples of a data set, regardless of batches and ranks."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from lightning import LightningModule
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torchmetrics import MeanAbsoluteError, MeanSquaredError, Metric, MetricCollection
from torchmetrics.classification import BinaryAccuracy, MulticlassAccuracy, MulticlassConfusionMatrix

from lightning_ding.utils.modes import EvalMode
from lightning_ding.worker import (
    BattleInteractionSerialEvaluator,
    IMetric,
    MetricSerialEvaluator,
    create_serial_evaluator,
)
from lightning_ding.worker.evaluator.config import EvaluatorConfig
from tests.toys.envs import CountingEnv


class Accuracy(IMetric):
    """The share of examples whose output is the label, in percent."""

    def eval(self, inputs: Any, label: Any) -> dict[str, float]:
        return {"accuracy": 100 * (inputs == label).float().mean().item()}

    def gt(self, metric1: Mapping[str, float], metric2: Mapping[str, float] | None) -> bool:
        return metric2 is None or metric1["accuracy"] >= metric2["accuracy"]


class Told(IMetric):
    """Returns given values; "at least as good" means in every value."""

    def __init__(self, **values: float) -> None:
        self.values = values

    def eval(self, inputs: Any, label: Any) -> dict[str, float]:
        return self.values

    def gt(self, metric1: Mapping[str, float], metric2: Mapping[str, float] | None) -> bool:
        return metric2 is None or all(metric1[name] >= metric2[name] for name in metric1)


class Strict(Told):
    """As Told, but an equal value is not enough."""

    def gt(self, metric1: Mapping[str, float], metric2: Mapping[str, float] | None) -> bool:
        return metric2 is None or all(metric1[name] > metric2[name] for name in metric1)


def policy_of(function: Any) -> EvalMode:
    def nothing(*_: Any) -> Any:
        return None

    return EvalMode(function, nothing, nothing, nothing, nothing, nothing)


DOUBLE = policy_of(lambda inputs: 2 * inputs + 1)
X = torch.arange(5.0)


def loader(inputs: Tensor = X, label: Tensor | None = None, batch_size: int = 1) -> DataLoader[Any]:
    """Return (x, 2 x + 1) by default."""
    return DataLoader(TensorDataset(inputs, 2 * inputs + 1 if label is None else label), batch_size)


def evaluator_of(metric: Any, data: Any = None, policy: EvalMode = DOUBLE, **cfg: Any) -> MetricSerialEvaluator:
    return MetricSerialEvaluator(cfg, (loader() if data is None else data, metric), policy)


# ------------------------------------------------------------------ what is measured


def test_values_have_the_order_in_which_the_metric_gave_them() -> None:
    assert list(evaluator_of(Told(squared=1.0, absolute=2.0)).run().items()) == [("squared", 1.0), ("absolute", 2.0)]


def test_policy_that_is_right_has_the_accuracy_one_hundred_and_stops() -> None:
    evaluator = evaluator_of(Accuracy(), stop_value=75.0)
    was_due = evaluator.should_eval(0)

    assert was_due
    assert evaluator.eval(train_iter=1) == (True, {"accuracy": 100.0})


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("kind", ["IMetric", "torchmetrics"])
def test_last_batch_counts_by_its_size(batch_size: int, kind: str) -> None:
    label = torch.tensor([1.0, 3, 5, 7, 0])  # the last one is wrong by 9
    metric: Any = Accuracy() if kind == "IMetric" else MeanAbsoluteError()

    values = evaluator_of(metric, loader(X, label, batch_size)).run()

    expected = {"accuracy": 80.0} if kind == "IMetric" else {"MeanAbsoluteError": 9 / 5}
    assert values == pytest.approx(expected, rel=1e-6)


def test_reduce_mean_weighs_batches_equally_if_nothing_is_said() -> None:
    assert Accuracy().reduce_mean([{"a": 1.0, "b": 0.0}, {"a": 4.0, "b": 1.0}]) == {"a": 2.5, "b": 0.5}


def test_reduce_mean_of_a_metric_is_asked_for_the_mean() -> None:
    class Largest(Accuracy):
        def reduce_mean(self, inputs: Any, weights: Any = None) -> dict[str, float]:
            assert weights == [2.0, 2.0, 1.0]
            return {"accuracy": max(values["accuracy"] for values in inputs)}

    assert evaluator_of(Largest(), loader(X, torch.tensor([1.0, 0, 0, 0, 0]), 2)).run() == {"accuracy": 50.0}


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (lambda x: x, 0.0),
        (lambda x: {"action": x + 1}, 1.0),
        (lambda x: {"action": x + 1, "logit": x + 2}, 4.0),
    ],
)
def test_torchmetrics_gets_the_logit_else_the_action(output: Any, expected: float) -> None:
    evaluator = evaluator_of(MeanSquaredError(), loader(X, X), policy_of(output))

    assert evaluator.run() == {"MeanSquaredError": expected}


def test_metric_gets_all_that_the_policy_returns() -> None:
    class Both(Accuracy):
        def eval(self, inputs: Any, label: Any) -> dict[str, float]:
            return {"accuracy": (inputs["action"] + inputs["logit"]).mean().item()}

    evaluator = evaluator_of(Both(), loader(X, X), policy_of(lambda x: {"action": x, "logit": 10 * x}))

    assert evaluator.run() == {"accuracy": 22.0}  # 11 times the mean of 0..4


def test_torchmetrics_sees_all_examples_at_once() -> None:
    """The mean of the batches' class-wise accuracies is another number."""
    logit = torch.tensor([[9.0, 0], [9, 0], [0, 9], [9, 0]])
    metric = MulticlassAccuracy(num_classes=2, average="macro")
    data = loader(logit, torch.tensor([0, 0, 1, 1]), batch_size=2)

    values = evaluator_of(metric, data, policy_of(lambda x: {"logit": x})).run()

    assert values == {"MulticlassAccuracy": 0.75}  # class 0: 2 / 2, class 1: 1 / 2


def test_collection_gives_all_its_metrics() -> None:
    collection = MetricCollection([MeanSquaredError(), MeanAbsoluteError()])

    assert evaluator_of(collection, loader(X, 2 * X + 4)).run() == {"MeanSquaredError": 9.0, "MeanAbsoluteError": 3.0}


def test_second_evaluation_knows_nothing_of_the_first() -> None:
    evaluator = evaluator_of(MeanAbsoluteError(), loader(X, 2 * X + 3))
    evaluator.run()
    evaluator.reset_env((loader(X, 2 * X + 1), evaluator.env[1]))  # type: ignore[index]

    assert evaluator.run() == {"MeanAbsoluteError": 0.0}


def test_arrays_reach_policy_and_metric_as_tensors() -> None:
    batches = [(np.array([1.0, 2.0]), np.array([3.0, 5.0]))]
    seen = []

    def forward(inputs: Tensor) -> Tensor:
        seen.append(inputs.dtype)
        return 2 * inputs + 1

    assert evaluator_of(Accuracy(), batches, policy_of(forward)).run() == {"accuracy": 100.0}
    assert seen == [torch.float32]


def test_values_are_plain_python() -> None:
    _, values = evaluator_of(MetricCollection([MeanSquaredError()])).eval()

    assert [type(value) for value in values.values()] == [float]


def test_evaluator_resets_the_policy_before_it_measures() -> None:
    resets: list[Any] = []
    evaluator = evaluator_of(Accuracy(), policy=DOUBLE._replace(reset=lambda: resets.append(None)))
    resets.clear()
    evaluator.run()

    assert len(resets) == 1


# ------------------------------------------------------------------ what is better, and when it is enough


@pytest.mark.parametrize(
    ("stop_value", "train_iter", "stop"),
    [(75.0, 1, True), (75.1, 1, False), (75.0, 0, False), (75.0, -1, False), (None, 1, False)],
)
def test_metric_stops_at_the_stop_value_but_not_before_the_first_update(
    stop_value: float | None, train_iter: int, stop: bool
) -> None:
    evaluator = evaluator_of(Told(accuracy=75.0), stop_value=stop_value)

    assert evaluator.eval(train_iter=train_iter)[0] is stop


@pytest.mark.parametrize(("loss", "stop"), [(0.25, True), (0.26, False)])
def test_small_values_are_enough_if_higher_is_not_better(loss: float, stop: bool) -> None:
    data = loader(X, 2 * X + 1 + loss**0.5)

    assert evaluator_of(MeanSquaredError(), data, stop_value=0.25).eval(train_iter=1)[0] is stop


def test_every_value_has_to_reach_the_stop_value_if_the_metric_says_so() -> None:
    stops = [evaluator_of(Told(a=9.0, b=b), stop_value=5.0).eval(train_iter=1)[0] for b in (4.0, 5.0)]

    assert stops == [False, True]


@pytest.mark.parametrize(("first", "stop"), [(MeanSquaredError(), False), (MeanAbsoluteError(), True)])
def test_first_metric_of_a_collection_says_what_is_enough(first: Metric, stop: bool) -> None:
    metrics: list[Metric | MetricCollection] = [first, MeanSquaredError(), MeanAbsoluteError()]
    collection = MetricCollection({f"{number}": metric for number, metric in enumerate(metrics)})
    data = loader(X, 2 * X + 3)  # a squared error of 4, an absolute error of 2

    assert evaluator_of(collection, data, stop_value=2.0).eval(train_iter=1)[0] is stop


def saved_after(metrics: list[Any]) -> list[int]:
    """Evaluate with each metric in turn, and return how often the evaluator had saved after each."""
    evaluator, saved, counts = MetricSerialEvaluator(policy=DOUBLE), [], []  # type: tuple[Any, list[str], list[int]]
    for metric in metrics:
        evaluator.reset_env((loader(), metric))
        evaluator.eval(saved.append)
        counts.append(len(saved))
    return counts


@pytest.mark.parametrize("kind", [Told, Strict])
def test_metric_saves_when_it_is_better_than_ever(kind: type[Told]) -> None:
    assert saved_after([kind(a=value) for value in (1.0, 1.0, 0.5, 2.0)]) == [1, 1, 1, 2]


def test_metric_that_is_better_in_one_value_and_worse_in_another_is_not_saved() -> None:
    assert saved_after([Told(a=1.0, b=1.0), Told(a=2.0, b=0.0), Told(a=2.0, b=1.0)]) == [1, 1, 2]


def test_loss_is_saved_when_it_is_smaller_than_ever() -> None:
    evaluator, saved = MetricSerialEvaluator(policy=DOUBLE), []  # type: tuple[Any, list[str]]
    counts = []
    for error in (2.0, 3.0, 1.0):
        evaluator.reset_env((loader(X, 2 * X + 1 + error), MeanAbsoluteError()))
        evaluator.eval(saved.append)
        counts.append(len(saved))

    assert counts == [1, 1, 2]


def test_metric_without_a_direction_is_better_when_it_is_larger() -> None:
    class Undirected(MeanAbsoluteError):  # noqa: N818 - no exception
        higher_is_better = None  # type: ignore[assignment]

    assert evaluator_of(Undirected(), loader(X, 2 * X + 4), stop_value=2.0).eval(train_iter=1)[0] is True


@pytest.mark.parametrize("metric", [BinaryAccuracy(), MetricCollection([BinaryAccuracy()])])
def test_every_metric_of_torchmetrics_is_a_metric(metric: Any) -> None:
    assert isinstance(metric, IMetric)


def test_should_eval_of_metrics_counts_updates_since_the_last_evaluation() -> None:
    evaluator = evaluator_of(Accuracy(), eval_freq=50)
    due = [evaluator.should_eval(0), evaluator.should_eval(0)]
    evaluator.eval(train_iter=0)
    due += [evaluator.should_eval(train_iter) for train_iter in (0, 49, 50)]

    assert due == [True, True, False, False, True]


def test_resumed_metric_evaluator_does_not_save_a_worse_policy() -> None:
    first = evaluator_of(Told(a=2.0), eval_freq=50)
    first.eval(train_iter=10)
    resumed, saved = evaluator_of(Told(a=1.0), eval_freq=50), []  # type: tuple[Any, list[str]]
    resumed.load_state_dict(first.state_dict())
    due = resumed.should_eval(59)
    resumed.eval(saved.append, train_iter=60)

    assert (due, saved, resumed.best_metric) == (False, [], {"a": 2.0})


def test_reset_forgets_the_best_metric_and_the_last_evaluation() -> None:
    evaluator = evaluator_of(Told(a=2.0))
    evaluator.eval(train_iter=10)
    evaluator.reset()

    assert (evaluator.best_metric, evaluator.should_eval(10)) == (None, True)


# ------------------------------------------------------------------ what is written, and where it is used


def test_metric_evaluator_writes_values_and_times(monkeypatch: pytest.MonkeyPatch) -> None:
    class Writer:
        scalars: dict[str, tuple[float, int]] = {}  # noqa: RUF012 - of one test

        def add_scalar(self, name: str, value: float, step: int) -> None:
            self.scalars[name] = (value, step)

    clock = iter([100.0, 110.0])
    monkeypatch.setattr("lightning_ding.worker.evaluator.metric.perf_counter", lambda: next(clock))
    MetricSerialEvaluator(None, (loader(), Accuracy()), DOUBLE, Writer(), instance_name="judge").eval(None, 30, 400)

    expected = {"accuracy": 100.0, "batch_count": 5, "evaluate_time": 10.0, "avg_time_per_batch": 2.0}
    assert Writer.scalars == {
        f"judge_{axis}/{name}": (value, step)
        for name, value in expected.items()
        for axis, step in (("iter", 30), ("step", 400))
    }


def test_metric_evaluator_works_in_a_validation_loop(make_trainer: Any) -> None:
    class Doubling(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.evaluator = evaluator_of(BinaryAccuracy(), loader(X, (X > 1).long()), policy_of(lambda x: x - 2))

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            """Do nothing."""

        def on_validation_epoch_end(self) -> None:
            self.log_dict(self.evaluator.run())

    (metrics,) = make_trainer().validate(Doubling(), DataLoader(TensorDataset(X)), verbose=False)

    assert metrics == pytest.approx({"BinaryAccuracy": 0.8})  # x - 2 is a logit: the 2 alone is on the edge


# ------------------------------------------------------------------ errors and life


@pytest.mark.parametrize("given", ["nothing", "env", "policy"])
def test_metric_evaluator_needs_data_and_policy(given: str) -> None:
    parts: dict[str, Any] = {"env": (loader(), Accuracy()), "policy": DOUBLE}
    evaluator = MetricSerialEvaluator(**{name: part for name, part in parts.items() if name == given})

    with pytest.raises(RuntimeError, match=r"the evaluator needs \(data loader, metric\) and a policy"):
        evaluator.eval()


def test_metric_evaluator_shows_what_it_works_with_until_it_is_closed() -> None:
    data, metric = loader(), Accuracy()
    evaluator = evaluator_of(metric, data)
    shown = (evaluator.env, evaluator.policy)
    evaluator.close()

    assert shown == ((data, metric), DOUBLE)
    assert (evaluator.env, evaluator.policy) == (None, None)


@pytest.mark.parametrize(
    ("env", "got"),
    [
        (SyncVectorEnv([CountingEnv]), "got 'SyncVectorEnv'|got SyncVectorEnv"),
        ((loader(),), r"got \['DataLoader'\]"),
        ((loader(), "accuracy"), r"got \['DataLoader', 'str'\]"),
    ],
)
def test_env_of_a_metric_evaluator_is_data_and_a_metric(env: Any, got: str) -> None:
    with pytest.raises(TypeError, match=rf"env must be \(data loader, IMetric or torchmetrics.Metric\), ({got})"):
        MetricSerialEvaluator(env=env)


@pytest.mark.parametrize("evaluator", [MetricSerialEvaluator, BattleInteractionSerialEvaluator])
def test_some_defaults_of_a_nested_key_of_another_evaluator_are_accepted(evaluator: Any) -> None:
    for given in ({}, {"mode": "train_iter"}):
        assert evaluator.resolve_config({"render": given}) == EvaluatorConfig()
    with pytest.raises(TypeError, match=r"'render.render_freq' must be int, got str: 'often'"):
        evaluator.resolve_config({"render": {"render_freq": "often"}})


def test_data_of_a_distributed_sampler_is_taken_as_it_comes() -> None:
    data = TensorDataset(X, 2 * X + 1 + 10 * X)  # an error of 10 x
    shares = [
        DataLoader(data, sampler=DistributedSampler(data, num_replicas=2, rank=rank, shuffle=False)) for rank in (0, 1)
    ]

    errors = [evaluator_of(MeanAbsoluteError(), share).run()["MeanAbsoluteError"] for share in shares]

    assert errors == pytest.approx([20.0, 40 / 3])  # x = 0, 2, 4 and x = 1, 3 and, to make up the number, 0


def test_metric_evaluator_takes_the_eval_mode_of_a_whole_policy() -> None:
    whole: Any = SimpleNamespace(eval_mode=DOUBLE)

    assert MetricSerialEvaluator(env=(loader(), Accuracy()), policy=whole).policy is DOUBLE


# ------------------------------------------------------------------ DI-engine's forms


class OwnMean(Told):
    """A metric as DI-engine's interface has it: ``reduce_mean`` takes the results alone."""

    def eval(self, inputs: Any, label: Any) -> dict[str, float]:
        return {"accuracy": 100 * (inputs == label).float().mean().item()}

    def reduce_mean(self, inputs: list[Any]) -> Any:  # type: ignore[override]
        return {"accuracy": sum(one["accuracy"] for one in inputs) / len(inputs)}


def test_reduce_mean_without_weights_averages_batches_in_its_own_way() -> None:
    x = torch.arange(1.0, 6.0)
    data = loader(x, torch.where(x == 5, 0.0, 2 * x + 1), batch_size=4)  # 4 right, then 1 wrong
    _, values = MetricSerialEvaluator(None, (data, OwnMean()), DOUBLE).eval()
    assert values == {"accuracy": 50.0}  # weighted by the sizes it would be 80
    assert MetricSerialEvaluator(None, (data, Accuracy()), DOUBLE).eval()[1] == {"accuracy": 80.0}


def test_reduce_mean_that_returns_no_mapping_is_named() -> None:
    class Number(OwnMean):
        def reduce_mean(self, inputs: list[Any]) -> Any:  # type: ignore[override]
            return 1.0

    with pytest.raises(TypeError, match="reduce_mean must return a mapping of values by name, got float"):
        MetricSerialEvaluator(None, (loader(), Number()), DOUBLE).eval()


@pytest.mark.parametrize(("b", "stops"), [(2.0, True), (4.0, False)])
def test_stop_value_may_be_a_mapping_of_the_value_of_each_metric(b: float, stops: bool) -> None:
    evaluator = MetricSerialEvaluator({"stop_value": {"a": 1.0, "b": b}}, (loader(), Told(a=1.5, b=3.0)), DOUBLE)
    assert evaluator.eval(train_iter=0)[0] is False
    assert evaluator.eval(train_iter=1)[0] is stops


@pytest.mark.parametrize("kind", ["interaction", "battle_interaction"])
def test_evaluators_in_envs_refuse_a_mapping_as_stop_value(kind: str) -> None:
    with pytest.raises(ValueError, match="stop_value must be a number or None, unless the evaluator is a metric evalu"):
        create_serial_evaluator({"type": kind, "stop_value": {"a": 1.0}})


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="n_episode must be None, a metric evaluator runs no episodes, got 3"):
        evaluator_of(Accuracy()).eval(n_episode=3)
    with pytest.raises(ValueError, match="every rank needs a batch of the data loader, but 1 got none"):
        evaluator_of(Accuracy(), loader(X[:0])).run()
    metric = MulticlassConfusionMatrix(num_classes=2)
    with pytest.raises(ValueError, match="metric 'MulticlassConfusionMatrix' must be a single number, got"):
        evaluator_of(metric, loader(X[:2], torch.tensor([0, 1])), policy_of(lambda x: x.long())).run()
    with pytest.raises(KeyError, match="action"):
        evaluator_of(MeanSquaredError(), policy=policy_of(lambda x: {"value": x})).run()
    with pytest.raises(ValueError, match=r"'multi_gpu' does not exist here: leave it out: the ranks of torch"):
        MetricSerialEvaluator({"multi_gpu": False})


def test_evaluators_take_their_arguments_in_the_order_of_the_reference() -> None:
    saved: list[str] = []
    evaluator = MetricSerialEvaluator({"eval_freq": 5}, (loader(), Told(a=1.0)), DOUBLE, None, "experiment", "judge")
    stop, values = evaluator.eval(saved.append, 7, 70)
    assert (stop, values, len(saved)) == (False, {"a": 1.0}, 1)
    assert not evaluator.should_eval(11)
    evaluator.reset(DOUBLE, (loader(), Told(a=2.0)))
    assert evaluator.eval(None, 7, 70)[1] == {"a": 2.0}
