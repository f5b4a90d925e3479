"""A registry whose reads are counted and that fails where a test says so."""

from deployments.registry.registry import Gone
from engine.errors import Unavailable


class Watched:
    """A registry that counts `get` and can be away or forget its feed."""

    single_host = True

    def __init__(self, registry):
        self.inner = registry
        self.gets = 0
        self.refused = 0
        self.away = False
        self.forgets = False

    def get(self, key):
        self.gets += 1
        return self.inner.get(key)

    def list(self, prefix, **page):
        return self.inner.list(prefix, **page)

    def changes(self, since):
        if self.away:
            self.refused += 1
            raise Unavailable("away")
        return Gone() if self.forgets else self.inner.changes(since)
