#!/usr/bin/env python3
"""Opens pages of `bench diagram --html` in headless Chromium and uses them as a person does.

Searches, goes everywhere by keyboard and by address, changes colours and fonts, narrows the window, and fails
if what is seen is not what should be. A message in the console or a request for anything
but the file itself is a failure too. Leaves screenshots in a folder.

Needs scripts/requirements-page.txt and a Chromium (CHROMIUM, else the PATH).
"""

import json
import pathlib
import sys

from playwright.sync_api import Error

from bench_server import BUILT_IN, options, run
from drive import Page, chromium

# Very different models: dense, experts, latent attention, encoder, recurrent, numbers of a file.
PAGES = ["llama", "gemma4", "deepseek2", "bert", "mamba2", "falcon-h1", str(BUILT_IN)]
WIDE, NARROW = {"width": 1440, "height": 1000}, {"width": 390, "height": 800}
HELPERS = """
globalThis.rectOf = (box) => box.getBoundingClientRect();
globalThis.isWithin = (a, b = { left: 0, top: 0, right: innerWidth, bottom: innerHeight + 1 }) =>
    a.left >= b.left && a.right <= b.right && a.top >= b.top && a.bottom <= b.bottom;
globalThis.inside = (is) => [...places.values()].find(({ type, kind, part }) => type === 'part' && kind && is(part)).part;
globalThis.inner = () => inside(part => part.ops.length > 1);
globalThis.layer = () => all('.levels a')[1].hash.slice(1);
globalThis.count = (what) => all(what).filter(isShown).length;
globalThis.tooWide = () => all('.view:not([hidden]) g.part').filter(isShown).filter(part => {
    const frame = part.querySelector('rect');
    return frame && all('text', part).some(text => rectOf(text).right > rectOf(part).right + 1);
}).length;
"""


