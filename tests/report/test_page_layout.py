"""The page at the widths of a desktop and of a phone, by the boxes of its elements."""

from __future__ import annotations

import pytest

from pkb_gym.report.content import report_content
from pkb_gym.report.page import page_html
from tests.metrics.attempts import attempt
from tests.report.test_page import READY, shown
from tests.report.timings import loose

DESKTOP, PHONE = 1280, 390
LONG = "a-family-of-models/with-a-long-name-Instruct-2507-step-400"
AGENTS = ("expert", LONG, "other", "third-agent-of-all")
SOURCE = "\n".join(f"int line_{number};  // {'wide ' * 40}" for number in range(200))
ATTEMPTS = [
    *(
        attempt(problem, agent, sample=sample, speedup=1.5 + sample, captured_us=80.0, source=SOURCE)
        for agent in AGENTS
        for problem in ("AllReduce", "UlyssesGatherHeadsScatterSeq", "MoEDispatch")
        for sample in range(2)
    ),
    loose("Gather", LONG, speedup=2.5, low=0.9, source=SOURCE),
    attempt("HyenaCP", LONG, failure="wrong_shape_or_dtype", source=SOURCE, feedback={"message": "wide " * 400}),
    attempt("Scatter", "other", failure="no_submission", reply="```\nint", finish_reason="length"),
    attempt("Reduce", "other", failure="no_submission", refusal="prompt is too long"),
]


@pytest.fixture(scope="module")
def layout_page(tmp_path_factory):
    path = tmp_path_factory.mktemp("layout") / "report.html"
    path.write_text(page_html(report_content(ATTEMPTS), ATTEMPTS), encoding="utf-8")
    return path


@pytest.fixture(params=[DESKTOP, PHONE])
def sized(request, browser, layout_page):
    browser.open(layout_page, width=request.param, ready=READY)
    return browser


def boxes(opened, selector):
    """Left, top, right and bottom of elements, in the window."""
    box = "(({ left, top, right, bottom }) => [left, top, right, bottom])(it.getBoundingClientRect())"
    return opened.run(f"[...document.querySelectorAll({selector!r})].map((it) => {box})")


def box(opened, selector):
    """The box of the only element."""
    (found,) = boxes(opened, selector)
    return found


def text_of(opened, name):
    """The text of the element with an id."""
    return opened.run(f"document.getElementById({name!r}).textContent")


def width_of(opened):
    return opened.run("document.documentElement.clientWidth")


def is_phone(opened):
    return width_of(opened) < 600


def choose(opened, problem):
    """Shows the first attempt at a problem."""
    number = opened.run(f"ATTEMPTS.find((attempt) => attempt.problemName === {problem!r}).number")
    opened.run(f"choose({number})")
    shown(opened, number)


def test_the_body_does_not_scroll_sideways(sized):
    assert sized.run("document.documentElement.scrollWidth <= innerWidth") and sized.problems == []
    for problem in ("HyenaCP", "Scatter", "AllReduce"):
        choose(sized, problem)
        assert sized.run("document.documentElement.scrollWidth <= innerWidth"), problem
    sized.run("document.querySelectorAll('details').forEach((more) => { more.open = true; })")
    assert sized.run("document.documentElement.scrollWidth <= innerWidth"), "with every table open"


def test_figures_scale_to_their_place(sized):
    """Whole within the window, with words of a size to read."""
    found = boxes(sized, "figure svg")
    assert max(right for _, _, right, _ in found) <= width_of(sized)
    assert min(right - left for left, _, right, _ in found) >= (340 if is_phone(sized) else 400)
    assert min(bottom - top for _, top, _, bottom in boxes(sized, "#pass_at_k svg text")) >= 9
    assert boxes(sized, ".scroll figure svg, .scroll svg") == [], "no figure is scrolled"


def test_the_first_attempt_is_selected_and_its_verdict_seen(sized):
    assert shown(sized, 0).startswith("AllReduce passed")
    assert sized.run("document.querySelectorAll('#list li[aria-current]').length") == 1
    assert sized.run("scrollY") == 0, "the page is read from its top"


def test_every_row_of_the_list_shows_its_verdict(sized):
    """The longest verdict beside the longest names."""
    left, _, right, _ = box(sized, "#list")
    found = boxes(sized, "#list .verdict")
    assert len(found) == len(ATTEMPTS) and all(left <= start < end <= right for start, _, end, _ in found)
    assert sized.run("list.scrollWidth <= list.clientWidth")


