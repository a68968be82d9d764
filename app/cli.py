"""The command line. Options are those of the table in `options.py`; nothing here imports torch, and little Textual."""

from __future__ import annotations

import difflib
import errno
import os
import sys
from collections.abc import Sequence
from dataclasses import field, fields, is_dataclass, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import cyclopts
from cyclopts import App, Group, Parameter

from vtop.app.commands.sim.arguments import SimArguments
from vtop.app.commands.unattended import Ended
from vtop.app.live.burst import Lengths
from vtop.app.options import UNSET, Option, kind_word, options, strict, strict_given
from vtop.app.terminal.printing import tell
from vtop.engine.errors import BadValue, VtopError
from vtop.engine.version import VERSION

FAILED = 1
USAGE_ERROR = 2
_OUTPUT_LOST = {getattr(errno, name, None) for name in ("ENOSPC", "EDQUOT", "EIO", "EFBIG", "EBADF")} - {None}

_ENGINE = Group.create_ordered("Engine options")
_SCREEN = Group.create_ordered("Screen and request options")


def _given_class() -> Any:
    """A dataclass with every option, None for what was not given: defaults come from the layers below."""
    made = []
    for option in options().values():
        text = option.help
        if option.default is not None and "default" not in text:
            text += f" (default: {str(option.default).lower() if option.type is bool else option.default})"
        group = _ENGINE if option.section == "engine" else _SCREEN
        converter = strict if option.optional else strict_given
        parameter = Parameter(help=text, group=group, show_default=False, converter=converter)
        kind: Any = Annotated[option.type, parameter]  # not `or None`: that would take null for any
        made.append((option.key, kind, field(default=None)))
    given = make_dataclass("Given", made, kw_only=True)
    given.__module__ = __name__  # cyclopts takes a class of the module "types" for a builtin
    return given


if TYPE_CHECKING:
    Given = Any
    SimGiven = SimArguments | None
else:
    SimGiven = Annotated[SimArguments | None, Parameter(name="*")]
    Given = Annotated[_given_class() | None, Parameter(name="*")]

_WORK = Group.create_ordered("What to run")

app = App(
    name="vtop",
    help="A debugger for LLM scheduling: a real paged-attention engine, live in the terminal.",
    version=f"vtop {VERSION}",
    help_format="plaintext",
    help_epilogue="Settings: config.toml in the config folder, VTOP_* in the environment; see `vtop config`.",
)
models = App(name="models", help="List, fetch and remove models.")
app.command(models)


@app.default
@app.command
def run(
    *,
    given: Given = None,
    headless: Annotated[bool, Parameter(group=_WORK, negative="")] = False,
    prompt: Annotated[
        list[str] | None, Parameter(group=_WORK, consume_multiple=False, negative="", converter=strict_given)
    ] = None,
    prompts: Annotated[Path | None, Parameter(group=_WORK, converter=strict_given)] = None,
    burst: Annotated[int, Parameter(group=_WORK, converter=strict_given)] = 0,
    burst_lengths: Annotated[Lengths, Parameter(group=_WORK)] = Lengths.MIXED,
    duration: Annotated[float | None, Parameter(group=_WORK, converter=strict_given)] = None,
    record: Annotated[Path | None, Parameter(group=_WORK, converter=strict_given)] = None,
    overwrite: Annotated[bool, Parameter(group=_WORK, negative="")] = False,
    json: Annotated[bool, Parameter(group=_WORK, negative="")] = False,
    scenario: Annotated[str | None, Parameter(group=_WORK, converter=strict_given)] = None,
    time_scale: Annotated[float | None, Parameter(group=_WORK, converter=strict_given)] = None,
    on_engine: Annotated[bool, Parameter(group=_WORK, negative="")] = False,
) -> int:
    """Run an engine and watch it.

    Parameters
    ----------
    headless
        No screen: run the prompts and print a summary. Exit code 1 when a step or a request failed, or when all
        requests were refused.
    prompt
        A prompt to run; may be given several times.
    prompts
        A text file with one prompt per line.
    burst
        Add so many made-up prompts.
    burst_lengths
        How their lengths are spread.
    duration
        Headless: stop after so many seconds.
    record
        Write every Frame to this file, which must not be there yet.
    overwrite
        Replace the file of --record when there is one.
    json
        Headless: print the summary as one JSON object.
    scenario
        Play a scenario of the gallery, or a TOML file, in virtual time: NAME or NAME:VARIANT.
    time_scale
        With a scenario: virtual seconds per second at most (default: 1; 0 is as fast as it goes).
    on_engine
        Play the scenario with the model, its times stretched to how fast this machine is.
    """
    from vtop.app.commands.run import RunArguments, run_command

    arguments = RunArguments(headless, prompt or [], prompts, burst, burst_lengths, duration, record, json, overwrite)
    if scenario is not None or time_scale is not None or on_engine:
        from vtop.app.commands.sim.play import PlayArguments, play

        return play(_settings(given), arguments, PlayArguments(scenario, time_scale, on_engine))
    if headless:
        from vtop.app.commands.headless import run_headless

        return run_headless(_settings(given), arguments)
    return run_command(_settings(given), arguments)


@app.command
def sim(*, given: Given = None, arguments: SimGiven = None) -> int:
    """Simulate: the scheduler on a virtual clock; policies compared in tables and plots.

    Without a workload, made-up requests arrive at --rate. On the default card 300 of them at 2, 4 and 6 per second
    take seconds: `vtop sim --rates 2,4,6 --policies fcfs,priority,fair,sjf --priorities 0=0.8,10=0.2
    --groups A=0.8,B=0.2 --num-gpu-blocks-override 256`.
    """
    from vtop.app.commands.sim.command import sim as run_sim

    return run_sim(_settings(given), arguments or SimArguments())


