"""restic creates, checks and restores a backup."""

import pytest


@pytest.fixture
def restic(run, server, bucket):
    settings = {"RESTIC_REPOSITORY": f"s3:{server.endpoint}/{bucket}/backup", "RESTIC_PASSWORD": "a password"}
    return lambda *arguments: run("restic", *arguments, **settings)


def test_backup_check_restore(restic, tree, tmp_path, same_tree):
    restic("init")
    restic("backup", tree)
    restic("check", "--read-data")
    restic("restore", "latest", "--target", tmp_path)
    same_tree(tree, tmp_path / tree.relative_to("/"))


def test_second_backup_forget_and_prune(restic, tmp_path, body):
    source = tmp_path / "source"
    source.mkdir()
    restic("init")
    for turn in range(3):
        (source / f"file{turn}").write_bytes(body(300_000, turn))
        restic("backup", source)
    restic("forget", "--keep-last", "1", "--prune")
    restic("check", "--read-data")
    restic("restore", "latest", "--target", tmp_path / "again")
    assert (tmp_path / "again" / source.relative_to("/") / "file0").read_bytes() == body(300_000, 0)
