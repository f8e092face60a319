"""Striate behind vLLM's own offloading: a secondary tier that keeps the blocks evicted from the processor's memory in a bucket.

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
        "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 17179869184, "secondary_tiers": [
            {"type": "StriateTier", "module_path": "striate.vllm", "endpoint": "http://localhost:9000", "bucket": "kv-cache"}]}}'

A store is one batch put, which only creates; the lookups of a step are one request; a load is one batch read into vLLM's memory.
All of it runs in its own threads, because a tier runs in the scheduler and may not block.

vLLM calls this interface experimental. Nothing here raises once it runs: errors are logged and reported as misses or failed jobs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Optional

import numpy
from vllm.v1.kv_offload.base import (
    Locality, LookupResult, Medium, OffloadKey, ReqContext, RequestOffloadingContext, ScheduleEndContext,
)
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from .client import LANES
from .kv import Failures, Workers, client_of

logger = logging.getLogger(__name__)


class LookUps(AsyncLookupManager):  # type: ignore[misc]
    """vLLM's lookups of a step, sent together from a thread."""

    def __init__(self, tier_type: str, exist: Callable[[list[OffloadKey]], list[bool]]) -> None:
        self._exist = exist
        super().__init__(tier_type=tier_type)

    def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> list[bool]:
        return self._exist(keys)


class StriateTier(SecondaryTierManager):  # type: ignore[misc]
    """A tier of vLLM's `TieringOffloadingManager` in a bucket.

    `endpoint`, `access_key`, `secret_key` and `ca` are the client's. `prefix` begins the keys of all objects. `timeout_s` is the
    client's read timeout. Up to `workers` stores and loads run concurrently, each over up to `lanes` connections. `locality` and
    `backpressure_detector` are vLLM's.
    """

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str, bucket: str, endpoint: Optional[str] = None,
        access_key: Optional[str] = None, secret_key: Optional[str] = None, ca: Optional[str] = None, prefix: str = "",
        timeout_s: float = 10.0, workers: int = 4, lanes: int = LANES, locality: Optional[str] = None,
        backpressure_detector: Any = None,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.locality = None if locality is None else Locality(locality)
        # A memoryview of two dimensions cannot be indexed by row; an array over it can.
        self._rows: Optional[numpy.ndarray[Any, Any]] = numpy.asarray(primary_kv_view)
        self._mapper = FileMapper.from_offloading_spec(
            prefix, offloading_spec, blocks_per_file=offloading_spec.blocks_per_chunk, parallel_agnostic=True,
        )
        self._client = client_of(timeout_s, endpoint, access_key=access_key, secret_key=secret_key, ca=ca)
        self._bucket, self._lanes = bucket, lanes
        self._failures = Failures(logger)
        self._transfers = Workers(workers, "striate-transfer")
        self._look_ups = LookUps(tier_type, self._exist)
        self._ended = threading.Condition()
        self._under_way = 0
        self._done: list[tuple[JobResult, list[OffloadKey]]] = []  # with the keys that failed

    # Look-ups

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        is_there = self._look_ups.lookup(key, req_context)
        if is_there is None:
            return LookupResult.RETRY
        return LookupResult.HIT if is_there else LookupResult.MISS

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        self._look_ups.flush()

    def _exist(self, keys: list[OffloadKey]) -> list[bool]:
        try:
            sizes = self._client.sizes_of(self._bucket, [self._name(key) for key in keys])
            self._failures.clear()
        except Exception as error:  # noqa: BLE001, nothing may be raised
            self._failures.note(error)
            return [False] * len(keys)
        # An object of another size has another layout.
        return [size == self.block_size_bytes for size in sizes]

    # Stores and loads

    def submit_store(self, job_metadata: TransferJob) -> None:
        self._submit(job_metadata, self._store)

    def submit_load(self, job_metadata: TransferJob) -> None:
        self._submit(job_metadata, self._load)

    def _store(self, chunks: list[tuple[str, Any]]) -> list[bool]:
        outcomes = self._client.put_many(self._bucket, chunks, self._lanes)
        self._failures.judge(outcomes)
        return [isinstance(outcome, bool) for outcome in outcomes]

    def _load(self, chunks: list[tuple[str, Any]]) -> list[bool]:
        outcomes = self._client.get_many_into(self._bucket, chunks, self._lanes)
        self._failures.judge(outcomes)
        return [outcome == self.block_size_bytes for outcome in outcomes]

    def _submit(self, job: TransferJob, transfer: Callable[[list[tuple[str, Any]]], list[bool]]) -> None:
        """Starts a job. Its chunks are in vLLM's memory, which vLLM leaves alone until the job has ended."""
        keys, rows = list(job.keys), self._rows
        assert rows is not None, "the tier has been shut down"
        chunks = [(self._name(key), rows[chunk]) for key, chunk in zip(keys, job.chunk_ids)]

        def run() -> None:
            began, came = time.monotonic(), [False] * len(keys)
            try:
                came = transfer(chunks)
            except Exception as error:  # noqa: BLE001, nothing may be raised
                self._failures.note(error)
            chunks.clear()
            self._end(job, keys, came, time.monotonic() - began)

        with self._ended:
            self._transfers.submit(run)
            self._under_way += 1

    def _end(self, job: TransferJob, keys: list[OffloadKey], came: list[bool], transfer_s: float) -> None:
        good = [key for key, has_come in zip(keys, came) if has_come]
        failed = [key for key, has_come in zip(keys, came) if not has_come]
        result = JobResult(
            job_id=job.job_id, success=not failed, successful_keys=tuple(good) if failed and good and job.is_promotion else None,
            transfer_time=transfer_s, transfer_bytes=len(good) * self.block_size_bytes,
        )
        with self._ended:
            self._done.append((result, failed if job.is_promotion else []))
            self._under_way -= 1
            self._ended.notify_all()

    def get_finished_jobs(self) -> Iterable[JobResult]:
        with self._ended:
            done, self._done = self._done, []
        for _, failed in done:
            # Otherwise the scheduler would retry the same load forever.
            self._look_ups.mark_miss(failed)
        return [result for result, _ in done]

    def drain_jobs(self) -> None:
        with self._ended:
            self._ended.wait_for(lambda: not self._under_way)

    # The rest of the interface

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._look_ups.cleanup(req_context.req_id)

    def shutdown(self) -> None:
        """Waits for the jobs and releases vLLM's memory."""
        self._look_ups.shutdown()
        self._transfers.close()
        self._client.close()
        self._rows = None

    def _name(self, key: OffloadKey) -> str:
        """Returns the key of a chunk's object: vLLM's name, which has the model, the layout, the group and the hash of the tokens."""
        return str(self._mapper.get_file_name(key)).lstrip("/")
