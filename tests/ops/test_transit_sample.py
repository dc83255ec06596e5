"""transit_sample against its definition (tests/ops/transit_oracle.py), bit for bit: every instruction set, schedule,
number of threads and size of blocks, for the built-in applications and for callbacks.
"""

import itertools

import numpy as np
import pytest
import torch

from fastsample_dist.ops import transit_layouts as layouts
from fastsample_dist.ops.transit_layouts import NextKind
from fastsample_dist.ops.transit_sample import IndividualApp, TransitRequest, transit_sample
from fastsample_dist.ops.transit_tables import TableNeeds, TransitTables
from tests.grids import grid
from tests.ops import transit_oracle as oracle
from tests.ops.graphs import random_csc
from tests.ops.transit_oracle import NULL, PlainApp

ISAS = ("scalar", "baseline", "avx2", "avx512")
SCHEDULES = ("auto", "sample", "transit", "transit_flat")
THREADS = (1, 2, 5)
BLOCKS = (0, 1, 7, 4096)
SEED, STEP = 2**60 + 5, 2**40 + 3
NUM_NODES, NUM_SAMPLES = 60, 90
LENGTH = 6
SURVIVAL = np.array([int(0.8**k * 2**63) for k in range(1, 60)], dtype=np.int64)  # stop 0.2


def graph_of(id_dtype, weight_dtype):
    """A multigraph with self-loops, parallel edges, empty rows and weights of zero: of a row, and among the others.

    Node 3 has 700 neighbours.
    """
    graph = random_csc(NUM_NODES, 500)
    generator = torch.Generator().manual_seed(9)
    rows = [graph.indices[lo:hi].tolist() for lo, hi in itertools.pairwise(graph.indptr.tolist())]
    rows[3] = torch.randint(0, NUM_NODES, (700,), generator=generator).tolist()
    indptr = torch.tensor([0, *itertools.accumulate(map(len, rows))])
    indices = torch.tensor([node for row in rows for node in row]).to(id_dtype)
    weights = torch.rand(indices.numel(), generator=generator, dtype=torch.float64)
    weights[torch.rand(indices.numel(), generator=generator) < 0.2] = 0
    weights[indptr[5] : indptr[6]] = 0
    return indptr, indices, weights.to(weight_dtype)


GRAPHS = {"int32": graph_of(torch.int32, torch.float32), "int64": graph_of(torch.int64, torch.float64)}
ROWS = {name: oracle.Rows.of(*graph) for name, graph in GRAPHS.items()}
TABLES = {
    (name, weighted): TransitTables(*graph, needs=TableNeeds(weighted=weighted), num_threads=1)
    for name, graph in GRAPHS.items()
    for weighted in (False, True)
}


def roots_of(num_roots):
    """Roots with and without neighbours, repeated ones, and places without a root."""
    generator = torch.Generator().manual_seed(num_roots)
    roots = torch.randint(0, NUM_NODES, (NUM_SAMPLES, num_roots), generator=generator)
    roots[torch.rand(roots.shape, generator=generator) < 0.1] = NULL
    roots[1] = roots[0]
    return roots


SAMPLE_IDS = torch.randperm(NUM_SAMPLES, generator=torch.Generator().manual_seed(1)) * (2**33 + 7)


def walk(kind, next, **others):
    return PlainApp(IndividualApp([1] * LENGTH, [1] * LENGTH, 1, kind, **others), next)


def ppr(pick, max_steps=61, survival=SURVIVAL):
    words = np.array([survival.ctypes.data, survival.size])
    core = IndividualApp([1] * max_steps, [1] * max_steps, 1, NextKind.PPR, words, state_words=1, until_done=True)
    return PlainApp(core, oracle.until_length(pick), initial=oracle.ppr_length(survival.tolist()))


