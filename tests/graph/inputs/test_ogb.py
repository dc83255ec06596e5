"""Data sets of OGB by name: what the ogb package is asked for, with a stand-in that behaves as ogb 1.3.6 does."""

import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from fastsample_dist.graph.inputs import ReadOptions, Scratch
from fastsample_dist.graph.inputs.ogb import read_ogb
from tests.graph.inputs.layouts import draw_graph, found, listed, write_ogb

URL_MODULE = """
import shutil, zipfile
from pathlib import Path

def decide_download(url):
    size = {size}
    return input("This will download it. Will you proceed? (y/N)") == "y" if size > 1 else True

def download_url(url, folder):
    return shutil.copy(url, folder)

def extract_zip(path, folder):
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
"""


def install(monkeypatch, tmp_path: Path, *, size_gb: float = 0.1, archive: bool = True) -> None:
    """Put the stand-in on the path; it knows ogbn-arxiv, whose archive holds `arxiv`."""
    package = tmp_path / "packages/ogb"
    for room in ("nodeproppred", "utils"):
        (package / room).mkdir(parents=True)
        (package / room / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "utils/url.py").write_text(URL_MODULE.replace("{size}", str(size_gb)))
    address = tmp_path / "arxiv.zip"
    lines = [",ogbn-arxiv", f"url,{address}", "download_name,arxiv"]
    (package / "nodeproppred/master.csv").write_text("\n".join(lines) + "\n")
    if archive:
        made = write_ogb(tmp_path / "made/arxiv", draw_graph())
        with zipfile.ZipFile(address, "w") as out:
            for file in sorted(made.rglob("*")):
                out.write(file, file.relative_to(made.parent))
    for name in [name for name in sys.modules if name.split(".")[0] == "ogb"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def forget_the_stand_in():
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "ogb"]:
        del sys.modules[name]


def read(path: str | Path) -> dict:
    with Scratch() as scratch:
        return found(read_ogb(Path(path), ReadOptions(scratch=scratch)))


def test_a_name_is_downloaded_to_where_ogb_puts_it(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path)
    assert read("ogbn-arxiv") == listed(draw_graph())
    assert (tmp_path / "dataset/ogbn_arxiv/raw/edge.csv.gz").is_file()


def test_a_directory_that_is_not_there_is_downloaded_to(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path)
    assert read(tmp_path / "sets/ogbn_arxiv") == listed(draw_graph())


def test_what_is_there_needs_no_package(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ogb", None)
    monkeypatch.chdir(tmp_path)
    write_ogb(tmp_path / "dataset/ogbn_arxiv", draw_graph())
    assert read("ogbn-arxiv") == listed(draw_graph())


def test_a_large_download_without_a_terminal_is_refused_with_advice(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, size_gb=2)
    with pytest.raises(ValueError, match="no terminal; download .*zip yourself.*rename arxiv to dataset/ogbn_arxiv"):
        read("ogbn-arxiv")
    assert list((tmp_path / "dataset").iterdir()) == []


def test_a_download_that_is_declined_is_said(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path)
    from ogb.utils import url

    monkeypatch.setattr(url, "decide_download", lambda address: False)
    with pytest.raises(ValueError, match="ogbn-arxiv was not downloaded, as the answer was no"):
        read("ogbn-arxiv")


def test_a_download_that_fails_leaves_nothing(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, archive=False)
    with pytest.raises(ValueError, match="ogbn-arxiv cannot be downloaded"):
        read("ogbn-arxiv")
    assert list((tmp_path / "dataset").iterdir()) == []


def test_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ogb", None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ImportError, match="downloading ogbn-arxiv needs the ogb package.*pip install ogb"):
        read("ogbn-arxiv")


def test_an_unknown_name_is_refused(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="nor an OGB data set; expected ogbn-arxiv, ogbn-mag"):
        read("ogbn-arxviv")


def test_a_directory_with_something_else_is_left_alone(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path)
    (tmp_path / "ogbn_arxiv/processed").mkdir(parents=True)
    with pytest.raises(ValueError, match="ogbn_arxiv has no raw/"):
        read(tmp_path / "ogbn_arxiv")
    assert (tmp_path / "ogbn_arxiv/processed").is_dir()
    shutil.rmtree(tmp_path / "ogbn_arxiv")
