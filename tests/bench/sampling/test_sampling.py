"""fastsample-bench sampling: the command as a user starts it, its turns, its checks, its arithmetic."""

import dataclasses
import json
import sys

import pytest
import torch

from fastsample_dist.bench import cli
from fastsample_dist.bench.graphs import GraphSource
from fastsample_dist.bench.sampling import measure as sampling
from fastsample_dist.bench.sampling.measure import OURS, OURS_MANY, SamplingOptions, Timings
from fastsample_dist.graph.datasets import read_npy_graph
from fastsample_dist.sampling.mfg import MiniBatch
from tests.bench.inputs import rmat_input
from tests.train.task import make_task

SMALL = ("--batch-size", "20", "--warmup", "1")


@pytest.fixture(scope="module")
def graph_path(tmp_path_factory):
    """rmat:10:8 as an npy input directory."""
    return rmat_input(tmp_path_factory.mktemp("sampling"), 10)


@pytest.fixture
def fake_dgl(monkeypatch):
    """A peer in DGL's place that draws nothing: 7 edges per seed. Returns the list of what was asked of it."""
    asked = []

    class Block:
        def __init__(self, seeds):
            self.seeds = seeds

        def num_edges(self):
            return 7 * self.seeds.numel()

    def block_sampler(_, fanouts, **options):
        def sample(seeds):
            asked.append({"seeds": seeds, "fanouts": tuple(fanouts), **options})
            return [Block(seeds)]

        return sample

    class Package:
        __version__ = "0.0-fake"

    monkeypatch.setattr(sampling.dgl_peer, "require_dgl", lambda _: Package)
    monkeypatch.setattr(sampling.dgl_peer, "to_graph", lambda graph: graph)
    monkeypatch.setattr(sampling.dgl_peer, "set_rng_seed", lambda _: None)
    monkeypatch.setattr(sampling.dgl_peer, "set_num_threads", lambda count: asked.append(count))
    monkeypatch.setattr(sampling.dgl_peer, "block_sampler", block_sampler)
    return asked


def run(capsys, *options):
    status = cli.main(["sampling", *(str(option) for option in options)])
    return status, capsys.readouterr()


def options_for(path, **changes):
    given = {"fanouts": ((4, 3),), "threads": (1,), "batch_size": 20, "batches": 20, "warmup": 1, **changes}
    return SamplingOptions(source=GraphSource(str(path), path), **given)


# ---- the command ----


def test_every_configuration_is_measured_and_verified(graph_path, tmp_path, capsys):
    file = tmp_path / "out.json"
    several = ("--fanouts", "4,3", "--fanouts", "5", "--threads", "1,2", "--limit", "--verify")
    status, printed = run(capsys, "--graph", graph_path, *SMALL, *several, "--json", file)
    assert status == 0, printed
    results = json.loads(file.read_text())
    graph = read_npy_graph(graph_path).to_csc()
    assert results["graph"] == {"name": str(graph_path), "num_nodes": 1024, "num_edges": graph.num_edges}
    assert [(run["threads"], run["fanouts"]) for run in results["runs"]] == [
        (1, [4, 3]),
        (1, [5]),
        (2, [4, 3]),
        (2, [5]),
    ]
    for measured in results["runs"]:
        ours, many = measured["samplers"]
        assert (ours["sampler"], many["sampler"]) == (OURS, OURS_MANY)
        assert len(ours["rates"]) == 20 and len(many["rates"]) == 5
        assert 0 < ours["p10"] <= ours["median"] <= ours["p90"]
        assert ours["edges_per_batch"] == many["edges_per_batch"] > 0
        assert [limit["threads"] for limit in measured["limits"]] == sorted({1, measured["threads"]})
        assert ours["of_limit"] == ours["median"] / measured["limits"][-1]["median"]
        assert measured["scratch_bytes"] > 0
    assert results["verify"]["passed"] and results["verify"]["failures"] == []
    assert all(entry["edges"] > 0 for entry in results["verify"]["oracle"])
    assert {"torch", "commit", "processor", "load_before"} <= results["conditions"].keys()
    assert "verify: passed" in printed.out and "touch limit" in printed.out
    assert printed.out.index("commit") < printed.out.index("million sampled edges per second")


