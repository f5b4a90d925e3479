"""Moves and rule (b) of the pipeline, by hand-made layouts. A page is one byte here."""

from __future__ import annotations

import pytest

from engine.moves import Run, Stage, cheapest_slides, cheapest_window, gaps_between
from engine.pages import KV, NO_PLAN
from engine.plan import Move
from tests.support.small_arena import arena, fill, resident


def test_pages_come_from_the_low_end_and_runs_from_the_high_end() -> None:
    a = arena()
    assert a.positions(a.allocate(3) or []) == [1, 2, 3]
    assert a.start_page(resident(a, 4)) == 17
    assert a.start_page(resident(a, 2)) == 15
    a.check()


def test_nothing_moves_where_nothing_is_claimed() -> None:
    a = arena()
    pages = fill(a)
    a.free(pages[::2], NO_PLAN)
    assert a.plan_moves(0) == ()


def test_pages_leave_the_cheapest_window() -> None:
    a = arena(11)  # positions 1 .. 10
    pages = fill(a)
    a.free([pages[i] for i in (0, 1, 6, 8)], NO_PLAN)  # positions 1, 2, 7, 9
    index = a.claim(3)
    assert index is not None and a.num_free == 1
    assert a.plan_moves(0) == (Move(8, 1, 1),)  # 7 .. 9 holds one page; 8 .. 10 would hold two
    assert a.start_page(index) == 7 and a.position(pages[7]) == 1
    assert a.moved_adapters() == ()
    a.check()


def test_neighbouring_pages_move_as_one() -> None:
    a = arena(11)
    pages = fill(a)
    a.free([*pages[:2], *pages[8:]], NO_PLAN)
    assert a.claim(4) is not None
    assert a.plan_moves(0) == (Move(7, 1, 2),)


def test_clearing_takes_the_steps_that_its_moves_take() -> None:
    a = arena(31, max_move=2)
    pages = fill(a)
    a.free(pages[:20:2], NO_PLAN)
    index = a.claim(10)
    assert index is not None
    sizes = []
    for plan in range(3):
        with pytest.raises(ValueError, match="no place yet"):
            a.start_page(index)
        sizes.append(sum(move.num_pages for move in a.plan_moves(plan)))
        assert a.allocate(1) is None, "pages spoken for are handed out"
        a.check()
    assert sizes == [2, 2, 1] and a.start_page(index) == 11


def test_a_page_freed_inside_the_window_is_not_handed_out_again() -> None:
    a = arena(31, max_move=2)
    pages = fill(a)
    a.free(pages[:20:2], NO_PLAN)
    index = a.claim(10)
    assert index is not None
    a.plan_moves(0)
    a.free([pages[17]], NO_PLAN)  # in the window 11 .. 20
    fresh = a.allocate(1)
    assert fresh is not None and a.position(fresh[0]) < 11
    for plan in range(1, 5):
        a.plan_moves(plan)
    assert a.start_page(index) == 11
    a.check()


def test_runs_slide_up_where_no_gap_is_long_enough() -> None:
    a = arena(13)  # 1 .. 12
    top, middle, low = resident(a, 4), resident(a, 3), resident(a, 2)  # 9.., 6.., 4..
    pages = fill(a)  # 1 .. 3
    a.release(top, NO_PLAN)
    a.free(pages[:2], NO_PLAN)
    index = a.claim(6)  # 4 pages above, 2 below, runs and a KV page between
    assert index is not None
    assert a.plan_moves(0) == (Move(6, 10, 3), Move(4, 8, 2), Move(3, 1, 1))
    assert a.moved_adapters() == (middle, low)
    assert (a.start_page(middle), a.start_page(low), a.start_page(index)) == (10, 8, 2)
    assert a.position(pages[2]) == 1
    a.check()


def test_a_slide_is_no_longer_than_it_has_to_be() -> None:
    a = arena(13)
    top, run = resident(a, 5), resident(a, 3)  # 8 .., 5 ..
    pages = fill(a)  # 1 .. 4
    a.release(top, NO_PLAN)
    pages += fill(a)  # 8 .. 12
    a.free([*pages[:4], *pages[4:6], pages[8]], NO_PLAN)  # leaves 10 and 11
    index = a.claim(6)
    assert a.plan_moves(0) == (Move(5, 7, 3),)
    assert index is not None and a.start_page(index) == 1 and a.start_page(run) == 7


