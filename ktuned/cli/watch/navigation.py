"""Keys of the live screen: each turns a state into the next, and may ask for a request to the daemon. No IO."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum

from ktuned.cli.watch.choice import Choice
from ktuned.cli.watch.kernel_page import kernel_page
from ktuned.cli.watch.keys import GONE
from ktuned.cli.watch.list_page import list_page
from ktuned.cli.watch.parts import Parts, Picture, picture
from ktuned.cli.watch.state import ROWS, Page, Screen
from ktuned.cli.watch.text_pages import keys_page, problems_page, trial_page

MAX_QUERY = 200
"""Characters of a filter: more than a line has."""


class Act(StrEnum):
    """Work that a key asks for, on the selected row or trial."""

    QUIT = "quit"
    OPEN_KERNEL = "open the kernel"
    OPEN_TRIAL = "open the trial"
    TUNE = "tune"
    PAUSE = "pause or resume"
    PAUSE_ALL = "pause or resume all"
    CANCEL = "cancel"


_PAGES: Mapping[Page, Callable[[Screen, float], Parts]] = {
    Page.KERNELS: list_page,
    Page.KERNEL: lambda screen, now: kernel_page(screen),
    Page.TRIAL: lambda screen, now: trial_page(screen),
    Page.PROBLEMS: lambda screen, now: problems_page(screen),
    Page.KEYS: lambda screen, now: keys_page(screen),
}

_ACTS = {"t": Act.TUNE, "p": Act.PAUSE, "P": Act.PAUSE_ALL, "c": Act.CANCEL}
_LISTS = (Page.KERNELS, Page.KERNEL)
_FAR = 10**9


def draw(screen: Screen, now: float) -> Picture:
    """Return the picture of the open page."""
    return picture(_PAGES[screen.page](screen, now), screen.size.columns, screen.size.lines)


def press(screen: Screen, key: str) -> tuple[Screen, Act | None]:
    """Return the state after a key (a character, or the name of another key), and the work that it asks for."""
    if key == GONE:
        return screen, Act.QUIT
    if (step := _step(screen, key)) is not None:
        return _stepped(screen, step), None
    if screen.is_typing:
        return _typed(screen, key), None
    screen = replace(screen, said="")
    match key:
        case "q":
            return screen, Act.QUIT
        case "?" if screen.page != Page.KEYS:
            return _opened(screen, Page.KEYS), None
        case "e" if screen.page != Page.PROBLEMS:
            return _opened(screen, Page.PROBLEMS), None
        case "escape" | "left" | "backspace":
            return _back(screen), None
        case "enter" | "right" if screen.page == Page.KERNELS and screen.selected is not None:
            return replace(_opened(screen, Page.KERNEL), configs=Choice(), log=None), Act.OPEN_KERNEL
        case "enter" | "right" if screen.page == Page.KERNEL and screen.selected_trial is not None:
            return replace(_opened(screen, Page.TRIAL), trial=None), Act.OPEN_TRIAL
        case "/" if screen.page in _LISTS:
            return replace(screen, is_typing=True), None
        case "s" if screen.page in _LISTS:
            choice = screen.choice
            return screen.with_choice(replace(choice, order=choice.order + 1, is_reversed=False)), None
        case "r" if screen.page in _LISTS:
            choice = screen.choice
            return screen.with_choice(replace(choice, is_reversed=not choice.is_reversed)), None
        case _ if key in _ACTS:
            return screen, _ACTS[key]
    return screen, None


def _step(screen: Screen, key: str) -> int | None:
    """Return how far a key moves down the page, or up."""
    page = max(1, screen.size.lines // 2)
    steps = {"up": -1, "down": 1, "pageup": -page, "pagedown": page, "home": -_FAR, "end": _FAR}
    letters = {} if screen.is_typing else {"k": -1, "j": 1}
    return {**steps, **letters}.get(key)


def _stepped(screen: Screen, step: int) -> Screen:
    """Return the screen after a key up or down: on another row, or its text scrolled."""
    if screen.page == Page.KERNELS:
        return replace(screen, kernels=ROWS.moved(screen.rows, screen.kernels, step))
    if screen.page == Page.KERNEL and screen.log is not None:
        return replace(screen, configs=screen.log.listed.moved(screen.trials, screen.configs, step))
    # A page of text shows no times: any will do.
    last = draw(screen, 0.0).last_scroll
    return replace(screen, scroll=max(0, min(min(screen.scroll, last) + step, last)))


def _typed(screen: Screen, key: str) -> Screen:
    choice = screen.choice
    match key:
        case "enter":
            return replace(screen, is_typing=False)
        case "escape":
            return replace(screen.with_choice(replace(choice, query="")), is_typing=False)
        case "backspace":
            return screen.with_choice(replace(choice, query=choice.query[:-1]))
        case _ if len(key) == 1:
            return screen.with_choice(replace(choice, query=(choice.query + key)[:MAX_QUERY]))
    return screen


def _opened(screen: Screen, page: Page) -> Screen:
    return replace(screen, pages=(*screen.pages, page), scroll=0)


def _back(screen: Screen) -> Screen:
    if len(screen.pages) > 1 and not (screen.page == Page.KERNEL and screen.configs.query):
        return replace(screen, pages=screen.pages[:-1], scroll=0)
    return screen.with_choice(replace(screen.choice, query=""))
