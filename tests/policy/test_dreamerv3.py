"""DreamerV3: the world model and the losses against loops, the rows of sequences, and the memory of envs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor
from torch.testing import assert_close

from lightning_ding import rl
from lightning_ding.model.dreamerv3 import DreamerV3
from lightning_ding.policy import DreamerV3Policy
from lightning_ding.worker import create_buffer
from tests.algorithms.table import DREAMER

Config = dict[str, Any]
T, B = 4, 2
CONTINUOUS: Config = {"obs_shape": 3, "action_shape": 2, "action_space": "continuous", "action_high": [3.0, 1.0]}


def make(model: Config | None = None, learn: Config | None = None, **changes: Any) -> Any:
    torch.manual_seed(0)
    sizes = {**DREAMER["model"], **(model or {"obs_shape": 3, "action_shape": 2})}
    policy: Any = DreamerV3Policy(
        {**DREAMER, "model": sizes, "learn": {**DREAMER["learn"], **(learn or {})}, **changes}
    )
    policy.seed(0)
    for head in (policy.model.reward[-1], policy.model.critic[-1], policy.target_model[-1]):  # zero at first
        torch.nn.init.normal_(head.weight, std=0.3)
        head.bias.data = -rl.symlog(policy.model.bins).abs()  # so that values are not of millions
    return policy


def data(**changes: Any) -> Config:
    """Return sequences: the first has a termination at step 1, the second a time limit at step 2, its last step."""
    rng = np.random.default_rng(0)
    obs = torch.from_numpy(rng.normal(size=(T + 1, B, 3)).astype(np.float32))
    terminated, mask = torch.zeros(T, B, dtype=torch.bool), torch.ones(T, B, dtype=torch.bool)
    truncated = torch.zeros(T, B, dtype=torch.bool)
    terminated[1, 0], truncated[2, 1], mask[3, 1] = True, True, False
    return {
        **{"obs": obs[:-1], "next_obs": obs[1:] + 10, "action": torch.tensor([[0, 1], [1, 1], [0, 0], [1, 0]])},
        **{"reward": torch.arange(1.0, 9.0).view(T, B), "terminated": terminated, "mask": mask},
        **{"truncated": truncated, "is_first": torch.tensor([True, False])},
        **{"recurrent_state": torch.zeros(B, 16 + 3 + 2), **changes},
    }


class TestRows:
    def test_rows_hold_last_observations_and_what_led_to_each(self) -> None:
        given = data()
        batch = make().prepare(given)
        # rows of the first sequence: o0, o1, last of o1, o2, o3; of the second: o0, o1, o2, last of o2, padding
        obs, last = given["obs"], given["next_obs"]
        assert_close(batch["obs"][:, 0], torch.stack([obs[0, 0], obs[1, 0], last[1, 0], obs[2, 0], obs[3, 0]]))
        assert_close(batch["obs"][:4, 1], torch.stack([obs[0, 1], obs[1, 1], obs[2, 1], last[2, 1]]))
        assert batch["mask"].T.tolist() == [[True] * 5, [True] * 4 + [False]]
        assert batch["starts"].T.tolist() == [[True, False, False, True, False], [False] * 5]
        assert batch["ends"].T.tolist() == [[False, False, True, False, False], [False, False, False, True, False]]
        assert batch["alive"].T.tolist() == [[1, 1, 0, 1, 1], [1, 1, 1, 1, 1]]  # a time limit is no termination
        assert batch["reward"].T.tolist() == [[0, 1, 3, 0, 5], [0, 2, 4, 6, 0]]
        assert batch["action"].argmax(2)[1:, 0].tolist()[:2] == [0, 1]  # of steps 0 and 1
        assert batch["action"].argmax(2)[1:4, 1].tolist() == [1, 1, 0]
        assert make().prepare(batch) == batch

    def test_rows_after_a_time_limit_are_those_of_the_next_episode(self) -> None:
        mask, truncated = torch.ones(T, B, dtype=torch.bool), torch.zeros(T, B, dtype=torch.bool)
        truncated[0, 1] = True
        given = data(mask=mask, truncated=truncated)
        batch = make().prepare(given)  # rows of the second sequence: o0, last of o0, o1, o2, o3
        obs, last = given["obs"], given["next_obs"]
        assert_close(batch["obs"][:, 1], torch.stack([obs[0, 1], last[0, 1], obs[1, 1], obs[2, 1], obs[3, 1]]))
        assert batch["starts"][:, 1].tolist() == [False, False, True, False, False]
        assert batch["ends"][:, 1].tolist() == [False, True, False, False, False]
        assert batch["alive"][:, 1].tolist() == [1] * 5
        assert batch["reward"][:, 1].tolist() == [0, 2, 0, 4, 6]

    def test_old_configs_may_ignore_terminations(self) -> None:
        assert make(learn={"ignore_done": True}).prepare(data())["alive"].min() == 1

    def test_continuous_actions_are_normalised(self) -> None:
        policy = make(CONTINUOUS)
        action = torch.tensor([1.0, -1.0]).expand(T, B, 2)
        assert_close(policy.prepare(data(action=action))["action"][1, 0], torch.tensor([0.0, -1.0]))  # of [-1, 3]

    @pytest.mark.parametrize("column", ["obs", "next_obs", "reward", "action"])
    def test_what_is_padding_changes_no_loss(self, column: str) -> None:
        policy, given = make(), data()
        other = {**given, column: given[column].clone()}
        other[column][3, 1] = 1 - given[column][3, 1]
        losses = []
        for one in (given, other):
            policy.seed(1)
            losses.append(policy.loss(policy.prepare(one))[0])
        assert losses[0].item() == losses[1].item()


class TestWorldModel:
    def test_a_step_is_that_of_a_loop_over_blocks(self) -> None:
        rssm = make().model.rssm
        deter, stoch, action = torch.randn(2, 16), torch.randn(2, 12), torch.randn(2, 2)
        with torch.no_grad():
            found = rssm.step(deter, stoch, rssm.from_action(action))
            for row in range(2):
                inputs = [
                    normed(layer.linear.weight @ x[row] + layer.linear.bias, layer.norm.scale)
                    for layer, x in ((rssm.from_deter, deter), (rssm.from_stoch, stoch), (rssm.from_action, action))
                ]
                mixed = rssm.mix_inputs.weight @ torch.cat(inputs)
                for block in range(2):
                    part = slice(8 * block, 8 * block + 8)
                    mixed[part] += deter[row, part] @ rssm.mix_deter.weight[block] + rssm.mix_deter.bias[part]
                hidden = normed(mixed, rssm.mix_norm.scale)
                for block in range(2):
                    part = slice(8 * block, 8 * block + 8)
                    gates = hidden[part] @ rssm.gates.weight[block] + rssm.gates.bias[24 * block : 24 * block + 24]
                    reset, candidate, update = gates[:8], gates[8:16], gates[16:]
                    share = torch.sigmoid(update - 1)
                    new = share * torch.tanh(torch.sigmoid(reset) * candidate) + (1 - share) * deter[row, part]
                    assert_close(found[row, part], new)

    @pytest.mark.parametrize("model", [None, CONTINUOUS])
    def test_acting_and_learning_compute_the_same_states(self, model: Config | None) -> None:
        policy = make(model)
        network, noise = policy.model, torch.rand(T, B, 3)
        obs = torch.randn(T, B, 3)
        action = torch.rand(T, B, 2) if model else F.one_hot(torch.randint(2, (T, B)), 2).float()
        starts = torch.tensor([[True, False], [False, False], [False, True], [False, False]])
        first = torch.cat([torch.randn(B, 16), torch.ones(B, 3), action[0]], 1)
        first[0] = 0.0
        deter, stoch, _ = network.unpack(first)
        tokens = network.encoder(network.inputs(obs.flatten(0, 1))).unflatten(0, (T, B))
        deters, stochs, _ = network.rssm.observe(deter, stoch, action, tokens, starts, noise)
        state = first
        for row in range(T):
            state = torch.where(starts[row].unsqueeze(1), 0.0, state)
            latent, known = network.latent(obs[row], state, noise[row])
            assert_close(latent, torch.cat([deters[row], stochs[row]], 1))
            state = torch.cat([known, action[min(row + 1, T - 1)]], 1)

    def test_a_step_before_the_start_of_an_episode_has_no_effect_on_later_ones(self) -> None:
        policy, given = make(), data()
        other = {**given, "obs": given["obs"].clone(), "action": given["action"].clone()}
        other["obs"][0, 0] += 5  # of the first episode
        other["action"][:2, 0] = 1 - given["action"][:2, 0]
        latents = []
        for one in (given, other):
            policy.seed(1)
            latents.append(policy.world_losses(policy.prepare(one))[0])
        assert torch.equal(latents[0][3:, 0], latents[1][3:, 0])
        assert not torch.equal(latents[0][1, 0], latents[1][1, 0])

    def test_named_sizes_have_about_their_number_of_parameters(self) -> None:
        counts = {}
        for size in ("1m", "12m", "25m"):
            with torch.device("meta"):
                network = DreamerV3({"image": (3, 64, 64)}, 6, size=size)
            counts[size] = round(sum(one.numel() for one in network.parameters()) / 1e6)
        assert counts == {"1m": 1, "12m": 10, "25m": 23}

    def test_first_weights_are_those_of_the_paper(self) -> None:
        torch.manual_seed(0)
        network: Any = DreamerV3(4, 2)
        for head in (network.reward[-1], network.critic[-1]):  # so that rewards and values are 0 at first
            assert not head.weight.any()
            assert not head.bias.any()
        assert network.reward[-1].out_features == 255
        assert network.alive[-1].weight.std().item() == pytest.approx(64**-0.5, rel=0.2)
        assert network.actor[-1].weight.std().item() == pytest.approx(0.01 * 64**-0.5, rel=0.2)
        rssm = network.rssm  # 64 numbers of a block and 3 * 64 features of all inputs
        for weight in (rssm.mix_deter.weight, rssm.mix_inputs.weight):
            assert weight.std().item() == pytest.approx(256**-0.5, rel=0.05)
        assert rssm.gates.weight.std().item() == pytest.approx(64**-0.5, rel=0.05)

    @pytest.mark.parametrize("sign", [-1, 1])
    def test_the_actor_is_never_certain(self, sign: int) -> None:
        for model in (None, CONTINUOUS):
            network = make(model).model
            network.actor[-1].weight.data.zero_()
            network.actor[-1].bias.data = 1e3 * sign * torch.linspace(-1, 1, len(network.actor[-1].bias)).sign()
            policy: Any = network.policy(torch.zeros(1, 28))
            if model is None:
                assert_close(policy.log_p.exp().sort().values, torch.tensor([[0.005, 0.995]]))  # 1 % is uniform
            else:
                assert_close(policy.mu, torch.full((1, 2), -float(sign)))
                assert_close(policy.sigma, torch.full((1, 2), 1.0 if sign == 1 else 0.1))

    @pytest.mark.parametrize("shape", [(3, 64, 64), (10, 10, 4), (2, 7, 7), (2, 3, 4), (3, 84, 60)])
    def test_images_of_any_size_are_predicted(self, shape: tuple[int, ...]) -> None:
        network = make({"obs_shape": {"image": shape, "speed": 2}, "action_shape": 2, "depth": 2}).model
        obs = {"image": torch.randint(256, (5, *shape), dtype=torch.uint8), "speed": torch.randn(5, 2)}
        target = network.inputs(obs)
        decoded = network.decoder(torch.randn(5, 28))
        assert [one.shape for one in decoded] == [one.shape for one in target]
        assert target[1].amax() <= 1
        assert network.encoder(target).shape == (5, network.encoder.output_size)


def normed(x: Tensor, scale: Tensor) -> Tensor:
    """Return SiLU of the features of one row, divided by the root of their mean square."""
    return F.silu(x / (x.square().mean() + 1e-4).sqrt() * scale)


class TestLosses:
    @pytest.mark.parametrize("model", [None, CONTINUOUS])
    def test_losses_of_the_actor_and_the_critic_are_those_of_loops(self, model: Config | None) -> None:
        policy = make(model, {"entropy_weight": 0.1, "lambda_": 0.7}, discount_factor=0.9, imagine_last=3)
        action = {"action": torch.rand(T, B, 2)} if model else {}
        policy.return_statistics.high.fill_(4.0)
        batch = policy.prepare(data(**action))
        with torch.no_grad():
            latent = policy.world_losses(batch)[0][-3:]
            losses, returns, _ = policy.behaviour_losses(batch, latent, slice(-3, None))
            expected, slow_returns = slow_behaviour(policy, batch, latent)
        assert_close(returns, torch.where(batch["mask"][-3:].flatten(), slow_returns, torch.nan), equal_nan=True)
        assert {name: one.item() for name, one in losses.items()} == pytest.approx(expected, rel=1e-4)

    def test_imagination_has_no_gradient_and_the_replayed_values_have_one(self) -> None:
        policy = make()
        policy.loss(policy.prepare(data()))[0].backward()
        whole = [one.grad for one in policy.model.parameters()]
        assert all(one is not None for one in whole)
        latent, _ = policy.world_losses(batch := policy.prepare(data()))
        losses, _, _ = policy.behaviour_losses(batch, latent, slice(None))
        assert torch.autograd.grad(losses["actor_loss"], latent, retain_graph=True, allow_unused=True) == (None,)
        assert torch.autograd.grad(losses["value_loss"], latent, retain_graph=True, allow_unused=True) == (None,)
        assert torch.autograd.grad(losses["replay_value_loss"], latent)[0].abs().sum() > 0

    def test_slow_critic_and_the_range_of_returns_follow_an_update(self) -> None:
        policy = make()
        before = [one.clone() for one in policy.target_model.parameters()]
        policy.learn_mode.forward(data())
        for old, slow, new in zip(
            before, policy.target_model.parameters(), policy.model.critic.parameters(), strict=True
        ):
            assert_close(slow, 0.98 * old + 0.02 * new)
        assert policy.return_statistics.high != 0

    def test_returns_from_padding_do_not_count_in_the_range_of_returns(self) -> None:
        policy = make(horizon=1)
        policy.model.bins.mul_(0).add_(torch.linspace(-1, 1, 31))
        batch = policy.prepare(data())
        returns = policy.loss(batch)[1]["returns"].view(T + 1, B)
        assert returns.isfinite().tolist() == batch["mask"].tolist()  # one row of the second sequence is padding
        policy.learn_mode.forward(batch)
        finite = returns[batch["mask"]]
        assert_close(policy.return_statistics.low, 0.01 * torch.quantile(finite, 0.05))


def slow_behaviour(policy: Any, batch: Config, latent: Tensor) -> tuple[dict[str, float], Tensor]:
    """Return the losses and the returns of ``behaviour_losses``, from one trajectory after the other."""
    network, config = policy.model, policy.config
    rows, gamma, mix = len(latent), config.discount_factor, config.learn.lambda_
    offset = len(batch["mask"]) - rows
    sums = dict.fromkeys(("actor_loss", "value_loss", "replay_value_loss"), 0.0)
    found = torch.zeros(config.horizon, rows, B)

    def values(state: Tensor, net: Any) -> float:
        return float(rl.two_hot_mean(net(state), network.bins))

    def critic_loss(state: Tensor, target: float) -> float:
        both = [torch.tensor([one]) for one in (target, values(state, policy.target_model))]
        return sum(float(rl.two_hot_loss(network.critic(state), network.bins, one)) for one in both)

    for row in range(rows):
        for column in range(B):
            deter, stoch = latent[row, column][None].split([16, 12], 1)
            states, actions = [torch.cat([deter, stoch], 1)], []
            for step in range(config.horizon):
                noise = batch["action_noise"][step, column, row][None]
                actions.append(network.sampled(states[-1], noise))
                deter = network.rssm.step(deter, stoch, network.rssm.from_action(network.encoded(actions[-1])))
                prior = network.rssm.prior(deter)
                index = rl.draw_index(prior, batch["prior_noise"][step, column, row][None])
                stoch = F.one_hot(index, 4).float().flatten(1)
                states.append(torch.cat([deter, stoch], 1))
            reward = [float(rl.two_hot_mean(network.reward(one), network.bins)) for one in states]
            alive = [float(batch["alive"][offset + row, column])]
            alive += [float(torch.sigmoid(network.continues(one))) for one in states[1:]]
            value = [values(one, network.critic) for one in states]
            following = value[-1]
            for step in range(config.horizon - 1, -1, -1):
                mixed = (1 - mix) * value[step + 1] + mix * following
                following = reward[step + 1] + gamma * alive[step + 1] * mixed
                found[step, row, column] = following
            weight = alive[0] * float(batch["mask"][offset + row, column])
            for step in range(config.horizon):
                weight *= gamma * alive[step] if step else 1.0
                advantage = (float(found[step, row, column]) - value[step]) / 4.0
                acts = network.policy(states[step])
                gain = float(acts.log_prob(actions[step])) * advantage + 0.1 * float(acts.entropy())
                sums["actor_loss"] -= weight * gain
                sums["value_loss"] += weight * critic_loss(states[step], float(found[step, row, column]))
    sums["replay_value_loss"] = slow_replay(policy, batch, latent, found[0], critic_loss)
    sizes = {"actor_loss": config.horizon * rows * B, "value_loss": config.horizon * rows * B}
    sizes["replay_value_loss"] = (rows - 1) * B
    return {name: total / sizes[name] for name, total in sums.items()}, found.flatten(1)


def slow_replay(policy: Any, batch: Config, latent: Tensor, bootstrap: Tensor, critic_loss: Any) -> float:
    """Return the sum of the critic's losses on the rows of sequences, from the last row to the first."""
    rows, gamma, mix, total = len(latent), policy.config.discount_factor, policy.config.learn.lambda_, 0.0
    for column in range(B):
        following = float(bootstrap[-1, column])
        for row in range(rows - 2, -1, -1):
            after, place = float(bootstrap[row + 1, column]), len(batch["mask"]) - rows + row + 1
            mixed = after if batch["ends"][place, column] else (1 - mix) * after + mix * following
            following = float(batch["reward"][place, column]) + gamma * float(batch["alive"][place, column]) * mixed
            if batch["mask"][place - 1, column] and not batch["ends"][place - 1, column]:
                total += critic_loss(latent[row, column][None], following)
    return total


