"""The table of actions: keys, signs, and when each may be used."""

from __future__ import annotations

from vtop.app.actions import ACTIONS, BY_ID, Situation, bindings, key_problem, key_sign, with_keys
from vtop.app.handlers import Handlers


def test_the_table_is_consistent() -> None:
    assert len(BY_ID) == len(ACTIONS)
    keys = [key for action in ACTIONS for key in action.keys]
    assert len(keys) == len(set(keys)), "a key stands for two actions"
    for action in ACTIONS:
        assert action.title and action.keys, action.id
        assert all(not key_problem(key) for key in action.keys), action.id
        handler = action.id.replace("-", "_")
        assert action.id.startswith("panel-") or callable(getattr(Handlers, handler)), action.id
    assert len(bindings()) == len(ACTIONS)


def test_nothing_needs_ctrl_but_what_must() -> None:
    """Terminal multiplexers take Ctrl keys; only these use one (T: posting#95)."""
    assert {k for a in ACTIONS for k in a.keys if k.startswith("ctrl+")} == {"ctrl+p", "ctrl+c", "ctrl+z"}


def test_a_users_key_leaves_the_default_action() -> None:
    actions = {action.id: action for action in with_keys({"theme": "q,T"})}
    assert actions["theme"].keys == ("q", "T")
    assert actions["quit"].keys == ("f10",)


def test_signs_of_keys() -> None:
    signs = [key_sign(k) for k in ("question_mark", "full_stop", "ctrl+p", "f10", "x", "escape")]
    assert signs == ["?", ".", "^p", "F10", "x", "Esc"]


def test_nothing_touches_a_stopped_engine() -> None:
    now = Situation(loaded=True, failed=True, alive=3, selected=True, selected_alive=True)
    enabled = {a.id for a in ACTIONS if a.enabled(now)}
    assert not enabled & {
        "pause",
        "step",
        "run-until",
        "inject",
        "burst",
        "abort",
        "resize",
        "slower",
        "faster",
        "prompt",
    }
    assert {"quit", "help", "theme", "copy", "details"} <= enabled
