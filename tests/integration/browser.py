"""A person at the page at `/ui`, in a real browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, expect, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_OPTIONS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Chromium refuses its sandbox to root.
    *(["--no-sandbox"] if os.geteuid() == 0 else []),
)
# Milliseconds until something has to be there.
_PATIENCE = 30_000


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window; the test is skipped where there is none."""
    path = next((found for name in _NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("needs Chromium: apt install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_OPTIONS))
        yield browser
        browser.close()


class Person:
    """Somebody with a tab of their own. A context manager: the tab may show no error of the page's in the end.

    Args:
        browser: the browser.
        url: the page's address.
        scheme: `light` or `dark`.
        size: of the tab, in pixels.
    """

    def __init__(self, browser: Browser, url: str, scheme: Any = "light", size: tuple[int, int] = (1360, 860)) -> None:
        self._context = browser.new_context(color_scheme=scheme, viewport={"width": size[0], "height": size[1]})
        self._context.set_default_timeout(_PATIENCE)
        self._context.grant_permissions(["clipboard-read", "clipboard-write"])
        expect.set_options(timeout=_PATIENCE)
        self.tab: Page = self._context.new_page()
        self.errors: list[str] = []
        self.asked: list[str] = []
        """The address of each request of the page's."""
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("console", self._note)
        self.tab.on("request", lambda request: self.asked.append(request.url))
        self._url = url

    def __enter__(self) -> Self:
        self.tab.goto(self._url)
        return self

    def __exit__(self, *unused: object) -> None:
        self._context.close()
        origin = self._url.removesuffix("/ui")
        elsewhere = [url for url in self.asked if not url.startswith((origin, "data:", "blob:"))]
        assert (self.errors, elsewhere) == ([], [])

    def _note(self, message: ConsoleMessage) -> None:
        # The browser itself reports replies that are errors.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.errors.append(message.text)

    def goes_to(self, view: str) -> None:
        """Choose a view by its name."""
        self.tab.get_by_role("navigation").get_by_role("link", name=view).click()

    def writes(self, text: str) -> None:
        """Send a message, as soon as the page has the models it can be sent to."""
        box = self.tab.get_by_label("Message", exact=True)
        box.fill(text)
        expect(self.button("Send")).to_be_enabled()
        box.press("Enter")

    def asks(self, text: str) -> str:
        """Send a message, and wait until it is answered; returns the answer as it reads."""
        self.writes(text)
        self.waits_for_the_end()
        return self.answer.inner_text()

    def waits_for_the_end(self) -> None:
        """Wait until no answer is being written."""
        expect(self.tab.locator("article[aria-busy=true]")).to_have_count(0)
        expect(self.button("Send")).to_be_visible()

    @property
    def answer(self) -> Locator:
        """What the model has written last."""
        return self.tab.locator(".answered").last.locator(".markdown")

    @property
    def alert(self) -> Locator:
        """What is wrong, as the page says it."""
        return self.tab.get_by_role("alert")

    def button(self, name: str) -> Locator:
        """A button by its name."""
        return self.tab.get_by_role("button", name=name, exact=True)

    def opens(self, group: str) -> None:
        """Open a group of settings."""
        self.tab.locator("summary", has_text=group).click()

    def sets(self, label: str, value: str) -> None:
        """Fill a setting."""
        self.tab.get_by_label(label, exact=True).fill(value)

    def sees_no_accessibility_fault(self) -> None:
        """Check what the tab shows by axe's rules. https://github.com/dequelabs/axe-core"""
        found = Axe().run(self.tab)
        assert found.violations_count == 0, found.generate_report()
