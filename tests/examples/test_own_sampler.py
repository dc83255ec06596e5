"""own_sampler.py runs as it stands, draws by its own law, and returns one batch per seed and step, wherever it runs."""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from examples.own_sampler import ImportanceHops, main, make_sampler
from fastsample_dist import CSCGraph, DistContext, DistData, DistLoader
from fastsample_dist.testing import Independent, check_sampler, conformance_graph, run_distributed
from tests.forked import run_python
from tests.parts import draw_partition
from tests.train.task import make_targets, make_task

ROOT = Path(__file__).resolve().parents[2]
FANOUTS = [3, 2]
GRAPH = conformance_graph()


def law_of(hops):
    return lambda edges, fanout: Independent(hops.probabilities(edges, fanout).tolist())


@pytest.mark.grid
def test_the_sampler_draws_by_its_own_law():
    sampler = make_sampler(GRAPH, FANOUTS, rng_seed=3)
    law = law_of(sampler.source)
    report = check_sampler(
        sampler.sample, GRAPH, fanouts=FANOUTS, edge_ids=True, trials=500, seeds=list(range(3, 16)), law=law
    )
    assert report.num_statistics > 50


def test_another_importance_is_found():
    """Probabilities of fanout + 1, held against those of fanout."""
    law = law_of(ImportanceHops(GRAPH, FANOUTS))
    sampler = make_sampler(GRAPH, [4, 2])
    with pytest.raises(AssertionError, match=r"times in 200 steps, expected .*; p-value"):
        check_sampler(sampler.sample, GRAPH, fanouts=FANOUTS, trials=200, seeds=[7, 8], law=law)


@pytest.mark.grid
def test_coefficients_make_the_weighted_sum_unbiased():
    """Of the sources' numbers, over 800 steps: within 5 standard deviations of the sum over all neighbours."""
    sampler, seeds = make_sampler(GRAPH, [3]), torch.tensor([5, 7, 8])
    sums = torch.zeros(800, 3, dtype=torch.float64)
    for step in range(len(sums)):
        mfg = sampler.sample(seeds, step).mfgs[0]
        message = mfg.edge_weights.double() * mfg.src_nodes[mfg.indices].double()
        sums[step].index_add_(0, mfg.edge_index()[1], message)
    rows = [GRAPH.indices[GRAPH.indptr[seed] : GRAPH.indptr[seed + 1]].double().sum() for seed in seeds]
    deviation = (sums.mean(0) - torch.stack(rows)).abs()
    assert bool((deviation < 5 * sums.std(0) / len(sums) ** 0.5).all())


def picks_of(data, mfg):
    """Per destination (original id) the original ids of what it picked, with their coefficients."""
    sources = data.orig_ids(mfg.src_nodes[mfg.indices]).tolist()
    edges = list(zip(sources, mfg.edge_weights.tolist(), strict=True))
    rows = [edges[first:end] for first, end in pairwise(mfg.indptr.tolist())]
    return dict(zip(data.orig_ids(mfg.dst_nodes).tolist(), rows, strict=True))


def sample_on_ranks(ctx, parts):
    """The picks of a rank's first batch."""
    data = DistData.load(parts, ctx)
    loader = DistLoader(data, sampler=make_sampler(data.graph, FANOUTS, rng_seed=5), batch_size=30, shuffle=False)
    return picks_of(data, next(iter(loader)).mfgs[-1])


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """One graph with edge weights as 1 and as 2 parts."""
    weights = np.random.default_rng(2).random(3000).astype(np.float32)
    directories = {count: tmp_path_factory.mktemp(f"parts-{count}") for count in (1, 2)}
    for count, directory in directories.items():
        draw_partition(directory, count, weights=weights)
    return {count: directory / "parts" for count, directory in directories.items()}


def test_picks_do_not_depend_on_the_partition(parts):
    with DistContext.from_env() as ctx:
        data = DistData.load(parts[1], ctx)
        id_of = {node: new for new, node in enumerate(data.orig_ids(torch.arange(240)).tolist())}
        sampler = make_sampler(data.graph, FANOUTS, rng_seed=5)
        for found in run_distributed(2, sample_on_ranks, args=(parts[2],)):
            batch = sampler.sample([id_of[node] for node in found])
            assert len(found) == 30 and picks_of(data, batch.mfgs[-1]) == found


def test_a_graph_without_weights_is_refused():
    with pytest.raises(ValueError, match="the graph has no edge weights; partition an input with edge_weight.npy"):
        ImportanceHops(CSCGraph(GRAPH.indptr, GRAPH.indices), FANOUTS)


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda folder: make_task(folder, 1, dtype="float32").path, "the graph has no edge weights; partition an"),
        (lambda folder: make_targets(folder, 1, "multilabel"), "has labels for multilabel; expected data.task"),
    ],
    ids=["no weights", "no classes"],
)
def test_parts_that_it_cannot_train_on_are_one_line(tmp_path, capsys, make, found):
    with pytest.raises(SystemExit) as ended:
        main(str(make(tmp_path)))
    assert ended.value.code == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and found in line


def test_the_example_runs_and_learns(parts):
    done = run_python(ROOT / "examples" / "own_sampler.py", parts[1])
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)\n", done.stdout)]
    assert len(losses) == 3 and losses[-1] < losses[0]