def multi_rw(by_degree):
    core = IndividualApp([1] * LENGTH, [1] * LENGTH, 4, NextKind.MULTI_RW, np.array([int(by_degree)]), state_words=5)
    transits = oracle.multi_rw_by_degree(ROWS["int32"]) if by_degree else oracle.multi_rw_transits
    return PlainApp(core, oracle.multi_rw_next, transits, oracle.multi_rw_initial)


def hops(sizes, kind=NextKind.UNIFORM, next=oracle.uniform, num_roots=2, **others):
    """Neighbourhoods: every pick is a transit of the next step."""
    widths = list(itertools.accumulate(sizes, lambda width, size: width * max(size, 0), initial=num_roots))
    return PlainApp(IndividualApp(list(sizes), widths[:-1], num_roots, kind, **others), next)


def second_order(s, transit, rows, draw):
    """Looks back, draws twice, and now and then returns nothing."""
    row, back = rows.ids[transit], s.before(2)
    if not row or draw.below(7) == 0:
        return NULL
    node = row[draw.below(len(row))]
    return node if node not in back or draw.word() % 2 else row[draw.below(len(row))]


def shrinking(s, transit, rows, draw):
    """Ends sooner or later, and not for all transits at once."""
    return NULL if draw.below(3) == 0 else oracle.uniform(s, transit, rows, draw)


def counting(s, transit, rows, draw):
    """Counts its picks in its state, and ends at a count that its start has drawn."""
    s.state[1] += 1
    return NULL if s.state[1] > s.state[0] else oracle.uniform(s, transit, rows, draw)


def draw_count(s, draw):
    s.state[0] = draw.below(9)


def some_root(s, index, draw):
    """A root, or a vertex of the step before, or none."""
    choice = draw.below(len(s.roots) + 1)
    return s.roots[choice] if choice < len(s.roots) else s.before(1)[0] if s.before(1) else NULL


def some_of_all(s, transit, rows, draw):
    row = rows.ids[transit]
    return row[draw.turn % len(row)] if row and draw.below(3) else NULL


BUILT_IN = {
    "uniform": walk(NextKind.UNIFORM, oracle.uniform),
    "weighted": walk(NextKind.WEIGHTED, oracle.weighted),
    "ppr": ppr(oracle.uniform),
    "ppr by weight": ppr(oracle.weighted),
    "multi_rw": multi_rw(False),
    "multi_rw by degree": multi_rw(True),
    "hops": hops((3, 2)),
    "hops by weight": hops((4, 3), NextKind.WEIGHTED, oracle.weighted),
    "one hop of many": hops((70,)),
    "distinct hops": hops((5, 2), unique=[True, True], max_attempts=64),
    "few attempts by weight": hops((9, 3), NextKind.WEIGHTED, oracle.weighted, unique=[True, False], max_attempts=2),
    "all neighbours": hops((oracle.ALL,), NextKind.ALL, oracle.every, num_roots=3),
    "hops of no picks": hops((2, 0, 3)),
    "no picks": hops((0,)),
    "no steps": hops(()),
    "no roots": hops((2, 2), num_roots=0),
}
CALLBACKS = {
    "second order": hops((2, 2, 1), NextKind.CALLBACK, second_order),
    "distinct": hops((4, 3), NextKind.CALLBACK, second_order, unique=[True, True], max_attempts=3),
    "until done": hops((1,) * 200, NextKind.CALLBACK, shrinking, until_done=True),
    "two until done": hops((2, *(1,) * 200), NextKind.CALLBACK, shrinking, until_done=True),
    "counting": PlainApp(
        IndividualApp([1] * 20, [1] * 20, 1, state_words=2, until_done=True), counting, initial=draw_count
    ),
    "own transits": PlainApp(IndividualApp([2] * 4, [3] * 4, 2), second_order, some_root),
    "own transits until done": PlainApp(IndividualApp([1] * 300, [1] * 300, 2, until_done=True), shrinking, some_root),
    "some of all": hops((2, oracle.ALL), NextKind.CALLBACK, some_of_all),
    "own transits, all": PlainApp(IndividualApp([1, oracle.ALL], [2, 2], 2), some_of_all, some_root),
}


