"""The prefix cache: KV pages that later sequences with the same beginning can use.

One tree per namespace; a node is one full page, keyed among its siblings by the page's token ids
themselves, so that nothing is shared by a collision. A sequence holds the nodes of its first pages;
a node that nobody holds stays until its page is needed elsewhere. Standard library only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.eviction import GreedyDualSize

PREFIX_KIND = "prefix"


class Namespace(NamedTuple):
    """Sequences share pages within one namespace only. The parts are compared one by one and never
    joined into one string, so no salt can name another tenant's or adapter's pages.

    adapter  `AdapterRef.key`, or None for the base
    salt     the client's own; it can only narrow
    """

    base_revision: str
    tenant: str
    adapter: str | None
    salt: str


@dataclass(slots=True, eq=False)
class PrefixNode:
    """One cached page. `num_holders` counts the sequences that hold it; whoever holds a node holds
    all above it. parent None: the first page of its namespace."""

    namespace: Namespace
    tokens: tuple[int, ...]
    page_id: int
    parent: PrefixNode | None
    num_holders: int = 0
    children: dict[tuple[int, ...], PrefixNode] = field(default_factory=dict)


class Insertion(NamedTuple):
    """nodes: those newly held, one a page. duplicates: the caller's pages that are not needed since
    the tree had that content already; the caller frees them and uses the node's page instead."""

    nodes: list[PrefixNode]
    duplicates: list[int]


