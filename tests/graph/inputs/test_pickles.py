"""Nothing in a file runs: what it asks for beyond tensors and plain values is refused by name."""

import enum
import os
import pickle
import sys
import threading

import numpy as np
import pytest
import torch

from fastsample_dist.graph.inputs import ReadOptions, Scratch
from fastsample_dist.graph.inputs.pickles import as_array, load_saved, stand_in
from fastsample_dist.graph.inputs.pyg_saved import read_pyg
from tests.graph.inputs.layouts import PygPickles


class Command:
    """A pickle of it runs a command where it is trusted."""

    def __init__(self, *call: object) -> None:
        self.call = call

    def __reduce__(self) -> tuple:
        return self.call[0], self.call[1:]


def refusal(file, *stand_ins) -> str:
    with pytest.raises(ValueError) as caught:
        load_saved(file, stand_ins)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_command_does_not_run(tmp_path, zipped):
    mark = tmp_path / "ran"
    bad = {"x": torch.ones(2), "y": Command(os.system, f"touch {mark}")}
    torch.save(bad, tmp_path / "bad.pt", _use_new_zipfile_serialization=zipped)
    assert "bad.pt asks for posix.system, which safe loading does not run" in refusal(tmp_path / "bad.pt")
    assert not mark.exists()


def test_the_command_would_run_if_it_were_trusted(tmp_path):
    torch.save(Command(os.system, f"touch {tmp_path / 'ran'}"), tmp_path / "bad.pt")
    torch.load(tmp_path / "bad.pt", weights_only=False)
    assert (tmp_path / "ran").exists()


def test_a_command_inside_a_data_object_does_not_run(tmp_path):
    with PygPickles() as pyg:
        torch.save(pyg.data({"x": Command(os.system, f"touch {tmp_path / 'ran'}")}), tmp_path / "bad.pt")
    with pytest.raises(ValueError, match=r"bad\.pt asks for posix\.system, which safe loading does not run"):
        read_pyg(tmp_path / "bad.pt", ReadOptions())
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("call", [(eval, "1"), (exec, "1"), (getattr, 1, "real"), (__import__, "os")])
def test_builtins_are_refused(tmp_path, call):
    torch.save(Command(*call), tmp_path / "bad.pt")
    assert f"asks for {call[0].__name__}, which" in refusal(tmp_path / "bad.pt").replace("builtins.", "")


def test_what_the_user_allows_elsewhere_does_not_count_here(tmp_path):
    torch.save(Command(os.path.join, "a", "b"), tmp_path / "bad.pt")
    before = torch.serialization.get_safe_globals()
    torch.serialization.add_safe_globals([os.path.join])
    try:
        assert "asks for posixpath.join" in refusal(tmp_path / "bad.pt")
        assert os.path.join in torch.serialization.get_safe_globals()
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def test_allowed_names_are_put_back(tmp_path):
    before = set(torch.serialization.get_safe_globals())
    torch.save({"x": torch.ones(2)}, tmp_path / "t.pt")
    load_saved(tmp_path / "t.pt")
    assert set(torch.serialization.get_safe_globals()) == before


def test_a_stand_in_keeps_the_state_and_imports_nothing(tmp_path):
    with PygPickles() as pyg:
        torch.save(pyg.made("Data", a=1, t=torch.arange(3)), tmp_path / "t.pt")
    before = set(sys.modules)
    loaded = load_saved(tmp_path / "t.pt", [stand_in("torch_geometric.data.data.Data")])
    assert loaded.state["a"] == 1 and loaded.state["t"].tolist() == [0, 1, 2]
    assert not [name for name in set(sys.modules) - before if name.startswith("torch_geometric")]


class Layout(enum.Enum):
    COO = "coo"

    def __reduce_ex__(self, protocol: int) -> tuple:  # as that of Python 3.11.0 to 3.11.3
        return getattr, (Layout, "COO")


