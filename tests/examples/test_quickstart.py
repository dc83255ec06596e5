"""quickstart.py runs as it stands and learns."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.waiting import ENOUGH_S

ROOT = Path(__file__).resolve().parents[2]


def test_quickstart_prints_a_good_accuracy():
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    command = [sys.executable, str(ROOT / "examples" / "quickstart.py")]
    finished = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=ENOUGH_S, check=True)
    accuracy = re.fullmatch(r"test accuracy (\d\.\d+) \(8 classes\)\n", finished.stdout)
    assert accuracy and float(accuracy[1]) > 0.9
