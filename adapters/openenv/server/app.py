"""The server: `uvicorn pkb_openenv.server.app:app`, configured by PKB_EPISODE and PKB_TOKEN."""

from __future__ import annotations

import argparse
import os
from functools import partial

from fastapi import FastAPI

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.types import ConcurrencyConfig
from pkb_gym.adapters.settings import EpisodeSettings
from pkb_openenv.models import KernelAction, KernelObservation, PKBState
from pkb_openenv.server.environment import KernelEnvironment

MAX_SESSIONS = 256
SESSION_TIMEOUT_S = 900.0
"""The idle time after which a session without a WebSocket ends; one with a WebSocket ends with it."""


def make_app(settings: EpisodeSettings, max_sessions: int = MAX_SESSIONS) -> FastAPI:
    """The application; the web page is part of it where ENABLE_WEB_INTERFACE=true, as in OpenEnv.

    Args:
        settings: Settings of the episodes.
        max_sessions: Number of sessions that may be open at a time.
    """
    return create_app(
        partial(KernelEnvironment, settings),
        KernelAction,
        KernelObservation,
        env_name="pkb",
        concurrency_config=ConcurrencyConfig(max_concurrent_envs=max_sessions, session_timeout=SESSION_TIMEOUT_S),
        state_cls=PKBState,
    )


app = make_app(EpisodeSettings.from_environment(), int(os.environ.get("MAX_CONCURRENT_ENVS", MAX_SESSIONS)))


def main() -> None:
    """Serves on loopback; in a container, `--host 0.0.0.0`."""
    import uvicorn

    parser = argparse.ArgumentParser(description="Serve pkb-gym by OpenEnv's protocol.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    uvicorn.run(app, host=options.host, port=options.port)


if __name__ == "__main__":
    main()
