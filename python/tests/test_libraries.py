"""Libraries for tables and arrays, on Striate."""

import asyncio

import numpy
import pandas
import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import pytest
import zarr
from pyarrow.fs import FSSpecHandler, PyFileSystem

from striate.fs import StriateFileSystem


@pytest.fixture(scope="module")
def frame():
    generator = numpy.random.default_rng(7)
    count = 200_000
    return pandas.DataFrame({
        "key": generator.integers(0, 1000, count), "value": generator.normal(size=count),
        "name": [f"näme {number % 977}" for number in range(count)],
        "at": pandas.to_datetime("2026-01-01") + pandas.to_timedelta(numpy.arange(count), unit="s"),
    })


@pytest.fixture(scope="module")
def storage(options):
    return dict(options)


@pytest.fixture
def fs(storage):
    return StriateFileSystem(**storage)


def test_pandas_writes_and_reads_parquet_and_csv(bucket, storage, frame):
    url = f"striate://{bucket}/table"
    frame.to_parquet(f"{url}.parquet", storage_options=storage, row_group_size=50_000)
    pandas.testing.assert_frame_equal(pandas.read_parquet(f"{url}.parquet", storage_options=storage), frame)
    columns = pandas.read_parquet(f"{url}.parquet", storage_options=storage, columns=["value"], filters=[("key", "<", 5)])
    assert list(columns["value"]) == list(frame.loc[frame["key"] < 5, "value"])
    small = frame.head(5000)
    small.to_csv(f"{url}.csv.gz", storage_options=storage, index=False)
    back = pandas.read_csv(f"{url}.csv.gz", storage_options=storage, parse_dates=["at"])
    pandas.testing.assert_frame_equal(back, small, check_dtype=False)


def test_pyarrow_writes_and_scans_a_partitioned_data_set(bucket, fs, frame):
    table = pyarrow.Table.from_pandas(frame.assign(part=frame["key"] % 7))
    arrow_fs = PyFileSystem(FSSpecHandler(fs))
    pyarrow.dataset.write_dataset(
        table, f"{bucket}/set", filesystem=arrow_fs, format="parquet", partitioning=["part"], partitioning_flavor="hive"
    )
    dataset = pyarrow.dataset.dataset(f"{bucket}/set", filesystem=fs, partitioning="hive")
    assert len(dataset.files) == 7 and dataset.count_rows() == len(frame)
    three = dataset.to_table(filter=pyarrow.dataset.field("part") == 3, columns=["key", "name"]).to_pandas()
    expected = frame.loc[frame["key"] % 7 == 3, ["key", "name"]]
    assert sorted(map(tuple, three.itertuples(index=False))) == sorted(map(tuple, expected.itertuples(index=False)))
    assert pyarrow.parquet.read_table(f"{bucket}/set", filesystem=fs, columns=["value"]).num_rows == len(frame)
    selector = pyarrow.fs.FileSelector(f"{bucket}/set", recursive=True)
    assert sum(info.type == pyarrow.fs.FileType.File for info in arrow_fs.get_file_info(selector)) == 7


def test_zarr_writes_and_reads_chunks_in_batches(bucket, storage):
    data = numpy.random.default_rng(8).normal(size=(400, 300))
    store = zarr.storage.FsspecStore.from_url(f"striate://{bucket}/group.zarr", storage_options=storage)
    group = zarr.create_group(store=store)
    array = group.create_array("a", shape=data.shape, chunks=(40, 30), dtype="f8", fill_value=0.0)
    array[:] = data
    array.attrs["unit"] = "m"
    again = zarr.open_group(store=zarr.storage.FsspecStore.from_url(
        f"striate://{bucket}/group.zarr", storage_options=storage, read_only=True
    ), mode="r")
    assert list(again.array_keys()) == ["a"] and dict(again["a"].attrs) == {"unit": "m"}
    assert numpy.array_equal(again["a"][:], data) and numpy.array_equal(again["a"][35:90, 100:101], data[35:90, 100:101])


def test_zarr_chunks_of_one_selection_share_requests(bucket, storage):
    """A hundred concurrent chunks need few batch reads: zarr reads them in one turn of its event loop."""
    from striate.batch import BatchReader

    fs = StriateFileSystem(**storage, asynchronous=True, skip_instance_cache=True)
    store = zarr.storage.FsspecStore(fs, path=f"{bucket}/one.zarr")
    array = zarr.create_array(store=store, shape=(100, 100), chunks=(10, 10), dtype="f8", fill_value=0.0)
    array[:] = numpy.arange(10_000.0).reshape(100, 100)
    asked = []
    read = BatchReader.read

    async def counted(self, name, items, deliver):
        asked.append(len(items))
        await read(self, name, items, deliver)

    patch = pytest.MonkeyPatch()
    patch.setattr(BatchReader, "read", counted)
    try:
        with zarr.config.set({"async.concurrency": 100}):
            assert array[:].sum() == sum(range(10_000))
    finally:
        patch.undo()
    assert sum(asked) >= 90 and len(asked) <= 20, asked


def test_dataframes_survive_being_read_by_many_threads(bucket, fs, frame):
    from concurrent.futures import ThreadPoolExecutor

    parts = {f"{bucket}/part-{number}.parquet": frame.iloc[number::16].reset_index(drop=True) for number in range(16)}
    for path, part in parts.items():
        with fs.open(path, "wb") as file:
            part.to_parquet(file)

    def read(path):
        with fs.open(path) as file:
            return pandas.read_parquet(file)

    with ThreadPoolExecutor(8) as pool:
        for (_, part), back in zip(parts.items(), pool.map(read, parts)):
            pandas.testing.assert_frame_equal(back, part)


def test_asynchronous_callers_read_as_a_batch(bucket, storage):
    async def scenario():
        fs = StriateFileSystem(**storage, asynchronous=True, skip_instance_cache=True)
        await fs._pipe({f"{bucket}/{number}": b"%d" % number for number in range(64)})
        read = await fs._cat([f"{bucket}/{number}" for number in range(64)])
        assert read == {f"{bucket}/{number}": b"%d" % number for number in range(64)}
        await fs.client.close()

    asyncio.run(scenario())
