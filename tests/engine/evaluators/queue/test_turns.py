"""The order of waiting items: priorities, clients in turn, and nobody served later for wanting what others want."""

from __future__ import annotations

from pkb_gym.engine.evaluators.queue.turns import Turns


def drain(turns, may_begin=lambda client: True):
    order = []
    while (following := turns.pop(may_begin)) is not None:
        order.append(following)
    return order


def test_clients_take_turns_and_each_has_its_own_in_order():
    turns = Turns()
    for item in ("a1", "a2", "a3", "b1", "b2"):
        turns.push(item, [item[0]])
    assert turns.counts() == {"a": 3, "b": 2} and len(turns) == 5
    assert [item for item, _ in drain(turns)] == ["a1", "b1", "a2", "b2", "a3"]
    assert not turns.counts() and not list(turns)


def test_a_shared_item_leaves_all_lines_with_the_first_turn():
    turns = Turns()
    for item in ("a1", "a2", "shared"):
        turns.push(item, ["a"])
    turns.push("shared", ["b"])
    turns.push("shared", ["b"])
    assert drain(turns) == [("a1", "a"), ("shared", "b"), ("a2", "a")]


def test_higher_priorities_go_first():
    turns = Turns()
    for number, priority in enumerate((0, 5, 5, 1)):
        turns.push(number, ["a"], priority)
    assert [item for item, _ in drain(turns)] == [1, 2, 3, 0]


def test_an_item_rises_with_a_more_urgent_request():
    turns = Turns()
    turns.push("first", ["a"])
    turns.push("second", ["a"])
    turns.push("second", ["a"], 3)
    turns.push("second", ["a"], 1)
    assert [item for item, _ in drain(turns)] == ["second", "first"]


def test_a_client_that_may_not_begin_is_passed_over():
    turns = Turns()
    turns.push("a1", ["a"])
    turns.push("b1", ["b"])
    assert drain(turns, lambda client: client == "b") == [("b1", "b")] and "a1" in turns


def test_items_can_be_taken_out():
    turns = Turns()
    for item in ("one", "two"):
        turns.push(item, ["a", "b"])
    turns.remove("one", "a")
    assert "one" in turns and turns.counts() == {"a": 1, "b": 2}
    turns.remove("one", "b")
    turns.remove("one")
    turns.remove("two")
    assert not turns and turns.pop() is None
