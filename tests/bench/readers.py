"""People before open pages of the web UI: `python -m tests.bench.readers ADDRESS ORIGIN` with a token a line on stdin.

Each signs in, opens a page, follows its stream, and loads the part that changed again, as the page's script does. It
prints a line once all pages are open.
"""

from __future__ import annotations

import asyncio
import html
import itertools
import re
import sys

import aiohttp

#: Who signs in at the same time.
AT_ONCE = 10
#: In turn: of all groups, of all groups, of the group that changes all the time.
PATHS = ("/", "/tree", "/groups/hot")


async def read(
    address: str, origin: str, token: str, path: str, door: asyncio.Semaphore, is_open: asyncio.Semaphore
) -> None:
    """Look at one page until the process ends."""
    jar, forever = aiohttp.CookieJar(unsafe=True), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(cookie_jar=jar, timeout=forever) as session:
        async with door:
            form = await text(session, f"{address}/sign-in")
            found = re.search('name="form-token" value="([^"]*)"', form)
            assert found, form
            fields = {"form-token": found[1], "token": token, "to": path}
            async with session.post(f"{address}/sign-in", data=fields, headers={"Origin": origin}) as answer:
                page = await answer.text()
                assert answer.status == 200, page
        stream = re.search('sse-connect="([^"]*)"', page)
        assert stream, page
        async with session.get(address + html.unescape(stream[1])) as events:
            assert events.status == 200, await events.text()
            is_open.release()
            async for line in events.content:
                if line.startswith(b"event: changed"):
                    await text(session, address + path, **{"HX-Request": "true"})


async def text(session: aiohttp.ClientSession, address: str, **headers: str) -> str:
    async with session.get(address, headers=headers) as answer:
        body = await answer.text()
        assert answer.status == 200, body
        return body


async def main(address: str, origin: str, tokens: list[str]) -> None:
    door, is_open = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as people:
        for token, path in zip(tokens, itertools.cycle(PATHS)):
            people.create_task(read(address, origin, token, path, door, is_open))
        for _ in tokens:
            await is_open.acquire()
        print("open", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.stdin.read().split()))