def test_members_of_enumerations_are_taken_as_python_3_11_2_writes_them(tmp_path):
    torch.save({"layout": Layout.COO}, tmp_path / "t.pt")
    assert load_saved(tmp_path / "t.pt", [stand_in(f"{__name__}.Layout")])["layout"].args == ("COO",)
    assert f"asks for {__name__}.Layout, which" in refusal(tmp_path / "t.pt")


ARRAYS = {
    "int64": np.arange(5),
    "big-endian": np.arange(5, dtype=">i4"),
    "matrix": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "bool": np.array([True, False]),
    "empty": np.empty(0, dtype=np.int64),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_numpy_arrays_come_back(tmp_path, name):
    torch.save({"train": {"paper": ARRAYS[name]}}, tmp_path / "t.pt")
    loaded = load_saved(tmp_path / "t.pt")["train"]["paper"]
    assert np.array_equal(loaded, ARRAYS[name]) and loaded.dtype == ARRAYS[name].dtype


def test_arrays_of_objects_are_refused(tmp_path):
    torch.save({"a": np.array([{}], dtype=object)}, tmp_path / "t.pt")
    assert "expected numbers" in refusal(tmp_path / "t.pt")


@pytest.mark.parametrize("content", [b"", b"junk" * 40, pickle.dumps({"x": 1})])
def test_what_torch_did_not_write_is_refused(tmp_path, content):
    (tmp_path / "t.pt").write_bytes(content)
    assert str(tmp_path / "t.pt") in refusal(tmp_path / "t.pt")


def test_a_truncated_file_is_refused(tmp_path):
    torch.save({"x": torch.ones(1000)}, tmp_path / "t.pt")
    (tmp_path / "t.pt").write_bytes((tmp_path / "t.pt").read_bytes()[:2000])
    assert "t.pt" in refusal(tmp_path / "t.pt")


def test_a_missing_file_is_refused(tmp_path):
    assert "t.pt is missing" in refusal(tmp_path / "t.pt")


def test_tensors_stay_mapped(tmp_path):
    rows = torch.arange(5000, dtype=torch.float32).reshape(-1, 4)
    torch.save({"skip": torch.ones(77), "x": rows}, tmp_path / "t.pt")
    loaded = as_array(load_saved(tmp_path / "t.pt")["x"], tmp_path / "t.pt")
    assert isinstance(loaded, np.memmap) and np.array_equal(loaded, rows.numpy())


def test_old_files_are_read_too(tmp_path):
    torch.save({"x": torch.arange(3)}, tmp_path / "t.pt", _use_new_zipfile_serialization=False)
    assert as_array(load_saved(tmp_path / "t.pt")["x"], tmp_path / "t.pt").tolist() == [0, 1, 2]


def test_bfloat16_becomes_float32():
    array = as_array(torch.tensor([1.5, -2.0], dtype=torch.bfloat16))
    assert array.dtype == np.float32 and array.tolist() == [1.5, -2.0]


def test_a_bfloat16_matrix_of_a_file_goes_through_the_scratch_directory(tmp_path):
    rows = torch.arange(24).reshape(6, 4).bfloat16()
    torch.save(rows, tmp_path / "t.pt")
    with Scratch(tmp_path / "scratch") as scratch:
        array = as_array(load_saved(tmp_path / "t.pt"), tmp_path / "t.pt", scratch, "x")
        assert isinstance(array, np.memmap) and array.dtype == np.float32
        assert array.tolist() == rows.float().tolist()


def test_loads_of_several_threads_do_not_disturb_each_other(tmp_path):
    with PygPickles() as pyg:
        torch.save(pyg.made("Data", a=1), tmp_path / "t.pt")
    failures = []

    def load() -> None:
        try:
            for _ in range(20):
                load_saved(tmp_path / "t.pt", [stand_in("torch_geometric.data.data.Data")])
        except ValueError as error:
            failures.append(error)

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
