"""Pictures: what is drawn, its words, and files for papers."""

from __future__ import annotations

import doctest
import re
import sys

import pytest

from pkb_gym.report.content import report_content
from pkb_gym.report.figures import theme
from pkb_gym.report.figures.charts import charts
from pkb_gym.report.figures.files import write_pictures
from pkb_gym.report.figures.svg import page_svg
from pkb_gym.report.figures.theme import PAGE, VARIABLES, style
from pkb_gym.report.markdown import report_markdown
from tests.metrics.attempts import attempt
from tests.report.timings import loose

NAME = "$x_1$ <b>&"
ATTEMPTS = [
    attempt("AllReduce", NAME, turn=0),
    attempt("AllReduce", NAME, turn=1, speedup=2.0, captured_us=90.0),
    attempt("Gather", NAME, speedup=0.5, tokens=10, cost_usd=0.1, mechanisms=("TMA",)),
    loose("Gather", NAME, sample=1, speedup=1.25, low=0.8),
    *(attempt(problem, f"agent {i}", speedup=1.0 + i) for i in range(9) for problem in ("AllReduce", "Gather")),
    attempt("HyenaCP", "with a very long name indeed, as those of models and their settings often are"),
]
CONTENT = report_content(ATTEMPTS)
NAMES = [
    *("pass_at_k", "fast_p_eager", "fast_p_captured", "failure_modes", "mechanisms"),
    *("roofline", "speedup_by_problem", "turns"),
]


def drawn(name):
    (chart,) = (chart for chart in charts(CONTENT) if chart.name == name)
    with style(PAGE):
        return page_svg(chart.draw(PAGE), name, chart.title)


def test_there_is_a_picture_for_all_that_was_measured():
    assert [chart.name for chart in charts(CONTENT)] == [*NAMES, "evaluations"], "not all have tokens and prices"
    nothing = report_content([attempt(failure="infrastructure")])
    assert [chart.name for chart in charts(nothing)] == ["failure_modes"]
    wrong = report_content([attempt()])
    assert [chart.name for chart in charts(wrong)] == ["failure_modes"], "nothing was timed"
    single = report_content([attempt(speedup=1.0, tokens=5, cost_usd=0.1)])
    assert not {"turns", "pass_at_k", "mechanisms"} & {chart.name for chart in charts(single)}
    assert {"completion_tokens", "cost_usd"} <= {chart.name for chart in charts(single)}


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_of_the_page_has_its_colours_and_no_styles(name):
    svg = drawn(name)
    assert "style=" not in svg and "<style" not in svg and "<svg:" not in svg
    assert not set(VARIABLES) & set(re.findall(r"#[0-9a-f]{6}", svg))
    assert "var(--ink)" in svg and "var(--agent-0)" in svg and 'data-agent="0"' in svg
    assert all(found.startswith(f"{name}-") for found in re.findall(r'\bid="([^"]*)"', svg))
    assert set(re.findall(r'href="#([^"]*)"', svg)) <= set(re.findall(r'\bid="([^"]*)"', svg))


def test_names_are_text_in_pictures():
    """A name is neither a formula nor markup."""
    svg = drawn("fast_p_eager")
    assert "$x_1$ &lt;b&gt;&amp;: fast_1 = " in svg and ">$x_1$ &lt;b&gt;&amp;</text>" in svg
    assert ">with a very ...s often are</text>" in svg, "names are cut in the middle"


def test_fast_p_is_drawn_by_both_estimates():
    svg = drawn("fast_p_eager")
    assert "$x_1$ &lt;b&gt;&amp;: fast_1 = 0.500 by lower end" in svg
    assert "$x_1$ &lt;b&gt;&amp;: fast_1 = 0.750 as measured" in svg


@pytest.mark.parametrize(("low", "labels"), [(0.01, ["0.01", "0.02", "0.05"]), (1e-4, ["0.0001", "0.001", "0.01"])])
def test_labels_of_logarithmic_axes_leave_room(low, labels):
    _, axes = theme.new_figure()
    axes.plot([low, 1.0], [low, 1.0])
    axes.set_xscale("log")
    theme.plain_ticks(axes, "x")
    shown = [text for text in axes.xaxis.get_major_formatter().format_ticks(axes.get_xticks()) if float(text) >= low]
    assert shown[:3] == labels


def test_timings_that_did_not_converge_are_hollow():
    svg = drawn("speedup_by_problem")
    (hollow,) = re.findall(r'<use [^>]*fill="none"[^>]*><title>([^<]*)</title>', svg)
    assert hollow.startswith("Gather: 1.25 by $x_1$") and hollow.endswith(", interval not tight")


def test_points_carry_the_words_of_their_kernel():
    svg = drawn("roofline")
    assert len(re.findall(r"<title>", svg)) == 21
    assert "AllReduce by agent 8, sample 0, turn 0: 225.0% of the roofline (link), baseline 25.0%, speedup 9.00" in svg


def test_tables_of_pictures_by_hand():
    tables = {chart.name: chart.table for chart in charts(CONTENT)}
    by_low, measured = (
        dict(zip(tables["fast_p_eager"].header, row, strict=True)) for row in tables["fast_p_eager"].rows[:2]
    )
    assert (by_low["speedup"], measured["speedup"]) == ("lower end", "measured")
    assert by_low["fast_1"] == "0.500 (0.000 to 1.000)" and measured["fast_1"] == "0.750 (0.500 to 1.000)"
    assert measured["fast_2"] == "0.000 (0.000 to 0.000)" and (by_low["area"], measured["area"][:5]) == ("", "0.550")
    pass_at = dict(zip(tables["pass_at_k"].header, tables["pass_at_k"].rows[0], strict=True))
    assert pass_at == {"agent": NAME, "pass@1": "1.000 (1.000 to 1.000)", "pass@2": "1.000"}
    assert tables["failure_modes"].rows[0][:2] == ("passed", "3 (75.0%)")
    turns = tables["turns"]
    assert dict(zip(turns.header, turns.rows[0], strict=True))["right after 1"].startswith("0.500")
    assert tables["speedup_by_problem"].rows[0][:2] == ("AllReduce", "2.00")


def test_tables_of_pictures_have_no_empty_columns():
    for chart in charts(CONTENT):
        table = chart.table
        assert all(any(row[column] for row in table.rows) for column in range(len(table.header))), chart.name


def test_pictures_for_papers(tmp_path):
    chosen = [chart for chart in charts(CONTENT) if chart.name in ("turns", "roofline")]
    paths = write_pictures(chosen, tmp_path / "pictures")
    assert [path.name for path in paths] == ["roofline.svg", "roofline.png", "turns.svg", "turns.png"]
    for path in paths:
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG") if path.suffix == ".png" else b"#0072b2" in data
    again = [path.read_bytes() for path in paths]
    write_pictures(chosen, tmp_path / "pictures")
    assert [path.read_bytes() for path in paths] == again


def test_markdown_has_the_same_tables_and_no_markup_of_others():
    text = report_markdown(CONTENT)
    assert "| category | $x\\_1$ \\<b\\>\\& (k = 2) |" in text and "| Context Parallel (1 of 15) |  |" in text
    assert "| GPT-5.5 | 28 → 36 | 22 → 27 |" in text and "| - |" not in text
    assert "| Gather | ≈1.25x (2/2) | 1.00x (1/1) |" in text
    assert "<b>" not in text, "names of agents are titles of columns too"
    assert text.count("\n## ") == 2 + 3 + 1 + len(NAMES) + 1 + 1


def test_examples():
    assert all(doctest.testmod(sys.modules[one.__module__]).failed == 0 for one in (theme.short, charts))
