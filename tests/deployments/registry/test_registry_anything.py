"""Any order of changes to a registry, against a dictionary."""

from __future__ import annotations

import secrets

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from deployments.registry.redis_registry import RedisRegistry
from deployments.registry.redis_url import RedisSettings
from deployments.registry.registry import ABSENT, Gone
from deployments.registry.sqlite import SqliteRegistry
from engine.errors import Conflict


class Follows(RuleBasedStateMachine):
    """Whoever follows the changes holds the same dictionary."""

    def __init__(self):
        super().__init__()
        self.registry = self.open()
        self.model, self.revs, self.number = {}, {}, 0
        self.mirror, self.mirror_rev = {}, self.registry.list("").rev

    keys = st.sampled_from(["a", "a/b", "b", "c", "é"])

    @rule(key=keys, right=st.booleans(), blind=st.booleans())
    def put(self, key, right, blind):
        self.number += 1
        value, rev = {"n": self.number}, self._expected(key, right, blind)
        if blind or right:
            before = max(self.revs.values(), default=0)
            self.revs[key] = self.registry.put(key, value, rev)
            assert self.revs[key] > before
            self.model[key] = value
        else:
            with pytest.raises(Conflict):
                self.registry.put(key, value, rev)

    @rule(key=keys, right=st.booleans(), blind=st.booleans())
    def delete(self, key, right, blind):
        rev = self._expected(key, right, blind)
        if blind or right:
            self.registry.delete(key, rev)
            self.model.pop(key, None)
            self.revs.pop(key, None)
        else:
            with pytest.raises(Conflict):
                self.registry.delete(key, rev)

    @rule(keep=st.sets(keys))
    def restore(self, keep):
        self.model = {k: v for k, v in self.model.items() if k in keep}
        self.registry.restore(self.model.items())
        self.revs = {e.key: e.rev for e in self.registry.list("").entries}

    @rule()
    def forget_the_feed(self):
        self.forget(self.registry)

    @rule()
    def follow(self):
        changes = self.registry.changes(self.mirror_rev)
        if isinstance(changes, Gone):
            listing = self.registry.list("")
            self.mirror = {e.key: e.value for e in listing.entries}
            self.mirror_rev = listing.rev
        else:
            self.mirror.update({e.key: e.value for e in changes.events})
            self.mirror = {k: v for k, v in self.mirror.items() if v is not None}
            self.mirror_rev = changes.rev
        assert self.mirror == self.model

    @invariant()
    def holds_the_model(self):
        self.registry.check()
        assert {e.key: e.value for e in self.registry.list("").entries} == self.model
        assert {k: self.registry.get(k).rev for k in self.model} == self.revs

    def _expected(self, key, right, blind):
        rev = self.revs.get(key, ABSENT)
        return None if blind else rev if right else rev + 1000

    def teardown(self):
        self.registry.close()


@pytest.mark.parametrize("backend", ["sqlite", "redis"])
def test_it_behaves_like_a_dictionary(request, tmp_path, backend):
    if backend == "sqlite":

        def make():
            path = tmp_path / f"{secrets.token_hex(4)}.db"
            return SqliteRegistry(path, max_tombstones=2)

        def forget(registry):
            """Its own tombstones are few enough already."""
    else:
        server = request.getfixturevalue("redis_server")

        def make():
            settings = RedisSettings.parse(f"{server.url}?prefix=m{secrets.token_hex(4)}")
            return RedisRegistry(settings, max_changes=5)

        def forget(registry):
            server.client().xtrim(registry._keys[3], maxlen=1, approximate=False)

    class Machine(Follows):
        def open(self):
            return make()

        def forget(self, registry):
            forget(registry)

    run_state_machine_as_test(
        Machine,
        settings=settings(max_examples=25, stateful_step_count=25, database=None),
    )
