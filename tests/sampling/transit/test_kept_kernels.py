"""Compiled applications that a later process takes from the user's cache directory."""

import json

import pytest

from tests.forked import run_code

pytest.importorskip("numba")

RUN = """
import json, sys, torch
from fastsample_dist.sampling.transit import binding, numba_kernels
from tests.sampling.transit import test_compile_cpu as apps

compiled, make = [], numba_kernels.next_kernel
numba_kernels.next_kernel = lambda *given: compiled.append(1) or make(*given)

class Printing(apps.Own):
    def next(s, transits, edges, step, draw, par):
        print(step)
        return transits[0]

OWN = {"failing": apps.Failing, "printing": Printing}
outcomes = []
for name in sys.argv[1:]:
    if name in OWN:
        bound = binding.bind(OWN[name](), apps.large_graph(torch.int32))
        roots, ids = torch.full((20, 1), 8), torch.arange(20)
    else:
        bound, roots, ids = apps.case(name, torch.int32)
    try:
        made = apps.StepDriver(bound, apps.compile_app(bound)).run(roots, ids, apps.KEY)
        steps = apps.plain.run(bound, roots, ids, apps.KEY).steps
        outcomes.append([step.tolist() for step in made] == [step.tolist() for step in steps])
    except apps.RaisedError as error:
        outcomes.append(error.args)
print(json.dumps([len(compiled), *outcomes]))
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the code in a process of its own, whose cache directory is the test's: what was compiled, the outcomes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def call(*names):
        finished = run_code(RUN, *names)
        assert finished.returncode == 0, finished.stderr
        return json.loads(finished.stdout.splitlines()[-1])

    return call


def test_a_later_process_compiles_nothing_and_does_the_same(run):
    outcomes = [True, [1, 17 * 4 + 3]]  # the picks of plain Python; the exception's step and slot
    assert run("distinct", "failing") == [2, *outcomes]
    assert run("failing", "distinct") == [0, *reversed(outcomes)]


def test_applications_that_processes_of_their_own_have_compiled_are_told_apart(run):
    """Numba counts the functions of a process, and names them by that."""
    assert run("distinct") == [1, True]
    assert run("failing") == [1, [1, 17 * 4 + 3]]
    assert run("distinct", "failing") == [0, True, [1, 17 * 4 + 3]]


def test_what_needs_its_own_process_is_compiled_by_each(run):
    """Code that prints refers to objects of the process."""
    assert run("printing") == run("printing") == [1, True]


def test_what_was_compiled_for_another_processor_is_not_taken(run, monkeypatch):
    assert run("distinct") == [1, True]
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    monkeypatch.setenv("NUMBA_CPU_FEATURES", "")
    assert run("distinct") == [1, True]
    assert run("distinct") == [0, True]
