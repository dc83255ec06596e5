import os

import pytest

from fastsample_dist.graph.inputs import Scratch


def counted_copy(source, calls):
    def make(path):
        calls.append(path.name)
        path.write_text(source.read_text() * 2)

    return make


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "source.txt"
    file.write_text("ab")
    return file


def test_file_is_made_once(tmp_path, source):
    calls = []
    with Scratch(tmp_path / "scratch") as scratch:
        first = scratch.made("double", [source], counted_copy(source, calls))
        assert first.read_text() == "abab"
        assert scratch.made("double", [source], counted_copy(source, calls)) == first
    assert len(calls) == 1


def test_a_later_run_finds_what_was_kept(tmp_path, source):
    calls = []
    for _ in range(2):
        with Scratch(tmp_path / "scratch", keep=lambda: True) as scratch:
            scratch.made("double", [source], counted_copy(source, calls))
    assert len(calls) == 1


def test_a_changed_source_is_read_again(tmp_path, source):
    calls = []
    with Scratch(tmp_path / "scratch") as scratch:
        scratch.made("double", [source], counted_copy(source, calls))
        source.write_text("cde")
        os.utime(source, ns=(1, 1))
        assert scratch.made("double", [source], counted_copy(source, calls)).read_text() == "cdecde"
    assert len(calls) == 2


def test_nothing_is_left_of_a_file_that_failed(tmp_path, source):
    def fail(path):
        path.write_text("half")
        raise OSError("no space")

    with Scratch(tmp_path / "scratch", keep=lambda: True) as scratch, pytest.raises(OSError, match="no space"):
        scratch.made("double", [source], fail)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_the_directory_goes_with_the_block(tmp_path, source):
    with Scratch(tmp_path / "scratch") as scratch:
        scratch.made("double", [source], counted_copy(source, []))
    assert not (tmp_path / "scratch").exists()


def test_without_a_directory_a_temporary_one_is_taken(source):
    with Scratch() as scratch:
        made = scratch.made("double", [source], counted_copy(source, []))
        assert made.is_file()
    assert not made.exists()


def test_runs_that_make_the_same_file_do_not_write_into_one(tmp_path, source):
    places = []

    def make(path):
        places.append(path.name)
        path.touch()

    for process in (1, 2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("os.getpid", lambda process=process: process)
            Scratch(tmp_path / str(process)).made(
                "made", [source], lambda path: (places.append(path.name), path.touch())
            )
    assert len(set(places)) == 2
