"""A store that misbehaves on demand, which the real one cannot: answers are cut off, altered, refused."""

import asyncio
import json
import struct
import threading
import zlib
from contextlib import contextmanager

from aiohttp import web
from test_frames import end, frame, head

from striate.frames import FIRST, LAST

FRAMES = "application/vnd.striate.frames"


def frames_of(objects, items):
    """Yields the frames of a good answer, the end frame included; objects over 100 bytes take two frames."""
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


def put_items(data):
    """Returns the items of a batch put and their bytes; every frame must be right and in order."""
    items, bodies, at, ended = None, [], 0, True
    while True:
        header = data[at:at + 24]
        magic, item, status, flags, zero, head_bytes, body_bytes, crc = struct.unpack(">4sIHBBIII", header)
        at += 24
        head_, body = data[at:at + head_bytes], data[at + head_bytes:at + head_bytes + body_bytes]
        at += head_bytes + body_bytes
        assert (magic, status, zero, zlib.crc32(body, zlib.crc32(head_, zlib.crc32(header[:20])))) == (b"STR1", 0, 0, crc)
        if items is None:
            items = json.loads(head_)["items"]
            assert (flags, item, body) == (8, len(items), b"")
        elif flags == 4:
            assert (item, at, len(bodies), ended) == (len(items), len(data), len(items), True)
            return items, bodies
        else:
            assert bool(flags & 1) == ended and not head_
            if ended:
                bodies.append(b"")
            assert item == len(bodies) - 1
            bodies[-1] += body
            ended = bool(flags & 2)


class Scripted:
    """Answers with the next step of `script`, or with the good answer if there is none.

    A step gets the frames of the good answer and the good answer, and returns (status, content type, bytes), optionally followed by
    whether the connection then breaks, and by headers.
    """

    def __init__(self, objects):
        self.objects = objects
        self.script = []
        self.posts = []  # the items of each POST
        self.gets = []  # key and headers of each GET

    async def handle(self, request):
        kind = request.query.get("batch")
        if kind == "put":
            items, bodies = put_items(await request.read())
            self.posts.append([item["key"] for item in items])
            frames, good = [], (200, "application/json", self.created(items, bodies))
        elif kind == "exists":
            asked = json.loads(await request.read())
            self.posts.append(asked["keys"])
            frames, good = [], (200, "application/json", self.sizes(asked))
        elif request.method == "POST":
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

    def created(self, items, bodies):
        outcomes = []
        for item, body in zip(items, bodies):
            assert item["content_length"] == len(body)
            outcomes.append({"status": 412} if item["key"] in self.objects else {"status": 200, "etag": '"e"'})
            self.objects.setdefault(item["key"], body)
        return json.dumps({"items": outcomes}).encode()

    def sizes(self, asked):
        sizes = [len(self.objects[key]) if key in self.objects else None for key in asked["keys"]]
        prefix = sizes.index(None) if None in sizes else len(sizes)
        return json.dumps({"prefix": prefix, "sizes": sizes[:prefix] if asked["until_gap"] else sizes}).encode()

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
        application = web.Application(client_max_size=1 << 30)
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
    """Returns a step that sends the good answer's first `count` bytes and breaks the connection."""
    return lambda frames, good: (good[0], good[1], good[2][:count], True)


def refuse(status, code, content_type="application/xml"):
    body = f"<Error><Code>{code}</Code><Message>scripted</Message></Error>".encode()
    return lambda frames, good: (status, content_type, body)
