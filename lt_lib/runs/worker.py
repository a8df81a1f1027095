"""The target of `run_many`'s processes: reads one request a line from stdin, answers one line on stdout.

It ends when stdin is closed, also at work: whoever asked is gone, kill -9 included. What is unfinished goes
on from its last checkpoint.

Started as `python -m lt_lib.runs.worker`, so that it never imports the caller's main module: it works from a
notebook, from a script without an `if __name__ == "__main__"` guard, and on every system.
"""

import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from queue import SimpleQueue
from typing import TextIO

from lt_lib.runs.single import answer


def serve(requests: Iterable[str], answers: TextIO) -> None:
    """Answer requests until there are no more."""
    for line in requests:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


def lines_until_closed(stream: TextIO) -> Iterator[str]:
    """Yield lines as they come; end the process at once when there can be no more."""
    waiting: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_read, args=(stream, waiting), daemon=True).start()
    while True:
        yield waiting.get()


def _read(stream: TextIO, waiting: "SimpleQueue[str]") -> None:
    for line in stream:
        waiting.put(line)
    os._exit(0)


if __name__ == "__main__":
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a stray print must not spoil the answers
    serve(lines_until_closed(sys.stdin), replies)
