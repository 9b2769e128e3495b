"""The page in a real browser: Debian's chromium, driven by playwright."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from hitbox import Schema, __version__
from hitbox.broker.broker import Broker
from hitbox.client import Client, StoreFull
from support.served import served

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")
expect = playwright.expect
expect.set_options(timeout=30_000)  # the machine may be busy


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
    expect(page.locator("#dead")).to_contain_text('"qty":-9007199254740993')
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


def test_search_ignores_the_case_of_all_letters(page: playwright.Page, url: str) -> None:
    with Client.sync(url) as client:
        client.put_subscription("case", "s", "city = 'Münchner Straße'")
        show(page, "Subscriptions")
        for text in ("MÜNCHNER", "münchner STRASSE", "CASE/S"):
            page.get_by_label("Search").fill(text)
            expect(page.locator("#subs-count")).to_contain_text("1 found")
            expect(page.locator("#subs tr")).to_contain_text("Münchner Straße")
            page.get_by_label("Search").fill("no such text")
            expect(page.locator("#subs tr")).to_have_count(0)
        with client.subscriber("live", ephemeral=True) as live:
            live.subscribe("s", "city = 'ÅRHUS'")
            page.get_by_label("Search").fill("århus")
            expect(page.locator("#subs tr")).to_have_count(1)
        client.remove_subscriber("case")


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
    expect(page.locator("#dead tr")).to_have_count(2)
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
    expect(page.locator("#dead")).to_contain_text('payload "<i>yyy')
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
    expect(page.locator("#who-done")).to_have_text("the webhook of Zoe is saved")
    expect(page.locator("#secret-value")).to_contain_text("whsec_")
    secret = page.locator("#secret-value").inner_text()
    page.keyboard.press("Escape")  # it is not lost by that
    page.get_by_role("button", name="Copy").click()
    expect(page.locator("#secret-done")).to_have_text("copied")
    assert page.evaluate("getSelection().toString()") == secret
    page.get_by_role("button", name="Close").click()
    expect(page.locator("#secret")).not_to_be_visible()
    assert secret not in page.content()
    expect(page.locator("#who tr")).to_contain_text("webhook")
    page.get_by_role("button", name="Webhook Zoe").click()
    expect(page.locator("#dialog-text")).to_have_text("No request yet.")
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
            const seq = (message) => Number(message.lastEventId.split("-")[1]);
            source.onmessage = (message) => got.push([seq(message), JSON.parse(message.data).event.qty]);
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
        token = page.locator("#secret-value").inner_text()
        page.get_by_role("button", name="Sign in with it").click()
        expect(page.locator("#whoami")).to_contain_text("You are ops")
        expect(page.get_by_role("button", name="Create the first token")).not_to_be_visible()
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
        page.get_by_role("button", name="Close").click()
        expect(page.locator("#tokens tr")).to_have_count(2)
        with Client.sync(url, token) as client:
            (of_ann,) = [one for one in client.request("GET", "/v1/tokens")["tokens"] if one["principal"] == "ann"]
            assert client.request("GET", "/v1/whoami")["name"] == "ops"
        page.get_by_role("button", name=f"Revoke {of_ann['id']}").click()
        agree(page)
        expect(page.locator("#tokens tr")).to_have_count(1)
        page.close()


def test_first_steps_with_any_name(browser: playwright.Browser, tmp_path: Path) -> None:
    """The commands are copied to a shell."""
    name = """it's "$(hitbox)" `x`"""
    Broker(tmp_path / "broker", Schema({name: "int"})).store.close()
    with served(tmp_path / "broker") as url:
        page = browser.new_page()
        page.goto(url)
        doubled = name.replace('"', '""')
        expect(page.locator("#guide-where")).to_have_text(f'"{doubled}" > 2')
        command = ["hitbox", "subscribe", f'"{doubled}" > 2', "--name", "me", "--url", url]
        assert shlex.split(page.locator("#guide-client").inner_text()) == command
        command = ["hitbox", "publish", json.dumps({name: 3}, separators=(",", ":")), "--url", url]
        assert shlex.split(page.locator("#guide-command").inner_text()) == command
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
            while not (client.stats()["acked"] and client.stats()["history"][-1]["acked_per_second"] == 0):
                time.sleep(0.1)
        page.reload()  # nothing is acknowledged any more
        show(page, "Overview")
        expect(page.locator("#guide-receive")).to_have_class("done")
        expect(page.locator("#guide")).not_to_be_visible()
        page.close()


