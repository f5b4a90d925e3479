"""A channel loses, merges and reorders nothing, never blocks its sender and ends at once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from engine.channel import Channel, ChannelClosed
from engine.receipts import Receipts, open_memory


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    yield left, right
    left.close()
    right.close()


@pytest.fixture
def pair(sockets: tuple[socket.socket, socket.socket]) -> Iterator[tuple[Channel, Channel]]:
    left, right = Channel(sockets[0]), Channel(sockets[1])
    yield left, right
    left.close()
    right.close()


def receive(channel: Channel, count: int) -> list[Any]:
    messages: list[Any] = []
    while len(messages) < count:
        assert channel.wait(60), "nothing came within a minute"
        taken = channel.take()
        messages += taken
        if not taken and channel.closed:
            break
    return messages


def test_both_ways_in_order_with_every_size(pair: tuple[Channel, Channel]) -> None:
    left, right = pair
    sizes = [0, 1, 3, 1000, 256 << 10, (256 << 10) + 1, 9 << 20, 5]
    for number, size in enumerate(sizes):
        left.send((number, b"x" * size))
        right.send({"number": number, "size": size})
    assert receive(right, len(sizes)) == [(i, b"x" * n) for i, n in enumerate(sizes)]
    assert receive(left, len(sizes)) == [{"number": i, "size": n} for i, n in enumerate(sizes)]
    assert left.take() == []


def test_several_senders_under_load(pair: tuple[Channel, Channel]) -> None:
    left, right = pair

    def send(sender: int) -> None:
        for number in range(2000):
            left.send((sender, number, b"y" * (number % 700)))

    threads = [threading.Thread(target=send, args=(sender,)) for sender in range(4)]
    for thread in threads:
        thread.start()
    messages = receive(right, 8000)
    for thread in threads:
        thread.join()
    for sender in range(4):
        assert [n for s, n, _ in messages if s == sender] == list(range(2000))


def test_send_returns_at_once_while_the_peer_does_not_read(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    channel = Channel(sockets[0])
    for number in range(64):
        channel.send((number, b"z" * (512 << 10)))
    assert not channel.closed
    assert not channel.flush(0.01), "what is sent waits for its reader"

    reader = Channel(sockets[1])
    assert [number for number, _ in receive(reader, 64)] == list(range(64))
    assert channel.flush(60)
    channel.close()
    reader.close()


def test_overflow_closes_and_says_so(sockets: tuple[socket.socket, socket.socket]) -> None:
    channel = Channel(sockets[0], max_outbox_bytes=1 << 20)
    with pytest.raises(ChannelClosed, match="unread"):
        for _ in range(64):
            channel.send(b"z" * (512 << 10))
    assert channel.closed
    with pytest.raises(ChannelClosed):
        channel.send(1)
    channel.close()


def test_peer_gone_ends_waiting_and_keeps_what_came(pair: tuple[Channel, Channel]) -> None:
    left, right = pair
    left.send("last words")
    assert left.flush(60)
    left.close()
    assert receive(right, 2) == ["last words"]
    assert right.wait(60)
    assert right.closed
    assert right.take() == []


def test_sending_to_a_closed_peer_raises_in_the_end(pair: tuple[Channel, Channel]) -> None:
    left, right = pair
    right.close()
    assert left.wait(60) and left.closed
    with pytest.raises(ChannelClosed):
        left.send(1)


def test_wait_times_out(pair: tuple[Channel, Channel]) -> None:
    assert not pair[0].wait(0.01)
    assert not pair[0].closed


def test_arrival_is_announced_once_for_many_messages_and_once_for_the_end(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    calls: list[int] = []
    arrived = threading.Event()

    def on_arrival() -> None:
        calls.append(1)
        arrived.set()

    right = Channel(sockets[1], on_arrival=on_arrival)
    left = Channel(sockets[0])
    for number in range(100):
        left.send(number)
    left.close()
    assert arrived.wait(60)
    while not right.closed:
        right.wait(0.01)
    right.close()
    assert right.take() == list(range(100))
    # Nobody took anything in between: one call for the messages and one for the end.
    assert len(calls) == 2


def test_close_is_idempotent_and_ends_the_threads(pair: tuple[Channel, Channel]) -> None:
    left, _ = pair
    left.close()
    left.close()
    assert left.closed


def test_what_has_come_is_counted_before_it_can_be_taken(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    receipts = Receipts(open_memory())
    left, right = Channel(sockets[0]), Channel(sockets[1], receipts=receipts)
    for number in range(100):
        left.send(number)
    num_taken = 0
    while num_taken < 100:
        assert right.wait(60)
        num_taken += len(right.take())
        assert receipts.num_read >= num_taken
    assert receipts.num_read == 100
    left.close()
    right.close()
