"""Node-property graphs of the Open Graph Benchmark, by directory or by name.

A directory that has the raw files is read without further help (ogb_raw.py). Otherwise the `ogb` package, imported on
use, knows where a data set is and downloads it to ./dataset or beside the directory given; the raw files are
then read the same way, so that neither memory nor pickles of ogb's own cache are needed.
"""

from __future__ import annotations

import csv
import io
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.graph.inputs.ogb_raw import KNOWN_SETS, read_raw, set_name
from fastsample_dist.graph.inputs.read_options import ReadOptions

ROOT = Path("dataset")  # where ogb puts data sets by default


def read_ogb(path: Path, options: ReadOptions) -> RawGraph:
    """Read a node-property data set; a reader of format `ogb`.

    Args:
      path: the data set's directory, e.g. dataset/ogbn_arxiv, or its name, e.g. ogbn-arxiv.
      options: with `undirected` every edge counts in both directions; it always does in the sets for which ogb
        adds the inverse edges.
    Returns:
      RawGraph with features, labels and ogb's standard split.
    Raises:
      ImportError: the set is not there and the ogb package is not installed.
      ValueError: there is no such set, or it was not downloaded.
    """
    name = set_name(path)
    directory = path if path.is_dir() or len(path.parts) > 1 else ROOT / name.replace("-", "_")
    if not (directory / "raw").is_dir():
        if name not in KNOWN_SETS:
            raise ValueError(
                f"{path} is neither a directory with raw/ nor an OGB data set; expected {', '.join(KNOWN_SETS)}."
            )
        if directory.is_dir() and any(directory.iterdir()):
            raise ValueError(f"{directory} has no raw/; expected the files of {name} as ogb downloads them; remove it.")
        _download(name, directory)
    return read_raw(directory, options)


def _download(name: str, directory: Path) -> None:
    """Let ogb download a data set; the directory appears when it is complete."""
    try:
        import ogb.nodeproppred as package
        from ogb.utils.url import decide_download, download_url, extract_zip
    except ImportError as error:
        raise ImportError(
            f"{directory} is not there, and downloading {name} needs the ogb package ({error}); pip install ogb."
        ) from error
    url, inside = _source(Path(package.__file__).with_name("master.csv"), name)
    advice = f"download {url} yourself, unpack it, and rename {inside} to {directory}."
    partial = directory.with_name(f".{directory.name}.partial")
    try:
        partial.mkdir(parents=True, exist_ok=True)
        with _answerable():
            agreed = decide_download(url)
        if not agreed:
            raise ValueError(f"{name} was not downloaded, as the answer was no; {advice}")
        archive = download_url(url, str(partial))
        extract_zip(archive, str(partial))
        if directory.is_dir():
            directory.rmdir()
        (partial / inside).rename(directory)
    except EOFError:
        raise ValueError(f"ogb asks before it downloads more than 1 GB, and there is no terminal; {advice}") from None
    except OSError as error:
        raise ValueError(f"{name} cannot be downloaded ({error}); {advice}") from error
    except RuntimeError as error:  # ogb's word for a download that was cut short
        raise ValueError(f"{name} was not downloaded ({str(error).rstrip('.')}); {advice}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _source(table: Path, name: str) -> tuple[str, str]:
    """Address of a data set's archive, and the directory that it unpacks to, from ogb's own table."""
    with table.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    facts = {row[0]: row[header.index(name)] for row in rows if name in header}
    if "url" not in facts:
        raise ValueError(f"{table} does not list {name}; install a newer ogb package.")
    return facts["url"], facts["download_name"]


@contextmanager
def _answerable() -> Iterator[None]:
    """Without a terminal, a question gets an end of input at once, instead of waiting for an answer."""
    before = sys.stdin
    if before is None or not before.isatty():
        sys.stdin = io.StringIO()
    try:
        yield
    finally:
        sys.stdin = before
