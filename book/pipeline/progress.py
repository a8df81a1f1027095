"""One overall progress report: a bar on a terminal, plain lines everywhere else."""

import shutil
import sys
import threading
import time
from types import TracebackType
from typing import TextIO

WIDTH = 12  # of the bar: a line must fit 80 columns


def clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Progress:
    """Progress over several notebooks, told in cells and in seconds.

    Remaining time comes from the durations of the last run where there are any, else from the share of the
    notebooks done so far.

    Args:
        expected: notebook name -> seconds that it took last time, None where that is not known.
        stream: where to write; a bar is drawn only if it is a terminal.
    """

    def __init__(self, expected: dict[str, float | None], stream: TextIO | None = None) -> None:
        known = [seconds for seconds in expected.values() if seconds]
        typical = sum(known) / len(known) if known else None
        self.expected = {name: seconds or typical for name, seconds in expected.items()}
        self.stream = stream or sys.stdout
        self.bar = self.stream.isatty()
        self.started = time.monotonic()
        self.name, self.cell, self.cells = "", 0, 0
        self.name_started = self.started
        self.finished: dict[str, float] = {}
        self._stop = threading.Event()
        self._ticker: threading.Thread | None = None

    def __enter__(self) -> "Progress":
        if self.bar:
            self._ticker = threading.Thread(target=self._tick, daemon=True)
            self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._ticker:
            self._ticker.join()
            self._clear()

    def start(self, name: str, cells: int) -> None:
        """A notebook with `cells` code cells begins."""
        self.name, self.cell, self.cells = name, 0, cells
        self.name_started = time.monotonic()
        if not self.bar:
            self._line(f"[{self._count()}] {name}: running, {self._times()}")

    def step(self, cell: int) -> None:
        """Code cell number `cell`, from 1, begins."""
        self.cell = cell

    def done(self, name: str) -> float:
        """The notebook is finished; returns the seconds that it took."""
        seconds = time.monotonic() - self.name_started
        self.finished[name] = seconds
        self._clear()
        self._line(f"[{len(self.finished)}/{len(self.expected)}] {name}: done in {clock(seconds)}")
        self.name = ""
        return seconds

    def remaining(self) -> float | None:
        """Estimated seconds to the end; None while nothing is known to estimate it from."""
        elapsed = time.monotonic() - self.name_started if self.name else 0.0
        waiting = [name for name in self.expected if name not in self.finished]
        fallback = sum(self.finished.values()) / len(self.finished) if self.finished else None
        total = 0.0
        for name in waiting:
            seconds = self.expected[name] or fallback
            if seconds is None:
                return None
            total += max(seconds - elapsed, 0.0) if name == self.name else seconds
        return total

    def share(self) -> float:
        """Share of the work that is done, 0 to 1."""
        left, elapsed = self.remaining(), time.monotonic() - self.started
        if left is not None and elapsed + left > 0:
            return elapsed / (elapsed + left)
        within = self.cell / self.cells if self.cells else 0.0
        return min((len(self.finished) + within) / max(len(self.expected), 1), 1.0)

    def _count(self) -> str:
        return f"{min(len(self.finished) + 1, len(self.expected))}/{len(self.expected)}"

    def _times(self) -> str:
        left = self.remaining()
        rest = "remaining time unknown" if left is None else f"{clock(left)} remaining"
        return f"{clock(time.monotonic() - self.started)} elapsed, {rest}"

    def _tick(self) -> None:
        while not self._stop.wait(0.5):
            if self.name:
                self._draw()

    def _draw(self) -> None:
        filled = round(WIDTH * self.share())
        bar = "#" * filled + "-" * (WIDTH - filled)
        text = f"[{bar}] {self._count()} {self.name} {self.cell}/{self.cells} | {self._times()}"
        width = shutil.get_terminal_size().columns - 1
        self.stream.write("\r" + text[:width].ljust(width))
        self.stream.flush()

    def _clear(self) -> None:
        if self.bar:
            self.stream.write("\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r")
            self.stream.flush()

    def _line(self, text: str) -> None:
        self.stream.write(text + "\n")
        self.stream.flush()
