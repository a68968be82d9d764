"""Everything a person can do, once: keys, footer, help screen, palette and the user's keymap are made from this table.

What an action does is the method of its id in `handlers.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from textual.binding import Binding
from textual.keys import _character_to_key


class Group(StrEnum):
    ENGINE = "Engine"
    REQUESTS = "Requests"
    VIEW = "View"
    PROGRAM = "Program"


@dataclass(frozen=True, slots=True)
class Situation:
    """What decides whether an action makes sense now."""

    loaded: bool = False
    failed: bool = False
    paused: bool = False
    alive: int = 0  # requests that wait or run
    selected: bool = False
    selected_alive: bool = False
    overview: bool = True  # the overview is on top, not the request screen
    frozen: bool = False
    look: bool = False  # a scenario says what to look at

    @property
    def running(self) -> bool:
        """An engine is there and takes commands."""
        return self.loaded and not self.failed


def _always(_: Situation) -> bool:
    return True


def _engine(now: Situation) -> bool:
    return now.running


def _loaded(now: Situation) -> bool:
    return now.loaded


def _overview(now: Situation) -> bool:
    return now.loaded and now.overview


def _prompt(now: Situation) -> bool:
    # while the model loads too: what is typed behind a key that did nothing would be taken for commands
    return now.overview and not now.failed


def _selected(now: Situation) -> bool:
    return now.loaded and now.selected


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do. `keys` are Textual key names, the first one is shown; `short` is its name in the footer."""

    id: str
    keys: tuple[str, ...]
    title: str
    help: str
    group: Group
    enabled: Callable[[Situation], bool] = _always
    short: str = ""
    short_now: Callable[[Situation], str] | None = None  # when the footer's word depends on the situation
    priority: bool = False  # works while a text field has the focus

    def footer(self, now: Situation) -> str:
        return self.short_now(now) if self.short_now is not None else self.short


PANELS: tuple[str, ...] = ("map", "running", "waiting", "finished", "events", "charts", "host")
"""Panels by number: key 1 is the first."""

_PANEL_TITLES = {
    "map": "block map",
    "running": "running queue",
    "waiting": "waiting queue",
    "finished": "finished requests",
    "events": "event log",
    "charts": "charts",
    "host": "map of the host pool",
}

ACTIONS: tuple[Action, ...] = (
    Action("prompt", ("p", "colon"), "Type a prompt", "Go to the prompt bar; Enter injects what is typed, Esc leaves",
           Group.REQUESTS, _prompt, "prompt"),
    Action("pause", ("space",), "Pause or resume the engine", "Stops between two steps; nothing is lost", Group.ENGINE,
           _engine, "pause", lambda s: "resume" if s.paused else "pause"),
    Action("step", ("full_stop",), "One step", "Run one scheduler step, then pause", Group.ENGINE, _engine, "step"),
    Action("run-until", ("greater_than_sign",), "Run to the next event",
           "Run until a request is preempted, swapped out, finished or refused, then pause", Group.ENGINE, _engine,
           "next event"),
    Action("inject", ("i", "f7"), "Inject requests", "A form: prompt, sampling, priority, group, how many",
           Group.REQUESTS, _engine, "inject"),
    Action("load", ("I",), "Load many requests", "A scenario, your own file, or a burst of made-up prompts",
           Group.REQUESTS, _engine, "load"),
    Action("details", ("enter",), "Request details", "Open the selected request: text, block table, history",
           Group.REQUESTS, lambda s: s.loaded and s.selected and s.overview, "details"),
    Action("why", ("w",), "Why is it there?",
           "What the selected request waits for, who is ahead, who must end first, and what was decided so far",
           Group.REQUESTS, _selected, "why"),
    Action("abort", ("x", "f9"), "Abort the selected request", "Asks first; its blocks go back to the pool",
           Group.REQUESTS, lambda s: s.running and s.selected_alive, "abort"),
    Action("priority", ("P",), "Set the priority of the selected request", "The order of the queues follows at once",
           Group.REQUESTS, lambda s: s.running and s.selected_alive),
    Action("option", ("o",), "Set options of the scheduler",
           "Policy, victim rule, caps and more, while requests run; nobody loses anything", Group.ENGINE, _engine,
           "options"),
    Action("reset-cache", ("C",), "Forget cached blocks",
           "Nothing can be hit until it is written again; requests keep theirs", Group.ENGINE, _engine),
    Action("reload-policy", ("R",), "Load your policy again",
           "Reads FILE.py of your own policy again; a bad one is told and the old one stays", Group.ENGINE, _engine),
    Action("colouring", ("m",), "Next map colouring", "By owner, state, age, references", Group.VIEW, _overview,
           "colours"),
    Action("follow", ("F",), "Follow the running request",
           "Select the next running request whenever the selected one ends", Group.REQUESTS, _loaded),
    Action("slower", ("minus",), "Slower", "Halve the cap on steps per second (from no cap: 16)", Group.ENGINE, _engine,
           "slower"),
    Action("faster", ("plus", "equals_sign"), "Faster", "Double the cap; above 1024 steps per second it is lifted",
           Group.ENGINE, _engine, "faster"),
    Action("resize", ("r",), "Resize the block pool",
           "Give the device pool another number of blocks while requests run", Group.ENGINE, _engine, "resize"),
    Action("freeze", ("z",), "Freeze the view", "The picture stands still, the engine goes on", Group.VIEW, _loaded,
           "freeze", lambda s: "unfreeze" if s.frozen else "freeze"),
    Action("look", ("L",), "What to look at", "Show or hide what the scenario says to look at", Group.VIEW,
           lambda s: s.loaded and s.overview and s.look),
    Action("maximise", ("M",), "Maximise the focused panel", "Once more, or Esc, brings the others back", Group.VIEW,
           _overview, "maximise"),
    *(
        Action(f"panel-{name}", (str(number),), f"Show or hide the {_PANEL_TITLES[name]}",
               "What is asked for goes before others when room is short" if number == 1 else "", Group.VIEW, _overview)
        for number, name in enumerate(PANELS, 1)
    ),
    Action("next-panel", ("tab",), "Next panel", "", Group.VIEW),
    Action("previous-panel", ("shift+tab",), "Previous panel", "", Group.VIEW),
    Action("back", ("escape",), "Back", "Leave details, a maximised panel or a selection", Group.VIEW, _loaded, "back",
           lambda s: "" if s.overview else "back"),
    Action("copy", ("y",), "Copy the selected request", "Prompt and output to the clipboard (OSC 52; works over ssh)",
           Group.REQUESTS, _selected),
    Action("screenshot", ("S",), "Save a screenshot", "An SVG file in the current folder", Group.PROGRAM),
    Action("theme", ("t",), "Next theme", "Your own go into the themes folder beside the settings file", Group.PROGRAM,
           short="theme"),
    Action("help", ("question_mark", "h", "f1"), "Help", "All keys, glyphs and terms", Group.PROGRAM, short="help"),
    Action("palette", ("ctrl+p",), "Command palette", "Find an action by name", Group.PROGRAM, short="palette",
           priority=True),
    Action("quit", ("q", "f10"), "Quit", "Asks while requests are alive", Group.PROGRAM, short="quit"),
    Action("interrupt", ("ctrl+c",), "Quit at once", "Without asking; exit code 130", Group.PROGRAM, priority=True),
    Action("suspend", ("ctrl+z",), "To the shell", "`fg` comes back", Group.PROGRAM, priority=True),
)  # fmt: skip

