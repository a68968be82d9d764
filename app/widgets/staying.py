"""Where the selection goes when the selected request ends: to the next one of its queue; and nowhere else by itself."""

from __future__ import annotations

from vtop.app.live.view import View
from vtop.app.widgets.queue_order import QueueKind, QueueOrder
from vtop.engine.order import Key
from vtop.engine.request import RequestStatus
from vtop.engine.state.fold import RequestView


class Staying:
    """Looks at the view before each picture. One that goes to another queue stays selected."""

    def __init__(self) -> None:
        self._id: str | None = None  # of the selected request, while it is alive
        self._kind: QueueKind = "waiting"  # its queue then
        self._place: tuple[bool, Key] = (False, ())  # in it

    def look(self, view: View, *, leave: bool) -> None:
        """Select another one if the selected one has ended since the last look. `leave`: but not now, it is read."""
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
