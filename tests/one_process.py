"""The context of a run of one process, as a fixture: import it into a conftest.py."""

import pytest

from fastsample_dist import DistContext
from fastsample_dist.comm.local import LocalCommunicator


@pytest.fixture
def ctx():
    """A DistContext of one rank."""
    with DistContext(LocalCommunicator()) as context:
        yield context
