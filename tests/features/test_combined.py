"""Messages of the combined exchange: what is joined is taken apart again, whatever the parts' sizes."""

import pytest
import torch

from fastsample_dist.features.combined import HEADER_BYTES, MessageSizes

RANKS, ROW_SHAPES = 3, {torch.float32: 2, torch.float16: 3, torch.int8: 5, torch.float64: 1}


def exchanged(counts, row_dtype, id_dtype):
    """Per rank (its rows, ids, headers as sent; sizes that it sends, that it gets; the buffer that it gets).

    Args:
      counts: [rank][peer] -> (rows, ids) from rank to peer.
    """
    generator, width = torch.Generator().manual_seed(1), ROW_SHAPES[row_dtype]
    sent = []
    for rank in range(RANKS):
        num_rows, num_ids = (sum(pair[part] for pair in counts[rank]) for part in (0, 1))
        rows = torch.randint(-100, 100, (num_rows, width), generator=generator).to(row_dtype)
        ids = torch.randint(0, 2**31, (num_ids,), generator=generator).to(id_dtype)
        headers = torch.randint(0, 2**62, (RANKS - 1, 2), generator=generator)
        sent.append((rows, ids, headers))
    row_bytes, id_bytes = width * row_dtype.itemsize, id_dtype.itemsize

    def sizes(rank, pairs):
        return MessageSizes(rank, [rows * row_bytes for rows, _ in pairs], [ids * id_bytes for _, ids in pairs])

    out = [sizes(rank, counts[rank]) for rank in range(RANKS)]
    into = [sizes(rank, [counts[peer][rank] for peer in range(RANKS)]) for rank in range(RANKS)]
    messages = [out[rank].join(*sent[rank]).split(out[rank].messages) for rank in range(RANKS)]
    buffers = [torch.cat([messages[peer][rank] for peer in range(RANKS)]) for rank in range(RANKS)]
    return sent, out, into, buffers


ALL = [[(0, 0), (3, 1), (2, 5)], [(1, 0), (0, 0), (0, 7)], [(4, 2), (1, 1), (0, 0)]]
FROM_ONE = [[(0, 0), (0, 1), (0, 0)], [(5, 0), (0, 0), (0, 3)], [(0, 1), (2, 0), (0, 0)]]
NOTHING = [[(0, 0)] * 3] * 3


@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("row_dtype", ROW_SHAPES, ids=str)
@pytest.mark.parametrize("counts", [ALL, FROM_ONE, NOTHING], ids=["all", "from one", "nothing"])
def test_every_rank_takes_what_the_others_joined(counts, row_dtype, id_dtype):
    sent, out, into, buffers = exchanged(counts, row_dtype, id_dtype)
    for rank in range(RANKS):
        peers = [peer for peer in range(RANKS) if peer != rank]
        elements, ids, headers = into[rank].take(buffers[rank], row_dtype, id_dtype)

        def of(peer, part, rank=rank):
            return sent[peer][part].split([pair[part] for pair in counts[peer]])[rank]

        assert torch.equal(elements, torch.cat([of(peer, 0) for peer in peers]).flatten())
        assert torch.equal(ids, torch.cat([of(peer, 1) for peer in peers]))
        assert headers == [sent[peer][2][rank - (peer < rank)].tolist() for peer in peers]
        assert out[rank].messages[rank] == 0 and sum(into[rank].messages) == buffers[rank].numel()


def test_rows_of_one_rank_alone_stay_in_the_buffer():
    _, _, into, buffers = exchanged(FROM_ONE, torch.float32, torch.int32)
    elements, _, _ = into[0].take(buffers[0], torch.float32, torch.int32)
    assert elements.data_ptr() == buffers[0].data_ptr() and elements.numel() == 5 * ROW_SHAPES[torch.float32]


def test_bytes_beside_the_rows_are_ids_and_headers():
    sizes = MessageSizes(1, [40, 0, 80], [4, 0, 12])
    assert sizes.messages == [40 + 4 + HEADER_BYTES, 0, 80 + 12 + HEADER_BYTES]
    assert sizes.beside_rows == 4 + 12 + 2 * HEADER_BYTES