BY_ID: dict[str, Action] = {action.id: action for action in ACTIONS}

_NAMED_KEYS = frozenset(
    {"up", "down", "left", "right", "home", "end", "pageup", "pagedown", "enter", "escape", "tab", "backspace"}
    | {"delete", "insert", "space"}
    | {f"f{n}" for n in range(1, 25)}
)
_MODIFIERS = ("ctrl", "shift", "alt", "meta", "super")


def key_problem(name: str) -> str:
    """Why `name` cannot be a key, as a remedy; empty when it can."""
    *modifiers, key = name.split("+") if len(name) > 1 else [name]
    if any(m not in _MODIFIERS for m in modifiers):
        return f"modifiers are {', '.join(_MODIFIERS)}"
    if len(key) == 1 or key in _NAMED_KEYS or (key.replace("_", "").isalnum() and "_" in key):
        return ""
    close = difflib.get_close_matches(key, sorted(_NAMED_KEYS | {"full_stop", "plus", "minus"}), 1, 0.5)
    if key in ("plus", "minus", "colon", "slash", "comma", "semicolon"):
        return ""
    return f"did you mean {close[0]}?" if close else 'give a character or a name such as "f2" or "ctrl+o"'


def with_keys(keymap: dict[str, str]) -> tuple[Action, ...]:
    """The table with the user's keys (action id -> keys with commas between) in place of the defaults.

    A default key that the user gave to another action leaves its own.
    """
    taken = {key: action for action, keys in keymap.items() for key in _split(keys)}
    changed = []
    for action in ACTIONS:
        if action.id in keymap:
            changed.append(replace(action, keys=_split(keymap[action.id])))
        else:
            changed.append(replace(action, keys=tuple(key for key in action.keys if key not in taken)))
    return tuple(changed)


def _split(keys: str) -> tuple[str, ...]:
    return tuple(_character_to_key(key) if len(key) == 1 else key for key in keys.split(",") if key)


def bindings(actions: tuple[Action, ...] = ACTIONS) -> list[Binding]:
    """Textual bindings of the table."""
    return [
        Binding(
            ",".join(action.keys),
            f"act('{action.id}')",
            action.title,
            show=False,
            priority=action.priority,
            id=action.id,
        )
        for action in actions
        if action.keys
    ]


_KEY_SIGNS = {
    "space": "space", "full_stop": ".", "greater_than_sign": ">", "question_mark": "?", "plus": "+", "minus": "-",
    "colon": ":", "equals_sign": "=", "escape": "Esc", "enter": "Enter", "tab": "Tab", "shift+tab": "shift+Tab",
}  # fmt: skip


def key_sign(key: str) -> str:
    """How a key is written on the screen."""
    if key in _KEY_SIGNS:
        return _KEY_SIGNS[key]
    if key.startswith("ctrl+"):
        return f"^{key[5:]}"
    return key.upper() if key[0] == "f" and key[1:].isdigit() else key
