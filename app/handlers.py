"""What each action of the table does: the method `some_id` is the handler of action `some-id`."""

from __future__ import annotations

import datetime
from pathlib import Path

from vtop.app.actions import PANELS
from vtop.app.files import write_file
from vtop.app.live.inject import Burst, Wanted
from vtop.app.live.view import COLOURINGS
from vtop.app.screens.dialogs import ConfirmScreen, burst_form, inject_form, option_form, priority_form, resize_form
from vtop.app.screens.help import HelpScreen
from vtop.app.screens.loader import Loader
from vtop.app.screens.shell import Shell
from vtop.app.widgets.map.map import HostMap
from vtop.engine import commands as cmd
from vtop.engine.errors import BadValue
from vtop.engine.policy_spec import FILE_MARK

FIRST_CAP = 16.0  # steps per second, the first `slower` from no cap
HIGHEST_CAP = 1024.0
LOWEST_CAP = 0.125
UNTIL = frozenset({"preempted", "swapped-out", "finished", "refused"})


class Handlers:
    """Acts on the app for a key, a click, or a line of the palette."""

    def __init__(self, app: Shell) -> None:
        self.app = app
        self._bursts = 0
        self._loader = Loader(app, self.burst)

    # --- engine ------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        state = self.app.pump.live
        assert state is not None
        self.app.feed.send(cmd.Resume() if state.paused else cmd.Pause())

    def step(self) -> None:
        self.app.feed.send(cmd.Step())

    def run_until(self) -> None:
        self.app.feed.send(cmd.RunUntil(UNTIL))

    def slower(self) -> None:
        cap = self.app.cap
        self._set_speed(FIRST_CAP if cap is None else max(LOWEST_CAP, cap / 2))

    def faster(self) -> None:
        cap = self.app.cap
        if cap is not None:
            self._set_speed(cap * 2 if cap * 2 <= HIGHEST_CAP else None)

    def _set_speed(self, cap: float | None) -> None:
        self.app.cap = cap
        self.app.feed.send(cmd.SetSpeed(cap))

    def resize(self) -> None:
        state = self.app.pump.live
        assert state is not None

        def done(blocks: int | None) -> None:
            if blocks is not None:
                self.app.feed.send(cmd.ResizePool(blocks))

        self.app.push_screen(resize_form(state.num_blocks, state.block_size), done)

    def option(self) -> None:
        state = self.app.pump.live
        assert state is not None

        def done(commands: list[cmd.SetOption] | None) -> None:
            for command in commands or ():
                self.app.feed.send(command)

        self.app.push_screen(option_form(state.options), done)

    def reset_cache(self) -> None:
        self.app.feed.send(cmd.ResetPrefixCache())

    def reload_policy(self) -> None:
        state = self.app.pump.live
        assert state is not None
        if FILE_MARK in str(state.options.get("scheduling_policy", "")):
            self.app.feed.send(cmd.ReloadPolicy())
        else:
            self.app.say("no file to load: the policy is not one of yours (FILE.py:Class)", "warning")

    # --- requests ----------------------------------------------------------------------------------------------

    def prompt(self) -> None:
        self.app.overview.focus_prompt()

    def inject(self) -> None:
        def done(wanted: Wanted | None) -> None:
            if wanted is not None:
                for command in self.app.injector.wanted(wanted):
                    self.app.feed.send(command)

        self.app.push_screen(inject_form(self.app.injector.params), done)

    def load(self) -> None:
        self._loader.ask()

    def burst(self) -> None:
        def done(burst: Burst | None) -> None:
            if burst is not None:
                self._bursts += 1
                for command in self.app.injector.burst(burst):
                    self.app.feed.send(command)

        self.app.push_screen(burst_form(self.app.injector.params, self._bursts), done)

    def details(self) -> None:
        self.app.open_request()

    def priority(self) -> None:
        state, request_id = self.app.pump.live, self.app.view.selected
        assert state is not None and request_id is not None

        def done(priority: float | None) -> None:
            if priority is not None:
                self.app.feed.send(cmd.SetPriority(request_id, priority))

        self.app.push_screen(priority_form(self.app.clean(request_id), state.requests[request_id].priority), done)

    def why(self) -> None:
        self.app.open_why()

    def abort(self) -> None:
        request_id = self.app.view.selected
        assert request_id is not None

        def done(yes: bool | None) -> None:
            if yes:
                self.app.feed.send(cmd.AbortRequest(request_id))

        question = f"Abort request {self.app.clean(request_id)}?"
        self.app.push_screen(ConfirmScreen(question, yes="Abort", again=self.app.keys_of("abort")), done)

    def follow(self) -> None:
        selection = self.app.selection
        selection.follow = not selection.follow
        self.app.say("following the running request" if selection.follow else "no longer following")
        self.app.touch()

    def copy(self) -> None:
        request = self.app.view.selected_request
        if request is None:
            self.app.say("that request is no longer kept", "warning")
            return
        text = (request.prompt or "") + request.text
        self.app.copy_to_clipboard(text)
        self.app.say(f"copied {len(text):,} characters of {self.app.clean(request.id)}")

    # --- view --------------------------------------------------------------------------------------------------

    def colouring(self) -> None:
        view = self.app.view
        view.colouring = COLOURINGS[(COLOURINGS.index(view.colouring) + 1) % len(COLOURINGS)]
        self.app.touch()

    def freeze(self) -> None:
        if self.app.view.frozen:
            self.app.pump.thaw()
        else:
            self.app.pump.freeze()
        self.app.touch()

    def look(self) -> None:
        bar = self.app.overview.look
        bar.wanted = not bar.wanted
        if not bar.wanted:
            self.app.say(f"{self.app.sign_of('look')} shows what to look at again")
        self.app.overview.rearrange()
        self.app.touch()

    def maximise(self) -> None:
        self.app.overview.maximise()
        self.app.touch()

    def panel(self, name: str) -> None:
        if name == "host" and not HostMap.has_content(self.app.view):
            self.app.say("host pool: nothing was swapped out to it yet")
            return
        self.app.overview.toggle(name)
        self.app.touch()

    def next_panel(self) -> None:
        self.app.screen.focus_next()

    def previous_panel(self) -> None:
        self.app.screen.focus_previous()

    def back(self) -> None:
        app = self.app
        if app.screen is not app.overview:
            app.pop_screen()
        elif app.overview.maximised:
            app.overview.maximise()
        elif app.view.selected is not None or app.view.selected_block is not None:
            app.select(None)
        app.touch()

    # --- program -----------------------------------------------------------------------------------------------

    def screenshot(self) -> None:
        path = Path.cwd() / f"vtop-{datetime.datetime.now():%Y%m%d-%H%M%S-%f}.svg"
        try:
            write_file("screenshot", path, self.app.export_screenshot(title="vtop").encode())
        except BadValue as error:
            self.app.say(f"screenshot {path.name} {error.remedy}; start vtop in a folder you can write to", "error")
        else:
            self.app.say(f"saved {path}")

    def theme(self) -> None:
        self.app.theme = self.app.themes.after(self.app.theme)
        self.app.say(f"theme {self.app.theme}")

    def help(self) -> None:
        self.app.push_screen(HelpScreen(self.app.actions, self.app.view.ascii))

    def palette(self) -> None:
        self.app.action_command_palette()

    def quit(self) -> None:
        state = self.app.pump.live
        alive = len(state.requests) if state is not None else 0
        trouble = bool(self.app.last_words)
        if not alive or trouble:
            self.app.leave(1 if trouble else 0)
            return

        def done(yes: bool | None) -> None:
            if yes:
                self.app.leave(0)

        what = "1 request is" if alive == 1 else f"{alive} requests are"
        question = f"{what} still alive. Quit anyway?"
        self.app.push_screen(ConfirmScreen(question, yes="Quit", again=self.app.keys_of("quit")), done)

    def interrupt(self) -> None:
        self.app.leave(130)

    def suspend(self) -> None:
        self.app.action_suspend_process()

    def call(self, action_id: str) -> None:
        """Do the action with that id."""
        if action_id == "leave-prompt":
            self.app.overview.leave_prompt()
        elif action_id.removeprefix("panel-") in PANELS:
            self.panel(action_id.removeprefix("panel-"))
        else:
            getattr(self, action_id.replace("-", "_"))()
