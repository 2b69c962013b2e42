"""Pictures of the leaderboard: they stand alone, follow light and dark, and those of this repository are up to date."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pkb_gym.report.leaderboard import make_entry, read_entries
from pkb_gym.report.leaderboard.build import EntryText
from pkb_gym.report.leaderboard.pictures import figures_digest, leaderboard_pictures, write_leaderboard_pictures
from pkb_gym.report.leaderboard.table import entry_groups
from tests.metrics.attempts import attempt, write
from tests.packages import needs
from tests.report.test_leaderboard import TEXT

pytestmark = needs("matplotlib", extra="report")

FOLDER = Path(__file__).resolve().parents[2] / "leaderboard"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def entries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("entries")
    search = [attempt("AllReduce", turn=0), attempt("AllReduce", turn=1, speedup=3.0), attempt("Gather", speedup=0.5)]
    expert = [attempt("AllReduce", speedup=2.0), attempt("Gather", speedup=4.0)]
    return [
        make_entry(
            [str(write(folder / f"{name}.jsonl", found))], EntryText(**(vars(TEXT) | {"name": name, "title": title}))
        )
        for name, title, found in (("a", "Search <b>", search), ("b", "Expert", expert))
    ]


def test_a_picture_stands_alone_on_light_and_dark_grounds(entries):
    found = leaderboard_pictures(entries)
    assert list(found) == ["fast_p_eager", "failure_modes", "turns"]
    for name, text in found.items():
        root = ET.fromstring(text)
        sheet, description = root.find(f"{SVG}style").text, root.find(f"{SVG}desc").text
        used = set(re.findall(r"var\((--[\w-]+)\)", text))
        light, dark = sheet.split("@media (prefers-color-scheme: dark)")
        assert "--ink" in used and all(f"{variable}:" in light and f"{variable}:" in dark for variable in used), name
        assert description.endswith(f"Figures {figures_digest(entries)}.")
        assert not re.search(r"(?:href|src)=\"(?!#)|url\((?!#)", text), "it asks no network"
        labels = {element.text for element in root.iter(f"{SVG}text")}
        assert {"Search <b>", "Expert"} <= labels, "a title stays text"


def test_pictures_of_several_machines_have_files_of_their_own(entries, tmp_path):
    other = entries[0].model_copy(update={"hardware": "another"})
    written = write_leaderboard_pictures([*entries, other], tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(path.name for path in written) and len(names) == 6
    assert {name.removesuffix("-turns.svg") for name in names if "turns" in name} == {"cpu-robust", "cpu-robust-2"}


def test_the_digest_is_of_the_figures(entries):
    renamed = entries[0].model_copy(update={"title": "other"})
    assert len({figures_digest(each) for each in (entries, entries[:1], [renamed, entries[1]])}) == 3


def test_the_pictures_of_this_repository_are_those_of_its_entries():
    """Their bytes depend on the version of matplotlib; what they are drawn from does not."""
    command = "pkb leaderboard pictures leaderboard/entries"
    (group,) = [found for found in entry_groups(read_entries([FOLDER / "entries"])) if found[0].device == "cpu"]
    pictures = sorted((FOLDER / "pictures").glob("cpu-robust-*.svg"))
    assert [path.name for path in pictures] == [
        f"cpu-robust-{name}.svg" for name in ("failure_modes", "fast_p_eager", "turns")
    ], command
    for path in pictures:
        text = path.read_text(encoding="utf-8")
        assert f"Figures {figures_digest(group)}.</desc>" in text, command
        assert path.stat().st_size < 100_000
