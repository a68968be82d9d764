"""Layers of settings, and that every mistake is one line with a remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vtop.app.options import AppConfig, options
from vtop.app.settings import BadSettings, Origin, load_settings
from vtop.engine.config import EngineConfig
from vtop.engine.errors import BadValue


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return path


def test_each_layer_wins_over_the_one_below(tmp_path: Path) -> None:
    path = write(tmp_path, '[engine]\nblock_size = 32\nseed = 1\nmax_num_seqs = 8\n[app]\ntheme = "x"\nspeed = 4\n')
    settings = load_settings({"seed": 3}, {"VTOP_SEED": "2", "VTOP_MAX_NUM_SEQS": "9", "VTOP_ASCII": "yes"}, path)
    assert settings.values["block_size"] == 32 and settings.origins["block_size"] is Origin.FILE
    assert settings.values["max_num_seqs"] == 9 and settings.origins["max_num_seqs"] is Origin.ENVIRONMENT
    assert settings.values["seed"] == 3 and settings.origins["seed"] is Origin.COMMAND_LINE
    assert settings.origins["model"] is Origin.DEFAULT
    assert settings.engine_config() == EngineConfig(block_size=32, seed=3, max_num_seqs=9)
    assert settings.app_config() == AppConfig(theme="x", speed=4.0, ascii=True)


def test_no_file_is_no_error(tmp_path: Path) -> None:
    settings = load_settings({}, {}, tmp_path / "none.toml")
    assert settings.engine_config() == EngineConfig() and settings.app_config() == AppConfig()
    assert settings.path is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[engine]\nblok_size = 3", "engine.blok_size: did you mean block_size?"),
        ("[engin]\n", "[engin]: did you mean engine?"),
        ("[app]\nblock_size = 3", "app.block_size: it belongs in [engine]"),
        ('[engine]\nblock_size = "x"', "engine.block_size = 'x': give a whole number"),
        ("[engine]\nseed = true", "engine.seed = True: give a whole number"),
        ('[engine]\nbatching = "chunky"', "engine.batching = 'chunky': choose one of chunked, prefill-first"),
        ("[app]\nascii = 1", "app.ascii = 1: give true or false"),
        ("engine = 3", "engine = 3: write a section [engine]"),
        ("[keys]\nquitt = 'q'", "keys.quitt: did you mean quit?"),
        ("[keys]\nquit = 'escpe'", "keys.quit = 'escpe': did you mean escape?"),
        ("[keys]\nquit = 'cmd+q'", "keys.quit = 'cmd+q': modifiers are ctrl"),
        ("[keys]\nquit = 3", "keys.quit = 3: give a key"),
        ("[keys]\npause = 'f2'\nstep = 'f2'", "keys.step = 'f2': pause has that key; choose another"),
        ("[engine", "this is not TOML"),
    ],
)
def test_a_mistake_in_the_file_names_file_key_and_remedy(text: str, says: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(BadSettings) as raised:
        load_settings({}, {}, path)
    assert says in str(raised.value) and str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_keys_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, '[keys]\npause = "f2"\nquit = ["ctrl+q", "Q"]\n')
    assert load_settings({}, {}, path).keys == {"pause": "f2", "quit": "ctrl+q,Q"}


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"VTOP_BLOCK_SIZE": "abc"}, "VTOP_BLOCK_SIZE = 'abc': give a whole number"),
        ({"VTOP_BLOCK_SISE": "1"}, "did you mean VTOP_BLOCK_SIZE?"),
        ({"VTOP_MOUSE": "maybe"}, "VTOP_MOUSE = 'maybe': give true or false"),
    ],
)
def test_a_mistake_in_the_environment(environment: dict[str, str], says: str, tmp_path: Path) -> None:
    with pytest.raises(BadValue) as raised:
        load_settings({}, environment, tmp_path / "none.toml")
    assert says in str(raised.value)


def test_names_of_others_are_left_alone(tmp_path: Path) -> None:
    load_settings({}, {"VTOP_MODELS": "/x", "VTOP_CONFIG_OF_MINE": "1"}, tmp_path / "none.toml")


def test_none_can_be_said(tmp_path: Path) -> None:
    settings = load_settings({}, {"VTOP_MAX_MODEL_LEN": "none"}, write(tmp_path, "[engine]\nmax_model_len = 5\n"))
    assert settings.values["max_model_len"] is None


def test_every_option_has_help_and_can_be_set() -> None:
    for key, option in options().items():
        assert option.help and not option.help.endswith("."), key
        assert option.flag.startswith("--") and "_" not in option.flag


@pytest.mark.parametrize(
    "values", [{"fps": 0}, {"fps": 61}, {"speed": 0.0}, {"max_tokens": 0}, {"temperature": -1.0}], ids=str
)
def test_values_of_the_screen_are_checked(values: dict[str, Any]) -> None:
    with pytest.raises(BadValue, match=next(iter(values))):
        AppConfig(**values)