def test_the_verdict_stays_while_the_end_is_read(sized):
    choose(sized, "HyenaCP")
    sized.run("viewer.scrollIntoView(); viewer.scrollTop = 1e6; scrollBy(0, 1e6)")
    assert -box(sized, "#viewer")[1] > 200 or sized.run("viewer.scrollTop") > 200
    left, top, right, bottom = box(sized, "#viewer-title .verdict")
    assert 0 <= top < bottom <= 200 and 0 <= left < right <= width_of(sized)


def test_feedback_stands_above_the_source(sized):
    choose(sized, "HyenaCP")
    assert box(sized, "[aria-label=Feedback]")[3] <= box(sized, "#source")[1]


def test_list_and_viewer_stand_beside_each_other_or_below(sized):
    choose(sized, "AllReduce")
    listed, viewer = box(sized, "#list"), box(sized, "#viewer")
    if is_phone(sized):
        assert listed[3] <= viewer[1] and listed[0] == viewer[0] and listed[3] - listed[1] <= 0.41 * 900
    else:
        assert listed[2] <= viewer[0] and abs(listed[1] - viewer[1]) < 1


def test_tables_of_agents_fit(sized):
    """Those by category are scrolled on a phone, within their place, from four agents on."""
    for selector in ("#agents .scroll", "#figures > .scroll", *(() if is_phone(sized) else (".beside .scroll",))):
        fits = f"[...document.querySelectorAll('{selector}')].every((it) => it.scrollWidth <= it.clientWidth)"
        assert sized.run(fits), selector


def test_the_next_attempt_is_read_from_its_top(sized):
    choose(sized, "HyenaCP")
    sized.run("viewer.scrollIntoView(); viewer.scrollTop = 500; scrollBy(0, 400)")
    sized.run("document.getElementById('previous').click()")
    assert -1 <= box(sized, "#viewer")[1] <= 200 and sized.run("viewer.scrollTop") == 0


def test_a_cell_of_the_matrix_opens_its_best_attempt(sized):
    cells = sized.run("[...document.querySelectorAll('#matrix td')].map((cell) => cell.textContent.trim())")
    assert cells.count("2.50x (2/2)") == 12 and "≈2.50x (1/1)" in cells and "wrong shape or dtype (0/1)" in cells
    assert cells.count("") == 12, "a problem that an agent did not answer"
    name = "UlyssesGatherHeadsScatterSeq"
    sized.run(f"document.querySelector('#matrix button[title^=\"{name} by {LONG}: \"]').click()")
    sized.wait_for(f"viewerTitle.textContent === '{name} passed 2.50x{LONG}, sample 1, turn 0'")
    assert text_of(sized, "count") == f"2 of {len(ATTEMPTS)} attempts"
    assert -1 <= box(sized, "#attempts")[1] < 900


def test_why_nothing_was_submitted_is_said(sized):
    choose(sized, "Scatter")
    words = text_of(sized, "viewer-body")
    assert "cut off at the limit of tokens" in words and "reply ended bylength" in words
    choose(sized, "Reduce")
    words = text_of(sized, "viewer-body")
    assert "Refusal of the endpointprompt is too long" in words and "The endpoint refused the request." in words


def test_timings_that_did_not_converge_are_marked(sized):
    choose(sized, "Gather")
    assert "≈2.50x" in text_of(sized, "viewer-title")
    assert "did not become tight" in text_of(sized, "viewer-body")
    speeds = sized.run("[...document.querySelectorAll('#list .figures')].map((it) => it.textContent.split(',')[0])")
    assert speeds.count("≈2.50x") == 1 and speeds.count("2.50x") == 12


def test_no_table_has_an_empty_column(sized):
    """Columns of which no row has a word, or dashes alone; of the matrix, no row of a category counts."""
    tables = sized.run(
        "[...document.querySelectorAll('table')].map((table) => [...table.tBodies].flatMap((body) => [...body.rows])"
        ".map((row) => [...row.cells].map((cell) => cell.textContent.trim())).filter((row) => row.length > 1))"
    )
    assert len(tables) >= 10
    for rows in tables:
        assert all(any(cell not in ("", "-") for cell in column) for column in zip(*rows, strict=True)), rows
