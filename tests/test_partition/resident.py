"""How many pages of a mapped file a process holds, as Linux reports it."""

from pathlib import Path

import pytest


def resident_kb(*files: Path) -> list[int]:
    """Resident kB of this process's maps of each file, every one of which must be mapped."""
    smaps = Path("/proc/self/smaps")
    if not smaps.exists():
        pytest.skip("resident pages per mapping are reported by Linux only")
    resident, name = {}, ""
    for line in smaps.read_text().splitlines():
        if "-" in line.split(" ")[0]:
            name = line.split(" ")[-1]
        elif line.startswith("Rss:"):
            resident[name] = int(line.split()[1])
    return [resident[str(file)] for file in files]
