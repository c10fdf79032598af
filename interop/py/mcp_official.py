"""The official Python client (`mcp`) against a server, in both eras.

`mcp` 2.3.0 has no task API of its own: it drops every `tasks/*` method. What it
offers is the extension seam (`ClientExtension`, `ResultClaim`,
`NotificationBinding`), so there are two parts below for 2026-07-28: the client
as most people use it, declaring nothing, and the same client with a tasks
extension written on that seam. The third part is the same client after
`initialize`; it cannot make tasks there (it refuses a `tools/call` result
without `content`), but it can ask for those made in the other era.
Nothing in the package is patched.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, ClassVar, Literal

import mcp_types as types
from checks import Checks, form_answer
from mcp import Client, MCPError
from mcp.client.extension import ClaimContext, ClientExtension, NotificationBinding, ResultClaim
from pydantic import BaseModel, ConfigDict, Field

TASKS = "io.modelcontextprotocol/tasks"
FIXTURES = {"greet", "slow_compute", "failing_job", "protocol_error_job", "confirm_delete", "multi_input"}
TERMINAL = {"completed", "failed", "cancelled"}

check = Checks("mcp")


def text(result: types.CallToolResult) -> str:
    return "\n".join(getattr(block, "text", "") for block in result.content)


# --- part 1: nothing declared -------------------------------------------------


@check("mode=auto settles on 2026-07-28 through server/discover")
async def _(url: str) -> None:
    async with Client(url) as client:
        assert client.protocol_version == "2026-07-28", client.protocol_version
        discovered = client.session.discover_result
        assert discovered is not None and client.session.initialize_result is None
        assert (discovered.capabilities.extensions or {}).get(TASKS) == {}, discovered.capabilities
        assert client.session.server_info is not None, "serverInfo belongs in _meta"


@check("tools/list")
async def _(url: str) -> None:
    async with Client(url) as client:
        listed = await client.list_tools()
        names = [tool.name for tool in listed.tools]
        assert FIXTURES <= set(names), names
        assert len(names) == len(set(names))


@check("greet")
async def _(url: str) -> None:
    async with Client(url) as client:
        result = await client.call_tool("greet", {"name": "Ada"})
        assert text(result) == "Hello, Ada!", result
        assert not result.is_error


@check("slow_compute is served synchronously to a client that declares no tasks")
async def _(url: str) -> None:
    async with Client(url) as client:
        started = time.monotonic()
        result = await client.call_tool("slow_compute", {"seconds": 1, "label": "py-sync"})
        assert time.monotonic() - started >= 0.9
        assert not result.is_error and result.content, result


@check("failing_job without tasks is -32021 and names the extension")
async def _(url: str) -> None:
    async with Client(url) as client:
        try:
            await client.call_tool("failing_job", {})
        except MCPError as error:
            assert error.error.code == -32021, error
            assert error.error.data["requiredCapabilities"]["extensions"][TASKS] == {}, error.error.data
        else:
            raise AssertionError("the call must be refused")


@check("an unknown tool is -32602")
async def _(url: str) -> None:
    async with Client(url) as client:
        try:
            await client.call_tool("no_such_tool", {})
        except MCPError as error:
            assert error.error.code == -32602, error
        else:
            raise AssertionError("the call must be refused")


# --- part 2: a tasks extension on the client's own extension seam ---------------


class TaskFields(types.Result):
    model_config = ConfigDict(populate_by_name=True)
    task_id: str = Field(alias="taskId")
    status: Literal["working", "input_required", "completed", "failed", "cancelled"]
    created_at: str = Field(alias="createdAt")
    last_updated_at: str = Field(alias="lastUpdatedAt")
    ttl_ms: int | None = Field(alias="ttlMs")
    poll_interval_ms: int | None = Field(default=None, alias="pollIntervalMs")


class CreateTaskResult(TaskFields):
    result_type: Literal["task"] = Field(alias="resultType")


class GetTaskResult(TaskFields):
    result_type: Literal["complete"] = Field(alias="resultType")
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    input_requests: dict[str, Any] | None = Field(default=None, alias="inputRequests")


class TaskParams(types.RequestParams):
    task_id: str = Field(serialization_alias="taskId")


class UpdateParams(TaskParams):
    input_responses: dict[str, Any] = Field(serialization_alias="inputResponses")


class GetTask(types.Request[TaskParams, Literal["tasks/get"]]):
    name_param: ClassVar[str | None] = "taskId"  # makes the client send Mcp-Name
    method: Literal["tasks/get"] = "tasks/get"
    params: TaskParams


class CancelTask(types.Request[TaskParams, Literal["tasks/cancel"]]):
    name_param: ClassVar[str | None] = "taskId"
    method: Literal["tasks/cancel"] = "tasks/cancel"
    params: TaskParams


class UpdateTask(types.Request[UpdateParams, Literal["tasks/update"]]):
    name_param: ClassVar[str | None] = "taskId"
    method: Literal["tasks/update"] = "tasks/update"
    params: UpdateParams


class TaskStatusParams(BaseModel):
    model_config = ConfigDict(extra="allow", populate_by_name=True)
    task_id: str = Field(alias="taskId")
    status: str


async def get_task(session: Any, task_id: str) -> GetTaskResult:
    return await session.send_request(GetTask(params=TaskParams(task_id=task_id)), GetTaskResult)


class Tasks(ClientExtension):
    """Polls a claimed task to its result, answering elicitations on the way."""

    identifier = TASKS

    def __init__(self) -> None:
        self.pushed: asyncio.Queue[TaskStatusParams] = asyncio.Queue()
        self.gets = 0
        self.asked: list[str] = []
        self.last: GetTaskResult | None = None

    def claims(self):
        return (ResultClaim(result_type="task", model=CreateTaskResult, resolve=self.resolve),)

    def notifications(self):
        return (
            NotificationBinding(
                method="notifications/tasks", params_type=TaskStatusParams, handler=self.pushed.put
            ),
        )

    async def resolve(self, created: CreateTaskResult, ctx: ClaimContext) -> types.CallToolResult:
        while True:
            self.gets += 1
            self.last = task = await get_task(ctx.session, created.task_id)
            if task.status == "completed":
                return types.CallToolResult.model_validate(task.result, by_name=False)
            if task.status in TERMINAL:
                message = (task.error or {}).get("message", task.status)
                return types.CallToolResult(content=[types.TextContent(type="text", text=message)], is_error=True)
            if task.status == "input_required":
                answers = {}
                for key, request in (task.input_requests or {}).items():
                    assert key not in self.asked, f"{key} was asked again after its answer"
                    self.asked.append(key)
                    parsed = types.ElicitRequest.model_validate(request)
                    answers[key] = {"action": "accept", "content": form_answer(parsed.params.requested_schema)}
                await ctx.session.send_request(
                    UpdateTask(params=UpdateParams(task_id=created.task_id, input_responses=answers)), types.Result
                )
                continue
            await asyncio.sleep(0.1)


async def _elicit(_context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content=form_answer(params.requested_schema))


def declaring(url: str, tasks: Tasks, **options: Any) -> Client:
    return Client(url, extensions=[tasks], elicitation_callback=_elicit, **options)


@check("extension seam: slow_compute runs as a task")
async def _(url: str) -> None:
    tasks = Tasks()
    async with declaring(url, tasks) as client:
        result = await client.call_tool("slow_compute", {"seconds": 1, "label": "py-task"})
        assert not result.is_error and result.content, result
        assert tasks.gets >= 1 and tasks.last is not None and tasks.last.status == "completed"
        assert tasks.last.result["resultType"] == "complete"


@check("extension seam: confirm_delete and multi_input are answered")
async def _(url: str) -> None:
    for tool, arguments, keys in (("confirm_delete", {"filename": "py-interop.txt"}, 1), ("multi_input", {}, 2)):
        tasks = Tasks()
        async with declaring(url, tasks) as client:
            result = await client.call_tool(tool, arguments)
            assert not result.is_error, result
            assert len(tasks.asked) == keys, (tool, tasks.asked)


@check("extension seam: failing_job is completed + isError, protocol_error_job is failed")
async def _(url: str) -> None:
    tasks = Tasks()
    async with declaring(url, tasks) as client:
        assert (await client.call_tool("failing_job", {})).is_error
        assert tasks.last is not None and tasks.last.status == "completed"
        assert (await client.call_tool("protocol_error_job", {})).is_error
        assert tasks.last.status == "failed" and isinstance(tasks.last.error["code"], int)


@check("extension seam: cancel")
async def _(url: str) -> None:
    async with declaring(url, Tasks()) as client:
        created = await client.session.call_tool(
            "slow_compute", {"seconds": 60, "label": "py-cancel"}, allow_claimed=True
        )
        assert isinstance(created, CreateTaskResult), created
        cancel = CancelTask(params=TaskParams(task_id=created.task_id))
        await client.session.send_request(cancel, types.Result)
        for _attempt in range(100):
            task = await get_task(client.session, created.task_id)
            if task.status in TERMINAL:
                break
            await asyncio.sleep(0.05)
        assert task.status == "cancelled", task.status
        await client.session.send_request(cancel, types.Result)  # a finished task is acknowledged too


@check("extension seam: an unknown task is -32602")
async def _(url: str) -> None:
    async with declaring(url, Tasks()) as client:
        try:
            await get_task(client.session, "no-such-task")
        except MCPError as error:
            assert error.error.code == -32602, error
        else:
            raise AssertionError("the request must be refused")


@check("extension seam: subscriptions/listen pushes a task to its end with 0 tasks/get")
async def _(url: str) -> None:
    tasks = Tasks()
    acknowledged: asyncio.Queue[Any] = asyncio.Queue()

    async def on_message(message: Any) -> None:
        if isinstance(message, types.SubscriptionsAcknowledgedNotification):
            await acknowledged.put(message)

    async with declaring(url, tasks, message_handler=on_message) as client:
        created = await client.session.call_tool(
            "slow_compute", {"seconds": 2, "label": "py-push"}, allow_claimed=True
        )
        listen = types.SubscriptionsListenRequest(
            params=types.SubscriptionsListenRequestParams(
                notifications=types.SubscriptionFilter.model_validate({"taskIds": [created.task_id]})
            )
        )
        stream = asyncio.create_task(client.session.send_request(listen, types.Result))
        try:
            ack = await asyncio.wait_for(acknowledged.get(), 10)
            accepted = ack.params.notifications.model_dump(by_alias=True)
            assert accepted["taskIds"] == [created.task_id], accepted
            while (pushed := await asyncio.wait_for(tasks.pushed.get(), 15)).status not in TERMINAL:
                pass
        finally:
            stream.cancel()
            await asyncio.gather(stream, return_exceptions=True)
        assert pushed.task_id == created.task_id and pushed.status == "completed"
        assert pushed.model_extra["result"]["resultType"] == "complete"
        assert tasks.gets == 0
        # Leaving the stream ends the subscription only.
        assert (await get_task(client.session, created.task_id)).status == "completed"


# --- part 3: the legacy era -----------------------------------------------------

RELATED = "io.modelcontextprotocol/related-task"
WATCHED = "test://watched-resource"


class LegacyTask(types.Result):
    model_config = ConfigDict(populate_by_name=True)
    task_id: str = Field(alias="taskId")
    status: Literal["working", "input_required", "completed", "failed", "cancelled"]
    status_message: str | None = Field(default=None, alias="statusMessage")
    ttl: int | None


class LegacyTaskList(types.Result):
    tasks: list[LegacyTask]
    next_cursor: str | None = Field(default=None, alias="nextCursor")


class TaskResult(types.Request[TaskParams, Literal["tasks/result"]]):
    method: Literal["tasks/result"] = "tasks/result"
    params: TaskParams


class ListTasks(types.Request[types.PaginatedRequestParams, Literal["tasks/list"]]):
    method: Literal["tasks/list"] = "tasks/list"
    params: types.PaginatedRequestParams


async def _sample(_context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    said = types.TextContent(type="text", text=f"You said: {params.messages[0].content.text}")
    return types.CreateMessageResult(role="assistant", model="none", content=said)


async def _roots(_context: Any) -> types.ListRootsResult:
    return types.ListRootsResult(roots=[types.Root(uri="file:///interop")])


def legacy(url: str, **options: Any) -> Client:
    callbacks = {"elicitation_callback": _elicit, "sampling_callback": _sample, "list_roots_callback": _roots}
    return Client(url, mode="legacy", **(callbacks | options))


@check.legacy("mode=legacy: initialize offers core tasks and nothing of the other era")
async def _(url: str) -> None:
    async with legacy(url) as client:
        assert client.protocol_version == "2025-11-25", client.protocol_version
        offered = client.session.initialize_result.capabilities
        assert offered.tasks.list is not None and offered.tasks.cancel is not None
        assert offered.tasks.requests.tools.call is not None
        assert offered.extensions is None, offered.extensions
        await client.send_ping()


@check.legacy("mode=legacy: never a modern task, whatever the client declares")
async def _(url: str) -> None:
    async with declaring(url, Tasks(), mode="legacy") as client:
        assert client.protocol_version == "2025-11-25", client.protocol_version
        assert text(await client.call_tool("greet", {"name": "Old"})) == "Hello, Old!"
        result = await client.call_tool("slow_compute", {"seconds": 1, "label": "py-legacy"})
        assert not result.is_error and result.content, result


@check.legacy("mode=legacy: a long call is held open")
async def _(url: str) -> None:
    async with legacy(url) as client:
        result = await client.call_tool("slow_compute", {"seconds": 2, "label": "py-held"})
        assert "py-held" in text(result), result


@check.legacy("mode=legacy: progress and log lines on the way")
async def _(url: str) -> None:
    steps: list[tuple[float, float | None]] = []
    lines: list[Any] = []

    async def progressed(progress: float, total: float | None, _message: str | None) -> None:
        steps.append((progress, total))

    async def logged(params: types.LoggingMessageNotificationParams) -> None:
        lines.append(params.data)

    async with legacy(url, logging_callback=logged) as client:
        await client.call_tool("test_tool_with_progress", {}, progress_callback=progressed)
        assert steps == [(0, 100), (50, 100), (100, 100)], steps
        await client.set_logging_level("error")
        await client.call_tool("test_tool_with_logging", {})
        await client.set_logging_level("info")
        await client.call_tool("test_tool_with_logging", {})
        expected = ["Tool execution started", "Tool processing data", "Tool execution completed"]
        assert lines == expected, lines


@check.legacy("mode=legacy: a plain call asks by real requests")
async def _(url: str) -> None:
    async with legacy(url) as client:
        assert text(await client.call_tool("confirm_delete", {"filename": "py-legacy.txt"})) == "Deleted py-legacy.txt"
        assert "action=accept" in text(await client.call_tool("test_elicitation", {"message": "Who are you?"}))
        assert "You said: Hello" in text(await client.call_tool("test_sampling", {"prompt": "Hello"}))
        assert "file:///interop" in text(await client.call_tool("test_input_required_result_list_roots", {}))
        assert "interop" in text(await client.call_tool("test_input_required_result_multi_round", {}))


@check.legacy("mode=legacy: a client that cannot be asked is not asked")
async def _(url: str) -> None:
    async with Client(url, mode="legacy") as client:
        try:
            await client.call_tool("test_sampling", {"prompt": "Hello"})
        except MCPError as error:
            assert error.error.code == -32600, error
            assert error.error.data["requiredCapabilities"] == {"sampling": {}}, error.error.data
        else:
            raise AssertionError("the call must be refused")


@check.legacy("mode=legacy: a tool that has to be a task, an unknown tool, an unknown resource")
async def _(url: str) -> None:
    async with legacy(url) as client:
        attempts = (
            (lambda: client.call_tool("failing_job", {}), -32601),
            (lambda: client.call_tool("no_such_tool", {}), -32602),
            (lambda: client.read_resource("test://no-such-resource"), -32002),
        )
        for attempt, code in attempts:
            try:
                await attempt()
            except MCPError as error:
                assert error.error.code == code, error
            else:
                raise AssertionError(f"it must be refused with {code}")


@check.legacy("mode=legacy: a subscribed resource")
async def _(url: str) -> None:
    updates: asyncio.Queue[str] = asyncio.Queue()

    async def on_message(message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            await updates.put(str(message.params.uri))

    async with legacy(url, message_handler=on_message) as client:
        await client.subscribe_resource(WATCHED)
        # The client opens its standing stream without waiting for it.
        for _attempt in range(50):
            await client.call_tool("test_trigger_resource_change", {})
            try:
                assert await asyncio.wait_for(updates.get(), 0.2) == WATCHED
                break
            except TimeoutError:
                continue
        else:
            raise AssertionError("no update came")
        await client.unsubscribe_resource(WATCHED)


@check.legacy("mode=legacy: the server closes the stream of a call, the client comes back")
async def _(url: str) -> None:
    async with legacy(url) as client:
        result = await client.call_tool("test_reconnection", {})
        assert not result.is_error and result.content, result


@check.legacy("mode=legacy: tasks of the other era are read, listed and cancelled")
async def _(url: str) -> None:
    async with declaring(url, Tasks()) as modern, legacy(url) as client:
        arguments = {"seconds": 60, "label": "py-era"}
        created = await modern.session.call_tool("slow_compute", arguments, allow_claimed=True)
        named = TaskParams(task_id=created.task_id)
        task = await client.session.send_request(GetTask(params=named), LegacyTask)
        assert task.status == "working" and task.ttl is not None and task.ttl > 0, task
        page = await client.session.send_request(ListTasks(params=types.PaginatedRequestParams()), LegacyTaskList)
        assert created.task_id in [listed.task_id for listed in page.tasks], page
        task = await client.session.send_request(CancelTask(params=named), LegacyTask)
        assert task.status == "cancelled", task
        assert (await get_task(modern.session, created.task_id)).status == "cancelled"


@check.legacy("mode=legacy: a task of the other era is answered through tasks/result")
async def _(url: str) -> None:
    async with declaring(url, Tasks()) as modern, legacy(url) as client:
        arguments = {"filename": "py-era.txt"}
        created = await modern.session.call_tool("confirm_delete", arguments, allow_claimed=True)
        request = TaskResult(params=TaskParams(task_id=created.task_id))
        result = await client.session.send_request(request, types.CallToolResult)
        assert text(result) == "Deleted py-era.txt", result
        assert result.meta[RELATED] == {"taskId": created.task_id}, result
        assert (await get_task(modern.session, created.task_id)).status == "completed"


@check.legacy("mode=legacy: an isError result is failed here, completed in the other era")
async def _(url: str) -> None:
    async with declaring(url, Tasks()) as modern, legacy(url) as client:
        created = await modern.session.call_tool("failing_job", {}, allow_claimed=True)
        named = TaskParams(task_id=created.task_id)
        result = await client.session.send_request(TaskResult(params=named), types.CallToolResult)
        assert result.is_error, result
        task = await client.session.send_request(GetTask(params=named), LegacyTask)
        assert task.status == "failed" and task.status_message == text(result), task
        assert (await get_task(modern.session, created.task_id)).status == "completed"


if __name__ == "__main__":
    check.main()
