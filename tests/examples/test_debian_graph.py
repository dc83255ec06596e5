"""The Debian package graph: built exactly from a hand-written index, and the committed file as recorded."""

import gzip
import hashlib
import importlib
import io
import json
import lzma
import math
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from fastsample_dist.graph.datasets import read_npy_graph

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
COMMITTED = EXAMPLES / "data" / "debian12-packages.tar.xz"
sys.path.insert(0, str(EXAMPLES))  # a script finds its helper modules beside it; so must a test of the script
debian_graph = importlib.import_module("debian_graph")
archive, control, words = (importlib.import_module(f"debian_index.{name}") for name in ("archive", "control", "words"))

PACKAGES = """\
Package: alpha
Version: 1
Pre-Depends: libbeta1:any (>= 1.2) [amd64] <!nocheck>
Depends: libbeta1, gamma | agent
Section: contrib/games
Description: Alpha songs

Package: libbeta1
Source: beta (2.0-1)
Provides: agent (= 1), solo
Section: libs
Description: melody, melody and libbeta1 songs

Package: libbeta-dev
Source: beta
Depends: libbeta1
Suggests: alpha, libbeta-dev
Section: libs
Description: melody for games

Package: gamma
Version: 0.1
Depends: delta
Section: libs
Description: replaced by the later version below

Package: gamma
Version: 0.2
Recommends: nobody, agent
Provides: agent
Section: games
Description: Short text
Description-md5: d41d8c

Package: delta
Enhances: alpha
Section: libs
Description: melody

Package: epsilon
Source: delta
Section: zope
Description: games, libs
"""
SOURCES = """\
Package: alpha
Binary: alpha
Version: 0.9
Build-Depends: delta
Extra-Source-Only: yes
Section: games

Package: alpha
Binary: alpha
Version: 1
Build-Depends: libbeta-dev (>= 2) | solo
Build-Depends-Indep: gamma
Build-Depends-Arch: libbeta-dev
Checksums-Sha256:
 00 12 alpha.tar.xz
Section: games

Package: beta
Section: libs

Package: delta
Section: libs

Package: orphan
Build-Depends: alpha
Section: games
"""
TRANSLATION = """\
Package: gamma
Description-md5: d41d8c
Description-en: Songs
 and a melody,
 .
 another melody
"""
BINARIES = ["alpha", "delta", "epsilon", "gamma", "libbeta-dev", "libbeta1"]
NAMES = [*BINARIES, "alpha", "beta", "delta", "gamma", "orphan"]
DEPENDS, RECOMMENDS, SUGGESTS, BUILD_DEPENDS, BUILT_FROM = range(5)
EDGES = [
    (0, 3, DEPENDS),  # alpha: gamma, by name and as a provider of agent
    (0, 5, DEPENDS),  # alpha: libbeta1, three times
    (0, 6, BUILT_FROM),
    (1, 8, BUILT_FROM),
    (2, 8, BUILT_FROM),
    (3, 5, RECOMMENDS),  # gamma: agent, of which it is a provider itself; "nobody" is nobody
    (3, 9, BUILT_FROM),  # gamma's source is in no Sources index
    (4, 0, SUGGESTS),
    (4, 5, DEPENDS),
    (4, 7, BUILT_FROM),
    (5, 7, BUILT_FROM),
    (6, 3, BUILD_DEPENDS),
    (6, 4, BUILD_DEPENDS),
    (6, 5, BUILD_DEPENDS),  # solo
    (10, 0, BUILD_DEPENDS),
]


def build(folder: Path, name: str = "out", **texts: str) -> Path:
    """Build the hand-written index, with some of its texts replaced; the output directory."""
    given = {"packages": PACKAGES, "sources": SOURCES, "translation": TRANSLATION} | texts
    arguments = ["build", "--min-packages", "2", "--min-sources", "2", "--output", str(folder / name)]
    for option, text in given.items():
        (folder / f"{name}-{option}").write_text(text)
        arguments += [f"--{option}", str(folder / f"{name}-{option}")]
    assert debian_graph.main(arguments) == 0
    return folder / name


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("tiny"))


