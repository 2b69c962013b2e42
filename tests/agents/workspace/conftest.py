"""The runs of programs in workspaces."""

from __future__ import annotations

import pytest

from tests.agents.workspace.programs import Programs, put_python_first


@pytest.fixture
def programs(tmp_path, monkeypatch):
    put_python_first(monkeypatch)
    return Programs(tmp_path)
