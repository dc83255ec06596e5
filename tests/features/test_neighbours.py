"""Rows of other ranks' part files: read only while every proof holds."""

import os

import numpy as np
import pytest
import torch

from fastsample_dist.features.neighbours import RankFiles, file_system_of, map_neighbour
from fastsample_dist.graph.manifest import read_manifest
from fastsample_dist.graph.storage import features_file, part_files, scales_file
from fastsample_dist.graph.verification import Verification, known_states
from tests.parts import draw_partition

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
31 22 0:28 / /data rw shared:1 - nfs4 server:/data rw
32 31 0:29 / /data/local\\040disk rw - xfs /dev/vdb rw
33 22 0:30 / /mnt rw - ext4 /dev/vdc rw
34 33 0:31 / /mnt rw - fuse.sshfs host: rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/parts", "ext4"),
        ("/data/parts/features.npy", "nfs4"),
        ("/data", "nfs4"),
        ("/database", "ext4"),
        ("/data/local disk/parts", "xfs"),
        ("/mnt/parts", "fuse.sshfs"),  # the later mount hides the earlier one
    ],
)
def test_the_file_system_of_a_path_is_that_of_the_longest_mount(path, kind):
    assert file_system_of(path, MOUNTS) == kind


def test_this_file_is_on_some_file_system():
    assert file_system_of(os.path.realpath(__file__))


@pytest.fixture
def drawn(tmp_path):
    """(partition, manifest, what the rank of parts 1 and 2 reports)"""
    found = draw_partition(tmp_path, 3)
    manifest = read_manifest(found.path)
    names = [name for part in (1, 2) for name in part_files(manifest, part)]
    with Verification(found.path, manifest, names) as job:
        assert job.wait().is_done
        states = {part: job.states[features_file(part)] for part in (1, 2)}
    return found, manifest, RankFiles(str(found.path), states)


def test_the_rows_of_all_its_parts_are_mapped(drawn):
    found, manifest, files = drawn
    tables = map_neighbour(files, manifest)
    assert [(table.first_node, table.end_node) for table in tables] == [
        tuple(manifest.part_ranges[part : part + 2]) for part in (1, 2)
    ]
    for part, table in zip((1, 2), tables, strict=True):
        assert torch.equal(table.rows, torch.from_numpy(np.load(found.path / features_file(part))))


def refusal_of(files, manifest, **options):
    with pytest.raises(ValueError) as refused:
        map_neighbour(files, manifest, **options)
    return str(refused.value)


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "lustre", "9p"])
def test_a_file_that_is_visible_over_a_network_is_not_read(drawn, kind):
    found, manifest, files = drawn
    text = refusal_of(files, manifest, file_system=lambda _: kind)
    assert text == f"{found.path / features_file(1)} is on a network file system ({kind})"


def swap(file):
    copy = file.with_name("copy.npy")
    copy.write_bytes(file.read_bytes())
    copy.replace(file)


def damage(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    times = file.stat()
    file.write_bytes(content)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # the change shows in the inode's own time alone


def cut(file):
    os.truncate(file, 100)


@pytest.mark.parametrize(("change", "what"), [(swap, "inode"), (damage, "ctime_ns"), (cut, "bytes")])
def test_a_file_that_was_changed_after_it_was_compared_is_not_read(drawn, change, what):
    found, manifest, files = drawn
    change(found.path / features_file(2))
    assert f"features.npy is not the file that was compared with the manifest: its {what} is " in refusal_of(
        files, manifest
    )


def test_a_file_that_is_gone_or_was_never_compared_is_not_read(drawn):
    found, manifest, files = drawn
    unknown = RankFiles(files.folder, {1: None})
    assert refusal_of(unknown, manifest).endswith("features.npy was not compared with the manifest (verify='never')")
    (found.path / features_file(1)).unlink()
    assert refusal_of(files, manifest).endswith("features.npy cannot be read here (No such file or directory)")


def test_what_was_compared_is_known_until_it_changes(drawn):
    found, manifest, files = drawn
    names = [features_file(part) for part in range(3)]
    known = known_states(found.path, manifest, names)
    assert set(known.items()) <= {(features_file(part), state) for part, state in files.states.items()}
    swap(found.path / features_file(1))
    assert features_file(1) not in known_states(found.path, manifest, names)


def test_rows_come_with_their_scales_and_a_swapped_file_of_scales_is_refused(tmp_path):
    path = draw_partition(tmp_path, 2, stored_as="int8").path
    manifest = read_manifest(path)
    with Verification(path, manifest, part_files(manifest, 1)) as job:
        assert job.wait().is_done
        states, scales = {1: job.states[features_file(1)]}, {1: job.states[scales_file(1)]}
    (found,) = map_neighbour(RankFiles(str(path), states, None, scales), manifest)
    assert torch.equal(found.rows.scales, torch.from_numpy(np.load(path / scales_file(1))))
    unproven = f"{path / scales_file(1)} was not compared with the manifest"
    assert unproven in refusal_of(RankFiles(str(path), states), manifest)
    swap(path / scales_file(1))
    text = refusal_of(RankFiles(str(path), states, None, scales), manifest)
    assert f"{path / scales_file(1)} is not the file that was compared with the manifest" in text
