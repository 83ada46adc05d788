"""``ktuned mcp`` with the SDK's own client over stdio, in front of a real daemon."""

import json
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client
from mcp.types import CallToolResult, TextContent, TextResourceContents

from ktuned_mcp import Budget
from ktuned_mcp.budget import RefusedCall
from ktuned_mcp.server import EXAMPLES
from tests.daemon_parts import PATIENCE_S
from tests.e2e.harness import Daemon, make_kernel_text

ROOT = Path(__file__).parent.parent.parent

THREE = "space([dict(us=50.0, does='work'), dict(us=90.0, does='work'), dict(us=50.0, does='wrong')])"
REFERENCE = "lambda x, y: dict(y=2 * x)"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path) as process:
        yield process


@asynccontextmanager
async def connect(daemon: Daemon, *options: str) -> AsyncIterator[Client]:
    words = ["-m", "ktuned", "mcp", *options]
    server = StdioServerParameters(command=sys.executable, args=words, env=daemon.env, cwd=daemon.directory)
    async with Client(stdio_client(server), read_timeout_seconds=PATIENCE_S) as client:
        yield client


async def call_tool(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Return the answer of a tool; its text must be the same as its structured content."""
    result = await client.call_tool(tool, arguments)
    assert isinstance(result, CallToolResult)
    assert not result.is_error, result.content
    assert isinstance(result.content[0], TextContent)
    answer: dict[str, Any] = json.loads(result.content[0].text)
    assert answer == result.structured_content
    return answer


async def fail_tool(client: Client, tool: str, **arguments: Any) -> dict[str, str]:
    """Return the error of a tool."""
    result = await client.call_tool(tool, arguments)
    assert isinstance(result, CallToolResult)
    assert result.is_error
    assert isinstance(result.content[0], TextContent)
    answer = json.loads(result.content[0].text)
    assert answer == result.structured_content
    error: dict[str, str] = answer["error"]
    assert error.keys() == {"code", "message", "hint"}
    assert all(type(text) is str for text in error.values())
    return error


@pytest.mark.anyio
async def test_an_agent_s_way_from_a_kernel_file_to_its_winner(daemon: Daemon) -> None:
    """The tools tell of the winner, of the wrong config and of the trials; progress comes on the way."""
    file = daemon.write_kernel(make_kernel_text(THREE, reference=REFERENCE))
    steps: list[tuple[float, float | None, str | None]] = []

    async def note_progress(progress: float, total: float | None, message: str | None) -> None:
        steps.append((progress, total, message))

    async with connect(daemon) as client:
        result = await client.call_tool("tune", {"target": str(file)}, progress_callback=note_progress)
        assert isinstance(result, CallToolResult)
        assert result.structured_content is not None
        (job,) = result.structured_content["jobs"]
        assert (job["state"], job["winner"]) == ("done", {"us": 50.0, "does": "work"})
        assert result.structured_content["budget"] == {"candidates_left": None, "lane_s_left": None}
        assert steps[-1][:2] == (3, 3)
        assert steps == sorted(steps, key=lambda step: step[0])
        assert "best" in str(steps[-1][2])

        (answer,) = (await call_tool(client, "best", kernel="it"))["answers"]
        assert (answer["status"], answer["config"], answer["problem"]) == ("fresh", job["winner"], {"n": 64})

        explained = await call_tool(client, "explain", kernel="it")
        assert explained["failures"].keys() == {"mismatch"}
        wrong = explained["failures"]["mismatch"]
        assert wrong["count"] == 1
        assert "out of tolerance" in wrong["newest"][0]["message"]
        assert explained["stale"] == []
        one = await call_tool(client, "explain", kernel="it", trial=wrong["newest"][0]["id"])
        assert one["trial"]["detail"]

        trials = (await call_tool(client, "history", kernel="it", limit=2))["trials"]
        assert len(trials) == 2
        older = await call_tool(client, "history", kernel="it", before=trials[-1]["id"])
        assert len(older["trials"]) == 1
        assert older["total"] == 3


@pytest.mark.anyio
async def test_candidates_are_judged_within_the_budget(daemon: Daemon) -> None:
    """Each verdict is announced; the answer is the daemon's, with what is left of the budget."""
    file = daemon.write_kernel(make_kernel_text(THREE, reference=REFERENCE))
    steps: list[tuple[float, float | None]] = []

    async def note_progress(progress: float, total: float | None, message: str | None) -> None:
        assert message
        steps.append((progress, total))

    candidates = [{"us": 90.0, "does": "work"}, {"us": 50.0, "does": "wrong"}]
    async with connect(daemon, "--candidates", "3", "--lane-seconds", "1000") as client:
        asked = {"target": str(file), "configs": candidates, "quick": True}
        result = await client.call_tool("judge", asked, progress_callback=note_progress)
        assert isinstance(result, CallToolResult)
        assert result.structured_content is not None, result.content
        answer = result.structured_content
        assert answer["judge"] == 1
        assert [one["config"] for one in answer["candidates"]] == candidates
        assert [one["verdict"] for one in answer["candidates"]] == ["right", "wrong"]
        assert answer["budget"]["candidates_left"] == 1
        assert 0 < answer["budget"]["lane_s_left"] < 1000
        assert steps == [(1, 2), (2, 2)]
        refused = await fail_tool(client, "judge", target="it", configs=candidates)
        assert (refused["code"], "1 candidates are left" in refused["message"]) == ("budget", True)


@pytest.mark.anyio
async def test_an_edit_is_explained_as_what_makes_the_winner_stale(daemon: Daemon) -> None:
    file = daemon.write_kernel(make_kernel_text("space([dict(us=50.0, gate='shut')])"))
    daemon.make_gate("shut").open()
    async with connect(daemon) as client:
        await call_tool(client, "tune", target=str(file))
        daemon.make_gate("shut").close()
        file.write_text(file.read_text().replace("Build(**c)", "Build(**{**c, 'us': 60.0})"))
        daemon.make_gate("shut").wait_until_reached()
        (winner,) = (await call_tool(client, "explain", kernel="it"))["stale"]
        assert winner["status"] == "stale"
        assert [change["where"] for change in winner["changes"]] == ["tune_it.py"]
        daemon.make_gate("shut").open()


@pytest.mark.anyio
async def test_a_kernel_in_cpp_is_tuned_from_the_examples(daemon: Daemon) -> None:
    """The resources of the server are enough to write a kernel."""
    project = daemon.directory / "project"
    project.mkdir()
    async with connect(daemon) as client:
        listed = [resource.uri for resource in (await client.list_resources()).resources]
        assert listed == ["ktuned://kernel-file", "ktuned://examples/cpp", "ktuned://examples/torch"]
        (content,) = (await client.read_resource("ktuned://examples/cpp")).contents
        assert isinstance(content, TextResourceContents)
        for name, block in re.findall(r"^`(\S+)`.*?^```\w+\n(.*?)^```$", content.text, re.DOTALL | re.MULTILINE):
            (project / name).write_text(block)
        answer = await call_tool(client, "tune", target=str(project / "tune_dot.py"))
        (job,) = answer["jobs"]
        assert job["outcomes"] == {"measured": 4}
        assert job["default_us"] > job["best_us"]
        (winner,) = (await call_tool(client, "limits", kernel="dot"))["winners"]
        assert (winner["config"], winner["limits"]) == (job["winner"], [])
        assert "not measured" in winner["note"]


def find_blocks(page: Path) -> set[str]:
    return set(re.findall(r"^```\w+\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE))


def test_the_examples_are_those_of_the_documentation() -> None:
    assert len(find_blocks(EXAMPLES / "cpp.md")) == 2
    assert find_blocks(EXAMPLES / "cpp.md") <= find_blocks(ROOT / "docs/guide/first-kernel.md")
    assert len(find_blocks(EXAMPLES / "torch.md")) == 1
    assert find_blocks(EXAMPLES / "torch.md") <= find_blocks(ROOT / "plugins/torch/README.md")


@pytest.mark.anyio
async def test_every_tool_s_errors_have_code_message_and_hint(daemon: Daemon) -> None:
    async with connect(daemon) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        (page,) = (await client.read_resource("ktuned://kernel-file")).contents
        assert isinstance(page, TextResourceContents)
        assert "max_mismatched_ratio" in page.text
        for name, tool in tools.items():
            named = {"target", "kernel"} & tool.input_schema["properties"].keys()
            assert (await fail_tool(client, name, **dict.fromkeys(named, "nobody")))["code"] == "not_found"
            wrong = await fail_tool(client, name, **{key: [1] for key in tool.input_schema["properties"]})
            assert wrong["code"] == "usage"
            assert "string" in wrong["message"]
        assert (await fail_tool(client, "no_such_tool"))["code"] == "unknown_method"
        missing = await fail_tool(client, "tune", target=str(daemon.directory / "tune_missing.py"))
        assert (missing["code"], "tune_missing.py" in missing["message"]) == ("usage", True)
        daemon.stop()
        gone = await fail_tool(client, "best", kernel="it")
        assert (gone["code"], "ktuned start" in gone["hint"]) == ("unavailable", True)


@pytest.mark.anyio
async def test_a_broken_kernel_file_is_an_error_with_its_line(daemon: Daemon) -> None:
    file = daemon.write_kernel("import ktuned\nthis is no Python\n")
    async with connect(daemon) as client:
        answer = await call_tool(client, "tune", target=str(file))
        assert answer["jobs"] == []
        assert [error["line"] for error in answer["errors"]] == [2]


@pytest.mark.anyio
async def test_a_connection_s_candidates_are_counted(daemon: Daemon) -> None:
    """The search gets what is left, and then nothing is tuned; what only reads still answers."""
    file = daemon.write_kernel(make_kernel_text("space([dict(us=50.0 + i) for i in range(20)])"))
    async with connect(daemon, "--candidates", "5") as client:
        answer = await call_tool(client, "tune", target=str(file), trials=2)
        assert answer["budget"] == {"candidates_left": 3, "lane_s_left": None}
        answer = await call_tool(client, "tune", target=str(file), trials=100)
        assert answer["budget"]["candidates_left"] == 0
        spent = await fail_tool(client, "tune", target=str(file))
        assert spent["code"] == "budget"
        assert (await call_tool(client, "best", kernel="it"))["answers"][0]["config"]


@pytest.mark.anyio
async def test_seconds_of_measuring_are_counted_over_all_jobs(daemon: Daemon) -> None:
    """When they are spent, the jobs are cancelled; what was measured stays."""
    problems = str([{"n": 2**i} for i in range(1, 9)])
    file = daemon.write_kernel(make_kernel_text("space([dict(us=20000.0 + i) for i in range(20)])", problems=problems))
    async with connect(daemon, "--lane-seconds", "1") as client:
        answer = await call_tool(client, "tune", target=str(file))
        assert answer["budget"] == {"candidates_left": None, "lane_s_left": 0}
        assert {job["state"] for job in answer["jobs"]} >= {"cancelled"}
        assert any(job["winner"] for job in answer["jobs"])
        assert (await fail_tool(client, "tune", target=str(file)))["code"] == "budget"


def test_a_budget_refuses_what_it_cannot_pay() -> None:
    budget = Budget(candidates=3, lane_s=10.0)
    budget.require_candidates(3)
    with pytest.raises(RefusedCall, match="3 candidates are left, and this call needs 4"):
        budget.require_candidates(4)
    budget.subtract_cost(2, 11.0)
    assert budget.is_overspent
    assert budget.describe_rest() == {"candidates_left": 1, "lane_s_left": 0}
    with pytest.raises(RefusedCall, match="no seconds"):
        budget.require_candidates()
    Budget().require_candidates(10**9)


def test_without_the_plugin_the_command_says_how_to_install_it(daemon: Daemon) -> None:
    hidden = daemon.directory / "hidden" / "ktuned_mcp.py"
    hidden.parent.mkdir()
    hidden.write_text("raise ModuleNotFoundError(name='mcp')\n")
    daemon.env["PYTHONPATH"] = f"{hidden.parent}:{daemon.env['PYTHONPATH']}"
    found = daemon.run_ktuned("mcp")
    assert (found.returncode, found.stdout) == (1, "")
    assert "pip install 'ktuned[mcp]'" in found.stderr
