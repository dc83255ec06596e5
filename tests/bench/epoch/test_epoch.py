"""fastsample-bench epoch: its arithmetic, its checks, and the command as a user and as a launcher start it."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fastsample_dist import DistContext
from fastsample_dist.bench import cli
from fastsample_dist.bench.epoch import floor, namespaces, rank
from fastsample_dist.bench.epoch import measure as epoch
from fastsample_dist.bench.epoch.network_model import (
    BatchWork,
    Host,
    Measured,
    Share,
    epoch_s,
    exchange_s,
    gradients_s,
    mean_share,
    share_of,
    step_s,
    steps_of,
)
from fastsample_dist.bench.graphs import load_classes
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.graph.network import Network
from fastsample_dist.ops.sage_layer import padded_size
from fastsample_dist.testing import mpi_missing_reason
from tests.forked import run_forked
from tests.grids import grid
from tests.train.task import make_task
from tests.waiting import ENOUGH_S, wait_until

ROOT = Path(__file__).resolve().parents[3]
SMALL = ("--epochs", "2", "--batch-size", "20", "--fanouts", "4,3", "--hidden", "8", "--threads", "1")
PAIRED = ("--transport", "exchange", "--exchange", "paired")
CONFIGURATIONS = {("vanilla", 0), ("vanilla", 2), ("hybrid", 0), ("hybrid", 2)}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("epoch"), 2, dtype="float32").path


def run(capsys, *options):
    status = cli.main(["epoch", *(str(option) for option in options)])
    return status, capsys.readouterr()


# ---- the command ----


def test_configurations_on_one_and_two_ranks(forked_ranks, parts, tmp_path, capsys):
    file = tmp_path / "out.json"
    status, printed = run(capsys, parts, "--ranks", "1,2", *SMALL, "--json", file, "--model-network", "25Gb/s,20us")
    assert status == 0, printed
    results = json.loads(file.read_text())
    assert [run["ranks"] for run in results["runs"]] == [1, 2]
    for measured in results["runs"]:
        found = {(entry["scheme"], entry["prefetch"]): entry for entry in measured["configurations"]}
        assert found.keys() == CONFIGURATIONS
        assert len({tuple(entry["loss"]) for entry in found.values()}) == 1
        assert all(len(entry["epochs_s"]) == 2 and entry["epoch_s"] > 0 for entry in found.values())
    two = {(entry["scheme"], entry["prefetch"]): entry for entry in results["runs"][1]["configurations"]}
    assert {key: entry["exchanges"] for key, entry in two.items()} == {key: 2 if "hybrid" in key else 4 for key in two}
    assert two["hybrid", 0]["comm"]["feature_rows"] == two["vanilla", 2]["comm"]["feature_rows"]
    assert two["hybrid", 0]["comm"]["feature_rows"]["bytes_sent"] > 0
    assert 0 < two["hybrid", 0]["remote_share"] < 1
    assert results["runs"][0]["configurations"][0]["remote_share"] == 0
    messages = results["runs"][1]["messages"]
    assert all(messages[what]["alpha_s"] > 0 < messages[what]["beta_bytes_s"] for what in ("network", "processor"))
    assert all(run["training_s"] > 0 and run["batches"][0]["seeds"] == 20 for run in results["runs"])
    assert two["vanilla", 0]["ratio_to_vanilla"] == 1
    assert all(run["first_step_s"] > 0 for run in results["runs"])
    for measured in results["runs"]:
        both_s = measured["floor_s"] + measured["all_reduce_s"]
        assert measured["floor_s"] > 0 and measured["floor_cpu_s"] >= 0
        assert all(entry["ratio_to_floor"] == entry["epoch_s"] / both_s for entry in measured["configurations"])
    assert {entry["scheme"] for entry in results["model"]} == {"vanilla", "hybrid"}
    assert "alpha-beta model" in printed.out and "losses are equal over 4 configurations" in printed.out


@pytest.mark.parametrize("way", grid(["forked", "torchrun"], gate=["forked"]))
def test_a_launcher_starts_the_ranks(parts, tmp_path, way):
    file = tmp_path / "out.json"
    command = ["-m", "fastsample_dist.bench.cli", "epoch", str(parts), *SMALL, "--json", str(file)]
    if way == "forked":
        done = run_forked(2, command[0], command[1:])
    else:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        done = subprocess.run(
            [*launcher, *command], cwd=ROOT, capture_output=True, text=True, timeout=ENOUGH_S, check=False
        )
    assert done.returncode == 0, done.stderr
    measured = json.loads(file.read_text())["runs"]
    assert [entry["ranks"] for entry in measured] == [2]
    assert {(entry["scheme"], entry["prefetch"]) for entry in measured[0]["configurations"]} == CONFIGURATIONS
    assert done.stdout.count("losses are equal") == 1


@pytest.mark.grid
def test_hosts_are_reached_through_the_launcher(parts, tmp_path):
    """Two names of this machine, and an ssh that runs the command here."""
    ssh, hosts, file = tmp_path / "ssh", tmp_path / "hosts.txt", tmp_path / "out.json"
    ssh.write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    ssh.chmod(0o755)
    hosts.write_text("127.0.0.1\n127.0.0.2\n")
    command = [sys.executable, "-m", "fastsample_dist.bench.cli", "epoch", str(parts), *SMALL, "--json", str(file)]
    environ = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [*command, "--hosts", str(hosts), f"--ssh={ssh}"], cwd=ROOT, env=environ, capture_output=True, text=True,
        timeout=ENOUGH_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert [entry["ranks"] for entry in json.loads(file.read_text())["runs"]] == [2]
    assert done.stdout.count("losses are equal") == 1


@pytest.mark.grid
def test_ranks_under_mpirun(parts, tmp_path, capsys):
    if mpi_missing_reason() is not None:
        pytest.skip(f"no MPI here: {mpi_missing_reason()}")
    file = tmp_path / "out.json"
    status, printed = run(capsys, parts, "--ranks", "2", *SMALL, "--mpi", *PAIRED, "--json", file)
    assert status == 0, printed
    assert {entry["exchanges"] for entry in json.loads(file.read_text())["runs"][0]["configurations"]} == {2, 4}


@pytest.mark.grid
def test_a_generated_graph_is_kept_and_used_again(tmp_path, capsys):
    options = ("rmat:8:4", "--ranks", "1", *SMALL, "--work", tmp_path, "--method", "random", "--prefetch", "0")
    for attempt in range(2):
        status, printed = run(capsys, *options)
        assert status == 0, printed
        assert ("drawing rmat:8:4" in printed.out) == (attempt == 0)
    assert {path.name for path in tmp_path.iterdir()} == {"rmat-8-4", "rmat-8-4-random-1"}


@pytest.mark.grid
def test_ranks_on_hosts_in_namespaces(parts, tmp_path, capsys):
    reason = namespaces.missing_reason("1gbit")
    if reason is not None:
        pytest.skip(f"no hosts in namespaces: {reason}")
    hosts = ("--namespaces", "--rate", "1gbit", "--work", tmp_path, "--json", tmp_path / "out.json")
    status, printed = run(capsys, parts, "--ranks", "1,2", *SMALL, *hosts)
    assert status == 0, printed
    assert "links 1gbit" in " ".join(printed.out.split())
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_sigterm_ends_the_ranks_and_says_so(tmp_path, parts):
    command = [
        sys.executable,
        "-m",
        "fastsample_dist.bench.cli",
        "epoch",
        str(parts),
        "--ranks",
        "2",
        "--epochs",
        "100000",
    ]
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: [*tmp_path.glob("fastsample-run-*/rank-1.log")], "the start of rank 1")
    process.send_signal(signal.SIGTERM)
    _, printed = process.communicate(timeout=ENOUGH_S)
    assert process.returncode == 130 and "interrupted" in printed
    assert [*tmp_path.glob("fastsample-*")] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("nosuch",), "nosuch"),
        (("rmat:8",), "expected rmat:SCALE:EDGE_FACTOR"),
        (("PARTS", "--ranks", "3"), "has 2 parts, which 3 ranks cannot share equally"),
        (("PARTS", "--rate", "1gbit"), "--rate limits the links of --namespaces; pass both"),
        (("PARTS", "--prefetch", "-1"), "--prefetch"),
        (("PARTS", "--schemes", "magic"), "must be a list of hybrid and vanilla, not 'magic'"),
        (("PARTS", "--model-network", "1Gb/s,1us", "--ranks", "1"), "--model-network takes a step's work from 1 rank"),
        (("PARTS", "--model-network", "fast"), "expected speed and latency such as 25Gb/s,20us"),
        (("PARTS", "--fanouts", "4,x"), "must be a list of fanouts such as 15,10,5, not '4,x'"),
        (("PARTS", "--dropout", "2", "--ranks", "1"), "must be a number >= 0 and < 1, not '2'"),
        (("PARTS", "--json", "/nowhere/out.json"), "--json /nowhere/out.json cannot be written"),
    ],
)
def test_bad_input_is_refused_in_one_line(parts, capsys, options, message):
    status, printed = run(capsys, *(parts if option == "PARTS" else option for option in options))
    assert status == 1 and message in printed.err and printed.err.count("\n") == 1
    assert printed.err.startswith("fastsample-bench")


def test_where_namespaces_cannot_run_the_reason_is_given(parts, capsys, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    status, printed = run(capsys, parts, "--namespaces")
    assert status == 1 and "--namespaces cannot run here: network namespaces need root" in printed.err


# ---- figures ----


def epoch_of(seconds, loss, comm=None, **times):
    parts_s = {"sample_s": 0.0, "fetch_s": 0.0, "compute_s": 0.0, "gradients_s": 0.0, **times}
    return {"seconds": seconds, "loss": loss, **parts_s, "comm": comm or {}}


def result_of(configurations):
    entries = [
        {"scheme": scheme, "prefetch": prefetch, "remote_share": 0.5, "epochs": epochs}
        for scheme, prefetch, epochs in configurations
    ]
    floor = [{"floor_s": floor_s, "floor_cpu_s": floor_s, "all_reduce_s": 0.5} for floor_s in (1.5, 0.5, 9.0)]
    return {
        "steps": 2, "num_seeds": 30, "first_step_s": 1.0, "graph": {}, "transport": "exchange", "floor": floor,
        "messages": {name: {"alpha_s": 1e-3, "beta_bytes_s": 1e6} for name in ("network", "processor")},
        "batches": [{"seeds": seeds, "inputs": 20 * seeds, "products": 1e5 * seeds} for seeds in (20.0, 10.0)],
        "products": [3.0, 1.0], "training_s": 1e-9, "configurations": entries,
    }  # fmt: skip


def test_medians_leave_the_warm_up_out_and_idle_is_the_rest():
    epochs = [
        epoch_of(99.0, 3.0),
        *(epoch_of(s, 2.0, sample_s=1.0, fetch_s=2.0, compute_s=3.0) for s in (8.0, 7.0, 9.0)),
    ]
    run_of_one = epoch.summarize([result_of([("vanilla", 0, epochs), ("hybrid", 2, epochs)])], 1)
    vanilla, hybrid = run_of_one["configurations"]
    assert (vanilla["epoch_s"], vanilla["idle_s"], hybrid["idle_s"]) == (8.0, 2.0, 5.0)


def test_the_floor_is_a_median_of_means_and_stands_below_the_epoch():
    found = epoch.summarize([result_of([("hybrid", 0, [epoch_of(6.0, 1.0)] * 4)])] * 2, 2)
    assert (found["floor_s"], found["floor_cpu_s"], found["all_reduce_s"]) == (1.5, 1.5, 0.5)
    assert found["configurations"][0]["ratio_to_floor"] == 3.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_floor_multiplies_what_the_step_multiplies(dtype, monkeypatch):
    """Every product of the forward and the backward pass, in the padded shapes, and none for the features."""
    shapes, product = [], torch.mm

    def noted(a, b, **more):
        shapes.append((*a.shape, b.shape[1]))
        return product(a, b, **more)

    def noted_weight(rows, inputs, out):  # torch's product, or one on matrix units
        shapes.append((rows.shape[1], *inputs.shape))
        product(rows.t(), inputs, out=out)

    monkeypatch.setattr(torch, "mm", noted)
    monkeypatch.setattr(floor, "weight_product", noted_weight)
    comm = LocalCommunicator()
    floor.EpochFloor([(5, 8), (8, 3)], dtype, 100).measure([[70, 9]], comm)
    rows = [padded_size(count, dtype) for count in (70, 9)]
    step = [(rows[0], 10, 8), (rows[1], 16, 3), (3, rows[1], 16), (rows[1], 3, 16), (8, rows[0], 10)]
    assert shapes == step * 2  # one step of warm-up
    assert floor.num_products([(5, 8), (8, 3)], rows) == sum(m * k * n for m, k, n in step)
    assert comm.stats()["benchmark"]["calls"] >= 1


def test_calls_and_bytes_are_per_step_and_rank():
    ranks = []
    for sent in (100, 300):
        comm = {"feature_rows": {"calls": 2, "bytes_sent": sent, "bytes_received": 0}}
        ranks.append(result_of([("hybrid", 0, [epoch_of(1.0, 1.0, comm)] * 3)]))
    found = epoch.summarize(ranks, 2)
    assert found["configurations"][0]["comm"] == {"feature_rows": {"calls": 1.0, "bytes_sent": 100.0}}
    assert (found["num_seeds"], found["configurations"][0]["exchanges"]) == (60, 1.0)


def test_the_ratio_is_vanilla_without_prefetching_over_this():
    slow, fast = [epoch_of(6.0, 1.0)] * 2, [epoch_of(2.0, 1.0)] * 2
    found = epoch.summarize([result_of([("vanilla", 0, slow), ("hybrid", 2, fast)])], 1)
    assert [entry["ratio_to_vanilla"] for entry in found["configurations"]] == [1.0, 3.0]


def test_a_loss_that_differs_in_the_last_bit_is_refused():
    other = 1.0 + 2**-52
    with pytest.raises(
        RuntimeError, match=r"2 ranks, epoch 1: the loss is 1\.0000000000000002 with hybrid, prefetch 0"
    ):
        epoch.summarize(
            [
                result_of(
                    [
                        ("vanilla", 0, [epoch_of(1.0, 1.0)] * 2),
                        ("hybrid", 0, [epoch_of(1.0, 1.0), epoch_of(1.0, other)]),
                    ]
                )
            ],
            2,
        )


# ---- the network model ----


FREE = Network(0.0, math.inf)


def measured(**changed):
    comm = {
        "counts": {"calls": 1, "bytes_sent": 16},
        "feature_ids": {"calls": 1, "bytes_sent": 1e4},
        "feature_rows": {"calls": 1, "bytes_sent": 1e6},
        "gradients": {"calls": 1, "bytes_sent": 4e5},
        "metrics": {"calls": 5, "bytes_sent": 1e9},  # not part of a step
    }
    given = {"sample_s": 0.01, "fetch_s": 0.02, "compute_s": 0.1, "comm": comm, "num_ranks": 2, "num_seeds": 10_000}
    batches = (BatchWork(seeds=100, inputs=4000, products=8e6), BatchWork(seeds=50, inputs=3000, products=5e6))
    given |= {"remote_share": 0.5, "processor": FREE, "batch_size": 100, "batches": batches}
    return Measured(**{**given, **changed})


def test_a_network_is_shown_as_it_is_read_and_taken_from_the_fewest_ranks_that_are_several():
    assert str(Network.parse("25Gb/s,20us")) == "25Gb/s,20us"
    runs = [{"ranks": ranks, "messages": {"network": {"alpha_s": ranks, "beta_bytes_s": 1.0}}} for ranks in (4, 1, 2)]
    assert epoch.messages_of_runs(runs, "network") == Network(2, 1.0)


def test_a_network_is_read_from_speed_and_latency():
    assert Network.parse("25Gb/s,20us") == Network(20e-6, 25e9 / 8)
    assert Network.parse("100 Mbit/s, 0.5ms") == Network(0.5e-3, 100e6 / 8)
    for text in ("0Gb/s,1us", "25Gb/s", "1.2.3Gb/s,1us", "25GB/s,20us"):
        with pytest.raises(ValueError, match="expected speed and latency"):
            Network.parse(text)


def test_exchanges_on_the_measured_number_of_machines_send_the_measured_bytes():
    network = Network(1e-3, 1e6)
    assert exchange_s(measured(), network, 2) == pytest.approx(3e-3 + (16 + 1e4 + 1e6) / 1e6)


def test_exchanges_on_more_machines_send_to_more_and_more_of_the_rows():
    network = Network(1e-3, 1e6)
    assert exchange_s(measured(), network, 4) == pytest.approx(9e-3 + (3 * 16 + 1.5 * (1e4 + 1e6)) / 1e6)


def test_gradients_travel_round_a_ring():
    assert gradients_s(measured(), Network(1e-3, 1e6), 4) == pytest.approx(2 * 3 * (1e-3 + 1e5 / 1e6))


def test_an_epoch_with_prefetching_takes_the_longer_half():
    network, given = Network(1e-3, 1e6), measured()
    make = 0.01 + 0.02 * 1.75 + exchange_s(given, network, 4)  # of 4 machines 3/4 of the rows are others', of 2 half
    use = 0.1 + gradients_s(given, network, 4)
    assert epoch_s(given, network, 4, prefetch=0) == pytest.approx(25 * (make + use))
    assert epoch_s(given, network, 4, prefetch=2) == pytest.approx(25 * max(make, use))


def test_ranks_that_share_cores_work_slower_but_the_network_is_as_fast():
    network, given = Network(1e-3, 1e6), measured()
    sent = exchange_s(given, network, 4) + gradients_s(given, network, 4)
    assert step_s(given, network, 4, 0, Host(crowding=2.0)) == pytest.approx(2 * 0.145 + sent)


def test_all_ranks_wait_for_the_largest_batch_of_a_step():
    network, given = Network(1e-3, 1e6), measured()
    sent = exchange_s(given, network, 4) + gradients_s(given, network, 4)
    assert step_s(given, network, 4, 0, Host(largest=1.2)) == pytest.approx(1.2 * 0.145 + sent)
    ranks = [result_of([("hybrid", 0, [epoch_of(1.0, 1.0)] * 2)]) for _ in range(2)]
    ranks[1]["products"] = [1.0, 3.0]  # in the mean 2, but the larger one of every step has 3
    assert epoch.summarize(ranks, 2)["largest"] == 1.5


def test_messages_take_what_the_slower_one_of_network_and_processor_takes():
    slow, fast = Network(1e-3, 1e6), Network(1e-6, 1e9)
    for network, processor, crowding in ((slow, fast, 1.0), (fast, slow, 1.0), (fast, slow, 2.0)):
        given = measured(processor=processor)
        sent = crowding * (exchange_s(given, slow, 4) + gradients_s(given, slow, 4))
        assert step_s(given, network, 4, 0, Host(crowding=crowding)) == pytest.approx(crowding * 0.145 + sent)


def test_prefetching_wins_nothing_where_every_core_has_a_rank():
    processor = Network(1e-3, 1e6)
    given = measured(processor=processor)
    work = 0.145 + exchange_s(given, processor, 4) + gradients_s(given, processor, 4)
    for crowding in (1.0, 2.0):
        assert step_s(given, FREE, 4, 2, Host(crowding=crowding, busy=1.0)) == pytest.approx(crowding * work)
    assert step_s(given, FREE, 4, 2, Host(busy=0.5)) < work


def test_ranks_are_crowded_as_far_as_the_slowest_one_trains_slower_than_alone():
    alone = {"ranks": 1, "training_s": 2e-9, "largest": 1.0}
    run_of_four = {"ranks": 4, "training_s": 8e-9, "largest": 1.25}
    assert epoch.host_of(run_of_four, alone, 0.5) == Host(crowding=4.0, busy=1.0, largest=1.25)
    assert epoch.host_of(alone, alone, 0.5) == Host(crowding=1.0, busy=0.5)


def test_a_batch_of_fewer_seeds_has_the_share_of_the_work_that_was_sampled():
    batches = measured().batches
    assert share_of(batches, 100) == Share() and share_of(batches, 50) == Share(inputs=0.75, products=0.625)
    between = share_of(batches, 100 / math.sqrt(2))
    assert (between.inputs, between.products) == pytest.approx((math.sqrt(0.75), math.sqrt(0.625)))
    below = share_of(batches, 5)
    assert (below.inputs, below.products) == pytest.approx((0.075, 0.0625))
    assert mean_share(batches, [100, 100, 50]).inputs == pytest.approx(2.75 / 3)


def test_what_smaller_batches_do_is_sampled(parts):
    with DistContext.from_env() as ctx:
        settings = {"batch_size": 64, "fanouts": [4, 3], "hidden": 8, "rng_seed": 0}
        found = rank.measured_batches(load_classes(parts, ctx), settings)
    assert [batch["seeds"] for batch in found] == [64, 32, 16]
    for what in ("inputs", "products"):
        values = [batch[what] for batch in found]
        assert values == sorted(values, reverse=True) and values[0] < 4 * values[2]  # seeds share neighbours


def test_the_last_step_has_the_seeds_that_are_left():
    assert steps_of(1050, 4, 100) == [100, 100, 62.5]
    assert steps_of(50, 4, 100) == [12.5] and steps_of(800, 4, 100) == [100, 100]
    network, given = Network(1e-3, 1e6), measured(num_seeds=1000)
    half = step_s(given, network, 4, 0, share=Share(inputs=0.75, products=0.625))
    assert epoch_s(given, network, 4, prefetch=0) == pytest.approx(2 * step_s(given, network, 4, 0) + half)
    make = 0.75 * (0.01 + 0.02 * 1.75) + exchange_s(given, network, 4, Share(inputs=0.75))
    assert half == pytest.approx(make + 0.625 * 0.1 + gradients_s(given, network, 4))


def test_fewer_seeds_exchange_fewer_rows_by_as_many_calls():
    sent = 3 * 16 + 0.75 * 1.5 * (1e4 + 1e6)
    assert exchange_s(measured(), Network(1e-3, 1e6), 4, Share(inputs=0.75)) == pytest.approx(9e-3 + sent / 1e6)


def test_predicted_steps_stand_beside_measured_ones():
    one = epoch.summarize([result_of([("hybrid", 0, [epoch_of(1.0, 1.0)] * 2)])], 1)
    two = epoch.summarize([result_of([("hybrid", 0, [epoch_of(1.0, 1.0)] * 2)])] * 2, 2)
    network = Network(1e-3, 1e6)
    (found,) = epoch.model_network([one, two], network, batch_size=20, threads_per_core=0.5)
    (step,) = found["steps"]
    assert step["ranks"] == 2
    assert step["measured_s"] == two["configurations"][0]["epoch_s"] / two["steps"]
    work = sum(one["configurations"][0][part] for part in ("sample_s", "fetch_s", "compute_s")) / one["steps"]
    assert step["predicted_s"] >= work


@pytest.mark.parametrize(
    ("ranks", "configurations"),
    [((1,), [("hybrid", 0)]), ((2, 4), [("hybrid", 0)]), ((1, 2), [("vanilla", 0), ("hybrid", 2)])],
)
def test_the_model_needs_a_run_with_communication_and_one_without_prefetching(ranks, configurations):
    with pytest.raises(ValueError, match="--model-network takes a step's work from 1 rank and its bytes from several"):
        epoch.check_model(ranks, configurations)


@pytest.mark.parametrize(("option", "value"), [("--transport", "shared"), ("--exchange", "combined")])
def test_a_network_is_modelled_from_counted_exchanges(parts, capsys, option, value):
    status, printed = run(capsys, parts, "--ranks", "1,2", "--model-network", "25Gb/s,20us", option, value)
    assert status == 1 and f"--model-network needs {option} " in printed.err
