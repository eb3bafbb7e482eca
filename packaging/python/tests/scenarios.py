"""Scenarios with a real sidecar and sandboxes of the platforms' real SDKs on doubles of the platforms.

    scenarios.py SCENARIO

The environment names the sidecar and the platform; `tests/tests/sdk` sets it. Prints `done` at the end.
"""

import asyncio
import contextlib
import os
import pathlib
import signal
import sys
import threading
import time

import cofferdam_sdk
from cofferdam_sdk import (
    ApiError,
    AsyncClient,
    AttachmentError,
    Client,
    DeadlineError,
    NotFoundError,
    UnauthorizedError,
    UnreachableError,
)

ECHO = """~/.local/bin/cofferdam-shim call tools echo '{"text": "hello"}'"""
SCENARIOS = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


def raised(kind, action):
    try:
        action()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was expected")


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.05)


@contextlib.contextmanager
def platform_held():
    """While the block runs, the control API of E2B does not respond, so no sandbox becomes attached."""
    hold = pathlib.Path(os.environ["HOLD_FILE"])
    hold.touch()
    try:
        yield
    finally:
        hold.unlink()


def assert_nothing_attached(client):
    assert client.attachments() == (), client.attachments()
    sessions = client.sessions()
    assert sessions.sessions == () and sessions.attachments == (), sessions
    assert client.enrolments() == (), client.enrolments()


@scenario
def e2b_sync():
    import e2b

    client = Client()
    sandbox = e2b.Sandbox.create()
    with cofferdam_sdk.attach(sandbox, grant="dev", name="box 1") as attached:
        assert attached.is_attached and attached.name == "box 1", attached
        assert sandbox.commands.run(ECHO).stdout == "hello\n"
        (status,) = client.attachments()
        assert (status.sandbox, status.state, status.kind) == (sandbox.sandbox_id, "attached", "e2b"), status
        taken = raised(ApiError, cofferdam_sdk.attach(sandbox, grant="dev").__enter__)
        assert (taken.status, taken.code) == (409, "taken"), taken
    assert_nothing_attached(client)

    # Attached by its id, in a block that raises an exception, which must not be changed.
    def fails():
        with cofferdam_sdk.attach(sandbox.sandbox_id, platform="e2b", grant="dev"):
            assert sandbox.commands.run(ECHO).stdout == "hello\n"
            raise KeyError("of the orchestrator")

    raised(KeyError, fails)
    assert_nothing_attached(client)


@scenario
def e2b_async():
    import e2b

    async def main():
        client = AsyncClient()
        sandbox = await e2b.AsyncSandbox.create()
        async with cofferdam_sdk.attach(sandbox, grant="dev") as attached:
            assert attached.is_attached and attached.name == sandbox.sandbox_id, attached
            assert (await sandbox.commands.run(ECHO)).stdout == "hello\n"
            assert len((await client.sessions()).attachments) == 1
        assert await client.attachments() == ()

        # The task is cancelled while the sandbox is attached, and then before it is attached.
        begun = asyncio.Event()

        async def cancelled():
            async with cofferdam_sdk.attach(sandbox, grant="dev"):
                begun.set()
                await asyncio.sleep(600)

        task = asyncio.create_task(cancelled())
        await asyncio.wait_for(begun.wait(), 60)
        task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(result, asyncio.CancelledError), result
        assert await client.attachments() == (), "when the cancelled block has ended, so has the attachment"

        begun.clear()
        with platform_held():
            task = asyncio.create_task(cancelled())
            async with asyncio.timeout(30):
                while not await client.attachments():
                    await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert not begun.is_set(), "the block began although it was cancelled before"
        async with asyncio.timeout(30):
            while await client.attachments():
                await asyncio.sleep(0.05)

    asyncio.run(main())
    # An enrolment that was not ended by a request is kept for a moment, in case the sandbox is attached again.
    assert Client().attachments() == ()


@scenario
def daytona_sync():
    import daytona

    sandbox = daytona.Daytona().get(os.environ["SANDBOX"])
    with cofferdam_sdk.attach(sandbox, grant="dev") as attached:
        assert attached.status.kind == "daytona", attached
        done = sandbox.process.exec("""~/.local/bin/cofferdam-shim call tools echo '{"text": "hello"}'""")
        assert done.result.strip() == "hello", done
    assert_nothing_attached(Client())


@scenario
def daytona_async():
    import daytona

    async def main():
        async with daytona.AsyncDaytona() as platform:
            sandbox = await platform.get(os.environ["SANDBOX"])
            async with cofferdam_sdk.attach(sandbox, grant="dev") as attached:
                assert attached.is_attached, attached

    asyncio.run(main())
    assert_nothing_attached(Client())