def oracle_row(counts: dict[str, int], idf: dict[str, float], dim: int = 128) -> np.ndarray:
    """Hashed tf-idf of one package in plain floats, rounded to 1/128."""
    row = [0.0] * dim
    for word, count in counts.items():
        number = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
        row[(number // 2) % dim] += (1 if number % 2 else -1) * (1 + math.log(count)) * idf[word]
    norm = math.sqrt(sum(x * x for x in row))
    return np.array([round(x / norm * 128) / 128 for x in row], dtype=np.float16)


def test_nodes_are_binaries_then_sources_by_name(tiny):
    assert (tiny / "node_names.txt").read_text().split() == NAMES
    assert np.load(tiny / "node_type.npy").tolist() == [0] * 6 + [1] * 5


def test_edges_are_the_relations_of_the_index(tiny):
    columns = [*np.load(tiny / "edge_index.npy").tolist(), np.load(tiny / "edge_type.npy").tolist()]
    assert list(zip(*columns, strict=True)) == EDGES


def test_labels_are_sections_large_enough_to_be_classes(tiny):
    meta = json.loads((tiny / "meta.json").read_text())
    assert meta["class_names"] == ["games", "libs"]  # zope: one package
    assert np.load(tiny / "labels.npy").tolist() == [0, 1, -1, 0, 1, 1, -1, -1, -1, -1, -1]


def test_a_section_from_one_source_is_no_class(tmp_path):
    # Both libs packages come from beta once delta has moved to games.
    moved = PACKAGES.replace("Enhances: alpha\nSection: libs", "Enhances: alpha\nSection: games")
    out = build(tmp_path, packages=moved)
    assert json.loads((out / "meta.json").read_text())["class_names"] == ["games"]


def test_split_follows_the_hash_of_the_source_name(tiny):
    expected = {"train": [], "val": [], "test": []}
    for nid, source in ((0, "alpha"), (1, "delta"), (3, "gamma"), (4, "beta"), (5, "beta")):
        slot = int(hashlib.sha256(source.encode()).hexdigest()[:16], 16) % 100
        expected["train" if slot < 60 else "val" if slot < 80 else "test"].append(nid)
    assert {split: np.load(tiny / f"{split}_idx.npy").tolist() for split in expected} == expected


def test_features_are_the_hashed_tfidf_of_the_descriptions(tiny):
    # 4 source packages have binaries; both words are used by 3 of them; every other word by fewer than 3.
    idf = {"songs": math.log(4 / 3), "melody": math.log(4 / 3)}
    expected = np.zeros((11, 128), dtype=np.float16)
    expected[0] = oracle_row({"songs": 1}, idf)
    expected[1] = oracle_row({"melody": 1}, idf)
    expected[3] = oracle_row({"songs": 1, "melody": 2}, idf)  # the long description
    expected[4] = oracle_row({"melody": 1}, idf)
    expected[5] = oracle_row({"melody": 2, "songs": 1}, idf)
    features = np.load(tiny / "features.npy")
    assert features.dtype == np.float16
    assert np.array_equal(features, expected)


def test_bucket_and_sign_are_fixed_for_all_time():
    assert [words.bucket_and_sign(word, 128) for word in ("songs", "melody", "c++")] == [(95, -1), (90, 1), (108, 1)]


def test_swapping_all_sections_changes_every_label_and_no_feature(tiny, tmp_path):
    swap = {
        "Section: contrib/games": "Section: libs",
        "Section: games": "Section: libs",
        "Section: libs": "Section: games",
    }
    swapped = "\n".join(swap.get(line, line) for line in PACKAGES.split("\n"))
    out = build(tmp_path, packages=swapped)
    before, after = np.load(tiny / "labels.npy"), np.load(out / "labels.npy")
    assert (before != after)[before >= 0].all()
    assert (out / "features.npy").read_bytes() == (tiny / "features.npy").read_bytes()


def test_renaming_a_package_changes_no_feature(tiny, tmp_path):
    out = build(tmp_path, packages=PACKAGES.replace("Package: alpha\n", "Package: alphabet\nSource: alpha\n"))
    assert (out / "features.npy").read_bytes() == (tiny / "features.npy").read_bytes()


def test_own_name_and_section_words_never_count():
    binary = control.Binary(name="python3-foo", source="foo-bar", section="python", description="")
    text = "python3-foo: the foo and Bar of Python, with python3 games for GNU users"
    banned = words.section_words({"python", "games", "gnu-r"})
    counted = words.words_of_package(binary, text, banned)
    assert sorted(counted) == ["and", "for", "of", "the", "users", "with"]


def test_meta_describes_the_graph(tiny):
    meta = json.loads((tiny / "meta.json").read_text())
    assert (meta["num_nodes"], meta["num_edges"], meta["num_classes"], meta["undirected"]) == (11, 15, 2, True)
    assert meta["edges_per_type"] == [3, 1, 1, 4, 6]
    assert meta["relations_left_out"] == {"unknown": 1, "too_many_providers": 0}
    assert meta["long_descriptions"] == 1


def test_directory_is_valid_input(tiny):
    graph = read_npy_graph(tiny)
    assert graph.to_csc().num_edges == 2 * len({(min(u, v), max(u, v)) for u, v, _ in EDGES})


def test_a_virtual_name_with_many_providers_is_left_out(tmp_path):
    crowd = "".join(f"\nPackage: p{i}\nProvides: agent\nSection: games\nDescription: one of many\n" for i in range(8))
    out = build(tmp_path, packages=PACKAGES + crowd)
    assert json.loads((out / "meta.json").read_text())["relations_left_out"]["too_many_providers"] == 2


def test_two_builds_are_the_same_bytes(tiny, tmp_path):
    again = build(tmp_path)
    assert {f.name: f.read_bytes() for f in again.iterdir()} == {f.name: f.read_bytes() for f in tiny.iterdir()}


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
def test_compressed_indexes_read_like_plain_ones(compress, tmp_path):
    (tmp_path / "Packages").write_text(PACKAGES)
    (tmp_path / "packed").write_bytes(compress(PACKAGES.encode()))
    assert control.read_binaries([tmp_path / "packed"]) == control.read_binaries([tmp_path / "Packages"])
    assert control.index_sha256(tmp_path / "packed") == hashlib.sha256(PACKAGES.encode()).hexdigest()


def test_release_gives_the_date_and_the_paths(tmp_path):
    for name, text in (("P", PACKAGES), ("S", SOURCES)):
        (tmp_path / name).write_text(text)
    sums = {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in "PS"}
    (tmp_path / "Release").write_text(
        "Origin: Debian\nCodename: test\nDate: Sat, 11 Jul 2026 10:16:37 UTC\nSHA256:\n"
        f" {sums['P']}    123 main/binary-amd64/Packages\n {sums['S']} 45 main/source/Sources\n"
    )
    arguments = ["build", "--min-packages", "2", "--min-sources", "2", "--output", tmp_path / "out"]
    arguments += ["--packages", tmp_path / "P", "--sources", tmp_path / "S", "--release", tmp_path / "Release"]
    assert debian_graph.main([str(word) for word in arguments]) == 0
    assert json.loads((tmp_path / "out" / "meta.json").read_text())["index"] == {
        "origin": "Debian",
        "codename": "test",
        "date": "Sat, 11 Jul 2026 10:16:37 UTC",
        "sha256": {"main/binary-amd64/Packages": sums["P"], "main/source/Sources": sums["S"]},
    }


def refused(capsys: pytest.CaptureFixture, *arguments: object) -> str:
    """Run a command that must fail; its one line on stderr."""
    capsys.readouterr()
    assert debian_graph.main([str(word) for word in arguments]) == 1
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"Package: a\nno field here\n", "line 2: found 'no field here', expected 'Field: value'"),
        (b" starts with a continuation\n", "line 1: found ' starts with"),
        (b"Version: 1\nSection: libs\n", "has no Package field"),
        (b"Package: a\nDepends: (>= 2)\n", "a, Depends: relation '(>= 2)' does not begin with a package name"),
        (b"\x04\x22\x4d\x18rest", "is compressed with lz4"),
        (b"Package: a\nSection: libs\n", "none of the 1 sections has 100 packages"),
    ],
)
def test_bad_index_is_refused(content, found, tmp_path, capsys):
    (tmp_path / "P").write_bytes(content)
    (tmp_path / "S").write_text(SOURCES)
    message = refused(
        capsys, "build", "--packages", tmp_path / "P", "--sources", tmp_path / "S", "--output", tmp_path / "out"
    )
    assert found in message
    assert not (tmp_path / "out").exists()


