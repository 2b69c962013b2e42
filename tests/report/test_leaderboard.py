"""Entries of the leaderboard and the table of them."""

from __future__ import annotations

import datetime as dt
import json
import subprocess

import pytest

from pkb_gym.engine.errors import ConfigError
from pkb_gym.report.leaderboard import leaderboard_markdown, make_entry, read_entries, read_entry
from pkb_gym.report.leaderboard.build import EntryText
from pkb_gym.report.leaderboard.checkout import checkout_commit
from tests.metrics.attempts import attempt, write

TEXT = EntryText(
    name="expert-cpu",
    title="Expert | kernels",
    kind="expert",
    description="Written by hand.",
    command="pkb eval-dir experts/",
    commit="0123456789ab",
    date=dt.date(2026, 1, 31),
)
ATTEMPTS = [
    attempt("AllReduce", speedup=2.0, low=1.9, captured_us=90.0),
    attempt("AllReduce", sample=1, speedup=1.0),
    attempt("Gather"),
]


def entry_of(tmp_path, attempts=ATTEMPTS, **changes):
    path = tmp_path / "r.jsonl"
    path.unlink(missing_ok=True)
    return make_entry([str(write(path, attempts))], EntryText(**(vars(TEXT) | changes)))


def test_an_entry_holds_figures_kernels_and_where_they_come_from(tmp_path):
    entry = entry_of(tmp_path)
    assert entry.figures.pass_at[0].estimate.mean == 0.5
    assert [(kernel.problem, kernel.suffix, kernel.speedup_low) for kernel in entry.kernels] == [
        ("AllReduce", "cpp", 1.9)
    ]
    assert (entry.device, entry.hardware, entry.world_sizes, entry.sizes) == ("cpu", "example", (4,), ("tiny",))
    (digest,) = entry.results
    found = subprocess.run(["sha256sum", tmp_path / "r.jsonl"], capture_output=True, text=True, check=True)
    assert (digest.name, digest.attempts) == ("r.jsonl", 3) and digest.sha256 == found.stdout.split()[0]


def test_an_entry_is_read_as_it_was_written(tmp_path):
    entry = entry_of(tmp_path)
    path = tmp_path / "entries" / "expert-cpu.json"
    path.parent.mkdir()
    path.write_text(entry.to_json())
    assert read_entry(path) == entry and read_entries([path.parent]) == [entry]
    with pytest.raises(ConfigError, match="there is another entry 'expert-cpu'"):
        read_entries([path, path])
    path.rename(path.with_name("other.json"))
    with pytest.raises(ConfigError, match=r"holds the entry 'expert-cpu'; call it expert-cpu\.json"):
        read_entry(path.with_name("other.json"))


def test_an_entry_is_a_regular_file(tmp_path):
    (tmp_path / "endless.json").symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="it is no regular file"):
        read_entries([tmp_path])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema_version": "1"}, "schema_version: Input should be 1"),
        ({"schema_version": None}, "schema_version: Input should be 1"),
        ({"world_sizes": ["4"]}, "world_sizes.0: Input should be a valid integer"),
        ({"commit": "main"}, "commit: String should match pattern"),
        ({"date": "yesterday"}, "date: "),
        ({"extra": 1}, "extra: Extra inputs are not permitted"),
        ({"kernels": []}, "the entry: Value error, no kernel for the solved problems AllReduce"),
        ({"hardware": None}, "hardware: Input should be a valid string"),
    ],
)
def test_what_is_no_entry_is_named_by_file_and_field(tmp_path, change, words):
    path = tmp_path / "expert-cpu.json"
    path.write_text(json.dumps(json.loads(entry_of(tmp_path).to_json()) | change))
    with pytest.raises(ConfigError) as error:
        read_entry(path)
    assert str(error.value).startswith(f"{path} is no entry of the leaderboard: {words}")


def test_an_entry_needs_its_version_and_names_each_kernel_once(tmp_path):
    path = tmp_path / "expert-cpu.json"
    fields = json.loads(entry_of(tmp_path).to_json())
    path.write_text(json.dumps({name: value for name, value in fields.items() if name != "schema_version"}))
    with pytest.raises(ConfigError, match="schema_version: Field required"):
        read_entry(path)
    path.write_text(json.dumps(fields | {"kernels": 2 * fields["kernels"]}))
    with pytest.raises(ConfigError, match=r"kernels that stand twice: AllReduce\.cpp"):
        read_entry(path)


@pytest.mark.parametrize(("version", "remedy"), [(2, "take a newer pkb-gym"), (0, "make it again with `pkb leader")])
def test_an_entry_of_another_version_is_recognised_by_it_and_not_by_its_fields(tmp_path, version, remedy):
    path = tmp_path / "expert-cpu.json"
    path.write_text(json.dumps({"schema_version": version, "other": "fields"}))
    with pytest.raises(ConfigError, match=f"is of version {version} of the schema, .* reads version 1; {remedy}"):
        read_entry(path)


