"""An unknown command or a stray value names itself, and the way on."""

from __future__ import annotations

import pytest

from vtop.app.cli import main


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["simm"], "command = 'simm': did you mean sim?\n"),
        (["xyz"], "command = 'xyz': choose one of calibrate, config, conform, models, run, sim; see `vtop --help`"),
        (["--paused", "sim"], "command = 'sim': it comes before its options: vtop sim ..."),
        (["--prompt", "hello", "world"], "value = 'world': no option takes it; quote what belongs together, or see"),
        (["sim", "fcfs"], "value = 'fcfs': `vtop sim` takes no such value; quote what belongs together, or see"),
        (["models", "list", "all"], "value = 'all': `vtop models list` takes no such value"),
        (["models", "lst"], 'Unknown command "lst"'),
        (["run", "--headless", "yes"], "value = 'yes': `vtop run` takes no such value"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_it_names_itself(arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"vtop: {line}") and told.count("\n") == 1
    assert "Unused Tokens" not in told