def test_edges_per_batch_are_those_of_the_sampler_on_the_same_seeds(graph_path):
    options = options_for(graph_path)
    graph = sampling.load_graph(options, lambda _: None)
    batches = sampling.draw_batches(graph, options)
    measured = sampling.measure(graph, batches, options, lambda _: None)
    sampler = sampling.our_sampler(graph, options.spec((4, 3), 1))
    edges = [sampler.sample(seeds, step).num_edges for step, seeds in enumerate(batches.timed, start=1)]
    assert measured[0]["samplers"][0]["edges_per_batch"] == sum(edges) / len(edges)


def test_seeds_are_distinct_connected_nodes_drawn_from_the_seed(graph_path):
    options = options_for(graph_path, batch_size=50)
    graph = sampling.load_graph(options, lambda _: None)
    first, again = (sampling.draw_batches(graph, options) for _ in range(2))
    other = sampling.draw_batches(graph, dataclasses.replace(options, rng_seed=1))
    assert (len(first.warm), len(first.timed)) == (1, 20)
    for seeds, same, different in zip(first.timed, again.timed, other.timed, strict=True):
        assert torch.equal(seeds, same) and not torch.equal(seeds, different)
        assert seeds.dtype == graph.indices.dtype and seeds.unique().numel() == 50
        assert bool((graph.in_degrees()[seeds.long()] > 0).all())
    assert not torch.equal(first.timed[0], first.timed[1])


@pytest.mark.grid
def test_a_generated_graph_is_kept_and_used_again(tmp_path, capsys):
    for attempt in range(2):
        status, printed = run(capsys, "--graph", "rmat:8:4", *SMALL, "--fanouts", "3", "--work", tmp_path)
        assert status == 0, printed
        assert ("drawing rmat:8:4" in printed.out) == (attempt == 0)
    assert {path.name for path in tmp_path.iterdir()} == {"rmat-8-4-topology"}


def test_a_partition_is_sampled_where_it_lies(tmp_path, capsys):
    parts = make_task(tmp_path, 2).path
    status, printed = run(capsys, "--graph", parts, *SMALL, "--fanouts", "3,2", "--verify")
    assert status == 0, printed
    assert "verify: passed" in printed.out and "reading" not in printed.out


@pytest.mark.parametrize(
    "options", [("--replace",), ("--method", "weighted"), ("--method", "weighted", "--replace"), ("--method", "labor")],
    ids=lambda options: " ".join(options),
)  # fmt: skip
def test_the_family_is_verified(graph_path, capsys, options):
    status, printed = run(capsys, "--graph", graph_path, *SMALL, "--fanouts", "4,3", "--verify", *options)
    assert status == 0, printed
    assert "verify: passed" in printed.out


@pytest.mark.parametrize("method", ["weighted", "labor"])
def test_another_method_is_compared_with_our_uniform_sampling(graph_path, tmp_path, capsys, method):
    file = tmp_path / "out.json"
    status, printed = run(capsys, "--graph", graph_path, *SMALL, "--fanouts", "4,3", "--method", method, "--json", file)
    assert status == 0 and "/ ours uniform" in printed.out
    ours, _, uniform = json.loads(file.read_text())["runs"][0]["samplers"]
    assert uniform["sampler"] == "ours uniform"
    assert ours["ratios"]["ours uniform"] == pytest.approx(ours["median"] / uniform["median"])


def test_batches_of_few_seeds_are_timed_with_one_thread_and_with_many(graph_path, tmp_path, capsys):
    file = tmp_path / "out.json"
    status, printed = run(capsys, "--graph", graph_path, *SMALL, "--fanouts", "4,3", "--small", "--json", file)
    assert status == 0 and "batches of few seeds" in printed.out
    small = json.loads(file.read_text())["small"]
    assert [(entry["seeds"], entry["threads"]) for entry in small] == [(n, t) for n in (0, 1, 10) for t in (1, 8)]
    assert all(0 < entry["core_s"] < entry["call_s"] for entry in small)
    assert [entry["edges"] == 0 for entry in small] == [True, True, False, False, False, False]


