"""Sources of the endpoint and the keys, and TLS."""

import asyncio
import dataclasses
import pickle
import subprocess

import pytest
from conftest import KNOWS_BATCH
from proving.servers import Striate as Server

import striate.transport
from striate import Client, ConfigurationError, Settings, UnreachableError
from striate.settings import ClientOptions, Options
from striate.signing import Keys


def keys_of(settings):
    return asyncio.run(settings.resolved().keys.keys())


@pytest.fixture
def profiles(tmp_path, monkeypatch):
    (tmp_path / "config").write_text(
        "[default]\nregion = eu-default-1\nendpoint_url = http://default:1\n"
        "[profile other]\nregion = eu-other-1\nservices = mine\n[services mine]\ns3 =\n  endpoint_url = http://service:2\n"
    )
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = PD\naws_secret_access_key = SD\n"
        "[other]\naws_access_key_id = PO\naws_secret_access_key = SO\naws_session_token = TO\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def test_arguments_come_before_everything(profiles, monkeypatch):
    monkeypatch.setenv("STRIATE_ENDPOINT", "http://variable:1")
    monkeypatch.setenv("STRIATE_ACCESS_KEY", "V")
    monkeypatch.setenv("STRIATE_SECRET_KEY", "V")
    settings = Settings("https://given:9000/", "A", "S", "T", region="r")
    resolved = settings.resolved()
    assert (resolved.endpoint, resolved.host, resolved.region) == ("https://given:9000", "given:9000", "r")
    assert keys_of(settings) == Keys("A", "S", "T")


def test_striates_variables_come_before_those_of_aws(profiles, monkeypatch):
    for name, value in {
        "STRIATE_ENDPOINT": "http://ours:1", "AWS_ENDPOINT_URL": "http://aws:1", "STRIATE_ACCESS_KEY": "O",
        "STRIATE_SECRET_KEY": "OS", "AWS_ACCESS_KEY_ID": "W", "AWS_SECRET_ACCESS_KEY": "WS", "AWS_REGION": "aws-1",
    }.items():
        monkeypatch.setenv(name, value)
    assert Settings().resolved().endpoint == "http://ours:1" and keys_of(Settings()) == Keys("O", "OS")
    for name in ("STRIATE_ENDPOINT", "STRIATE_ACCESS_KEY"):
        monkeypatch.delenv(name)
    resolved = Settings().resolved()
    assert (resolved.endpoint, resolved.region) == ("http://aws:1", "aws-1") and keys_of(Settings())[:2] == ("W", "WS")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://s3:1")
    assert Settings().resolved().endpoint == "http://s3:1"


def test_profiles_are_read_as_aws_tools_read_them(profiles):
    resolved = Settings().resolved()
    assert (resolved.endpoint, resolved.region) == ("http://default:1", "eu-default-1")
    assert keys_of(Settings())[:2] == ("PD", "SD")
    other = Settings(profile="other").resolved()
    assert (other.endpoint, other.region) == ("http://service:2", "eu-other-1")
    assert keys_of(Settings(profile="other")) == Keys("PO", "SO", "TO")


def test_what_is_missing_is_said():
    with pytest.raises(ConfigurationError, match="STRIATE_ENDPOINT"):
        Client()
    with pytest.raises(ConfigurationError, match="STRIATE_ACCESS_KEY"):
        Client("http://127.0.0.1:1").get("bucket", "k")
    with pytest.raises(ConfigurationError, match="both"):
        Client("http://127.0.0.1:1", access_key="a")
    for wrong in ("127.0.0.1:9000", "ftp://x", "http://x/path"):
        with pytest.raises(ConfigurationError, match="endpoint"):
            Client(wrong)
    assert keys_of(Settings("http://x", anonymous=True)) is None


def test_the_types_of_the_options_are_those_of_the_settings():
    fields = {field.name for field in dataclasses.fields(Settings)}
    assert set(Options.__annotations__) == fields - {"endpoint"}
    assert set(ClientOptions.__annotations__) == fields


def test_settings_can_be_pickled():
    settings = Settings("http://x:1", "a", "b", connections=3)
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert pickle.loads(pickle.dumps(Client(**vars(settings)))).settings == settings


class WithTls(Server):
    name = "tls"

    def __init__(self, base):
        super().__init__(base)
        self.certificate = self.base / "certs" / "public.crt"
        self.certificate.parent.mkdir()
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
             "subjectAltName=DNS:localhost", "-keyout", self.certificate.with_name("private.key"), "-out", self.certificate],
            check=True, capture_output=True,
        )

    def command(self):
        return [*super().command(), "--certs", str(self.certificate.parent)]

    def wait_ready(self, timeout_s=60):
        self.client_of_all = Client(
            f"https://localhost:{self.port}", ca=str(self.certificate), access_key=self.credentials.access_key,
            secret_key=self.credentials.secret_key, retries=12,
        )
        self.client_of_all.list_buckets()


def test_a_certificate_of_ones_own_is_trusted_when_named_and_only_then(tmp_path, monkeypatch):
    with WithTls(tmp_path) as server:
        client = server.client_of_all
        client.create_bucket("secure")
        client.put("secure", "k", b"x" * 300_000)
        assert client.read_many("secure", ["k", "k"]) == [b"x" * 300_000] * 2
        if KNOWS_BATCH:
            assert client.put_many("secure", [("many", b"y" * 3_000_000), ("k", b"")]) == [True, False]
            into = bytearray(3_000_000)
            assert client.get_many_into("secure", [("many", into)]) == [3_000_000] and into == b"y" * 3_000_000
        options = {"access_key": server.credentials.access_key, "secret_key": server.credentials.secret_key}
        for pause in ("BACKOFF_S", "MOST_BACKOFF_S"):  # a retry would wait forever, but there is none
            monkeypatch.setattr(striate.transport, pause, 1e9)
        with pytest.raises(UnreachableError, match="STRIATE_CA_FILE"):
            Client(client.endpoint, **options).get("secure", "k")
        monkeypatch.setenv("STRIATE_CA_FILE", str(server.certificate))
        assert Client(client.endpoint, **options).get("secure", "k") == b"x" * 300_000
        client.close()


def test_no_representation_shows_a_secret(tmp_path):
    settings = Settings("http://given:9000", "ACCESS", "hidden-secret", "hidden-token")
    for thing in (settings, [settings], settings.resolved(), Keys("ACCESS", "hidden-secret", "hidden-token"), Client(**vars(settings))):
        assert "hidden" not in repr(thing) and "hidden" not in str(thing)
    assert "ACCESS" in repr(settings) and pickle.loads(pickle.dumps(settings)) == settings
