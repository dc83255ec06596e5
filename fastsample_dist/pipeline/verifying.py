"""Comparing a partition's files with their checksums on all ranks at once, when it is opened."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from pathlib import Path

from fastsample_dist.comm.context import DistContext
from fastsample_dist.graph.manifest import Manifest
from fastsample_dist.graph.verification import FileState, Verification
from fastsample_dist.memory_sizes import format_size

logger = logging.getLogger(__name__)

ONCE, FULL, NEVER = VERIFY = ("once", "full", "never")  # the choices of DistData.load(verify=...)
REPORT_S = 5.0  # between lines on a verification that takes long


def check_verify(verify: str | bool) -> str:
    """One of VERIFY; True means "full", False means "never".

    Raises:
      ValueError: none of them.
    """
    if isinstance(verify, bool):
        return FULL if verify else NEVER
    if verify not in VERIFY:
        raise ValueError(f"verify is {verify!r}; expected 'once', 'full' or 'never'.")
    return verify


def verify_together(
    ctx: DistContext, path: Path, manifest: Manifest, relpaths: Iterable[str], *, full: bool
) -> dict[str, FileState]:
    """Compare files with their checksums on all ranks, and report progress where that takes long.

    Collective: every rank must call this. Ranks meet every few seconds, so that a rank with little to read does not
    run into its deadline while another reads for minutes. Purpose "setup".

    Args:
      ctx: the rank's context.
      path: the partition's directory.
      manifest: of that directory.
      relpaths: this rank's files, names as in manifest.files.
      full: compare files too that were compared before.
    Returns:
      The states in which this rank's files were found to be what the manifest says, by name.
    Raises:
      ValueError: the first refusal, on all ranks.
    """
    start_s, pause_s = time.monotonic(), min(REPORT_S, ctx.comm.timeout_s / 4)
    with Verification(path, manifest, relpaths, full=full) as job:
        while True:
            found = ctx.comm.all_gather_object(job.wait(pause_s), purpose="setup")
            refusals = [one.refusal for one in found if one.refusal is not None]
            if refusals:
                raise ValueError(refusals[0])
            if all(one.is_done for one in found):
                return job.states
            if ctx.rank == 0:  # a warning, because that reaches a user who has configured no logging
                done, total = (sum(getattr(one, name) for one in found) for name in ("bytes_done", "bytes_total"))
                logger.warning(
                    "comparing %s with its checksums%s: %s of %s after %.0f s",
                    path, "" if full else ", once for this copy", format_size(done), format_size(total),
                    time.monotonic() - start_s,
                )  # fmt: skip
