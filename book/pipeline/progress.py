"""One overall progress report: a bar on a terminal, plain lines everywhere else."""

import shutil
import sys
import threading
import time
from types import TracebackType
from typing import TextIO

WIDTH = 12  # of the bar: a line should fit 80 columns
REDRAW, REPEAT = 0.5, 30.0  # seconds between two pictures of the bar, between two lines while nothing happens


def clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Progress:
    """Progress over notebooks that run side by side.

    Remaining time comes from the durations of the last run where there are any, else from those of this run.

    Args:
        expected: notebook name -> seconds that it took last time, None where that is not known.
        lanes: how many run at a time.
        stream: where to write; a bar is drawn only if it is a terminal.
        repeat: seconds of silence, where no bar is drawn, after which a line says what still runs.
    """

    def __init__(
        self,
        expected: dict[str, float | None],
        lanes: int = 1,
        stream: TextIO | None = None,
        repeat: float = REPEAT,
    ) -> None:
        known = [seconds for seconds in expected.values() if seconds]
        typical = sum(known) / len(known) if known else None
        self.expected = {name: seconds or typical for name, seconds in expected.items()}
        self.lanes = lanes
        self.stream = stream or sys.stdout
        self.bar = self.stream.isatty()
        self.began = time.monotonic()
        self.running: dict[str, float] = {}
        self.finished: dict[str, float] = {}
        self.interval = REDRAW if self.bar else repeat
        self._spoke = self.began
        self._writing = threading.Lock()
        self._stop = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> "Progress":
        self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._ticker.join()
        self._clear()

    def start(self, name: str) -> None:
        """A notebook begins."""
        self.running[name] = time.monotonic()
        if not self.bar:
            self._line(f"{name}: running | {self._times()}")

    def end(self, name: str, outcome: str = "done") -> float:
        """A notebook is over; returns the seconds that it took."""
        seconds = time.monotonic() - self.running[name]
        self.finished[name] = seconds
        del self.running[name]
        self._clear()
        self._line(f"[{len(self.finished)}/{len(self.expected)}] {name}: {outcome} in {clock(seconds)}")
        return seconds

    def remaining(self) -> float | None:
        """Estimated seconds to the end; None while nothing is known to estimate it from."""
        now = time.monotonic()
        fallback = sum(self.finished.values()) / len(self.finished) if self.finished else None
        left = []
        for name in self.expected.keys() - self.finished.keys():
            seconds = self.expected[name] or fallback
            if seconds is None:
                return None
            left.append(max(seconds - (now - self.running.get(name, now)), 0.0))
        return max(max(left, default=0.0), sum(left) / self.lanes)

    def share(self) -> float:
        """Share of the work that is done, 0 to 1."""
        left, elapsed = self.remaining(), time.monotonic() - self.began
        if left is not None and elapsed + left > 0:
            return elapsed / (elapsed + left)
        return len(self.finished) / max(len(self.expected), 1)

    def _times(self) -> str:
        left = self.remaining()
        rest = "remaining time unknown" if left is None else f"{clock(left)} remaining"
        return f"{clock(time.monotonic() - self.began)} elapsed, {rest}"

    def _tick(self) -> None:
        pause = self.interval
        while not self._stop.wait(pause):
            pause = self.interval
            running = list(self.running)
            if running and self.bar:
                self._draw(running)
            elif running and (silence := time.monotonic() - self._spoke) < self.interval:
                pause = self.interval - silence
            elif running:
                self._line(f"{', '.join(running)}: still running | {self._times()}")

    def _draw(self, running: list[str]) -> None:
        filled = round(WIDTH * self.share())
        bar = "#" * filled + "-" * (WIDTH - filled)
        text = f"[{bar}] {self._times()} | {', '.join(running)}"
        width = shutil.get_terminal_size().columns - 1
        self.stream.write("\r" + text[:width].ljust(width))
        self.stream.flush()

    def _clear(self) -> None:
        if self.bar:
            self.stream.write("\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r")
            self.stream.flush()

    def _line(self, text: str) -> None:
        with self._writing:
            self.stream.write(text + "\n")
            self.stream.flush()
            self._spoke = time.monotonic()
