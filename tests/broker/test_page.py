"""The page in a real browser: Debian's chromium, driven by playwright."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator

import pytest

from hitbox.broker.client import Client
from support.served import served

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)"),
]
expect = playwright.expect


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("broker"), "--schema", "price:float,qty:int,city:string") as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: playwright.Browser, url: str) -> Iterator[playwright.Page]:
    context = browser.new_context(viewport={"width": 1200, "height": 1500})
    opened = context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.goto(url)
    expect(opened.locator("#state")).to_have_text("live")
    yield opened
    context.close()
    assert problems == []


def add(page: playwright.Page, owner: str, name: str, priority: int, where: str) -> None:
    page.get_by_label("Subscriber", exact=True).fill(owner)
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Priority", exact=True).fill(str(priority))
    page.get_by_label("Where", exact=True).fill(where)
    page.get_by_role("button", name="Add or replace").click()
    expect(page.locator("#add-done")).to_contain_text(f"{owner}/{name} is saved")


def test_attributes_that_no_event_had(page: playwright.Page) -> None:
    page.get_by_role("button", name="Look for them").click()
    expect(page.locator("#unseen-count")).to_contain_text("the latest")


def test_add_publish_see_it_arrive(page: playwright.Page) -> None:
    add(page, "ann", "cheap", 7, "price < 20 AND city = 'Paris'")
    add(page, "bob", "many", 2, "qty >= 3")
    expect(page.locator("#subs")).to_contain_text("price < 20 AND city = 'Paris'")
    page.get_by_label("Event (JSON)").fill('{"price": 12.5, "qty": 5, "city": "Paris"}')
    page.get_by_role("button", name="Publish").click()
    expect(page.locator("#try-count")).to_contain_text("Published as event")
    expect(page.locator("#arrivals li").first).to_contain_text("2 matches")
    expect(page.locator("#who")).to_contain_text("ann")
    expect(page.locator("#rates canvas")).to_be_visible()
    shot = os.environ.get("HITBOX_SCREENSHOT")
    if shot:
        page.get_by_role("button", name="Try").click()
        page.get_by_role("button", name="Why ann/cheap?").click()
        page.wait_for_timeout(4000)
        page.screenshot(path=shot, full_page=True)


def test_try_an_event_and_read_why(page: playwright.Page) -> None:
    add(page, "ann", "cheap", 7, "price < 20 AND city = 'Paris'")
    add(page, "bob", "many", 2, "qty >= 3")
    page.get_by_label("Event (JSON)").fill('{"price": 12.5, "qty": 5, "city": "Paris"}')
    page.get_by_role("button", name="Try").click()
    expect(page.locator("#try-count")).to_have_text("2 subscriptions match, most urgent first")
    expect(page.locator("#matches li").first).to_contain_text("ann/cheap")
    page.get_by_label("Event (JSON)").fill('{"price": 30, "qty": 1, "city": "Paris"}')
    page.get_by_role("button", name="Try").click()
    expect(page.locator("#try-count")).to_have_text("0 subscriptions match, most urgent first")
    page.get_by_role("button", name="Why ann/cheap?").click()
    expect(page.locator("#why")).to_contain_text("no match")
    expect(page.locator("#why .false").first).to_contain_text("✗")
    expect(page.locator("#why")).to_contain_text("price is 30")
    expect(page.locator("#why")).to_contain_text("Nearest change")


def test_numbers_stay_exact(page: playwright.Page, url: str) -> None:
    """Beyond 2**53 a JavaScript number is another number; text that looks like the page's own marks stays text."""
    add(page, "big", "one", 5, "qty = -9007199254740993")
    odd = '"\\u0001:9007199254740995" \\\\'
    with Client.sync(url) as client:
        client.request("PUT", "/v1/subscribers/big", {"policy": "spool", "limit": 1})
        client.publish_many([{"qty": -9007199254740993, "city": odd}, {"qty": -9007199254740993, "price": -0.5}])
    expect(page.locator("#arrivals")).to_contain_text('"qty":-9007199254740993,')
    expect(page.locator("#arrivals")).to_contain_text(json.dumps(odd))
    expect(page.locator("#dead")).to_contain_text('"qty":-9007199254740993', timeout=10_000)
    page.get_by_label("Event (JSON)").fill('{"qty": -9007199254740993}')
    page.get_by_role("button", name="Try").click()
    expect(page.locator("#try-count")).to_have_text("1 subscription matches")
    page.get_by_role("button", name="Why big/one?").click()
    expect(page.locator("#why")).to_contain_text("(qty is -9007199254740993)")
    page.get_by_label("Event (JSON)").fill('{"qty": -9007199254740992}')
    page.get_by_role("button", name="Try").click()
    expect(page.locator("#try-count")).to_contain_text("0 subscriptions match")
    page.get_by_role("button", name="Why big/one?").click()
    expect(page.locator("#why")).to_contain_text("Nearest change: qty: -9007199254740992 → ")
    expect(page.locator("#why")).to_contain_text("-9007199254740993")
    page.get_by_label("Event (JSON)").fill('{"qty": -9007199254740993, "city": "as typed"}')
    page.get_by_role("button", name="Publish").click()
    expect(page.locator("#try-count")).to_contain_text("Published as event")
    expect(page.locator("#arrivals li").first).to_contain_text('{"qty":-9007199254740993,"city":"as typed"} 1 match')
    with Client.sync(url) as client:
        events = client.request("GET", "/v1/events", limit=1000)["events"]
        client.request("DELETE", "/v1/subscribers/big")
    assert events[-1]["event"] == {"qty": -9007199254740993, "city": "as typed"}


