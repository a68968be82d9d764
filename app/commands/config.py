"""`vtop config`: every option with its value and origin."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from vtop.app.actions import ACTIONS
from vtop.app.options import options
from vtop.app.settings import Origin, Settings, config_folder
from vtop.app.terminal.printing import CleanConsole
from vtop.engine.config import PRESETS


def show_config(settings: Settings) -> int:
    """Print the table; options that cannot be used are an error here too."""
    engine = settings.engine_config()
    settings.app_config()
    presets = PRESETS[engine.preset]
    console = CleanConsole()
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="bold")
    for heading in ("option", "value", "origin"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "option")
    section = ""
    for key, option in options().items():
        if option.section != section:
            section = option.section
            table.add_row(Text(f"[{section}]", style="dim"))
        origin = settings.origins[key]
        style = "" if origin is Origin.DEFAULT else "bold"
        value, by = settings.values[key], origin.value
        if value is None and key in presets:
            value, by = presets[key], f"preset {engine.preset}"
        elif value is None and key == "max_num_batched_tokens":  # prefill-first: the model's limit where that is more
            least = "at least " if engine.batching == "prefill-first" else ""
            value, by = f"{least}{engine.token_budget(1)}", f"preset {engine.preset}"
        table.add_row(Text(key, style), Text(_shown(value), style), Text(by, style))
    if settings.keys:
        table.add_row(Text("[keys]", style="dim"))
        for action, keys in settings.keys.items():
            table.add_row(Text(action, "bold"), Text(keys, "bold"), Text(Origin.FILE.value, "bold"))
    console.print(table)
    folder = config_folder()
    where = "none, for a user without a home" if folder is None else f"none ({folder / 'config.toml'})"
    if settings.path is not None:
        where = str(settings.path)
    variable = options()["block_size"].variable
    lines = [
        "",
        f"file: {where}",
        f"environment: VTOP_ and the option in capitals, such as {variable}",
        f"actions for [keys]: {', '.join(action.id for action in ACTIONS)}",
    ]
    console.print(Text("\n".join(lines), style="dim"))
    return 0


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
