"""Reports that the command writes: links are followed, devices and pipes are left alone, nothing half-written stays."""

import os

import pytest

from fastsample_dist.partition import outputs
from fastsample_dist.train import outputs as training


@pytest.mark.parametrize("check", [outputs.check_writable, training.check_writable])
def test_pipe_is_refused_and_stays(tmp_path, check):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="--json .*pipe.* a device or a pipe.*pass"):
        check("--json", tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_link_is_followed_and_stays(tmp_path):
    (tmp_path / "link.json").symlink_to("report.json")
    outputs.check_writable("--json", tmp_path / "link.json")
    outputs.write_json(tmp_path / "link.json", {"a": 1})
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "report.json").read_text() == '{\n "a": 1\n}\n'


def test_failure_leaves_nothing(tmp_path):
    with pytest.raises(UnicodeEncodeError):
        outputs.write_text(tmp_path / "page.html", "half \ud800")
    assert list(tmp_path.iterdir()) == []
