"""`pkb doctor`: what it makes of what it finds."""

import json

import pytest

from pkb_gym.cli import doctor


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PKB_CACHE_DIR", str(tmp_path / "cache"))


def states(ran):
    return {finding["name"]: finding["state"] for finding in json.loads(ran.out)}


def test_names_everything_in_a_table(pkb):
    ran = pkb("doctor")
    for name in ("python", "torch", "apache-tvm-ffi", "C++ compiler", "sandbox", "cache folder", "calibration", "nvcc"):
        assert f"\n{name} " in ran.out
    assert ran.err == ""


def test_without_compiler_this_machine_cannot_judge(pkb, monkeypatch):
    monkeypatch.setattr("pkb_gym.engine.hardware.calibrate.find_compiler", lambda: None)
    ran = pkb("doctor")
    assert ran.status == 3
    assert "apt install g++" in ran.out and "cannot judge kernels: C++ compiler missing" in ran.out


def test_without_a_package_it_says_what_to_install(pkb, monkeypatch):
    monkeypatch.setattr(doctor, "PACKAGES", ("torch-of-another-world",))
    ran = pkb("doctor", "--json")
    assert ran.status == 3 and states(ran)["torch-of-another-world"] == "missing"


def test_without_sandbox_candidates_are_only_limited(pkb, monkeypatch):
    monkeypatch.setattr("pkb_gym.engine.gangs.sandbox.bubblewrap_works", lambda: False)
    findings = {finding.name: finding for finding in doctor.examine()}
    assert findings["sandbox"].state == "limited" and findings["sandbox"].remedy


def test_cache_folder_that_cannot_be_written_is_reported(pkb, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PKB_CACHE_DIR", str(tmp_path / "file" / "cache"))
    found = doctor.cache()
    assert found.state == "limited" and "PKB_CACHE_DIR" in found.remedy
