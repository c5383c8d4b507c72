#!/usr/bin/env python3
"""Opens pages of `bench diagram --html` in headless Chromium and uses them as a person does.

Expands, searches, hovers, goes everywhere by keyboard and by address, turns colours, narrows the window,
and fails if what is seen is not what should be: visible rectangles, computed styles, texts. A message in
the console or a request for anything but the file itself is a failure too. Leaves screenshots in a folder.

Speaks the DevTools protocol; needs scripts/requirements-page.txt and a Chromium (CHROMIUM, else the PATH).
"""

import argparse
import base64
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import websocket

# Very different models: dense, experts beside a network, latent attention, encoder, recurrent, numbers of a file.
ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ["llama", "gemma4", "deepseek2", "bert", "mamba2", "falcon-h1", str(ROOT / "models/tiny-chat.gguf")]
WIDE, NARROW = (1440, 1000), (390, 800)
# What checks say in the page: a rectangle, whether it is within another or the window.
HELPERS = """
globalThis.rectOf = (box) => box.getBoundingClientRect();
globalThis.isWithin = (a, b = { left: 0, top: 0, right: innerWidth, bottom: innerHeight + 1 }) =>
    a.left >= b.left && a.right <= b.right && a.top >= b.top && a.bottom <= b.bottom;
globalThis.isDarkPaper = () => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).every(v => v < 60);
globalThis.inner = () => data.parts.find(part => part.kind === 0 && part.ops.length > 1);
"""
KEYS = {
    "Enter": (13, "\r"), "Escape": (27, None), "Tab": (9, None), " ": (32, " "), "Home": (36, None), "End": (35, None),
    "ArrowLeft": (37, None), "ArrowUp": (38, None), "ArrowRight": (39, None), "ArrowDown": (40, None),
}


