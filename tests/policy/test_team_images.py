"""Teams whose agents see images: their envs, the encoders of their networks, and learning."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from lightning import Callback, Trainer, seed_everything

from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
from lightning_ding.envs.teams import ParallelTeam
from lightning_ding.model.teams.team_q import QMIXNetwork
from lightning_ding.policy import create_policy
from lightning_ding.utils.teams import global_state, team_shapes

pytest.importorskip("pettingzoo")
from pettingzoo.utils.env import ParallelEnv

SIDE, STEPS = 16, 8
SMALL = {"channels": [4, 4, 4], "feature_size": 16}
FROM_REPLAY = ("iql_ma", "vdn", "qmix", "wqmix", "qtran", "madqn")
FROM_ROLLOUTS = ("ippo", "mappo", "recurrent_mappo", "coma")


class Squares(ParallelEnv):  # type: ignore[misc]
    """Each of two agents sees a white square, at the left or at the right, and gets 1 for naming the side."""

    metadata: ClassVar[dict[str, Any]] = {"name": "squares"}
    possible_agents: ClassVar[list[str]] = ["first", "second"]

    def __init__(self, has_state: bool = True) -> None:
        self.has_state = has_state

    def observation_space(self, agent: str) -> spaces.Box:
        return spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None or not hasattr(self, "rng"):
            self.rng = np.random.default_rng(seed)
        self.agents, self.steps = list(self.possible_agents), 0
        return self._see(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        self.steps += 1
        rewards = {agent: float(self.sides[agent] == action) for agent, action in actions.items()}
        is_over, agents = self.steps == STEPS, self.agents
        self.agents = [] if is_over else agents
        flags = [dict.fromkeys(agents, False), dict.fromkeys(agents, is_over)]
        return self._see(), rewards, *flags, {agent: {} for agent in agents}

    def state(self) -> np.ndarray:
        if not self.has_state:
            raise NotImplementedError
        return np.concatenate([self.images[agent] for agent in self.possible_agents], 1)

    def _see(self) -> dict[str, Any]:
        self.sides = {agent: int(self.rng.integers(2)) for agent in self.possible_agents}
        self.images = {agent: np.zeros((SIDE, SIDE, 3), np.uint8) for agent in self.possible_agents}
        for agent, side in self.sides.items():
            self.images[agent][4:12, 8 * side + 2 : 8 * side + 6] = 255
        return dict(self.images)


class NoteWeights(Callback):
    """Keeps the weights of convolutions before learning."""

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        layers = [one for one in pl_module.model.modules() if isinstance(one, torch.nn.Conv2d)]
        pl_module.first_weights = [one.weight.detach().clone() for one in layers]


def options(name: str, **model: Any) -> dict[str, Any]:
    learn = {"learning_rate": 2e-3, "batch_size": 64}
    section = {"encoder_kwargs": SMALL, "encoder_hidden_size_list": [16], **model}
    found: dict[str, Any] = {"type": name, "model": section}
    if name in FROM_REPLAY:
        of_replay = {"random_collect_size": 64, "other": {"eps": {"start": 0.5, "end": 0.05, "decay": 500}}}
        return found | of_replay | {"learn": learn, "collect": {"n_sample": 32}, "discount_factor": 0.5}
    return found | {"learn": learn, "collect": {"n_sample": 128}, "discount_factor": 0.5}


def train(name: str, steps: int, has_state: bool = True, **model: Any) -> tuple[Any, float]:
    seed_everything(0, verbose=False)
    kind = ReplayDataModule if name in FROM_REPLAY else RolloutDataModule
    arguments: dict[str, Any] = {
        "env_kwargs": {"has_state": has_state, "team_reward": "mean"},
        "num_envs": 4,
        "seed": 0,
    }
    data = kind(Squares, max_env_step=steps, n_evaluator_episode=8, **arguments)
    policy: Any = create_policy(options(name, **model))
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"callbacks": NoteWeights(), "enable_model_summary": False}
    trainer = Trainer(accelerator="cpu", max_epochs=-1, limit_val_batches=0, **quiet)
    trainer.fit(policy, data)
    trainer.limit_val_batches = 1.0
    (scores,) = trainer.validate(policy, data, verbose=False)
    return policy, scores["eval/return_mean"]


def test_images_of_agents_and_the_state_stay_bytes() -> None:
    env = ParallelTeam(Squares)
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    assert {name: obs[name].shape for name in ("agent_state", "global_state")} == {
        "agent_state": (2, SIDE, SIDE, 3),
        "global_state": (SIDE, 2 * SIDE, 3),
    }
    assert obs["agent_state"].dtype == obs["global_state"].dtype == np.dtype(np.uint8)
    assert team_shapes(env.observation_space, env.action_space, "qmix") == {
        "agent_num": 2,
        "agent_obs_shape": (SIDE, SIDE, 3),
        "global_obs_shape": (SIDE, 2 * SIDE, 3),
        "action_shape": 2,
    }


def test_state_of_images_without_one_is_the_stack_of_all() -> None:
    env = ParallelTeam(Squares, has_state=False)
    obs, _ = env.reset(seed=0)
    assert team_shapes(env.observation_space, env.action_space, "qmix")["global_obs_shape"] == (2, SIDE, SIDE, 3)
    seen = {name: torch.from_numpy(np.stack([one] * 3)) for name, one in obs.items()}
    assert global_state(seen).shape == (3, 2, SIDE, SIDE, 3)


def test_joined_state_of_images_is_refused() -> None:
    with pytest.raises(ValueError, match="global_state must be 'none' for agents that see images"):
        ParallelTeam(Squares, global_state="joined")


def test_values_of_agents_with_images_are_those_of_each_alone() -> None:
    torch.manual_seed(0)
    shapes: dict[str, Any] = {"agent_obs_shape": (SIDE, SIDE, 3), "global_obs_shape": (SIDE, 2 * SIDE, 3)}
    network = QMIXNetwork(agent_num=2, **shapes, action_shape=2, agent_id=False, encoder_kwargs=SMALL)
    seen = torch.randint(0, 256, (3, 4, 2, SIDE, SIDE, 3), dtype=torch.uint8)
    logit = network({"agent_state": seen}, network.first_state(4))["logit"]
    assert logit.shape == (3, 4, 2, 2)
    features = network.agents.images.layers(seen[1, 2, 1][None])
    expected = network.agents.head(network.agents.encoder.layers(features[:, None]))
    torch.testing.assert_close(logit[1, 2, 1], expected[0, 0])


def test_value_of_the_team_depends_on_the_image_of_the_state() -> None:
    torch.manual_seed(0)
    shapes: dict[str, Any] = {"agent_num": 2, "agent_obs_shape": 5, "global_obs_shape": (SIDE, SIDE, 3)}
    network = QMIXNetwork(**shapes, action_shape=2, encoder_kwargs=SMALL)
    value, dark = torch.ones(6, 2), torch.zeros(6, SIDE, SIDE, 3, dtype=torch.uint8)
    mixed = [network.mix(value, {"agent_state": torch.zeros(6, 2, 5), "global_state": x}) for x in (dark, dark + 200)]
    assert mixed[0].shape == (6,)
    assert (mixed[0] - mixed[1]).abs().min() > 1e-4


@pytest.mark.parametrize("has_state", [True, False])
@pytest.mark.parametrize("name", [*FROM_REPLAY, *FROM_ROLLOUTS])
def test_every_image_encoder_of_a_team_learns(name: str, has_state: bool) -> None:
    policy, _ = train(name, 128, has_state)  # one round of rollouts
    layers = [one for one in policy.model.modules() if isinstance(one, torch.nn.Conv2d)]
    assert layers
    assert not any(torch.equal(one.weight, first) for one, first in zip(layers, policy.first_weights, strict=True))


@pytest.mark.parametrize("name", ["qmix", "mappo"])
def test_team_learns_what_its_images_show(name: str) -> None:
    assert train(name, 2600)[1] > 7  # of 8; random actions have 4


def test_encoder_of_images_is_the_one_of_the_options() -> None:
    policy, _ = train("mappo", 128, encoder="impala", encoder_kwargs={"channels": [4], "feature_size": 8})
    assert type(policy.model.images.layers).__name__ == "ImpalaEncoder"
    assert policy.model.images.output_size == 8


@pytest.mark.parametrize("name", ["happo", "mat", "masac", "maddpg"])
def test_networks_without_an_encoder_of_images_say_so(name: str) -> None:
    env = ParallelTeam(Squares)
    with pytest.raises(ValueError, match=r"model\.agent_obs_shape must be the size of a vector, as .* no encoder"):
        create_policy({"type": name}).build(env.observation_space, env.action_space)


@pytest.mark.parametrize("option", [{"encoder": "conv"}, {"encoder_kwargs": SMALL}])
def test_options_of_images_are_refused_for_vectors(option: dict[str, Any]) -> None:
    shapes = {"agent_num": 2, "agent_obs_shape": 5, "global_obs_shape": 10, "action_shape": 2}
    with pytest.raises(ValueError, match=r"model\.encoder.* must be left out for a team that sees vectors"):
        create_policy({"type": "qmix", "model": {**shapes, **option}})


def test_graph_of_one_agent_gets_its_image(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    policy, _ = train("mappo", 128)
    path = policy.export(tmp_path / "agent.onnx", agent=1)
    import onnxruntime

    seen = np.random.default_rng(0).integers(0, 256, (1, 2, SIDE, SIDE, 3)).astype(np.uint8)
    whole = {"agent_state": torch.from_numpy(seen), "alive": torch.ones(1, 2)}
    (action, *_) = onnxruntime.InferenceSession(path).run(None, {"obs": seen[:, 1]})
    assert action.item() == policy.eval_mode.forward(whole)["action"][0, 1]
