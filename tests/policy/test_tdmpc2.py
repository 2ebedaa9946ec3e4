"""TD-MPC2: the networks and the losses against loops, plans by the model, the memory of envs, and learning."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor
from torch.testing import assert_close

from lightning_ding import rl
from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule, replay
from lightning_ding.model.tdmpc2 import TDMPC2, SimNorm
from lightning_ding.policy import TDMPC2Policy
from lightning_ding.worker import create_buffer
from tests.algorithms.table import TDMPC2 as TINY
from tests.conftest import MakeTrainer
from tests.toys.bandits import TargetEnv

Config = dict[str, Any]
T, B, A = 3, 2, 2
SMOOTH: Config = {"plan": {"num_samples": 32, "max_std": 0.4, "min_std": 0.2}}  # few actions are at the bounds
SHAPES: Config = {"obs_shape": 3, "action_shape": A, "action_low": [-1.0, -1.0], "action_high": [3.0, 1.0]}


def make(**changes: Any) -> Any:
    torch.manual_seed(0)
    policy: Any = TDMPC2Policy(deep_merge(deep_merge(TINY, {"model": SHAPES}), changes))
    policy.seed(0)
    model, target = policy.model, policy.target_model.critic
    for weight in (model.reward.layers[-1].weight, model.critic.weights[-1], target.weights[-1]):  # zero at first
        torch.nn.init.normal_(weight, std=0.5)
    return policy


def data(**changes: Any) -> Config:
    """Return sequences: the first terminates at its last step; the second ends with a time limit at step 1."""
    rng = np.random.default_rng(0)
    obs = torch.from_numpy(rng.normal(size=(T + 1, B, 3)).astype(np.float32))
    terminated, mask = torch.zeros(T, B, dtype=torch.bool), torch.ones(T, B, dtype=torch.bool)
    terminated[2, 0], mask[2, 1] = True, False
    action = torch.from_numpy(rng.uniform(-1, 1, (T, B, A)).astype(np.float32))
    columns = {"obs": obs[:-1], "next_obs": obs[1:], "action": action, "reward": torch.arange(1.0, 7.0).view(T, B)}
    return {**columns, "terminated": terminated, "mask": mask, "discount": torch.full((T, B), 0.9), **changes}


def with_equal_noise(policy: Any) -> None:
    """Give all steps of evaluations the same random numbers."""
    noise = policy._plan_noise(np.random.default_rng(0), 1)
    policy._plan_noise = lambda rng, envs: noise


class TestNetworks:
    def test_groups_of_a_latent_state_are_probabilities(self) -> None:
        found = SimNorm(2)(torch.tensor([[0.0, math.log(3.0), 1.0, 1.0]]))
        assert_close(found, torch.tensor([[0.25, 0.75, 0.5, 0.5]]))

    def test_layers_are_normalised_before_mish(self) -> None:
        network = make().model
        given, (first, second, last) = torch.randn(4, 8 + A), network.reward.layers
        x = given
        with torch.no_grad():
            for layer, norm in zip((first, second), network.reward.norms, strict=True):
                y = x @ layer.weight.T + layer.bias
                y = (y - y.mean(1, keepdim=True)) / (y.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
                y = y * norm.weight + norm.bias
                x = y * torch.tanh(torch.log1p(y.exp())) if layer is first else F.mish(y)
            expected = x @ last.weight.T + last.bias
            assert_close(network.reward(given), expected)

    def test_first_weights_are_those_of_the_authors(self) -> None:
        torch.manual_seed(0)
        network: Any = TDMPC2(4, 2)
        latent, action = network.encoder(torch.randn(5, 4)), torch.randn(5, 2).clamp(-1, 1)
        assert network.decoded(network.reward_logit(latent, action)).tolist() == [0.0] * 5
        assert network.decoded(network.value_logit(latent, action)).tolist() == [[0.0] * 5] * 5
        for weight in (network.dynamics[0].layers[0].weight, network.critic.weights[0]):
            assert weight.std().item() == pytest.approx(0.02, rel=0.05)
        assert network.bins[0].item() == -10.0
        assert len(network.bins) == 101

    def test_named_sizes_have_about_their_number_of_parameters(self) -> None:
        counts = {}
        for size, critics in {"1m": 2, "5m": 5, "19m": 5, "48m": 5}.items():
            with torch.device("meta"):
                network = TDMPC2(24, 6, size=size, ensemble_num=critics, predicts_end=False)  # type: ignore[arg-type]
            counts[size] = round(sum(one.numel() for one in network.parameters()) / 1e6)
        assert counts == {"1m": 1, "5m": 5, "19m": 18, "48m": 47}

    def test_values_are_predicted_on_the_scale_of_symlog(self) -> None:
        network = TDMPC2(4, 2, bins=5, largest_bin=2.0)  # symlog -2, -1, 0, 1, 2
        logit = torch.tensor([-30.0, -30.0, -30.0, math.log(0.5), math.log(0.5)])
        assert_close(network.decoded(logit), torch.tensor(math.expm1(1.5)))
        log_p = torch.tensor([0.0, 0.0, 0.0, 1.0, 2.0]).log_softmax(0)
        found = network.cross_entropy(torch.tensor([0.0, 0.0, 0.0, 1.0, 2.0]), torch.tensor(math.expm1(1.25)))
        assert_close(found, -(0.75 * log_p[3] + 0.25 * log_p[4]))

    def test_prior_is_a_squashed_gaussian_whose_log_density_is_that_before(self) -> None:
        policy = make()
        latent, noise = policy.model.encoder(torch.randn(5, 3)), torch.randn(5, A)
        mu, spread = policy.model.actor(latent).chunk(2, -1)
        std = (-10 + 6 * (spread.tanh() + 1)).exp()
        action, log_prob = policy.model.prior(latent, noise)
        assert_close(action, torch.tanh(mu + std * noise))
        assert_close(log_prob, torch.distributions.Normal(mu, std).log_prob(mu + std * noise).sum(-1))
        assert_close(policy.model.prior(latent)[0], mu.tanh())


def slow_losses(policy: Any, batch: Config) -> tuple[dict[str, float], list[list[Tensor]]]:
    """Return the losses of the model and its latent states, from one sequence and one step after the other."""
    network, target = policy.model, policy.target_model.critic
    sums = dict.fromkeys(("consistency_loss", "reward_loss", "critic_loss", "end_loss"), 0.0)
    pair, states = batch["critics"][0, 0].tolist(), list[list[Tensor]]()
    for column in range(B):
        latent = network.encoder(batch["obs"][0, column][None])
        states.append([latent])
        for step in range(T):
            is_real, rho = float(batch["mask"][step + 1, column]), 0.5**step
            action = batch["action"][step, column][None]
            after = network.encoder(batch["next_obs"][step, column][None])
            following, _ = network.prior(after, batch["next_noise"][step, column][None])
            values = [
                float(network.decoded(network.value_logit(after, following, critic=target)[one, 0])) for one in pair
            ]
            goal = batch["reward"][step, column] + batch["discount_t"][step, column] * min(values)
            for critic in range(3):
                loss = network.cross_entropy(network.value_logit(latent, action)[critic], goal[None])
                sums["critic_loss"] += is_real * rho * float(loss) / 3
            reward = network.cross_entropy(network.reward_logit(latent, action), batch["reward"][step, column][None])
            sums["reward_loss"] += is_real * rho * float(reward)
            latent = network.next(latent, action)
            states[-1].append(latent)
            sums["consistency_loss"] += is_real * rho * float((latent - after).square().mean())
            p = float(torch.sigmoid(network.end_logit(latent)))
            sums["end_loss"] -= is_real * math.log(p if batch["end"][step, column] else 1 - p)
    return {name: total / (T * B) for name, total in sums.items()}, states


class TestLosses:
    @torch.no_grad()
    def test_losses_of_the_model_are_those_of_a_loop(self) -> None:
        policy = make(model={"dropout": 0.0})
        batch = policy.prepare(data())
        loss, report = policy.loss(batch)
        expected, states = slow_losses(policy, batch)
        for name, value in expected.items():
            assert report[name].item() == pytest.approx(value, rel=1e-5), name
        parts = ("consistency_loss", 20.0), ("reward_loss", 0.1), ("critic_loss", 0.1), ("end_loss", 1.0)
        assert loss.item() == pytest.approx(sum(weight * expected[name] for name, weight in parts), rel=1e-5)
        assert_close(report["latent"], torch.stack([torch.cat(column) for column in states], 1))

    @torch.no_grad()
    def test_loss_of_the_prior_is_that_of_a_loop(self) -> None:
        policy = make(model={"dropout": 0.0}, learn={"entropy_weight": 0.1})
        policy.value_range.high.fill_(4.0)
        batch = policy.prepare(data())
        batch["latent"] = policy.loss(batch)[1]["latent"]
        loss, report = policy.actor_loss(batch)
        network, total, pair = policy.model, 0.0, batch["critics"][1, 0].tolist()
        first = list[float]()
        for row in range(T + 1):
            for column in range(B):
                latent = batch["latent"][row, column][None]
                action, log_prob = network.prior(latent, batch["noise"][row, column][None])
                value = [float(network.decoded(network.value_logit(latent, action)[one])) for one in pair]
                first += [sum(value) / 2] if row == 0 else []
                gain = sum(value) / 2 / 4.0 - 0.1 * A * float(log_prob)
                total -= 0.5**row * gain * float(batch["mask"][row, column])
        assert loss.item() == pytest.approx(total / ((T + 1) * B), rel=1e-5)
        assert_close(report["first_values"], torch.tensor(first))

    @torch.no_grad()
    def test_units_are_left_out_in_both_losses_and_not_in_targets(self) -> None:
        policy = make(model={"dropout": 0.5})
        batch = policy.prepare(data())
        whole = {name: value for name, value in batch.items() if not name.endswith("dropout")}
        (_, some), (_, report) = policy.loss(batch), policy.loss(whole)
        assert some["critic_loss"] != report["critic_loss"]
        assert torch.equal(some["target_q_value"], report["target_q_value"])
        one, other = (policy.actor_loss({**given, "latent": report["latent"]})[0] for given in (batch, whole))
        assert one != other

    def test_only_the_gradient_of_the_model_reaches_the_encoder_and_none_the_targets(self) -> None:
        policy = make()
        batch = policy.prepare(data())
        loss, report = policy.loss(batch)
        loss.backward()
        model = policy.model
        for part in (model.encoder, model.dynamics, model.reward, model.end, model.critic):
            assert any(one.grad is not None and one.grad.any() for one in part.parameters())
        assert all(one.grad is None for one in (*model.actor.parameters(), *policy.target_model.parameters()))
        policy.zero_grad()
        policy.actor_loss({**batch, "latent": report["latent"]})[0].backward()
        assert all(one.grad is None for one in model.encoder.parameters())

    @pytest.mark.parametrize("column", ["next_obs", "reward", "action"])
    def test_what_is_padding_changes_no_loss(self, column: str) -> None:
        policy, given = make(), data()
        other = {**given, column: given[column].clone()}
        other[column][2, 1] = 1 - given[column][2, 1]
        losses = []
        for one in (given, other):
            policy.seed(1)
            batch = policy.prepare(one)
            loss, report = policy.loss(batch)
            losses.append((loss.item(), policy.actor_loss({**batch, "latent": report["latent"]})[0].item()))
        assert losses[0] == losses[1]

    def test_targets_end_with_termination_and_not_with_a_time_limit(self) -> None:
        policy = make()
        batch = policy.prepare(data())
        assert batch["discount_t"].tolist() == [[pytest.approx(0.9)] * 2] * 2 + [[0.0, pytest.approx(0.9)]]
        target = policy.loss(batch)[1]["target_q_value"]
        assert target[2, 0].item() == 5.0  # the reward alone
        assert (target != batch["reward"]).sum() == T * B - 1
        ignored = make(learn={"ignore_done": True}).prepare(data())
        assert ignored["discount_t"].min() > 0
        assert not ignored["end"].any()

    def test_actions_are_normalised(self) -> None:
        batch = make().prepare(data(action=torch.tensor([1.0, -1.0]).expand(T, B, A)))
        assert_close(batch["action"][1, 0], torch.tensor([0.0, -1.0]))  # of [-1, 3] and [-1, 1]

    def test_an_update_moves_the_targets_and_the_range_of_values(self) -> None:
        policy = make()
        before = [one.clone() for one in policy.target_model.critic.parameters()]
        report = policy.learn_mode.forward(data())
        assert {"total_loss", "actor_loss", "entropy", "value_scale"} <= report.keys()
        for old, slow, new in zip(
            before, policy.target_model.critic.parameters(), policy.model.critic.parameters(), strict=True
        ):
            assert_close(slow, 0.99 * old + 0.01 * new)
        assert policy.value_range.high != 0
        other = make()
        other.learn_mode.load_state_dict(policy.learn_mode.state_dict())
        assert other.value_range.high == policy.value_range.high

    def test_the_encoder_learns_with_smaller_steps(self) -> None:
        policy = make(learn={"learning_rate": 1e-3, "encoder_lr_scale": 0.25})
        encoder = {id(one) for one in policy.model.encoder.parameters()}
        rates = {
            group["lr"]: {id(one) for one in group["params"]} for group in policy.updater.optimizers[0].param_groups
        }
        assert rates[0.00025] == encoder
        assert policy.cur_lr() == 0.001


class TestPlans:
    @torch.no_grad()
    @pytest.mark.parametrize("end", [None, *range(T)])
    def test_value_of_a_plan_is_that_of_a_loop(self, end: int | None) -> None:
        """One step alone is predicted to terminate, its reward is the last that counts."""
        network = make().model
        logits = iter([5.0 if step == end else -5.0 for step in range(T)])
        network.end_logit = lambda latent: latent.new_full(latent.shape[:-1], next(logits))
        latent, plan, noise = network.encoder(torch.randn(4, 3)), torch.rand(4, T, A) * 2 - 1, torch.randn(4, A)
        found = network.plan_value(latent, plan, 0.9, noise, torch.tensor([2, 0]))
        for row in range(4):
            state, total = latent[row][None], 0.0
            for step in range(T):
                if end is None or step <= end:
                    total += 0.9**step * float(network.decoded(network.reward_logit(state, plan[row, step][None])))
                state = network.next(state, plan[row, step][None])
            value = network.decoded(network.value_logit(state, network.prior(state, noise[row][None])[0]))
            total += 0.9**T * float(value[0] + value[2]) / 2 if end is None else 0.0
            assert found[row].item() == pytest.approx(total, rel=1e-4, abs=1e-5)

    @torch.no_grad()
    def test_candidates_of_the_prior_are_its_actions_in_imagined_steps(self) -> None:
        network = make().model
        latent, noise = network.encoder(torch.randn(2, 3)), torch.randn(T, 2, A)
        found, state = network.rollout(latent, noise), latent
        for step in range(T):
            action, _ = network.prior(state, noise[step])
            assert_close(found[:, step], action)
            state = network.next(state, action)

    @torch.no_grad()
    @pytest.mark.parametrize("way", ["collect_mode", "eval_mode"])
    def test_a_plan_gets_the_last_mean_one_step_later_and_the_prior_and_collecting_adds_noise(
        self, way: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        policy, obs = make(discount_factor=0.7), torch.randn(2, 3)
        with_equal_noise(policy)
        noise, given = policy._plan_noise(None, 1), list[Any]()
        plan_of, action_of = rl.mppi, rl.first_action

        def mppi(*arguments: Any, **spread: Any) -> rl.Plan:
            plan = plan_of(*arguments, **spread)
            given.append((*arguments, plan))
            return plan

        def first_action(plan: rl.Plan, gumbel: Tensor, *extra: Tensor) -> Tensor:
            given.append(extra)
            return action_of(plan, gumbel, *extra)

        monkeypatch.setattr(rl, "mppi", mppi)
        monkeypatch.setattr(rl, "first_action", first_action)
        for _ in range(2):
            getattr(policy, way).forward(obs)
        (_, first_mean, _, _, plan), extra, (value_of, mean, proposals, candidates, _), _ = given
        assert not first_mean.any()
        assert_close(mean, torch.cat([plan.mean[:, 1:], torch.zeros(B, 1, A)], 1))
        assert [one.shape for one in extra] == ([(2, A)] if way == "collect_mode" else [])
        assert torch.equal(candidates, noise.candidates)
        latent = policy.model.encoder(obs)[:, None]
        assert_close(proposals, policy.model.rollout(latent.expand(-1, 2, -1), noise.proposals.expand(-1, 2, -1, -1)))
        plans, latents = torch.rand(2, 8, T, A), latent.expand(-1, 8, -1)
        for iteration in range(2):
            last, pair = noise.last[iteration].expand(2, -1, -1), noise.critics[iteration]
            expected = policy.model.plan_value(latents, plans, 0.7, last, pair)
            assert_close(value_of(plans, iteration), expected)

    def test_a_plan_begins_with_the_previous_one_until_its_env_is_reset(self) -> None:
        policy, obs = make(**SMOOTH), torch.randn(2, 3)
        with_equal_noise(policy)
        first = policy.eval_mode.forward(obs)["action"]
        second = policy.eval_mode.forward(obs)["action"]
        assert not torch.equal(first, second)
        policy.eval_mode.reset([1])
        third = policy.eval_mode.forward(obs)["action"]
        assert torch.equal(third[1], first[1])
        assert not torch.equal(third[0], first[0])
        policy.eval_mode.reset()
        assert torch.equal(policy.eval_mode.forward(obs)["action"], first)

    def test_envs_are_planned_as_each_alone_and_known_by_their_numbers(self) -> None:
        obs = torch.randn(3, 3)
        together, alone = make(), make()
        with_equal_noise(together)
        with_equal_noise(alone)
        for _ in range(2):
            found = together.eval_mode.forward({number: obs[number] for number in (2, 0)})
            for number in (2, 0):
                single = alone.eval_mode.forward({number: obs[number]})
                assert_close(found[number]["action"], single[number]["action"])

    def test_an_evaluation_changes_neither_collecting_nor_its_random_numbers(self) -> None:
        plain, watched, obs = make(), make(), torch.randn(2, 3)
        for policy in (plain, watched):
            policy.collect_mode.forward(obs)
            if policy is watched:
                policy.eval_mode.forward(torch.randn(5, 3))
        assert torch.equal(plain.collect_mode.forward(obs)["action"], watched.collect_mode.forward(obs)["action"])

    def test_evaluations_repeat_each_other_with_new_noise_in_each_step(self) -> None:
        policy, obs = make(plan={"num_elites": 8}, **{"horizon": 1}), torch.randn(2, 3)
        ways = []
        for _ in range(2):
            policy.eval_mode.reset()
            ways.append(torch.stack([policy.eval_mode.forward(obs)["action"] for _ in range(8)]))
            policy.eval_mode.reset([0, 1])
        assert torch.equal(*ways)
        assert len(ways[0][:, 0].unique(dim=0)) > 4

    def test_memory_of_collecting_is_restored(self) -> None:
        policy, other, obs = make(), make(), torch.randn(2, 3)
        policy.collect_mode.forward(obs)
        other.load_collect_memory(policy.collect_memory())
        other.rng.bit_generator.state = policy.rng.bit_generator.state
        assert torch.equal(policy.collect_mode.forward(obs)["action"], other.collect_mode.forward(obs)["action"])

    def test_actions_lie_in_the_box(self) -> None:
        policy = make()
        action = torch.cat([policy.collect_mode.forward(torch.randn(50, 3))["action"] for _ in range(4)])
        assert action.amin(0).tolist() == [-1.0, -1.0]
        assert action.amax(0).tolist() == [3.0, 1.0]

    def test_plans_find_the_best_action_of_a_model_that_knows_the_reward(self) -> None:
        """The reward is 2 - 2 |action - 0.5| in bins; the bound is 2 for each step, and no value follows."""
        policy = make(
            plan={"num_samples": 256, "num_elites": 16, "num_policy_samples": 8, "iterations": 6, "temperature": 5.0},
            model={"action_shape": 1, "action_low": [-1.0], "action_high": [1.0], "predicts_end": False},
        )
        policy.model.decoded = lambda logit: logit.squeeze(-1)
        policy.model.reward_logit = lambda latent, action: 2 - 2 * (action - 0.5).abs()
        policy.model.value_logit = lambda latent, action, members: torch.zeros(2, *latent.shape[:-1], 1)
        action = policy.eval_mode.forward(torch.randn(8, 3))["action"]
        assert_close(action, torch.full((8, 1), 0.5), rtol=0, atol=0.05)


class TestWithoutPlans:
    def test_prediction_and_forward_are_those_of_the_prior(self) -> None:
        policy = make(**SMOOTH)
        policy.build(
            spaces.Box(-1, 1, (3,)), spaces.Box(np.array([-1.0, -1.0]), np.array([3.0, 1.0]), dtype=np.float64)
        )
        obs = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
        with torch.no_grad():
            mean = policy.action_bounds.to_env(policy.model.prior(policy.model.encoder(torch.from_numpy(obs)))[0])
        assert_close(torch.from_numpy(policy.predict(obs)).float(), mean)
        assert_close(policy.forward(torch.from_numpy(obs)).detach(), mean)
        prior = make(eval={"planning": False})
        assert_close(prior.eval_mode.forward(torch.from_numpy(obs))["action"], mean)
        assert not prior.new_memory("eval")
        actor = policy.actor()
        assert actor.has_memory
        assert not np.allclose(actor(obs), mean)
        sampled = policy.predict(obs, deterministic=False)
        assert not np.allclose(sampled, mean)

    def test_graph_is_that_of_the_prior(self, tmp_path: Path) -> None:
        runtime = pytest.importorskip("onnxruntime")
        policy = make().build(
            spaces.Box(-1, 1, (3,)), spaces.Box(np.array([-1, -1], np.float32), np.array([3, 1], np.float32))
        )
        session = runtime.InferenceSession(str(policy.export(tmp_path / "prior.onnx")))
        obs = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
        (action,) = session.run(None, {"obs": obs})
        np.testing.assert_allclose(action, policy.predict(obs), rtol=1e-4, atol=1e-5)

    def test_collecting_without_plans_samples_the_prior(self) -> None:
        policy, obs = make(collect={"planning": False}), torch.randn(2, 3)
        noise = torch.from_numpy(np.random.default_rng(0).standard_normal((2, A), dtype=np.float32))
        policy.rng = np.random.default_rng(0)
        with torch.no_grad():
            expected = policy.action_bounds.to_env(policy.model.prior(policy.model.encoder(obs), noise)[0])
        assert_close(policy.collect_mode.forward(obs)["action"], expected)


class TestOptions:
    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ({"nstep": 3}, "nstep must be 1"),
            ({"priority": True}, "priority must be False"),
            ({"horizon": 0}, "horizon must be >= 1"),
            ({"model": {"bins": 4}}, "model.bins must be odd"),
            ({"model": {"ensemble_num": 1}}, "model.ensemble_num must be >= 2"),
            ({"model": {"dropout": 1.0}}, r"model.dropout must be in \[0, 1\)"),
            ({"model": {"largest_bin": 0.0}}, "model.largest_bin must be > 0"),
            ({"model": {**SHAPES, "latent": 10}}, r"model.latent must be a multiple of simplex \(8\), got 10"),
            ({"model": {**SHAPES, "obs_shape": [3, 64, 64]}}, "model.obs_shape must be that of a vector"),
            ({"plan": {"num_elites": 600}}, r"plan.num_elites must be in \[1, 512\]"),
            ({"plan": {"num_policy_samples": 512}}, r"plan.num_policy_samples must be in \[0, 512\)"),
            ({"plan": {"max_std": 0.01}}, r"plan.max_std must be >= plan.min_std \(0.05\)"),
            ({"plan": {"iterations": 0}}, "plan.iterations must be >= 1"),
            ({"learn": {"rho": 0.0}}, r"learn.rho must be in \(0, 1\]"),
            ({"learn": {"encoder_lr_scale": 0.0}}, "learn.encoder_lr_scale must be > 0"),
            ({"learn": {"end_weight": 2.0}, "model": {"predicts_end": False}}, "learn.end_weight must be left at"),
        ],
    )
    def test_what_cannot_be_is_refused(self, config: Config, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            TDMPC2Policy(config)

    def test_other_spaces_are_refused(self) -> None:
        box = spaces.Box(-1, 1, (3,))
        with pytest.raises(TypeError, match="needs a one-dimensional Box"):
            TDMPC2Policy(TINY).build(box, spaces.Discrete(2))
        with pytest.raises(ValueError, match="obs_shape must be that of a vector"):
            TDMPC2Policy(TINY).build(spaces.Dict({"a": box}), box)

    @pytest.mark.parametrize(
        "changes",
        [
            *({"learn": {name: 3.0}} for name in ("consistency_weight", "reward_weight", "value_weight", "end_weight")),
            *({"learn": {name: 0.9}} for name in ("entropy_weight", "rho", "encoder_lr_scale", "target_theta")),
            {"learn": {"grad_clip_norm": 1e-3}},
            {"learn": {"learning_rate": 0.01}},
            {"learn": {"ignore_done": True}},
            {"learn": {"reset_freq": 2}},
            *({"model": {name: 16}} for name in ("encoder", "hidden", "latent")),
            *({"model": {name: 3}} for name in ("encoder_layers", "bins")),
            {"model": {"ensemble_num": 4}},
            {"model": {"simplex": 2}},
            {"model": {"dropout": 0.5}},
            {"model": {"largest_bin": 3.0}},
            {"model": {"predicts_end": False}},
            {"model": {"size": "5m", "encoder": None}},
        ],
        ids=str,
    )
    def test_each_option_changes_an_update(self, changes: Config) -> None:
        base: Config = {"learn": {"entropy_weight": 0.5}, "model": {"encoder_layers": 2}}
        if "size" in changes.get("model", {}):
            base["model"]["encoder"] = None
            changes = {"model": {"size": "19m"}}
        ends = []
        for other in ({}, changes):
            policy = make(**deep_merge(base, other))
            for number in range(2):
                policy.learn_mode.forward(data(reward=torch.full((T, B), 5.0 + number)))
            ends.append(torch.cat([x.flatten() for x in policy.state_dict().values()]))
        assert not torch.equal(*ends)

    @pytest.mark.parametrize(
        "changes",
        [
            {"plan": {"iterations": 3}},
            {"plan": {"num_samples": 33}},
            {"plan": {"num_elites": 2}},
            {"plan": {"num_policy_samples": 0}},
            {"plan": {"min_std": 0.4}},
            {"plan": {"max_std": 0.8}},
            {"plan": {"temperature": 50.0}},
            {"horizon": 2},
            {"discount_factor": 0.1},
            {"model": {"action_high": [5.0, 1.0]}},
            {"collect": {"planning": False}, "eval": {"planning": False}},
        ],
        ids=str,
    )
    def test_each_option_changes_a_plan(self, changes: Config) -> None:
        found = []
        for other in ({}, changes):
            policy = make(**deep_merge(SMOOTH, other))
            for mode in (policy.collect_mode, policy.eval_mode):
                found.append(torch.cat([mode.forward(torch.ones(8, 3))["action"] for _ in range(3)]))
        assert not torch.equal(found[0], found[2])
        assert not torch.equal(found[1], found[3])

    def test_sequences_of_the_buffer_end_with_their_episode(self) -> None:
        policy = make()
        buffer = create_buffer(policy.config.other.replay_buffer, seed=0)
        ends = np.array([False, False, True, False, False])
        obs = np.arange(15.0, dtype=np.float32).reshape(5, 3)
        steps: Config = {"obs": obs, "next_obs": obs + 3, "action": np.zeros((5, A), np.float32)}
        steps |= {"reward": np.ones(5, np.float32), "terminated": ends, "truncated": np.zeros(5, dtype=bool)}
        buffer.push({**steps, "env_id": np.zeros(5, dtype=int)})
        batch = policy.prepare(buffer.sample(64, **policy.sample_options))
        assert set(batch["mask"].sum(0).tolist()) == {2.0, 3.0, 4.0}
        assert_close(batch["discount_t"][0].unique(), torch.tensor([0.0, 0.99]))


def test_a_warning_of_padding_names_the_horizon(
    make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "UPDATES_BEFORE_WARNING", 2)
    with caplog.at_level(logging.WARNING, logger="lightning_ding"):
        make_trainer(limit_val_batches=0).fit(
            TDMPC2Policy(TINY), ReplayDataModule(TargetEnv, num_envs=2, max_env_step=64)
        )
    (text,) = (record.getMessage() for record in caplog.records if "padding" in record.getMessage())
    assert "(3 steps): set horizon to" in text


def corridor(rng: np.random.Generator, size: int) -> Config:
    """Return random steps of a point that moves by half of the action; the reward is 1 - its distance to 0.5."""
    place, action = rng.uniform(-1, 1, (T + 1, size, 1)), rng.uniform(-1, 1, (T, size, 1))
    for step in range(T):
        place[step + 1] = np.clip(place[step] + 0.5 * action[step], -1, 1)
    reward = 1 - np.abs(place[1:, :, 0] - 0.5)
    columns = {"obs": place[:-1], "next_obs": place[1:], "action": action, "reward": reward}
    found = {name: torch.from_numpy(one.astype(np.float32)) for name, one in columns.items()}
    return {
        **found,
        "terminated": torch.zeros(T, size, dtype=torch.bool),
        "mask": torch.ones(T, size, dtype=torch.bool),
    }


@pytest.mark.parametrize("seed", [0])
def test_plans_in_a_model_learned_from_random_steps_reach_the_known_bound(seed: int) -> None:
    assert distance_after(250, seed) < 0.08


def distance_after(updates: int, seed: int) -> float:
    """Return the mean distance to the goal after four planned steps from places all over the line."""
    torch.manual_seed(seed)
    sizes = {"encoder": 32, "hidden": 32, "latent": 16, "bins": 41, "largest_bin": 2.0, "predicts_end": False}
    config: Config = {"model": {"obs_shape": 1, "action_shape": 1, **sizes}, "discount_factor": 0.5}
    config |= {"learn": {"learning_rate": 3e-3}}
    config |= {"plan": {"iterations": 4, "num_samples": 128, "num_elites": 16, "num_policy_samples": 8}}
    policy: Any = TDMPC2Policy({**config, "plan": {**config["plan"], "temperature": 5.0}})
    policy.seed(seed)
    rng = np.random.default_rng(seed)
    for _ in range(updates):
        policy.learn_mode.forward(corridor(rng, 64))
    place = torch.linspace(-1, 1, 9).unsqueeze(1)
    for _ in range(4):
        place = (place + 0.5 * policy.eval_mode.forward(place)["action"]).clamp(-1, 1)
    return float((place - 0.5).abs().mean())
