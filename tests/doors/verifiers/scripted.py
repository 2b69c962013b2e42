"""A harness of verifiers that calls the tool with given sources, without a model."""

from __future__ import annotations

import asyncio
import sys
import types

import verifiers.v1 as vf
from verifiers.v1.harnesses.utils.mcp import mcp_client

from tests.waiting import PATIENCE_S

NAME = "pkb_scripted_harness"


class ScriptedHarness(vf.Harness[vf.HarnessConfig]):
    """Submits, of each problem, the sources of its next plan, those of a tuple at once; keeps what the tool answers."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    plans: dict[str, list[list[str] | tuple[str, ...]]]

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        plan = type(self).plans[data.problem].pop(0)
        (url,) = mcp_urls.values()

        async def submit(source: str) -> str:
            async with mcp_client({"url": url, "connect_timeout": PATIENCE_S, "timeout": PATIENCE_S}) as client:
                assert [tool.name for tool in (await client.list_tools()).tools] == ["submit"]
                result = await client.call_tool("submit", {"source": source})
            assert not result.is_error, result.content
            return result.content[0].text

        if isinstance(plan, tuple):
            replies = await asyncio.gather(*map(submit, plan))
        else:
            replies = [await submit(source) for source in plan]
        trace.info["replies"] = list(replies)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


def install() -> None:
    """Makes the harness known by `NAME`."""
    module = types.ModuleType(NAME)
    module.__all__ = ["ScriptedHarness"]
    module.ScriptedHarness = ScriptedHarness
    sys.modules[NAME] = module
