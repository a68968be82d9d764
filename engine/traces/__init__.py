"""Readers of request traces, one file per family; `vtop.engine.traces.read` chooses among them by content."""
