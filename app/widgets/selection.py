"""Which request is selected: by hand, by following the running one, and after it has ended the next of its queue."""

from __future__ import annotations

from vtop.app.live.view import View
from vtop.app.widgets.map.pools import HOST
from vtop.app.widgets.queue_order import QueueKind, QueueOrder
from vtop.engine.request import Key, RequestStatus
from vtop.engine.state.fold import RequestView


class Selection:
    """Of a view. One that goes to another queue stays selected; it moves by itself only when its request ends."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.follow = False  # whenever the selected request does not run, select the first that does
        self._id: str | None = None  # of the selected request, while it is alive
        self._kind: QueueKind = "waiting"  # its queue then
        self._place: tuple[bool, Key] = (False, ())  # in it

    def select(self, request_id: str | None, block: int | None = None) -> None:
        self.view.selected, self.view.selected_block = request_id, block

    def select_block(self, block: int) -> None:
        """Select a block of the device pool and the first request that holds it."""
        state = self.view.state
        self.select(None if state is None else next((r.id for r, _, _ in state.holders(block)), None), block)

    def select_host_block(self, block: int) -> None:
        """Select the first request that holds a block of the host pool."""
        state = self.view.state
        self.select(None if state is None else next((r.id for r, _, _ in HOST.holders(state, block)), None))

    def select_neighbour(self, step: int) -> bool:
        """Select the next or previous one in the order of the queues; false when there is none."""
        state = self.view.state
        if state is None:
            return False
        alive = (*state.running_order(), *state.swapped_order(), *state.waiting_order())
        ids = [r.id for r in (*alive, *reversed(state.finished))]
        if ids:
            at = ids.index(self.view.selected) if self.view.selected in ids else 0
            self.select(ids[(at + step) % len(ids)])
        return bool(ids)

    def keep(self, *, leave: bool) -> None:
        """Before each picture: go on to another one where that is due. `leave`: not for one that ended, it is read."""
        self._keep_following()
        self._keep_living(leave=leave)

    def _keep_following(self) -> None:
        view, state = self.view, self.view.state
        if not self.follow or state is None or view.selected in state.running:
            return
        following = state.running_order()
        if following:
            view.selected = following[0].id
            view.touch()

    def _keep_living(self, *, leave: bool) -> None:
        view = self.view
        state, selected = view.state, view.selected
        if state is None or selected is None:
            self._id = None
            return
        request = state.find(selected)
        if request is not None and request.status is not RequestStatus.FINISHED:
            self._remember(view, request)
            return
        following: RequestView | None = None
        if self._id == selected and not leave:
            following = QueueOrder(state, self._kind).following(self._place)
        elif request is None and not leave:  # ended long ago, and no longer kept: it was the last row
            following = state.finished[0] if state.finished else None
        self._id = None
        if following is not None:
            view.selected, view.selected_block = following.id, None
            view.touch()
            if following.status is not RequestStatus.FINISHED:
                self._remember(view, following)

    def _remember(self, view: View, request: RequestView) -> None:
        assert view.state is not None
        self._id = request.id
        self._kind = "running" if request.status is RequestStatus.RUNNING else "waiting"
        self._place = QueueOrder(view.state, self._kind).place(request)
