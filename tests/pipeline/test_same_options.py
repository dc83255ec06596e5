"""An option or an epoch of a loader that differs on one rank is refused on all, by name, before a collective depends on
it.
"""

import numpy as np
import pytest
import torch

from fastsample_dist import DistData, DistLoader, FeatureCache, SubgraphLoader, SubgraphSpec
from fastsample_dist.testing import run_distributed
from tests.parts import draw_partition

LIBRARIES = {  # numbers that are not Python's
    "batch_size": {"NumPy": (np.int64(20), np.int64(40)), "torch": (torch.tensor(20), torch.tensor(40))},
    "rng_seed": {"NumPy": (np.int32(0), np.int32(1)), "torch": (torch.tensor(0), torch.tensor(1))},
    "replace": {"NumPy": (np.bool_(False), np.bool_(True)), "torch": (torch.tensor(False), torch.tensor(True))},
}
USUAL = {"fanouts": [3, 2], "batch_size": 20}
OTHERS = {
    "fanouts": [3, 1],
    "batch_size": 40,
    "split": "val",
    "scheme": "vanilla",
    "rng_seed": 1,
    "prefetch": 2,
    "shuffle": False,
    "feature_dtype": torch.bfloat16,
    "method": "labor",
    "replace": True,
    "layer_dependency": True,
    "cache": FeatureCache(1000, "degree"),
}
SHOWN = {
    "fanouts": "(3, 1)",
    "feature_dtype": "'torch.bfloat16'",
    "cache": "'capacity_bytes 1000, policy degree, presample_epochs 2, lookahead 0'",
}


def construct(ctx, path):
    """What DistLoader says when rank 1 alone has another value, by option."""
    data, said = DistData.load(path, ctx), {}
    for name, value in OTHERS.items():
        usual = {**USUAL, "method": "labor"} if name == "layer_dependency" else USUAL  # no other method has it
        options = {**usual, name: value} if ctx.rank == 1 else usual
        try:
            DistLoader(data, **options)
        except ValueError as error:
            said[name] = str(error)
    for name, by_library in LIBRARIES.items():
        for library, values in by_library.items():
            said[name, library] = refused(data, {**USUAL, name: values[ctx.rank]})
    said["too few"] = refused(data, {**USUAL, "batch_size": 0} if ctx.rank == 1 else USUAL)
    device_is_own = {**USUAL, "device": "cpu"} if ctx.rank == 1 else USUAL
    return said, len(list(DistLoader(data, **device_is_own)))


def refused(data, options):
    try:
        DistLoader(data, **options)
    except ValueError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """By rank: (what was said, steps of a loader whose options agree)."""
    return run_distributed(2, construct, args=(draw_partition(tmp_path_factory.mktemp("drawn"), 2).path,))


@pytest.mark.parametrize("name", OTHERS)
def test_an_option_of_one_rank_is_refused_on_all(said, name):
    (first, _), (second, _) = said
    assert first[name] == second[name]
    value = SHOWN.get(name, repr(OTHERS[name]))
    assert first[name].startswith(f"DistLoader: ranks differ in {name}: ")
    assert first[name].endswith(f" on rank 0; {value} on rank 1; start all ranks with the same options.")


@pytest.mark.parametrize("library", ["NumPy", "torch"])
@pytest.mark.parametrize("name", LIBRARIES)
def test_numbers_of_a_library_are_compared_as_pythons(said, name, library):
    (first, _), (second, _) = said
    usual, other = (value.item() for value in LIBRARIES[name][library])
    expected = (
        f"DistLoader: ranks differ in {name}: {usual} on rank 0; {other} on rank 1; start all ranks with the same"
    )
    assert first[name, library] == second[name, library] == f"{expected} options."


def test_what_one_rank_refuses_is_refused_on_all(said):
    assert {texts["too few"] for texts, _ in said} == {"batch_size is 0; expected an integer >= 1."}


def test_ranks_that_were_refused_can_still_make_a_loader(said):
    (_, steps), (_, others) = said
    assert steps == others > 0


def other_epochs(ctx, path):
    """What is said of epochs that rank 1 alone chooses, by loader, and of one that it alone begins."""
    data, said = DistData.load(path, ctx), []
    for make in (lambda: DistLoader(data, **USUAL), lambda: SubgraphLoader(data, SubgraphSpec("node", 20))):
        loader = make()
        loader.set_epoch(ctx.rank)
        with pytest.raises(ValueError) as refused:
            next(iter(loader))
        said.append((len(loader), str(refused.value)))
    begin = [lambda: DistLoader(data, **USUAL), lambda: next(iter(loader))][ctx.rank]
    with pytest.raises(ValueError) as refused:
        begin()
    return said, str(refused.value)


def test_an_epoch_of_one_rank_is_refused_on_all(tmp_path):
    """They would train to the end without a word: rank 1 on batches of another epoch, or with rank 0 a batch behind."""
    first, second = run_distributed(2, other_epochs, args=(draw_partition(tmp_path, 2).path,))
    assert first == second
    for kind, (steps, said) in zip(("DistLoader", "SubgraphLoader"), first[0], strict=True):
        differing = f"epoch: 0 on rank 0; 1 on rank 1; in first step: 0 on rank 0; {steps} on rank 1"
        remedy = "make the same calls, with the same arguments, on all ranks."
        assert said == f"an epoch of {kind}: ranks differ in {differing}; {remedy}"
    calls = "a check of the input on rank 0; an epoch of SubgraphLoader on rank 1"
    assert first[1].startswith(f"the ranks make different calls: {calls}; ")
