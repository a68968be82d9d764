"""The widgets: each shows a View and draws only what changed. They know events and state, never the engine."""

from vtop.app.widgets.charts import Charts
from vtop.app.widgets.event_log import EventLog
from vtop.app.widgets.header_bar import HeaderBar
from vtop.app.widgets.map.map import BlockMap, HostMap
from vtop.app.widgets.queue_table import QueueTable
from vtop.app.widgets.request_detail import RequestDetail
from vtop.app.widgets.step_strip import StepStrip

__all__ = ["BlockMap", "Charts", "EventLog", "HeaderBar", "HostMap", "QueueTable", "RequestDetail", "StepStrip"]
