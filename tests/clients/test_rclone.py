"""rclone, unmodified, configured only by environment variables."""

import pytest


@pytest.fixture
def rclone(run, server):
    settings = {
        "RCLONE_CONFIG_STORE_TYPE": "s3", "RCLONE_CONFIG_STORE_PROVIDER": "Other",
        "RCLONE_CONFIG_STORE_ENDPOINT": server.endpoint, "RCLONE_CONFIG_STORE_ENV_AUTH": "true",
        "RCLONE_CONFIG_STORE_REGION": "us-east-1", "RCLONE_CONFIG": "/dev/null",
        "RCLONE_RETRIES": "1", "RCLONE_LOW_LEVEL_RETRIES": "1",
    }
    return lambda *arguments: run("rclone", *arguments, **settings)


def test_sync_check_and_back(rclone, bucket, tree, tmp_path, same_tree):
    rclone("sync", tree, f"store:{bucket}/tree")
    rclone("check", "--download", tree, f"store:{bucket}/tree")
    rclone("sync", f"store:{bucket}/tree", tmp_path)
    same_tree(tree, tmp_path)


def test_modification_times_survive(rclone, bucket, tree):
    rclone("sync", tree, f"store:{bucket}/tree")
    assert "There was nothing to transfer" in rclone("sync", "-v", "--stats-one-line", tree, f"store:{bucket}/tree",
                                                     "--log-file", "/dev/stdout")


def test_large_file_in_parts(rclone, bucket, tmp_path, body):
    (tmp_path / "large").write_bytes(body(32 << 20))
    rclone("copyto", "--s3-upload-cutoff", "5M", "--s3-chunk-size", "5M", tmp_path / "large", f"store:{bucket}/large")
    rclone("copyto", f"store:{bucket}/large", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == body(32 << 20)


def test_server_side_copy_and_move(rclone, bucket, tree):
    rclone("copy", tree / "many", f"store:{bucket}/one")
    rclone("copy", f"store:{bucket}/one", f"store:{bucket}/two")
    rclone("check", "--download", tree / "many", f"store:{bucket}/two")
    rclone("moveto", f"store:{bucket}/two", f"store:{bucket}/three")
    rclone("check", "--download", tree / "many", f"store:{bucket}/three")
    assert rclone("lsf", f"store:{bucket}").split() == ["one/", "three/"]


def test_hash_and_size_listing(rclone, bucket, tree):
    rclone("copy", tree / "many", f"store:{bucket}")
    assert len(rclone("md5sum", f"store:{bucket}").splitlines()) == 60
    assert "Total objects: 60" in rclone("size", f"store:{bucket}")


def test_purge(rclone, bucket, tree):
    rclone("copy", tree / "many", f"store:{bucket}/x")
    rclone("purge", f"store:{bucket}")
    assert bucket not in rclone("lsd", "store:")
