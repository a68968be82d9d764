"""HostPool: tables move between the pools; what is shared is copied once, and what fails changes nothing."""

from __future__ import annotations

import pytest

from vtop.engine.blocks.host import HostPool
from vtop.engine.blocks.pool import BlockPool
from vtop.engine.errors import NoFreeBlocks
from vtop.engine.request import Request, SamplingParams, Sequence, new_request


def group(width: int) -> Request:
    request = new_request("g", 0, [5] * 6, SamplingParams(), arrival=0.0, limit=20, seed=0)
    request.sequences += [Sequence(request, index, [5] * 6, 6) for index in range(1, width)]
    return request


def shared_tables(device: BlockPool) -> Request:
    """Two sequences: blocks 0 and 1 are shared, 2 and 3 are their own."""
    request = group(2)
    common = device.allocate(2)
    for block in common:
        device.share(block)
    for seq in request.sequences:
        seq.blocks = [*common, *device.allocate(1)]
        seq.num_computed = 6
    return request


def test_a_shared_block_is_copied_once_and_is_shared_again() -> None:
    device, host = BlockPool(6), HostPool(4)
    request = shared_tables(device)
    pairs = host.swap_out(request.sequences, device)
    assert [source for source, _ in pairs] == [0, 1, 2, 3]
    first, second = request.sequences
    assert first.blocks == second.blocks == []
    assert first.host_blocks[:2] == second.host_blocks[:2] and host.used == 4
    assert host.ref_count(first.host_blocks[0]) == 2 and device.used == 0
    assert first.num_computed == 6
    back = host.swap_in(request.sequences, device)
    assert len(back) == 4 and host.used == 0 and device.used == 4
    assert first.blocks[:2] == second.blocks[:2] and first.blocks[2] != second.blocks[2]
    assert first.host_blocks == second.host_blocks == []


def test_without_sharing_every_table_gets_copies_of_its_own() -> None:
    device, host = BlockPool(6), HostPool(6)
    request = shared_tables(device)
    pairs = host.swap_out(request.sequences, device, share=False)
    assert [source for source, _ in pairs] == [0, 1, 2, 0, 1, 3] and host.used == 6
    assert device.used == 0


@pytest.mark.parametrize("total", [0, 3])
def test_no_room_changes_nothing(total: int) -> None:
    device, host = BlockPool(6), HostPool(total)
    request = shared_tables(device)
    before = [list(seq.blocks) for seq in request.sequences]
    with pytest.raises(NoFreeBlocks):
        host.swap_out(request.sequences, device)
    assert [seq.blocks for seq in request.sequences] == before
    assert host.used == 0 and device.used == 4


def test_no_room_on_the_device_changes_nothing() -> None:
    device, host = BlockPool(6), HostPool(4)
    request = shared_tables(device)
    host.swap_out(request.sequences, device)
    taken = device.allocate(3)
    with pytest.raises(NoFreeBlocks):
        host.swap_in(request.sequences, device)
    assert host.used == 4 and device.used == 3
    device.release(taken)
    assert len(host.swap_in(request.sequences, device)) == 4


def test_a_sequence_that_ends_while_swapped_gives_its_host_blocks_back() -> None:
    device, host = BlockPool(6), HostPool(4)
    request = shared_tables(device)
    host.swap_out(request.sequences, device)
    for seq in request.sequences:
        host.drop(seq)
    assert host.used == 0