@scenario
def refusals():
    import e2b

    client = Client()
    unknown = raised(AttachmentError, cofferdam_sdk.attach("i0unknown", platform="e2b", grant="dev").__enter__)
    assert unknown.cause == "no-sandbox" and "i0unknown" in str(unknown), unknown
    sandbox = e2b.Sandbox.create()
    grant = raised((ApiError, AttachmentError), cofferdam_sdk.attach(sandbox, grant="nowhere").__enter__)
    assert "nowhere" in str(grant), grant
    raised(NotFoundError, lambda: client.kill("unknown"))
    raised(NotFoundError, lambda: client.end_attachment("a/../b"))
    sandbox.pause()
    paused = raised(AttachmentError, cofferdam_sdk.attach(sandbox, grant="dev").__enter__)
    assert paused.cause == "suspended" and "resume=True" in str(paused), paused
    with cofferdam_sdk.attach(sandbox, grant="dev", resume=True) as attached:
        assert attached.is_attached
    with platform_held():
        late = raised(DeadlineError, cofferdam_sdk.attach(sandbox, grant="dev", timeout=0.001).__enter__)
    assert "0.001 s" in str(late), late
    until(lambda: client.attachments() == ())
    raised(RuntimeError, lambda: cofferdam_sdk.attach(sandbox, grant="dev").__exit__(None, None, None) or next(iter(client.watch())))


@scenario
def enrol_and_watch():
    client = Client()
    with client.watch() as changes:
        made = client.enroll("dev", name="box", ttl=3600, ticket_ttl=60)
        assert made.text.startswith("cofferdam:1:") and made.text not in repr(made), made
        assert next(iter(changes)).event == "enrolment-created"
        (entry,) = client.enrolments()
        assert (entry.enrolment, entry.kind, entry.links) == (made.enrolment, "ticket", 0), entry
        assert client.kill("box").enrolment == made.enrolment
        ended = next(iter(changes))
        assert (ended.event, ended.name) == ("enrolment-ended", "box"), ended

    async def watch():
        client = AsyncClient()
        async with client.watch() as changes:
            made = await client.enroll("dev", name="box2")
            await client.end_enrolment(made.enrolment)
            events = []
            async for change in changes:
                events.append(change.event)
                if len(events) == 2:
                    return events

    assert asyncio.run(watch()) == ["enrolment-created", "enrolment-ended"]


@scenario
def over_tls():
    """The environment has an address, a token of the grant `dev` and the authority."""
    import e2b

    sandbox = e2b.Sandbox.create()
    with cofferdam_sdk.attach(sandbox, grant="dev") as attached:
        assert sandbox.commands.run(ECHO).stdout == "hello\n"
        assert attached.is_attached
    assert Client().attachments() == ()

    async def main():
        async with cofferdam_sdk.attach(sandbox, grant="dev") as attached:
            assert attached.is_attached
        async with AsyncClient().watch() as changes:
            await AsyncClient().enroll("dev")
            async for change in changes:
                return change.event

    assert asyncio.run(main()) == "enrolment-created"
    other = raised(UnauthorizedError, cofferdam_sdk.attach(sandbox, grant="other").__enter__)
    assert other.status == 403, other
    token = os.environ["COFFERDAM_TOKEN"].strip()
    wrong = Client(token=f"{token[:-1]}{'0' if token[-1] != '0' else '1'}")
    refused = raised(UnauthorizedError, wrong.sessions)
    assert (refused.status, refused.code) == (401, "unauthorized") and token not in str(refused), refused
    assert token not in repr(wrong) + repr(Client())
    # Without the authority, the certificate is not accepted and no token is sent.
    url = os.environ["COFFERDAM_URL"]
    untrusted = raised(UnreachableError, Client(url=url, token=token).sessions)
    assert "certificate" in str(untrusted).lower(), untrusted
    raised(UnreachableError, lambda: asyncio.run(AsyncClient(url=url, token=token).sessions()))


@scenario
def sidecar_gone():
    """The environment names the sidecar's process, which is killed."""
    import e2b

    sandbox = e2b.Sandbox.create()
    with cofferdam_sdk.attach(sandbox, grant="dev") as attached:
        watch = Client().watch().__enter__()
        os.kill(int(os.environ["SIDECAR"]), signal.SIGKILL)
        until(lambda: attached.failure is not None)
        assert isinstance(attached.failure, UnreachableError) and not attached.is_attached, attached.failure
        try:
            assert list(watch) == []
        except cofferdam_sdk.CofferdamError:
            pass
        watch.__exit__(None, None, None)
    assert threading.active_count() == 1 or not any(one.name == "cofferdam-attachment" for one in threading.enumerate())
    gone = raised(UnreachableError, Client().sessions)
    assert "cofferdam serve" in str(gone), gone
    raised(UnreachableError, cofferdam_sdk.attach(sandbox, grant="dev").__enter__)
    raised(UnreachableError, lambda: asyncio.run(AsyncClient().sessions()))


if __name__ == "__main__":
    SCENARIOS[sys.argv[1]]()
    print("done", flush=True)
    # Streams that the platforms' SDKs still read would keep the interpreter from exiting.
    os._exit(0)
