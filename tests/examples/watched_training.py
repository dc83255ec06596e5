"""train_sage.py with a witness: every rank notes the seeds it is about to train on, and may be killed as planned.

WATCH_DIR   every attempt of every rank appends "step epoch seeds..." to its own file here (original ids)
WATCH_PLAN  JSON: per attempt {"rank", "batches", "delay_s"}: SIGKILL that long after that many batches
WATCH_PAUSE_S  sleep before every step, so that a signal from outside finds the run under way
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from fastsample_dist import DistLoader
from fastsample_dist.train import session
from fastsample_dist.train.cli import main

ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
RANK = int(os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))
PAUSE_S = float(os.environ.get("WATCH_PAUSE_S", "0"))


def kill_later(number: int) -> None:
    """Kill this rank in a moment if the plan says so after batch `number`."""
    plan = json.loads(os.environ.get("WATCH_PLAN", "[]"))
    kill = plan[ATTEMPT] if len(plan) > ATTEMPT else None
    if kill is not None and (kill["rank"], kill["batches"]) == (RANK, number):
        threading.Timer(kill["delay_s"], os.kill, (os.getpid(), signal.SIGKILL)).start()


class WatchedLoader(DistLoader):
    """Notes the batches of the train split."""

    def __iter__(self):
        if self.options.split != "train":
            yield from super().__iter__()
            return
        path = Path(os.environ["WATCH_DIR"]) / f"attempt-{ATTEMPT}-rank-{RANK}.txt"
        for batch in super().__iter__():
            seeds = " ".join(map(str, self.data.orig_ids(batch.seeds).tolist()))
            with path.open("a") as file:
                file.write(f"{batch.step} {batch.epoch} {seeds}\n")
            self.taken = getattr(self, "taken", 0) + 1
            kill_later(self.taken)
            time.sleep(PAUSE_S)
            yield batch


def watch() -> int:
    """Run train_sage.py's main() with the watched loader."""
    session.DistLoader = WatchedLoader
    return main()


if __name__ == "__main__":
    sys.exit(watch())
