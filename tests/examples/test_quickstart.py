"""quickstart.py runs as it stands and learns."""

import re
from pathlib import Path

from tests.forked import run_python

ROOT = Path(__file__).resolve().parents[2]


def test_quickstart_prints_a_good_accuracy():
    finished = run_python(ROOT / "examples" / "quickstart.py")
    assert finished.returncode == 0, finished.stderr
    accuracy = re.fullmatch(r"test accuracy (\d\.\d+) \(8 classes\)\n", finished.stdout)
    assert accuracy and float(accuracy[1]) > 0.9
