"""The page in a browser: no network, no errors, filters, keys, and candidates' texts as text."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.feedback import CompileReport, Profile, RankProfile, TraceEvent
from pkb_gym.report.content import report_content
from pkb_gym.report.page import page_html
from pkb_gym.rewards.examples import failed
from tests.metrics.attempts import attempt

HOSTILE = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1>"
READY = "document.documentElement?.dataset.ready === 'true' && document.getElementById('viewer-body').dataset.attempt"


def compiled(log):
    feedback = failed("compile_error", message="does not compile")
    report = CompileReport(duration_s=1.0, cached=False, log=log, binary_bytes=None)
    return {"compile": report, "stage": feedback.stage, "durations_s": {"compile": 1.5, "run": 0.5}}


PROFILE = Profile(
    ranks=tuple(
        RankProfile(
            **dict.fromkeys(RankProfile.model_fields, 0) | {"rank": rank, "compute_us": 3.0, "waiting_us": 1.0 + rank}
        )
        for rank in range(2)
    ),
    trace=tuple(
        TraceEvent(rank=rank, kind=kind, name=HOSTILE, stream=0, start_us=rank, duration_us=2.0)
        for rank in range(2)
        for kind in ("call", "kernel")
    ),
)
ATTEMPTS = [
    attempt(
        *("AllReduce", "alpha"),
        turn=0,
        failure="compile_error",
        source=f"int a;\nint b;\n// {HOSTILE}\n",
        reply=HOSTILE,
        feedback=compiled(f"error: {HOSTILE}"),
    ),
    attempt("AllReduce", "alpha", turn=1, speedup=2.0, source="int a;\nfloat b;\n// mine\n"),
    attempt("AllReduce", "alpha", sample=1, failure="output_mismatch"),
    attempt("Gather", "alpha", speedup=0.5, captured_us=80.0, tokens=100, cost_usd=0.5, feedback={"profile": PROFILE}),
    attempt("AllReduce", f"beta{HOSTILE}", speedup=1.5),
    attempt("HyenaCP", f"beta{HOSTILE}", failure="deadlock"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page_html(report_content(ATTEMPTS), ATTEMPTS), encoding="utf-8")
    return path


@pytest.fixture
def opened(browser, page):
    browser.open(page, ready=READY)
    return browser


def rows(opened):
    """Problem, verdict, place and figures of the rows of the list."""
    cells = "[...row.querySelectorAll('.line > span')].map((cell) => cell.textContent)"
    return opened.run(f"[...document.querySelectorAll('#list li')].map((row) => {cells})")


def shown(opened, number):
    opened.wait_for(f"document.getElementById('viewer-body').dataset.attempt === '{number}'")
    return opened.run("document.getElementById('viewer-title').textContent")


def set_value(opened, name, value, event="change"):
    control = f"document.getElementById('filter-{name}')"
    opened.run(f"{control}.value = {value!r}; {control}.dispatchEvent(new Event('{event}'))")


def test_it_asks_no_network_and_has_no_errors(opened, page):
    assert opened.requests == [page.as_uri()] and opened.problems == []
    assert opened.run("document.querySelectorAll('figure svg').length") >= 6
    policy = opened.run("document.querySelector('meta[http-equiv]').content")
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy


def test_the_summary_names_few_agents_and_counts_many(opened):
    assert "6 attempts at 3 problems by alpha, beta" in opened.run("document.querySelector('header p').textContent")
    many = [attempt(agent=f"agent {number}") for number in range(5)]
    assert "<p>5 attempts at 1 problem by 5 agents; pkb-gym" in page_html(report_content(many), many)


def test_texts_of_candidates_and_models_stay_text(opened):
    """A kernel with a script tag in it; the agent's name, the compiler's log and the reply as well."""
    assert rows(opened)[0] == ["AllReduce", "compile_error", "alpha, sample 0, turn 0", "reward 0.010"]
    assert rows(opened)[4][2] == f"beta{HOSTILE}, sample 0, turn 0"
    opened.run("choose(0)")
    shown(opened, 0)
    text = opened.run("document.getElementById('viewer-body').textContent")
    assert text.count(HOSTILE) == 3
    assert f"beta{HOSTILE}" in opened.run("document.querySelector('main').textContent")
    assert opened.run("typeof window.pwned") == "undefined"
    assert opened.run("document.querySelectorAll('img').length") == 0
    assert opened.run("document.querySelectorAll('script:not([type])').length") == 1
    assert opened.problems == []


def test_source_is_coloured_and_compared_with_the_turn_before(opened):
    opened.run("choose(1)")
    assert shown(opened, 1) == "AllReduce passed 2.00xalpha, sample 0, turn 1"
    assert opened.run("document.getElementById('source').textContent") == ATTEMPTS[1].source
    assert opened.run("[...document.querySelectorAll('#source .type')].map((run) => run.textContent.trim())") == [
        "int",
        "float",
    ]
    opened.press("d")
    opened.wait_for("document.querySelector('#source .added') !== null")
    line = "[line.className, line.textContent.trim().slice(0, 10)]"
    assert opened.run(f"[...document.querySelectorAll('#source span')].map((line) => {line})") == [
        ["same", "int a;"],
        ["removed", "- int b;"],
        ["removed", "- // </scr"],
        ["added", "+ float b;"],
        ["added", "+ // mine"],
        ["same", ""],
    ]
    opened.press("d")
    opened.wait_for("document.querySelector('#source .added') === null")


CPP = r"""#include <cstdint>  // why
#define TWICE(x) \
  (2 * x)
