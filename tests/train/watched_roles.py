"""fastsample-train with roles, whose ranks are killed as planned.

WATCH_PLAN       JSON: per attempt {"rank", "tasks", "delay_s"}: SIGKILL that long after the rank began so many tasks
WATCH_SWITCHING  "off": samplers never train
"""

import json
import os
import signal
import sys
import threading

from fastsample_dist.pipeline import factored
from fastsample_dist.pipeline.factored import TaskWork
from fastsample_dist.train.cli import main
from fastsample_dist.train.factored_epoch import FactoredEpoch

ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
PLAN = json.loads(os.environ.get("WATCH_PLAN", "[]"))[ATTEMPT : ATTEMPT + 1]


def watched(function):
    """The function, whose calls of this rank count."""

    def call(*arguments):
        for kill in PLAN:
            kill["tasks"] -= kill["rank"] == int(os.environ["RANK"])
            if kill["tasks"] == 0:
                threading.Timer(kill["delay_s"], os.kill, (os.getpid(), signal.SIGKILL)).start()
        return function(*arguments)

    return call


if __name__ == "__main__":
    for owner, name in ((TaskWork, "sample"), (FactoredEpoch, "_train"), (FactoredEpoch, "_update")):
        setattr(owner, name, watched(getattr(owner, name)))
    if os.environ.get("WATCH_SWITCHING") == "off":
        factored.switching_of = lambda roles: factored.NEVER
    sys.exit(main())
