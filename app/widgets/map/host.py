"""The map of the host pool: where the K/V of swapped requests waits for room on the device."""

from __future__ import annotations

from typing import ClassVar

from vtop.app.live.view import View
from vtop.app.widgets.map.map import BlockMap
from vtop.app.widgets.map.pools import HOST, DevicePool


class HostMap(BlockMap):
    """A BlockMap of the host pool. A selected block is one of the device, so only the cursor marks one here."""

    POOL: ClassVar[DevicePool] = HOST
    LEGEND_FROM: ClassVar[int] = 4

    class Hovered(BlockMap.Hovered):
        """The mouse or the cursor points at a host block, or at none."""

    class Picked(BlockMap.Picked):
        """A host block was clicked, or Enter pressed on it."""

    @staticmethod
    def has_content(view: View) -> bool:
        """A block of the host pool was used at some time; until then there is nothing to show."""
        state = view.state
        return state is not None and len(state.host_owner) > 0 and state.totals.swapped_out_blocks > 0

    def selected_block(self, view: View) -> int | None:
        return None
