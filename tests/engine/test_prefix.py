"""The prefix tree: what is shared, with whom, and what can be evicted."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.eviction import GreedyDualSize
from engine.prefix import Namespace, PrefixNode, PrefixTree

P = 4
BASE = Namespace("rev", "acme", None, "")


def prefix_tree(page_tokens: int = P) -> PrefixTree:
    return PrefixTree(page_tokens, GreedyDualSize[Hashable](), lambda: 0.001)


def cache(tree: PrefixTree, namespace: Namespace, tokens: range, page_ids: range) -> None:
    """A sequence computes `tokens` into `page_ids`, and ends."""
    tree.release(tree.insert(namespace, [], tokens, page_ids).nodes)


def matched(tree: PrefixTree, namespace: Namespace, tokens: list[int] | range) -> list[int]:
    return [node.page_id for node in tree.match(namespace, list(tokens))]


def evict_all(tree: PrefixTree) -> list[int]:
    pages = []
    while (node := tree._idle.pop()) is not None:
        assert isinstance(node, PrefixNode)
        pages.append(tree.evict(node))
        tree.check()
    return pages


def test_full_pages_are_found_again_but_the_last_token_is_always_computed() -> None:
    tree = prefix_tree()
    cache(tree, BASE, range(10), range(100, 103))  # 2 full pages, 2 tokens left over
    assert tree.num_pages == 2
    assert matched(tree, BASE, range(10)) == [100, 101]
    assert matched(tree, BASE, range(9)) == [100, 101]
    assert matched(tree, BASE, range(8)) == [100]
    assert matched(tree, BASE, range(4)) == []
    assert matched(tree, BASE, range(1)) == []
    assert matched(tree, BASE, [0, 1, 2, 3, 4, 5, 6, 99, 8]) == [100]
    assert matched(tree, BASE, [99, *range(1, 10)]) == []
    tree.check()


@pytest.mark.parametrize(
    "other",
    [
        Namespace("rev2", "acme", None, ""),
        Namespace("rev", "globex", None, ""),
        Namespace("rev", "acme", "acme/d1", ""),
        Namespace("rev", "acme", None, "salt"),
        Namespace("rev", "acme", None, "acme/d1"),  # a salt that is an adapter's key
        Namespace("rev", "acme", "", ""),
        Namespace("rev", "acme", "None", ""),
        Namespace("reva", "cme", None, ""),
    ],
)
def test_nothing_is_shared_between_namespaces(other: Namespace) -> None:
    tree = prefix_tree()
    cache(tree, BASE, range(10), range(100, 103))
    assert matched(tree, other, range(10)) == []
    cache(tree, other, range(10), range(200, 203))
    assert matched(tree, other, range(10)) == [200, 201]
    assert matched(tree, BASE, range(10)) == [100, 101]
    tree.check()


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (Namespace("rev", "acme", "acme/d1", ""), Namespace("rev", "acme", None, "acme/d1")),
        (Namespace("rev", "acme", "a|b", "c"), Namespace("rev", "acme", "a", "b|c")),
        (Namespace("rev", "acme", "a", "|b"), Namespace("rev", "acme", "a|", "b")),
        (Namespace("rev", "x", None, "y"), Namespace("rev", "y", None, "x")),
        (Namespace("rev", "x", "x/d", "\x00"), Namespace("rev", "x", "x/d\x00", "")),
    ],
)
def test_no_salt_enters_another_namespace(one: Namespace, two: Namespace) -> None:
    """B-SALT-COLLIDE: salts that hold an adapter's key, separators, or another tenant's salt."""
    tree = prefix_tree()
    cache(tree, one, range(10), range(100, 103))
    assert matched(tree, two, range(10)) == []


def test_the_second_to_insert_the_same_adopts_the_pages_of_the_first() -> None:
    tree = prefix_tree()
    first = tree.insert(BASE, [], range(8), [100, 101])
    second = tree.insert(BASE, [], range(9), [200, 201, 202])
    assert (first.duplicates, second.duplicates) == ([], [200, 201])
    assert [node.page_id for node in second.nodes] == [100, 101]
    assert [node.num_holders for node in second.nodes] == [2, 2]
    further = tree.insert(BASE, second.nodes, range(12), [100, 101, 202])
    assert [node.page_id for node in further.nodes] == [202] and not further.duplicates
    tree.check()
    tree.release(first.nodes)
    assert tree.num_idle == 0
    tree.release(second.nodes + further.nodes)
    assert tree.num_idle == tree.num_pages == 3
    tree.check()


def test_pages_are_inserted_as_they_fill() -> None:
    tree = prefix_tree()
    held: list[PrefixNode] = []
    for end in range(1, 14):
        held += tree.insert(BASE, held, list(range(end)), [100, 101, 102, 103]).nodes
        assert len(held) == end // P
        tree.check()
    assert [node.page_id for node in held] == [100, 101, 102]


def test_an_insertion_of_nothing_leaves_no_namespace_behind() -> None:
    tree = prefix_tree()
    assert tree.insert(BASE, [], range(3), [100]) == ([], [])
    tree.check()


def test_leaves_go_before_what_they_stand_on_and_the_older_first() -> None:
    tree = prefix_tree()
    cache(tree, BASE, range(8), range(100, 102))
    branch = [*range(4), 9, 9, 9, 9]
    tree.release(tree.insert(BASE, [], branch, [200, 201]).nodes)  # adopts 100
    assert evict_all(tree) == [101, 201, 100]
    assert tree.num_pages == 0


def test_what_is_held_is_not_evicted_and_use_makes_it_younger() -> None:
    tree = prefix_tree()
    cache(tree, BASE, range(4), range(100, 101))
    cache(tree, BASE, range(10, 14), range(200, 201))
    cache(tree, BASE, range(20, 24), range(300, 301))
    nodes = tree.match(BASE, range(5))
    tree.hold(nodes)
    with pytest.raises(ValueError, match="leaf"):
        tree.evict(nodes[0])
    used = tree.match(BASE, range(10, 15))
    tree.hold(used)
    tree.release(used)
    assert evict_all(tree) == [300, 200]
    tree.release(nodes)
    assert evict_all(tree) == [100]


def test_a_dear_page_outlives_a_cheap_adapter() -> None:
    """Both kinds are in one order: seconds to bring back, a page."""
    idle = GreedyDualSize[Hashable]()
    tree = PrefixTree(P, idle, lambda: 0.004)
    cache(tree, BASE, range(4), range(100, 101))
    idle.touch("cheap", cost_s=0.01, num_pages=10, kind="adapter")
    idle.touch("dear", cost_s=0.10, num_pages=10, kind="adapter")
    assert idle.pop() == "cheap"
    assert evict_all_keys(idle) == [100, "dear"]


def evict_all_keys(idle: GreedyDualSize[Hashable]) -> list[Hashable]:
    keys = [key for key in iter(idle.pop, None) if key is not None]
    return [key.page_id if isinstance(key, PrefixNode) else key for key in keys]


@dataclass
class Running:
    namespace: Namespace
    tokens: list[int]
    pages: list[int]
    nodes: list[PrefixNode] = field(default_factory=list)


class PrefixMachine(RuleBasedStateMachine):
    """Sequences of few distinct tokens come, grow and go; evictions between. A page's content in
    the model is the namespace and all tokens up to its end."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = prefix_tree(page_tokens=2)
        self.running: list[Running] = []
        self.content: dict[int, tuple[Namespace, tuple[int, ...]]] = {}
        self.next_page = 0

    def new_page(self) -> int:
        self.next_page += 1
        return self.next_page

    @rule(
        tenant=st.sampled_from(["a", "b"]),
        salt=st.sampled_from(["", "s"]),
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9),
    )
    def arrives(self, tenant: str, salt: str, tokens: list[int]) -> None:
        namespace = Namespace("rev", tenant, None, salt)
        nodes = self.tree.match(namespace, tokens)
        assert len(nodes) <= (len(tokens) - 1) // 2
        self.tree.hold(nodes)
        for index, node in enumerate(nodes):
            assert self.content[node.page_id] == (namespace, tuple(tokens[: 2 * index + 2]))
        pages = [node.page_id for node in nodes]
        pages += [self.new_page() for _ in range(len(nodes), -(-len(tokens) // 2))]
        self.running.append(Running(namespace, tokens, pages, nodes))

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99), num_tokens=st.integers(0, 3))
    def computes(self, which: int, num_tokens: int) -> None:
        seq = self.running[which % len(self.running)]
        seq.tokens += [0] * num_tokens
        while 2 * len(seq.pages) < len(seq.tokens):
            seq.pages.append(self.new_page())
        for index in range(len(seq.nodes), len(seq.tokens) // 2):
            content = (seq.namespace, tuple(seq.tokens[: 2 * index + 2]))
            self.content[seq.pages[index]] = content
        before = list(seq.pages)
        nodes, duplicates = self.tree.insert(seq.namespace, seq.nodes, seq.tokens, seq.pages)
        for index, node in enumerate(nodes, len(seq.nodes)):
            assert self.content[node.page_id] == self.content[seq.pages[index]]
            seq.pages[index] = node.page_id
        seq.nodes += nodes
        assert sorted(duplicates) == sorted(set(before) - set(seq.pages))
        for page_id in duplicates:
            del self.content[page_id]

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99))
    def ends(self, which: int) -> None:
        seq = self.running.pop(which % len(self.running))
        self.tree.release(seq.nodes)

    @rule()
    def evict(self) -> None:
        node = self.tree._idle.pop()
        assert (node is None) == (self.tree.num_idle == 0), "an idle node can always be freed"
        if isinstance(node, PrefixNode):
            page_id = self.tree.evict(node)
            assert not any(page_id in seq.pages for seq in self.running)
            del self.content[page_id]

    @invariant()
    def books_are_right(self) -> None:
        self.tree.check()
        self.tree._idle.check()
        held: dict[int, int] = {}
        for seq in self.running:
            for node in seq.nodes:
                held[node.page_id] = held.get(node.page_id, 0) + 1
                assert node.num_holders > 0
        assert self.tree.num_pages - self.tree.num_idle == len(held)


TestPrefixMachine = PrefixMachine.TestCase
TestPrefixMachine.settings = settings(max_examples=100, stateful_step_count=40)
