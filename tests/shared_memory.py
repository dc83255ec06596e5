"""What the tests look for in /dev/shm: names that the package's own ranks leave there."""

from pathlib import Path

# The launcher's directories belong to launchers of other tests, or of other users; the board's file is unlinked as soon
# as all ranks have it.
OF_OTHERS = ("fastsample-launch-", "fastsample_dist-board-")


def named_segments() -> list[str]:
    """Names in /dev/shm under which a rank's memory can be reached; there are to be none."""
    names = [file.name for file in Path("/dev/shm").iterdir()]
    return [name for name in names if "fastsample" in name and not name.startswith(OF_OTHERS)]