def test_release_of_other_indexes_is_refused(tmp_path, capsys):
    (tmp_path / "P").write_text(PACKAGES)
    (tmp_path / "R").write_text(f"Date: now\nSHA256:\n {'0' * 64} 1 main/source/Sources\n")
    options = ["--packages", tmp_path / "P", "--sources", tmp_path / "P", "--release", tmp_path / "R"]
    assert "which" in (message := refused(capsys, "build", *options, "--output", tmp_path / "out"))
    assert "does not list" in message


def test_existing_output_is_refused(tiny, tmp_path, capsys):
    (tmp_path / "P").write_text(PACKAGES)
    message = refused(capsys, "build", "--packages", tmp_path / "P", "--sources", tmp_path / "P", "--output", tiny)
    assert "exists" in message


def test_packed_graph_unpacks_to_the_same_files(tiny, tmp_path):
    archive.pack(tiny, tmp_path / "g.tar.xz")
    archive.unpack(tmp_path / "g.tar.xz", tmp_path / "back")
    assert {f.name: f.read_bytes() for f in (tmp_path / "back").iterdir()} == {
        f.name: f.read_bytes() for f in tiny.iterdir()
    }


def test_packing_twice_gives_the_same_bytes_and_records_their_checksum(tiny, tmp_path):
    (tmp_path / "again").mkdir()
    digest = archive.pack(tiny, tmp_path / "g.tar.xz")
    assert archive.pack(tiny, tmp_path / "again" / "g.tar.xz") == digest
    assert digest == hashlib.sha256((tmp_path / "g.tar.xz").read_bytes()).hexdigest()
    assert (tmp_path / "g.tar.xz.sha256").read_text() == f"{digest}  g.tar.xz\n"


