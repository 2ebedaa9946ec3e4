"""The keys of IQL and behaviour cloning in DI-engine's configs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightning_ding.di_engine.configs import nested
from lightning_ding.di_engine.translate import translate
from tests.di_engine.pairs import pair_of


def config_of(kind: str, **keys: Any) -> Any:
    """Return our config of a policy, for keys with ``__`` in place of dots."""
    run = translate(pair_of(kind, nested({name.replace("__", "."): value for name, value in keys.items()})))
    return run.policy_class(run.policy_config).config


def test_iql_divides_advantages_by_its_beta_and_has_no_target_network() -> None:
    given = config_of("iql", learn__beta=0.05, learn__tau=0.8, learn__learning_rate_q=2e-4)
    assert (given.learn.beta, given.learn.tau) == (20.0, 0.8)
    assert (given.learn.learning_rate_q, given.learn.learning_rate_value) == (2e-4, 2e-4)
    default = config_of("iql", learn__target_theta=0.005)
    assert (default.learn.beta, default.learn.target_theta, default.learn.update_per_collect) == (1.0, 1.0, 1)
    assert (default.model.actor_head_hidden_size, default.model.actor_head_layer_num) == (512, 3)
    assert (default.model.critic_head_layer_num, default.model.last_layer_init) == (2, 3e-3)


def test_terms_that_iql_lacks_have_no_effect() -> None:
    run = translate(pair_of("iql", {"learn": {"alpha": 0.3, "min_q_weight": 5.0, "data_path": None}}))
    assert [line.partition(" = ")[0] for line in run.warnings] == [
        "policy.learn.alpha",
        "policy.learn.min_q_weight",
        "policy.learn.data_path",
    ]


def test_discrete_bc_has_dings_optimizer_and_network() -> None:
    config = config_of("bc", continuous=False, model__head_hidden_size=32, learn__ce_label_smooth=True)
    optimizer = config.learn.optimizer
    assert (optimizer.type, optimizer.momentum, optimizer.weight_decay) == ("sgd", 0.9, 1e-4)
    assert (config.learn.learning_rate, config.learn.batch_size, config.learn.ce_label_smooth) == (1e-5, 32, 0.1)
    assert list(config.model.encoder_hidden_size_list) == [128, 128, 64]
    assert (config.model.action_space, config.model.actor_head_hidden_size) == ("discrete", 32)


@pytest.mark.parametrize(("decay", "kind"), [(None, "adam"), (1e-3, "adamw")])
def test_bc_with_adam_decays_as_ding_does(decay: float | None, kind: str) -> None:
    optimizer = config_of("bc", learn__optimizer="Adam", learn__weight_decay=decay).learn.optimizer
    assert (optimizer.type, optimizer.weight_decay, optimizer.momentum) == (kind, decay or 0.0, 0.0)


def test_continuous_bc_regresses_a_bounded_mean() -> None:
    model = {"action_space": "regression", "actor_head_hidden_size": 48, "actor_head_layer_num": 2}
    keys = {f"model__{name}": value for name, value in model.items()}
    config = config_of("bc", continuous=True, loss_type="l1_loss", **keys)
    assert (config.model.action_space, config.model.bound_type) == ("continuous", "tanh")
    assert list(config.model.actor_hidden_size_list) == [48, 48, 48]
    assert config.model.encoder_hidden_size_list is None
    assert config.learn.loss_type == "l1_loss"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"learn": {"lr_decay": True}}, r"learn\.lr_decay must be False for bc here \(set learn\.lr_scheduler"),
        ({"learn": {"tanh_mask": True}}, r"learn\.tanh_mask must be False for bc here"),
        ({"learn": {"optimizer": "RMSprop"}}, r"learn\.optimizer must be 'SGD' or 'Adam' for bc here"),
    ],
)
def test_what_bc_lacks_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        translate(pair_of("bc", keys))


def test_evaluations_after_each_pass(tmp_path: Path) -> None:
    assert config_of("bc", eval__evaluator__eval_freq=-1).eval.evaluator.eval_freq == 1
