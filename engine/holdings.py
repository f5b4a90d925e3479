"""What a sequence holds while it runs: a row, pages, prefix nodes and its adapter's lease.

All of it is taken in one go, or none of it, and given back in one go. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.adapters.cache import AdapterCache
from engine.arena import Arena
from engine.pages import NO_PLAN
from engine.pass_costs import StepSize
from engine.plan import NO_ADAPTER, Span, new_span
from engine.prefix import Namespace, PrefixNode, PrefixTree
from engine.running import RunningSet
from engine.sequence import Sequence


class Holdings:
    """is_caching: whether sequences share prefixes at all. last_plan: the last launched plan, which
    may still use what is given back; the scheduler keeps it up to date."""

    def __init__(
        self,
        arena: Arena,
        prefix: PrefixTree,
        cache: AdapterCache,
        running: RunningSet,
        base_revision: str,
        is_caching: bool,
    ) -> None:
        self._arena = arena
        self._prefix = prefix
        self._cache = cache
        self._running = running
        self._base_revision = base_revision
        self._is_caching = is_caching
        self.page_tokens = prefix.page_tokens
        self._epoch = 0
        self.last_plan = NO_PLAN

    def cached(self, sequence: Sequence) -> list[PrefixNode]:
        """The nodes of its longest cached beginning; not held yet."""
        if not self._is_caching:
            return []
        return self._prefix.match(self._namespace(sequence), sequence.tokens)

    def hold(self, nodes: list[PrefixNode]) -> None:
        """They stay until the sequence that takes them gives them back, or `let_go`."""
        self._prefix.hold(nodes)

    def let_go(self, nodes: list[PrefixNode]) -> None:
        self._prefix.release(nodes)

    def num_pages(self, sequence: Sequence) -> int:
        """Pages for all the tokens that are known of it."""
        return -(-len(sequence.tokens) // self.page_tokens)

    def take(self, sequence: Sequence, nodes: list[PrefixNode], plan_id: int) -> bool:
        """Row, pages, nodes and lease, for a plan with this id; False and nothing taken where one
        of them can't be had. The nodes must be held already, and stay so if it fails."""
        adapter = sequence.request.adapter
        if not self._running.num_free_rows:
            return False
        lease = None
        if adapter is not None:
            lease = self._cache.acquire(adapter)
            if lease is None:
                return False
        pages = self._arena.allocate(self.num_pages(sequence) - len(nodes))
        if pages is None:
            if lease is not None:
                self._cache.release(lease)
            return False
        sequence.lease = lease
        sequence.nodes = nodes
        sequence.pages = [node.page_id for node in nodes] + pages
        sequence.num_computed = len(nodes) * self.page_tokens
        sequence.num_pending = 0
        sequence.first_plan = plan_id
        self._running.add(sequence)
        return True

    def grow(self, sequence: Sequence) -> bool:
        """One page more."""
        pages = self._arena.allocate(1)
        if pages is None:
            return False
        sequence.pages += pages
        sequence.steady_epoch = -1
        sequence.decodes_on(self.page_tokens)
        self._running.grew(sequence, 1)
        return True

    def keep(self, sequence: Sequence, num_tokens: int) -> None:
        """Gives the prefix tree those of its pages that its first `num_tokens` tokens fill.

        Only tokens whose KV is known to be computed and finite may be counted in.
        """
        if not self._is_caching or num_tokens // self.page_tokens <= len(sequence.nodes):
            return
        size, nodes = self.page_tokens, sequence.nodes
        num = len(nodes)
        if num and num_tokens // size == num + 1:
            page = tuple(sequence.tokens[num * size : (num + 1) * size])
            node = self._prefix.extend(nodes[-1], page, sequence.pages[num])
            if node is not None:
                nodes.append(node)
                return
        insertion = self._prefix.insert(
            self._namespace(sequence),
            sequence.nodes,
            sequence.tokens[:num_tokens],
            sequence.pages,
        )
        sequence.nodes += insertion.nodes
        if insertion.duplicates:
            sequence.pages[: len(sequence.nodes)] = [node.page_id for node in sequence.nodes]
            sequence.positions_epoch = sequence.steady_epoch = -1
            self._arena.free(insertion.duplicates, self.last_plan)

    def give_back(self, sequence: Sequence) -> None:
        """Everything at once: it ended, or is preempted."""
        self._running.remove(sequence)
        own = sequence.pages[len(sequence.nodes) :]
        self._arena.free(own, self.last_plan)
        self._prefix.release(sequence.nodes)
        if sequence.lease is not None:
            self._cache.release(sequence.lease)
        sequence.pages = []
        sequence.nodes = []
        sequence.lease = None
        sequence.halts()
        sequence.num_computed = sequence.num_pending = 0

    def moved(self) -> None:
        """The next plan carries moves: every remembered position is void."""
        self._epoch += 1

    def positions(self, sequence: Sequence) -> tuple[int, ...]:
        """Physical positions of all its pages, from the next plan on."""
        known = sequence.positions
        if sequence.positions_epoch != self._epoch:
            known = tuple(self._arena.positions(sequence.pages))
        elif len(known) != len(sequence.pages):
            known += tuple(self._arena.positions(sequence.pages[len(known) :]))
        sequence.positions = known
        sequence.positions_epoch = self._epoch
        return known

    def spans(self, grants: Mapping[Sequence, int]) -> tuple[tuple[Span, ...], StepSize]:
        """Their parts of the next plan, by tokens, counted as computed from here on; and its size.
        One loop with nothing called in it for most rows: a step has hundreds."""
        epoch = self._epoch
        spans: list[Span] = []
        num_tokens = num_read = num_sampling = 0
        for sequence, num in grants.items():
            if sequence.steady_epoch != epoch:
                spans.append(self._span(sequence, num))
                num_sampling += spans[-1].samples
            else:
                start, num_pending, lease = (
                    sequence.num_computed,
                    sequence.num_pending,
                    sequence.lease,
                )
                adapter = NO_ADAPTER if lease is None else lease.adapter
                spans.append(
                    new_span(
                        (
                            sequence,
                            sequence.row,
                            start,
                            1,
                            adapter,
                            True,
                            num_pending > 0,
                            sequence.positions,
                        )
                    )
                )
                sequence.num_computed = start + 1
                sequence.num_pending = num_pending + 1
                num_sampling += 1
            num_tokens += num
            num_read += sequence.num_computed
        is_decode = num_tokens == num_sampling == len(spans)
        return tuple(spans), StepSize(num_tokens, num_read, is_decode)

    def _span(self, sequence: Sequence, num_tokens: int) -> Span:
        start, num_pending = sequence.num_computed, sequence.num_pending
        end = start + num_tokens
        samples = end == sequence.length
        pages = self.positions(sequence)
        num_pages = -(-end // self.page_tokens)
        if samples:
            sequence.decodes_on(self.page_tokens)
            if num_pages == len(pages):
                sequence.steady_epoch = self._epoch
        lease = sequence.lease
        sequence.num_computed = end
        sequence.num_pending = num_pending + samples
        return Span(
            sequence,
            sequence.row,
            start,
            num_tokens,
            NO_ADAPTER if lease is None else lease.adapter,
            samples,
            num_pending > 0,
            pages[:num_pages],
        )

    def check(self) -> None:
        """Every KV page belongs to exactly one sequence or to the prefix tree."""
        own = [page for s in self._running for page in s.pages[len(s.nodes) :]]
        assert len(own) == len(set(own))
        assert len(own) + self._prefix.num_pages == self._arena.num_kv_pages
        for s in self._running:
            assert s.pages[: len(s.nodes)] == [node.page_id for node in s.nodes]
            assert s.num_computed <= len(s.pages) * self.page_tokens
            if s.num_computed < s.grant_to:
                assert s.num_remaining == 1 and not s.is_done_launching
            if s.steady_epoch == self._epoch:
                assert s.positions == tuple(self._arena.positions(s.pages))

    def _namespace(self, sequence: Sequence) -> Namespace:
        return Namespace(
            self._base_revision, sequence.tenant, sequence.adapter_key, sequence.request.salt
        )