/* int
   y */
float f(int a) { return 1.5f + g("a\"b // c", 'x') + R"m(int )" z)m"; }
"""
PYTHON = """# why
@triton.jit
def f(x: int):
    '''int
    y'''
    return f"{x}" + 'a' + 0x1f
"""


@pytest.mark.parametrize(
    ("source", "is_python", "expected"),
    [
        (
            CPP,
            False,
            [
                *(("preprocessor", "#include <cstdint>  "), ("comment", "// why")),
                ("preprocessor", "#define TWICE(x) \\\n  (2 * x)"),
                *(("comment", "/* int\n   y */"), ("type", "float"), ("name", "f"), ("type", "int")),
                *(("keyword", "return"), ("number", "1.5f"), ("name", "g"), ("string", r'"a\"b // c"')),
                *(("string", "'x'"), ("string", 'R"m(int )" z)m"')),
            ],
        ),
        (
            PYTHON,
            True,
            [
                *(("comment", "# why"), ("preprocessor", "@triton.jit"), ("keyword", "def"), ("name", "f")),
                *(("type", "int"), ("string", "'''int\n    y'''"), ("keyword", "return"), ("string", 'f"{x}"')),
                *(("string", "'a'"), ("number", "0x1f")),
            ],
        ),
    ],
    ids=["C++", "Python"],
)
def test_colours(opened, source, is_python, expected):
    pieces = opened.run(f"coloursOf({json.dumps(source)}, {json.dumps(is_python)})")
    assert "".join(text for _, text in pieces) == source
    assert [(kind, text) for kind, text in pieces if kind] == expected


@pytest.mark.parametrize("start", ["/*", 'R"(', '"', "'", "#", "'''", "(", "0", "_", "\\", "#\\\n", 'u8R"x'])
def test_colours_of_a_hostile_source_take_one_pass(opened, start):
    """Patterns that look for an end that never comes must not begin anew at every character."""
    source = start * (200_000 // len(start))
    for is_python in ("true", "false"):
        pieces = f"coloursOf({json.dumps(source)}, {is_python})"
        assert opened.run(f"{pieces}.map((piece) => piece[1]).join('').length") == len(source)


def test_what_was_found_is_shown(opened):
    opened.run("choose(0)")
    shown(opened, 0)
    titles = "[...document.querySelectorAll('#viewer-body h4, #viewer-body summary')].map((title) => title.textContent)"
    assert opened.run(titles) == [
        *("Feedback", "Compiler", "Source", "Parts of the reward", "Time of the evaluation", "Reply of the model"),
    ]
    opened.run("choose(2)")
    shown(opened, 2)
    assert "Mismatch" in opened.run(titles)
    assert opened.run("document.querySelectorAll('#viewer-body svg rect title').length") >= 2


def test_times_are_drawn(opened):
    opened.run("choose(3)")
    shown(opened, 3)
    labels = "[...document.querySelectorAll('#viewer-body svg')].map((svg) => svg.getAttribute('aria-label'))"
    assert opened.run(labels) == ["Parts of the reward", "Time of a call on each rank", "Timeline of the ranks"]
    words = "[...document.querySelectorAll('#viewer-body svg rect title')].map((title) => title.textContent)"
    titles = opened.run(words)
    assert "waiting: 2 us" in titles and f"rank 1, kernel {HOSTILE[:20]}"[:20] in "".join(titles)
    timeline = "document.querySelectorAll('#viewer-body svg')[2]"
    assert opened.run(f"{timeline}.querySelectorAll('rect').length") == 4
    lefts = f"[...{timeline}.querySelectorAll('rect')].map((rect) => Number(rect.getAttribute('x')))"
    assert opened.run(f"new Set({lefts}).size") == 2, "rank 1 begins later"


def test_filters(opened):
    assert opened.run("document.getElementById('count').textContent") == "6 of 6 attempts"
    set_value(opened, "verdict", "passed")
    assert [row[0] for row in rows(opened)] == ["AllReduce", "Gather", "AllReduce"]
    set_value(opened, "agent", "alpha")
    assert [row[0] for row in rows(opened)] == ["AllReduce", "Gather"]
    set_value(opened, "text", "gath PASSED", "input")
    assert [row[0] for row in rows(opened)] == ["Gather"]
    for name, value, event in (("verdict", "", "change"), ("agent", "", "change"), ("text", "", "input")):
        set_value(opened, name, value, event)
    set_value(opened, "category", "Context Parallel")
    assert [row[0] for row in rows(opened)] == ["HyenaCP"]
    assert opened.run("document.getElementById('count').textContent") == "1 of 6 attempts"
    set_value(opened, "text", "nothing", "input")
    opened.press("j")
    assert rows(opened) == [] and opened.problems == []


def test_keys(opened):
    shown(opened, 0)
    for key, number in (("j", 1), ("k", 0), ("n", 2), ("n", 3), ("p", 2), ("p", 0), ("k", 0)):
        opened.press(key)
        shown(opened, number)
    assert opened.run("document.querySelectorAll('#list li[aria-current]').length") == 1
    opened.press("/")
    assert opened.run("document.activeElement.id") == "filter-text"
    opened.press("j")
    assert opened.run("document.getElementById('filter-text').value") == "j", "in the filter, a letter is a letter"
    opened.press("Escape")
    assert opened.run("document.activeElement.id") == ""
    set_value(opened, "text", "", "input")
    opened.run("document.querySelector('#list [aria-current] button').focus()")
    opened.press("ArrowDown")
    shown(opened, 1)
    assert opened.run("document.activeElement.closest('li').id") == "attempt-1"
    opened.press("ArrowUp")
    shown(opened, 0)
    opened.press("?")
    assert opened.run("document.getElementById('help').open")
    opened.press("Escape")
    opened.wait_for("!document.getElementById('help').open")


def test_agents_can_be_hidden_in_figures(opened):
    groups = "[...document.querySelectorAll('#roofline [data-agent=\"0\"]')]"
    visible = f"{groups}.filter((group) => getComputedStyle(group).display !== 'none').length"
    assert opened.run(visible) > 0
    opened.run("document.querySelector('#agents-shown input[value=\"0\"]').click()")
    assert opened.run(visible) == 0
    assert opened.run("document.querySelectorAll('#roofline [data-agent=\"1\"]:not(.off)').length") > 0


def test_points_of_figures_say_what_they_are(opened):
    titles = opened.run("[...document.querySelectorAll('#roofline title')].map((title) => title.textContent)")
    assert len(titles) == 3 and any(title.startswith("Gather by alpha, sample 0, turn 0: ") for title in titles)


@pytest.mark.parametrize(("scheme", "ground"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 22, 26)")])
def test_light_and_dark(browser, page, scheme, ground):
    browser.open(page, scheme=scheme, ready=READY)
    assert browser.run("getComputedStyle(document.body).backgroundColor") == ground
    ink = browser.run("getComputedStyle(document.querySelector('#roofline svg text')).fill")
    assert ink == ("rgb(22, 24, 29)" if scheme == "light" else "rgb(232, 234, 238)") and browser.problems == []


def test_tables_and_controls_have_names(opened):
    assert opened.run("document.querySelectorAll('table th:not([scope])').length") == 0
    unnamed = "[...document.querySelectorAll('input, select')].filter((control) => !control.labels.length).length"
    assert opened.run(unnamed) == 0
    assert opened.run("[...document.querySelectorAll('figure svg')].every((svg) => svg.getAttribute('aria-label'))")
    ids = opened.run("[...document.querySelectorAll('[id]')].map((it) => it.id)")
    assert len(set(ids)) == len(ids)


def test_the_page_keeps_its_size(page):
    whole = page.stat().st_size
    smaller = page_html(report_content(ATTEMPTS), ATTEMPTS, whole - 200)
    assert len(smaller.encode()) <= whole - 200 and "for the size of the page" in smaller
    with pytest.raises(ConfigError, match="tables and pictures alone take more than 1000 bytes"):
        page_html(report_content(ATTEMPTS), ATTEMPTS, 1000)


def test_the_page_is_the_same_each_time(page):
    text = page.read_text(encoding="utf-8")
    code = (
        "from tests.report.test_page import *; import sys;"
        "sys.stdout.buffer.write(page_html(report_content(ATTEMPTS), ATTEMPTS).encode())"
    )
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.decode()
    assert again == text
    assert not re.search(r"https?://(?!www\.w3\.org)", text)


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ConfigError, match=r"a page needs jinja2; install pkb-gym\[report\]"):
        page_html(report_content(ATTEMPTS), ATTEMPTS)
