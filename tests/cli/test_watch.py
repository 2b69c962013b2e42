"""`pkb eval --watch`: one card for each save, and what has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pkb_gym.cli import watch
from pkb_gym.cli.watch import changes, saved_texts
from pkb_gym.rewards.examples import failed, timed


class Editor:
    """Runs one given step at each look at the file; then presses Ctrl-C."""

    def __init__(self, path: Path, *saves: str | None) -> None:
        self.path, self.saves = path, list(saves)

    def __call__(self, _: float) -> None:
        if not self.saves:
            raise KeyboardInterrupt
        text = self.saves.pop(0)
        if text is None:
            self.path.unlink()
        else:
            beside = self.path.with_name("beside")
            beside.write_text(text)
            beside.replace(self.path)


@pytest.fixture
def edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def edit(first: str, *saves: str | None) -> Path:
        path = tmp_path / "kernel.cpp"
        path.write_text(first)
        monkeypatch.setattr(watch, "sleep", Editor(path, *saves))
        return path

    return edit


def test_each_save_is_judged_once_and_ctrl_c_ends_it(pkb, edit):
    path = edit("passed 1", "compile_error", None, "compile_error", "usage", "passed 2")
    ran = pkb("eval", "AllReduce", path, "--watch")
    assert [source for _, source, _ in ran.calls] == ["passed 1", "compile_error", "usage", "passed 2"]
    assert ran.status == 0 and "Traceback" not in ran.err
    assert ran.out.count("AllReduce") == 3, "a card each, but for what could not be asked"
    assert "since the last: compile_error (was passed); no speedup (was 2.00x [" in ran.err
    assert "error: AllReduce: no such thing" in ran.err
    assert "since the last: passed (was compile_error); speedup 2.00x [" in ran.err


def test_the_last_verdict_is_the_status(pkb, edit):
    assert pkb("eval", "AllReduce", edit("passed", "runtime_error"), "--watch", "--json").status == 1


def test_a_question_without_sense_ends_it(pkb, edit):
    assert pkb("eval", "AllReduce", edit("usage", "passed"), "--watch").status == 2


def test_standard_input_cannot_be_watched(pkb):
    ran = pkb("eval", "AllReduce", "-", "--watch", stdin=b"passed")
    assert ran.status == 2 and "--watch needs a file" in ran.err and not ran.calls


def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path, edit):
    path = edit("one", "one and more")
    reads = iter(["on", "whole"])

    def read() -> str:
        text = next(reads)
        if text == "on":
            path.write_text("one and more")
        return text

    assert next(saved_texts(read, path)) == "whole"


@pytest.mark.parametrize(
    ("was", "speedup", "words"),
    [(1.0, 2.0, ": faster"), (2.0, 1.0, ": slower"), (1.0, 1.0, ": no difference beyond the noise")],
)
def test_a_difference_is_one_beyond_both_intervals(was, speedup, words):
    assert words in changes(timed(baseline_us=100, speedup=was), timed(baseline_us=100, speedup=speedup))


def test_times_are_printed_by_stage():
    before, now = (
        failed("compile_error").model_copy(update={"durations_s": durations})
        for durations in ({"compile": 2.0, "static": 0.01}, {"compile": 1.5, "check": 0.25, "static": 0.02})
    )
    assert changes(before, now) == ("since the last: compile_error; compile 1.50 s (was 2.00); check 0.25 s (was 0.00)")
