"""A pytest plugin for runs that are cut into pieces: a run leaves out what earlier ones have passed, and ends in time.

    python -m pytest -p tests.resumed --passed-file FILE --seconds 480 ...

FILE holds a digest of the sources and the ids of the tests that have passed on them; with other sources it begins
anew. A run that has had its seconds ends after the test under way, with exit status 2 and a line; the same command
resumes it. Exit status 5, nothing left to run, becomes 0.
"""

import hashlib
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("csrc/**/*.*", "fastsample_dist/**/*.py", "tests/**/*.*")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the module's docstring."""
    parser.addoption(
        "--passed-file", metavar="FILE", type=Path, help="leave out the tests in FILE; add those that pass"
    )
    parser.addoption(
        "--seconds", metavar="S", type=float, default=float("inf"), help="end after the test under way then"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register what records, where a file is named."""
    file = config.getoption("--passed-file")
    if file is not None:
        config.pluginmanager.register(Resumed(file, config.getoption("--seconds")))


def digest_of_sources(root: Path = ROOT) -> str:
    """Of the names and contents of everything that a test's result depends on."""
    found = hashlib.sha256()
    for path in sorted({path for pattern in SOURCES for path in root.glob(pattern) if path.suffix != ".pyc"}):
        if path.is_file():
            found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return found.hexdigest()


class Resumed:
    """Leaves out tests that have passed, records those that pass, ends the run in time.

    Args:
      file: see the module; made where there is none.
      seconds: of the run.
    """

    def __init__(self, file: Path, seconds: float) -> None:
        self._file, self._seconds, self._begin, self._left_out = file, seconds, time.monotonic(), 0
        head = f"sources {digest_of_sources()}"
        lines = file.read_text().splitlines() if file.exists() else []
        self._passed = set(lines[1:]) if lines[:1] == [head] else set()
        if not self._passed:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{head}\n")

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect what has passed."""
        done = [item for item in items if item.nodeid in self._passed]
        self._left_out = len(done)
        config.hook.pytest_deselected(items=done)
        items[:] = [item for item in items if item.nodeid not in self._passed]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a test that has passed."""
        if report.when == "call" and report.passed:
            with self._file.open("a") as file:
                file.write(f"{report.nodeid}\n")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self) -> None:
        """Look at the clock between tests."""
        if time.monotonic() - self._begin > self._seconds:
            self._session.shouldstop = f"{self._seconds:g} s are over; run the same command again to resume"

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Keep the session, which ends where it is asked to."""
        self._session = session

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Where everything has passed before, nothing being left is no failure."""
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self._left_out:
            session.exitstatus = pytest.ExitCode.OK