def test_help_lists_both_commands(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--help"])
    assert end.value.code == 0
    assert {"epoch", "sampling"} <= set(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--graph", "nosuch"), "nosuch holds neither manifest.json nor meta.json"),
        (("--graph", "rmat:8"), "expected rmat:SCALE:EDGE_FACTOR"),
        (("--graph", "GRAPH", "--batches", "5"), "--batches is 5; expected at least 20"),
        (("--graph", "GRAPH", "--batch-size", "5000"), "--batch-size is 5000 but only"),
        (("--graph", "GRAPH", "--fanouts", "-2"), "fanouts holds -2"),
        (("--graph", "GRAPH", "--fanouts", "0,0"), "--fanouts 0,0 draws no edge; pass one of them above 0."),
        (("--graph", "GRAPH", "--fanouts", "-1", "--replace"), "cannot be drawn with replacement"),
        (("--graph", "GRAPH", "--method", "labor", "--replace"), "labor"),
        (("--graph", "GRAPH", "--baseline", "magic"), "invalid choice: 'magic'"),
        (("--graph", "GRAPH", "--method", "labor", "--baseline", "dgl-unfused"), "has no LABOR of its own"),
        ((), "--graph"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_refusals_are_one_line(graph_path, capsys, options, message):
    status, printed = run(capsys, *(graph_path if word == "GRAPH" else word for word in options))
    assert status == 1
    assert message in printed.err and printed.err.count("\n") == 1


def test_a_missing_peer_is_refused_in_one_line_that_names_the_extra(graph_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", None)
    status, printed = run(capsys, "--graph", graph_path, "--baseline", "dgl")
    assert status == 1
    assert "--baseline dgl needs dgl" in printed.err and "pip install fastsample_dist[dgl]" in printed.err
    assert printed.err.count("\n") == 1


# ---- a sampler that is wrong is found ----


class Tampered:
    """Our sampler with its batches changed."""

    def __init__(self, sampler, change, change_many):
        self.sampler, self.change, self.change_many = sampler, change, change_many

    def sample(self, seeds, step=0):
        return self.change(self.sampler.sample(seeds, step))

    def sample_many(self, seeds, first_step=0):
        return self.change_many([self.sample(own, first_step + number) for number, own in enumerate(seeds)])


def drop_last_edge(batch: MiniBatch) -> MiniBatch:
    """The seeds' hop without its last edge."""
    mfg = batch.mfgs[-1]
    indptr = mfg.indptr.clamp(max=mfg.num_edges - 1)
    fields = {"indptr": indptr, "indices": mfg.indices[:-1]}
    if mfg.edge_ids is not None:
        fields["edge_ids"] = mfg.edge_ids[:-1]
    return dataclasses.replace(batch, mfgs=[*batch.mfgs[:-1], dataclasses.replace(mfg, **fields)])


def repeat_first_edge(batch: MiniBatch) -> MiniBatch:
    """The seeds' hop with its first edge drawn again in place of the second."""
    mfg = batch.mfgs[-1]
    fields = {}
    for name in ("indices", "edge_ids"):
        column = getattr(mfg, name)
        if column is not None:
            fields[name] = torch.cat([column[:1], column[:1], column[2:]])
    return dataclasses.replace(batch, mfgs=[*batch.mfgs[:-1], dataclasses.replace(mfg, **fields)])


def swap_sources(batch: MiniBatch) -> MiniBatch:
    """The seeds' hop with its sources in reverse order; edge ids as they were."""
    mfg = batch.mfgs[-1]
    return dataclasses.replace(
        batch, mfgs=[*batch.mfgs[:-1], dataclasses.replace(mfg, indices=mfg.indices.flip(0))]
    )  # fmt: skip


class HalfOfTheSeeds(Tampered):
    """Our sampler, but of a batch that the oracle is not given half of the seeds."""

    def sample(self, seeds, step=0):
        return self.sampler.sample(seeds if seeds.numel() <= 16 else seeds[: seeds.numel() // 2], step)


def test_a_sampler_that_leaves_seeds_out_fails_verification(graph_path, capsys, monkeypatch):
    true_sampler = sampling.our_sampler
    monkeypatch.setattr(
        sampling, "our_sampler", lambda *given: HalfOfTheSeeds(true_sampler(*given), unchanged, unchanged)
    )
    status, printed = run(capsys, "--graph", graph_path, *SMALL, "--fanouts", "4,3", "--verify")
    assert status == 1 and "are not the seeds that were asked for" in printed.out


def unchanged(value):
    return value


def other_draws(sampler):
    """The same sampler under another seed: a valid sample, but not the contract's."""
    return lambda graph, spec: sampler(graph, dataclasses.replace(spec, rng_seed=spec.rng_seed + 1))


@pytest.mark.parametrize(
    ("change", "change_many", "message"),
    [
        (drop_last_edge, unchanged, "with fanout 4"),
        (repeat_first_edge, unchanged, "an edge was drawn twice"),
        (swap_sources, unchanged, "edges have other sources than the graph's"),
        (unchanged, lambda made: made[::-1], "sample_many with 1 thread(s) gives other batches"),
        (unchanged, lambda made: made[:-1], "sample_many with 1 thread(s) gives other batches"),
    ],
    ids=["drop an edge", "repeat an edge", "swap sources", "batches reversed", "a batch missing"],
)
def test_a_wrong_sampler_fails_verification(graph_path, tmp_path, capsys, monkeypatch, change, change_many, message):
    true_sampler, file = sampling.our_sampler, tmp_path / "out.json"
    monkeypatch.setattr(sampling, "our_sampler", lambda *given: Tampered(true_sampler(*given), change, change_many))
    status, printed = run(capsys, "--graph", graph_path, *SMALL, "--fanouts", "4,3", "--verify", "--json", file)
    assert status == 1
    assert "verify: FAILED: 4,3: " in printed.out and message in printed.out
    results = json.loads(file.read_text())
    assert not results["verify"]["passed"] and "runs" not in results


def test_other_draws_than_the_contract_are_found_by_the_oracle(graph_path, capsys, monkeypatch):
    monkeypatch.setattr(sampling, "our_sampler", other_draws(sampling.our_sampler))
    status, printed = run(capsys, "--graph", graph_path, *SMALL, "--fanouts", "4,3", "--verify")
    assert status == 1
    assert [line for line in printed.out.splitlines() if "FAILED" in line] == [
        "verify: FAILED: 4,3: a batch of 16 seeds differs from the oracle's"
    ]


# ---- turns and arithmetic ----


def test_peers_get_the_same_seeds_in_turns(graph_path, fake_dgl, monkeypatch):
    order, true_turn = [], sampling.take_turn

    def take_turn(contestant, seeds, first_step, into):
        order.append((contestant.name, [own.tolist() for own in seeds]))
        return true_turn(contestant, seeds, first_step, into)

    monkeypatch.setattr(sampling, "take_turn", take_turn)
    options = options_for(graph_path, baselines=("dgl", "dgl-unfused"), threads=(2,))
    graph = sampling.load_graph(options, lambda _: None)
    batches = sampling.draw_batches(graph, options)
    measured = sampling.measure(graph, batches, options, lambda _: None)[0]
    assert [name for name, _ in order] == [OURS, "dgl", "dgl-unfused"] * 6  # one warm-up, five turns of four batches
    for turn in range(0, len(order), 3):
        assert order[turn][1] == order[turn + 1][1] == order[turn + 2][1]
    assert [own for name, turn in order[3:] if name == OURS for own in turn] == [ids.tolist() for ids in batches.timed]
    calls = [entry for entry in fake_dgl if isinstance(entry, dict)]
    assert [entry["fused"] for entry in calls[:2]] == [True, False]
    assert all(entry["fanouts"] == (4, 3) and entry["seeds"].dtype == torch.int64 for entry in calls)
    assert {entry for entry in fake_dgl if isinstance(entry, int)} == {2}
    assert [entry["edges_per_batch"] for entry in measured["samplers"][2:]] == [140, 140]


def test_ratios_reach_the_table_and_the_file(graph_path, fake_dgl, tmp_path, capsys):
    file = tmp_path / "out.json"
    several = ("--fanouts", "4,3", "--fanouts", "5", "--baseline", "dgl", "--baseline", "dgl-unfused")
    status, printed = run(capsys, "--graph", graph_path, *SMALL, *several, "--json", file)
    assert status == 0, printed
    results = json.loads(file.read_text())
    for measured in results["runs"]:
        medians = {entry["sampler"]: entry["median"] for entry in measured["samplers"]}
        for entry in measured["samplers"]:
            peers = ("dgl", "dgl-unfused") if entry["sampler"] in (OURS, OURS_MANY) else ()
            assert entry["ratios"] == {peer: medians[entry["sampler"]] / medians[peer] for peer in peers}
            assert entry["of_limit"] is None
    assert results["conditions"]["peers"] == {"dgl": "0.0-fake"}
    assert "fastsample_dist / dgl with 1 thread(s): geometric mean" in printed.out


def test_summary_of_made_up_rates():
    timings = {
        OURS: Timings(rates=[10.0, 30.0, 20.0], num_edges=[1, 2, 3], busy_s=4.0, wall_s=2.0),
        OURS_MANY: Timings(rates=[40.0], num_edges=[2], busy_s=1.0, wall_s=1.0),
        "dgl": Timings(rates=[4.0, 5.0, 6.0], num_edges=[1, 1, 4], busy_s=1.0, wall_s=1.0),
    }
    ours, many, peer = sampling.summarize(timings, [50.0, 40.0, 10.0])
    assert (ours["median"], ours["edges_per_batch"], ours["cores_used"]) == (20.0, 2, 2.0)
    assert (ours["p10"], ours["p90"]) == pytest.approx((12.0, 28.0))
    assert (ours["ratios"], many["ratios"], peer["ratios"]) == ({"dgl": 4.0}, {"dgl": 8.0}, {})
    assert (ours["of_limit"], many["of_limit"], peer["of_limit"]) == (0.5, 1.0, 0.125)


def test_geometric_mean_and_lowest_by_threads():
    def ran(threads, ratio):
        samplers = [{"sampler": OURS, "ratios": {"dgl": ratio}}, {"sampler": "dgl", "ratios": {}}]
        return {"threads": threads, "samplers": samplers}

    runs = [ran(1, 2.0), ran(1, 8.0), ran(2, 5.0)]
    found = {entry["threads"]: entry for entry in sampling.ratio_summary(runs)}
    assert (found[1]["geometric_mean"], found[1]["lowest"]) == (pytest.approx(4.0), 2.0)
    assert (found[2]["geometric_mean"], found[2]["lowest"]) == (pytest.approx(5.0), 5.0)


def test_a_timing_counts_the_call_and_the_freeing_but_not_the_counting():
    class Slow:
        def __del__(self):
            clock[0] += 3.0

    clock = [0.0]

    def advance(seconds):
        clock[0] += seconds

    def count(_):
        advance(100.0)
        return 20

    timing = Timings()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sampling.time, "perf_counter", lambda: clock[0])
        timing.add(lambda: advance(2.0) or Slow(), count, batches=4)
    assert timing.rates == [20 / 5.0] and timing.num_edges == [5]


# ---- with the real peer ----


@pytest.mark.grid
def test_dgl_samples_beside_ours(graph_path, tmp_path, capsys):
    try:
        import dgl  # noqa: F401
    except (ImportError, OSError) as error:
        pytest.skip(f"dgl cannot be imported: {error}")
    file = tmp_path / "out.json"
    peers = ("--baseline", "dgl", "--baseline", "dgl-unfused", "--threads", "1,2")
    fanouts = ("--fanouts=-1,3", "--fanouts=6,4")
    status, printed = run(capsys, "--graph", graph_path, *SMALL, *fanouts, *peers, "--json", file)
    assert status == 0, printed
    for measured in json.loads(file.read_text())["runs"]:
        edges = [entry["edges_per_batch"] for entry in measured["samplers"]]
        assert edges[0] == edges[1]
        assert edges[2:] == pytest.approx([edges[0]] * 2, rel=0.05)  # other draws, so other rows behind them
