"""What must be the same on all ranks, compared before anything depends on it.

`agree_on` compares facts (options, hashes of files): ranks that differ would wait for each other without end, fail with
the transport's own message, or train to the end on different things. `agree` runs something that one rank alone may
refuse. Both raise the same error on every rank, so that all of them exit on their own, and both name ranks that are not
in the same call. Messages number ranks as in the run, in a sub-group too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from fastsample_dist.comm.names import rank_names
from fastsample_dist.comm.protocol import Gathers
from fastsample_dist.device.choice import DeviceError
from fastsample_dist.ops import checks

T = TypeVar("T")


class Joined(Protocol):
    """What has joined a run; see DistContext."""

    @property
    def comm(self) -> Gathers:
        """Its collectives."""


EXCHANGE_SCHEMA = 11
"""What ranks send each other and in which order. Raise it with every change of a message's content or layout, or of the
collectives of a step, a set-up or a checkpoint: DistData.load refuses ranks of different schemas."""
PURPOSE = "setup"
SAME_OPTIONS = "start all ranks with the same options"
NOT_GIVEN = "not given"
MAX_NAMES = 4  # differences that a message lists; one option can change many facts


def agree_on(comm: Gathers, what: str, facts: Mapping[str, object], *, remedy: str = SAME_OPTIONS) -> None:
    """Raise the same ValueError on all ranks when one rank's facts are not those of the others.

    Collective: every rank must call this. Purpose "setup". Ranks that agree exchange one hash each; the facts are sent
    only to name a difference.

    Args:
      comm: the ranks' communicator.
      what: who compares, such as "DistLoader"; opens the message.
      facts: values by name: str, int, float, bool, None, and tuples or lists of them; numbers of NumPy's and torch's
        count as Python's. Their representations are compared, so exactly, and 1 is not 1.0.
      remedy: what to do about a difference; closes the message.
    Raises:
      ValueError: on all ranks alike; names what differs, the values and their ranks.
      TypeError: a fact of another type, on this rank alone.
      RuntimeError: the collective failed or passed its deadline.
    """
    own = {name: _written(name, value) for name, value in facts.items()}
    digest = hashlib.sha256(repr(sorted(own.items())).encode()).hexdigest()
    if len(set(_gather(comm, what, digest))) == 1:
        return
    per_rank = _gather(comm, what, own)
    names = dict.fromkeys(name for found in per_rank for name in found)
    values = {name: [found.get(name, NOT_GIVEN) for found in per_rank] for name in names}
    differing = [f"{name}: {by_value(found, comm.run_ranks)}" for name, found in values.items() if len(set(found)) > 1]
    more = f"; and {len(differing) - MAX_NAMES} more" if len(differing) > MAX_NAMES else ""
    raise ValueError(f"{what}: ranks differ in {'; in '.join(differing[:MAX_NAMES])}{more}; {remedy}.")


def agree(ctx: Joined, action: Callable[[], T]) -> T:
    """Run `action`; when it is refused (ValueError, OSError, DeviceError) on any rank, raise the first refusal on all.

    Collective: every rank must call this. Keeps ranks from waiting for one that refused its input.
    """
    result, refusal = None, None
    try:
        result = action()
    except (ValueError, OSError, DeviceError) as error:
        refusal = str(error)
    refusals = [text for text in _gather(ctx.comm, "a check of the input", refusal) if text is not None]
    if refusals:
        raise ValueError(refusals[0])
    return result  # type: ignore[return-value]


def _gather(comm: Gathers, what: str, content: T) -> list[T]:
    """Every rank's content, by rank; refused unless all of them make this call."""
    gathered = comm.all_gather_object((what, content), purpose=PURPOSE)
    calls = [call for call, _ in gathered]
    if len(set(calls)) > 1:
        raise ValueError(
            f"the ranks make different calls: {by_value(calls, comm.run_ranks)}; run the same script, with the same "
            "options, on all."
        )
    return [content for _, content in gathered]


def _written(name: str, value: object) -> str:
    """A fact as it is compared and shown."""
    value = checks.plain(value)
    if value is None or isinstance(value, (str, int, float)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        inner = ", ".join(_written(name, item) for item in value)
        return f"({inner})"
    raise TypeError(f"the fact {name} is a {type(value).__name__}; expected a str, int, float, bool, None or tuple.")


def by_value(values: list[str], run_ranks: Sequence[int]) -> str:
    """ "500 on ranks 0, 2; 1000 on rank 1", in the order of the first rank with each value."""
    ranks: dict[str, list[int]] = {}
    for rank, value in zip(run_ranks, values, strict=True):
        ranks.setdefault(value, []).append(rank)
    return "; ".join(f"{value} on {rank_names(sorted(found))}" for value, found in ranks.items())