def test_runs_pack_where_a_longer_slide_costs_nothing() -> None:
    a = arena(13)
    top, run = resident(a, 5), resident(a, 3)  # 8 .., 5 ..
    a.release(top, NO_PLAN)
    index = a.claim(6)  # 5 above, 4 below
    assert a.plan_moves(0) == (Move(5, 10, 3),)
    assert index is not None and a.start_page(index) == 4 and a.start_page(run) == 10


def test_a_run_larger_than_a_step_moves_alone() -> None:
    a = arena(21, max_move=2)
    top, run = resident(a, 5), resident(a, 8)  # 16 .., 8 ..
    pages = fill(a)  # 1 .. 7
    a.release(top, NO_PLAN)
    a.free(pages[:5], NO_PLAN)  # leaves 6, 7
    index = a.claim(10)
    assert index is not None
    steps = [a.plan_moves(plan) for plan in range(2)]
    assert steps[0] == (Move(8, 13, 8),)
    assert sum(move.num_pages for move in steps[1]) == 2
    assert a.start_page(index) == 3 and a.start_page(run) == 13
    a.check()


def test_a_run_with_an_upload_in_flight_stays_and_blocks_until_it_ends() -> None:
    a = arena(13)
    top = resident(a, 4)  # 9 .. 12
    run = a.claim(4)  # 5 .. 8
    assert run is not None and a.begin_upload(run) == 5
    a.release(top, NO_PLAN)
    index = a.claim(6)  # 4 above, 4 below
    assert index is not None
    assert a.plan_moves(0) == ()
    a.check()
    a.end_upload(run)
    assert a.plan_moves(1) == (Move(5, 9, 4),)
    assert a.start_page(index) == 3


def test_a_place_with_nothing_in_it_slides_for_nothing() -> None:
    a = arena(13)
    top = resident(a, 4)
    empty = a.claim(4)
    a.release(top, NO_PLAN)
    index = a.claim(6)
    assert empty is not None and index is not None
    assert a.plan_moves(0) == () and a.moved_adapters() == ()
    assert a.start_page(empty) == 9 and a.start_page(index) == 3
    a.check()


def test_uploading_to_a_run_that_was_to_slide_makes_it_choose_again() -> None:
    a = arena(19, max_move=1)
    top = resident(a, 4)  # 15 .. 18
    run = a.claim(8)  # 7 .. 14
    pages = fill(a)  # 1 .. 6
    a.release(top, NO_PLAN)
    high = fill(a)  # 15 .. 18
    a.free([*pages, *high[2:]], NO_PLAN)
    index = a.claim(8)  # 6 free below the run, 2 above two pages that have to leave
    assert index is not None and run is not None
    assert a.plan_moves(0) == (Move(15, 1, 1),)
    a.begin_upload(run)
    assert a.plan_moves(1) == ()
    a.check()
    a.end_upload(run)
    assert [a.plan_moves(plan) for plan in (2, 3)] == [(Move(16, 2, 1),), (Move(7, 11, 8),)]
    assert a.plan_moves(4) == () and a.start_page(index) == 3 and a.start_page(run) == 11
    a.check()


def test_claims_are_served_in_order_and_can_be_given_up() -> None:
    a = arena(11)
    pages = fill(a)
    a.free(pages[1::2], NO_PLAN)  # 5 free, none side by side
    first, second = a.claim(3), a.claim(2)
    assert first is not None and second is not None and a.num_free == 0
    a.release(first, NO_PLAN)
    a.check()
    assert a.num_free == 3 and a.rounding_bytes == 0
    a.plan_moves(0)
    assert a.start_page(second) == 9
    assert a.claim(1) == first, "indices stay dense"


def test_a_claim_given_up_lifts_its_fence() -> None:
    a = arena(31, max_move=2)
    pages = fill(a)
    a.free(pages[:20:2], NO_PLAN)
    index = a.claim(10)
    assert index is not None
    assert len(a.plan_moves(0)) == 2
    a.release(index, NO_PLAN)
    a.check()
    assert len(fill(a)) == 10


