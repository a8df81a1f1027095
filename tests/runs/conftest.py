"""A process that runs code in forks of itself, so that tests which kill need not import torch each time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SERVER = """
import json, os, sys, traceback
sys.path.insert(0, sys.argv[1])
import after_runs, small_runs, stem_runs, lt_lib.runs.operations
for line in sys.stdin:
    code, *files = json.loads(line)
    child = os.fork()
    if child == 0:
        for number, file in enumerate(files, 1):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
        status = 1
        try:
            exec(compile(code, "<test>", "exec"), {"__name__": "__main__"})
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="session")
def _server():
    command = [sys.executable, "-c", SERVER, str(Path(__file__).parent)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes) as server:
        yield server
        server.terminate()  # a forked process that still lives may hold its standard input open


@pytest.fixture
def run_forked(_server, tmp_path_factory):
    """Runs code as `python -c` would, in a process of its own in which torch is imported already."""

    def run(code):
        folder = tmp_path_factory.mktemp("forked")
        files = [str(folder / "stdout"), str(folder / "stderr")]
        _server.stdin.write(json.dumps([code, *files]) + "\n")
        _server.stdin.flush()
        status = int(_server.stdout.readline())
        return subprocess.CompletedProcess(code, status, *(Path(file).read_text() for file in files))

    return run
