"""The page in a real browser: Debian's chromium, driven by playwright."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
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


def show(page: playwright.Page, view: str) -> None:
    page.locator("nav").get_by_role("link", name=view).click()
    expect(page.locator("nav a[aria-current]")).to_contain_text(view)


def agree(page: playwright.Page) -> None:
    """Press the first button of the dialog; it closes."""
    page.locator("#dialog-yes").click()
    expect(page.locator("#dialog")).not_to_be_visible()


def add(page: playwright.Page, owner: str, name: str, priority: int, where: str) -> None:
    show(page, "Subscriptions")
    page.get_by_label("Subscriber", exact=True).fill(owner)
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Priority", exact=True).fill(str(priority))
    page.get_by_label("Where", exact=True).fill(where)
    page.get_by_role("button", name="Add or replace").click()
    expect(page.locator("#add-done")).to_contain_text(f"{owner}/{name} is saved")


def test_attributes_that_no_event_had(page: playwright.Page) -> None:
    show(page, "Subscriptions")
    page.get_by_role("button", name="Look for them").click()
    expect(page.locator("#unseen-count")).to_contain_text("the latest")


def test_add_publish_see_it_arrive(page: playwright.Page) -> None:
    add(page, "ann", "cheap", 7, "price < 20 AND city = 'Paris'")
    add(page, "bob", "many", 2, "qty >= 3")
    expect(page.locator("#subs")).to_contain_text("price < 20 AND city = 'Paris'")
    show(page, "Events")
    page.get_by_label("Event (JSON)").fill('{"price": 12.5, "qty": 5, "city": "Paris"}')
    page.get_by_role("button", name="Publish").click()
    expect(page.locator("#try-count")).to_contain_text("Published as event")
    expect(page.locator("#arrivals li").first).to_contain_text("2 matches")
    show(page, "Subscribers")
    expect(page.locator("#who")).to_contain_text("ann")
    show(page, "Overview")
    expect(page.locator("#rates canvas")).to_be_visible()
    shot = os.environ.get("HITBOX_SCREENSHOT")
    if shot:
        show(page, "Events")
        page.get_by_role("button", name="Try").click()
        page.get_by_role("button", name="Why ann/cheap?").click()
        page.wait_for_timeout(4000)
        page.screenshot(path=shot, full_page=True)


def test_try_an_event_and_read_why(page: playwright.Page) -> None:
    add(page, "ann", "cheap", 7, "price < 20 AND city = 'Paris'")
    add(page, "bob", "many", 2, "qty >= 3")
    show(page, "Events")
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
    show(page, "Events")
    expect(page.locator("#arrivals")).to_contain_text('"qty":-9007199254740993,')
    expect(page.locator("#arrivals")).to_contain_text(json.dumps(odd))
    show(page, "Dead letters")
    expect(page.locator("#dead")).to_contain_text('"qty":-9007199254740993', timeout=10_000)
    show(page, "Events")
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
    show(page, "Events")
    expect(page.locator("#arrivals li").first).to_contain_text(f"#{first + 49} ")
    shown = page.locator("#arrivals li").all_inner_texts()
    assert [int(text.split()[0][1:]) for text in shown] == list(range(first + 49, first + 29, -1))
    expect(page.locator("#arrivals-count")).to_have_text(
        f"the latest 20 of {first + 49} events since the broker started"
    )


def test_an_error_is_marked_at_its_place(page: playwright.Page) -> None:
    show(page, "Subscriptions")
    page.get_by_label("Where", exact=True).fill("price > 3 AND prise < 9")
    expect(page.locator("#where-error")).to_contain_text("did you mean 'price'?")
    assert page.locator("#where-error mark").get_attribute("aria-label") == "here: prise < 9"
    expect(page.get_by_label("Where", exact=True)).to_have_attribute("aria-invalid", "true")
    page.get_by_label("Where", exact=True).fill("price > 3 AND price < 9")
    expect(page.locator("#where-error")).to_have_text("")
    show(page, "Events")
    page.get_by_label("Event (JSON)").fill('{"price": ')
    page.get_by_role("button", name="Try").click()
    expect(page.locator("#event-error")).to_contain_text("The event is not JSON")


def test_search_and_remove(page: playwright.Page) -> None:
    add(page, "eve", "gone", 1, "qty = 77")
    page.get_by_label("Search").fill("QTY = 77")  # whatever the case
    expect(page.locator("#subs tr")).to_have_count(1)
    page.get_by_role("button", name="Remove eve/gone").click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#subs tr")).to_have_count(1)
    page.get_by_role("button", name="Remove eve/gone").click()
    agree(page)
    expect(page.locator("#subs tr")).to_have_count(0)
    expect(page.locator("#subs-done")).to_have_text("eve/gone is removed")
    expect(page.get_by_label("Search")).to_be_focused()


def test_dead_letters_can_be_delivered_again(page: playwright.Page, url: str) -> None:
    with Client.sync(url) as client:
        client.request("PUT", "/v1/subscribers/dan", {"policy": "spool", "limit": 1})
        client.request("PUT", "/v1/subscribers/dan/subscriptions/s", {"where": "qty > 1000"})
        client.publish_many([{"qty": 1001}, {"qty": 1002}, {"qty": 1003}])
    show(page, "Dead letters")
    expect(page.locator("#dead tr")).to_have_count(2, timeout=10_000)
    page.locator("#dead input").first.check()
    page.get_by_role("button", name="Deliver selected again").click()
    expect(page.locator("#dead-done")).to_have_text("1 sent again")


def test_payloads_are_shown_shortened(page: playwright.Page, url: str) -> None:
    show(page, "Events")
    with Client.sync(url) as client:
        client.publish({"qty": 1}, payload="<b>" + "x" * 500)
        client.publish({"qty": 1}, payload=b"12345", content_type="image/png")
    expect(page.locator("#arrivals")).to_contain_text('payload "<b>xxx')
    expect(page.locator("#arrivals")).to_contain_text("payload 5 bytes of image/png")
    expect(page.locator("#arrivals b")).to_have_count(0)
    assert "x" * 300 not in page.locator("#arrivals").inner_text()
    with Client.sync(url) as client:
        client.put_subscriber("pay", policy="spool", limit=1)
        client.put_subscription("pay", "s", "qty = 77")
        client.publish_many([{"qty": 77}] * 3, payloads=["<i>" + "y" * 500] * 3)
    show(page, "Dead letters")
    expect(page.locator("#dead")).to_contain_text('payload "<i>yyy', timeout=10_000)
    expect(page.locator("#dead i")).to_have_count(0)
    assert "y" * 300 not in page.locator("#dead").inner_text()
    with Client.sync(url) as client:
        client.remove_subscriber("pay")


def test_what_clients_send_is_text_not_html(page: playwright.Page, url: str) -> None:
    nasty = "<img src=x onerror=alert(1)>"
    with Client.sync(url) as client:
        client.request("PUT", "/v1/subscribers/mal/subscriptions/s", {"where": f"city = '{nasty}'"})
        client.publish({"city": nasty})
    show(page, "Events")
    expect(page.locator("#arrivals")).to_contain_text(nasty)
    show(page, "Subscriptions")
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
    show(page, "Events")
    page.get_by_label("Event (JSON)").focus()
    for _ in range(2):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") in ("Try", "Publish")
    unnamed = "[...document.querySelectorAll('input,textarea')].filter(e => !e.labels.length && !e.ariaLabel).length"
    assert page.evaluate(unnamed) == 0
    show(page, "Subscribers")
    lines = "Math.max(...[...document.querySelectorAll('#who-title ~ * th')].map(e => e.offsetHeight))"
    assert page.evaluate(lines) < 40  # tables scroll sideways, words are not broken
    for view in ("Overview", "Events", "Subscriptions", "Subscribers", "Dead letters", "Schema", "Access"):
        show(page, view)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
        assert page.evaluate("document.documentElement.scrollHeight") < 2500, view
    context.close()


def test_the_latest_events_are_filtered_and_held(page: playwright.Page, url: str) -> None:
    show(page, "Events")
    page.get_by_label("Only events where").fill("qty >")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("#tail-error")).not_to_be_empty()
    page.get_by_label("Only events where").fill("qty > 5000 AND city LIKE 'B%'")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("#tail-error")).to_be_empty()
    expect(page.locator("#arrivals-count")).to_contain_text("that fit, of")
    with Client.sync(url) as client:
        client.publish_many(
            [{"qty": 5001, "city": "Bonn"}, {"qty": 5002, "city": "Rome"}, {"qty": 4999, "city": "Bern"}]
        )
    expect(page.locator("#arrivals")).to_contain_text("Bonn")
    expect(page.locator("#arrivals li")).to_have_count(1)
    page.get_by_role("button", name="Hold").click()
    with Client.sync(url) as client:
        client.publish({"qty": 6000, "city": "Berlin"})
    page.wait_for_timeout(1500)
    expect(page.locator("#arrivals li")).to_have_count(1)
    page.get_by_role("button", name="Go on").click()
    expect(page.locator("#arrivals li").first).to_contain_text("Berlin")


def test_subscribers_are_changed_replayed_and_deleted(page: playwright.Page, url: str) -> None:
    with Client.sync(url) as client:
        client.request("PUT", "/v1/subscribers/Zoe", {})
        first = client.publish({"qty": 7777})
        client.request("PUT", "/v1/subscribers/Zoe/subscriptions/s", {"where": "qty = 7777"})
    show(page, "Subscribers")
    page.get_by_label("Find a subscriber").fill("zoe")
    expect(page.locator("#who tr")).to_have_count(1)
    page.get_by_role("button", name="Settings Zoe").click()
    page.get_by_label("Most tries").fill("0")
    page.locator("#dialog-yes").click()
    expect(page.locator("#dialog-error")).to_contain_text("max_tries")  # the dialog stays, with the reason
    page.get_by_label("Most tries").fill("9")
    agree(page)
    expect(page.locator("#who-done")).to_have_text("the settings of Zoe are saved")
    page.get_by_role("button", name="Pause Zoe").click()
    agree(page)
    expect(page.locator("#who-done")).to_have_text("Zoe is paused")
    expect(page.locator("#who tr")).to_contain_text("paused")
    page.get_by_role("button", name="Resume Zoe").click()
    agree(page)
    expect(page.locator("#who-done")).to_have_text("Zoe gets its deliveries again")
    page.get_by_role("button", name="Webhook Zoe").click()
    page.get_by_label("Address that").fill("https://127.0.0.1/")
    page.locator("#dialog-yes").click()
    expect(page.locator("#dialog-error")).to_contain_text("no public address")
    page.get_by_label("Address that").fill("https://webhooks.invalid/")
    agree(page)
    expect(page.locator("#who-done")).to_contain_text("its secret, which is not shown again: whsec_")
    expect(page.locator("#who tr")).to_contain_text("webhook")
    page.get_by_role("button", name="Webhook Zoe").click()
    page.get_by_label("Address that").fill("")
    agree(page)
    expect(page.locator("#who-done")).to_have_text("Zoe has no webhook")
    page.get_by_role("button", name="Replay Zoe").click()
    page.get_by_label("First event").fill(str(first))
    agree(page)
    expect(page.locator("#who-done")).to_have_text("1 event will be delivered again to Zoe")
    with Client.sync(url) as client:
        found = client.request("GET", "/v1/subscribers/Zoe")
    assert (found["options"]["max_tries"], found["pending"]) == (9, 1)
    page.get_by_role("button", name="Delete Zoe").click()
    expect(page.locator("#dialog-text")).to_contain_text("1 subscription and 1 pending delivery")
    agree(page)
    expect(page.locator("#who tr")).to_have_count(0)


def test_an_event_source_of_a_browser(page: playwright.Page, url: str) -> None:
    """It gets deliveries, and goes on by itself after another connection took over and left."""
    with Client.sync(url) as client:
        client.request("PUT", "/v1/subscribers/streamed", {})
        client.request("PUT", "/v1/subscribers/streamed/subscriptions/s", {"where": "qty = 8888"})
        page.evaluate("""() => {
            window.got = []; window.ends = [];
            window.source = new EventSource("/v1/subscribers/streamed/deliveries");
            source.onmessage = (message) => got.push([Number(message.lastEventId), JSON.parse(message.data).event.qty]);
            source.addEventListener("closed", (message) => ends.push(JSON.parse(message.data).code));
        }""")
        first = client.publish({"qty": 8888})
        page.wait_for_function("() => got.length === 1")
        with httpx.stream("GET", url + "/v1/subscribers/streamed/deliveries?ack=client"):
            page.wait_for_function("() => ends.length === 1")
        page.wait_for_function("() => source.readyState === EventSource.OPEN && ends.length >= 1")
        second = client.publish({"qty": 8888})
        page.wait_for_function("(last) => got.some(([seq]) => seq === last)", arg=second)
        assert page.evaluate("got") == [[first, 8888], [second, 8888]]  # Last-Event-ID: the first does not come again
        assert page.evaluate("ends")[0] == 4409
        page.evaluate("source.close()")
        client.request("DELETE", "/v1/subscribers/streamed")


def test_principals_and_tokens(browser: playwright.Browser, tmp_path: Path) -> None:
    with served(tmp_path, "--schema", "price:float") as url:
        page = browser.new_page()
        page.goto(url)
        show(page, "Access")
        expect(page.locator("#whoami")).to_contain_text("no principal yet")
        page.get_by_role("button", name="Create the first token").click()
        agree(page)
        token = page.locator("#token-new code").inner_text()
        page.locator("#token").fill(token)  # from now on the page needs it, too
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("#whoami")).to_contain_text("You are ops")
        page.get_by_role("button", name="Add a principal").click()
        page.locator("#field-name").fill("ann")
        page.get_by_label("subscribe", exact=True).check()
        page.get_by_label("what it may see").fill("price <")
        page.locator("#dialog-yes").click()
        expect(page.locator("#dialog-error")).not_to_be_empty()
        page.get_by_label("what it may see").fill("price < 20")
        agree(page)
        expect(page.locator("#principals tr")).to_have_count(2)
        page.get_by_role("button", name="New token ann").click()
        agree(page)
        expect(page.locator("#tokens tr")).to_have_count(2)
        with Client.sync(url, token) as client:
            (of_ann,) = [one for one in client.request("GET", "/v1/tokens")["tokens"] if one["principal"] == "ann"]
            assert client.request("GET", "/v1/whoami")["name"] == "ops"
        page.get_by_role("button", name=f"Revoke {of_ann['id']}").click()
        agree(page)
        expect(page.locator("#tokens tr")).to_have_count(1)
        page.close()


def test_first_steps_then_the_schema(browser: playwright.Browser, tmp_path: Path) -> None:
    with served(tmp_path, "--schema", "price:float,city:string") as url:
        page = browser.new_page()
        page.goto(url)
        expect(page.locator("#guide")).to_be_visible()
        expect(page.locator("#guide-where")).to_have_text("price < 20")
        expect(page.locator("#guide-client")).to_contain_text(f"--url {url}")
        add(page, "ann", "s", 4, "price < 20")
        show(page, "Overview")
        expect(page.locator("#guide-subscribe")).to_have_class("done")
        expect(page.locator("#guide-publish")).not_to_have_class("done")
        show(page, "Schema")
        expect(page.locator("#attributes tr")).to_have_count(2)
        text = page.get_by_label("Attributes (JSON)").input_value()
        page.get_by_label("Attributes (JSON)").fill(json.dumps(json.loads(text)[1:]))
        page.get_by_role("button", name="Change").click()
        page.locator("#dialog-yes").click()
        expect(page.locator("#dialog-error")).to_contain_text("1 subscription contradicts the new schema")
        page.get_by_role("button", name="Cancel").click()
        more = [*json.loads(text), {"name": "qty", "type": "int", "role": "criteria"}]
        page.get_by_label("Attributes (JSON)").fill(json.dumps(more))
        page.get_by_role("button", name="Change").click()
        agree(page)
        expect(page.locator("#attributes tr")).to_have_count(3)
        with Client.sync(url) as client:
            client.publish({"price": 3, "qty": 1})
            assert [delivery.event for delivery in client.listen("ann", count=1)] == [{"price": 3, "qty": 1}]
        show(page, "Overview")
        expect(page.locator("#guide")).not_to_be_visible()
        page.close()
