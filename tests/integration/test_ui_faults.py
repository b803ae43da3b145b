"""The page at `/ui` in a real browser, before a fake service: hostile answers, faults, keys, accessibility."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.integration.browser import Person, chromium
from tests.servers.openai import Script, chunk
from tests.servers.page import PageServer

KEY = "sk-rayllm-right"
TEXT = """\
The *capital* is **Paris**, see https://example.com and [the map](https://example.com/map).

# A heading

| city | people |
|:--|--:|
| Paris | 2,102,650 |

1. one
2. two

> a quote

```python
def capital(country: str) -> str:
    return {"France": "Paris"}[country]  # so far
```
"""
ALIEN = "script, img, svg, iframe, object, embed, meta, base, form, input, style, math, [style], [id], [name]"
HOSTILE = [
    "<script>window.harm = 1</script>",
    "<img src=x onerror='window.harm = 1'>",
    "<svg><script>window.harm = 1</script></svg><svg onload='window.harm = 1'>",
    "[link](javascript:window.harm=1) [data](data:text/html,<script>window.harm=1</script>)",
    "![image](https://elsewhere.example/pixel.png) <https://elsewhere.example/>",
    "<iframe srcdoc='<script>parent.harm = 1</script>'></iframe><object data=x></object><embed src=x>",
    "<meta http-equiv=refresh content='0;url=https://elsewhere.example'><base href='https://elsewhere.example/'>",
    "<form action='https://elsewhere.example'><input name=key><button>Send</button></form>",
    "<style>body { display: none }</style><div style='position: fixed; inset: 0'>over everything</div>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=window.harm=1&gt;'>",
    "```html\n</code></pre><script>window.harm = 1</script>\n```",
    '```" onmouseover="window.harm=1\ncode\n```',
    "<a href='https://example.com' target=_self id=app name=harm>clobber</a> <input id=composer>",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def server() -> Iterator[PageServer]:
    with PageServer() as running:
        yield running


@pytest.fixture
def person(browser: Browser, server: PageServer) -> Iterator[Person]:
    with Person(browser, server.page) as somebody:
        yield somebody


def says(server: PageServer, *texts: str, **rest: Any) -> None:
    """Script the next answer: a stream of these texts."""
    events = (chunk(role="assistant", content=""), *(chunk(content=text) for text in texts), chunk("stop"), "[DONE]")
    server.script(Script(events=events, headers={"x-request-id": "r1"}, **rest))


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_answer_does_no_harm(server: PageServer, person: Person, text: str) -> None:
    says(server, f"Before.\n\n{text}", "\n\nAfter.")
    said = person.asks("x")
    assert said.startswith("Before.")
    assert said.endswith("After.")
    person.answer.hover()
    assert person.tab.evaluate("window.harm === undefined")
    assert person.answer.locator(ALIEN).count() == 0
    links = person.answer.locator("a").evaluate_all("all => all.map(a => [a.protocol, a.target, a.rel])")
    assert all(link == ["https:", "_blank", "noopener noreferrer nofollow"] for link in links)
    expect(person.tab.get_by_label("Message", exact=True)).to_be_visible()


def used(key: str, requests: int, prompt: int, cached: int, completion: int) -> dict[str, Any]:
    """A row of `GET /v1/usage`."""
    tokens = {"prompt_tokens": prompt, "cached_tokens": cached, "completion_tokens": completion}
    return {"key": key, "model": "small", "requests": requests, **tokens}


def described(name: str, **fields: Any) -> dict[str, Any]:
    """A key of `GET /v1/keys`."""
    limits = dict.fromkeys(("requests_per_minute", "tokens_per_minute", "tokens_per_day", "max_concurrent"))
    rights = {"models": None, "priority": "standard", "expires": None, "labels": {}, "admin": False}
    return {"object": "key", "name": name, "tenant": name, "status": "active", **limits, **rights, **fields}


def test_an_attack_in_pieces_does_no_harm(server: PageServer, person: Person) -> None:
    says(server, *"Before. <img src=x onerror=window.harm=1><script>window.harm=1</script> After.")
    assert person.asks("x") == "Before. <img src=x onerror=window.harm=1><script>window.harm=1</script> After."
    assert person.tab.evaluate("window.harm === undefined")


def test_what_a_person_writes_and_tools_return_is_text_too(server: PageServer, person: Person) -> None:
    attack = "<img src=x onerror=window.harm=1>"
    call = {"index": 0, "id": "c1", "function": {"name": attack, "arguments": json.dumps({"x": attack})}}
    server.script(Script(events=(chunk(tool_calls=[call]), chunk("tool_calls"), "[DONE]")))
    person.writes(attack)
    expect(person.tab.locator(".asked p")).to_have_text(attack)
    expect(person.tab.locator(".call-name")).to_have_text(attack)
    assert person.tab.evaluate("window.harm === undefined")


def test_a_huge_line_leaves_the_page_usable(server: PageServer, person: Person) -> None:
    says(server, *(["x" * 50_000] * 20))
    person.asks("x")
    expect(person.tab.get_by_text("The answer goes on for 800,000 characters.")).to_be_visible()
    widths = "[document.documentElement, document.querySelector('.pane')].map(each => each.scrollWidth)"
    assert max(person.tab.evaluate(widths)) <= 1360
    person.button("Show all as plain text").click()
    assert len(person.tab.locator("pre.plain").inner_text()) == 1_000_000
    assert person.asks("y") == "It is Paris."


def test_ten_thousand_lines_leave_the_page_usable(server: PageServer, person: Person) -> None:
    says(server, *(f"- line {number}\n" for number in range(10_000)))
    said = person.asks("x")
    assert said.startswith("line 0")
    assert said.endswith("line 9999")
    assert person.asks("y") == "It is Paris."


def test_right_to_left_text_turns_nothing_else_around(server: PageServer, person: Person) -> None:
    says(server, "שלום עולם \u202eabc\n\nLeft to right.")
    person.asks("x")
    directions = person.answer.locator("p").evaluate_all("all => all.map(p => getComputedStyle(p).direction)")
    assert directions == ["rtl", "ltr"]
    foot = person.tab.locator(".foot .facts")
    assert foot.evaluate("each => getComputedStyle(each).direction") == "ltr"


def test_an_answer_comes_in_pieces_and_can_be_stopped(server: PageServer, person: Person) -> None:
    server.script(Script(events=(chunk(content="It is"), chunk(content=" Par")), waits=True))
    person.writes("x")
    expect(person.answer).to_have_text("It is Par")
    expect(person.tab.locator("article")).to_have_attribute("aria-busy", "true")
    person.button("Stop").click()
    person.waits_for_the_end()
    expect(person.tab.get_by_text("Stopped.", exact=True)).to_be_visible()
    assert server.left.wait(10), "the page keeps the request"
    expect(person.answer).to_have_text("It is Par")


def test_where_the_time_went_as_the_browser_has_measured_it(server: PageServer, person: Person) -> None:
    headers = {"x-request-id": "r1", "server-timing": "router;dur=2.5, wait;dur=0.001"}
    server.script(Script(events=(chunk(content="It is"),), headers=headers, waits=True))
    person.writes("x")
    expect(person.answer).to_have_text("It is")
    person.button("Stop").click()
    person.waits_for_the_end()
    person.tab.get_by_role("link", name="Where the time went").click()
    rows = person.tab.locator(".parts tbody th")
    expect(rows).to_have_text(
        ["reading and routing it", "waiting for a replica", "generating", "the rest, until the browser had it all"]
    )


@pytest.mark.parametrize("breaks", [True, False])
def test_a_service_that_goes_away_in_the_middle(server: PageServer, person: Person, breaks: bool) -> None:
    server.script(Script(events=(chunk(content="It is"), chunk(content=" Par")), waits=breaks))
    person.writes("x")
    expect(person.answer).to_have_text("It is Par")
    if breaks:
        server.cut()
    expect(person.alert).to_contain_text("The service went away in the middle of the answer.")
    expect(person.answer).to_have_text("It is Par")
    person.button("Try again").click()
    expect(person.answer).to_have_text("It is Paris.")
    assert server.asked[-1]["messages"] == [{"role": "user", "content": "x"}]


def test_an_error_in_the_stream(server: PageServer, person: Person) -> None:
    error = {"error": {"message": "The engine died.", "type": "x", "param": None, "code": None}}
    server.script(Script(events=(chunk(content="It is"), error)))
    person.writes("x")
    expect(person.alert).to_contain_text("The engine died.")
    expect(person.answer).to_have_text("It is")


def test_a_limit_says_when_to_come_back(server: PageServer, person: Person) -> None:
    body = {"error": {"message": "`alice` may send 5 requests a minute.", "type": "x", "param": None, "code": None}}
    server.script(Script(status=429, body=body, headers={"retry-after": "12"}))
    person.writes("x")
    expect(person.alert).to_have_text(
        "A limit has been reached (429). alice may send 5 requests a minute. Try again in 12 s.Try again"
    )


def test_a_request_that_is_too_large(server: PageServer, person: Person) -> None:
    body = {"error": {"message": "The body is larger than `max_body_bytes`.", "type": "x", "param": None, "code": None}}
    server.script(Script(status=413, body=body))
    person.writes("x")
    expect(person.alert).to_contain_text("The request is too large (413). The body is larger than max_body_bytes.")


def test_a_model_that_is_not_ready_yet(browser: Browser, server: PageServer) -> None:
    server.phases["small"] = "load"
    with Person(browser, server.page) as person:
        expect(person.tab.get_by_text("small: its weights are being loaded")).to_be_visible()
        expect(person.tab.get_by_label("Model", exact=True).locator("option").first).to_have_text("small (starting)")
        server.phases["small"] = "running"
        expect(person.tab.get_by_text("its weights are being loaded")).to_have_count(0)
        assert person.asks("x") == "It is Paris."


def test_a_service_that_stops_and_comes_back(browser: Browser) -> None:
    with PageServer() as server, Person(browser, server.page) as person:
        assert person.asks("x") == "It is Paris."
        person.tab.route("**/v1/**", lambda route: route.abort("connectionrefused"))
        person.writes("y")
        expect(person.alert.last).to_contain_text("does not answer.")
        person.tab.unroute("**/v1/**")
        person.button("Try again").click()
        expect(person.answer).to_have_text("It is Paris.")
        person.waits_for_the_end()


def test_a_key_is_asked_for_and_stays_in_the_tab(browser: Browser) -> None:
    with PageServer(key=KEY) as server, Person(browser, server.page) as person:
        dialog = person.tab.get_by_role("dialog", name="API key")
        dialog.get_by_label("Key").fill("sk-wrong")
        person.button("Use this key").click()
        expect(person.alert).to_contain_text("The service does not accept the key (401). Incorrect API key provided.")
        person.button("Enter a key").click()
        expect(dialog).to_contain_text("The service does not accept the key that is set")
        dialog.get_by_label("Key").fill(KEY)
        person.button("Use this key").click()
        expect(person.alert).to_have_count(0)
        assert person.asks("x") == "It is Paris."
        assert server.got[-1].headers["Authorization"] == f"Bearer {KEY}"
        # In no address, nowhere that outlives the tab, and not in what is copied.
        assert not [url for url in person.asked if KEY in url]
        assert person.tab.evaluate("[localStorage.length, document.cookie, sessionStorage['rayllm.key']]") == [
            0,
            "",
            KEY,
        ]
        person.button("Show as code").click()
        assert "$OPENAI_API_KEY" in person.tab.locator(".snippet").inner_text()
        assert KEY not in person.tab.content()
        person.tab.keyboard.press("Escape")
        # It is kept over a reload, and revoked later.
        person.tab.reload()
        assert person.asks("x") == "It is Paris."
        server.key = "sk-another"
        person.writes("x")
        expect(person.alert.last).to_contain_text("The service does not accept the key (401).")
        person.tab.locator(".answered").last.get_by_role("button", name="Enter a key").click()
        person.button("Forget the key").click()
        assert person.tab.evaluate("sessionStorage['rayllm.key'] === undefined")


def test_settings_that_cannot_be_sent_say_so_where_they_are(server: PageServer, person: Person) -> None:
    person.opens("Tools")
    wrong = {
        "Temperature": ("5", "Temperature must be a number from 0 to 2."),
        "Max tokens": ("1.5", "Max tokens must be a whole number from 1."),
        "Definitions (JSON)": ("[{]", "This is not JSON:"),
    }
    for label, (value, message) in wrong.items():
        field = person.tab.get_by_label(label, exact=True)
        field.fill(value)
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(field).to_have_accessible_description(_beginning(message))
        person.sets("Message", "x")
        expect(person.button("Send")).to_be_disabled()
        field.fill("")
        expect(person.button("Send")).to_be_enabled()
    person.opens("Other fields")
    person.sets("Request fields (JSON)", '{"stream": false}')
    expect(person.tab.get_by_text("The page itself sets stream; leave it out.")).to_be_visible()
    person.sets("Request fields (JSON)", '{"min_tokens": 3}')
    person.asks("x")
    assert server.asked[-1]["min_tokens"] == 3


def _beginning(text: str) -> re.Pattern[str]:
    return re.compile("^" + re.escape(text))


def test_every_setting_is_sent_and_kept_over_a_reload(server: PageServer, person: Person) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    for group in ("More sampling", "Tools", "Structured output"):
        person.opens(group)
    values = {
        "System prompt": "Be brief.",
        "Temperature": "0.5",
        "Top p": "0.9",
        "Max tokens": "50",
        "Seed": "7",
        "Top k": "40",
        "Min p": "0.1",
        "Frequency penalty": "-0.5",
        "Presence penalty": "1",
        "Repetition penalty": "1.1",
        "Stop at": "one\ntwo",
        "Definitions (JSON)": json.dumps(tools),
        "JSON schema": json.dumps(schema),
    }
    for label, value in values.items():
        person.sets(label, value)
    person.tab.get_by_label("Choice").select_option("required")
    person.tab.reload()
    person.asks("x")
    assert server.asked[-1] == {
        "model": "small",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "x"}],
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 50,
        "seed": 7,
        "top_k": 40,
        "min_p": 0.1,
        "frequency_penalty": -0.5,
        "presence_penalty": 1,
        "repetition_penalty": 1.1,
        "stop": ["one", "two"],
        "tools": tools,
        "tool_choice": "required",
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}},
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_images_are_for_models_that_see(browser: Browser, server: PageServer) -> None:
    small, _, little = server.models["data"]
    server.models["data"] = [{**small, "input_modalities": ["text", "image"]}, little]
    with Person(browser, server.page) as person:
        files = person.tab.get_by_label("Images", exact=True)
        files.set_input_files({"name": "huge.png", "mimeType": "image/png", "buffer": bytes(20_000_001)})
        expect(person.alert).to_have_text("huge.png has 20.0 MB; an image may have 20 MB.")
        files.set_input_files({"name": "x.txt", "mimeType": "text/plain", "buffer": b"x"})
        expect(person.alert).to_have_text("x.txt is no PNG, JPEG, WebP or GIF.")
        files.set_input_files({"name": "dot.gif", "mimeType": "image/gif", "buffer": _DOT})
        expect(person.alert).to_have_count(0)
        expect(person.tab.get_by_role("img", name="dot.gif")).to_be_visible()
        person.asks("What is this?")
        image, text = server.asked[-1]["messages"][0]["content"]
        assert image["image_url"]["url"].startswith("data:image/gif;base64,R0lGOD")
        assert text == {"type": "text", "text": "What is this?"}
        person.tab.get_by_label("Model", exact=True).select_option("little")
        expect(person.button("Add images")).to_have_count(0)


_DOT = base64.b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAICRAEAOw==")


def test_it_works_by_keyboard_alone(server: PageServer, person: Person) -> None:
    expect(person.tab.get_by_text("Talk to small")).to_be_visible()
    press = person.tab.keyboard.press
    press("Tab")
    expect(person.tab.get_by_role("link", name="Skip to the content")).to_be_focused()
    press("Enter")
    expect(person.tab.locator("main")).to_be_focused()
    for _ in range(20):
        press("Tab")
        if person.tab.evaluate("document.activeElement.id") == "composer":
            break
    person.tab.keyboard.type("x")
    press("Shift+Enter")
    person.tab.keyboard.type("y")
    press("Enter")
    expect(person.answer).to_have_text("It is Paris.")
    assert server.asked[-1]["messages"][0]["content"] == "x\ny"
    expect(person.tab.get_by_label("Message", exact=True)).to_be_focused()
    expect(person.tab.locator("[role=status].off-screen")).to_have_text("The answer of small is complete.")
    code = person.button("Show as code")
    code.focus()
    press("Enter")
    expect(person.tab.get_by_role("dialog", name="This request as code")).to_be_visible()
    press("Escape")
    expect(code).to_be_focused()


def test_where_the_time_went_by_the_service_and_by_the_browser(server: PageServer, person: Person) -> None:
    says(server, "It is Paris.")
    person.asks("x")
    person.tab.get_by_role("link", name="Where the time went").click()
    expect(person.tab.get_by_text("Measured by the browser, and by what the reply told.")).to_be_visible()
    server.records["r1"] = {
        "id": "r1", "created": 1.0, "key": "alice", "endpoint": "/v1/chat/completions", "model": "small", "adapter": "",
        "status": 200, "error": "", "finish_reason": "stop", "total_s": 2.0, "first_token_s": 1.5,
        "parts": {"wait": 1.5, "decode": 0.5}, "prompt_tokens": 10, "cached_tokens": 0, "completion_tokens": 4,
        "replica": "rep1", "choice": "it is the only replica", "explanation": "it waited for a free slot",
    }  # fmt: skip
    expect(person.tab.get_by_text("it waited for a free slot")).to_be_visible()
    rows = person.tab.locator(".parts tbody tr")
    expect(rows).to_have_text(["waiting for a replica1.50 s75 %", "generating500 ms25 %"])
    person.button("Of everyone").click()
    expect(person.tab.get_by_role("region", name="List of requests").locator("tbody tr")).to_contain_text("alice")


def test_models_replicas_and_usage_are_shown(server: PageServer, person: Person) -> None:
    person.goes_to("Models")
    card = person.tab.get_by_role("listitem").filter(has=person.tab.get_by_role("heading", name="small"))
    expect(card).to_contain_text("Running5")
    expect(card).to_contain_text("Waiting3")
    expect(card).to_contain_text("25 %")
    expect(card.locator("tbody tr").first).to_contain_text("a4")
    # A second look tells the rate: each finds a hundred tokens more.
    expect(card.locator("dd").first).not_to_have_text("0")
    person.goes_to("Usage")
    expect(person.tab.get_by_role("status").filter(has_text="This is for administrators.")).to_be_visible()
    server.usage = [used("alice", 7, 2100, 96, 84), used("bob", 1, 1, 0, 2)]
    person.tab.get_by_label("Day").check()
    expect(person.tab.locator("tfoot")).to_have_text("Total82,1019686")


def test_keys_are_shown_with_what_they_may_do_and_have_used(server: PageServer, person: Person) -> None:
    person.goes_to("Keys")
    expect(person.tab.get_by_role("status").filter(has_text="This is for administrators.")).to_be_visible()
    limits = {"tokens_per_day": 200_000, "max_concurrent": 4}
    server.keys = [
        described("root", admin=True),
        described("alice", tenant="research", models=["small", "small:*"], labels={"team": "search"}, **limits),
        described("bob", status="expired", expires="2026-01-31T00:00:00Z", priority="batch"),
    ]
    server.usage = [used("alice", 7, 2100, 96, 84)]
    # A page that was refused asks rarely.
    person.tab.reload()
    rows = person.tab.get_by_role("region", name="List of keys").locator("tbody tr")
    expect(rows).to_have_text(
        [
            "rootactive administratorrootallnonestandard–0",
            "aliceactive researchsmall, small:*200,000 tokens/day, 4 at oncestandardteam=search2,184",
            "bobexpired until 2026-01-31 00:00 UTCboballnonebatch–0",
        ]
    )
    person.sets("Find", "team=search small")
    expect(rows).to_have_count(1)
    person.sets("Find", "nobody")
    expect(person.tab.get_by_text("There are no such keys.")).to_be_visible()


def test_a_conversation_is_kept_over_a_reload(server: PageServer, person: Person) -> None:
    assert person.asks("x") == "It is Paris."
    facts = person.tab.locator(".foot .facts").inner_text()
    server.script(Script(status=429, body={"error": {"message": "Too much."}}))
    person.writes("y")
    expect(person.alert).to_contain_text("Too much.")
    server.script(Script(events=(chunk(content="It is"), chunk(content=" Par")), waits=True))
    person.writes("z")
    expect(person.answer).to_have_text("It is Par")
    person.tab.reload()
    expect(person.tab.locator(".asked p")).to_have_text(["x", "y", "z"])
    expect(person.tab.locator(".answered .markdown").first).to_have_text("It is Paris.")
    expect(person.tab.locator(".foot .facts").first).to_have_text(facts)
    expect(person.alert).to_contain_text("Too much.")
    # The answer ended with the page, and the conversation goes on.
    expect(person.answer).to_have_text("It is Par")
    expect(person.tab.get_by_text("Stopped.", exact=True)).to_be_visible()
    assert person.asks("w") == "It is Paris."
    assert [each["content"].strip() for each in server.got[-1].body["messages"][:2]] == ["x", "It is Paris."]
    person.button("New chat").click()
    person.tab.reload()
    expect(person.tab.get_by_text("Talk to small")).to_be_visible()


def test_what_another_version_of_the_page_has_kept_breaks_nothing(server: PageServer, person: Person) -> None:
    person.tab.add_init_script("""sessionStorage['rayllm.conversations'] = '{"panes": [{}]}'""")
    person.tab.reload()
    assert person.asks("x") == "It is Paris."


def test_models_can_be_scrolled_with_the_keyboard_before_their_metrics_are_there(
    browser: Browser, server: PageServer
) -> None:
    with Person(browser, server.page, size=(390, 400)) as person:
        person.tab.route("**/metrics", lambda route: None)
        person.goes_to("Models")
        expect(person.tab.get_by_role("heading", name="little")).to_be_visible()
        person.sees_no_accessibility_fault()


@pytest.mark.parametrize(("size", "scheme"), [((1360, 860), "light"), ((390, 800), "dark")])
def test_no_view_has_an_accessibility_fault(
    browser: Browser, server: PageServer, scheme: str, size: tuple[int, int]
) -> None:
    server.usage = [used("alice", 7, 2100, 96, 84)]
    server.keys = [described("alice"), described("bob", status="expired", expires="2026-01-31T00:00:00Z")]
    server.phases["little"] = "load"
    with Person(browser, server.page, scheme, size) as person:
        expect(person.tab.get_by_text("Talk to small")).to_be_visible()
        person.sees_no_accessibility_fault()
        if size[0] < 1000:
            expect(person.tab.get_by_role("complementary", name="Settings")).to_have_count(0)
        else:
            for group in ("More sampling", "Tools", "Structured output", "Other fields"):
                person.opens(group)
            person.sets("Temperature", "9")
            person.sees_no_accessibility_fault()
            person.sets("Temperature", "")
        says(server, TEXT)
        person.asks("x")
        call = {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": "{}"}}
        server.script(Script(events=(chunk(reasoning="Hm."), chunk(tool_calls=[call]), chunk("tool_calls"), "[DONE]")))
        person.writes("y")
        person.waits_for_the_end()
        server.script(Script(status=429, body={"error": {"message": "Too much."}}))
        person.sees_no_accessibility_fault()
        person.button("Compare").click()
        person.writes("z")
        person.waits_for_the_end()
        person.sees_no_accessibility_fault()
        person.button("Show as code").click()
        person.sees_no_accessibility_fault()
        person.tab.keyboard.press("Escape")
        for view in ("Models", "Requests", "Usage", "Keys"):
            person.goes_to(view)
            expect(person.tab.get_by_role("heading", name=view, level=1)).to_be_visible()
            person.sees_no_accessibility_fault()
            assert person.tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
        person.tab.get_by_role("button", name="API key").click()
        person.sees_no_accessibility_fault()
