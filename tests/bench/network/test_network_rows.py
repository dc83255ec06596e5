"""fastsample-bench network: what its rows switch on, its arithmetic, and the command on hosts in namespaces."""

import json
import re

import pytest

from fastsample_dist.bench import cli
from fastsample_dist.bench.epoch.namespaces import missing_reason
from fastsample_dist.bench.network.cli import rows
from fastsample_dist.bench.network.measure import check_int8, summarize
from fastsample_dist.bench.network.rank import sent_by_host
from fastsample_dist.bench.network.rows import DEFAULT, Row
from tests.parts import draw_partition
from tests.train.task import make_task

SMALL = ("--epochs", "1", "--batch-size", "10", "--fanouts", "4,3", "--hidden", "8", "--threads", "1")


def test_a_row_is_options_of_a_loader():
    assert Row("off").loader_options() == {"transport": "exchange", "exchange": "paired", "rails": False}
    assert Row("cache+int8").loader_options() == Row("off").loader_options()
    assert Row("shared").loader_options() == {"transport": "shared", "exchange": "paired", "rails": False}
    combined = {"transport": "shared", "exchange": "combined", "rails": True}
    assert Row("cache+rails+combined").loader_options() == combined
    assert [row.name for row in rows(",".join(DEFAULT))] == list(DEFAULT)


@pytest.mark.parametrize("name", ["", "all", "off+cache", "cache+cache"])
def test_a_row_of_other_words_is_refused(name):
    expected = f"row is {name!r}; expected off, or some of cache, int8, "
    with pytest.raises(ValueError, match=re.escape(expected)):
        Row(name)


def test_what_looks_ahead_is_a_cache():
    with pytest.raises(ValueError, match=r"row is 'int8\+lookahead'; lookahead is of a cache: cache\+lookahead"):
        Row("int8+lookahead")


def test_bytes_that_left_the_host_are_those_of_its_link():
    head = (
        "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop fifo frame compressed multicast|bytes packets\n"
    )
    counted = head + "    lo: 7 1 0 0 0 0 0 0 8 1 0 0 0 0 0 0\n  eth0: 90 3 0 0 0 0 0 0 1234 5 0 0 0 0 0 0\n"
    assert sent_by_host(counted) == 1234 and sent_by_host(head) == 0


def test_bytes_and_calls_are_those_of_an_epoch():
    def epoch(seconds, sent, calls, link_bytes):
        bytes_sent = {"feature_rows": sent, "counts": 16, "gradients": 10**9}
        comm = {name: {"calls": calls, "bytes_sent": count, "bytes_received": 0} for name, count in bytes_sent.items()}
        return {"seconds": seconds, "loss": 1.0, "comm": comm, "link_bytes": link_bytes}

    def rank(sent, link_bytes, exchanged):
        epochs = [epoch(9.0, 10**6, 90, 0), epoch(1.0, sent, 4, link_bytes), epoch(2.0, sent, 4, link_bytes)]
        row = {"name": "cache", "transport": "exchange", "exchange": "paired", "rails": False, "epochs": epochs}
        row["fetched"] = {"cached": 3, "exchanged": exchanged}
        return {"steps": 4, "graph": {}, "row_bytes": 400, "rows": [row]}

    [found] = summarize([rank(100, 5000, 1), rank(300, 0, 2)])
    assert (found["epoch_s"], found["calls"], found["hit_rate"]) == (1.5, 1.0, 6 / 9)
    assert (found["feature_bytes"], found["link_bytes"]) == (100 + 300 + 2 * 16, 5000)


def test_int8_rows_need_a_partition_that_has_them(tmp_path, capsys):
    if missing_reason() is not None:
        pytest.skip(f"no hosts in namespaces: {missing_reason()}")
    assert cli.main(["network", str(tmp_path), "--rates", "unlimited"]) == 1
    assert "--rows has int8, but no partition with such rows is given; pass --int8 PARTS" in capsys.readouterr().err


def refused(parts, int8_parts):
    with pytest.raises(ValueError, match=re.escape(f"--int8 {int8_parts} has ")) as found:
        check_int8(parts, int8_parts)
    return str(found.value)


def test_int8_rows_are_those_of_the_same_partition(tmp_path):
    for name in ("float32", "int8", "four", "other"):
        (tmp_path / name).mkdir()
    parts = draw_partition(tmp_path / "float32", 2).path
    check_int8(parts, draw_partition(tmp_path / "int8", 2, stored_as="int8").path)
    assert f"has rows of float32; pass {parts} partitioned again with --feature-dtype int8." in refused(parts, parts)
    four = draw_partition(tmp_path / "four", 4, stored_as="int8").path
    assert "has part_ranges (" in refused(parts, four)
    other = draw_partition(tmp_path / "other", 2, stored_as="int8", seed=6).path
    assert f"has another part-0/labels.npy than {parts}; pass {parts} partitioned again" in refused(parts, other)


@pytest.mark.grid
def test_two_hosts_with_two_ranks_each(tmp_path, capsys):
    """Rails and the combined exchange between real network namespaces, where the proofs of one machine are passed."""
    if missing_reason() is not None:
        pytest.skip(f"no hosts in namespaces: {missing_reason()}")
    parts, file = make_task(tmp_path, 4, dtype="float32").path, tmp_path / "out.json"
    names = "off,cache,shared,rails,cache+rails+combined"
    more = ("--rates", "unlimited", "--rows", names, "--work", str(tmp_path), "--json", str(file))
    assert cli.main(["network", str(parts), *SMALL, *more]) == 0, capsys.readouterr()
    [run] = json.loads(file.read_text())["runs"]
    found = {entry["name"]: entry for entry in run["rows"]}
    assert list(found) == names.split(",") and len({tuple(entry["loss"]) for entry in found.values()}) == 1
    assert [entry["rails"] for entry in found.values()] == [False, False, False, True, True]
    sent = [found[name]["feature_bytes"] for name in ("off", "shared", "rails", "cache+rails+combined")]
    assert sent == sorted(sent, reverse=True) and sent[-1] > 0
    assert found["cache"]["hit_rate"] > 0 and found["off"]["link_bytes"] > found["off"]["feature_bytes"] / 2
    assert "exchanges/step" in capsys.readouterr().out