@app.command
def calibrate(
    file: Path, *, output: Path | None = None, overwrite: Annotated[bool, Parameter(negative="")] = False
) -> int:
    """Fit a card's cost model to the steps of a recording.

    Parameters
    ----------
    file
        A recording, made with `vtop run --record`.
    output
        Write the card to this TOML file (default: beside the recording); `vtop sim --card` takes it.
    overwrite
        Replace the file when there is one.
    """
    from vtop.app.commands.calibrate import calibrate as run_calibrate

    return run_calibrate(file, output, overwrite=overwrite)


@app.command
def config(*, given: Given = None) -> int:
    """Show every option with its value and where it comes from."""
    from vtop.app.commands.config import show_config

    return show_config(_settings(given))


@app.command
def conform(file: Path) -> int:
    """Run recorded decisions of vLLM's schedulers against our presets.

    Parameters
    ----------
    file
        A YAML file of cases.
    """
    from vtop.app.commands.conform import conform as run_cases

    return run_cases(file)


@models.command(name="list")
def list_() -> int:
    """Show the models that have a name, and what was fetched."""
    from vtop.app.commands.models import list_models

    return list_models()


@models.command
def pull(name: str) -> int:
    """Fetch a model.

    Parameters
    ----------
    name
        smollm2, or a hub id such as Qwen/Qwen3-0.6B.
    """
    from vtop.app.commands.models import pull_model

    return pull_model(name)


@models.command
def remove(name: str) -> int:
    """Delete a fetched model.

    Parameters
    ----------
    name
        As `vtop models list` shows it.
    """
    from vtop.app.commands.models import remove_model

    return remove_model(name)


def _settings(given: Any) -> Any:
    from vtop.app.settings import load_settings

    named = {}
    if is_dataclass(given):
        named = {f.name: value for f in fields(given) if (value := getattr(given, f.name)) is not None}
        named = {name: None if value is UNSET else value for name, value in named.items()}
    return load_settings(named)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. What the user got wrong is one line on stderr and code 2."""
    if sys.stdout is None:
        tell("vtop: stdout is closed: give it a file, or /dev/null")
        return FAILED
    try:
        result = app(
            list(sys.argv[1:] if arguments is None else arguments),
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
        if sys.stdout is not None:
            sys.stdout.flush()  # a full disk shows here, not on the way out
    except cyclopts.CycloptsError as error:
        return _complain(_one_line(error))
    except BadValue as error:
        return _complain(_as_option(error))
    except VtopError as error:
        return _complain(str(error))
    except KeyboardInterrupt:
        return 130
    except Ended as error:
        return 128 + error.number
    except BrokenPipeError:
        # The reader of our output is gone (`vtop config | head`); Python must not complain about it on the way out.
        _drop_output()
        return FAILED
    except OSError as error:
        if error.filename is not None:  # a disk, a folder, a permission: the machine's matter, no bug
            tell(f"vtop: {os.fsdecode(error.filename)}: {error.strerror}")
            return FAILED
        if error.errno not in _OUTPUT_LOST:
            raise
        _drop_output()
        tell(f"vtop: the output cannot be written ({error.strerror})")
        return FAILED
    except MemoryError as error:
        text = " ".join(str(error).split())
        tell(f"vtop: out of memory{': ' if text else ''}{text}; give fewer blocks or requests, or a smaller model")
        return FAILED
    return result if isinstance(result, int) else 0


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _complain(text: str) -> int:
    tell(f"vtop: {text}")
    return USAGE_ERROR


def _as_option(error: BadValue) -> str:
    """The message with the option's name as it is on the command line."""
    option: Option | None = options().get(error.field)
    if option is None:
        return str(error)
    return str(BadValue(option.flag, error.value, error.remedy))


def _one_line(error: cyclopts.CycloptsError) -> str:
    """What cyclopts found, as name, value and remedy."""
    if isinstance(error, cyclopts.CoercionError) and error.argument is not None and error.token is not None:
        name = error.argument.name
        option = options().get(name.removeprefix("--").replace("-", "_"))
        remedy = option.expects if option is not None else f"give {kind_word(error.target_type)}"
        if name == "--burst-lengths":
            remedy = f"choose one of {', '.join(Lengths)}"
        return str(BadValue(name, error.token.value, remedy))
    if isinstance(error, cyclopts.UnusedCliTokensError) and error.unused_tokens:
        given = error.root_input_tokens or error.unused_tokens
        commands = sorted(name for name in app if not name.startswith("-"))
        return str(_left_over(error.command_chain or (), error.unused_tokens, given, commands))
    text = " ".join(str(error).split())
    return f"{text} See `vtop --help`." if "--help" not in text else text


def _left_over(
    command: Sequence[str], tokens: Sequence[str], given: Sequence[str], commands: Sequence[str]
) -> BadValue:
    """Of what was `given`, `tokens` are left over after `command` (empty: none was named)."""
    first = tokens[0]
    if command:
        name = " ".join(("vtop", *command))
        remedy = f"`{name}` takes no such value; quote what belongs together, or see `{name} --help`"
        return BadValue("value", first, remedy)
    if first in commands:
        return BadValue("command", first, f"it comes before its options: vtop {first} ...")
    if first != given[0]:
        return BadValue("value", first, "no option takes it; quote what belongs together, or see `vtop --help`")
    close = difflib.get_close_matches(first, commands, 1, 0.5)
    remedy = f"did you mean {close[0]}?" if close else f"choose one of {', '.join(commands)}; see `vtop --help`"
    return BadValue("command", first, remedy)
