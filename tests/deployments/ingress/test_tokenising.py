"""Texts become the ids that the tokenizer library gives, long ones from another thread."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tokenizers import Tokenizer

from deployments.ingress.tokenising import Tokeniser
from engine.errors import LoraplexError
from tests.support.ingress import write_model


class Counting(ThreadPoolExecutor):
    submitted = 0

    def submit(self, *args, **kwargs):
        self.submitted += 1
        return super().submit(*args, **kwargs)


@pytest.mark.parametrize(("length", "threaded"), [(0, 0), (10, 0), (11, 1), (5000, 1)])
async def test_long_texts_leave_the_loop(tmp_path, length, threaded):
    folder = write_model(tmp_path)
    with Counting(1) as executor:
        tokeniser = Tokeniser.load(folder, executor=executor, inline_chars=10)
        text = ("é漢x " * length)[:length]
        expected = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
        assert await tokeniser.encode([text], special_tokens=True) == [tuple(expected)]
        assert executor.submitted == threaded


async def test_many_short_texts_count_together(tmp_path):
    with Counting(1) as executor:
        tokeniser = Tokeniser.load(write_model(tmp_path), executor=executor, inline_chars=10)
        assert len(await tokeniser.encode(["abcde", "abcde"], special_tokens=False)) == 2
        assert executor.submitted == 0
        assert len(await tokeniser.encode(["abcde", "abcdef"], special_tokens=False)) == 2
        assert executor.submitted == 1


async def test_the_loop_turns_while_a_long_text_is_tokenised(tmp_path):
    with ThreadPoolExecutor(1) as executor:
        tokeniser = Tokeniser.load(write_model(tmp_path), executor=executor, inline_chars=10)
        held_up = []
        for _ in range(3):
            text = ["a word " * 40_000]
            task = asyncio.create_task(tokeniser.encode(text, special_tokens=False))
            turns, longest_s = 0, 0.0
            began_s = turned_s = time.monotonic()
            while not task.done():
                await asyncio.sleep(0)
                turns += 1
                last_s, turned_s = turned_s, time.monotonic()
                longest_s = max(longest_s, turned_s - last_s)
            assert len((await task)[0]) == 280_000
            assert turns > 50, "where it is held up they are two or three"
            held_up.append(longest_s / (turned_s - began_s))
        assert min(held_up) < 0.7, "in others it may have waited for a processor"


async def test_truncation_and_padding_of_the_file_are_off(tmp_path):
    path = write_model(tmp_path) / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50)
    tokenizer.save(str(path))
    tokeniser = Tokeniser.load(tmp_path)
    assert list(map(len, await tokeniser.encode(["hello"], special_tokens=True))) == [5]


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(LoraplexError, match="tokenizer.json"):
        Tokeniser.load(tmp_path)
