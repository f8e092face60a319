"""A store that misbehaves on demand, as the real one cannot be made to: answers cut off, altered, refused."""

import asyncio
import json
import threading
from contextlib import contextmanager

from aiohttp import web
from test_frames import end, frame, head

from striate.frames import FIRST, LAST

FRAMES = "application/vnd.striate.frames"


def frames_of(objects, items):
    """The frames of a good answer, the end frame included; objects over 100 bytes come in two."""
    for number, item in enumerate(items):
        data = objects.get(item["key"])
        if data is None:
            yield frame(number, 404, head=b'{"code": "NoSuchKey", "message": "there is none"}')
        elif len(data) <= 100:
            yield frame(number, head=head(len(data), etag='"e"'), body=data)
        else:
            yield frame(number, flags=FIRST, head=head(len(data), etag='"e"'), body=data[:50])
            yield frame(number, flags=LAST, body=data[50:])
    yield end(len(items))


class Scripted:
    """Answers with `script`'s next step, and well when there is none. A step gets the request, the frames of the good
    answer, and returns (status, content type, bytes), with `None` at the end for a connection that breaks."""

    def __init__(self, objects):
        self.objects = objects
        self.script = []
        self.posts = []  # the items of each POST
        self.gets = []  # key and headers of each GET

    async def handle(self, request):
        if request.method == "POST":
            items = json.loads(await request.read())["items"]
            self.posts.append([item["key"] for item in items])
            frames = list(frames_of(self.objects, items))
            good = (200, FRAMES, b"".join(frames))
        else:
            key = request.match_info["key"]
            self.gets.append((key, dict(request.headers)))
            frames = []
            good = (200, "text/plain", self.objects[key]) if key in self.objects else (404, "text/plain", b"")
        step = self.script.pop(0) if self.script else lambda frames, good: good
        return await self.send(request, *step(frames, good))

    async def send(self, request, status, content_type, body, breaks=False, headers=None):
        answer = web.StreamResponse(status=status, headers={"content-type": content_type, "etag": '"e"', **(headers or {})})
        if request.method == "GET" and "content-length" not in answer.headers:
            answer.content_length = len(body)
        await answer.prepare(request)
        if body and request.method != "HEAD":
            await answer.write(body)
        if breaks:
            await asyncio.sleep(0)
            request.transport.close()
        return answer

    @contextmanager
    def running(self):
        loop = asyncio.new_event_loop()
        application = web.Application()
        application.router.add_route("*", "/{bucket}", self.handle)
        application.router.add_route("*", "/{bucket}/{key:.*}", self.handle)
        runner = web.AppRunner(application)

        async def start():
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            return site._server.sockets[0].getsockname()[1]

        port = loop.run_until_complete(start())
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            self.endpoint = f"http://127.0.0.1:{port}"
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


def cut(count):
    """The good answer's first `count` bytes, then the connection breaks."""
    return lambda frames, good: (good[0], good[1], good[2][:count], True)


def refuse(status, code, content_type="application/xml"):
    body = f"<Error><Code>{code}</Code><Message>scripted</Message></Error>".encode()
    return lambda frames, good: (status, content_type, body)
