"""Server-sent events out of the bytes of a stream, whatever pieces they come in."""

from __future__ import annotations


class EventParser:
    """Feed it bytes, get the data of each event that is whole. Ends of lines are LF, CR or CRLF.

    Fields other than `data` are read past: no OpenAI-compatible endpoint sends any that matter.
    """

    def __init__(self) -> None:
        self._pending = b""
        self._data: list[bytes] = []
        self._after_cr = False

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of every event that `piece` completes, lines joined by LF."""
        if self._after_cr and piece:
            # That CR ended its line already; an LF here belongs to it.
            self._after_cr = False
            piece = piece.removeprefix(b"\n")
        if b"\r" in piece:
            self._after_cr = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._pending = (self._pending + piece).split(b"\n")
        events: list[bytes] = []
        for line in lines:
            if line.startswith(b"data:"):
                value = line[5:]
                self._data.append(value[1:] if value.startswith(b" ") else value)
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
        return events