def expected(name, app):
    """Vertices of every sample, and the number of steps."""
    definition = oracle.Definition(ROWS[name], app, SEED, STEP)
    roots = roots_of(app.core.num_roots).tolist()
    grown = [definition.grow(own, sample_id) for own, sample_id in zip(roots, SAMPLE_IDS.tolist(), strict=True)]
    num_steps = len(app.core.sample_sizes)
    if app.core.until_done:
        num_steps = max(len(sample.steps) for sample in grown)
    return [oracle.vertices(sample, app.core.until_done) for sample in grown], num_steps


_expected = {}


def check(name, weighted, label, app, core, request):
    if (name, label) not in _expected:
        _expected[name, label] = expected(name, app)
    found = transit_sample(TABLES[name, weighted], core, roots_of(core.num_roots), SAMPLE_IDS, request)
    vertices, num_steps = _expected[name, label]
    assert found.num_steps == num_steps
    if found.offsets is None:
        assert found.vertices.tolist() == vertices
    else:
        bounds = itertools.pairwise(found.offsets.tolist())
        assert [found.vertices[lo:hi].tolist() for lo, hi in bounds] == vertices


CASES = list(itertools.product(BUILT_IN, GRAPHS, ISAS, SCHEDULES, THREADS, BLOCKS))


@pytest.mark.parametrize("case", grid(CASES, gate=CASES[::13]), ids=str)
def test_built_in_applications_are_their_definition(case, use_isa):
    label, name, isa, schedule, threads, block = case
    use_isa(isa)
    app = BUILT_IN[label]
    request = TransitRequest(SEED, STEP, threads, schedule, block)
    check(name, "weight" in label, label, app, app.core, request)


CALLBACK_CASES = list(itertools.product({**CALLBACKS, **BUILT_IN}, SCHEDULES, THREADS, BLOCKS))


@pytest.mark.parametrize("case", grid(CALLBACK_CASES, gate=CALLBACK_CASES[::61]), ids=str)
def test_callbacks_are_their_definition(case):
    label, schedule, threads, block = case
    app = {**CALLBACKS, **BUILT_IN}[label]
    core = oracle.kernels(app, ROWS["int32"])
    check("int32", False, label, app, core, TransitRequest(SEED, STEP, threads, schedule, block))


LONG_SURVIVAL = np.array([int(0.99**k * 2**63) for k in range(1, 4000)], dtype=np.int64)
LONG_WALKS = {
    "uniform": IndividualApp([1] * 200, [1] * 200, 1, NextKind.UNIFORM),
    "weighted": IndividualApp([1] * 200, [1] * 200, 1, NextKind.WEIGHTED),
    "ppr": ppr(oracle.uniform, 4000, LONG_SURVIVAL).core,
}


def sparse_tables(id_dtype, empty_share, weighted):
    """Of 2000 nodes of 3 neighbours; a share of them has none, so that walks end one after the other."""
    generator = torch.Generator().manual_seed(3)
    degrees = torch.where(torch.rand(2000, generator=generator) < empty_share, 0, 3)
    indptr = torch.tensor([0, *itertools.accumulate(degrees.tolist())])
    indices = torch.randint(0, 2000, (int(indptr[-1]),), generator=generator).to(id_dtype)
    weights = torch.rand(indices.numel(), generator=generator)
    return TransitTables(indptr, indices, weights, needs=TableNeeds(weighted=weighted), num_threads=1)


