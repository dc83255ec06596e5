"""What messages cost: an alpha-beta model, by hand."""

import pytest

from fastsample_dist.graph.network import Network, parse_bandwidth, parse_latency

NETWORK = Network(1e-3, 1e6)


@pytest.mark.parametrize(
    ("text", "bytes_s"),
    [("25Gb/s", 25e9 / 8), ("100 Mbit/s", 100e6 / 8), (" 0.5Gb/s ", 0.5e9 / 8), (".5Gb/s", 0.5e9 / 8)],
)
def test_a_bandwidth_is_read_in_bits(text, bytes_s):
    assert parse_bandwidth(text) == bytes_s


@pytest.mark.parametrize("text", ["", "25", "25GB/s", "0Gb/s", "-1Gb/s", "1.2.3Gb/s", "fast"])
def test_another_bandwidth_is_refused(text):
    with pytest.raises(ValueError, match="is not a bandwidth; expected bits per second such as 25Gb/s"):
        parse_bandwidth(text)


def test_a_latency_is_read():
    assert parse_latency("20us") == pytest.approx(20e-6)
    assert parse_latency("0.1 ms") == pytest.approx(1e-4)
    with pytest.raises(ValueError, match="'20' is not a latency; expected"):
        parse_latency("20")


def test_an_all_to_all_waits_for_every_other_machine_and_for_its_bytes():
    assert NETWORK.all_to_all_s(2, 5e6, machines=4) == pytest.approx(2 * 3 * 1e-3 + 5)


def test_a_sum_goes_round_twice():
    assert NETWORK.ring_sum_s(1, 4e6, machines=4) == pytest.approx(2 * 3 * 1e-3 + 2 * 3 / 4 * 4)
