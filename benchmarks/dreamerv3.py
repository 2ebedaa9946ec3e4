"""Speed of DreamerV3 on workload W11: this project through ``Trainer.fit``, and SheepRL, each eager and compiled.

    python -m benchmarks.dreamerv3      # writes docs/results/dreamerv3_speed.json; needs pip install sheeprl==0.8.4

Each contestant runs in a separate process with one torch thread. All run in turn, three times. Env, minibatches,
trajectories, updates for each env step and widths are the same; the networks are not quite, because SheepRL follows
the first version of the paper and this project the last. ``parameters`` counts the weights that are trained.
The seconds are those after the first updates, so they exclude compilation and what is collected before the updates.
``cpu_ms_per_update`` is the CPU time of all threads in these seconds, for an update with its env steps.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import contest
from benchmarks.compare import Result
from benchmarks.workload import W11, DreamerWorkload

FIRST = 5  # updates that do not count
BUFFER = 100_000
PARTS = 3  # the world model, the actor and the critic: the networks of SheepRL that have an optimizer each


class Meter:
    """Wall time and CPU time from the end of an early update to the end of the last one."""

    def __init__(self) -> None:
        self.updates = 0
        self.at: dict[int, tuple[float, float]] = {}

    def count(self) -> None:
        """Note the end of an update."""
        self.updates += 1
        self.at[self.updates] = time.perf_counter(), time.process_time()

    def result(self, w: DreamerWorkload, parameters: Iterable[Any]) -> Result:
        """Return what was measured.

        Args:
            w: The workload.
            parameters: The tensors that are trained.
        """
        (start, used), (end, used_then) = self.at[FIRST], self.at[self.updates]
        updates = self.updates - FIRST
        return {
            "seconds": end - start,
            "env_steps": updates * w.env_steps_per_update,
            "updates": updates,
            "cpu_ms_per_update": 1000 * (used_then - used) / updates,
            "parameters": sum(tensor.numel() for tensor in parameters),
        }


def our_config(w: DreamerWorkload, compile: bool = False) -> dict[str, Any]:
    """Return the config of this project's policy; with one block the recurrent layer is dense, as SheepRL's."""
    widths = {"deter": w.recurrent, "hidden": w.hidden, "units": w.units, "groups": w.groups, "classes": w.classes}
    return {
        "compile": compile,
        "learn_unroll_len": w.sequence,
        "horizon": w.horizon,
        "model": {**widths, "blocks": 1},
        "learn": {"batch_size": w.batch_size},
        "collect": {"n_sample": w.env_steps_per_update},
    }


def run_ours(w: DreamerWorkload, compile: bool = False) -> Result:
    """Train through ``Trainer.fit`` without evaluation."""
    from lightning import Callback, seed_everything

    from lightning_ding.datamodules import ReplayDataModule
    from lightning_ding.policy import DreamerV3Policy

    meter = Meter()

    class Count(Callback):
        """Note the end of each update."""

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
            if pl_module.progress.train_iter > meter.updates:
                meter.count()

    seed_everything(0)
    policy = DreamerV3Policy(our_config(w, compile))
    datamodule = ReplayDataModule(w.env_id, num_envs=1, max_train_iter=w.env_steps // w.env_steps_per_update, seed=0)
    contest.fit(policy, datamodule, callbacks=[Count()])
    return meter.result(w, [one for one in policy.parameters() if one.requires_grad])


def run_sheeprl(w: DreamerWorkload, compile: bool = False) -> Result:
    """Train with SheepRL's command line, without checkpoints, logs and evaluation."""
    from sheeprl.cli import run
    from torch.optim.optimizer import register_optimizer_step_post_hook

    meter, steps, trained = Meter(), [0], {}

    def note(optimizer: Any, *_: Any) -> None:
        trained.update({id(one): one for group in optimizer.param_groups for one in group["params"]})
        steps[0] += 1
        if steps[0] % PARTS == 0:
            meter.count()

    register_optimizer_step_post_hook(note)
    layers = {"encoder": 3, "observation_model": 3, "reward_model": 1, "discount_model": 1}
    model = [f"algo.world_model.{part}.mlp_layers={number}" for part, number in layers.items()]
    model += [f"algo.world_model.{part}_model.hidden_size={w.units}" for part in ("transition", "representation")]
    model += [f"algo.world_model.recurrent_model.recurrent_state_size={w.recurrent}", f"algo.dense_units={w.units}"]
    model += [f"algo.world_model.stochastic_size={w.groups}", f"algo.world_model.discrete_size={w.classes}"]
    with TemporaryDirectory() as folder:
        sys.argv = ["sheeprl", "exp=dreamer_v3", "algo=dreamer_v3_XS", "env=gym", f"env.id={w.env_id}", *model]
        sys.argv += ["algo.mlp_layers=3", f"algo.horizon={w.horizon}", "algo.mlp_keys.encoder=[vector]"]
        sys.argv += ["algo.cnn_keys.encoder=[]", "algo.cnn_keys.decoder=[]", "algo.run_test=False"]
        sys.argv += [f"algo.per_rank_batch_size={w.batch_size}", f"algo.per_rank_sequence_length={w.sequence}"]
        sys.argv += [f"algo.learning_starts={w.sequence}", f"algo.total_steps={w.sequence + w.env_steps}"]
        sys.argv += [f"algo.replay_ratio={1 / w.env_steps_per_update}"]
        sys.argv += [f"algo.compile.enabled={compile}", "env.num_envs=1", "env.sync_env=True", "fabric.accelerator=cpu"]
        sys.argv += ["env.capture_video=False", "metric.log_level=0", "checkpoint.save_last=False", "seed=0"]
        sys.argv += [f"log_root={Path(folder) / 'logs'}", "run_name=run", f"buffer.size={BUFFER}"]
        sys.argv += ["buffer.memmap=False", f"checkpoint.every={BUFFER}", "fabric.precision=32-true"]
        run()
    return meter.result(w, trained.values())


CONTESTANTS: dict[str, Callable[[DreamerWorkload], Result]] = {
    "ours": run_ours,
    "ours, compiled": lambda w: run_ours(w, compile=True),
    "SheepRL": run_sheeprl,
    "SheepRL, compiled": lambda w: run_sheeprl(w, compile=True),
}

if __name__ == "__main__":
    contest.main("dreamerv3", __doc__, CONTESTANTS, W11, baseline="SheepRL")
