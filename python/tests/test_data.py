"""The data set, read as data loaders do: single samples, batches, worker processes."""

import multiprocessing
import pickle

import pytest
from striate import Client, Item
from striate.data import ObjectDataset


def fetch(dataset, indices):
    """Reads the indices of a batch as PyTorch's loader does."""
    if hasattr(dataset, "__getitems__") and dataset.__getitems__:
        return dataset.__getitems__(indices)
    return [dataset[index] for index in indices]


def decode(key, data):
    return key, len(data), data[:4]


def expected(body, number):
    return f"train/{number:03}", number * 100, body(number * 100)[:4]


@pytest.fixture
def dataset(client, bucket, options, body):
    for number in range(64):
        client.put(bucket, f"train/{number:03}", body(number * 100))
    client.put(bucket, "other", b"")
    return ObjectDataset.of_prefix(bucket, "train/", decode, **options)


def test_samples_alone_in_batches_and_in_any_order(dataset, body):
    assert len(dataset) == 64
    assert dataset[7] == expected(body, 7) and dataset[-1] == expected(body, 63)
    order = [5, 60, 5, 0, 33]
    assert fetch(dataset, order) == [expected(body, number) for number in order]
    assert fetch(dataset, []) == []
    assert list(dataset) == [expected(body, number) for number in range(64)]
    with pytest.raises(IndexError):
        dataset[64]


def test_samples_without_decoding_and_ranges(client, bucket, body):
    client.put(bucket, "shard", body(1000))
    items = [Item("shard", start, start + 100) for start in range(0, 1000, 100)]
    dataset = ObjectDataset(bucket, items, client=client)
    assert fetch(dataset, list(range(10))) == [body(1000)[start:start + 100] for start in range(0, 1000, 100)]
    assert dataset[3] == body(1000)[300:400]


def test_a_missing_sample_is_an_error_that_names_it(client, bucket):
    with pytest.raises(FileNotFoundError, match="train/x"):
        ObjectDataset(bucket, ["train/x"], client=client).__getitems__([0])


def test_a_client_or_options_not_both(client, bucket, options):
    with pytest.raises(TypeError):
        ObjectDataset(bucket, [], client=client, **options)


def work(dataset, tasks, results):
    for indices in iter(tasks.get, None):
        results.put((indices, fetch(dataset, indices)))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_worker_processes_read_beside_their_parent(dataset, body, method):
    """The parent has used its connections, and keeps using them while two workers read."""
    context = multiprocessing.get_context(method)
    fetch(dataset, [0, 1])
    tasks, results = context.Queue(), context.Queue()
    workers = [context.Process(target=work, args=(dataset, tasks, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    batches = [list(range(start, start + 8)) for start in range(0, 64, 8)]
    for batch in [*batches, None, None]:
        tasks.put(batch)
    for number in range(20):
        assert dataset[number] == expected(body, number)
    seen = [results.get(timeout=60) for _ in batches]
    for worker in workers:
        worker.join(30)
        assert worker.exitcode == 0
    assert sorted(indices for indices, _ in seen) == batches
    for indices, samples in seen:
        assert samples == [expected(body, number) for number in indices]
    assert fetch(dataset, [3]) == [expected(body, 3)]


def test_a_data_set_can_be_pickled(dataset, body):
    again = pickle.loads(pickle.dumps(dataset))
    assert isinstance(again.client, Client) and fetch(again, [9]) == [expected(body, 9)]
