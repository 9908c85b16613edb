"""Starts the processes of a storm, and kills them: `python -m tests.fakes.storm_nursery SPEC`.

Importing the SDK costs most of a second, and a storm starts a process every second: so they are
forked from this one, which has imported everything and opened nothing. From then on each is on its
own: memory, threads, connections. All report on one standard output, in whole lines.

Commands on standard input, one JSON list a line: `["start", role, name, seed]`, `["kill", name]`.
Own words: `open` (ready for commands), `ended` (count: the wait status of a process; all it
reported lies before this line). At the end of its input it kills everybody and ends; killed itself,
it takes them with it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import selectors
import signal
import sys
import traceback

from s3kv.bucket.sdk import make_body_client
from s3kv.runtime.clock import Clock
from tests.fakes.storm_roles import live
from tests.fakes.storm_spec import Event, StormSpec, tell

PR_SET_PDEATHSIG = 1
WHO = "nursery"


class Nursery:
    """Owned by the main thread, the only one: forking needs that."""

    def __init__(self, spec: StormSpec) -> None:
        self._spec = spec
        self._clock = Clock()
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ, "")
        self._alive: dict[str, tuple[int, int]] = {}
        self._typed = b""
        self._is_open = True

    def run(self) -> None:
        """Until nobody gives commands any more."""
        self._tell("open")
        while self._is_open:
            for key, _ in self._selector.select():
                if key.data:
                    self._bury(key.data)
                else:
                    self._obey()
        for name in list(self._alive):
            self._kill(name)

    def _obey(self) -> None:
        piece = os.read(0, 1 << 16)
        self._is_open = bool(piece)
        *lines, self._typed = (self._typed + piece).split(b"\n")
        for line in lines:
            match json.loads(line):
                case ["start", str(role), str(name), int(seed)]:
                    self._start(role, name, seed)
                case ["kill", str(name)]:
                    self._kill(name)

    def _start(self, role: str, name: str, seed: int) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                _end_with(parent)
                _let_go_of_input()
                self._selector.close()
                live(role, name, self._spec, seed)
            except BaseException:  # noqa: BLE001  nothing of the parent's may go on in here
                traceback.print_exc()
                sys.stderr.flush()
            os._exit(1)
        pidfd = os.pidfd_open(pid)
        self._selector.register(pidfd, selectors.EVENT_READ, name)
        self._alive[name] = (pid, pidfd)

    def _kill(self, name: str) -> None:
        if name in self._alive:
            os.kill(self._alive[name][0], signal.SIGKILL)
            self._bury(name)

    def _bury(self, name: str) -> None:
        if name not in self._alive:
            return  # ended by itself just before it was to be killed
        pid, pidfd = self._alive.pop(name)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        tell(Event(name, "ended", self._clock.monotonic_s(), count=status))

    def _tell(self, what: str) -> None:
        tell(Event(WHO, what, self._clock.monotonic_s()))


def _end_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _let_go_of_input() -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def main() -> None:
    """One nursery, from the command line's JSON."""
    spec = StormSpec.from_text(sys.argv[1])
    # The description of S3 is parsed once for all.
    make_body_client(spec.bucket_settings, None).close()
    gc.collect()
    gc.freeze()
    Nursery(spec).run()


if __name__ == "__main__":
    main()