class PrefixTree:
    """page_tokens  P
    idle         shared with the adapter cache: nodes that nobody holds are in it, evictable from
                 the leaves up. When it pops a node, the caller calls `evict` and frees the page
    page_cost_s  seconds to compute a page again, as measured

    Of two sequences that computed the same content side by side, the first to insert it gives its
    page to the tree and the second adopts that page and gives up its own: its KV is the same to
    rounding, and memory holds it once.
    """

    def __init__(
        self,
        page_tokens: int,
        idle: GreedyDualSize[Hashable],
        page_cost_s: Callable[[], float],
    ) -> None:
        self.page_tokens = page_tokens
        self._idle = idle
        self._page_cost_s = page_cost_s
        self._roots: dict[Namespace, dict[tuple[int, ...], PrefixNode]] = {}
        self._idle_of: dict[str, OrderedDict[PrefixNode, None]] = {}
        self.num_pages = 0
        self.num_idle = 0

    def match(self, namespace: Namespace, tokens: Sequence[int]) -> list[PrefixNode]:
        """The longest cached beginning of `tokens`, from the root on; not held yet.

        At most (len - 1) // P pages: the last token is always computed, for its logits.
        """
        nodes: list[PrefixNode] = []
        children = self._roots.get(namespace, {})
        for page in self._pages(tokens, 0, (len(tokens) - 1) // self.page_tokens):
            node = children.get(page)
            if node is None:
                break
            nodes.append(node)
            children = node.children
        return nodes

    def hold(self, nodes: Iterable[PrefixNode]) -> None:
        """A sequence uses these nodes (a path from a root): they stay until it releases them."""
        for node in nodes:
            if node.num_holders == 0:
                self._unlist(node)
                self._idle.remove(node)
            node.num_holders += 1

    def release(self, nodes: Sequence[PrefixNode]) -> None:
        """A sequence that held these nodes (a path from a root) does so no longer."""
        cost_s = self._page_cost_s()
        for node in reversed(nodes):  # the deeper, the sooner it goes
            node.num_holders -= 1
            if node.num_holders == 0:
                self.num_idle += 1
                self._idle_of.setdefault(node.namespace.tenant, OrderedDict())[node] = None
                self._idle.touch(node, cost_s, 1, PREFIX_KIND, held=bool(node.children))

    def insert(
        self,
        namespace: Namespace,
        held: Sequence[PrefixNode],
        tokens: Sequence[int],
        page_ids: Sequence[int],
    ) -> Insertion:
        """Give the tree a sequence's further full pages, and hold them for it.

        held      the nodes that the sequence holds already: its first pages
        tokens    its tokens whose KV is computed, from the start; those beyond a full page wait
        page_ids  its pages, from the start
        """
        parent = held[-1] if held else None
        siblings = self._roots.setdefault(namespace, {}) if parent is None else parent.children
        nodes: list[PrefixNode] = []
        duplicates: list[int] = []
        num_full = len(tokens) // self.page_tokens
        for index, page in enumerate(self._pages(tokens, len(held), num_full), len(held)):
            node = siblings.get(page)
            if node is None:
                node = siblings[page] = PrefixNode(namespace, page, page_ids[index], parent)
                node.num_holders = 1
                self.num_pages += 1
            else:
                self.hold((node,))
                duplicates.append(page_ids[index])
            nodes.append(node)
            parent, siblings = node, node.children
        if not self._roots.get(namespace, True):
            del self._roots[namespace]
        return Insertion(nodes, duplicates)

    def extend(self, parent: PrefixNode, page: tuple[int, ...], page_id: int) -> PrefixNode | None:
        """`insert` of one page more, below a node that the sequence holds: what decoding brings.
        None where the tree has it already: then `insert`."""
        if page in parent.children:
            return None
        node = parent.children[page] = PrefixNode(parent.namespace, page, page_id, parent, 1)
        self.num_pages += 1
        return node

    def evict(self, node: PrefixNode) -> int:
        """Forget a leaf that nobody holds (the caller took it out of `idle`): its page, to free.

        Raises ValueError for any other node.
        """
        if node.num_holders or node.children:
            raise ValueError("only a leaf that nobody holds can be evicted")
        parent = node.parent
        siblings = self._roots[node.namespace] if parent is None else parent.children
        del siblings[node.tokens]
        self.num_pages -= 1
        self._unlist(node)
        if parent is None:
            if not siblings:
                del self._roots[node.namespace]
        elif not siblings and parent.num_holders == 0:
            self._idle.let_go(parent)
        return node.page_id

    def num_idle_of(self, tenant: str) -> int:
        """Its pages that nobody holds."""
        return len(self._idle_of.get(tenant, ()))

    def idle_by_tenant(self) -> Iterable[tuple[str, int]]:
        """Tenants with pages that nobody holds, and how many."""
        return ((tenant, len(nodes)) for tenant, nodes in self._idle_of.items())

    def take_idle(self, tenant: str) -> PrefixNode:
        """The tenant's longest unused node, taken out of `idle` for `evict`. Whoever holds a node
        holds all above it, and of nodes let go together the deeper count as longer unused: so it is
        a leaf. Raises KeyError where there is none."""
        node = next(iter(self._idle_of[tenant]))
        self._idle.remove(node)
        return node

    def check(self) -> None:
        """Raise AssertionError where an invariant does not hold."""
        nodes = list(self._nodes())
        assert len(nodes) == self.num_pages == len({node.page_id for node in nodes})
        assert sum(node.num_holders == 0 for node in nodes) == self.num_idle
        assert all(self._roots.values()), "an empty namespace"
        assert self.num_idle == sum(len(nodes) for nodes in self._idle_of.values())
        assert all(not next(iter(nodes)).children for nodes in self._idle_of.values())
        for node in nodes:
            assert (node in self._idle_of.get(node.namespace.tenant, ())) == (not node.num_holders)
            assert len(node.tokens) == self.page_tokens
            assert (node in self._idle) == (node.num_holders == 0)
            for tokens, child in node.children.items():
                assert child.parent is node and child.tokens == tokens
                assert child.namespace == node.namespace
                assert child.num_holders <= node.num_holders

    def _unlist(self, node: PrefixNode) -> None:
        """It is idle no longer."""
        self.num_idle -= 1
        tenant = node.namespace.tenant
        of = self._idle_of[tenant]
        del of[node]
        if not of:
            del self._idle_of[tenant]

    def _nodes(self) -> Iterator[PrefixNode]:
        waiting = [node for root in self._roots.values() for node in root.values()]
        while waiting:
            node = waiting.pop()
            waiting.extend(node.children.values())
            yield node

    def _pages(self, tokens: Sequence[int], start: int, end: int) -> Iterator[tuple[int, ...]]:
        size = self.page_tokens
        return (tuple(tokens[i * size : (i + 1) * size]) for i in range(start, end))
