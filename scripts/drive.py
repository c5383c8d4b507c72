"""What the scripts that use pages in headless Chromium share: the browser, waiting, checks and screenshots.

Needs scripts/requirements-page.txt and a Chromium (CHROMIUM, else the PATH).
"""

import contextlib
import os
import shutil

from playwright.sync_api import sync_playwright


@contextlib.contextmanager
def chromium():
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


class Page:
    """A page that is used; `name` begins those of its screenshots.

    Messages in its console of these `kinds` (none: all) and requests that do not begin with one of `allowed` are complaints.
    """

    def __init__(self, page, out, name, allowed, kinds=None, timeout=60_000):
        self.page, self.out, self.name, self.allowed = page, out, name, allowed
        self.checks, self.complaints = 0, []
        page.set_default_timeout(timeout)
        page.on("console", lambda message: (not kinds or message.type in kinds) and self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self.asked)

    def asked(self, request):
        if not request.url.startswith(self.allowed):
            self.complaints.append(f"asks for {request.url}")

    def js(self, expression, *arguments):
        """The value of an expression in the page."""
        return self.page.evaluate(expression, *arguments)

    def check(self, is_right, what):
        self.checks += 1
        if not is_right:
            self.shot("FAILED")
            raise AssertionError(f"{what}{self.where()}")

    def where(self):
        """What a failure says in addition."""
        return ""

    def shot(self, what):
        # Pictures are of the state after animations.
        self.page.wait_for_timeout(150)
        self.page.screenshot(path=self.out / f"{self.name}{what}.png")

    def complain(self, step):
        self.check(not self.complaints, f"{step}: {self.complaints}")
