"""`vtop models`: list, pull, remove."""

from __future__ import annotations

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from vtop.app.terminal.printing import CleanConsole, progress_console
from vtop.engine.model import source as model_source


def list_models() -> int:
    """Print names, sizes and places."""
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="bold")
    table.add_column("model")
    table.add_column("size", justify="right")
    table.add_column("state")
    table.add_column("place", overflow="fold")
    for entry in model_source.list_models():
        state = "here" if entry.installed else "not fetched: vtop models pull " + entry.name
        size = _size(entry.size) if entry.installed else ""
        table.add_row(Text(entry.name), size, Text(state), Text(entry.location if entry.installed else "", style="dim"))
    CleanConsole().print(table)
    return 0


def pull_model(name: str) -> int:
    """Fetch a model, with a progress bar on stderr."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeRemainingColumn(),
    )
    console = progress_console()
    with Progress(*columns, console=console, transient=True, disable=console.quiet) as bars:
        task: TaskID = bars.add_task(f"fetching {name}", total=None, amount="")

        def progress(stage: str, done: int, total: int | None) -> None:
            amount = f"{_size(done)} of {_size(total)}" if total and total > 10_000 else ""
            bars.update(task, description=stage, completed=done, total=total, amount=amount)

        entry = model_source.pull(name, progress=progress)
    CleanConsole().print(Text(f"{entry.name}: {_size(entry.size)} in {entry.location}"))
    return 0


def remove_model(name: str) -> int:
    """Delete a fetched model."""
    freed = model_source.remove(name)
    CleanConsole().print(Text(f"removed {name}: {_size(freed)} given back"))
    return 0


def _size(count: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024  # type: ignore[assignment]
    return f"{count:.2f} GiB"
