"""LMCache's own StorageManager over an adapter, in LMCache's environment: `python lmcache_storage.py ADAPTER_JSON`.

Writes chunks, drops them from LMCache's memory, and has them prefetched from the adapter. Then prefetches keys that differ in one of
the properties that identify a chunk. Prints the result as JSON.
"""

import argparse
import json
import sys
import time

import torch
from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, ObjectKey, PrefetchTaskSpec
from lmcache.v1.distributed.config import EvictionConfig, L1ManagerConfig, L1MemoryManagerConfig, StorageManagerConfig
from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config
from lmcache.v1.distributed.storage_manager import StorageManager

CHUNKS, CHUNK_BYTES = 96, 1 << 20
WAIT_S = 60
LAYOUT = MemoryLayoutDesc(shapes=[torch.Size([CHUNK_BYTES])], dtypes=[torch.uint8])


def keys_of(model="proving/model", rank=0x0102, group=0, salt="tenant"):
    return [ObjectKey(number.to_bytes(16, "big"), model, rank, group, salt) for number in range(CHUNKS)]


def fill(number):
    return torch.randint(256, (CHUNK_BYTES,), dtype=torch.uint8, generator=torch.Generator().manual_seed(number))


def prefetched(manager, keys):
    """Prefetches chunks; returns how many of the first were found, and how many of them are right."""
    handle = manager.submit_prefetch_task(PrefetchTaskSpec([GroupedObjectKeys(keys, keys[0].object_group_id, LAYOUT)]))
    if not manager.wait_prefetch_status(handle, WAIT_S):
        raise RuntimeError("the prefetch did not end")
    hits = manager.query_prefetch_status(handle).hit_cells[0].popcount()
    right = 0
    if hits:
        with manager.read_prefetched_results(keys[:hits]) as objects:
            right = sum(torch.equal(found.raw_data.view(-1)[:CHUNK_BYTES], fill(n)) for n, found in enumerate(objects or []))
        manager.finish_read_prefetched(keys[:hits])
    return hits, right


def main():
    adapters = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[sys.argv[1]]))
    memory = L1MemoryManagerConfig(size_in_bytes=4 * CHUNKS * CHUNK_BYTES, use_lazy=False, shm_name="")
    manager = StorageManager(StorageManagerConfig(L1ManagerConfig(memory), EvictionConfig("LRU"), adapters))
    keys = keys_of()
    for key, memory in manager.reserve_write(keys, LAYOUT).items():
        memory.raw_data.view(-1)[:CHUNK_BYTES] = fill(keys.index(key))
    manager.finish_write(keys)
    deadline = time.monotonic() + WAIT_S
    while sum(used for used, _ in manager.get_l2_usages()) < CHUNKS * CHUNK_BYTES:
        if time.monotonic() > deadline:
            raise RuntimeError("the chunks were not stored in time")
        time.sleep(0.01)
    deleted, skipped = manager.delete_l1_keys(keys)
    hits, right = prefetched(manager, keys)
    others = {
        "model": keys_of(model="proving/other"), "rank": keys_of(rank=0x0203), "group": keys_of(group=1),
        "salt": keys_of(salt="other"),
    }
    foreign = {name: prefetched(manager, of)[0] for name, of in others.items()}
    print(json.dumps({
        "chunks": CHUNKS, "deleted": deleted, "skipped": skipped, "hits": hits, "right": right, "foreign": foreign,
    }))
    manager.close()


if __name__ == "__main__":
    main()