class Browser:
    """A headless Chromium with one page."""

    def __init__(self, folder):
        program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
        if not program:
            sys.exit("no Chromium: set CHROMIUM")
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        flags += ["--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={folder}"]
        self.process = subprocess.Popen([program, *flags, "about:blank"], stderr=subprocess.DEVNULL)
        port = self.port(pathlib.Path(folder, "DevToolsActivePort"))
        self.socket = websocket.create_connection(f"ws://127.0.0.1:{port[0]}{port[1]}", timeout=60)
        self.ids = itertools.count(1)
        self.session = None
        self.events = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Log", "Network"]:
            self.call(f"{domain}.enable")

    @staticmethod
    def port(path):
        for _ in range(300):
            if path.exists() and len(path.read_text().split()) == 2:
                return path.read_text().split()
            time.sleep(0.1)
        sys.exit("Chromium did not start")

    def call(self, method, **params):
        number = next(self.ids)
        message = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.socket.send(json.dumps(message))
        while True:
            answer = json.loads(self.socket.recv())
            if answer.get("id") != number:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                return answer["result"]

    def js(self, expression):
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def settle(self):
        """Waits until two frames were drawn."""
        self.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def open(self, url):
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)
        for _ in range(200):
            if self.js("document.documentElement?.classList.contains('ready') ?? false"):
                self.js(HELPERS)
                return self.settle()
            time.sleep(0.05)
        raise RuntimeError(f"{url}: the page did not start")

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.settle()

    def media(self, kind="", **features):
        listed = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", media=kind, features=listed)
        self.settle()

    def key(self, key):
        code, text = KEYS.get(key, (ord(key.upper()[0]), key))
        common = {"key": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)
        self.settle()

    def type(self, text):
        self.call("Input.insertText", text=text)
        self.settle()

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)
        self.settle()

    def click(self, x, y):
        self.mouse("mousePressed", x, y, button="left", clickCount=1)
        self.mouse("mouseReleased", x, y, button="left", clickCount=1)

    def shot(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def complaints(self):
        """What the console said and what was asked of the network since the last call."""
        events, self.events = self.events, []
        out = []
        for event in events:
            params = event.get("params", {})
            if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"):
                out.append(json.dumps(params)[:400])
            url = params.get("request", {}).get("url", "")
            if event.get("method") == "Network.requestWillBeSent" and not url.startswith(("file:", "data:", "about:")):
                out.append(f"asks for {url}")
        return out

    def close(self):
        self.process.terminate()
        self.process.wait(20)


class Drive:
    """One page, used."""

    def __init__(self, browser, path, out):
        self.browser, self.path, self.out = browser, path, out
        self.name = path.stem
        self.checks = 0

    def check(self, is_right, what):
        self.checks += 1
        if not is_right:
            self.browser.shot(self.out / f"{self.name}.FAILED.png")
            at = self.browser.js("location.hash + ' / ' + (document.activeElement?.dataset?.at ?? document.activeElement?.id)")
            raise AssertionError(f"{self.name}: {what} (at {at})")

    def js(self, expression):
        return self.browser.js(expression)

    def shot(self, what):
        self.browser.shot(self.out / f"{self.name}.{what}.png")

    def focused(self):
        return self.js("document.activeElement?.dataset?.at ?? null")

    def level(self):
        return self.js("document.documentElement.dataset.level")

    def middle(self, selector):
        """A point of what a selector finds that is shown and of which nothing else is on top."""
        return self.js("""(() => { for (const box of document.querySelectorAll(%s)) {
            if (!box.getClientRects().length) continue;
            box.scrollIntoView({ block: 'center', inline: 'center' });
            const rect = box.getBoundingClientRect();
            for (const [u, v] of [[.5, .5], [.5, .08], [.1, .08], [.9, .1], [.5, .95]]) {
                const [x, y] = [rect.left + rect.width * u, rect.top + rect.height * v];
                const top = document.elementFromPoint(x, y)?.closest('[data-at],button,a');
                if (top === box) return [x, y, box.dataset.at ?? ''];
            }
        } return null; })()""" % json.dumps(selector))

    def everything(self):
        self.browser.size(*WIDE)
        self.browser.media(prefers_color_scheme="light")
        self.browser.open(self.path.as_uri())
        for step in [self.begins, self.hovers, self.expands, self.keyboard, self.searches, self.helps, self.magnifies,
                     self.addresses, self.dark, self.narrow, self.prints, self.still]:
            step()
            complaints = self.browser.complaints()
            self.check(not complaints, f"{step.__name__}: {complaints}")
        return self.checks

    def begins(self):
        shown = self.js("all('.view').filter(isShown).map(view => view.dataset.view)")
        self.check(shown == ["stack"], f"shows {shown} first")
        self.check(self.js("document.body.scrollWidth <= innerWidth"), "is wider than the window")
        self.legible()
        unnamed = self.js("all('[data-at]').filter(box => !box.getAttribute('aria-label') || !box.getAttribute('role')).length")
        self.check(unnamed == 0, f"{unnamed} boxes without a role or a label")
        self.shot("stack")

    def legible(self):
        small = self.js("""Math.min(...all('svg text, #panel *, .top *').filter(isShown).map(text =>
            parseFloat(getComputedStyle(text).fontSize) * (text.tagName === 'text' ? text.getScreenCTM().a : 1)))""")
        self.check(small >= 10.99, f"text of {small} pixels")

    def hovers(self):
        x, y, at = self.middle("[data-view=stack] g.part[data-at]")
        self.browser.mouse("mouseMoved", x, y)
        self.check(self.js("!by('tip').hidden && isShown(by('tip'))"), f"nothing is told of {at}")
        inside = self.js("isWithin(rectOf(by('tip')))")
        self.check(inside, "what is told is outside of the window")
        self.shot("hover")
        # Of an operation with a weight: its name, shape and line.
        at = self.js("data.parts.find(part => part.kind !== null && part.weights.length && part.ops.length > 1).at")
        self.js(f"go({json.dumps(at)})")
        self.browser.settle()
        op = self.js(f"places.get({json.dumps(at)}).part.ops.find(op => op.weights.length).at")
        x, y, _ = self.middle(f'[data-at="{op}"]')
        self.browser.mouse("mouseMoved", x, y)
        told = self.js("by('tip').textContent")
        known = self.js("""(({ part, op }, weight = part.weights[op.weights[0]]) =>
            [part.formula, weight.name, weight.shape, 'line ' + part.source])(places.get(%s))""" % json.dumps(op))
        missing = [text for text in known if text not in told]
        self.check(not missing, f"of {op} is told `{told}`, without {missing}")
        self.browser.mouse("mouseMoved", 2, 2)
        self.check(self.js("by('tip').hidden"), "what was told stays")
        self.js("go('stack')")
        self.browser.settle()

    def expands(self):
        self.js("go(data.kinds[0].at)")
        self.browser.settle()
        self.shot("layer")
        closed = "all('.view:not([hidden]) .closed').filter(isShown).length"
        opened = "all('.view:not([hidden]) .opened').filter(isShown).length"
        slots = self.js("all('.view:not([hidden]) .step').length")
        self.check(self.js(closed) == slots and self.js(opened) == 0, "slots are not collapsed at first")
        x, y, _ = self.middle(".view:not([hidden]) .fold")
        self.browser.click(x, y)
        self.check(self.js(opened) == 1, "a slot does not expand")
        self.check(self.js("all('.fold[aria-expanded=true]').length") == 1, "a slot does not say that it is expanded")
        self.check(self.spine(), "the stream is broken")
        self.legible()
        x, y, _ = self.middle(".view:not([hidden]) [data-fold=all]")
        self.browser.click(x, y)
        self.check(self.js(opened) == slots, "not all slots expand")
        self.check(self.spine(), "the stream is broken")
        self.js("by('stage').scrollTo(0, 0)")
        self.browser.settle()
        self.shot("expanded")
        x, y, _ = self.middle(".view:not([hidden]) [data-fold=none]")
        self.browser.click(x, y)
        self.check(self.js(closed) == slots, "not all slots collapse")
        self.js("go('stack')")
        self.browser.settle()

    def spine(self):
        """Whether the stream goes through all pictures of the layer without a gap, at one place."""
        return self.js("""(() => {
            const lines = all('.view:not([hidden]) .spine').filter(isShown).map(line => line.getBoundingClientRect());
            const middle = line => line.left + line.width / 2;
            return lines.every((line, n) => !n || (line.top - lines[n - 1].bottom < 1.5
                && Math.abs(middle(line) - middle(lines[n - 1])) < 1)) && lines.length > 2;
        })()""")

    def keyboard(self):
        self.js("document.activeElement.blur()")
        for _ in range(40):
            self.browser.key("Tab")
            if self.focused():
                break
        self.check(self.focused(), "no box is reached by Tab")
        self.browser.key("Home")
        first = self.focused()
        ring = "parseFloat(getComputedStyle(document.activeElement.querySelector('rect,circle,path')).strokeWidth)"
        time.sleep(0.2)
        self.check(self.js(ring) > 2.5, "what is focused is not marked")
        seen = {first}
        for _ in range(30):
            self.browser.key("ArrowDown")
            seen.add(self.focused())
        boxes = self.js("boxes().length")
        self.check(None not in seen and len(seen) >= min(4, boxes), f"arrows reach {seen} of {boxes}")
        # To a block of a layer, and in.
        part = self.js("inner().at")
        self.js(f"focusOn(boxOf(places.get({json.dumps(part)})))")
        self.browser.key("Enter")
        self.check(self.level() == "layer" and self.focused() == part, "Enter does not go to the layer")
        shown = self.js(f"boxOf(places.get({json.dumps(part)})).closest('.opened') !== null")
        self.check(shown, "the block is not expanded")
        self.browser.key(" ")
        self.check(self.js("document.activeElement.closest('.closed') !== null"), "Space does not collapse")
        self.check(self.focused() == part, "the focus is lost in collapsing")
        self.browser.key("Enter")
        self.browser.key("Enter")
        self.check(self.level() == "block" and self.focused() == part, "Enter does not go to the block")
        reached = {self.focused()}
        for key in ["ArrowDown"] * 20 + ["ArrowRight", "ArrowLeft"] * 3 + ["ArrowUp"] * 3:
            self.browser.key(key)
            reached.add(self.focused())
        self.check(len(reached) > 1 and None not in reached, f"arrows reach {reached} in the block")
        self.browser.key("End")
        self.check(self.focused() == self.js("boxes().at(-1).dataset.at"), "End is not the end")
        self.browser.key("Enter")
        marked = self.js("all('.at').filter(isShown).map(box => box.dataset.at)")
        self.check(marked == [self.focused()], f"{marked} is marked")
        self.shot("block")
        self.browser.key("Escape")
        self.check(self.level() == "layer" and self.focused() == part, "Escape does not go to the layer")
        self.browser.key("Escape")
        self.check(self.level() == "stack" and self.focused() == part, "Escape does not go to the stack")

    def searches(self):
        weight = self.js("data.parts.find(part => part.kind === 0 && part.weights.length > 1).weights[1]")
        self.browser.key("/")
        self.check(self.js("document.activeElement.id") == "query", "/ does not search")
        self.browser.type(weight["name"])
        self.check(self.js("all('#found [role=option]').length") >= 1, f"{weight['name']} is not found")
        self.shot("search")
        self.browser.key("Enter")
        self.check(self.js("address()") == weight["at"], f"Enter does not go to {weight['at']}")
        self.check(weight["name"] in self.js("by('panel').querySelector('.marked').textContent"), "the weight is not marked")
        self.check(self.js("isShown(document.activeElement) && document.activeElement.classList.contains('at')"), "its box is not")
        line = self.js("document.querySelector('.line[aria-current]')?.textContent ?? ''")
        want = self.js("data.definition.text.split('\\n')[here.part.source - 1]")
        self.check(line == want, f"line `{line}` is marked, not `{want}`")
        seen = self.js("isWithin(rectOf(document.querySelector('.line[aria-current]')), rectOf(definition.code))")
        self.check(seen, "the marked line is out of sight")
        # A word of a formula; then nothing.
        word = self.js("data.parts.find(part => part.formula).formula.split(' ').sort((a, b) => b.length - a.length)[0]")
        self.browser.key("/")
        self.js("by('query').value = ''")
        self.browser.type(word)
        self.check(self.js("found.length") >= 1, f"`{word}` of a formula is not found")
        before = self.js("by('query').getAttribute('aria-activedescendant')")
        self.browser.key("ArrowDown")
        after = self.js("by('query').getAttribute('aria-activedescendant')")
        self.check(before != after or self.js("found.length") == 1, "arrows do not choose")
        self.js("by('query').value = ''")
        self.browser.type("zzqx")
        self.check(self.js("found.length") == 0 and self.js("by('found').textContent") == "nothing found", "finds what is not there")
        self.browser.key("Escape")
        self.check(self.js("by('found').hidden && document.activeElement !== by('query')"), "Escape does not close the search")
        self.js("by('query').value = ''; go('stack')")
        self.browser.settle()

    def helps(self):
        self.browser.key("?")
        self.check(self.js("by('keys').open"), "? does not help")
        self.shot("help")
        self.browser.key("Escape")
        self.check(not self.js("by('keys').open"), "help stays")

    def magnifies(self):
        width = "all('.view:not([hidden]) svg')[0].getBoundingClientRect().width"
        before = self.js(width)
        self.browser.key("+")
        self.check(self.js(width) > before * 1.1, "+ does not magnify")
        self.browser.key("0")
        self.check(abs(self.js(width) - before) < 1, "0 does not fit")
        self.browser.key("-")
        self.check(self.js(width) < before * 0.9, "- does not make smaller")
        self.browser.key("0")

    def addresses(self):
        """Every name leads to a picture with a box that is seen, and to what is told of it."""
        wrong = self.js("""(async () => { const wrong = [];
            for (const at of places.keys()) {
                show(at, true);
                const box = boxOf(here) ?? document.querySelector('.view:not([hidden]) .kindhead, .view:not([hidden]) .whole');
                const pane = by('stage').getBoundingClientRect();
                const rect = box?.getBoundingClientRect();
                const meets = rect && rect.width > 4 && rect.height > 4 && rect.left < pane.right && rect.right > pane.left
                    && rect.top < pane.bottom && rect.bottom > pane.top;
                const needed = here.part ? ['.formula', '.line[aria-current]'] : [];
                const told = needed.every(part => document.querySelector('#panel ' + part)) || !here.part?.formula;
                const line = !here.part || document.querySelector('.line[aria-current]');
                if (here.at !== at || !meets || !told || !line) wrong.push(at);
            }
            show('stack', false);
            return wrong; })()""")
        self.check(wrong == [], f"addresses that lead nowhere: {wrong}")
        self.js("location.hash = 'nothing.like.this'")
        self.browser.settle()
        self.check("nothing.like.this" in self.js("by('say').textContent"), "an unknown address is not told")
        self.js("history.back()")
        time.sleep(0.2)
        self.js("go('stack')")
        self.browser.settle()

    def contrast(self, selector):
        """The least contrast of texts with the paper behind them, as WCAG counts it."""
        return self.js("""(() => {
            const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
            const parse = css => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = css; canvas.fillRect(0, 0, 1, 1);
                return [...canvas.getImageData(0, 0, 1, 1).data]; };
            const light = css => { const [r, g, b] = parse(css).map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
                return .2126 * r + .7152 * g + .0722 * b; };
            const paper = box => { for (; box; box = box.parentElement) {
                const css = getComputedStyle(box).backgroundColor; if (parse(css)[3] > 0) return css; } return 'white'; };
            const behind = text => { const frame = text.closest('g')?.querySelector('rect');
                return frame ? getComputedStyle(frame).fill : paper(text); };
            const ratios = all(%s).filter(isShown).map(text => {
                const isSvg = text.tagName === 'text';
                const style = getComputedStyle(text);
                const [a, b] = [light(isSvg ? style.fill : style.color), light(isSvg ? behind(text) : paper(text))].sort((x, y) => y - x);
                return (a + .05) / (b + .05); });
            return Math.min(99, ...ratios); })()""" % json.dumps(selector))

    def dark(self):
        self.js("go(inner().at)")
        self.browser.settle()
        for scheme in ["light", "dark"]:
            if scheme == "dark":
                self.browser.key("d")
            self.check(self.js("isDarkPaper()") == (scheme == "dark"), f"{scheme}: the paper is not")
            for selector in ["g[data-at] text", "#panel p, #panel li, #panel a, #panel .line, #panel h3", ".top h1, .top li, .levels a"]:
                ratio = self.contrast(selector)
                self.check(ratio >= 4.5, f"{scheme}: contrast {ratio:.2f} in {selector}")
        self.shot("block.dark")
        self.browser.open(self.path.as_uri())
        self.check(self.js("isDark()"), "dark is forgotten")
        self.shot("stack.dark")
        self.js("go(data.kinds.at(-1).at)")
        self.browser.settle()
        self.js("foldAll(false)")
        self.browser.settle()
        self.shot("layer.dark")
        self.browser.key("d")
        self.check(not self.js("isDark()"), "it stays dark")
        # Without a choice, the system's.
        self.js("localStorage.clear()")
        self.browser.media(prefers_color_scheme="dark")
        self.browser.open(self.path.as_uri())
        self.check(self.js("isDark() && isDarkPaper()"), "the system's choice is ignored")
        self.browser.media(prefers_color_scheme="light")

    def narrow(self):
        self.browser.size(*NARROW)
        for at, what in [("'stack'", "stack"), ("data.kinds[0].at", "layer"), ("inner().at", "block")]:
            self.js(f"go({at})")
            self.browser.settle()
            if what == "layer":
                self.check(self.spine(), "narrow: the stream is broken")
            self.legible()
            self.check(self.js("document.documentElement.scrollWidth <= innerWidth"), f"narrow {what}: wider than the window")
            seen = self.js("[by('stage'), by('panel')].map(rectOf).every(r => isWithin(r) && r.height > 110 && r.width > 300)")
            self.check(seen, f"narrow {what}: picture or details have no room")
            tools = self.js("all('.top button, .top input').filter(isShown).every(box => isWithin(rectOf(box)))")
            self.check(tools, f"narrow {what}: tools outside of the window")
            self.shot(f"narrow.{what}")
        self.browser.key("/")
        self.browser.type("norm")
        inside = self.js("isWithin(rectOf(by('found')))")
        self.check(inside, "narrow: what is found is outside of the window")
        self.browser.key("Escape")
        self.js("by('query').value = ''; go('stack')")
        self.browser.size(*WIDE)

    def prints(self):
        self.browser.media("print")
        hidden = self.js("[document.querySelector('.tools'), document.querySelector('.levels')].every(part => !isShown(part))")
        self.check(hidden, "tools are printed")
        self.check(self.js("isShown(document.querySelector('.whole')) && getComputedStyle(by('stage')).overflow === 'visible'"), "the picture is cut in print")
        self.browser.media("")

    def still(self):
        self.browser.media(prefers_reduced_motion="reduce")
        moving = self.js("all('body *').filter(box => getComputedStyle(box).transitionDuration !== '0s').length")
        self.check(moving == 0, f"{moving} things move though nothing shall")
        self.browser.media(prefers_color_scheme="light")


def pages(bench, what, folder):
    """The pages of a model or of a definition's variants; a page is its own."""
    if what.endswith(".html"):
        return [pathlib.Path(what).resolve()]
    command = [bench, "diagram", what, "--html", "-o", str(folder)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return [pathlib.Path(line) for line in lines]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, help="the program")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for pages and screenshots")
    parser.add_argument("what", nargs="*", help="models, definitions, pages", default=PAGES)
    args = parser.parse_args()
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    failures = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(folder)
        try:
            for what in args.what:
                for path in pages(args.bench, what, out):
                    try:
                        checks = Drive(browser, path, out).everything()
                        print(f"{path.stem}: {checks} checks, {path.stat().st_size} bytes", flush=True)
                    except (AssertionError, RuntimeError, TypeError) as e:
                        failures += 1
                        browser.events.clear()
                        print(f"FAILED {path.stem}: {e}", flush=True)
        finally:
            browser.close()
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
