"""Figures of a comparison: `vtop sim --plot FOLDER`; a module of each name draws it.

No simulation enters, only its outcomes. matplotlib is imported when figures are drawn, not before.
"""

from __future__ import annotations

import importlib
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vtop.app.files import write_file
from vtop.app.terminal.printing import tell
from vtop.engine.errors import BadValue
from vtop.engine.sim.compare import Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# name -> kinds of file; the module of that name draws it
FIGURES: dict[str, tuple[str, ...]] = {
    "latency": ("png", "svg"),
    "cdf": ("png",),
    "timeline": ("png",),
    "gantt": ("png",),
    "service": ("png",),
    "pareto": ("png",),
}


def check_plots(folder: Path, overwrite: bool = False) -> None:
    """Make the folder, before hours are spent on what could not be drawn. Raises BadValue."""
    try:
        importlib.import_module("matplotlib")
    except ImportError:
        remedy = "matplotlib is missing; install it with: pip install 'vtop-llm[plots]'"
        raise BadValue("--plot", str(folder), remedy) from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadValue("--plot", str(folder), f"the folder cannot be made ({error.strerror})") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BadValue("--plot", str(folder), "the folder cannot be written to; choose another")
    there = [name for name, kinds in FIGURES.items() for kind in kinds if (folder / f"{name}.{kind}").exists()]
    if there and not overwrite:
        figures = ", ".join(dict.fromkeys(there))
        remedy = f"there are figures already ({figures}); choose another folder, or add --overwrite"
        raise BadValue("--plot", str(folder), remedy)


def draw_all(folder: Path, outcomes: Sequence[Outcome]) -> list[Path]:
    """Draw every figure there are data for; the others are named on stderr. Raises BadValue."""
    from vtop.app.plots.style import drawing

    made: list[Path] = []
    with drawing():
        for name, kinds in FIGURES.items():
            figure = draw_one(name, outcomes)
            if isinstance(figure, str):
                tell(f"not drawn: {name} ({figure})")
                continue
            made += [_save(figure, folder / f"{name}.{kind}") for kind in kinds]
    return made


def draw_one(name: str, outcomes: Sequence[Outcome]) -> Figure | str:
    """A figure, laid out, or why there is none."""
    figure: Figure | str = importlib.import_module(f"vtop.app.plots.{name}").draw(outcomes)
    if not isinstance(figure, str):
        # laid out once: a second time would move things by a little, and take as long again
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    return figure


def _save(figure: Figure, path: Path) -> Path:
    # no dates and versions: the same runs give the same bytes
    metadata: dict[str, None] = {"Date": None, "Creator": None} if path.suffix == ".svg" else {"Software": None}
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:], metadata=metadata)
    write_file("--plot", path, drawn.getvalue())
    return path