def test_an_edit_keeps_what_a_subscription_states_about_itself(browser: playwright.Browser, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"salary": "int", "age": {"type": "int", "role": "information"}}')
    with served(tmp_path / "broker", "--schema", str(schema)) as url, Client.sync(url) as client:
        client.put_subscription("ann", "job", "salary > 500", about={"age": 9007199254740993})
        page = browser.new_page()
        page.goto(url)
        show(page, "Subscriptions")
        expect(page.locator("#subs")).to_contain_text('{"age":9007199254740993}')
        page.get_by_role("button", name="Edit ann/job").click()
        page.get_by_label("Where", exact=True).fill("salary > 400")
        page.get_by_role("button", name="Add or replace").click()
        expect(page.locator("#add-done")).to_contain_text("ann/job is saved")
        (saved,) = client.subscriptions()
        assert (saved["where"], saved["about"]) == ("salary > 400", {"age": 9007199254740993})
        page.get_by_label("About").fill('{"age": 42')
        page.get_by_role("button", name="Add or replace").click()
        expect(page.locator("#where-error")).to_contain_text("About is not JSON")
        page.get_by_label("About").fill('{"age": 42}')
        page.get_by_role("button", name="Add or replace").click()
        expect(page.locator("#subs")).to_contain_text('{"age":42}')
        page.close()


def test_a_schema_of_one_side_has_no_field_for_the_other(page: playwright.Page) -> None:
    show(page, "Subscriptions")
    expect(page.get_by_label("About")).not_to_be_visible()
    show(page, "Events")
    expect(page.get_by_label("Predicate on the subscriptions")).not_to_be_visible()


def test_a_full_store_is_said_in_red_and_its_refusals_are_counted(browser: playwright.Browser, tmp_path: Path) -> None:
    options = ("--schema", "price:float", "--max-store-bytes", "600000")
    with served(tmp_path, *options) as url, Client.sync(url) as client:
        client.put_subscription("ann", "s", "price > 0")
        page = browser.new_page()
        page.goto(url)
        expect(page.locator("#state")).to_have_text("live")
        expect(page.locator("#banner")).to_be_empty()
        events, payloads = [{"price": 1.0}] * 20, ["x" * 1000] * 20
        with pytest.raises(StoreFull):
            [client.publish_many(events, payloads=payloads) for _ in range(1000)]
        expect(page.locator("#banner")).to_contain_text("The store is full")
        expect(page.locator("#banner")).to_contain_text("the setting max_store_bytes")
        expect(page.locator("#figures [data-name=refused] dd")).to_have_text("20")
        page.close()


@pytest.mark.parametrize("status", ["failed", "closing", "degraded"])
def test_other_troubles_are_said_with_their_reasons(page: playwright.Page, status: str) -> None:
    checks = {"writer": {"ok": False, "reason": "no disk"}, "room": {"ok": True, "reason": ""}}
    trouble = {"status": status, "reason": "1 problem", "checks": checks}
    page.route("**/readyz", lambda route: route.fulfill(status=503, json=trouble))
    expect(page.locator("#banner p")).to_have_count(3)
    expect(page.locator("#banner")).to_contain_text("1 problem")
    expect(page.locator("#banner")).to_contain_text("no disk")
    page.unroute("**/readyz")
    expect(page.locator("#banner")).to_be_empty()


