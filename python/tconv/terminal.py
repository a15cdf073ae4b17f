"""What the command line shows while it works; rich is used when it is installed and nothing needs it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any


def has_rich() -> bool:
    """Whether rich can be imported."""
    return importlib.util.find_spec("rich") is not None


def make_console(stream: IO[str]) -> Any:
    """A rich console; a file or pipe gets wide lines instead of wrapped ones."""
    from rich.console import Console

    return Console(file=stream, highlight=False, width=None if stream.isatty() else 150)


class _PlainProgress:
    def __init__(self, total: int, stream: IO[str]) -> None:
        self._total = total
        self._done = 0
        self._stream = stream

    def start(self, text: str) -> None:
        pass

    def finish(self, text: str) -> None:
        self._done += 1
        print(f"[{self._done:>{len(str(self._total))}}/{self._total}] {text}", file=self._stream, flush=True)


class _RichProgress:
    def __init__(self, bar: Any, task: Any) -> None:
        self._bar = bar
        self._task = task

    def start(self, text: str) -> None:
        self._bar.update(self._task, description=text)

    def finish(self, text: str) -> None:
        self._bar.console.print(text, markup=False)
        self._bar.advance(self._task)


@contextmanager
def make_progress(total: int, stream: IO[str]) -> Iterator[_PlainProgress | _RichProgress]:
    """A bar on a terminal that goes away at the end, a line for each step otherwise."""
    if not (has_rich() and stream.isatty()):
        yield _PlainProgress(total, stream)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=make_console(stream), transient=True) as bar:
        yield _RichProgress(bar, bar.add_task("", total=total))
