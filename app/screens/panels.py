"""The panels of the overview by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from vtop.app.widgets.charts import Charts
from vtop.app.widgets.event_log import EventLog
from vtop.app.widgets.map.host import HostMap
from vtop.app.widgets.map.map import BlockMap
from vtop.app.widgets.panel import Panel
from vtop.app.widgets.queue_table import QueueTable

MAKE: Mapping[str, Callable[[], Panel]] = MappingProxyType(
    {
        "map": lambda: BlockMap(id="panel-map"),
        "host": lambda: HostMap(id="panel-host"),
        "running": lambda: QueueTable("running", id="panel-running"),
        "waiting": lambda: QueueTable("waiting", id="panel-waiting"),
        "finished": lambda: QueueTable("finished", id="panel-finished"),
        "events": lambda: EventLog(id="panel-events"),
        "charts": lambda: Charts(id="panel-charts"),
    }
)
