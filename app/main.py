"""The Textual App. Wiring only: the feed goes into the pump, the pump into the view, the view onto the screen."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import ClassVar

from textual import events
from textual.actions import ActionParseResult
from textual.app import SystemCommand
from textual.binding import BindingType
from textual.command import CommandPalette
from textual.dom import DOMNode
from textual.screen import Screen

from vtop.app.actions import BY_ID, Action, Situation, bindings, key_sign, with_keys
from vtop.app.handlers import Handlers
from vtop.app.live.feed import Feed
from vtop.app.live.inject import Injector
from vtop.app.live.playing import Look, Playing
from vtop.app.live.pump import Pacer, Pump, fallback_text
from vtop.app.live.view import View
from vtop.app.options import AppConfig
from vtop.app.screens.fields import TextInput
from vtop.app.screens.key_bar import KeyBar
from vtop.app.screens.look_bar import LookBar
from vtop.app.screens.overview import OverviewScreen
from vtop.app.screens.prompt_bar import PromptBar
from vtop.app.screens.request import RequestScreen, WhyScreen
from vtop.app.screens.shell import Shell
from vtop.app.screens.status import NEEDS_SELECTION, situation_of, status_word, why_not
from vtop.app.screens.troubles import Closing, Troubles
from vtop.app.terminal.key_gate import Input, KeyGate
from vtop.app.terminal.stray import StrayOutput
from vtop.app.terminal.themes import Themes, load_themes
from vtop.app.widgets.event_log import EventLog
from vtop.app.widgets.map.map import BlockMap, HostMap
from vtop.app.widgets.queue_table import QueueTable
from vtop.app.widgets.selection import Selection
from vtop.engine.request import SamplingParams

FIRST_PAINT = 0.03  # seconds that the terminal gets before loading begins
BACKLOG_PAUSE = 0.004  # seconds for keys between two pulls while Frames are left


class VtopApp(Shell):
    """Shows one feed. `return_code` says how it ended."""

    CSS_PATH = "vtop.tcss"
    TITLE = "vtop"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings()]
    ENABLE_COMMAND_PALETTE = True

    def __init__(
        self,
        feed: Feed,
        config: AppConfig | None = None,
        *,
        model: str = "",
        keymap: dict[str, str] | None = None,
        themes: Themes | None = None,
        stray: StrayOutput | None = None,
        playing: Playing | None = None,
    ) -> None:
        self.config = config or AppConfig()
        self.stray = stray
        super().__init__()
        self.animation_level = "none"
        self.feed = feed
        playing = playing or Playing()
        self.view = View(ascii=self.config.ascii, clock=playing.clock)
        self.selection = Selection(self.view)
        self.themes = themes or load_themes()
        self.actions = with_keys(keymap or {})
        self._keymap_wanted = keymap or {}
        self.key_bar = KeyBar(self.actions, lambda: self.situation, id="keys")
        self.overview = OverviewScreen(self.key_bar, model, self.config.ascii)
        self.overview.look.say(playing.look)
        if playing.time_scale is not None:
            self.overview.prompt.made_up_tokens()
        self.pump = Pump(feed, self.view, self.overview.log_frame)
        params = SamplingParams(max_tokens=self.config.max_tokens, temperature=self.config.temperature)
        self.injector = Injector(params, self.config.cache_salt)
        self.handlers = Handlers(self)
        self.troubles = Troubles(self, stray)
        self.gate = KeyGate(self)
        self.closing = Closing(self)
        self.cap = self.config.speed
        self._pacer = Pacer(float(self.config.fps))
        self._drawn: tuple[object, ...] = ()
        self._draw_due = 0.0

    # --- life --------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        for theme in self.themes.themes.values():
            self.register_theme(theme)
        self.theme = self.themes.chosen(self.config.theme)
        self.set_keymap(self._keymap_wanted)
        if self.stray is not None:
            self.stray.catch_streams()
        self.set_class(self.config.ascii, "-ascii")
        self.push_screen(self.overview)
        # Loading takes the interpreter for seconds, so it must not begin before the first picture is out.
        self.overview.call_after_refresh(self.set_timer, FIRST_PAINT, self._start)

    def _start(self) -> None:
        for problem in self.themes.problems:
            self.say(problem, "warning")
        self.feed.start()
        self._tick()

    # --- input -------------------------------------------------------------------------------------------------

    async def on_event(self, event: events.Event) -> None:
        if not self._held(event):
            await super().on_event(event)

    def _held(self, event: events.Event) -> bool:
        """It is typed, and something typed before is still at work. The key that quits at once waits for nobody."""
        if not isinstance(event, Input) or event.is_forwarded:
            return False
        if isinstance(event, events.Key) and event.key in self.keys_of("interrupt"):
            return False
        return not self.gate.admits(event)

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        try:
            return await super().run_action(action, default_namespace, namespaces)
        except Exception as error:
            # it is run by the app, whichever screen's key it was
            if self.closing.closed_for(error, default_namespace):
                return True
            raise

    def _handle_exception(self, error: Exception) -> None:
        if not self.closing.closed_for(error):
            super()._handle_exception(error)

    # --- the tick ----------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self._leaving:
            return
        began = time.perf_counter()
        self.feed.busy(True)
        self._look_at_loading()
        self.pump.pull()
        if news := self.pump.news():
            self.say(news)
        self.troubles.look(began)
        if began >= self._draw_due:
            # what it costs, not how long it takes while other threads and programs want the machine too
            cost = time.thread_time()
            self._draw()
            # the beat is kept through small delays, and begun anew after a long one
            self._draw_due = max(self._draw_due + self._pacer.period, began + self._pacer.period / 2)
            self._pacer.took(time.thread_time() - cost)
        # What is left over is folded between two pictures, with a pause for keys after every piece.
        left = self._draw_due - time.perf_counter()
        self.set_timer(BACKLOG_PAUSE if self.feed.pending else max(BACKLOG_PAUSE, left), self._tick)
        self.call_after_refresh(self.feed.busy, False)

    def touch(self) -> None:
        self.view.touch()
        self._draw()

    def _draw(self) -> None:
        screen = next((s for s in reversed(self.screen_stack) if isinstance(s, (OverviewScreen, RequestScreen))), None)
        if screen is None or not screen.is_mounted:
            return
        self.selection.keep(leave=screen is not self.overview)
        bar = screen.key_bar if isinstance(screen, RequestScreen) else self.key_bar
        bar.update_bar(hints=screen.hints, typing=screen.typing)
        drawn = (self.view.version, screen, self.status, self.overview.layout_now)
        if drawn == self._drawn:
            return
        self._drawn = drawn
        with self.batch_update():
            screen.draw(self.view, self.status)

    def _look_at_loading(self) -> None:
        if self.pump.live is not None:
            return
        self.overview.loading_panel.show_status(self.feed.status)
        if self.feed.meta is not None:
            self.pump.pull()
            self.overview.loaded(self.feed.meta)
            fallback = fallback_text(self.feed.meta)
            if fallback:
                self.say(fallback, "warning")

    # --- what is selected --------------------------------------------------------------------------------------

    def select(self, request_id: str | None, block: int | None = None) -> None:
        self.selection.select(request_id, block)
        self.touch()

    def open_request(self) -> None:
        if self.view.selected is not None and self.screen is self.overview:
            self.push_screen(RequestScreen(KeyBar(self.actions, lambda: self.situation)))
            self.call_after_refresh(self.touch)

    def open_why(self) -> None:
        if isinstance(self.screen, WhyScreen):
            self.pop_screen()
        elif self.view.selected is not None:
            self.push_screen(WhyScreen(KeyBar(self.actions, lambda: self.situation)))
            self.call_after_refresh(self.touch)

    def action_neighbour(self, step: int) -> None:
        """On the request screen: the next or previous one in the order of the queues."""
        if self.selection.select_neighbour(step):
            self.touch()

    def on_block_map_picked(self, message: BlockMap.Picked) -> None:
        self.selection.select_block(message.block)
        self.touch()

    def on_host_map_picked(self, message: HostMap.Picked) -> None:
        self.selection.select_host_block(message.block)
        self.touch()

    def on_queue_table_selected(self, message: QueueTable.Selected) -> None:
        self.select(message.request_id)

    def on_event_log_selected(self, message: EventLog.Selected) -> None:
        self.select(message.request_id)

    def on_queue_table_opened(self, message: QueueTable.Opened) -> None:
        self.select(message.request_id)
        self.open_request()

    # --- actions -----------------------------------------------------------------------------------------------

    @property
    def situation(self) -> Situation:
        """What decides which actions make sense."""
        overview = not any(isinstance(screen, RequestScreen) for screen in self.screen_stack)
        look = self.overview.look.look is not None
        return situation_of(self.pump.live, self.view, failed=self.troubles.failed, overview=overview, look=look)

    def action_act(self, action_id: str) -> None:
        """Do the action with that id, or say why not."""
        action = BY_ID.get(action_id)
        now = self.situation
        if action is not None and not action.enabled(now):
            self.say(f"{action.title}: {why_not(action_id in NEEDS_SELECTION, now)}", "warning")
            return
        self.handlers.call(action_id)
        self._draw()

    @property
    def last_words(self) -> str:
        return self.troubles.last_words

    @property
    def status(self) -> str:
        """The engine's state in a word or two, for the header."""
        return status_word(self.pump.live, self.feed.status)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette: every action that makes sense now."""
        now = self.situation
        for action in self.actions:
            if action.enabled(now) and action.id not in ("palette", "next-panel", "previous-panel"):
                yield SystemCommand(action.title, self._palette_help(action), lambda a=action.id: self.action_act(a))

    def action_command_palette(self) -> None:
        """Open the palette."""
        if not isinstance(self.screen, CommandPalette):
            self.push_screen(CommandPalette(placeholder="find an action", id="--command-palette"))

    def _palette_help(self, action: Action) -> str:
        keys = " ".join(key_sign(key) for key in action.keys)
        return f"{action.help} ({keys})" if keys else action.help

    def show_look(self, look: Look) -> None:
        self.overview.look.say(look)
        self.overview.rearrange()
        self.touch()

    def on_look_bar_clicked(self, message: LookBar.Clicked) -> None:
        self.handlers.look()

    def on_key_bar_clicked(self, message: KeyBar.Clicked) -> None:
        self.action_act(message.action_id)

    # --- prompts -----------------------------------------------------------------------------------------------

    def on_prompt_bar_injected(self, message: PromptBar.Injected) -> None:
        if not self.situation.running:
            self.say(f"prompt: {why_not(False, self.situation)}", "warning")
            self.overview.prompt.input.value = message.prompt  # typed text is not lost
            return
        self.feed.send(self.injector.typed(message.prompt))

    def on_prompt_bar_left(self) -> None:
        self.overview.leave_prompt()
        self._draw()

    def on_descendant_focus(self) -> None:
        self._draw()

    def on_text_input_cut(self, message: TextInput.Cut) -> None:
        self.say(f"the paste was cut by {message.lost:,} characters", "warning")