def test_a_batch_is_listed_whole_and_what_is_left_out_is_said(page: playwright.Page, url: str) -> None:
    with Client.sync(url) as client:
        first = client.publish_many([{"qty": -n} for n in range(50)])
    expect(page.locator("#arrivals li").first).to_contain_text(f"#{first + 49} ")
    shown = page.locator("#arrivals li").all_inner_texts()
    assert [int(text.split()[0][1:]) for text in shown] == list(range(first + 49, first + 29, -1))
    expect(page.locator("#arrivals-count")).to_have_text(
        f"the latest 20 of {first + 49} events since the broker started"
    )


def test_an_error_is_marked_at_its_place(page: playwright.Page) -> None:
    page.get_by_label("Where", exact=True).fill("price > 3 AND prise < 9")
    expect(page.locator("#where-error")).to_contain_text("did you mean 'price'?")
    assert page.locator("#where-error mark").get_attribute("aria-label") == "here: prise < 9"
    expect(page.get_by_label("Where", exact=True)).to_have_attribute("aria-invalid", "true")
    page.get_by_label("Where", exact=True).fill("price > 3 AND price < 9")
    expect(page.locator("#where-error")).to_have_text("")
    page.get_by_label("Event (JSON)").fill('{"price": ')
    page.get_by_role("button", name="Try").click()
    expect(page.locator("#event-error")).to_contain_text("The event is not JSON")


def test_search_and_remove(page: playwright.Page) -> None:
    add(page, "eve", "gone", 1, "qty = 77")
    page.get_by_label("Search").fill("qty = 77")
    expect(page.locator("#subs tr")).to_have_count(1)
    page.get_by_role("button", name="Remove eve/gone").click()
    expect(page.locator("#subs tr")).to_have_count(0)
    expect(page.locator("#subs-done")).to_have_text("eve/gone is removed")
    expect(page.get_by_label("Search")).to_be_focused()


def test_dead_letters_can_be_delivered_again(page: playwright.Page, url: str) -> None:
    with Client.sync(url) as client:
        client.request("PUT", "/v1/subscribers/dan", {"policy": "spool", "limit": 1})
        client.request("PUT", "/v1/subscribers/dan/subscriptions/s", {"where": "qty > 1000"})
        client.publish_many([{"qty": 1001}, {"qty": 1002}, {"qty": 1003}])
    expect(page.locator("#dead tr")).to_have_count(2, timeout=10_000)
    page.locator("#dead input").first.check()
    page.get_by_role("button", name="Deliver selected again").click()
    expect(page.locator("#dead-done")).to_have_text("1 sent again")


def test_what_clients_send_is_text_not_html(page: playwright.Page, url: str) -> None:
    nasty = "<img src=x onerror=alert(1)>"
    with Client.sync(url) as client:
        client.request("PUT", "/v1/subscribers/mal/subscriptions/s", {"where": f"city = '{nasty}'"})
        client.publish({"city": nasty})
    expect(page.locator("#arrivals")).to_contain_text(nasty)
    page.get_by_label("Search").fill("onerror")
    expect(page.locator("#subs")).to_contain_text(nasty)
    assert page.locator("img").count() == 0


def test_keyboard_and_phone(browser: playwright.Browser, url: str) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme="dark")
    page = context.new_page()
    page.goto(url)
    expect(page.locator("#state")).to_have_text("live")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.get_by_label("Event (JSON)").focus()
    for _ in range(2):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") in ("Try", "Publish")
    unnamed = "[...document.querySelectorAll('input,textarea')].filter(e => !e.labels.length && !e.ariaLabel).length"
    assert page.evaluate(unnamed) == 0
    lines = "Math.max(...[...document.querySelectorAll('#who-title ~ * th')].map(e => e.offsetHeight))"
    assert page.evaluate(lines) < 40  # tables scroll sideways, words are not broken
    context.close()
