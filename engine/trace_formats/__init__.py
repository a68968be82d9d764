"""Readers of request traces, one file per family; `vtop.engine.traces` chooses among them by content."""
