"""The DistDGL benchmark without DGL: its input, settings, command line, supervision and arithmetic of results.

Its scripts are not a package and most of them import DGL, so the others are loaded by path.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks" / "distdgl"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"distdgl_{name}", SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


graph_input, processes, report, settings = (load(name) for name in ("graph_input", "processes", "report", "settings"))


def write_graph(directory: Path, **replaced: object) -> Path:
    """Write a path 0 - 1 - 2 - 3 with one train node; `replaced` gives other arrays or another meta.json."""
    parts = {
        "meta": {"name": "path", "num_nodes": 4, "undirected": True},
        "edge_index": np.array([[0, 1, 2], [1, 2, 3]], dtype=np.int32),
        "features": np.ones((4, 2), dtype=np.float16),
        "labels": np.array([0, 1, 0, -1]),
        "train_idx": np.array([2, 0]),
    } | replaced
    (directory / "meta.json").write_text(json.dumps(parts.pop("meta")))
    for name, array in parts.items():
        np.save(directory / f"{name}.npy", array)
    return directory


def test_symmetrise_adds_reverses_and_merges_duplicates():
    # 0->1 twice, its reverse once, a self-loop, and 2->0 without reverse
    src, dst = graph_input.symmetrise(np.array([0, 0, 1, 2, 2]), np.array([1, 1, 0, 2, 0]), 3)
    assert list(zip(src.tolist(), dst.tolist(), strict=True)) == [(0, 1), (0, 2), (1, 0), (2, 0), (2, 2)]


def test_symmetrise_equals_a_set_of_pairs():
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 20, 100), rng.integers(0, 20, 100)
    forward = set(zip(src.tolist(), dst.tolist(), strict=True))
    found = graph_input.symmetrise(src, dst, 20)
    pairs = list(zip(*(ids.tolist() for ids in found), strict=True))
    assert pairs == sorted(forward | {(v, u) for u, v in forward})


def test_symmetrise_of_no_edges_is_empty():
    empty = np.empty(0, dtype=np.int64)
    assert [len(ids) for ids in graph_input.symmetrise(empty, empty, 5)] == [0, 0]


def test_symmetrise_refuses_keys_beyond_int64():
    assert graph_input.MAX_NODES**2 <= 2**63 - 1 < (graph_input.MAX_NODES + 1) ** 2
    ids = np.array([0])
    with pytest.raises(ValueError, match="expected at most 3037000499"):
        graph_input.symmetrise(ids, ids, graph_input.MAX_NODES + 1)


def test_read_graph_of_a_directed_graph_keeps_its_edges(tmp_path: Path):
    meta = {"name": "path", "num_nodes": 4, "undirected": False}
    graph = graph_input.read_graph(write_graph(tmp_path, meta=meta))
    assert (graph.src.tolist(), graph.dst.tolist()) == ([0, 1, 2], [1, 2, 3])


def test_read_graph_gives_what_dgl_needs(tmp_path: Path):
    graph = graph_input.read_graph(write_graph(tmp_path))
    assert graph.facts() == {
        "name": "path",
        "num_nodes": 4,
        "num_edges": 6,
        "feature_dim": 2,
        "num_classes": 2,
        "num_train": 2,
    }
    dtypes = [array.dtype for array in (graph.src, graph.dst, graph.features, graph.labels, graph.train_idx)]
    assert dtypes == [np.int64, np.int64, np.float32, np.int64, np.int64]
    assert graph.train_idx.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"edge_index": np.array([[0], [4]])}, r"edge_index.npy holds ids 4..4, expected 0..3"),
        ({"edge_index": np.array([[-1], [0]])}, r"edge_index.npy holds ids -1..-1, expected 0..3"),
        ({"edge_index": np.zeros((3, 2), dtype=np.int64)}, r"shape \[3, 2\], expected \[2, num_edges\]"),
        ({"features": np.ones((3, 2))}, "features.npy has 3 rows, expected num_nodes = 4"),
        ({"train_idx": np.array([3])}, "names unlabelled nodes"),
        ({"train_idx": np.empty(0, dtype=np.int64)}, "train_idx.npy is empty"),
    ],
)
def test_read_graph_refuses(tmp_path: Path, replaced: dict, message: str):
    write_graph(tmp_path, **replaced)
    with pytest.raises(ValueError, match=message):
        graph_input.read_graph(tmp_path)


def test_read_graph_names_missing_files(tmp_path: Path):
    (write_graph(tmp_path) / "labels.npy").unlink()
    with pytest.raises(ValueError, match=r"has no labels.npy; expected"):
        graph_input.read_graph(tmp_path)


def test_fingerprint_changes_with_a_file(tmp_path: Path):
    before = graph_input.fingerprint(write_graph(tmp_path))
    np.save(tmp_path / "train_idx.npy", np.array([0, 1, 2]))
    after = graph_input.fingerprint(tmp_path)
    assert {name for name in before if before[name] != after[name]} == {"train_idx.npy"}


def test_count_cut_edges_on_a_path():
    src, dst = np.array([0, 1, 1, 2, 2, 3]), np.array([1, 0, 2, 1, 3, 2])
    assert graph_input.count_cut_edges(src, dst, np.array([0, 0, 1, 1])) == 2


VALID = {
    "graph": "g",
    "work": "w",
    "machines": 2,
    "trainers": 1,
    "epochs": 5,
    "batch_size": 1000,
    "fanouts": (15, 10, 5),
    "hidden": 256,
    "dropout": 0.5,
    "lr": 0.006,
    "seed": 1,
    "rate": None,
    "repartition": False,
    "deadline_s": 60.0,
}


def test_settings_survive_the_file(tmp_path: Path):
    before = settings.Settings(**VALID)
    before.write(tmp_path / "settings.json")
    assert settings.Settings.read(tmp_path / "settings.json") == before


def test_dgl_takes_fanouts_from_the_input_layer_on():
    assert settings.Settings(**VALID).dgl_fanouts == [5, 10, 15]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("machines", 1),
        ("machines", 65),
        ("trainers", 0),
        ("epochs", 0),
        ("fanouts", ()),
        ("fanouts", (5, 0)),
        ("dropout", 1.0),
    ],
)
def test_settings_refuse_by_option_name(name: str, value: object):
    with pytest.raises(ValueError, match=f"--{name} is .*, expected|--{name} is .*; use"):
        settings.Settings(**VALID | {name: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fanouts", "5,5"], "--fanouts has 2 entries but --layers is 3; pass one per layer"),
        (["--fanouts", "5,x,5"], "--fanouts is '5,x,5', expected numbers like 15,10,5"),
        (["--dropout", "1"], "--dropout is 1.0, expected 0 <= dropout < 1"),
        ([], "has no meta.json, edge_index.npy, features.npy, labels.npy, train_idx.npy"),
    ],
)
def test_run_refuses_in_one_line(tmp_path: Path, options: list[str], message: str):
    graph = tmp_path if not options else write_graph(tmp_path)
    command = [sys.executable, SCRIPTS / "run.py", "--graph", graph, "--work", tmp_path / "work", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines()), message in done.stderr) == (1, 1, True), done.stderr


def run_scripts(logs: Path, *sources: str) -> object:
    """Run one Python process per source as trainers; a source calls emit(event, **values)."""
    prologue = "import json, os, sys, time\ndef emit(event, **v):\n    os.write(int(sys.argv[-1]), "
    prologue += "(json.dumps({'event': event, 'rank': 1, **v}) + '\\n').encode())\n"
    with processes.ProcessGroup(logs, {"PATH": "/usr/bin"}) as group:
        for index, source in enumerate(sources):
            group.start_trainer(f"trainer-{index}", [sys.executable, "-c", prologue + source], {})
        group.collect_events()
        group.exit_codes = group.wait_for_exit()
    return group


def test_group_collects_events_of_all_trainers(tmp_path: Path):
    group = run_scripts(tmp_path, "emit('a', x=1); time.sleep(0.5); emit('done')", "emit('b', x=2); emit('done')")
    assert sorted((event["event"], event.get("x", 0)) for event in group.events) == [
        ("a", 1),
        ("b", 2),
        ("done", 0),
        ("done", 0),
    ]
    assert group.exit_codes == {"trainer-0": 0, "trainer-1": 0}


@pytest.mark.parametrize(("end", "status"), [("sys.exit(3)", 3), ("pass", 0), ("os.kill(os.getpid(), 9)", -9)])
def test_group_reports_the_first_process_that_ends_early(tmp_path: Path, end: str, status: int):
    waits = "import signal; signal.alarm(300); time.sleep(300)"
    with pytest.raises(RuntimeError, match=rf"trainer-1 ended early with exit code {status};[^\n]*\n.*last words"):
        run_scripts(tmp_path, waits, f"print('last words', flush=True); {end}")


def test_group_samples_memory_and_clocks_between_the_events(tmp_path: Path):
    busy = "emit('warm'); hold = bytearray(64 << 20)\nwhile time.process_time() < 0.6: pass\n"
    group = run_scripts(tmp_path, busy + "emit('memory_begin'); time.sleep(3); emit('memory_end'); emit('done')")
    assert len(group.pss_samples) >= 2
    assert min(group.pss_samples) > 64 << 20
    assert report.count_busy_cores(group.clocks)["measured"] > 0.01  # of one core, which others may want too


def record(rank: int, epoch: int, **replaced: float) -> dict:
    """One trainer's figures of one epoch; every phase lasts (rank + 1) seconds."""
    values = dict.fromkeys(report.PHASES, rank + 1.0) | {"event": "epoch", "rank": rank, "epoch": epoch}
    values |= {"epoch_s": 6.0 * (rank + 1), "loss_sum": 10.0 * (rank + 1), "steps": 2, "seeds": 10 * (rank + 1)}
    values |= {"sampled_edges": 100, "input_nodes": 40, "remote_inputs": 10 * rank, "received_bytes": 7 + rank}
    return values | {"layer_rows": [30, 10 * (rank + 1)]} | replaced


