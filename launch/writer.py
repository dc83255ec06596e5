"""Writing to a stream whose reader may pause (a pager, Ctrl-S, a slow pipe) without waiting for it.

A thread of its own writes, so that the launcher's loop continues: signs of life to the guards, the clock, signals. It
writes to the descriptor, below the stream's buffer: the lock of a buffer that a blocked thread holds would end the
interpreter with an error. (Not a descriptor that does not block: that would be so for all who share the terminal.)
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from typing import TextIO

QUEUE_CHARACTERS = 1 << 20
PIECE_BYTES = 4096  # a pipe takes so many at once, not torn apart by other writers
STUCK_S = 1.0  # without progress, once hurried


class Writer:
    """Writes texts in their order, each as soon as the stream takes it.

    Args:
      stream: where they go; None (closed when the process began): nowhere.
    """

    def __init__(self, stream: TextIO | None) -> None:
        if stream is not None:
            stream.flush()
        self._stream = stream
        self._queue: deque[str] = deque()  # the first one is being written
        self._num_characters = 0
        self._progress_s = 0.0  # when the stream took something last, or the queue began to fill
        self._hurried = self._closed = False
        self._error: Exception | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def write(self, text: str) -> None:
        """Queue a text; dropped if the queue is full and the stream is given up (see `hurry`)."""
        with self._changed:
            if self._num_characters >= QUEUE_CHARACTERS and self._is_given_up():
                return
            if not self._queue:
                self._progress_s = time.monotonic()
            self._queue.append(text)
            self._num_characters += len(text)
            self._changed.notify_all()

    def wait_for_room(self, timeout_s: float) -> bool:
        """Wait while the queue is full, until it is half empty.

        Returns:
          Whether there is room, or the stream is given up.
        Raises:
          OSError: the stream takes no more.
        """
        with self._changed:
            if self._num_characters >= QUEUE_CHARACTERS:
                self._changed.wait_for(lambda: self._has_room() or self._is_given_up(), timeout_s)
            if self._error is not None:
                raise self._error
            return self._num_characters < QUEUE_CHARACTERS or self._is_given_up()

    def hurry(self) -> None:
        """From now on the stream is given up whenever it has taken nothing for STUCK_S."""
        self._hurried = True

    def close(self) -> bool:
        """Wait until all is written or the stream is given up. Last call.

        Returns:
          False if it was interrupted (KeyboardInterrupt) while it waited; what is left is dropped then.
        Raises:
          OSError: the stream takes no more.
        """
        try:
            with self._changed:
                self._closed = True
                self._changed.notify_all()
                while self._queue and self._error is None and not self._is_given_up():
                    self._changed.wait(STUCK_S / 4)
        except KeyboardInterrupt:
            return False
        if self._error is not None:
            raise self._error
        return True

    def _has_room(self) -> bool:
        return self._error is not None or self._num_characters <= QUEUE_CHARACTERS // 2

    def _is_given_up(self) -> bool:
        return self._hurried and bool(self._queue) and time.monotonic() - self._progress_s > STUCK_S

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._queue or self._closed)
                    if not self._queue:
                        return
                    text = self._queue[0]
                self._put(text)
                with self._changed:
                    self._queue.popleft()
                    self._num_characters -= len(text)
                    if self._has_room():
                        self._changed.notify_all()
        except (OSError, ValueError) as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _put(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            descriptor = self._stream.fileno()
        except OSError:  # a stream in memory
            self._stream.write(text)
            return
        data = memoryview(text.encode(self._stream.encoding, self._stream.errors))
        while data:
            try:
                data = data[os.write(descriptor, data[:PIECE_BYTES]) :]
                self._progress_s = time.monotonic()
            except BlockingIOError:  # another process made it one that does not block
                select.select([], [descriptor], [])