@pytest.mark.parametrize("isa", ISAS[1:])
@pytest.mark.parametrize("empty_share", [0.0, 0.02])
@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("label", LONG_WALKS)
def test_walks_in_lock_step_are_those_of_the_step_by_step_engine(label, id_dtype, empty_share, isa, use_isa):
    """More walks than go together, longer ones than are written or counted at once, and ends in every step."""
    use_isa(isa)
    tables, roots = sparse_tables(id_dtype, empty_share, label == "weighted"), torch.arange(-1, 1500)[:, None]

    def sampled(schedule, threads, block):
        request = TransitRequest(SEED, STEP, threads, schedule, block)
        return transit_sample(tables, LONG_WALKS[label], roots, None, request)

    expected = sampled("transit", 1, 0)
    for threads, block in ((1, 0), (3, 0), (2, 7), (1, 700)):
        found = sampled("sample", threads, block)
        assert found.num_steps == expected.num_steps
        assert torch.equal(found.vertices, expected.vertices)
        assert found.offsets is None if label != "ppr" else torch.equal(found.offsets, expected.offsets)


def test_ids_of_samples_are_positions_unless_given():
    app, tables, roots = BUILT_IN["hops"].core, TABLES["int32", False], roots_of(2)
    without = transit_sample(tables, app, roots, None, TransitRequest(SEED))
    given = transit_sample(tables, app, roots, torch.arange(NUM_SAMPLES), TransitRequest(SEED))
    assert torch.equal(without.vertices, given.vertices)


@pytest.mark.parametrize("label", [*BUILT_IN])
def test_samples_split_between_calls_are_the_same(label):
    app = BUILT_IN[label]
    tables, roots = TABLES["int32", "weight" in label], roots_of(app.core.num_roots)

    def rows(part):
        found = transit_sample(tables, app.core, roots[part], SAMPLE_IDS[part], TransitRequest(SEED))
        if found.offsets is None:
            return found.vertices.tolist()
        return [found.vertices[lo:hi].tolist() for lo, hi in itertools.pairwise(found.offsets.tolist())]

    assert rows(slice(None)) == rows(slice(0, 31)) + rows(slice(31, 31)) + rows(slice(31, None))


@pytest.mark.parametrize("label", [*BUILT_IN, *CALLBACKS])
def test_no_samples_give_none(label):
    app = {**BUILT_IN, **CALLBACKS}[label]
    core = oracle.kernels(app, ROWS["int32"]) if label in CALLBACKS else app.core
    roots = torch.empty(0, core.num_roots, dtype=torch.int64)
    found = transit_sample(TABLES["int32", True], core, roots, None, TransitRequest())
    assert found.vertices.numel() == 0
    assert found.offsets is None or found.offsets.tolist() == [0]


@pytest.mark.parametrize("weighted", grid([False, True], gate=[True]))
@pytest.mark.parametrize("isa", ISAS)
def test_a_row_of_2_to_the_24_edges(isa, weighted, use_isa):
    """One draw in 256 is in doubt by Lemire's rule."""
    use_isa(isa)
    degree, length = 3 * 2**23, 40
    indptr = torch.tensor([0, degree, degree + 1, degree + 2])
    indices = torch.zeros(degree + 2, dtype=torch.int32)
    indices[:degree:2], indices[1:degree:3] = 1, 2
    weights = torch.ones(degree + 2)
    tables = TransitTables(indptr, indices, weights, TableNeeds(weighted=weighted))
    kind = NextKind.WEIGHTED if weighted else NextKind.UNIFORM
    app, roots = IndividualApp([1] * length, [1] * length, 1, kind), torch.zeros(500, 1, dtype=torch.int64)
    found = transit_sample(tables, app, roots, None, TransitRequest(SEED, num_threads=2)).vertices
    for sample, own in enumerate(found[:: 1 if isa == "scalar" else 50].tolist()):
        sample_id = sample * (1 if isa == "scalar" else 50)
        for step, (before, after) in enumerate(itertools.pairwise(own)):
            draw = oracle.Draw(oracle.reference.stage_key(SEED, oracle.NEXT, step, 0), sample_id, 0)
            begin, end = int(indptr[before]), int(indptr[before + 1])
            assert after == int(indices[begin + draw.below(end - begin)])
    use_isa("scalar")
    assert torch.equal(found, transit_sample(tables, app, roots, None, TransitRequest(SEED)).vertices)


