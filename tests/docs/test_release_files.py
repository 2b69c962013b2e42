"""Files of a release: change log, citation, forms of issues, the workflow of continuous integration."""

from __future__ import annotations

import os
import re

import pytest
import yaml

import pkb_gym
from tests.docs.pages import ROOT

CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
KINDS = {"checkboxes", "dropdown", "input", "markdown", "textarea"}


def test_the_change_log_has_the_version():
    assert re.search(rf"^## \[{re.escape(pkb_gym.__version__)}\] - \d{{4}}-\d\d-\d\d$", CHANGELOG, re.MULTILINE)


def test_each_version_has_at_most_forty_lines():
    for section in re.split(r"^## ", CHANGELOG, flags=re.MULTILINE)[1:]:
        assert len(section.splitlines()) <= 40, section.splitlines()[0]


def test_the_citation_names_version_and_licence():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == pkb_gym.__version__
    assert citation["license"] == "Apache-2.0"
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


def test_the_workflow_runs_what_continuous_integration_runs():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    commands = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    assert any(command.endswith("bash .ci/run") for command in commands)
    assert os.access(ROOT / ".ci" / "run", os.R_OK)


def test_there_is_a_form_for_each_kind_of_report():
    assert {form.stem for form in FORMS} == {"config", "bad_message", "new_problem", "wrong_verdict"}


@pytest.mark.parametrize("form", [form for form in FORMS if form.stem != "config"], ids=lambda form: form.stem)
def test_a_form_is_one_that_can_be_filled_in(form):
    """Ids are unique, kinds exist, and something is required: a form that breaks these is not shown."""
    fields = yaml.safe_load(form.read_text(encoding="utf-8"))
    assert fields["name"] and fields["description"]
    ids = [field["id"] for field in fields["body"]]
    assert len(set(ids)) == len(ids)
    assert {field["type"] for field in fields["body"]} <= KINDS
    assert all(field["attributes"]["label"] for field in fields["body"])
    assert any(field.get("validations", {}).get("required") for field in fields["body"])
