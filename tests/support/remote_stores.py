"""Stores whose objects must be fetched, since they are no files to read in place."""

from __future__ import annotations

import threading

from engine.adapters.folder_store import FolderStore


class RemoteStore(FolderStore):
    """`failing` says what to raise instead of reading."""

    def __init__(self, root):
        super().__init__(root)
        self.failing = None
        self.reads = []

    def local_path(self, key):
        return None

    def open(self, key, start=0, etag=""):
        if self.failing is not None:
            raise self.failing
        self.reads.append(key)
        return super().open(key, start, etag)


class GateStore(RemoteStore):
    """Counts the reads in progress and holds them at a gate."""

    def __init__(self, root):
        super().__init__(root)
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()
        self.inside = 0
        self.most = 0
        self.lock = threading.Lock()

    def open(self, key, start=0, etag=""):
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.entered.release()
        self.gate.wait()
        with self.lock:
            self.inside -= 1
        return super().open(key, start, etag)
