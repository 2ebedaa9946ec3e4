"""The Decision Transformer: its network, loss, contexts, data, evaluation, resuming and ranks; see also its options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from lightning_ding import nested
from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.datamodules import Dataset, OfflineDataModule, ReplayDataModule
from lightning_ding.model.decision_transformer import CausalBlock, DecisionTransformer
from lightning_ding.policy import DQNPolicy, DTPolicy
from lightning_ding.policy.dt import Contexts
from tests.conftest import MakeTrainer
from tests.envs.any_spaces import AnySpaces
from tests.processes import run_ranks_of_lightning
from tests.toys.datasets import counting_steps

Config = dict[str, Any]
SCRIPT = Path(__file__).parents[1] / "datamodules" / "offline_ranks_script.py"
SHAPES: Config = {"obs_shape": 2, "action_shape": 2, "action_space": "discrete", "encoder_hidden_size_list": [8]}
TINY: Config = {"embed_dim": 8, "n_heads": 2, "n_blocks": 1}
CONSTANT: Config = {"type": "constant", "points": None, "unit": "budget"}
SMALL: Config = {
    "context_len": 3,
    "rtg_scale": 10.0,
    "max_eval_ep_len": 20,
    "model": {**TINY, "encoder_hidden_size_list": [8]},
    "learn": {
        "update_per_collect": 5,
        "batch_size": 8,
        "lr_scheduler": {"type": "constant", "points": None, "unit": "budget"},
    },
    "eval": {"evaluator": {"n_episode": 2, "eval_freq": 10}},
}


def make_policy(**cfg: Any) -> Any:
    torch.manual_seed(0)
    model = {**SHAPES, **TINY, "dropout_p": 0.0, **cfg.pop("model", {})}
    return DTPolicy({"context_len": 3, "rtg_scale": 10.0, "max_eval_ep_len": 20, **cfg, "model": model})


def make_batch(length: int = 3, size: int = 4) -> dict[str, Any]:
    """Return sub-sequences with leading axes (T, B); the last step of the first one is padding."""
    torch.manual_seed(1)
    mask = torch.ones(length, size, dtype=torch.bool)
    mask[-1, 0] = False
    return {
        "obs": torch.randn(length, size, 2),
        "action": torch.randint(2, (length, size)),
        "return_to_go": 5 + torch.randn(length, size),
        "timestep": torch.arange(length).unsqueeze(1).expand(length, size).clone(),
        "mask": mask,
    }


# ---------------------------------------------------------------------- the network


def test_attention_equals_a_loop_over_heads_and_tokens() -> None:
    torch.manual_seed(0)
    block, x = CausalBlock(6, 2, 0.0).double(), torch.randn(2, 4, 6, dtype=torch.float64)
    normal = block.norm_attention(x)
    query, key, value = block.query_key_value(normal).chunk(3, -1)
    attended = torch.zeros_like(x)
    for item in range(2):
        for head in (slice(0, 3), slice(3, 6)):
            for t in range(4):
                score = (key[item, : t + 1, head] @ query[item, t, head]) / 3**0.5
                attended[item, t, head] = score.softmax(0) @ value[item, : t + 1, head]
    after = x + block.projection(attended)
    assert_close(block(x), after + block.feed_forward(block.norm_feed_forward(after)))


@pytest.mark.parametrize("name", ["obs", "action", "return_to_go", "timestep"])
def test_prediction_depends_on_the_past_only(name: str) -> None:
    policy, batch = make_policy(), make_batch()
    inputs = {key: batch[key].transpose(0, 1) for key in ("obs", "action", "return_to_go", "timestep")}
    before = policy._logits(**inputs)
    for step in range(3):
        changed = {key: value.clone() for key, value in inputs.items()}
        changed[name][:, step] = 1 - changed[name][:, step] if name == "action" else changed[name][:, step] + 3
        differs = (policy._logits(**changed) != before).any(-1).any(0).tolist()
        first = step + 1 if name == "action" else step  # the action of a step is known after it
        assert differs == [number >= first for number in range(3)]


def test_late_steps_share_an_embedding() -> None:
    network = DecisionTransformer(2, 2, max_timestep=5, embed_dim=8).eval()
    steps = torch.zeros(1, 2)
    outputs = [network(torch.zeros(1, 2, 2), steps.long(), steps, torch.tensor([[0, last]])) for last in (3, 4, 9)]
    assert torch.equal(outputs[1]["logit"], outputs[2]["logit"])
    assert not torch.equal(outputs[0]["logit"], outputs[1]["logit"])


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"embed_dim": 9, "n_heads": 2}, "embed_dim"),
        ({"n_blocks": 0}, "n_blocks"),
        ({"n_heads": 0}, "n_heads"),
        ({"dropout_p": 1.0}, "dropout_p"),
    ],
)
def test_sizes_out_of_range_are_refused(options: Config, name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be"):
        DecisionTransformer(2, 2, **options)


# ---------------------------------------------------------------------- the loss


def test_loss_of_discrete_actions_is_the_sum_of_real_cross_entropies_over_all_places() -> None:
    policy, batch = make_policy(), make_batch()
    loss, report = policy.loss(batch)
    rows = [(t, b) for t in range(3) for b in range(4) if batch["mask"][t, b]]
    logit = policy.model(*(batch[key].transpose(0, 1) for key in ("obs", "action")),
                         batch["return_to_go"].T / 10, batch["timestep"].T)["logit"]  # fmt: skip
    expected = torch.stack([F.cross_entropy(logit[b, t], batch["action"][t, b]) for t, b in rows]).sum() / 12
    assert_close(loss, expected)
    assert_close(report["total_loss"], expected.detach())


def test_padding_changes_nothing() -> None:
    policy, batch = make_policy(), make_batch()
    before = policy.loss(batch)[0]
    for name in ("obs", "return_to_go"):
        batch[name][-1, 0] += 5
    assert_close(policy.loss(batch)[0], before)


def test_loss_of_continuous_actions_is_the_squared_error_in_normalised_units() -> None:
    space = {"action_shape": 1, "action_space": "continuous", "action_low": [-2.0], "action_high": [6.0]}
    policy, batch = make_policy(model=space), make_batch()
    action = torch.rand(3, 4, 1) * 8 - 2
    loss, _ = policy.loss({**batch, "action": action})
    normal = (action - 2) / 4
    logit = policy.model(batch["obs"].transpose(0, 1), normal.transpose(0, 1), batch["return_to_go"].T / 10,
                         batch["timestep"].T)["logit"]  # fmt: skip
    error = (logit - normal.transpose(0, 1)).square()[..., 0][batch["mask"].T]
    assert len(error) == 11  # of 12, one is padding
    assert_close(loss, error.sum() / 12)
    assert policy.eval_mode.forward(torch.zeros(5, 2))["action"].shape == (5, 1)


def test_illegal_actions_are_not_taken() -> None:
    policy = make_policy(model={"obs_shape": {"at": 2, "action_mask": 2}, "encoder_hidden_size_list": None})
    for legal in (0, 1):
        mask = F.one_hot(torch.full((4,), legal), 2)
        policy.eval_mode.reset()
        action = policy.eval_mode.forward({"at": torch.randn(4, 2), "action_mask": mask})["action"]
        assert action.tolist() == [legal] * 4


# ---------------------------------------------------------------------- spaces


FROM_2 = gym.spaces.Discrete(3, start=2)
INTEGERS = gym.spaces.Box(np.array([-1, 2]), np.array([1, 4]), (2,), np.int16)
SPACES: dict[str, tuple[gym.spaces.Space[Any], gym.spaces.Space[Any]]] = {
    "choices from 2 by bytes": (gym.spaces.Box(0, 255, (6,), np.uint8), FROM_2),
    "choices from 2 by images": (gym.spaces.Box(0, 255, (12, 12, 1), np.uint8), FROM_2),
    "choices from 2 by dicts": (gym.spaces.Dict({"at": gym.spaces.Discrete(5), "more": INTEGERS}), FROM_2),
    "torques by choices": (gym.spaces.Discrete(5, start=-2), gym.spaces.Box(-2, 6, (2,))),
}


@pytest.mark.parametrize("kind", SPACES)
def test_actions_of_every_kind_of_space_are_learned_and_lie_in_it(kind: str, make_trainer: MakeTrainer) -> None:
    observations, actions = SPACES[kind]
    kwargs = {"observation": observations, "action": actions}
    data = random_steps(40, AnySpaces(**kwargs))
    policy: Any = DTPolicy({**SMALL, "model": TINY})
    datamodule = OfflineDataModule(data, AnySpaces, env_kwargs=kwargs, max_train_iter=5)
    make_trainer(limit_val_batches=0).fit(policy, datamodule)
    AnySpaces.acted.clear()
    make_trainer().test(policy, datamodule, verbose=False)
    assert len(AnySpaces.acted) >= 2
    assert all(actions.contains(action) for action in AnySpaces.acted)


@pytest.mark.parametrize("actions", [gym.spaces.MultiDiscrete([2, 3]), gym.spaces.MultiBinary(2)])
def test_actions_of_several_choices_are_refused(actions: gym.spaces.Space[Any]) -> None:
    with pytest.raises(TypeError, match="DTPolicy needs a Discrete or Box action space, got Multi"):
        DTPolicy({}).build(gym.spaces.Box(-1, 1, (3,)), actions)


# ---------------------------------------------------------------------- acting


def test_contexts_are_those_of_a_list_for_each_env() -> None:
    rng, contexts = np.random.default_rng(0), Contexts(3, target=50.0)
    episodes: list[list[Any]] = [[], [], []]
    reward = None
    for step in range(12):
        obs = torch.from_numpy(rng.normal(size=(3, 2)))
        for env, episode in enumerate(episodes):
            left = 50.0 if not episode else episode[-1]["return_to_go"] - float(reward[env])  # type: ignore[index]
            episode.append({"obs": obs[env], "return_to_go": left, "timestep": len(episode), "action": 0.0})
        seen = contexts.observe(obs, reward, torch.zeros(3))
        for env, episode in enumerate(episodes):
            window = episode[-3:]
            assert contexts.newest(seen["timestep"])[env] == len(episode) - 1
            for name in ("obs", "return_to_go", "timestep", "action"):
                expected = torch.stack([torch.as_tensor(one[name]) for one in window])
                assert_close(seen[name][env, : len(window)], expected, check_dtype=False, rtol=1e-6, atol=0)
        action, reward = torch.from_numpy(rng.normal(size=3)).float(), rng.normal(size=3)
        contexts.act(action)
        for env, episode in enumerate(episodes):
            episode[-1]["action"] = float(action[env])
        ended = [env for env in range(3) if (step + env) % 4 == 3]
        contexts.reset(ended)
        for env in ended:
            episodes[env] = []


def test_acting_without_rewards_is_refused() -> None:
    policy = make_policy()
    policy.eval_mode.forward(torch.zeros(2, 2))
    with pytest.raises(ValueError, match="reward must be the rewards of the previous steps, got None"):
        policy.eval_mode.forward(torch.zeros(2, 2))


@pytest.mark.parametrize(("target", "expected"), [(None, 10.0), (7.0, 7.0)])
def test_evaluation_passes_the_rewards_of_each_env(
    make_trainer: MakeTrainer, target: float | None, expected: float
) -> None:
    seen: list[Any] = []

    class Noting(DTPolicy):
        def _logits(self, obs: Any, action: Any, return_to_go: Any, timestep: Any) -> Any:
            if not torch.is_grad_enabled():
                newest = self._contexts.newest
                seen.append((newest(timestep).tolist(), newest(return_to_go).tolist()))
            return super()._logits(obs, action, return_to_go, timestep)

    policy = Noting({**SMALL, "rtg_target": target})
    datamodule = OfflineDataModule(random_steps(), "CartPole-v1", max_train_iter=5)
    make_trainer(limit_val_batches=0).fit(policy, datamodule)
    make_trainer().test(policy, datamodule, verbose=False)
    assert max(max(steps) for steps, _ in seen) > 5
    for steps, left in seen:
        assert left == [expected - step for step in steps]  # CartPole's reward is 1


# ---------------------------------------------------------------------- the data


def random_steps(size: int = 120, env: gym.Env[Any, Any] | None = None) -> Any:
    env = env or gym.make("CartPole-v1")
    env.action_space.seed(0)
    steps: list[dict[str, Any]] = []
    obs, _ = env.reset(seed=0)
    while len(steps) < size:
        action = env.action_space.sample()
        next_obs, reward, terminated, truncated, _ = env.step(action)
        steps.append({"obs": obs, "action": action, "reward": reward, "next_obs": next_obs})
        steps[-1] |= {"terminated": terminated, "truncated": truncated}
        obs = env.reset()[0] if terminated or truncated else next_obs
    return nested.stack_arrays([nested.to_array(nested.as_dicts(step)) for step in steps])


def test_trajectories_are_whole_episodes_with_returns_to_go() -> None:
    steps = counting_steps((3, 2, 4), (True, False, True))
    steps["terminated"][-1] = False  # the last episode has no end
    data = Dataset(steps).trajectories()
    assert data["return_to_go"].tolist() == [6, 5, 3, 3, 2]
    assert data["timestep"].tolist() == [0, 1, 2, 0, 1]
    assert data["obs"][:, 0].tolist() == [0, 1, 2, 10, 11]
    steps = {name: value[5:] for name, value in steps.items()}
    with pytest.raises(ValueError, match="dataset must be one with at least one whole episode, got '1 parts"):
        Dataset(steps).trajectories()


def test_minibatches_are_sub_sequences_of_the_episodes(make_trainer: MakeTrainer) -> None:
    seen: list[Any] = []

    class Noting(DTPolicy):
        def _forward_learn(self, batch: dict[str, Any]) -> dict[str, Any]:
            seen.append({name: batch[name].clone() for name in ("obs", "return_to_go", "timestep", "mask")})
            return super()._forward_learn(batch)

    data = counting_steps((5, 2, 7, 4), (True, False, True, False))
    make_trainer().fit(Noting(SMALL), OfflineDataModule(data, max_train_iter=20))
    lengths = {0: 5, 1: 2, 2: 7, 3: 4}
    for batch in seen:
        assert batch["mask"].shape == (3, 8)
        for item in range(8):
            first = batch["obs"][0, item, 0].item()
            episode, begin = int(first // 10), int(first % 10)
            length = min(3, lengths[episode] - begin)
            assert batch["mask"][:, item].tolist() == [step < length for step in range(3)]
            steps = np.arange(begin, begin + length)
            assert batch["timestep"][:length, item].tolist() == steps.tolist()
            rewards = np.arange(1, lengths[episode] + 1)
            assert batch["return_to_go"][:length, item].tolist() == [rewards[step:].sum() for step in steps]


def test_rewards_are_not_normalised_and_other_datamodules_and_buffers_refused(make_trainer: MakeTrainer) -> None:
    with pytest.raises(ValueError, match="norm_reward must be False"):
        make_trainer().fit(DTPolicy(SMALL), OfflineDataModule(counting_steps(), max_train_iter=5, norm_reward=True))
    naive = DTPolicy({**SMALL, "other": {"replay_buffer": {"type": "naive"}}})
    with pytest.raises(ValueError, match=r"other\.replay_buffer\.type must be one whose samples are sequences"):
        make_trainer().fit(naive, OfflineDataModule(counting_steps(), max_train_iter=5))
    with pytest.raises(ValueError, match="policy must be one that collects"):
        make_trainer(limit_val_batches=0).fit(DTPolicy(SMALL), ReplayDataModule("CartPole-v1", num_envs=2))
    other = DQNPolicy({"other": {"replay_buffer": {"type": "sequence"}}, "learn": {"batch_size": 4}})
    with pytest.raises(ValueError, match=r"other\.replay_buffer\.type must be one whose samples are transitions"):
        make_trainer().fit(other, OfflineDataModule(counting_steps(), max_train_iter=5))


# ---------------------------------------------------------------------- learning and resuming


def test_it_learns_the_action_that_leads_to_the_return_asked_for(make_trainer: MakeTrainer) -> None:
    torch.manual_seed(0)
    rng, size = np.random.default_rng(0), 512
    good = rng.random(size) < 0.5  # episodes of one step: action 1 earns 1, action 0 nothing
    over = np.ones(size, dtype=bool)
    data = {"obs": rng.normal(size=(size, 2)).astype(np.float32), "action": good.astype(np.int64), "terminated": over}
    data |= {"reward": good.astype(np.float32), "truncated": ~over}
    data["next_obs"] = data["obs"]
    policy = DTPolicy({**SMALL, "rtg_scale": 1.0, "learn": {**SMALL["learn"], "learning_rate": 0.01, "batch_size": 32}})
    make_trainer().fit(policy, OfflineDataModule(data, max_train_iter=100))
    for target in (1.0, 0.0):
        policy._contexts.target = target
        policy.eval_mode.reset()
        action = policy.eval_mode.forward(torch.randn(50, 2))["action"]
        assert action.float().mean() == target


def fit(make_trainer: MakeTrainer, max_train_iter: int, folder: Path, file: Any = None, **cfg: Any) -> Any:
    torch.manual_seed(1 if file else 0)
    policy = DTPolicy({**SMALL, **cfg})
    datamodule = OfflineDataModule(random_steps(), max_train_iter=max_train_iter, norm_obs=True)
    trainer = make_trainer(enable_checkpointing=True, callbacks=[RunCheckpoint(folder)])
    trainer.fit(policy, datamodule, ckpt_path=file, weights_only=True if file else None)
    return policy


def test_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    straight = fit(make_trainer, 40, tmp_path / "straight")
    fit(make_trainer, 20, tmp_path / "half")
    resumed = fit(make_trainer, 40, tmp_path / "half", tmp_path / "half" / "last.ckpt")
    for name, value in straight.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_two_ranks_draw_different_minibatches_and_keep_the_same_weights(tmp_path: Path) -> None:
    run_ranks_of_lightning(SCRIPT, tmp_path, "dt")
    one, other = (torch.load(tmp_path / f"rank_{rank}.pt", weights_only=True) for rank in range(2))
    assert not torch.equal(one["rows"], other["rows"])
    assert all(torch.equal(value, other["weights"][name]) for name, value in one["weights"].items())


@pytest.mark.slow
def test_compiled_updates_equal_eager_ones(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    model = {"model": {**SMALL["model"], "dropout_p": 0.0}}
    eager, compiled = (fit(make_trainer, 5, tmp_path / str(on), compile=on, **model) for on in (False, True))
    assert compiled.updater.compile_seconds > 0
    for name, value in eager.state_dict().items():
        assert_close(compiled.state_dict()[name], value, rtol=0, atol=1e-5)


def test_dropout_is_not_compiled() -> None:
    with pytest.raises(ValueError, match=r"model\.dropout_p must be 0 with compile"):
        DTPolicy({"compile": True})


@pytest.mark.parametrize(
    ("name", "hint"),
    [("wt_decay", "optimizer.weight_decay"), ("clip_grad_norm_p", "grad_clip_norm"), ("warmup_steps", "lr_scheduler")],
)
def test_other_names_of_options_lead_to_ours(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        DTPolicy({"learn": {name: 1}})


@pytest.mark.parametrize("name", ["context_len", "rtg_scale", "max_eval_ep_len"])
def test_options_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be"):
        DTPolicy({name: 0})