# ---- what applications do wrong ----


def raising(s, transit, rows, draw):
    """Raises where a draw says so."""
    if draw.below(150) == 0:
        raise ZeroDivisionError
    return oracle.uniform(s, transit, rows, draw)


def straying(s, transit, rows, draw):
    return NUM_NODES + 39 if draw.below(150) == 0 else oracle.uniform(s, transit, rows, draw)


def straying_transits(s, index, draw):
    return -7 if draw.below(100) == 0 else s.before(1)[0]


def raising_start(s, draw):
    if draw.below(30) == 0:
        raise ZeroDivisionError


def first_failure(app):
    """(step, position) of the first failure by definition."""
    definition, found = oracle.Definition(ROWS["int32"], app, SEED, STEP), []
    for position, (own, sample_id) in enumerate(
        zip(roots_of(app.core.num_roots).tolist(), SAMPLE_IDS.tolist(), strict=True)
    ):
        s = oracle.SampleSoFar(sample_id, own, [], [])
        try:
            if app.initial is not None:
                app.initial(s, oracle.Draw(definition.key(oracle.INITIAL, 0), sample_id, 0))
            for step, size in enumerate(app.core.sample_sizes):
                s.step = step
                transits = definition.transits(s)
                assert all(NULL <= transit < NUM_NODES for transit in transits)
                s.steps.append(definition.picks(s, transits, size))
                assert all(NULL <= node < NUM_NODES for node in s.steps[-1])
        except (ZeroDivisionError, AssertionError):
            found.append((s.step, position))
    return min(found)


FAILING = {
    "next raises": hops((2, 2, 2), NextKind.CALLBACK, raising),
    "next raises in distinct picks": hops((3, 2), NextKind.CALLBACK, raising, unique=[True, True]),
    "next strays": hops((2, 2, 2), NextKind.CALLBACK, straying),
    "next strays among all": hops((1, oracle.ALL), NextKind.CALLBACK, straying),
    "step_transits strays": PlainApp(IndividualApp([1] * 9, [1] * 9, 1), oracle.uniform, straying_transits),
    "initial raises": PlainApp(IndividualApp([1], [1], 1), oracle.uniform, initial=raising_start),
}


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("threads", grid(THREADS, gate=[THREADS[-1]]))
@pytest.mark.parametrize("schedule", ["sample", "transit"])
@pytest.mark.parametrize("label", FAILING)
def test_the_first_failure_by_step_and_sample_is_reported(label, schedule, threads, block):
    app = FAILING[label]
    step, position = first_failure(app)
    core = oracle.kernels(app, ROWS["int32"])
    with pytest.raises(layouts.AppFailedError) as failed:
        transit_sample(
            TABLES["int32", False], core, roots_of(core.num_roots), SAMPLE_IDS,
            TransitRequest(SEED, STEP, threads, schedule, block),
        )  # fmt: skip
    found, sample_id = failed.value, int(SAMPLE_IDS[position])
    assert (found.step, found.sample, found.sample_id) == (step, position, sample_id)
    function = label.split()[0]
    assert found.function.name.lower() == function
    if "raises" in label:
        assert str(found) == f"{function} raised in sample {sample_id} at step {step}"
        assert found.fault == layouts.AppFault.RAISED
    else:
        node = -7 if function == "step_transits" else NUM_NODES + 39
        assert found.node == node
        assert str(found) == (
            f"{function} returned node {node} for sample {sample_id} at step {step}; expected 0 to {NUM_NODES - 1} or "
            "transit.NULL (-1)"
        )


