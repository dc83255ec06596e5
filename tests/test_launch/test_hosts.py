"""The hosts file: what is accepted, what is refused and how, and which ranks go where."""

import pytest

from fastsample_dist.launch.hosts import HostEntry, parse_hosts, place_ranks, read_hosts


def described(text):
    return [(host.target, host.slots) for host in parse_hosts(text)]


def test_addresses_slots_and_comments():
    text = "# two machines\n10.0.0.1 slots=4\n\n  gpu-02.local   # the small one\nme@10.0.0.3 slots=1\nfd00::4\n"
    assert described(text) == [("10.0.0.1", 4), ("gpu-02.local", None), ("me@10.0.0.3", 1), ("fd00::4", None)]


def test_ip_config_of_dgl():
    assert described("172.31.19.1 30050\n172.31.23.205\n") == [("172.31.19.1", None), ("172.31.23.205", None)]


def test_address_is_the_target_without_its_user():
    assert [host.address for host in parse_hosts("me@a\nb")] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\nb slots=0", "f:2: 'slots=0' after b is not understood"),
        ("a slots=two", "f:1: 'slots=two' after a is not understood"),
        ("a 30050 1", "f:1: '30050 1' after a is not understood"),
        ("a 70000", "f:1: '70000' after a is not understood"),
        ("a slots=1 slots=2", "f:1: 'slots=1 slots=2' after a is not understood"),
        ("-oProxyCommand=x", "f:1: '-oProxyCommand=x' is not an address"),
        ("a;b", "f:1: 'a;b' is not an address"),
        ("me@node1:4", "f:1: 'me@node1:4' is not an address; expected \"address [slots=N]\"."),
        ("a\n\nme@a slots=2", "f:3: a was named on line 1 already; give a host one line, with slots=N for N ranks."),
        ("# nothing\n\n", 'f names no host; expected one "address [slots=N]" a line.'),
    ],
)
def test_bad_lines_are_refused_with_their_place(text, message):
    with pytest.raises(ValueError) as raised:
        parse_hosts(text, "f")
    assert str(raised.value).startswith(message) and "\n" not in str(raised.value)


def test_a_missing_file_and_a_binary_file_are_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="--hosts .*missing cannot be read"):
        read_hosts(tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="binary cannot be read .not a text file."):
        read_hosts(tmp_path / "binary")


def test_ranks_are_numbered_host_by_host():
    hosts = [HostEntry("a", 2), HostEntry("b"), HostEntry("c", 3)]
    assert [host_ranks.ranks for host_ranks in place_ranks(hosts, None)] == [range(2), range(2, 3), range(3, 6)]


def test_nproc_counts_on_every_host():
    hosts = [HostEntry("a", 2), HostEntry("b")]
    assert [host_ranks.ranks for host_ranks in place_ranks(hosts, 2)] == [range(2), range(2, 4)]


def test_more_ranks_than_slots_are_refused():
    with pytest.raises(ValueError, match=r"--nproc is 3 but a has slots=2 \(line 7 of the hosts file\); lower --nproc"):
        place_ranks([HostEntry("a", 2, 7)], 3)
