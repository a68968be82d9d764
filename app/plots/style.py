"""How figures look: colours, markers, fonts, labels, axes."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from vtop.app.terminal.safe_text import shorten

# Okabe and Ito's palette: told apart by colour-blind eyes; yellow last, since it is faint on white
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h")
LINES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))
GREY = "#777777"
LABEL_CELLS = 34
RIGHT_OF_ALL: Any = "outside right upper"  # the stubs know only places inside

_SETTINGS: Any = {
    "figure.dpi": 110,
    "savefig.dpi": 110,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.07,
    "figure.constrained_layout.h_pad": 0.07,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.5,
    "svg.hashsalt": "vtop",  # ids that are the same every time
    "text.parse_math": False,  # labels come from outside: `$` is a character
}


@dataclass(frozen=True, slots=True)
class Look:
    """Colour, marker and line together, so that colour never means anything alone."""

    colour: str
    marker: str
    line: Any

    def line_style(self) -> dict[str, Any]:
        return {"color": self.colour, "linestyle": self.line}

    def handle(self, label: str, *, marker: bool = True, line: bool = True) -> Line2D:
        """What stands for it in a legend."""
        style = self.line_style() if line else {"color": self.colour, "linestyle": ""}
        return Line2D([], [], label=label, marker=self.marker if marker else "", **style)


def looks(names: Sequence[str]) -> dict[str, Look]:
    """One for each name; the periods differ, so that many names repeat no whole look."""
    return {
        name: Look(PALETTE[i % len(PALETTE)], MARKERS[i % len(MARKERS)], LINES[i % len(LINES)])
        for i, name in enumerate(names)
    }


@contextmanager
def drawing() -> Iterator[None]:
    """matplotlib as it comes, with the settings above, whatever the user's own are."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a name in a script that the font has not
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield


def label(text: str) -> str:
    """A name from outside, printable and short. Legends leave out what begins with an underscore, hence the space."""
    short = shorten(text, LABEL_CELLS)
    return f" {short}" if short.startswith("_") else short


def grid(rows: int, columns: int, width: float, height: float, *, times: bool = False) -> tuple[Figure, list[Axes]]:
    """A figure of `rows` × `columns` panels, each of that many inches, and the panels row by row.

    With `times`, all have one axis of seconds, written below the last row.
    """
    figure = Figure(figsize=(width * columns, height * rows + 0.8 * times))
    axes = figure.subplots(rows, columns, squeeze=False, sharex=times)
    if times:
        for axis in axes[-1]:
            axis.set_xlabel("seconds")
    return figure, list(axes.flat)


def titles(figure: Figure, title: str, caption: str) -> None:
    """Title above, what one must know to read the figure below."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=12.5, fontweight="bold")
    width = int(figure.get_figwidth() * 14)  # characters of the caption's size
    figure.supxlabel("\n".join(textwrap.wrap(caption, width)), x=0.01, ha="left", fontsize=9, color="#444444")


def legend(figure: Figure, handles: Sequence[Any], title: str = "") -> None:
    """Beside the panels: it covers nothing, however many names there are."""
    figure.legend(handles=list(handles), loc=RIGHT_OF_ALL, title=title or None, alignment="left")


def log_axis(axis: Any, low: float, high: float) -> None:
    """Logarithmic, with plain numbers, the more of them the fewer decades are shown."""
    getattr(axis.axes, f"set_{axis.axis_name}scale")("log", nonpositive="clip")
    reach = high / low
    subs = (1.0,) if reach > 300 else (1.0, 2.0, 5.0) if reach > 8 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    axis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def thousands(axis: Any) -> None:
    """Plain numbers with separators."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
