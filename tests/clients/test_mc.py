"""MinIO's own client, unmodified."""

import pytest


@pytest.fixture
def mc(run, server, tmp_path_factory):
    home = tmp_path_factory.mktemp("mc")
    host = f"http://{server.credentials.access_key}:{server.credentials.secret_key}@127.0.0.1:{server.port}"
    return lambda *arguments: run("mc", "--config-dir", home, "--no-color", "--quiet", *arguments, MC_HOST_store=host)


def test_mirror_up_and_down(mc, bucket, tree, tmp_path, same_tree):
    mc("mirror", tree, f"store/{bucket}/tree")
    mc("mirror", f"store/{bucket}/tree", tmp_path / "again")
    same_tree(tree, tmp_path / "again")


def test_cp_cat_stat_rm(mc, bucket, tmp_path):
    (tmp_path / "note").write_text("a note\n")
    mc("cp", tmp_path / "note", f"store/{bucket}/note")
    assert mc("cat", f"store/{bucket}/note") == "a note\n"
    assert "note" in mc("stat", f"store/{bucket}/note")
    mc("rm", f"store/{bucket}/note")
    assert mc("ls", f"store/{bucket}") == ""


def test_large_file_in_parts(mc, bucket, tmp_path, body):
    (tmp_path / "large").write_bytes(body(40 << 20))
    mc("cp", tmp_path / "large", f"store/{bucket}/large")
    mc("cp", f"store/{bucket}/large", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == body(40 << 20)


def test_make_list_remove_bucket(mc, bucket):
    mc("mb", f"store/{bucket}-mc")
    assert f"{bucket}-mc/" in mc("ls", "store")
    mc("rb", f"store/{bucket}-mc")


def test_tags_find_and_du(mc, bucket, tree):
    mc("cp", "--recursive", f"{tree}/many/", f"store/{bucket}/many/")
    mc("tag", "set", f"store/{bucket}/many/001", "colour=blue")
    assert "blue" in mc("tag", "list", f"store/{bucket}/many/001")
    assert len(mc("find", f"store/{bucket}", "--name", "05*").splitlines()) == 10
    assert "60 objects" in mc("du", f"store/{bucket}")