@pytest.mark.parametrize("schedule", ["sample", "transit"])
@pytest.mark.parametrize("label", ["ppr", "callback"])
def test_an_application_that_does_not_end_is_reported(label, schedule):
    app = (
        ppr(oracle.uniform, 3) if label == "ppr" else hops((1,) * 3, NextKind.CALLBACK, oracle.uniform, until_done=True)
    )
    core = app.core if label == "ppr" else oracle.kernels(app, ROWS["int32"])
    definition, endless = oracle.Definition(ROWS["int32"], app, SEED, STEP), []
    for position, own in enumerate(roots_of(core.num_roots).tolist()):
        try:
            definition.grow(own, int(SAMPLE_IDS[position]))
        except RuntimeError:
            endless.append(position)
    with pytest.raises(
        layouts.AppFailedError, match="has not ended after 3 steps; return transit.NULL in the end"
    ) as failed:
        transit_sample(
            TABLES["int32", False],
            core,
            roots_of(core.num_roots),
            SAMPLE_IDS,
            TransitRequest(SEED, STEP, 2, schedule, 8),
        )
    assert (failed.value.sample, failed.value.fault) == (endless[0], layouts.AppFault.NEVER_ENDS)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("schedule", ["sample", "transit"])
@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64])
def test_a_graph_that_holds_what_is_no_node_is_reported(id_dtype, schedule, isa, use_isa):
    use_isa(isa)
    indptr, indices, _ = GRAPHS["int32"]
    bad = indices.to(id_dtype)
    bad[indptr[3] : indptr[4]] = NUM_NODES
    app, roots = BUILT_IN["uniform"].core, torch.tensor([[8], [3], [9]])
    with pytest.raises(layouts.AppFailedError, match=r"next returned node 60 for sample 1 at step 0; expected 0 to 59"):
        transit_sample(TransitTables(indptr, bad), app, roots, None, TransitRequest(schedule=schedule))


# ---- refusals ----


ONE, TWO = torch.tensor([[0]]), torch.tensor([[0, 0]])
WALK = BUILT_IN["uniform"].core
BY_WEIGHT, LAYER = (IndividualApp([1], [1], 1, kind) for kind in (NextKind.WEIGHTED, NextKind.LAYER))


def steps_of(sizes, transits, num_roots=1, **others):
    return IndividualApp(sizes, transits, num_roots, NextKind.UNIFORM, **others)


@pytest.mark.parametrize(
    ("app", "roots", "line"),
    [
        (WALK, torch.tensor([[60]]), "root 60 of sample 0; expected 0 to 59, or -1 for none"),
        (WALK, torch.tensor([[0], [-2]]), "root -2 of sample 1"),
        (WALK, TWO, "roots has 2 columns; expected 1"),
        (LAYER, ONE, "no step kernel of kind 6"),
        (BY_WEIGHT, ONE, "picks by weight without walk slots"),
        (steps_of([1, 1], [1, 2]), ONE, "step 1 has 2 transits; expected 1"),
        (steps_of([2], [1], state_words=1), ONE, "2 picks per sample with state"),
        (steps_of([-1, 1], [1, 0]), ONE, "step 0 has a sample size of -1"),
        (steps_of([-2], [1]), ONE, "sample size of -2; expected -1 or more"),
        (steps_of([2**31], [2], 2), TWO, "expected fewer than 4294967296"),
        (steps_of([1], [1, 1]), ONE, "num_transits has 2 entries; expected one per step, 1"),
    ],
)
def test_what_does_not_fit_is_refused(app, roots, line):
    with pytest.raises(ValueError, match=line):
        transit_sample(TABLES["int32", False], app, roots, None, TransitRequest())


def test_negative_ids_and_unknown_schedules_are_refused():
    app, roots = BUILT_IN["uniform"].core, torch.tensor([[0], [1]])
    with pytest.raises(ValueError, match="sample id -4 at position 1 is negative"):
        transit_sample(TABLES["int32", False], app, roots, torch.tensor([0, -4]), TransitRequest())
    with pytest.raises(ValueError, match="schedule is 'fast'; expected one of auto, sample, transit, transit_flat"):
        TransitRequest(schedule="fast")
