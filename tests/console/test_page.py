"""The status page in a real browser: what it shows to which user, while something happens.

`tools/install.sh browser` installs a browser if the system's packages have one; without a browser the test is skipped.
"""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "prove"))
sys.dont_write_bytecode = True

from playwright.sync_api import sync_playwright  # noqa: E402
from proving.servers import Striate  # noqa: E402

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Root in a container has no sandbox; the page loads nothing from elsewhere.
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
KEY = 'holiday/<b onmouseover="alert(1)">&amp;.jpg'


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Striate(tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=BROWSER, args=ARGUMENTS)
        yield running
        running.close()


def is_fault(message):
    # A refused sign-in causes one of these errors.
    return message.type == "error" and "Failed to load resource" not in message.text


@pytest.fixture
def page(browser):
    opened = browser.new_page()
    faults = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("console", lambda message: faults.append(message.text) if is_fault(message) else None)
    yield opened
    opened.close()
    assert not faults, faults


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine, and no package of it")
def test_the_page_shows_the_store_and_names_to_who_signs_in(server, page):
    client = server.client(timeout_s=60)
    assert client.send("PUT", "/photos").status == 200
    path = f"/photos/{KEY}"
    assert client.send("PUT", path, body=bytes(300_000)).status == 200
    for _ in range(400):  # one request in eight is sampled
        assert client.send("GET", path).status == 200
    client.close()

    page.goto(server.console)
    page.wait_for_selector("#state:has-text('nothing is wrong')")
    assert page.locator("#sites tr").count() == 6
    page.wait_for_selector("#work >> text=levelling and drains")
    page.wait_for_selector("#balance:visible", timeout=60_000)
    row = page.locator("#hottest tr").first
    row.wait_for(timeout=60_000)
    assert "100.0%" in row.inner_text() and "holiday" not in row.inner_text()

    page.click("#names")
    page.fill("#key", server.credentials.access_key)
    page.fill("#secret", "not the secret")
    with page.expect_response("**/api/sign-in") as answer:
        page.click("#sign-in button")
    assert answer.value.status == 403
    page.wait_for_selector("#refused:has-text('wrong')")
    page.fill("#secret", server.credentials.secret_key)
    page.click("#sign-in button")
    page.wait_for_selector("#hottest td:has-text('photos/holiday')")
    assert page.locator("#hottest td").first.inner_text() == f"photos/{KEY}", "a name is text, whatever it looks like"
    assert page.locator("#names").is_hidden() and page.locator("#sign-in").is_hidden()
