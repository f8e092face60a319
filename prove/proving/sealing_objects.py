"""Objects of buckets that age, derived from their names, and clients that read and write them meanwhile."""

import random

from .meanwhile import Meanwhile

MIB = 1 << 20
BUCKET, LARGE, OTHERS = "archive", "media", "others"
# Bytes of a background read.
PIECE = 16 << 10


class Objects:
    """Objects of 4 to 60 KiB, each derived from its name."""

    bucket = BUCKET
    # Lower bound on the bytes of an object.
    least = 4 << 10

    def __init__(self, seed, count):
        self.pool = random.Random(seed).randbytes(MIB)
        self.names = [f"folder{number % 7}/object{number:06}" for number in range(count)]

    def body(self, name):
        chance = random.Random(name)
        size = chance.randrange(4 << 10, 60 << 10)
        start = chance.randrange(len(self.pool) - size)
        return name.encode() + self.pool[start:start + size]

    def size(self):
        return sum(len(self.body(name)) for name in self.names)

    def path(self, name):
        return f"/{self.bucket}/{name}"

    def put(self, client, name):
        client.expect("PUT", self.path(name), body=self.body(name))

    def put_all(self, cluster):
        cluster.each(self.put, self.names)

    def delete(self, cluster, names):
        """Deletes objects and forgets their names."""
        cluster.each(lambda client, name: client.expect("DELETE", self.path(name)), names)
        gone = set(names)
        self.names = [name for name in self.names if name not in gone]

    def third(self):
        """Returns one of each three names that are neighbours in key order, drawn at random."""
        names, chance = sorted(self.names), random.Random(6)
        return [chance.choice(names[first:first + 3]) for first in range(0, len(names) - 2, 3)]

    def wrong(self, cluster):
        """Returns the names of objects that do not read back right."""
        are_wrong = cluster.each(lambda client, name: client.send("GET", self.path(name)).body != self.body(name), self.names)
        return [name for name, is_wrong in zip(self.names, are_wrong) if is_wrong]


class LargeObjects(Objects):
    """Objects of three blocks, of enough blocks to have rows for them, and in parts of five blocks."""

    bucket = LARGE

    def __init__(self, seed, count, block):
        super().__init__(seed, 0)
        kinds = ["blocks", "blocks", "blocks", "segment", "parts"]
        self.names = [f"{kinds[number % len(kinds)]}/{number:05}" for number in range(count)]
        self.block, self.least = block, 3 * block

    def blocks(self, name):
        return {"blocks": 3, "segment": 9, "parts": 11}[name.split("/")[0]]

    def body(self, name):
        chance = random.Random(name)
        mibs = self.blocks(name) * self.block // MIB
        starts = [chance.randrange(MIB) for _ in range(mibs)]
        return b"".join(self.pool[start:] + self.pool[:start] for start in starts)

    def size(self):
        return sum(self.blocks(name) for name in self.names) * self.block

    def put(self, client, name):
        body = self.body(name)
        if name.startswith("parts"):
            part = 5 * self.block
            self.upload(client, name, [body[start:start + part] for start in range(0, len(body), part)])
        else:
            client.expect("PUT", self.path(name), body=body)

    def encode_anew(self, cluster, profile):
        """Copies each object onto itself under a profile."""
        def copy(client, name):
            headers = {"x-amz-copy-source": self.path(name), "x-striate-profile": profile}
            answer = client.expect("PUT", self.path(name), headers=headers)
            if b"CopyObjectResult" not in answer.body:
                raise RuntimeError(f"{name} was not copied: {answer.body[:300]!r}")

        cluster.each(copy, self.names)

    def upload(self, client, name, parts):
        answer = client.expect("POST", self.path(name), query=[("uploads", "")])
        upload = answer.body.decode().split("<UploadId>")[1].split("<")[0]
        done = []
        for number, part in enumerate(parts, 1):
            query = [("partNumber", str(number)), ("uploadId", upload)]
            etag = client.expect("PUT", self.path(name), query=query, body=part).headers["etag"]
            done.append(f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>")
        whole = f"<CompleteMultipartUpload>{''.join(done)}</CompleteMultipartUpload>"
        client.expect("POST", self.path(name), query=[("uploadId", upload)], body=whole.encode())


class OtherObjects(Objects):
    """Objects of a bucket that does not age."""

    bucket = OTHERS


class Reading(Meanwhile):
    """Reads random ranges and compares them."""

    # Pauses and small ranges keep reads from outweighing sealing's traffic.
    pause_s = 0.02

    def __init__(self, objects, client):
        super().__init__()
        self.objects, self.client, self.chance = objects, client, random.Random(5)

    def step(self):
        name, first = self.chance.choice(self.objects.names), self.chance.randrange(self.objects.least)
        answer = self.client.send("GET", self.objects.path(name), headers={"range": f"bytes={first}-{first + PIECE - 1}"})
        if answer.body != self.objects.body(name)[first:first + PIECE]:
            raise ValueError(f"{name} is not what it was, {answer.status}")


class Written(Meanwhile):
    """Adds new objects to the existing ones."""

    pause_s = 0.5

    def __init__(self, objects, client):
        super().__init__()
        self.objects, self.client = objects, client

    def step(self):
        name = f"meanwhile/{len(self.objects.names):05}"
        self.objects.put(self.client, name)
        self.objects.names.append(name)