class TestMemory:
    def test_transitions_have_the_state_before_and_the_action_becomes_part_of_the_next(self) -> None:
        policy = make()
        collect = policy.collect_mode
        first = collect.forward(torch.randn(2, 3))
        second = collect.forward(torch.randn(2, 3))
        assert first["recurrent_state"].abs().sum() == 0
        assert first["is_first"].tolist() == [True, True]
        assert second["recurrent_state"][:, -2:].argmax(1).tolist() == first["action"].tolist()
        assert second["recurrent_state"][:, 16:19].min() >= 1  # classes, counted from 1
        collect.reset([1])
        third = collect.forward(torch.randn(2, 3))
        assert third["is_first"].tolist() == [False, True]
        assert third["recurrent_state"][1].abs().sum() == 0

    def test_evaluations_are_deterministic_and_remember(self) -> None:
        policy, obs = make(CONTINUOUS), torch.randn(2, 3)
        actions = []
        for _ in range(2):
            policy.eval_mode.reset()
            actions.append([policy.eval_mode.forward(obs)["action"] for _ in range(2)])
        assert torch.equal(actions[0][1], actions[1][1])
        assert not torch.equal(actions[0][0], actions[0][1])
        assert policy.forward(obs).equal(actions[0][0])

    def test_continuous_actions_lie_in_the_box(self) -> None:
        policy = make(CONTINUOUS)
        action = torch.cat([policy.collect_mode.forward(torch.randn(50, 3))["action"] for _ in range(4)])
        assert action.amin(0).tolist() == [-1.0, -1.0]  # some are clipped
        assert action.amax(0).tolist() == [3.0, 1.0]

    @pytest.mark.parametrize("end", ["terminated", "truncated"])
    def test_sequences_of_the_buffer_continue_with_the_next_episode(self, end: str) -> None:
        policy = make(other={"replay_buffer": {"type": "sequence"}})
        buffer = create_buffer(policy.config.other.replay_buffer, seed=0)
        ends = np.array([False, True, False, False, False])
        steps = {"obs": np.arange(15.0, dtype=np.float32).reshape(5, 3), "reward": np.ones(5, dtype=np.float32)}
        after = np.where(ends[:, None], -1.0, steps["obs"] + 3).astype(np.float32)  # the next observation, or the last
        steps |= {"next_obs": after, "action": np.zeros(5, dtype=np.int64)}
        steps |= {"terminated": np.zeros(5, dtype=bool), "truncated": np.zeros(5, dtype=bool), end: ends}
        steps |= {"env_id": np.zeros(5, dtype=int)}
        steps |= {"is_first": np.array([True, False, True, False, False])}
        buffer.push({**steps, "recurrent_state": np.zeros((5, 21), dtype=np.float32)})
        batch = policy.prepare(buffer.sample(64, **policy.sample_options))
        whole = batch["mask"].all(0) & batch["ends"].any(0) & batch["starts"].any(0)
        assert bool(whole.any())
        assert (batch["starts"][1:] == batch["ends"][:-1])[:, whole].all()