def test_a_broker_that_is_down_does_not_look_alive(browser: playwright.Browser, tmp_path: Path) -> None:
    with served(tmp_path, "--schema", "price:float") as url:
        page = browser.new_page()
        page.goto(url)
        expect(page.locator("#state")).to_have_text("live")
    expect(page.locator("#banner")).to_contain_text("No connection to the broker since")
    expect(page.locator("#state")).to_have_text("no connection")
    expect(page.locator("#figures")).to_have_css("opacity", "0.4")
    show(page, "Subscribers")
    expect(page.locator("#who-error")).to_have_text("there is no connection to the broker")
    with served(tmp_path, "--port", url.rpartition(":")[2]):
        expect(page.locator("#banner")).to_be_empty()
        expect(page.locator("#who-error")).to_be_empty()
        expect(page.locator("#state")).to_have_text("live")
        page.close()


def test_a_refresh_keeps_the_focus_and_the_ticks(page: playwright.Page, url: str) -> None:
    with Client.sync(url) as client:
        for name in ("focus.a", "focus.b"):
            client.put_subscriber(name, policy="spool", limit=1)
            client.put_subscription(name, "s", "qty = 4242")
        show(page, "Subscribers")
        page.get_by_label("Find a subscriber").fill("focus")
        expect(page.locator("#who tr").first).to_contain_text("focus.a")
        button = page.get_by_role("button", name="Replay focus.a")
        button.focus()
        client.put_subscription("focus.b", "other", "qty = 4243")
        client.publish({"qty": 4243})  # b has more pending, and comes first
        expect(page.locator("#who tr").first).to_contain_text("focus.b")
        expect(button).to_be_focused()
        page.get_by_role("button", name="Pause focus.a").focus()
        client.request("POST", "/v1/subscribers/focus.a/pause")
        expect(page.get_by_role("button", name="Resume focus.a")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#dialog-title")).to_have_text("Resume focus.a?")
        agree(page)
        expect(page.get_by_role("button", name="Pause focus.a")).to_be_focused()

        client.publish_many([{"qty": 4242}] * 3)
        show(page, "Dead letters")
        ticked = page.locator("#dead tr", has_text="focus.a").first.locator("input")
        ticked.check()
        asked = page.evaluate(
            "performance.getEntriesByType('resource').filter((e) => e.name.includes('/v1/dead')).length"
        )
        client.publish({"qty": 4242})
        refreshed = (
            "(n) => performance.getEntriesByType('resource').filter((e) => e.name.includes('/v1/dead')).length > n"
        )
        page.wait_for_function(refreshed, arg=asked)
        expect(page.locator("#dead input:checked")).to_have_count(1)
        expect(page.locator("#dead input:checked")).to_be_focused()
        for name in ("focus.a", "focus.b"):
            client.remove_subscriber(name)


def test_actions_are_in_sight_beside_a_long_name(browser: playwright.Browser, tmp_path: Path) -> None:
    name = "long." + "x" * 95
    with served(tmp_path, "--schema", "price:float") as url, Client.sync(url) as client:
        client.put_subscription(name, "y" * 100, "price > 1")
        token = client.create_token(name)["token"]
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(url)
        page.locator("#token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        for width in (1280, 1000, 390):
            page.set_viewport_size({"width": width, "height": 900})
            for view, list in (("Subscribers", "#who"), ("Subscriptions", "#subs"), ("Access", "#principals")):
                show(page, view)
                assert_actions_are_in_sight(page, list, name, f"{view}, {width}")
        show(page, "Subscribers")  # a card says what its figures are
        label = page.locator("#who td").nth(2).evaluate("cell => getComputedStyle(cell, '::before').content")
        assert label == '"Pending"'
        page.close()


def assert_actions_are_in_sight(page: playwright.Page, list: str, name: str, what: str) -> None:
    buttons = page.locator(f"{list} button")
    expect(buttons.last).to_be_visible()
    assert page.locator(f"{list} .clip").first.get_attribute("title") == name
    scroll = page.locator(".scroll", has=page.locator(list))
    assert scroll.evaluate("one => one.scrollWidth <= one.clientWidth"), what
    for button in buttons.all():
        box, around = button.bounding_box(), scroll.bounding_box()
        assert box is not None
        assert around is not None
        assert box["x"] + box["width"] <= around["x"] + around["width"], what


def sign_in(page: playwright.Page, token: str) -> None:
    page.locator("#token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("#caller")).to_be_visible()


def test_a_caller_sees_what_it_may_do_and_signs_out(browser: playwright.Browser, tmp_path: Path) -> None:
    with served(tmp_path, "--schema", "price:float") as url:
        page, other = browser.new_page(), browser.new_page()
        other.goto(url)
        show(other, "Access")
        expect(other.locator("#whoami")).to_contain_text("no principal yet")
        with Client.sync(url) as client:
            ops = client.create_token("ops")["token"]
        expect(other.locator("#whoami")).to_have_text("Sign in first.")  # once it is told
        expect(other.get_by_role("button", name="Create the first token")).not_to_be_visible()
        with Client.sync(url, ops) as client:
            client.put_subscriber("box", policy="spool", limit=1)
            client.put_subscription("box", "s", "price > 0")
            client.publish_many([{"price": 50.0}] * 3)
            client.put_principal("guest", ["observe"], see="price < 3")
            guest = client.create_token("guest")["token"]
        page.goto(url)
        sign_in(page, guest)
        expect(page.locator("#caller")).to_contain_text("guest")
        expect(page.locator("#dead-badge")).to_have_text("2")
        show(page, "Dead letters")
        expect(page.locator("#dead-count")).to_have_text("0 of 0 shown, newest first; 2 more are hidden from you")
        expect(page.get_by_role("button", name="Deliver selected again")).not_to_be_visible()
        show(page, "Events")
        expect(page.get_by_role("button", name="Try")).to_be_visible()
        expect(page.get_by_role("button", name="Publish")).not_to_be_visible()
        show(page, "Subscriptions")
        expect(page.locator("#subs tr")).to_have_count(1)
        expect(page.get_by_role("button")).to_have_text(["Sign out"])
        show(page, "Subscribers")
        expect(page.locator("#who").get_by_role("button")).to_have_text(["Settings"])
        page.get_by_role("button", name="Settings box").click()
        expect(page.get_by_label("Limit of pending deliveries")).to_be_disabled()
        expect(page.get_by_role("button", name="Save")).not_to_be_visible()
        page.get_by_role("button", name="Cancel").click()
        show(page, "Schema")
        expect(page.locator("#attributes tr")).to_have_count(1)
        expect(page.get_by_role("button", name="Change")).not_to_be_visible()
        show(page, "Access")
        expect(page.locator("#whoami")).to_contain_text("takes the role manage")
        expect(page.get_by_role("button", name="Add a principal")).not_to_be_visible()
        expect(page.locator("#principals-error")).to_be_empty()
        page.get_by_role("button", name="Sign out").click()
        expect(page.locator("#token-form")).to_be_visible()
        expect(page.locator("#caller")).not_to_be_visible()
        sign_in(page, ops)
        expect(page.get_by_role("button", name="Add a principal")).to_be_visible()
        page.close()
        other.close()


def test_lists_have_pages_and_dead_letters_a_filter(browser: playwright.Browser, tmp_path: Path) -> None:
    with served(tmp_path, "--schema", "price:float") as url, Client.sync(url) as client:
        client.put_subscriptions("ann", [{"name": f"s{n:03}", "where": f"price = {n}"} for n in range(230)])
        for name in ("Box", "other"):
            client.put_subscriber(name, policy="spool", limit=1)
            client.put_subscription(name, "s", "price = -1")
        client.publish_many([{"price": -1.0}] * 102, payloads=["p" * 3000] * 102)
        page = browser.new_page()
        page.goto(url)
        show(page, "Subscriptions")
        expect(page.locator("#subs-count")).to_have_text("1 to 100 of 232 shown")
        names = page.locator("#subs tr td:nth-child(2)").all_inner_texts()
        next_page = page.locator("#subs-pages").get_by_role("button", name="Next")
        for first, last in ((101, 200), (201, 232)):
            next_page.click()
            expect(page.locator("#subs-count")).to_have_text(f"{first} to {last} of 232 shown")
            names += page.locator("#subs tr td:nth-child(2)").all_inner_texts()
        assert sorted(names) == ["s", "s", *(f"s{n:03}" for n in range(230))]
        expect(next_page).to_be_disabled()
        page.get_by_label("Search").fill("s00")
        expect(page.locator("#subs-count")).to_have_text("10 found among 232")
        show(page, "Dead letters")
        expect(page.locator("#dead-count")).to_have_text("1 to 100 of 202 shown, newest first")
        page.get_by_label("whose name contains").fill("BOX")
        expect(page.locator("#dead-count")).to_have_text("1 to 100 of 101 shown, newest first")
        page.locator("#dead-pages").get_by_role("button", name="Next").click()
        expect(page.locator("#dead-count")).to_have_text("101 to 101 of 101 shown, newest first")
        page.locator("#dead input").check()
        page.get_by_role("button", name="Show event 1 for Box").click()
        expect(page.locator("#letter-text")).to_contain_text("p" * 3000)
        page.locator("#letter").get_by_role("button", name="Close").click()
        page.get_by_role("button", name="Delete selected").click()
        expect(page.locator("#dialog-title")).to_have_text("Delete 1 dead letter?")
        agree(page)
        expect(page.locator("#dead-count")).to_have_text("100 of 100 shown, newest first")  # that page has gone
        page.close()


def test_pages_go_on_with_the_subscriptions_of_ephemeral_subscribers(tmp_path: Path) -> None:
    with served(tmp_path, "--schema", "price:float") as url, Client.sync(url) as client:
        client.put_subscriptions("ann", [{"name": f"s{n}", "where": f"price = {n}"} for n in range(3)])
        with client.subscriber("live", ephemeral=True) as live:
            for n in range(3):
                live.subscribe(f"t{n}", f"price = {n}")
            found = []
            for offset in (0, 2, 4, 6):
                shown = client.request("GET", "/v1/subscriptions", limit=2, offset=offset)["subscriptions"]
                found.append([one["name"] for one in shown])
    assert [len(names) for names in found] == [2, 2, 2, 0]
    assert sorted(name for names in found for name in names) == ["s0", "s1", "s2", "t0", "t1", "t2"]


def test_a_suspended_subscription_is_resumed(browser: playwright.Browser, tmp_path: Path) -> None:
    with served(tmp_path, "--schema", "city:string", "--match-steps", "10") as url, Client.sync(url) as client:
        client.put_subscription("ann", "bad", "city LIKE '%a_c%d%'")
        for _ in range(3):
            client.publish({"city": "ab" * 25_000})
        page = browser.new_page()
        page.goto(url)
        expect(page.locator("#figures div[data-name=suspended] dd")).to_have_text("1")
        show(page, "Events")
        page.get_by_label("Event (JSON)").fill('{"city": "' + "ab" * 25_000 + '"}')
        show(page, "Subscriptions")
        expect(page.locator("#subs")).to_contain_text("suspended: too expensive")
        page.get_by_role("button", name="Resume ann/bad").click()
        expect(page.locator("#subs-done")).to_have_text("ann/bad is matched again")
        expect(page.locator("#subs")).not_to_contain_text("suspended")
        assert client.subscriptions(suspended=True) == []
        show(page, "Events")
        page.get_by_role("button", name="Try").click()
        expect(page.locator("#try-count")).to_contain_text("too expensive for this event: ann/bad")
        page.close()


def test_long_predicates_and_numbers_of_two_digits_have_room(page: playwright.Page, url: str) -> None:
    with Client.sync(url) as client:
        client.put_subscription("wide", "long", " OR ".join(f"qty = {n}" for n in range(50_000, 50_300)))
        client.put_subscriptions("wide", [{"name": f"s{n}", "where": "qty >= 50000"} for n in range(12)])
        show(page, "Subscriptions")
        page.get_by_label("Search").fill("wide/long")
        expect(page.locator("#subs tr")).to_have_count(1)
        assert page.locator("#subs tr").evaluate("row => row.offsetHeight") < 150
        show(page, "Events")
        page.get_by_label("Event (JSON)").fill('{"qty": 50000}')
        page.get_by_role("button", name="Try").click()
        expect(page.locator("#matches li").nth(12)).to_be_visible()
        for row in page.locator("#matches li").all():
            assert row.evaluate("row => row.offsetHeight") < 150
        room = """list => {
            const canvas = document.createElement("canvas").getContext("2d");
            canvas.font = getComputedStyle(list).font;
            return parseFloat(getComputedStyle(list).paddingLeft) - canvas.measureText("50. ").width;
        }"""
        assert page.locator("#matches").evaluate(room) > 0
        client.remove_subscriber("wide")


def test_figures_of_the_broker_itself(page: playwright.Page, url: str) -> None:
    figures = {name: page.locator(f"#figures [data-name={name}] dd") for name in ("version", "last", "subscribers")}
    expect(figures["version"]).to_have_text(__version__)
    expect(page.locator("#figures [data-name=uptime_seconds] dd")).to_have_text(re.compile(r"^\d+ (s|min)$"))
    expect(page.locator("#figures [data-name=disk_free] dd")).to_have_text(re.compile(r"^[\d,.]+ GB$"))
    with Client.sync(url) as client:
        before = client.stats()["published"]
        last = client.publish_many([{"qty": -1}] * 1500) + 1499
        expect(figures["last"]).to_have_text(str(last))  # an identifier, not an amount
        expect(figures["subscribers"]).to_have_text(str(client.stats()["subscribers"]))
    show(page, "Events")
    expect(page.locator("#arrivals-count")).to_contain_text(f"of {before + 1500:,} events")


def test_times_below_a_chart_have_room_on_a_phone(browser: playwright.Browser, tmp_path: Path) -> None:
    with served(tmp_path, "--schema", "price:float") as url:
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.goto(url)
        expect(page.locator("#rates canvas")).to_be_visible()
        page.wait_for_function("() => plots[0].axes[0]._splits?.length > 1")
        free = """() => {
            const [axis] = plots[0].axes, [first, second] = axis._splits.map((time) => plots[0].valToPos(time, "x"));
            const canvas = document.createElement("canvas").getContext("2d");
            canvas.font = "12px system-ui";
            return [second - first, Math.max(...axis._values.map((text) => canvas.measureText(text).width))];
        }"""
        apart, wide = page.evaluate(free)
        assert apart > wide
        assert page.evaluate("plots[0].axes[0]._values.every((text) => /^\\d\\d:\\d\\d:\\d\\d$/.test(text))")
        page.close()


def test_the_form_for_the_token_is_one_line(browser: playwright.Browser, tmp_path: Path) -> None:
    with served(tmp_path, "--schema", "price:float") as url:
        with Client.sync(url) as client:
            client.create_token("ops")
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(url)
        expect(page.locator("#token-form")).to_be_visible()
        boxes = [part.bounding_box() for part in page.locator("#token-form > *").all()]
        middles = [box["y"] + box["height"] / 2 for box in boxes if box]
        assert len(middles) == 3
        assert max(middles) - min(middles) < 3
        page.close()
