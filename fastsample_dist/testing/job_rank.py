"""One rank of a command of this room: joins the run, calls a task, leaves its result in the job's folder.

    python -m fastsample_dist.testing.job_rank module:function FOLDER

The folder holds settings.json: {"timeout_s", "threads", "settings": [one per rank]}. The task is called as
function(ctx, settings of this rank, folder) and returns a JSON object, written to rank-<r>.json; what it raises goes
to to failed-<r>.json. The process that started the job holds a lock on the folder's file `lock`: when a rank finds it
free, that process is gone, so the rank removes the folder and ends too.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO

import torch

from fastsample_dist.comm.context import DistContext
from fastsample_dist.comm.environment import parse_environment
from fastsample_dist.device.allocator import reuse_freed_memory
from fastsample_dist.files import complete_file
from fastsample_dist.testing.jobs import LOCK_NAME

LOCK_POLL_S = 0.5
Task = Callable[[DistContext, dict, Path], dict]


def find_task(name: str) -> Task:
    """The function that "module:function" names."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def run_rank(task_name: str, folder: Path) -> None:
    """Join, call the task, leave; see the top of this file."""
    info = parse_environment(os.environ)
    threading.Thread(target=_end_with_starter, args=(folder,), daemon=True).start()
    reuse_freed_memory()
    job = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    torch.set_num_threads(job["threads"])
    told = False
    try:
        task = find_task(task_name)
        with DistContext.from_env(timeout_s=job["timeout_s"]) as ctx:
            try:
                result = task(ctx, job["settings"][ctx.rank], folder)
                _write(folder / f"rank-{info.rank}.json", result)
            except BaseException as error:
                told = True
                _write(folder / f"failed-{info.rank}.json", _failure(error))  # before the others fail because of it
                raise
    except BaseException as error:
        if not told:
            _write(folder / f"failed-{info.rank}.json", _failure(error))
        raise


def _failure(error: BaseException) -> dict:
    is_refusal = isinstance(error, (ValueError, OSError, ImportError))
    text = " ".join(str(error).split()) or type(error).__name__
    return {"time_s": time.time(), "refusal": is_refusal, "text": text, "traceback": traceback.format_exc()}


def _write(file: Path, content: dict) -> None:
    """Write a file that is complete as soon as it can be seen."""
    with complete_file(file) as partial:
        partial.write_text(json.dumps(content), encoding="utf-8")


def _end_with_starter(folder: Path) -> None:
    try:
        with (folder / LOCK_NAME).open() as lock:
            while is_locked(lock):
                time.sleep(LOCK_POLL_S)
    except FileNotFoundError:  # another rank has removed the folder
        os._exit(1)
    shutil.rmtree(folder, ignore_errors=True)  # other ranks remove it at the same time
    os._exit(1)


def is_locked(lock: IO) -> bool:
    """Whether another process holds an exclusive lock on a file."""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(lock, fcntl.LOCK_UN)
    return False


if __name__ == "__main__":
    run_rank(sys.argv[1], Path(sys.argv[2]))