def test_pack_and_unpack_refuse_what_exists(tiny, tmp_path, capsys):
    archive.pack(tiny, tmp_path / "g.tar.xz")
    assert "exists" in refused(capsys, "pack", tiny, tmp_path / "g.tar.xz")
    assert "exists" in refused(capsys, "unpack", tmp_path / "g.tar.xz", tiny)


def test_altered_file_is_refused_by_its_checksum(tiny, tmp_path, capsys):
    archive.pack(tiny, tmp_path / "g.tar.xz")
    content = bytearray((tmp_path / "g.tar.xz").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "g.tar.xz").write_bytes(content)
    assert "g.tar.xz.sha256 says" in refused(capsys, "unpack", tmp_path / "g.tar.xz", tmp_path / "out")


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.99])
def test_truncated_file_is_refused_without_a_checksum_too(keep, tiny, tmp_path, capsys):
    archive.pack(tiny, tmp_path / "g.tar.xz")
    (tmp_path / "g.tar.xz.sha256").unlink()
    content = (tmp_path / "g.tar.xz").read_bytes()
    (tmp_path / "g.tar.xz").write_bytes(content[: int(len(content) * keep)])
    assert "damaged or truncated" in refused(capsys, "unpack", tmp_path / "g.tar.xz", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["../evil", "/evil", "g/../../evil", "g/.hidden", "evil", "g/sub/evil"])
def test_a_member_outside_the_folder_is_refused(name, tmp_path, capsys):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:xz") as tar:
        tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    (tmp_path / "g.tar.xz").write_bytes(raw.getvalue())
    assert repr(name) in refused(capsys, "unpack", tmp_path / "g.tar.xz", tmp_path / "out")
    assert [f.name for f in tmp_path.iterdir()] == ["g.tar.xz"]


def test_a_link_in_the_archive_is_refused(tmp_path, capsys):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:xz") as tar:
        link = tarfile.TarInfo("g/meta.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        tar.addfile(link)
    (tmp_path / "g.tar.xz").write_bytes(raw.getvalue())
    assert "g/meta.json" in refused(capsys, "unpack", tmp_path / "g.tar.xz", tmp_path / "out")


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed graph, unpacked by the script as a user runs it."""
    target = tmp_path_factory.mktemp("committed") / "graph"
    command = [sys.executable, EXAMPLES / "debian_graph.py", "unpack", COMMITTED, target]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return target


def test_committed_file_has_the_recorded_checksum_and_size():
    recorded, name = archive.checksum_file(COMMITTED).read_text().split()
    assert name == COMMITTED.name
    assert hashlib.sha256(COMMITTED.read_bytes()).hexdigest() == recorded
    assert COMMITTED.stat().st_size < 8_000_000


def test_committed_graph_has_the_recorded_counts(committed):
    graph = read_npy_graph(committed)
    assert (graph.name, graph.num_nodes, graph.edge_index.shape, graph.num_classes, graph.features.shape) == (
        *("debian12-packages", 97_724, (2, 662_166), 49, (97_724, 128)),
    )
    assert {split: len(ids) for split, ids in graph.splits.items()} == {"train": 37_321, "val": 12_911, "test": 12_627}
    assert len((committed / "node_names.txt").read_text().split()) == 97_724


def test_committed_split_keeps_the_binaries_of_a_source_together(committed):
    graph = read_npy_graph(committed)
    side = np.full(graph.num_nodes, -1)
    for number, ids in enumerate(graph.splits.values()):
        side[ids] = number
    binary, source = graph.edge_index[:, np.load(committed / "edge_type.npy") == BUILT_FROM]
    labelled = side[binary] >= 0
    pairs = np.unique(np.stack([source[labelled], side[binary[labelled]]]), axis=1)
    assert len(np.unique(pairs[0])) == pairs.shape[1]


def test_committed_features_are_unit_rows_for_binaries_and_zero_for_sources(committed):
    graph = read_npy_graph(committed)
    norms = np.linalg.norm(graph.features.astype(np.float32), axis=1)
    is_source = np.load(committed / "node_type.npy") == 1
    assert (norms[is_source] == 0).all()
    assert (np.abs(norms[~is_source & (norms > 0)] - 1) < 0.05).all()
    assert (norms[~is_source] > 0).mean() > 0.99
