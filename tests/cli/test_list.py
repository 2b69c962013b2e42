"""`pkb list`."""

import json

import pytest

from pkb_gym.problems.catalogue import catalogue


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PKB_CACHE_DIR", str(tmp_path))


def test_lists_every_problem(pkb):
    ran = pkb("list")
    assert (ran.status, ran.err) == (0, "")
    shown = {word for line in ran.out.splitlines() for word in line.split()[1:2]}
    assert {problem.name for problem in catalogue()} <= shown


def test_category_filters(pkb):
    records = json.loads(pkb("list", "--category", "context_parallel", "--json").out)
    assert "HyenaCP" in {record["name"] for record in records}
    assert {record["category"] for record in records} == {"context_parallel"}


def test_unknown_category_names_those_that_exist(pkb):
    ran = pkb("list", "--category", "parallel")
    assert ran.status == 2 and "no category 'parallel'; there are collective_primitive, tensor_parallel" in ran.err


def test_tags_filter_together(pkb):
    records = json.loads(pkb("list", "--tag", "all_to_all", "--tag", "fft", "--json").out)
    assert "HyenaCP" in {record["name"] for record in records}
    assert all({"all_to_all", "fft"} <= set(record["tags"]) for record in records)
    assert len(records) < len(json.loads(pkb("list", "--tag", "all_to_all", "--json").out))


def test_unknown_tag_names_those_that_exist(pkb):
    ran = pkb("list", "--tag", "all2all")
    assert ran.status == 2 and "no tag 'all2all'; there are all_gather, all_reduce, all_to_all" in ran.err


def test_weaknesses_say_what_the_published_version_accepts(pkb):
    ran = pkb("list", "--weaknesses")
    for problem in catalogue():
        assert all(f"   - {weakness}\n" in ran.out for weakness in problem.weaknesses)


def test_json_holds_what_filters_need(pkb):
    ran = pkb("list", "--json")
    records = {record["name"]: record for record in json.loads(ran.out)}
    assert len(records) == len(catalogue())
    hyena = records["HyenaCP"]
    assert hyena["upstream"] == "72_hyena_forward_cp" and hyena["number"] == 72
    assert hyena["env_id"] == "PKB/HyenaCP-v0" and "fft" in hyena["tags"] and hyena["weaknesses"]
    assert hyena["patterns"] == ["all_to_all"] and hyena["argument_kinds"] == ["tensor", "int", "group", "bool"]
