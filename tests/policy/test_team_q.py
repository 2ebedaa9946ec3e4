"""Q-learning of teams: losses against loops over steps and agents, exploration, masks, and what is read of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.testing import assert_close

from lightning_ding import nested
from lightning_ding.policy import create_policy

GAMMA, COUNTS, NAMES = 0.9, (3, 2, 3), ("iql_ma", "vdn", "qmix", "wqmix", "qtran", "madqn")
LENGTHS = torch.tensor([4, 3, 2, 1, 4, 3])  # real steps of six sequences of 3 + 2 - 1 = 4 steps
TERMINATED = (1, 3)  # the others are cut
EVERY = pytest.mark.parametrize("name", NAMES)


def make(name: str, **changes: Any) -> Any:
    """Return a policy of three agents with a memory, whose target network has other weights."""
    torch.manual_seed(0)
    sizes = {"agent_num": 3, "agent_obs_shape": 4, "global_obs_shape": 2, "action_shape": COUNTS}
    model = {**sizes, "core": {"type": "gru", "hidden_size": 5}, "encoder_hidden_size_list": [6]}
    config = {"learn_unroll_len": 3, "nstep": 2, "discount_factor": GAMMA, "model": model}
    policy: Any = create_policy({"type": name, **config, **changes})
    for parameter in policy.target_model.parameters():
        parameter.data += 0.5 * torch.randn_like(parameter)
    return policy


def sequences(policy: Any) -> Any:
    """Return six sequences; after its end one repeats its last step, as those of a buffer do."""
    torch.manual_seed(1)
    steps, size = 4, len(LENGTHS)
    place = torch.minimum(torch.arange(steps).unsqueeze(1), LENGTHS - 1)
    columns = torch.arange(size)
    legal = torch.rand(steps + 1, size, sum(COUNTS)) < 0.6
    legal[..., [0, 3, 5]] = True
    alive = torch.ones(steps + 1, size, 3)
    alive[2:, 0, 1] = alive[1:, 2, 0] = alive[:, 4, 2] = 0
    team = {"agent_state": torch.randn(steps + 1, size, 3, 4), "global_state": torch.randn(steps + 1, size, 2)}
    obs = {**team, "action_mask": legal.to(torch.int8), "alive": alive, "agent_reward": torch.randn(steps + 1, size, 3)}
    terminated = torch.zeros(steps, size, dtype=torch.bool)
    for column in TERMINATED:
        terminated[LENGTHS[column] - 1, column] = True
    action = torch.stack([torch.randint(count, (steps, size)) for count in COUNTS], 2)
    drawn: dict[str, Any] = {"action": action, "reward": torch.randn(steps, size), "terminated": terminated}
    drawn |= {"obs": {name: x[:-1] for name, x in obs.items()}, "next_obs": {name: x[1:] for name, x in obs.items()}}
    batch: dict[str, Any] = nested.apply(lambda x: x[place, columns], drawn)
    state = torch.randn(size, policy.model.state_size)
    weights = {"IS": torch.linspace(0.2, 1.0, size), "priority": torch.ones(size)}
    return batch | weights | {"mask": torch.arange(steps).unsqueeze(1) < LENGTHS, "recurrent_state": state}


class Loop:
    """One sequence, evaluated step by step and agent by agent."""

    def __init__(self, policy: Any, batch: Any, column: int) -> None:
        self.policy, self.batch, self.column, self.end = policy, batch, column, int(LENGTHS[column])
        last = nested.apply(lambda x: x[self.end - 1, column], batch["next_obs"])
        self.obs = [nested.index(batch["obs"], (t, column)) for t in range(self.end)] + [last]
        self.online, self.target = self._outputs(policy.model), self._outputs(policy.target_model)

    def _outputs(self, network: Any) -> list[dict[str, Tensor]]:
        state, found = self.batch["recurrent_state"][self.column : self.column + 1], []
        for obs in self.obs:
            output = network(nested.apply(lambda x: x[None, None], obs), state)
            state = output.pop("state")
            found.append({name: x[0, 0] for name, x in output.items()})
        return found

    def best(self, q: Tensor, step: int) -> list[int]:
        """Return the best legal action of each agent."""
        masks = self.obs[step]["action_mask"].split(list(COUNTS))
        return [
            max((a for a in range(count) if mask[a]), key=row.tolist().__getitem__)
            for count, mask, row in zip(COUNTS, masks, q, strict=True)
        ]

    def values(self, q: Tensor, actions: Any, step: int) -> Tensor:
        """Return the values of actions, 0 of agents that have left."""
        alive = self.obs[step]["alive"]
        return torch.stack([q[agent, int(a)] * alive[agent] for agent, a in enumerate(actions)])

    def targets(self, step: int, value_at: Any, rewards: Any) -> Any:
        """Return the 2-step target of a step, given functions of the value of an observation and of rewards."""
        last = min(step + 2, self.end)
        total = sum(GAMMA ** (t - step) * rewards(t) for t in range(step, last))
        is_end = self.batch["terminated"][last - 1, self.column]
        return total if is_end else total + GAMMA ** (last - step) * value_at(last)

    def reward(self, step: int) -> Tensor:
        return self.batch["reward"][step, self.column]  # type: ignore[no-any-return]

    def action(self, step: int) -> Tensor:
        return self.batch["action"][step, self.column]  # type: ignore[no-any-return]


def of_values(loop: Loop, step: int, policy: Any) -> Tensor:
    """Return the loss of a step of VDN and QMIX."""
    values = loop.values(loop.online[step]["logit"], loop.action(step), step)
    prediction = policy.model.mix(values, loop.obs[step])

    def bootstrap(at: int) -> Tensor:
        chosen = loop.best(loop.online[at]["logit"], at)
        return policy.target_model.mix(loop.values(loop.target[at]["logit"], chosen, at), loop.obs[at])  # type: ignore[no-any-return]

    return (prediction - loop.targets(step, bootstrap, loop.reward)) ** 2  # type: ignore[no-any-return]


def of_agents(loop: Loop, step: int, policy: Any) -> Tensor:
    """Return the loss of a step of independent agents: the mean over those that are in the episode."""
    prediction = loop.values(loop.online[step]["logit"], loop.action(step), step)

    def bootstrap(at: int) -> Tensor:
        return loop.values(loop.target[at]["logit"], loop.best(loop.online[at]["logit"], at), at)

    def rewards(t: int) -> Tensor:
        own = loop.batch["next_obs"]["agent_reward"][t, loop.column]
        stayed = torch.stack([loop.obs[at]["alive"] for at in range(step, t + 1)]).amin(0)
        kept: Tensor = own * stayed  # none once it has left
        return kept

    target = loop.targets(step, bootstrap, rewards)
    alive = [agent for agent in range(3) if loop.obs[step]["alive"][agent]]
    return torch.stack([(prediction[agent] - target[agent]) ** 2 for agent in alive]).mean()


def of_weights(loop: Loop, step: int, policy: Any) -> Tensor:
    """Return the loss of a step of weighted QMIX."""
    obs, action = loop.obs[step], loop.action(step)
    prediction = policy.model.mix(loop.values(loop.online[step]["logit"], action, step), obs)
    central = policy.model.mix_central(loop.values(loop.online[step]["central"], action, step), obs)

    def bootstrap(at: int) -> Tensor:
        chosen = loop.values(loop.target[at]["central"], loop.best(loop.online[at]["logit"], at), at)
        return policy.target_model.mix_central(chosen, loop.obs[at])  # type: ignore[no-any-return]

    target = loop.targets(step, bootstrap, loop.reward)
    best = loop.best(loop.online[step]["logit"], step)
    if policy.config.learn.wqmix_ow:
        is_whole = prediction < target
    else:
        is_best = all(int(action[i]) == best[i] or not obs["alive"][i] for i in range(3))
        of_best = policy.model.mix_central(loop.values(loop.online[step]["central"], best, step), obs)
        is_whole = is_best or target > of_best
    weight = 1.0 if is_whole else policy.config.learn.alpha
    return weight * (prediction - target) ** 2 + (central - target) ** 2  # type: ignore[no-any-return]


def of_more_knowledge(loop: Loop, step: int, policy: Any) -> Tensor:
    """Return the loss of a step of MADQN: the errors of both sums of values from the targets of the second network."""
    action, online = loop.action(step), loop.online
    by = online if policy.config.learn.double_q else loop.target

    def bootstrap(at: int) -> Tensor:
        best = loop.best(by[at]["cooperation"], at)
        return loop.values(loop.target[at]["cooperation"], best, at).sum()

    target = loop.targets(step, bootstrap, loop.reward)
    parts = [loop.values(online[step][name], action, step).sum() - target for name in ("logit", "cooperation")]
    return parts[0] ** 2 + parts[1] ** 2  # type: ignore[no-any-return]


def of_transform(loop: Loop, step: int, policy: Any) -> Tensor:
    """Return the loss of a step of QTRAN."""
    obs, online, learn = loop.obs[step], loop.online[step], policy.config.learn

    def joint(network: Any, output: Any, actions: Any, at: int) -> Tensor:
        seen = loop.obs[at]
        return network.joint(output["feature"], torch.as_tensor(actions), seen["alive"], seen["global_state"])  # type: ignore[no-any-return]

    def bootstrap(at: int) -> Tensor:
        return joint(policy.target_model, loop.target[at], loop.best(loop.online[at]["logit"], at), at)

    value = joint(policy.model, online, loop.action(step), step)
    best = loop.best(online["logit"], step)
    of_state = policy.model.joint.of_state(obs["global_state"])
    of_best = loop.values(online["logit"], best, step).sum() - joint(policy.model, online, best, step) + of_state
    gap = loop.values(online["logit"], loop.action(step), step).sum() - value + of_state
    td = (value - loop.targets(step, bootstrap, loop.reward)) ** 2
    parts = learn.td_weight * td + learn.opt_weight * of_best**2
    return parts + learn.nopt_min_weight * min(float(gap), 0.0) ** 2  # type: ignore[no-any-return]


CASES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "iql_ma": ("iql_ma", of_agents, {}),
    "vdn": ("vdn", of_values, {}),
    "qmix": ("qmix", of_values, {}),
    "wqmix, optimistic": ("wqmix", of_weights, {"learn": {"alpha": 0.3}}),
    "wqmix, central": ("wqmix", of_weights, {"learn": {"alpha": 0.3, "wqmix_ow": False}}),
    "madqn": ("madqn", of_more_knowledge, {}),
    "madqn, without double_q": ("madqn", of_more_knowledge, {"learn": {"double_q": False}}),
    "qtran": ("qtran", of_transform, {"learn": {"opt_weight": 0.7, "nopt_min_weight": 0.4}}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("weighted", [True, False])
def test_loss_is_that_of_a_loop_over_steps_and_agents(case: str, weighted: bool) -> None:
    name, oracle, changes = CASES[case]
    policy = make(name, priority=weighted, priority_IS_weight=weighted, **changes)
    batch = sequences(policy)
    total = 0.0
    for column in range(len(LENGTHS)):
        loop = Loop(policy, batch, column)
        weight = float(batch["IS"][column]) if weighted else 1.0
        total += weight * sum(float(oracle(loop, step, policy)) for step in range(min(loop.end, 3)))
    assert_close(float(policy.loss(batch)[0]), total / (3 * len(LENGTHS)), rtol=1e-4, atol=1e-5)


@EVERY
def test_padding_changes_nothing(name: str) -> None:
    policy = make(name)
    batch = sequences(policy)
    loss, _ = policy.loss(batch)
    for column in ("reward", "obs", "next_obs"):
        batch[column] = nested.apply(torch.clone, batch[column])
    batch["reward"][~batch["mask"]] = 50.0
    later = ~batch["mask"][1:]
    batch["obs"]["agent_state"][1:][later] = 50.0
    batch["next_obs"]["agent_state"][1:][later] = 50.0
    assert_close(policy.loss(batch)[0], loss)


@EVERY
def test_agents_that_have_left_change_nothing(name: str) -> None:
    policy = make(name, model={**make(name).config.model.__dict__, "core": {}})
    batch = sequences(policy)
    loss, _ = policy.loss(batch)
    batch["obs"]["agent_state"] = batch["obs"]["agent_state"].masked_fill(batch["obs"]["alive"][..., None] == 0, 9.0)
    following = batch["next_obs"]
    following["agent_state"] = following["agent_state"].masked_fill(following["alive"][..., None] == 0, 9.0)
    batch["action"] = torch.where(batch["obs"]["alive"] == 0, 0, batch["action"])
    assert_close(policy.loss(batch)[0], loss)


@EVERY
def test_ignoring_ends_and_other_options_change_the_loss(name: str) -> None:
    loss = float(make(name).loss(sequences(make(name)))[0])
    ignoring, single = make(name, learn={"ignore_done": True}), make(name, learn={"double_q": False})
    huber = make(name, learn={"loss": "huber"})
    assert len({loss, *(float(one.loss(sequences(one))[0]) for one in (ignoring, single, huber))}) == 4


def test_each_agent_explores_on_its_own_and_within_its_mask() -> None:
    policy = make("qmix")
    policy.rng = np.random.default_rng(0)
    size = 4000
    obs = {"agent_state": torch.zeros(size, 3, 4), "global_state": torch.zeros(size, 2)}
    obs["action_mask"] = torch.tensor([1, 1, 1, 1, 1, 1, 0, 1]).expand(size, -1)
    greedy = policy.eval_mode.forward(obs)["action"]
    action = policy.collect_mode.forward(obs, eps=0.5)["action"]
    explores = (action != greedy).float()
    shares = 0.5 * torch.tensor([2 / 3, 1 / 2, 1 / 2])  # a random action may be the greedy one
    assert_close(explores.mean(0), shares, atol=0.03, rtol=0)
    both = explores[:, 0] * explores[:, 1]
    assert_close(both.mean(), shares[0] * shares[1], atol=0.02, rtol=0)
    assert not (action[:, 2] == 1).any()
    assert bool((action[:, 1] < 2).all())


@EVERY
def test_greedy_actions_are_the_legal_ones_of_the_largest_values(name: str) -> None:
    policy = make(name)
    batch = sequences(policy)
    obs = nested.apply(lambda x: x[0], batch["obs"])
    action = policy(obs)
    q = policy.model.act(obs, policy.model.first_state(6))["logit"]
    for row, masks in enumerate(zip(*obs["action_mask"].split(list(COUNTS), 1), strict=True)):
        for agent, mask in enumerate(masks):
            legal = [a for a in range(COUNTS[agent]) if mask[a]]
            assert int(action[row, agent]) == max(legal, key=q[row, agent].tolist().__getitem__)


@pytest.mark.parametrize("sees_state", [True, False])
def test_second_network_of_madqn_sees_the_global_state(sees_state: bool) -> None:
    policy = make("madqn")
    policy = make("madqn", model={**policy.config.model.__dict__, "core": {}, "global_cooperation": sees_state})
    obs = nested.apply(lambda x: x[:1], sequences(policy)["obs"])
    changed = {**obs, "global_state": obs["global_state"] + 1}
    before, after = (policy.model(one, policy.model.first_state(6)) for one in (obs, changed))
    assert torch.equal(before["logit"], after["logit"])
    assert torch.equal(before["cooperation"], after["cooperation"]) is not sees_state


def test_memory_starts_again_where_an_episode_ended() -> None:
    policy = make("wqmix")
    obs = {"agent_state": torch.randn(2, 3, 4), "global_state": torch.randn(2, 2), "action_mask": torch.ones(2, 8)}
    first = policy.collect_mode.forward(obs, eps=0.0)
    second = policy.collect_mode.forward(obs, eps=0.0)
    policy.collect_mode.reset([1])
    third = policy.collect_mode.forward(obs, eps=0.0)
    assert first["is_first"].tolist() == [True, True]
    assert second["is_first"].tolist() == [False, False]
    assert third["is_first"].tolist() == [False, True]
    assert second["recurrent_state"].shape == (2, 2 * 3 * 5)  # of both networks of three agents
    assert not third["recurrent_state"][1].any()


def test_agents_without_memory_learn_from_single_steps_and_keep_no_state() -> None:
    sizes = {"agent_num": 3, "agent_obs_shape": 4, "global_obs_shape": 2, "action_shape": 2}
    policy: Any = create_policy({"type": "vdn", "model": sizes})
    assert policy.sample_options["sequence"] == 1
    assert "period" not in policy.sample_options
    assert policy.new_memory("eval") == {}
    assert make("vdn").new_memory("eval").keys() == {"_evaluating"}
    assert make("vdn").sample_options == {
        "n_step": 1,
        "discount_factor": GAMMA,
        "sequence": 4,
        "burn_in": 0,
        "period": 3,
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learn_unroll_len": 0}, "learn_unroll_len must be >= 1"),
        ({"model": {"core": {"hidden_size": 8}}}, "model.core.hidden_size must be left at its default without"),
        ({"model": {"core": {"type": "gru", "num_layers": 0}}}, "model.core.num_layers must be >= 1"),
        ({"model": {"obs_shape": 4}}, "set agent_obs_shape and global_obs_shape"),
        ({"model": {"mixing_embed_dim": 8}}, "mixing_embed_dim"),
    ],
)
def test_unfit_options_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_policy({"type": "vdn", **changes})


def test_unfit_numbers_of_single_algorithms_are_refused() -> None:
    with pytest.raises(ValueError, match=r"learn\.alpha must be in"):
        create_policy({"type": "wqmix", "learn": {"alpha": 0.0}})
    with pytest.raises(ValueError, match=r"learn\.opt_weight must be >= 0"):
        create_policy({"type": "qtran", "learn": {"opt_weight": -1.0}})
    with pytest.raises(ValueError, match="parameter_sharing must be true with recurrent layers"):
        make(
            "vdn",
            model={
                "agent_num": 2,
                "agent_obs_shape": 1,
                "global_obs_shape": 2,
                "action_shape": 2,
                "parameter_sharing": False,
                "core": {"type": "gru"},
            },
        )


def test_continuous_actions_are_refused() -> None:
    seen = spaces.Dict({"agent_state": spaces.Box(-1, 1, (3, 4))})
    with pytest.raises(TypeError, match="qmix needs a MultiDiscrete action space"):
        create_policy({"type": "qmix"}).build(seen, spaces.Box(-1, 1, (3, 2)))