class Drive(Page):
    """One page, used."""

    def __init__(self, browser, path, out):
        super().__init__(browser.new_page(viewport=WIDE), out, f"{path.stem}.", ("file:", "data:", "about:"))
        self.path = path

    def settle(self):
        """Waits until two frames were drawn."""
        self.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def open(self):
        self.page.goto(self.path.as_uri())
        self.page.wait_for_selector("html.ready")
        self.js(HELPERS)
        self.settle()

    def size(self, size):
        self.page.set_viewport_size(size)
        self.settle()

    def key(self, key):
        self.page.keyboard.press(key)
        self.settle()

    def where(self):
        return f" (at {self.js('location.hash')})"

    def go(self, at):
        self.js(f"go({at})")
        self.settle()

    def focused(self):
        return self.js("document.activeElement?.dataset?.at ?? null")

    def everything(self):
        self.open()
        for step in [self.looks, self.keyboard, self.searches, self.addresses, self.dark, self.narrow]:
            step()
            self.complain(step.__name__)
        return self.checks

    def legible(self, where):
        small = self.js("""Math.min(...all('svg text, #panel *, .top *').filter(isShown).map(text =>
            parseFloat(getComputedStyle(text).fontSize) * (text.tagName === 'text' ? text.getScreenCTM().a : 1)))""")
        self.check(small >= 10.99, f"{where}: text of {small} pixels")
        self.check(self.js("tooWide()") == 0, f"{where}: text runs over its box")

    def looks(self):
        self.check(self.js("all('.view').filter(isShown).map(view => view.dataset.view)") == ["stack"], "the stack is not first")
        self.check(self.js("document.body.scrollWidth <= innerWidth"), "is wider than the window")
        unnamed = self.js("all('[data-at]').filter(box => !box.getAttribute('aria-label') || !box.getAttribute('role')).length")
        self.check(unnamed == 0, f"{unnamed} boxes without a role or a label")
        self.shot("stack")
        for font in ["", "Courier, monospace"]:
            # A reader's font may be wider than any that was thought of.
            self.js(f"all('svg text').forEach(text => text.style.fontFamily = '{font}'); show('stack', false)")
            self.settle()
            self.legible(f"font {font}")
        self.js("all('svg text').forEach(text => text.style.fontFamily = '')")

    def keyboard(self):
        self.js("document.activeElement.blur()")
        for _ in range(40):
            self.key("Tab")
            if self.focused():
                break
        self.check(self.focused(), "no box is reached by Tab")
        self.key("Home")
        seen = {self.focused()}
        for _ in range(30):
            self.key("ArrowDown")
            seen.add(self.focused())
        self.check(None not in seen and len(seen) >= min(4, self.js("boxes().length")), f"arrows reach {seen}")
        part = self.js("inner().at")
        self.js(f"focusOn(boxOf(places.get({json.dumps(part)})))")
        for key, level in [("Enter", "kind"), ("Enter", "part"), ("Escape", "kind"), ("Escape", "stack")]:
            self.key(key)
            at = (self.js("here.type"), self.focused())
            self.check(at == (level, part), f"{key} leads to {at}")
            self.shot(level)

    def searches(self):
        weight = self.js("inside(part => part.weights.length > 1).weights[1]")
        self.key("/")
        self.page.keyboard.insert_text(weight["name"])
        self.settle()
        self.shot("search")
        self.key("Enter")
        self.check(self.js("address()") == weight["at"], f"Enter does not go to {weight['at']}")
        self.check(weight["name"] in self.js("by('panel').querySelector('.marked').textContent"), "the weight is not marked")
        for word, is_found in [("norm", True), ("zzqx", False)]:
            self.js(f"by('query').value = '{word}'; typed()")
            self.check(self.js("count('#found a') > 0") == is_found, f"search for {word}")
        self.js("by('query').value = ''; typed(); go('stack')")
        self.settle()

    def addresses(self):
        """Every name leads to a picture with a box that is seen, and to its details."""
        wrong = self.js("""(async () => { const wrong = [];
            for (const at of places.keys()) {
                show(at, true);
                const box = boxOf(here) ?? document.querySelector('.view:not([hidden]) .kindhead, .view:not([hidden]) .whole');
                const [pane, rect] = [rectOf(by('stage')), box && rectOf(box)];
                const meets = rect && rect.width > 4 && rect.height > 4 && rect.left < pane.right && rect.right > pane.left
                    && rect.top < pane.bottom && rect.bottom > pane.top;
                const isDescribed = !here.part || document.querySelector('#panel .formula');
                if (here.at !== at || !meets || !isDescribed) wrong.push(at);
            }
            show('stack', false);
            return wrong; })()""")
        self.check(wrong == [], f"addresses that lead nowhere: {wrong}")
        self.js("location.hash = 'nothing.like.this'")
        self.settle()
        self.check("nothing.like.this" in self.js("by('say').textContent"), "an unknown address is not reported")
        self.go("'stack'")

    def dark(self):
        self.go("inner().at")
        self.page.emulate_media(color_scheme="dark")
        paper = self.js("getComputedStyle(document.body).backgroundColor")
        self.check(paper == "rgb(18, 22, 29)", f"the dark paper is {paper}")
        self.shot("dark")
        self.page.emulate_media(color_scheme="light")

    def narrow(self):
        self.size(NARROW)
        for at in ["'stack'", "layer()", "inner().at"]:
            self.go(at)
            self.legible("narrow")
            self.check(self.js("document.documentElement.scrollWidth <= innerWidth"), f"narrow {at}: wider than the window")
            seen = self.js("[by('stage'), by('panel')].map(rectOf).every(r => isWithin(r) && r.height > 110 && r.width > 300)")
            self.check(seen, f"narrow {at}: picture or details have no room")
            self.shot(f"narrow.{self.js('here.type')}")
        self.size(WIDE)
        self.go("'stack'")


def pages(bench, what, folder):
    """The pages of a model or of a definition's variants; a page is its own."""
    if what.endswith(".html"):
        return [pathlib.Path(what).resolve()]
    command = [bench, "diagram", what, "--html", "--force", "-o", str(folder)]
    return [pathlib.Path(line) for line in run(command).split()]


def main():
    parser = options(__doc__, None)
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for pages and screenshots")
    parser.add_argument("what", nargs="*", help="models, definitions, pages", default=PAGES)
    args = parser.parse_args()
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    failures = 0
    with chromium() as browser:
        for path in [path for what in args.what for path in pages(args.bench, what, out)]:
            try:
                print(f"{path.stem}: {Drive(browser, path, out).everything()} checks, {path.stat().st_size} bytes", flush=True)
            except (AssertionError, Error) as e:
                failures += 1
                print(f"FAILED {path.stem}: {e}", flush=True)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
