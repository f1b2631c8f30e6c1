"""A client program in some language: a child process that receives requests as lines of JSON.

A request is one line, `{"do": "send", ...}`; the program answers each with one line, `> {...}`: a
result, `{"error": text}`, or `{"unsupported": text}`. A line `* {...}` is an event at any time: a
message that a push consumer received, or a check of a transaction. All other output is of the
library, and is ignored. The program ends when its input ends.
"""

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ANSWER_SECONDS_MAX = 120.0
END_SECONDS_MAX = 5.0
TAIL_CHARACTERS = 2000


class ClientFailed(Exception):
    """A call of the client failed; the text has the client's error."""


class ClientGone(ClientFailed):
    """The client has ended, or does not answer: no further request is possible."""


class NotOffered(Exception):
    """The client's library has no such call; the text is the client's sentence about it."""


class ClientProcess:
    """One client program. Requests are answered one at a time; events are stored as they arrive.

    Args:
        command: program and arguments.
        environment: all variables of the program.
        log: file for its error output.
    """

    def __init__(
        self, command: Sequence[object], environment: Mapping[str, str], log: Path
    ) -> None:
        self._log = log
        with log.open("ab") as said:
            self._process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                env=dict(environment),
                start_new_session=True,
                text=True,
                errors="replace",
            )
        self._answers = queue.Queue[dict[str, Any] | None]()
        self._events: list[dict[str, Any]] = []
        self._came = threading.Condition()
        self._has_ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout, self._log.open("a") as said:
            for line in self._process.stdout:
                if line.startswith("> "):
                    self._answers.put(json.loads(line[2:]))
                elif line.startswith("* "):
                    with self._came:
                        event = json.loads(line[2:]) | {"at": time.monotonic()}
                        self._events.append(event)
                        self._came.notify_all()
                else:
                    said.write(line)
        with self._came:
            self._has_ended = True
            self._came.notify_all()
        self._answers.put(None)

    def ask(self, do: str, seconds_max: float = ANSWER_SECONDS_MAX, **given: Any) -> dict[str, Any]:
        """Send a request, and return its answer.

        Raises:
            ClientFailed: the library raised an error.
            ClientGone: the program ended, or did not answer in time.
            NotOffered: the library has no such call.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": do, **given}) + "\n")
            self._process.stdin.flush()
        try:
            answer = self._answers.get(timeout=seconds_max)
        except queue.Empty:
            raise ClientGone(f"{do}: no answer in {seconds_max:.0f} s") from None
        if answer is None:
            raise ClientGone(f"{do}: it ended: {self._tail()}")
        if "unsupported" in answer:
            raise NotOffered(answer["unsupported"])
        if "error" in answer:
            raise ClientFailed(f"{do}: {answer['error']}")
        return answer

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of a kind so far; `at` is their time on the monotonic clock."""
        with self._came:
            return [event for event in self._events if event["event"] == kind]

    def wait_events(
        self, kind: str, is_enough: Callable[[list[dict[str, Any]]], bool], seconds_max: float
    ) -> list[dict[str, Any]]:
        """Return the events of a kind when there are enough, the program has ended, or the time
        limit is reached."""
        deadline = time.monotonic() + seconds_max
        with self._came:
            while True:
                found = [event for event in self._events if event["event"] == kind]
                left = deadline - time.monotonic()
                if is_enough(found) or self._has_ended or left <= 0 or not self._came.wait(left):
                    return found

    def _tail(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS_MAX)
        said = self._log.read_text(errors="replace")[-TAIL_CHARACTERS:]
        return f"status {self._process.poll()}: {' '.join(said.split())}"

    def kill(self) -> None:
        """Kill the program and all its children; the server is not informed."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._reader.join(END_SECONDS_MAX)
