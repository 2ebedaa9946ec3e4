"""The learning benchmarks record, draw and count runs correctly."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import curves, learn, proofs, zoo
from benchmarks.proofs import PROOFS, RECIPES, Plan
from lightning_ding.worker import InteractionSerialEvaluator

ROOT = Path(__file__).parents[2]
MUJOCO = (
    "Ant",
    "HalfCheetah",
    "Hopper",
    "InvertedDoublePendulum",
    "InvertedPendulum",
    "Reacher",
    "Swimmer",
    "Walker2d",
)
OF_ENVS = {
    **{f"{name}-v5": "mujoco" for name in MUJOCO},
    **dict.fromkeys(("LunarLander", "BipedalWalker"), "box2d"),
    **{name: name for name in ("mpe2", "minigrid", "pettingzoo", "lbforaging")},
    **{
        "gymnasium_robotics": "robotics",
        "make_dm_control": "dm-control",
        "MinAtarEnv": "minatar",
        "make_atari": "atari",
    },
}
"""Parts of the names of envs, and the extras or packages that they need."""
BUILT_IN = ("CartPole", "Pendulum", "Acrobot", "MountainCar", "lightning_ding.envs")


def test_proof_of_a_tiny_budget_is_recorded_drawn_and_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--only", "dqn_cartpole", "--budget", "640", "--seeds", "3", "--sides", "ours", "--out", str(tmp_path)]
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["learn", *arguments])
    learn.main()
    record = json.loads((tmp_path / "dqn_cartpole.json").read_text())
    (run,) = record["ours"]["runs"]
    assert (run["seed"], run["n_test"]) == (3, 100)
    assert [step for step, _, _ in run["curve"]] == [576, 640]  # 512 steps of warm-up, and rounds of 64
    assert 0 < run["curve"][0][1] < run["curve"][1][1] == run["seconds"]
    assert "--budget 640" in run["command"]
    assert "peer" not in record

    monkeypatch.setattr(sys, "argv", ["curves", "--results", str(tmp_path), "--out", str(tmp_path)])
    curves.main()
    for figure, axis in (("CartPole-v1.svg", "env steps"), ("CartPole-v1-seconds.svg", "seconds of training")):
        drawn = (tmp_path / "learning" / figure).read_text()
        assert all(f">{words}</text>" in drawn for words in ("dqn_cartpole", axis, "lightning_ding"))
    page = (tmp_path / "learning.md").read_text()
    assert re.search(
        r"^\| dqn_cartpole \| lightning_ding \| [\d.]+ \| [\d.]+ \| [\d.]+ \| 475 \| 0 of 1 \| 640 \| - \| - \|",
        page,
        re.MULTILINE,
    )
    assert "\nIn 0 of 1 experiments, every seed passed" in page


def test_best_checkpoint_is_tested_on_a_hundred_episodes_and_evaluated_on_twenty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[int] = []
    evaluate = InteractionSerialEvaluator.run

    def count(self: Any, episodes: Any, *arguments: Any, **kwargs: Any) -> Any:
        found.append(len(episodes))
        return evaluate(self, episodes, *arguments, **kwargs)

    monkeypatch.setattr(InteractionSerialEvaluator, "run", count)
    learn.train(dataclasses.replace(PROOFS["dqn_cartpole"], budget=640), seed=0)
    assert found == [20, 20, 100]


def test_no_two_runs_of_a_peer_have_an_episode_in_common() -> None:
    firsts = [proofs.start_seeds(stage, seed) for stage in ("eval", "test") for seed in range(20)]
    assert len({first + i for first in firsts for i in range(100)}) == 100 * len(firsts)


def test_evaluations_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate = InteractionSerialEvaluator.run

    def slow(*arguments: Any, **kwargs: Any) -> Any:
        time.sleep(3)
        return evaluate(*arguments, **kwargs)

    monkeypatch.setattr(InteractionSerialEvaluator, "run", slow)
    began = time.perf_counter()
    run = learn.train(dataclasses.replace(PROOFS["dqn_cartpole"], budget=640), seed=0)
    assert time.perf_counter() - began > 9  # two evaluations, and the one of the best checkpoint
    assert run["seconds"] < 3


def test_implementations_and_seeds_that_are_not_run_again_keep_their_results(tmp_path: Path) -> None:
    run: proofs.Run = {"seed": 0, "seconds": 1.0, "best": 9.0, "curve": [(10, 1.0, 9.0)]}
    learn.save("dqn_cartpole", 10, "peer", run, tmp_path)
    learn.save("dqn_cartpole", 10, "ours", {**run, "seed": 1, "best": 8.5}, tmp_path)
    learn.save("dqn_cartpole", 10, "ours", {**run, "best": 8.0}, tmp_path)
    record = json.loads((tmp_path / "dqn_cartpole.json").read_text())
    assert [one["best"] for one in record["peer"]["runs"]] == [9.0]
    assert [one["best"] for one in record["ours"]["runs"]] == [8.0, 8.5]
    assert record["ours"]["config"]["nstep"] == 3  # the recipe's


def test_runs_with_other_settings_leave_the_file(tmp_path: Path) -> None:
    run: proofs.Run = {"seed": 0, "seconds": 1.0, "best": 9.0, "curve": [(10, 1.0, 9.0)]}
    learn.save("dqn_cartpole", 10, "ours", run, tmp_path)
    record = learn.read("dqn_cartpole", tmp_path)
    record["ours"]["config"]["nstep"] = 7  # what the recipe had before
    (tmp_path / "dqn_cartpole.json").write_text(json.dumps(record))
    learn.save("dqn_cartpole", 10, "ours", {**run, "seed": 1}, tmp_path)
    assert [one["seed"] for one in learn.read("dqn_cartpole", tmp_path)["ours"]["runs"]] == [1]


def test_runs_that_are_kept_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(keep: str) -> list[tuple[int, str]]:
        return learn.missing("dqn_cartpole", ["ours"], [0, 1], keep, tmp_path)

    monkeypatch.setattr(learn, "commit", lambda: "aaaaaaa")
    run: proofs.Run = {"seed": 0, "seconds": 1.0, "best": 9.0, "n_test": 100, "curve": [(10, 1.0, 9.0)]}
    learn.save("dqn_cartpole", 10, "ours", run, tmp_path)
    assert [missing(keep) for keep in learn.KEEP] == [[(0, "ours"), (1, "ours")], [(1, "ours")], [(1, "ours")]]
    monkeypatch.setattr(learn, "commit", lambda: "bbbbbbb")
    assert missing("commit") == missing("none") == [(0, "ours"), (1, "ours")]
    monkeypatch.setattr(learn, "commit", lambda: "aaaaaaa+")  # with changes that no commit has
    assert missing("commit") == missing("none")
    learn.save("dqn_cartpole", 10, "ours", run, tmp_path)
    assert missing("config") == missing("none")


def test_runs_with_another_number_of_test_episodes_are_repeated_and_kept_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learn, "commit", lambda: "aaaaaaa")  # also where the working tree has changes
    run: proofs.Run = {"seed": 0, "seconds": 1.0, "best": 9.0, "curve": [(10, 1.0, 9.0)]}  # tested on 20
    learn.save("dqn_cartpole", 10, "ours", run, tmp_path)
    assert learn.missing("dqn_cartpole", ["ours"], [0], "config", tmp_path) == [(0, "ours")]
    learn.save("dqn_cartpole", 10, "ours", {**run, "seed": 1, "n_test": 100}, tmp_path)
    assert [one["seed"] for one in learn.read("dqn_cartpole", tmp_path)["ours"]["runs"]] == [0, 1]
    learn.save("dqn_cartpole", 10, "ours", {**run, "n_test": 100}, tmp_path)
    assert [one.get("n_test") for one in learn.read("dqn_cartpole", tmp_path)["ours"]["runs"]] == [100, 100]
    assert learn.missing("dqn_cartpole", ["ours"], [0, 1], "config", tmp_path) == []


def test_run_that_fails_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run: proofs.Run = {"seed": 0, "seconds": 1.0, "best": 9.0, "curve": [(10, 1.0, 9.0)]}

    def start(command: list[str], **_: Any) -> SimpleNamespace:
        is_bad = "dqn_cartpole" in command and command[command.index("--seeds") + 1] == "0"
        seed = int(command[command.index("--seeds") + 1]) if "--seeds" in command else 0
        return SimpleNamespace(returncode=int(is_bad), stdout=json.dumps({**run, "seed": seed}), stderr="no memory")

    monkeypatch.setattr("benchmarks.learn.subprocess.run", start)
    monkeypatch.setattr(learn, "commit", lambda: "aaaaaaa")
    options = ["--only", "dqn_cartpole", "a2c_cartpole", "--seeds", "0", "1", "--sides", "ours"]
    monkeypatch.setattr(sys, "argv", ["learn", *options, "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        learn.main()
    assert end.value.code == 1
    assert capsys.readouterr().err == (
        "dqn_cartpole ours, seed 0 failed:\nno memory\nfailed runs:\n  dqn_cartpole ours, seed 0\n"
    )
    made = {name: learn.read(name, tmp_path)["ours"]["runs"] for name in ("dqn_cartpole", "a2c_cartpole")}
    assert {name: [one["seed"] for one in runs] for name, runs in made.items()} == {
        "dqn_cartpole": [1],
        "a2c_cartpole": [0, 1],
    }


@pytest.mark.parametrize("name", [file.stem for file in (ROOT / "docs" / "results" / "learn").glob("*.json")])
def test_published_runs_have_the_settings_and_the_required_return_of_today(name: str) -> None:
    record, proof = learn.read(name, ROOT / "docs" / "results" / "learn"), PROOFS[name]
    assert (record["budget"], record["bar"]) == (proof.budget, proof.bar)
    assert learn.kept_runs(record, name, "ours"), "repeat these runs with python -m benchmarks.learn, or delete them"


@pytest.mark.parametrize("target", ["learn", "zoo"])
def test_make_installs_what_the_envs_of_all_experiments_need(target: str) -> None:
    text = (RECIPES.parent / "Makefile").read_text()
    (found,) = re.findall(rf"^{target}:.*\n\t\$\(PIP\) -e '\.\[(.*)\]'(.*)$", text, re.MULTILINE)
    installed = {*found[0].split(","), *found[1].split(), "atari", "pettingzoo"}  # the last two are in the extra dev
    for proof in PROOFS.values():
        env = f"{proof.env_id} "
        needed = {package for start, package in OF_ENVS.items() if start in env}
        assert needed <= installed, proof
        assert needed or env.startswith(BUILT_IN), f"name the package of {proof.env_id} in OF_ENVS"


@pytest.mark.parametrize("name", PROOFS)
def test_an_experiment_hands_the_datamodule_all_that_its_recipe_does(name: str) -> None:
    text = (RECIPES / f"{PROOFS[name].recipe}.py").read_text()
    constants = {const for key, const in re.findall(r"(\w+)\W{1,3}([A-Z_]{3,})\b", text) if key == const.lower()}
    named = {"NUM_ENVS", "MAX_ENV_STEP", "ENV_ID", "ENV_KWARGS", "CONFIG"}
    assert constants - named <= set(learn.ARGUMENTS)


def test_runs_with_other_arguments_of_the_datamodule_are_not_kept() -> None:
    made = {"config": learn.settings_of("xqc_hopper", "ours"), "runs": [1]}
    assert learn.kept_runs({"ours": made}, "xqc_hopper", "ours") == [1]  # of earlier days
    for norm_reward, kept in ((True, [1]), (False, [])):
        assert learn.kept_runs({"ours": {**made, "data": {"norm_reward": norm_reward}}}, "xqc_hopper", "ours") == kept


def test_an_experiment_may_have_another_task_of_the_env_of_its_recipe() -> None:
    assert proofs.env_kwargs(PROOFS["sac_simba"])["domain_name"] == "walker"
    cheetah = {"domain_name": "cheetah", "task_name": "run", "frame_skip": 2}
    assert proofs.env_kwargs(PROOFS["sac_simba_cheetah"]) == cheetah


def test_peer_of_a_recipe_for_one_env_is_found_by_its_algorithm() -> None:
    proof = PROOFS["sac_hopper"]
    assert learn.has_peer(proof, "peer")
    assert learn.settings_of("sac_hopper", "peer") == {"learning_starts": 10_000}
    assert not learn.has_peer(dataclasses.replace(proof, algorithm=None), "peer")


def test_runs_of_acrobot_have_the_settings_of_its_recipe() -> None:
    record = learn.read("dqn_acrobot", RECIPES.parent / "docs" / "results" / "learn")
    assert len(learn.kept_runs(record, "dqn_acrobot", "ours")) >= 3


def test_another_number_of_env_steps_needs_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run: proofs.Run = {"seed": 0, "seconds": 1.0, "best": 9.0, "curve": [(10, 1.0, 9.0)]}
    learn.save("dqn_cartpole", 10, "ours", run, tmp_path)
    monkeypatch.setattr(sys, "argv", ["learn", "--only", "dqn_cartpole", "--budget", "20", "--out", str(tmp_path)])
    with pytest.raises(SystemExit):
        learn.main()
    assert "dqn_cartpole.json has runs of 10 env steps: delete it, or choose another --out" in capsys.readouterr().err


def test_axis_of_returns_of_every_env_with_limits_is_within_what_is_possible() -> None:
    possible = {
        "CartPole-v1": (0, 500),
        "CartPoleNoVelocity-v1": (0, 500),
        "BitFlipEnv": (0, 1),
        "TMaze-v0": (-20, 1),  # 200 steps, each at least -0.1
        "CorridorEnv": (0, 1),
        "SwitchRiddle": (-1, 1),
        **dict.fromkeys(("walker-walk", "cartpole-swingup", "cheetah-run", "reacher-easy"), (0, 1_000)),
        "Acrobot-v1": (-500, 0),
        "MountainCar-v0": (-200, 0),
        "Pendulum-v1": (-3_300, 0),  # 200 steps, each at least -(pi^2 + 0.1 * 8^2 + 0.001 * 2^2) = -16.3
        "FetchReach-v4": (-50, 0),  # 50 steps, each at least -1
        "MountainCarContinuous-v0": (-99.9, 100),  # 999 steps, each at least -0.1, and the hilltop
        "LunarLander-v3": (-math.inf, 325),
        "LunarLanderContinuous-v3": (-math.inf, 325),
        **dict.fromkeys(("MiniGrid-DoorKey-5x5-v0", "MiniGrid-KeyCorridorS3R1-v0", "MiniGrid-Unlock-v0"), (0, 1)),
        "TwoStepGame": (0, 8),
        "CoverGame": (-8, -1),  # four steps, each at least -2
        "Pong": (-21, 21),
        "tictactoe_v3": (-1, 1),
        "connect_four_v3": (-1, 1),
    }
    no_limits = {f"MinAtar-{game}" for game in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")}
    no_limits |= {"BipedalWalker-v3", "InvertedDoublePendulum-v5", "Reacher-v5", "Swimmer-v5"}
    no_limits |= {"Hopper-v5", "HalfCheetah-v5", "Walker2d-v5", "Ant-v5", "InvertedPendulum-v5"}
    no_limits |= {"simple_spread_v3", "simple_speaker_listener_v4", "simple_tag_v3", "Foraging-8x8-2p-2f-coop-v3"}
    envs = {curves.short_name(proof.env_id, proofs.env_kwargs(proof)) for proof in PROOFS.values()}
    assert envs - no_limits == set(curves.RETURNS) == set(possible)
    for env, (low, high) in possible.items():
        assert low <= curves.RETURNS[env][0] < curves.RETURNS[env][1] <= high


@pytest.mark.slow
def test_peer_evaluates_at_regular_steps_and_at_the_end() -> None:
    pytest.importorskip("stable_baselines3")  # of the extra `bench`
    run = zoo.train("dqn", "CartPole-v1", Plan(250, 100, n_episode=2, n_test=3), seed=0)
    assert [step for step, _, _ in run["curve"]][:2] == [100, 200]
    assert run["seconds"] == run["curve"][-1][1]
    assert 1 <= run["best"] <= 500


def test_band_is_the_interquartile_mean_and_its_interval_over_seeds() -> None:
    runs = [{"curve": [(0, 0.0, value), (10, 1.0, value + 10)]} for value in (0.0, 1.0, 2.0, 6.0)]
    places, centre, low, high = curves.band(runs, 0)
    assert (places[0], places[-1], centre[0], centre[-1]) == (0, 10, 1.5, 11.5)  # 0 and 6 are left out
    assert 0 <= low[0] < 1 < 2 < high[0] <= 6


def test_panels_are_grouped_by_env_without_the_module_that_registers_it() -> None:
    envs = {"a": "CartPole-v1", "b": "package.envs:CartPole-v1", "c": "package.flip.BitFlipEnv", "d": "x.make_atari"}
    records: dict[str, Any] = {name: {"env_id": env_id} for name, env_id in envs.items()}
    records["e"] = {"env_id": "x.make_dm_control", "env_kwargs": {"domain_name": "walker", "task_name": "walk"}}
    groups = curves.by_env(records)
    expected = {"BitFlipEnv": ["c"], "CartPole-v1": ["a", "b"], "Pong": ["d"], "walker-walk": ["e"]}
    assert {env: list(group) for env, group in groups.items()} == expected


def test_axis_of_returns_is_extended_to_the_lowest_return_that_is_drawn() -> None:
    def drawn(*returns: float) -> list[Any]:
        return [curves.band([{"curve": [(0, 0.0, one), (10, 1.0, -200.0)]}], 0) for one in returns]

    assert curves.limits("Pendulum-v1", drawn(-1_700.0, -900.0)) == (-1_900, 0)
    assert curves.limits("Pendulum-v1", drawn(-1_950.0, -900.0)) == (-1_950, 0)
    assert curves.limits("Hopper-v5", drawn(5.0)) is None


def test_summary_names_the_experiments_in_which_a_seed_did_not_pass() -> None:
    def record(env_id: str, *ends: float) -> dict[str, Any]:
        runs = [{"seed": seed, "best": 500.0, "curve": [(10, 1.0, end)]} for seed, end in enumerate(ends)]
        return {"env_id": env_id, "bar": 475, "ours": {"runs": runs}}

    text = curves.summary({"a": record("CartPole-v1", 500, 475), "b": record("CartPole-v1", 500, 474)})
    assert text.startswith(
        "In 1 of 2 experiments, every seed passed: its policy at the end has the required return. These are 4 runs"
    )
    assert "| [CartPole-v1](#cartpole-v1) | 2 | 1 | b (1 of 2) |" in text


def test_band_ends_where_the_first_run_ends() -> None:
    runs = [{"curve": [(2, 0.5, 0.0), (10, 4.0, 8.0)]}, {"curve": [(1, 0.1, 0.0), (20, 2.0, 19.0)]}]
    for axis, ends in ((0, (2, 10)), (1, (0.5, 2.0))):
        places, *_ = curves.band(runs, axis)
        assert (places[0], places[-1]) == ends


def test_time_to_the_bar_is_that_of_the_first_evaluation_there() -> None:
    curve = [(10, 1.0, 5.0), (20, 2.0, 9.0), (30, 3.0, 2.0), (40, 4.0, 10.0)]
    assert curves.time_to(9.0, curve) == (20, 2.0)
    assert curves.time_to(11.0, curve) == (math.inf, math.inf)


def test_row_counts_the_seeds_at_the_bar_and_leaves_out_times_that_most_did_not_reach() -> None:
    runs = [
        {"seed": 0, "seconds": 3.0, "best": 480.0, "curve": [(10, 3.0, 475.0)]},
        {"seed": 1, "seconds": 5.0, "best": 470.0, "curve": [(10, 5.0, 474.0)]},
        {"seed": 2, "seconds": 4.0, "best": 20.0, "curve": [(10, 4.0, 20.0)]},
    ]
    record: dict[str, Any] = {"bar": 475, "budget": 1000, "ours": {"runs": runs}}
    row = curves.row("x", record, "ours")
    cells = ["x", "lightning_ding", "323.0 [20.0, 475.0]", "323.3 [20.0, 480.0]", "323.0", "475", "1 of 3", "1,000"]
    assert row == f"| {' | '.join(cells)} | - | - | 4.0 |"


def test_end_return_is_the_mean_of_the_evaluations_in_the_last_tenth() -> None:
    curve = [(step, float(step), float(step)) for step in range(10, 210, 10)]  # 20 evaluations: those of 190 and 200
    assert proofs.end_return({"curve": curve}) == 195
    assert proofs.end_return({"curve": [(640, 1.0, 9.0)]}) == 9
    assert proofs.end_return({"curve": [(500, 1.0, 500.0), (1_000, 2.0, 20.0)]}) == 20


def test_row_counts_no_seed_whose_policy_has_collapsed_at_the_end() -> None:
    curve = [(10, 1.0, 500.0), (20, 2.0, 30.0)]  # over the run: (500 * 10 + (500 + 30) / 2 * 10) / 20
    runs = [{"seed": 0, "seconds": 3.0, "best": 500.0, "curve": curve}]
    record: dict[str, Any] = {"bar": 475, "budget": 1000, "ours": {"runs": runs}}
    assert "| 30.0 | 500.0 | 382.5 | 475 | 0 of 1 |" in curves.row("x", record, "ours")


def test_row_of_a_task_that_cannot_be_learned_counts_the_seeds_below_the_bar() -> None:
    returns = (60.0, 150.0)
    runs = [{"seed": 0, "seconds": 3.0, "best": 99.0, "curve": [(10, 3.0, end)]} for end in returns]
    record: dict[str, Any] = {"bar": 150, "is_ceiling": True, "budget": 1000, "ours": {"runs": runs}}
    assert "| 105.0 [60.0, 150.0] | 99.0 [99.0, 99.0] | 105.0 | below 150 | 1 of 2 |" in curves.row("x", record, "ours")


@pytest.mark.parametrize("name", [name for name, proof in PROOFS.items() if proof.has_defaults])
def test_a_proof_of_the_defaults_sets_no_option(name: str) -> None:
    policy_class, _ = proofs.classes(proofs.load(PROOFS[name].recipe))
    assert policy_class(PROOFS[name].config()).config == policy_class.config_class()


def test_recipe_must_have_one_policy_and_one_datamodule() -> None:
    assert [one.__name__ for one in proofs.classes(proofs.load("dqn"))] == ["DQNPolicy", "ReplayDataModule"]
    with pytest.raises(ValueError, match=r"recipe must import one Policy, got \[\]"):
        proofs.classes(SimpleNamespace())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name, proof in PROOFS.items() if (RECIPES / f"{proof.recipe}.py").is_file()])
def test_config_of_every_proof_is_one_that_its_policy_takes(name: str) -> None:
    proof = PROOFS[name]
    policy_class, _ = proofs.classes(proofs.load(proof.recipe))
    assert policy_class(proof.config()).config.eval.evaluator.stop_value is None


def test_zoo_has_settings_for_every_experiment_with_its_algorithms() -> None:
    missing = [
        name
        for name, proof in PROOFS.items()
        if proof.peer_algorithm in zoo.ZOO and not proof.has_defaults and not learn.has_peer(proof, "peer")
        if not proof.is_ceiling
    ]
    mazes = ["gtrxl_t_maze", "lstm_t_maze", "sac_inverted_pendulum", "tqc_fetch_reach"]
    runners = ["ppo_ant", *(f"crossq_{name}" for name in ("halfcheetah", "hopper", "walker2d"))]
    suite = [f"sac_simba{task}" for task in ("", "_cheetah", "_swingup", "_reacher")]
    wrapped = [f"ppo_minigrid{task}" for task in ("", "_key_corridor", "_unlock")]
    wrapped += [f"ppo_minatar{game}" for game in ("", "_asterix", "_freeway", "_seaquest", "_space_invaders")]
    wrapped += ["dqn_minatar", "dqn_pong"]  # the peers' wrappers are not here
    assert missing == mazes + runners + suite + wrapped  # envs, or arguments of envs, that no peer has settings for
    assert zoo.has("c51", "CartPole-v1") is False
