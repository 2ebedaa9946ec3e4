"""One run of DI-engine itself, for ``benchmarks/ding_race.py``; run by a Python that has DI-engine, not this project.

    python benchmarks/ding_side.py CONFIG SEED serial|serial_onpolicy

Prints one line of JSON: whether the stop value was reached, env steps, updates, and the seconds of the pipeline.
"""

from __future__ import annotations

import json
import pickle
import runpy
import sys
import time
from copy import deepcopy
from typing import Any


def main() -> None:
    """Run the config in the working directory, which gets the experiment's folder."""
    del sys.path[0]  # the folder of this file, whose dizoo.py would hide the package dizoo
    file, seed, mode = sys.argv[1:]
    names = runpy.run_path(file)
    pair = [deepcopy(names["main_config"]), deepcopy(names["create_config"])]
    from ding.entry import serial_pipeline, serial_pipeline_onpolicy

    found: dict[str, Any] = {}
    setattr(pickle, "dump", lambda data, file: found.update(data))  # noqa: B010 - the report at the end of the pipeline
    began = time.perf_counter()
    (serial_pipeline_onpolicy if mode == "serial_onpolicy" else serial_pipeline)(pair, seed=int(seed))
    seconds = time.perf_counter() - began
    counters = {"env_step": int(found["env_step"]), "train_iter": int(found["train_iter"])}
    print(json.dumps({"reached": bool(found["stop"]), "seconds": seconds, **counters}))


if __name__ == "__main__":
    main()
