#!/usr/bin/env python3
"""Opens pages of `bench diagram --html` in headless Chromium and uses them as a person does.

Expands, searches, hovers, goes everywhere by keyboard and by address, changes colours and fonts, narrows the
window, and fails if what is seen is not what should be. A message in the console or a request for anything
but the file itself is a failure too. Leaves screenshots in a folder.

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

# Very different models: dense, experts, latent attention, encoder, recurrent, numbers of a file.
ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ["llama", "gemma4", "deepseek2", "bert", "mamba2", "falcon-h1", str(ROOT / "models/tiny-chat.gguf")]
WIDE, NARROW = (1440, 1000), (390, 800)
HELPERS = """
globalThis.rectOf = (box) => box.getBoundingClientRect();
globalThis.isWithin = (a, b = { left: 0, top: 0, right: innerWidth, bottom: innerHeight + 1 }) =>
    a.left >= b.left && a.right <= b.right && a.top >= b.top && a.bottom <= b.bottom;
globalThis.inner = () => data.parts.find(part => part.kind === 0 && part.ops.length > 1);
globalThis.count = (what) => all('.view:not([hidden]) ' + what).filter(isShown).length;
globalThis.tooWide = () => all('.view:not([hidden]) g.part').filter(isShown).filter(part => {
    const frame = part.querySelector('rect');
    return frame && all('text', part).some(text => rectOf(text).right > rectOf(part).right + 1);
}).length;
globalThis.contrast = () => {
    const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const parse = css => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = css; canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data]; };
    const light = css => { const [r, g, b] = parse(css).map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
        return .2126 * r + .7152 * g + .0722 * b; };
    return Math.min(99, ...all('g[data-at] text').filter(isShown).map(text => {
        const frame = text.closest('g')?.querySelector('rect');
        const paper = frame ? getComputedStyle(frame).fill : getComputedStyle(document.body).backgroundColor;
        const [a, b] = [light(getComputedStyle(text).fill), light(paper)].sort((x, y) => y - x);
        return (a + .05) / (b + .05); }));
};
"""
KEYS = {"Enter": (13, "\r"), "Escape": (27, None), "Tab": (9, None), " ": (32, " "), "Home": (36, None), "ArrowDown": (40, None)}


class Browser:
    """A headless Chromium with one page."""

    def __init__(self, folder):
        program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
        if not program:
            sys.exit("no Chromium: set CHROMIUM")
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        flags += ["--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={folder}"]
        self.process = subprocess.Popen([program, *flags, "about:blank"], stderr=subprocess.DEVNULL)
        place = pathlib.Path(folder, "DevToolsActivePort")
        for _ in range(300):
            if place.exists() and len(place.read_text().split()) == 2:
                break
            time.sleep(0.1)
        port, path = place.read_text().split()
        self.socket = websocket.create_connection(f"ws://127.0.0.1:{port}{path}", timeout=60)
        self.ids, self.session, self.events = itertools.count(1), None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Log", "Network"]:
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        message = {"id": next(self.ids), "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.socket.send(json.dumps(message))
        while True:
            answer = json.loads(self.socket.recv())
            if answer.get("id") != message["id"]:
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

    def key(self, key):
        code, text = KEYS.get(key, (ord(key.upper()[0]), key))
        common = {"key": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)
        self.settle()

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


class Drive:
    """One page, used."""

    def __init__(self, browser, path, out):
        self.browser, self.path, self.out, self.js = browser, path, out, browser.js
        self.checks = 0

    def check(self, is_right, what):
        self.checks += 1
        if not is_right:
            self.shot("FAILED")
            raise AssertionError(f"{self.path.stem}: {what} (at {self.js('location.hash')})")

    def shot(self, what):
        data = self.browser.call("Page.captureScreenshot", format="png")["data"]
        (self.out / f"{self.path.stem}.{what}.png").write_bytes(base64.b64decode(data))

    def go(self, at):
        self.js(f"go({at})")
        self.browser.settle()

    def focused(self):
        return self.js("document.activeElement?.dataset?.at ?? null")

    def everything(self):
        self.browser.size(*WIDE)
        self.js("0")
        self.browser.open(self.path.as_uri())
        for step in [self.looks, self.hovers, self.expands, self.keyboard, self.searches, self.addresses, self.dark, self.narrow]:
            step()
            complaints = self.browser.complaints()
            self.check(not complaints, f"{step.__name__}: {complaints}")
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
            self.browser.settle()
            self.legible(f"font {font}")
        self.js("all('svg text').forEach(text => text.style.fontFamily = '')")

    def hovers(self):
        self.go("inner().at")
        op = self.js("inner().ops.find(op => op.weights.length).at")
        x, y = self.js(f"(r => [r.left + r.width / 2, r.top + 12])(rectOf(all('[data-at={json.dumps(op)}]').find(isShown)))")
        self.browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.browser.settle()
        told = self.js("by('tip').textContent")
        known = self.js("""(({ part, op }, weight = part.weights[op.weights[0]]) =>
            [part.formula, weight.name, weight.shape, 'line ' + part.source])(places.get(%s))""" % json.dumps(op))
        self.check(all(text in told for text in known), f"of {op} is told `{told}`, not {known}")
        self.check(self.js("isWithin(rectOf(by('tip')))"), "what is told is outside of the window")
        self.shot("hover")
        self.browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
        self.go("'stack'")

    def expands(self):
        self.go("data.kinds[0].at")
        slots = self.js("all('.view:not([hidden]) .step').length")
        for click, opened in [(".fold", 1), ("[data-fold=all]", slots), ("[data-fold=none]", 0)]:
            self.js(f"document.querySelector('.view:not([hidden]) {click}').click()")
            self.browser.settle()
            self.check(self.js("count('.opened')") == opened, f"{click}: not {opened} slots are open")
            self.check(self.js("count('.closed')") == slots - opened, f"{click}: a slot is shown twice or not at all")
            self.check(self.spine(), "the hidden state's line is broken")
            self.legible(click)
            self.shot(f"layer.{opened}")
        self.go("'stack'")

    def spine(self):
        """Whether the hidden state goes through all pictures of the layer without a gap, at one place."""
        return self.js("""(() => {
            const lines = all('.view:not([hidden]) .spine').filter(isShown).map(rectOf);
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
        seen = {self.focused()}
        for _ in range(30):
            self.browser.key("ArrowDown")
            seen.add(self.focused())
        self.check(None not in seen and len(seen) >= min(4, self.js("boxes().length")), f"arrows reach {seen}")
        part = self.js("inner().at")
        self.js(f"focusOn(boxOf(places.get({json.dumps(part)})))")
        for key, level in [("Enter", "layer"), (" ", "layer"), ("Enter", "layer"), ("Enter", "block"), ("Escape", "layer"), ("Escape", "stack")]:
            self.browser.key(key)
            at = (self.js("document.documentElement.dataset.level"), self.focused())
            self.check(at == (level, part), f"{key} leads to {at}")
            if level == "block":
                self.shot("block")

    def searches(self):
        weight = self.js("data.parts.find(part => part.kind === 0 && part.weights.length > 1).weights[1]")
        self.browser.key("/")
        self.browser.call("Input.insertText", text=weight["name"])
        self.browser.settle()
        self.shot("search")
        self.browser.key("Enter")
        self.check(self.js("address()") == weight["at"], f"Enter does not go to {weight['at']}")
        self.check(weight["name"] in self.js("by('panel').querySelector('.marked').textContent"), "the weight is not marked")
        line = self.js("document.querySelector('.line[aria-current]')?.textContent ?? ''")
        self.check(line == self.js("data.definition.text.split('\\n')[here.part.source - 1]"), f"line `{line}` is marked")
        for word, n in [("norm", 1), ("zzqx", 0)]:
            self.js(f"by('query').value = '{word}'; typed()")
            self.check(self.js("found.length") >= n and (n or self.js("found.length") == 0), f"search for {word}")
        self.js("by('query').value = ''; typed(); go('stack')")
        self.browser.settle()

    def addresses(self):
        """Every name leads to a picture with a box that is seen, and to what is told of it."""
        wrong = self.js("""(async () => { const wrong = [];
            for (const at of places.keys()) {
                show(at, true);
                const box = boxOf(here) ?? document.querySelector('.view:not([hidden]) .kindhead, .view:not([hidden]) .whole');
                const [pane, rect] = [rectOf(by('stage')), box && rectOf(box)];
                const meets = rect && rect.width > 4 && rect.height > 4 && rect.left < pane.right && rect.right > pane.left
                    && rect.top < pane.bottom && rect.bottom > pane.top;
                const told = !here.part || (document.querySelector('#panel .formula') && (!here.part.source || document.querySelector('.line[aria-current]')));
                if (here.at !== at || !meets || !told) wrong.push(at);
            }
            show('stack', false);
            return wrong; })()""")
        self.check(wrong == [], f"addresses that lead nowhere: {wrong}")
        self.js("location.hash = 'nothing.like.this'")
        self.browser.settle()
        self.check("nothing.like.this" in self.js("by('say').textContent"), "an unknown address is not told")
        self.go("'stack'")

    def dark(self):
        self.go("inner().at")
        for is_dark in [False, True]:
            if is_dark:
                self.browser.key("d")
            self.check(self.js("isDark()") == is_dark, "d does not change the colours")
            ratio = self.js("contrast()")
            self.check(ratio >= 4.5, f"contrast {ratio:.2f}, dark: {is_dark}")
        self.shot("block.dark")
        self.browser.open(self.path.as_uri())
        self.check(self.js("isDark()"), "dark is forgotten")
        self.browser.key("d")

    def narrow(self):
        self.browser.size(*NARROW)
        for at in ["'stack'", "data.kinds[0].at", "inner().at"]:
            self.go(at)
            self.legible("narrow")
            self.check(self.js("document.documentElement.scrollWidth <= innerWidth"), f"narrow {at}: wider than the window")
            seen = self.js("[by('stage'), by('panel')].map(rectOf).every(r => isWithin(r) && r.height > 110 && r.width > 300)")
            self.check(seen, f"narrow {at}: picture or details have no room")
            self.shot(f"narrow.{self.js('document.documentElement.dataset.level')}")
        self.browser.size(*WIDE)
        self.go("'stack'")


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
        for path in [path for what in args.what for path in pages(args.bench, what, out)]:
            try:
                print(f"{path.stem}: {Drive(browser, path, out).everything()} checks, {path.stat().st_size} bytes", flush=True)
            except (AssertionError, RuntimeError, TypeError) as e:
                failures += 1
                browser.events.clear()
                print(f"FAILED {path.stem}: {e}", flush=True)
        browser.process.terminate()
        browser.process.wait(20)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