# The copy stream: only where every plan that may touch the place has finished


def test_freed_pages_are_uploaded_to_after_the_last_plan_that_may_use_them() -> None:
    a = arena(11)
    a.free(fill(a), plan_id=4)
    index = a.claim(2)
    assert index is not None and not a.uploadable(index)
    a.settle(3)
    assert not a.uploadable(index)
    with pytest.raises(ValueError, match="can't be uploaded"):
        a.begin_upload(index)
    a.settle(4)
    assert a.uploadable(index) and a.begin_upload(index) == 9
    assert not a.uploadable(index), "twice"


def test_an_evicted_run_is_uploaded_to_after_the_last_plan_that_may_use_it() -> None:
    a = arena(11)
    a.release(resident(a, 4), plan_id=4)
    index = a.claim(2)
    a.settle(3)
    assert index is not None and not a.uploadable(index)
    a.settle(4)
    assert a.uploadable(index)


def test_a_window_that_pages_left_waits_for_the_plan_that_moves_them() -> None:
    a = arena(11)
    pages = fill(a)
    a.free([pages[0], pages[1], pages[9]], NO_PLAN)
    index = a.claim(3)
    assert a.plan_moves(7)
    a.settle(6)
    assert index is not None and not a.uploadable(index)
    a.settle(7)
    assert a.uploadable(index)


def test_a_page_freed_after_its_move_keeps_the_move_in_mind() -> None:
    """The move is launched in plan 7; the sequence's own last plan was 2."""
    a = arena(11)  # 1 .. 10
    pages = fill(a)
    a.free([*pages[:2], *pages[8:]], NO_PLAN)
    assert a.claim(4) is not None
    assert a.plan_moves(7) == (Move(7, 1, 2),)
    a.free(pages[6:8], 2)
    low = a.claim(2)
    assert low is not None and a.start_page(low) == 1
    a.settle(6)
    assert not a.uploadable(low)
    a.settle(7)
    assert a.uploadable(low)


def test_a_run_evicted_after_its_move_keeps_the_move_in_mind() -> None:
    a = arena(13)
    top, run = resident(a, 5), resident(a, 3)
    a.release(top, NO_PLAN)
    claimed = a.claim(6)
    assert claimed is not None and len(a.plan_moves(7)) == 1
    a.release(run, 2)
    index = a.claim(3)
    a.settle(6)
    assert index is not None and a.start_page(index) == 10
    assert not a.uploadable(index), "the evicted run was copied there in plan 7"
    assert not a.uploadable(claimed), "and out of here"
    a.settle(7)
    assert a.uploadable(index) and a.uploadable(claimed)


# The two choices on their own


def test_the_highest_of_equally_cheap_windows_is_chosen() -> None:
    use = bytearray([KV, KV, 0, KV, 0, 0, KV, 0, KV])
    assert cheapest_window(use, [(1, 9)], 3) == 5
    assert cheapest_window(use, [(1, 3), (4, 6)], 3) is None


def test_the_cheapest_slides_copy_the_fewest_pages() -> None:
    def run(start: int, num_pages: int, stage: Stage = Stage.RESIDENT) -> Run:
        return Run(0, num_pages, num_pages, start, stage)

    runs = [run(5, 9), run(16, 2), run(20, 1, Stage.UPLOADING), run(24, 1)]
    gaps = gaps_between(runs, 29)
    assert gaps == [(1, 5), (14, 16), (18, 20), (21, 24), (25, 29)]
    use = bytearray(29)
    assert cheapest_slides(use, runs, gaps, 5) == [(runs[3], 4)]
    assert cheapest_slides(use, runs, gaps, 7) == [(runs[3], 4)]
    use[27] = KV
    assert cheapest_slides(use, runs, gaps, 5) == [(runs[3], 2)]
    assert cheapest_slides(use, runs, gaps, 8) == [(runs[1], 2), (runs[0], 4)]
    assert cheapest_slides(use, runs, gaps, 9) == []