class TestOptions:
    def test_train_ratio_counts_the_steps_of_minibatches(self) -> None:
        config = {"learn_unroll_len": 32, "learn": {"batch_size": 16, "train_ratio": 128}, "collect": {"n_sample": 8}}
        assert DreamerV3Policy(config).update_per_collect == 2  # 2 * 16 * 32 steps for 8
        with pytest.raises(ValueError, match=r"learn\.train_ratio must be a multiple of 64, so that .* got 100"):
            DreamerV3Policy({**config, "learn": {"train_ratio": 100}})
        with pytest.raises(ValueError, match=r"learn\.update_per_collect must be 1 with train_ratio, got 2"):
            DreamerV3Policy({**config, "learn": {"train_ratio": 128, "update_per_collect": 2}})

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ({"random_collect_size": 5}, "random_collect_size must be 0 with dreamerv3"),
            ({"nstep": 3}, "nstep must be 1"),
            ({"priority": True}, "priority must be False"),
            ({"learn": {"reset_freq": 10}}, "reset_at and reset_parts must be unset with dreamerv3"),
            (
                {"learn": {"optimizer": {"type": "adam", "eps": 1e-8}}},
                "must be None and 0 without optimizer.type laprop",
            ),
            ({"model": {"bins": 4}}, "model.bins must be odd"),
            ({"imagine_last": 1}, r"imagine_last must be in \[2, 65\]"),
        ],
    )
    def test_what_cannot_be_is_refused(self, config: Config, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            DreamerV3Policy(config)

    def test_action_masks_and_several_choices_are_refused(self) -> None:
        policy, box = DreamerV3Policy(DREAMER), spaces.Box(-1, 1, (3,))
        masked = spaces.Dict({"obs": box, "action_mask": spaces.MultiBinary(2)})
        with pytest.raises(TypeError, match="takes no action mask"):
            policy.build(masked, spaces.Discrete(2))
        with pytest.raises(TypeError, match="needs a Discrete or Box action space"):
            policy.build(box, spaces.MultiDiscrete([2, 2]))

    @pytest.mark.parametrize(
        ("learn", "changes"),
        [
            ({"dynamics_weight": 2.0}, {}),
            ({"representation_weight": 2.0}, {}),
            ({"replay_value_weight": 2.0}, {}),
            ({"entropy_weight": 2.0}, {}),
            ({"free_nats": 0.0}, {}),
            ({"lambda_": 0.1}, {}),
            ({"agc": 0.001}, {}),
            ({"warmup": 0}, {}),
            ({"learning_rate": 0.01}, {}),
            ({"target_theta": 0.5}, {}),
            ({"optimizer": {"type": "adam", "eps": 1e-8}, "agc": None, "warmup": 0}, {}),
            ({}, {"discount_factor": 0.5}),
            ({}, {"horizon": 3}),
            ({}, {"imagine_last": 2}),
        ],
    )
    def test_each_option_changes_an_update(self, learn: Config, changes: Config) -> None:
        ends = []
        for one, other in (({}, {}), (learn, changes)):
            policy = make(learn=one, **other)
            for number in range(2):
                policy.learn_mode.forward(data(reward=torch.full((T, B), 5.0 + number)))
            ends.append(torch.cat([x.flatten() for x in policy.state_dict().values()]))
        assert not torch.equal(*ends)


def corridor(policy: Any, rng: np.random.Generator, steps: int = 8, size: int = 16) -> Config:
    """Return random walks in a corridor of four places, whose last one is worth 1 and ends the episode."""
    place = np.zeros((steps + 1, size), dtype=int)
    place[0], action = rng.integers(0, 3, size), rng.integers(0, 2, (steps, size))
    after = np.zeros((steps, size), dtype=int)
    for step in range(steps):
        after[step] = np.clip(place[step] + 2 * action[step] - 1, 0, 3)
        place[step + 1] = np.where(after[step] == 3, 0, after[step])
    seen, ends = np.eye(4, dtype=np.float32), after == 3
    columns = {"obs": seen[place[:-1]], "next_obs": seen[after], "action": action, "reward": ends.astype(np.float32)}
    columns |= {"terminated": ends, "mask": np.ones_like(ends), "is_first": np.ones(size, dtype=bool)}
    state = np.zeros((size, policy.model.state_size), dtype=np.float32)
    return {name: torch.from_numpy(one) for name, one in {**columns, "recurrent_state": state}.items()}


def after_updates(number: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the probability of going to the right and the value in each place after learning from random walks."""
    sizes = {"deter": 32, "hidden": 16, "units": 32, "groups": 4, "classes": 4, "blocks": 2, "bins": 41}
    learn = {"learning_rate": 1e-2, "warmup": 20, "free_nats": 0.0, "replay_value_weight": 0.0}
    config = {"learn_unroll_len": 8, "horizon": 4, "discount_factor": 0.8, "learn": learn}
    torch.manual_seed(seed)
    policy: Any = DreamerV3Policy({**config, "model": {"obs_shape": 4, "action_shape": 2, **sizes}})
    policy.seed(seed)
    rng = np.random.default_rng(seed)
    for _ in range(number):
        policy.learn_mode.forward(corridor(policy, rng))
    with torch.no_grad():
        latent, _ = policy.model.latent(torch.eye(4)[:3], policy.model.first_state(3))
        return policy.model.policy(latent).log_p.exp()[:, 1], rl.two_hot_mean(
            policy.model.critic(latent), policy.model.bins
        )


def test_it_learns_in_imagination_from_random_walks_where_to_go() -> None:
    assert after_updates(100, seed=0)[0].min() > 0.9  # after 80 updates with each of the seeds 0 to 3


@pytest.mark.slow
def test_values_are_those_of_the_way_that_it_learned() -> None:
    _, value = after_updates(700, seed=0)
    assert_close(value, torch.tensor([0.64, 0.8, 1.0]), rtol=0, atol=0.06)  # of 0.8 for each further step
