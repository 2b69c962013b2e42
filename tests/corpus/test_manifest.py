"""Where an exported folder says that it comes from."""

from __future__ import annotations

import importlib.metadata

import pytest

from pkb_gym import __version__
from pkb_gym.corpus.manifest import origin


def test_a_source_tree_that_was_never_installed_has_an_origin_too(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = importlib.metadata.version

    def version(name: str) -> str:
        if name == "pkb-gym":
            raise importlib.metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    versions = origin("pkb export corpus")["versions"]
    assert versions["pkb-gym"] == __version__ and versions["torch"] == installed("torch")
