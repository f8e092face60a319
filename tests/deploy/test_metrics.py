"""The dashboard and the alert rules ask for nothing that the program does not export."""

import json
import re
import subprocess
import time
import urllib.request

import pytest
from conftest import ROOT

NAME = re.compile(r"\bstriate_[a-z0-9_]+(?![a-z0-9_:])")
HISTOGRAM_PARTS = re.compile(r"_(bucket|sum|count)$")
# Of Prometheus itself, and of the node exporter.
FOREIGN = {"up", "node_timex_offset_seconds"}
START_S = 60


def exported_names():
    """Metrics by kind, as the sources name them: `head(NAME, KIND, …)`, or a list of (NAME, HELP, …) for one kind."""
    names = {}
    source = ROOT / "crates" / "striate" / "src"
    for path in [source / "metrics.rs", *sorted((source / "metrics").glob("*.rs"))]:
        code = path.read_text().split("#[cfg(test)]")[0]
        for name in re.findall(r'"(striate_[a-z0-9_]+)"', code):
            names[HISTOGRAM_PARTS.sub("", name)] = path.name
    return set(names)


def dashboard_queries():
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "striate.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for variable in dashboard["templating"]["list"]:
        yield variable["name"], variable.get("definition", "")


def alert_queries():
    """The expressions of the rules: what stands after `expr:`, on its line or indented below it."""
    text = (ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text()
    pattern = re.compile(r"- (?:alert|record): (\S+)\n(?: +#.*\n)*( +)expr: *(\|\n(?:\2  .*\n)+|.*\n)")
    found = pattern.findall(text)
    assert len(found) == len(re.findall(r"\bexpr:", text)), "a rule was not understood"
    return [(name, expression) for name, _, expression in found]


def queries():
    return [*dashboard_queries(), *alert_queries()]


def metrics_in(expression):
    return set(NAME.findall(expression))


def test_every_metric_that_is_asked_for_is_exported():
    exported = exported_names()
    asked = {name: where for where, expression in queries() for name in metrics_in(expression)}
    assert len(exported) > 30 and len(asked) > 20, "the sources or the queries were not understood"
    missing = {name: where for name, where in asked.items() if HISTOGRAM_PARTS.sub("", name) not in exported and name not in exported}
    assert not missing


def test_the_check_finds_a_metric_that_is_not_exported():
    assert metrics_in("sum(rate(striate_s3_request_total[5m])) / striate_free_bytes:min") == {"striate_s3_request_total"}
    assert "striate_s3_request_total" not in exported_names()


def test_everything_else_in_the_rules_is_known():
    functions = {
        "abs", "absent", "and", "by", "class", "count", "histogram_quantile", "instance", "job", "le", "max", "min", "operation", "or",
        "phase", "predict_linear", "rack", "rate", "resets", "site", "sum", "version",
    }
    for name, expression in alert_queries():
        plain = re.sub(r'"[^"]*"|\[[^\]]*\]|striate_free_bytes:min', "", expression)
        words = set(re.findall(r"\b[a-z][a-z0-9_]*\b", plain)) - metrics_in(plain) - functions - FOREIGN
        assert not words, name


def test_every_exported_metric_is_in_the_manual():
    page = (ROOT / "docs" / "src" / "metrics.md").read_text()
    assert {name for name in exported_names() if f"`{name}`" not in page} == set()


@pytest.fixture
def scraped(program, tmp_path):
    """The metrics of a server that has just started, by name, with their kinds and labels."""
    log = open(tmp_path / "log", "w")
    process = subprocess.Popen(
        [program, "server", "--dev", "--address", "127.0.0.1:0", "--console-address", "127.0.0.1:0", *(tmp_path / n for n in "abcd")],
        stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={"STRIATE_RUN_DIR": str(tmp_path / "run"), "NO_COLOR": "1"},
    )
    try:
        ends = time.monotonic() + START_S
        while not (console := re.search(r'console="(http://[^"]+)"', (tmp_path / "log").read_text())):
            assert process.poll() is None and time.monotonic() < ends, (tmp_path / "log").read_text()
            time.sleep(0.1)
        yield urllib.request.urlopen(f"{console[1]}/metrics", timeout=30).read().decode()
    finally:
        process.terminate()
        process.wait(30)


def test_a_running_server_exports_what_the_sources_name(scraped):
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", scraped, re.MULTILINE))
    assert set(kinds) == exported_names()
    for where, expression in queries():
        for metric in re.findall(r"rate\((striate_[a-z0-9_]+)", expression):
            kind = kinds[metric] if metric in kinds else kinds[HISTOGRAM_PARTS.sub("", metric)]
            assert kind in ("counter", "histogram"), f"{where}: rate of {metric}, which is a {kind}"
        for metric in re.findall(r"(striate_[a-z0-9_]+)_bucket", expression):
            assert kinds[metric] == "histogram", where