def test_an_entry_holds_turns_until_the_experts_are_reached(tmp_path):
    searched = [
        attempt("AllReduce", "evolve", turn=0, speedup=1.0),
        attempt("AllReduce", "evolve", turn=1, speedup=2.5),
        attempt("Gather", "evolve", speedup=1.0),
    ]
    experts = [attempt("AllReduce", "expert", speedup=2.0), attempt("Gather", "expert", speedup=3.0)]
    of_search, of_experts = write(tmp_path / "s.jsonl", searched), write(tmp_path / "e.jsonl", experts)
    entry = make_entry([str(of_search)], TEXT, str(of_experts))
    assert [(each.problem, each.turns) for each in entry.reach.problems] == [("AllReduce", (2,)), ("Gather", (None,))]
    words = "As fast as the best kernels of expert: 1 of 2 problems, after 2.0 turns in the mean."
    assert words in leaderboard_markdown([entry])
    other_size = [one.model_copy(update={"feedback": _larger(one.feedback)}) for one in experts]
    with pytest.raises(ConfigError, match=r"l.jsonl does not compare with these results: size large against tiny$"):
        make_entry([str(of_search)], TEXT, str(write(tmp_path / "l.jsonl", other_size)))
    with pytest.raises(ConfigError, match="has a right and timed kernel for none of these problems"):
        make_entry([str(of_search)], TEXT, str(write(tmp_path / "w.jsonl", [attempt("AllReduce", "expert")])))
    with pytest.raises(ConfigError, match=r"a target is one agent, got .* of evolve, expert"):
        make_entry([str(of_search)], TEXT, str(write(tmp_path / "b.jsonl", [*searched, *experts])))


def _larger(feedback):
    return feedback.model_copy(update={"config": feedback.config.model_copy(update={"size": "large"})})


def test_results_that_make_no_entry(tmp_path):
    with pytest.raises(ConfigError, match="of one agent, got those of a, b"):
        entry_of(tmp_path, [attempt(), attempt(agent="b")])
    with pytest.raises(ConfigError, match="on one machine under one protocol, got none"):
        entry_of(tmp_path, [attempt(failure="no_submission")])
    with pytest.raises(ConfigError, match=r"^no entry of the leaderboard: name: String should match"):
        entry_of(tmp_path, name="Not A Name")


def test_the_table_groups_by_hardware_and_ranks_by_speed(tmp_path):
    first = entry_of(tmp_path)
    second = entry_of(tmp_path, [attempt("AllReduce", speedup=3.0)], name="model", title="model", kind="model")
    other = first.model_copy(update={"name": "gpu", "title": "gpu", "hardware": "H200", "device": "cuda"})
    alone = other.model_copy(update={"name": "gpu-1", "title": "gpu-1", "world_sizes": (1,)})
    text = leaderboard_markdown([first, second, alone, other])
    lines = [line for line in text.splitlines() if line.startswith(("## ", "| model", "| Expert", "| gpu"))]
    assert [line.split("|")[1].strip() if line.startswith("|") else line for line in lines] == [
        "## H200 (cuda), 4 ranks, protocol robust",
        "gpu",
        "## H200 (cuda), 1 rank, protocol robust",
        "gpu-1",
        "## example (cpu), 4 ranks, protocol robust",
        "model",
        "Expert \\",
    ]
    assert "| Expert \\| kernels | expert | 2 | 3 | 0.50 (0.00 to 1.00) | 1.00 (k = 2) | 0.25 (0.00 to 0.50) |" in text
    assert leaderboard_markdown([]).endswith("No entries.\n")


def test_noise_ranks_nobody(tmp_path):
    """Faster by the measured speedup alone comes after what is faster by its interval's lower end."""
    sure = entry_of(tmp_path)
    noisy = entry_of(tmp_path, [attempt("AllReduce", speedup=3.0, low=0.9)], name="noisy", title="noisy")
    eager = noisy.figures.eager.model_copy(update={"fast_1_low_at": None})
    figures = noisy.figures.model_copy(update={"eager": eager})
    old = noisy.model_copy(update={"name": "old", "title": "old", "figures": figures})
    text = leaderboard_markdown([old, noisy, sure])
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith(("| noisy", "| old", "| Expert"))]
    assert [row[6] for row in rows] == ["", "0.25 (0.00 to 0.50)", "0.00"] and rows[0][0] == "| old"


def test_the_commit_is_that_of_the_checkout():
    commit = checkout_commit()
    assert commit is None or commit.removesuffix("-dirty").isalnum()


def test_a_package_inside_of_another_checkout_has_no_commit(tmp_path, monkeypatch):
    """An environment in a project's checkout gave the commit of that project."""
    from pkb_gym.report.leaderboard import checkout

    def run(*words):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)

    run("init")
    run("-c", "user.name=x", "-c", "user.email=x", "commit", "--allow-empty", "-m", "x")
    installed = tmp_path / "checkout.py"
    installed.write_text("")
    monkeypatch.setattr(checkout, "__file__", str(installed))
    assert checkout_commit() is None
    run("add", "checkout.py")
    assert checkout_commit().endswith("-dirty")
