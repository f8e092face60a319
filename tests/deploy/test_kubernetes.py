"""The chart's scripts against the part of Kubernetes' API that they use: certificates into Secrets, and the rack of a node."""

import base64
import json
import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from conftest import ROOT

SCRIPTS = ROOT / "deploy" / "helm" / "striate" / "files"
TOKEN = "the-account's-token"
LABELS = {"kubernetes.io/hostname": "n1", "topology.kubernetes.io/zone": "z-2"}
NODE = {"kind": "Node", "metadata": {"annotations": {"a/topology.kubernetes.io/zone": "wrong"}, "labels": LABELS, "name": "n1"}}


class Kubernetes(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply(200, NODE) if self.path == "/api/v1/nodes/n1" else self.secret(self.path.rpartition("/")[2])

    def secret(self, name):
        found = self.server.secrets.get(name)
        self.reply(200, found) if found else self.reply(404, {"kind": "Status", "message": f"{name} not found"})

    def do_POST(self):
        secret = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/api/v1/namespaces/store/secrets"
        self.server.secrets[secret["metadata"]["name"]] = secret
        self.reply(201, secret)

    def reply(self, status, body):
        if self.headers["Authorization"] != f"Bearer {TOKEN}" or self.server.is_away:
            status, body = 403, {"kind": "Status", "message": "forbidden"}
        text = json.dumps(body, indent=self.server.indent).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@pytest.fixture(params=[None, 2], ids=["compact", "indented"])
def kubernetes(request, tmp_path, program):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Kubernetes)
    server.secrets, server.is_away, server.indent = {}, False, request.param
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "account").mkdir()
    (tmp_path / "account" / "token").write_text(TOKEN)
    (tmp_path / "account" / "ca.crt").write_text("")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "striate").symlink_to(program.resolve())

    def run(script, *arguments, **variables):
        environment = {
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "ACCOUNT": str(tmp_path / "account"), "NAMESPACE": "store",
            "KUBERNETES_API": f"http://127.0.0.1:{server.server_port}", "SECRETS": "store-id",
            "RACK_FILE": str(tmp_path / "rack"), "NODE_NAME": "n1", **variables,
        }
        done = subprocess.run(["bash", SCRIPTS / script, *arguments], env=environment, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    server.run = run
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def files(secret):
    return {name: base64.b64decode(text) for name, text in secret["data"].items()}


def test_each_process_gets_a_certificate_of_one_authority(kubernetes, tmp_path):
    first = ["control:control", "gateway:gateway", "admin:admin", "site:site-0"]
    status, output = kubernetes.run("certificates", *first)
    assert status == 0, output
    names = {f"store-id-{name}" for name in ["authority", "control", "gateway", "admin", "site-0"]}
    assert set(kubernetes.secrets) == names
    before = json.dumps(kubernetes.secrets)

    status, output = kubernetes.run("certificates", *first, "site:site-1")
    assert status == 0 and "store-id-site-1" in output, output
    new = kubernetes.secrets.pop("store-id-site-1")
    assert json.dumps(kubernetes.secrets) == before, "what was there was left alone"

    authority = files(kubernetes.secrets["store-id-authority"])
    assert set(authority) == {"ca.crt", "ca.key", "sealing.key"}
    assert set(files(new)) == {"ca.crt", "tls.crt", "tls.key"}
    assert files(kubernetes.secrets["store-id-gateway"])["sealing.key"] == authority["sealing.key"]
    (tmp_path / "ca.crt").write_bytes(authority["ca.crt"])
    (tmp_path / "tls.crt").write_bytes(files(new)["tls.crt"])
    verified = subprocess.run(["openssl", "verify", "-CAfile", tmp_path / "ca.crt", tmp_path / "tls.crt"], capture_output=True)
    assert verified.returncode == 0, verified
    shown = subprocess.run(
        ["openssl", "x509", "-in", tmp_path / "tls.crt", "-noout", "-ext", "subjectAltName"], capture_output=True, text=True
    )
    assert "/site/site-1" in shown.stdout


def test_no_second_authority_is_made_beside_certificates_of_another(kubernetes):
    kubernetes.secrets["store-id-gateway"] = {"data": {"tls.key": "bWluZQ=="}}
    status, output = kubernetes.run("certificates", "control:control", "gateway:gateway")
    assert status == 1 and "store-id-authority" in output
    assert list(kubernetes.secrets) == ["store-id-gateway"]


def test_a_refusal_of_kubernetes_is_told(kubernetes):
    kubernetes.is_away = True
    status, output = kubernetes.run("certificates", "control:control")
    assert status == 1 and "403" in output and not kubernetes.secrets


def test_the_rack_is_the_nodes_label_and_is_remembered(kubernetes, tmp_path):
    zone = {"TOPOLOGY_KEY": "topology.kubernetes.io/zone"}
    status, output = kubernetes.run("rack", **zone)
    assert status == 0 and (tmp_path / "rack").read_text() == "z-2\n", output
    kubernetes.is_away = True
    assert kubernetes.run("rack", **zone)[0] == 0
    (tmp_path / "rack").unlink()
    status, output = kubernetes.run("rack", **zone)
    assert status == 1 and "does not say" in output
    kubernetes.is_away = False
    status, output = kubernetes.run("rack", TOPOLOGY_KEY="example.org/row")
    assert status == 1 and "no label" in output
    assert not (tmp_path / "rack").exists()