def test_merged_epoch_takes_the_slowest_trainer_mean_phases_and_summed_counts():
    merged = report.merge_epoch([record(1, 0), record(0, 0)])
    assert (merged["epoch_s"], merged["sample_s"], merged["seeds"]) == (12.0, 1.5, 30)
    assert merged["layer_rows"] == [60, 30]
    assert merged["received_bytes_per_machine"] == [7, 8]
    assert merged["remote_input_share"] == 10 / 80
    assert merged["loss"] == 1.0


def test_percentile_interpolates():
    assert [report.percentile([4.0, 1.0, 2.0, 3.0, 5.0], share) for share in (0.0, 0.1, 0.5, 1.0)] == [1, 1.4, 3, 5]


def test_percentile_of_one_value_is_that_value():
    assert report.percentile([2.0], 0.9) == 2.0


def test_busy_cores_split_between_measured_and_others():
    clocks = {
        "warm": {"wall_s": 10.0, "host_s": 100.0, "own_s": 20.0},
        "memory_begin": {"wall_s": 14.0, "host_s": 108.0, "own_s": 26.0},
    }
    assert report.count_busy_cores(clocks) == {"measured": 1.5, "others": 0.5}


def raw_result(epoch_seconds: list[float]) -> dict:
    clock = {"wall_s": 0.0, "host_s": 0.0, "own_s": 0.0}
    return {
        "graph": {},
        "partition": None,
        "started_s": 5.0,
        "events": [{"event": "ready", "rank": 0, "at_s": 8.0}, {"event": "ready", "rank": 1, "at_s": 9.5}]
        + [record(0, epoch, epoch_s=seconds) for epoch, seconds in enumerate(epoch_seconds)],
        "pss_samples": [100, 300, 200],
        "clocks": {"warm": clock, "memory_begin": clock | {"wall_s": 1.0}},
        "exit_codes": {},
    }


def test_result_holds_medians_startup_of_the_slowest_and_peak_memory():
    result = report.build_result(raw_result([3.0, 1.0, 2.0]), {})
    assert result["summary"]["epoch_s"]["median"] == 2.0
    assert result["startup_s"] == 4.5
    assert result["pss_bytes"] == {"median": 200, "peak": 300, "samples": 3}


def test_result_without_timed_epochs_is_refused():
    with pytest.raises(ValueError, match="0 timed epochs and 3 memory samples"):
        report.build_result(raw_result([]), {})


@pytest.mark.parametrize(("machines", "shown"), [(2, True), (0, False)])
def test_table_shows_the_network_only_where_there_is_one(machines: int, shown: bool):
    conditions = {"dgl": "1.1.3", "settings": {"machines": machines, "trainers": 1, "dropout": 0.5, "rate": None}}
    table = report.format_table(report.build_result(raw_result([3.0]), conditions))
    assert ("remote inputs" in table, "all_reduce" in table) == (shown, shown)
