"""The page at `/ui` in a real browser, on the real stack: chats, adapters, tools, structured output, figures."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.compatibility.cases import TOOL
from tests.integration import test_media as images
from tests.integration.browser import Person, chromium
from tests.integration.service import Service
from tests.integration.test_openai_api import PLAIN

FRANCE, PARIS = "What is the capital of France?", "The capital of France is Paris."


@pytest.fixture(scope="module")
def browser(service: Service) -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def person(browser: Browser, service: Service) -> Iterator[Person]:
    with Person(browser, f"{service.url}/ui") as somebody:
        expect(somebody.tab.get_by_text("Talk to rayllm-demo")).to_be_visible()
        somebody.sets("Temperature", "0")
        yield somebody


def test_the_page_is_served_by_the_routers_and_behind_rays_proxy(service: Service) -> None:
    for url in (service.url, service.proxy_url):
        reply = httpx.get(f"{url}/ui")
        assert (reply.status_code, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "default-src 'none'" in reply.headers["content-security-policy"]
        assert httpx.get(f"{url}/ui/none.js").status_code == 404


def test_a_conversation(person: Person) -> None:
    assert person.asks(FRANCE) == PARIS
    assert person.asks("What about Germany?") == "The capital of Germany is Berlin."
    facts = person.tab.locator(".facts").last.inner_text()
    assert facts.startswith("8 tokens · ")
    assert "first after" in facts


def test_an_answer_is_shown_while_it_is_written_and_ends_when_it_is_stopped(person: Person, http: httpx.Client) -> None:
    person.opens("Other fields")
    # It would take the engine minutes.
    person.sets("Request fields (JSON)", '{"ignore_eos": true, "min_tokens": 900, "max_tokens": 900}')
    person.writes(FRANCE)
    expect(person.answer).to_contain_text("The capital of France is Paris.")
    person.button("Stop").click()
    person.waits_for_the_end()
    expect(person.tab.get_by_text("Stopped.", exact=True)).to_be_visible()
    person.goes_to("Models")
    card = person.tab.get_by_role("listitem").filter(has=person.tab.get_by_role("heading", name="rayllm-demo"))
    expect(card).to_contain_text("Running0")


def test_an_answer_is_written_anew(person: Person) -> None:
    assert person.asks(FRANCE) == PARIS
    person.button("Regenerate").click()
    expect(person.tab.get_by_text(PARIS)).to_have_count(1)
    person.waits_for_the_end()
    expect(person.answer).to_have_text(PARIS)
    assert len([url for url in person.asked if url.endswith("/v1/chat/completions")]) == 2


def test_adapters_answer_as_they_were_taught(person: Person) -> None:
    person.tab.get_by_label("Model", exact=True).select_option("rayllm-demo:pirate")
    assert person.asks("What is the capital of Italy?") == "Arrr, the capital of Italy be Rome, matey!"


def test_tools_are_shown_as_they_are_called(person: Person) -> None:
    person.opens("Tools")
    person.sets("Definitions (JSON)", json.dumps([TOOL]))
    person.writes("What's the temperature in Paris?")
    call = person.tab.get_by_role("region", name="Call of get_current_temperature")
    expect(call).to_contain_text('"location": "Paris, France"')
    call.get_by_label("What it returned").fill('{"temperature": 26.1, "unit": "celsius"}')
    person.button("Send the result").click()
    expect(person.answer).to_contain_text("26.1")


def test_structured_output_is_json_of_the_schema(person: Person) -> None:
    schema = {"type": "object", "properties": {"capital": {"enum": ["Paris", "Rome"]}}, "required": ["capital"]}
    person.opens("Structured output")
    person.sets("JSON schema", json.dumps({**schema, "additionalProperties": False}))
    person.writes(FRANCE)
    expect(person.tab.get_by_text("Valid JSON.")).to_be_visible()
    assert json.loads(person.answer.locator("pre").inner_text()) == {"capital": "Paris"}


def test_two_models_side_by_side(person: Person) -> None:
    person.button("Compare").click()
    person.tab.get_by_label("Model 2").select_option("rayllm-demo:pirate")
    person.writes("What is the capital of Italy?")
    one = person.tab.get_by_role("region", name="Conversation with rayllm-demo", exact=True)
    other = person.tab.get_by_role("region", name="Conversation with rayllm-demo:pirate")
    expect(one.locator(".markdown")).to_have_text("The capital of Italy is Rome.")
    expect(other.locator(".markdown")).to_have_text("Arrr, the capital of Italy be Rome, matey!")


@pytest.mark.parametrize("language", ["curl", "Python"])
def test_the_code_that_it_shows_runs(person: Person, language: str) -> None:
    person.opens("More sampling")
    person.sets("Top k", "-1")
    person.sets("System prompt", "It's “so”: answer.")
    person.asks(FRANCE)
    person.button("Show as code").click()
    person.button(language).click()
    person.tab.get_by_role("dialog").get_by_role("button", name="Copy").click()
    code = person.tab.evaluate("navigator.clipboard.readText()")
    assert code == person.tab.locator(".snippet").inner_text()
    command = ["sh", "-c", code] if language == "curl" else [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert ("data: [DONE]" in done.stdout) if language == "curl" else (done.stdout.strip() != ""), done.stdout


def test_where_the_time_went_without_the_rights_of_an_administrator(person: Person) -> None:
    person.asks(FRANCE)
    person.tab.get_by_role("link", name="Where the time went").click()
    expect(person.tab.get_by_text("The service shows its own record to holders of keys")).to_be_visible()
    parts = person.tab.locator(".parts")
    expect(parts).to_contain_text("reading and routing it")
    person.button("Of everyone").click()
    expect(person.tab.get_by_text("This is for administrators, of whom there are none")).to_be_visible()


def test_models_and_their_adapters_are_shown(person: Person) -> None:
    person.goes_to("Models")
    for model in ("rayllm-demo", PLAIN):
        card = person.tab.get_by_role("listitem").filter(has=person.tab.get_by_role("heading", name=model))
        expect(card).to_contain_text("running")
        expect(card).to_contain_text("Replicas1")
    expect(person.tab.get_by_text("shout", exact=True)).to_be_visible()


def test_a_model_that_refuses_a_request_says_why_in_the_chat(person: Person) -> None:
    person.sets("Max tokens", "100000")
    person.writes(FRANCE)
    expect(person.alert).to_contain_text("max_tokens")
    person.sets("Max tokens", "30")
    person.button("Try again").click()
    expect(person.answer).to_have_text(PARIS)
    person.waits_for_the_end()


def test_a_page_of_another_origin_changes_nothing_without_keys(
    browser: Browser, service: Service, surface: Service
) -> None:
    """No reply is for such a page, but the request itself would cost the engine its time.

    Chromium lets no page of another network ask a loopback address, so the page is of this machine too.
    """
    url = f"{surface.url}/v1/embeddings"

    def refused() -> float:
        lines = httpx.get(f"{surface.url}/metrics").text.splitlines()
        counts = [line for line in lines if line.startswith("rayllm_refused_total{") and "permission_denied" in line]
        return sum(float(line.rpartition(" ")[2]) for line in counts)

    before = refused()
    page = browser.new_page()
    page.goto(f"{service.url}/v1/models")
    page.evaluate("url => fetch(url, {method: 'POST', mode: 'no-cors', body: '{}'})", url)
    page.close()
    assert refused() == before + 1
    for headers in ({"origin": "null"}, {"origin": "https://example.com"}, {"sec-fetch-site": "cross-site"}):
        assert httpx.post(url, content="{}", headers=headers).status_code == 403


def test_images_go_to_a_model_that_sees_behind_a_route_prefix(browser: Browser, surface: Service) -> None:
    picture = base64.b64decode(images.picture("red").partition(",")[2])
    with Person(browser, f"{surface.url}/ui") as person:
        choice = person.tab.get_by_label("Model", exact=True)
        choice.select_option("extras")
        expect(person.button("Add images")).to_have_count(0)
        choice.select_option("vision")
        person.sets("Temperature", "0")
        files = {"name": "red.png", "mimeType": "image/png", "buffer": picture}
        person.tab.get_by_label("Images", exact=True).set_input_files(files)
        assert "Paris" in person.asks("What is the capital?")
        # Models that do not chat are not offered.
        assert "embedder" not in choice.locator("option").all_inner_texts()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_accessibility_fault_on_the_real_stack(browser: Browser, service: Service, scheme: str) -> None:
    with Person(browser, f"{service.url}/ui", scheme) as person:
        expect(person.tab.get_by_text("Talk to rayllm-demo")).to_be_visible()
        person.asks(FRANCE)
        person.sees_no_accessibility_fault()
        for view in ("Models", "Requests", "Usage", "Keys"):
            person.goes_to(view)
            expect(person.tab.get_by_role("heading", name=view, level=1)).to_be_visible()
            person.sees_no_accessibility_fault()
