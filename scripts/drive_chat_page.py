#!/usr/bin/env python3
"""Opens the page of `bench serve` in headless Chromium and uses it as a person does.

Chats, looks at alternatives and continues from one, folds reasoning, calls a tool, watches text diffusion, stops,
edits, walks among versions, finds, renames, deletes, exports and imports conversations, comes back after a reload, works in
two tabs and in a browser that keeps nothing, attaches files, uses MCP servers here and elsewhere, loads and unloads a
model, enters an API key, goes without a mouse, narrows the window, changes colours, reads hostile answers, and fails if
what is seen is not what should be. An error in the console or a request to another origin is a failure too. Leaves screenshots in a folder.

Needs scripts/requirements-page.txt and a Chromium (CHROMIUM, else the PATH).
"""

import contextlib
import http.server
import json
import pathlib
import re
import shutil
import sys
import tempfile
import threading

from playwright.sync_api import Error, expect

from bench_server import BUILT_IN, ROOT, Server, options, run
from drive import Page, chromium

WIDE, NARROW = {"width": 1280, "height": 860}, {"width": 320, "height": 640}
# Lines of script without empty ones and comments.
MOST_LINES = 3190
# As models write calls, and with a block of reasoning that the prompt begins.
CALLS = (
    '{% if m.tool_calls %}{% for t in m.tool_calls %}{% set c = t.function %}<tool_call>\n{"name": "{{ c.name }}", '
    '"arguments": {{ c.arguments | tojson }}}\n</tool_call>{% endfor %}{% endif %}'
)
MESSAGES = "{% for m in messages %}<|im_start|>{{ m.role }}\nTHOUGHTS{{ m.content }}" + CALLS + "<|im_end|>\n{% endfor %}"
THOUGHTS = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
ASKED = "{% if add_generation_prompt %}<|im_start|>assistant\nSTART{% endif %}"
TEMPLATES = {
    "tiny-tools": MESSAGES.replace("THOUGHTS", "") + ASKED.replace("START", ""),
    "tiny-thinks": MESSAGES.replace("THOUGHTS", THOUGHTS) + ASKED.replace("START", "<think>\n"),
}
TOOL = [{"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": {
    "type": "object", "additionalProperties": False, "required": ["city"],
    "properties": {"city": {"type": "string", "enum": ["Bonn", "Trier"]}}}}}]
CONTRAST = """() => {
    const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const parse = css => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = css; canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data]; };
    const light = css => { const [r, g, b] = parse(css).map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
        return .2126 * r + .7152 * g + .0722 * b; };
    const paper = box => { for (; box; box = box.parentElement) { const css = getComputedStyle(box).backgroundColor;
        if (parse(css)[3] === 255) return css; } return 'white'; };
    const shown = [...document.querySelectorAll('body *')].filter(box => box.checkVisibility({ opacityProperty: true })
        && !box.closest('.hidden, .skip, :disabled, option, svg') && [...box.childNodes].some(node => node.nodeType === 3 && node.data.trim()));
    const all = shown.map(box => { const [a, b] = [light(getComputedStyle(box).color), light(paper(box))].sort((x, y) => y - x);
        return [(a + .05) / (b + .05), box.outerHTML.slice(0, 90)]; });
    return all.sort((a, b) => a[0] - b[0])[0];
}"""


def serve(bench, *words):
    return Server(bench, "serve", "--threads", "1", "--log-level", "error", *words)


class Drive(Page):
    """The page, used."""

    def __init__(self, browser, url, out, **context):
        page = browser.new_context(viewport=WIDE, **context).new_page()
        super().__init__(page, out, "", (url + "/", f"blob:{url}/"), ("error", "warning"), 20_000)
        self.url = url
        expect.set_options(timeout=20_000)

    def at(self, selector, **more):
        return self.page.locator(selector, **more)

    @classmethod
    def beside(cls, other):
        """Another tab of the same browser."""
        out = cls.__new__(cls)
        Page.__init__(out, other.page.context.new_page(), other.out, "", other.allowed, ("error", "warning"), 20_000)
        out.url = other.url
        return out

    def open(self):
        self.page.goto(self.url)
        self.page.wait_for_selector("html.ready", state="attached")

    def model(self, name):
        self.page.select_option("#model", name)

    def ask(self, text):
        self.page.fill("#input", text)
        self.page.keyboard.press("Enter")
        self.settled()

    def settled(self):
        """Waits until the answer is complete."""
        expect(self.at(".turn.assistant").last).to_be_visible()
        expect(self.at(".turn[aria-busy]")).to_have_count(0)

    def halt(self, n, how="document.getElementById('stop').click()"):
        """Stops the answer under way when it has some tokens; a person's way to the button would be too long for a small model."""
        self.js("""async n => {
            while (!(document.querySelectorAll('.turn[aria-busy] .token').length > n)) await new Promise(requestAnimationFrame);
            HOW; }""".replace("HOW", how), n)
        self.settled()

    def answer(self):
        return self.at(".turn.assistant .text").last.inner_text()

    def reload(self):
        self.page.reload()
        self.page.wait_for_selector("html.ready", state="attached")

    def texts(self):
        """What is seen of the conversation."""
        return self.at(".turn .text").all_inner_texts()

    def titles(self):
        return self.at(".chat .name").all_inner_texts()

    def choose(self, title, what):
        """Chooses from the menu of a conversation in the list."""
        chat = self.at(".chat", has_text=title)
        chat.hover()
        chat.locator("button").click()
        self.js("document.querySelectorAll('.notice').forEach(one => one.remove())")
        self.page.get_by_role("menuitem", name=what).click()
        if what == "Delete":
            expect(self.at(".notice")).to_contain_text("Deleted")

    def notice(self):
        return self.at(".notice span:first-child").last.inner_text()

    def sent(self):
        """The requests for answers from now on, as a list that grows."""
        out = []
        self.page.on("request", lambda request: request.url.endswith("/v1/chat/completions") and out.append(request.post_data_json))
        return out

    def last(self, selector):
        return self.at(".turn.assistant").last.locator(selector)


def fits(drive):
    """Whether nothing is wider than the window, and no button of the head is cut off."""
    ends = drive.js("[...document.querySelectorAll('header button')].map(button => button.getBoundingClientRect().right - innerWidth)")
    return max(ends) <= -8 and drive.js("document.documentElement.scrollWidth <= innerWidth && document.querySelector('.log').scrollWidth <= document.querySelector('.log').clientWidth")


def chats(drive):
    drive.open()
    drive.check(drive.js("document.activeElement.id") == "input", "the message has no focus")
    drive.shot("empty")
    drive.model("tiny-chat")
    drive.page.fill("#p-temperature", "0")
    drive.ask("17+5=?")
    drive.check(drive.answer() == "17+5=22", f"answers {drive.answer()}")
    numbers = drive.last(".numbers").inner_text()
    drive.check(all(word in numbers for word in ["tokens/s", "first after", "prompt "]), numbers)
    drive.check("loaded" in drive.at("#facts").inner_text(), "the state of the model is not shown")
    drive.ask("What is the capital of France?")
    drive.check("Paris" in drive.answer(), f"answers {drive.answer()}")


def alternatives(drive):
    drive.last(".token").first.hover()
    expect(drive.at("#tip")).to_be_visible()
    told = drive.at("#tip").inner_text()
    drive.check("rank 1" in told and "%" in told and drive.at("#tip li").count() == 5, told)
    drive.shot("alternatives")
    other = drive.at("#tip button code").first.inner_text()
    drive.at("#tip button").first.click()
    drive.settled()
    drive.check(drive.answer().startswith(other.replace("␣", " ").strip()), f"{drive.answer()} does not begin with {other}")
    drive.check(drive.at(".turn").count() == 4, "a message is lost")
    # While it answers.
    drive.page.select_option("#p-ignore_eos", "true")
    drive.page.fill("#input", "17+5=?")
    drive.page.keyboard.press("Enter")
    drive.last(".token").nth(2).hover()
    kept = "".join(drive.last(".token").all_inner_texts()[:2])
    other = drive.at("#tip button code").first.inner_text()
    drive.at("#tip button").first.click()
    drive.halt(5)
    begun = kept + other.replace("␣", " ")
    drive.check(drive.answer().startswith(begun), f"{drive.answer()[:40]} does not begin with {begun}")
    drive.at("#reset").click()
    drive.page.fill("#p-temperature", "0")


def stops(drive):
    drive.page.select_option("#p-ignore_eos", "true")
    drive.page.fill("#input", "count from 1 to 100")
    drive.page.keyboard.press("Enter")
    drive.halt(3)
    drive.check("stopped" in drive.last(".numbers").inner_text(), "is not stopped")
    drive.check(drive.at("#send").is_visible() and not drive.at("#stop").is_visible(), "cannot be sent to")
    drive.at("#reset").click()
    drive.page.fill("#p-temperature", "0")


def changes(drive):
    # Answers follow from the whole conversation, and how much was written before a stop from the speed of the machine.
    drive.at("#new").click()
    drive.ask("2+3=?")
    n = drive.at(".turn").count()
    drive.at(".turn.user").last.hover()
    drive.at(".turn.user").last.get_by_role("button", name="Edit").click()
    drive.page.keyboard.press("Control+a")
    drive.page.keyboard.insert_text("3+4=?")
    drive.page.keyboard.press("Control+Enter")
    drive.settled()
    drive.check(drive.answer() == "3+4=7" and drive.at(".turn").count() == n, f"edited: {drive.answer()}")
    drive.last("button:has-text('Regenerate')").click()
    drive.settled()
    drive.check(drive.answer() == "3+4=7" and drive.at(".turn").count() == n, "regenerated otherwise")
    drive.last("button:has-text('Copy')").click()
    expect(drive.at("#say")).to_have_text("Copied")
    expect(drive.last("button.done")).to_have_count(1)
    drive.check(drive.js("navigator.clipboard.readText()") == "3+4=7", "is not copied")
    drive.page.fill("#max_tokens", "2")
    drive.last("button:has-text('Regenerate')").click()
    drive.settled()
    drive.check("maximum length" in drive.last(".numbers").inner_text(), "the maximum has no effect")
    drive.page.fill("#max_tokens", "")
    drive.page.fill("#system", "You are a helpful assistant.")
    sent = drive.sent()
    drive.ask("2+2=?")
    first = sent[0]["messages"][0]
    drive.check(first == {"role": "system", "content": "You are a helpful assistant."}, f"begins with {first}")
    drive.check(sent[0]["temperature"] == 0 and "top_k" not in sent[0], f"sends {sent[0]}")
    drive.page.fill("#system", "")
    drive.page.fill("#p-top_p", "9")
    drive.ask("2+2=?")
    drive.check("from 0 to 1" in drive.last(".fault").inner_text() and len(sent) == 1, "a wrong value is sent")
    drive.page.fill("#p-top_p", "")


def keeps(drive):
    """A conversation is there after a reload, with its tokens, settings and what is typed."""
    drive.at("#new").click()
    drive.page.fill("#system", "You are a helpful assistant.")
    drive.ask("4+5=?")
    had, title = drive.texts(), drive.titles()[0]
    drive.check(title == "4+5=?", f"is called {title}")
    drive.page.fill("#input", "not sent yet")
    drive.page.wait_for_timeout(400)
    drive.reload()
    drive.check(drive.texts() == had, f"{drive.texts()} after a reload, {had} before")
    drive.check(drive.at("#input").input_value() == "not sent yet", "what is typed is lost")
    drive.check(drive.at("#system").input_value() == "You are a helpful assistant.", "the settings are lost")
    drive.check("tokens/s" in drive.last(".numbers").inner_text(), "the numbers are lost")
    drive.last(".token").first.hover()
    expect(drive.at("#tip li")).to_have_count(5)
    drive.page.mouse.move(0, 0)
    drive.page.fill("#input", "")
    drive.page.fill("#system", "")
    drive.at("#new").click()
    drive.check(drive.texts() == [] and drive.at("#system").input_value() == "", "a new chat is not empty")
    drive.page.go_back()
    expect(drive.at(".turn")).to_have_count(2)
    drive.check(drive.texts() == had, "the browser's button does not lead back")
    # In the middle of an answer, of a model that takes its time.
    drive.at("#new").click()
    drive.model("big")
    drive.page.fill("#input", "Go on.")
    drive.page.keyboard.press("Enter")
    drive.last(".token").nth(5).wait_for()
    drive.page.wait_for_timeout(2500)
    drive.check(drive.at("#stop").is_visible(), "the answer is complete already")
    drive.reload()
    n = len(drive.answer())
    drive.check(n > 5, "an answer under way is lost by a reload")
    drive.page.fill("#max_tokens", "5")
    drive.last("button:has-text('Continue')").click()
    expect(drive.last(".numbers")).to_contain_text("5 tokens")
    drive.check(len(drive.answer()) > n, "is not continued")
    drive.page.fill("#max_tokens", "")
    # It goes on while another conversation is open.
    drive.last("button:has-text('Regenerate')").click()
    drive.last(".token").nth(2).wait_for()
    drive.at("#new").click()
    expect(drive.at(".chat .dot")).to_have_count(1)
    drive.check(drive.texts() == [] and not drive.at("#stop").is_visible(), "the answer is shown in another conversation")
    drive.at(".chat a", has_text="Go on.").click()
    expect(drive.at("#stop")).to_be_visible()
    drive.halt(2)
    expect(drive.at(".chat .dot")).to_have_count(0)
    drive.at("#load").click()
    expect(drive.at("#load")).to_have_text("Load")
    drive.at("#new").click()
    drive.model("tiny-chat")


def versions(drive):
    """An edit loses nothing: what was there is another version."""
    drive.at("#new").click()
    drive.ask("1+2=?")
    drive.ask("2+2=?")
    had = drive.texts()
    first = drive.at(".turn.user").first
    first.hover()
    first.get_by_role("button", name="Edit").click()
    drive.page.keyboard.press("Control+a")
    drive.page.keyboard.insert_text("5+4=?")
    drive.page.keyboard.press("Control+Enter")
    drive.settled()
    drive.check(drive.texts() == ["5+4=?", "5+4=9"], f"after an edit: {drive.texts()}")
    drive.check("2 / 2" in first.locator(".versions").inner_text(), "there is no other version")
    drive.shot("versions")
    first.get_by_role("button", name="Previous version").click()
    drive.check(drive.texts() == had, f"{drive.texts()}, {had} before the edit")
    drive.check(drive.js("document.activeElement.closest('.versions') !== null"), "the focus is lost")
    drive.page.keyboard.press("Enter")
    drive.check(drive.texts()[0] == "5+4=?", "cannot be walked by keyboard")
    first.get_by_role("button", name="Previous version").click()
    drive.last("button:has-text('Edit')").click()
    drive.page.keyboard.press("Control+a")
    drive.page.keyboard.insert_text("**four**")
    drive.page.keyboard.press("Control+Enter")
    drive.check(drive.at(".turn").count() == 4 and "four" in drive.answer(), f"an answer is not edited: {drive.texts()}")
    drive.reload()
    drive.check("four" in drive.answer(), "the version that was chosen is forgotten")
    drive.last("button:has-text('Previous version')").click()
    expect(drive.at(".turn .text")).to_have_text(had)


def lists(drive):
    """Conversations are found, renamed, deleted and put back."""
    n = len(drive.titles())
    drive.choose("1+2=?", "Rename")
    drive.page.keyboard.press("Control+a")
    drive.page.keyboard.insert_text("Sums of small numbers")
    drive.page.keyboard.press("Enter")
    expect(drive.at(".chat .name").first).to_have_text("Sums of small numbers")
    drive.page.fill("#search", "small sums")
    expect(drive.at(".chat")).to_have_count(1)
    drive.page.fill("#search", "5+4=9")
    expect(drive.at(".chat small")).to_contain_text("5+4=9")
    drive.shot("search")
    drive.page.fill("#search", "nothing has this")
    expect(drive.at("#list-note")).to_have_text("Nothing is found.")
    drive.at("#search").press("Escape")
    expect(drive.at(".chat")).to_have_count(n)
    had = drive.texts()
    drive.choose("Sums of small numbers", "Delete")
    expect(drive.at(".chat")).to_have_count(n - 1)
    drive.check(drive.texts() == [], "what is deleted is shown")
    drive.at(".notice button", has_text="Undo").click()
    expect(drive.at(".chat")).to_have_count(n)
    expect(drive.at(".turn")).to_have_count(len(had))
    drive.check(drive.texts() == had, "is not put back")
    drive.last(".token").first.wait_for()
    drive.choose("Sums of small numbers", "Delete")
    expect(drive.at(".chat")).to_have_count(n - 1)
    drive.reload()
    drive.check(len(drive.titles()) == n - 1, "is not deleted")


def saved(drive, press):
    """The text of a file that the page saves."""
    with drive.page.expect_download() as given:
        press()
    return pathlib.Path(given.value.path()).read_text()


def imported(drive, content, name="chats.json"):
    drive.js("document.querySelectorAll('.notice').forEach(one => one.remove())")
    drive.page.set_input_files("#import-file", {"name": name, "mimeType": "application/json", "buffer": content.encode()})
    expect(drive.at(".notice")).to_have_count(1)
    return drive.notice()


def exports(drive):
    """What is exported is the same when it comes back; what is hostile is refused."""
    drive.at("#new").click()
    drive.page.fill("#system", "Be exact.")
    drive.ask("6+2=?")
    drive.last("button:has-text('Regenerate')").click()
    drive.settled()
    drive.page.fill("#system", "")
    drive.page.wait_for_timeout(600)
    one = saved(drive, lambda: drive.choose("6+2=?", "Export as JSON"))
    text = saved(drive, lambda: drive.choose("6+2=?", "Export as Markdown"))
    drive.check(text.startswith("# 6+2=?\n\n## You\n\n6+2=?\n\n## tiny-chat\n\n6+2=8"), text)
    everything = saved(drive, drive.at("#export-all").click)
    n = len(drive.titles())
    drive.check(len(json.loads(everything)["conversations"]) == n, "not all are exported")
    drive.check("already" in imported(drive, one), drive.notice())
    drive.choose("6+2=?", "Delete")
    drive.check("1 chat imported" in imported(drive, one), drive.notice())
    again = saved(drive, lambda: drive.choose("6+2=?", "Export as JSON"))
    tree = [json.loads(each)["conversations"] for each in (one, again)]
    drive.check(tree[0] == tree[1] and len(tree[0][0]["messages"]) == 3, f"{tree[1]} after the import, {tree[0]} before")
    drive.check("2 / 2" in drive.last(".versions").inner_text(), "the versions are lost")
    drive.check("already" in imported(drive, everything) and len(drive.titles()) == n, drive.notice())
    # As `bench chat` saves it.
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day."}]
    imported(drive, json.dumps(messages), "a-talk.json")
    expect(drive.at("[aria-current] .name")).to_have_text("a-talk")
    drive.check(drive.titles()[0] == "a-talk" and drive.at("#system").input_value() == "Be kind.", "the file of bench chat is read otherwise")
    n += 1
    whole = json.loads(one)

    def changed(change):
        out = json.loads(one)
        change(out, out["conversations"][0], out["conversations"][0]["messages"])
        return json.dumps(out)

    hostile = {
        "it is not JSON": "<html>",
        "has no format": json.dumps({"conversations": whole["conversations"]}),
        "another version": changed(lambda file, chat, all: file.update(version=2)),
        "is not a list": changed(lambda file, chat, all: chat.update(messages="x")),
        "is no id": changed(lambda file, chat, all: all[0].update(id="__proto__/../x")),
        "in a circle": changed(lambda file, chat, all: (all[0].update(parent=all[1]["id"]))),
        "that is not there": changed(lambda file, chat, all: all[1].update(parent="nobody")),
        "two messages": changed(lambda file, chat, all: all.append(all[0])),
        "neither": changed(lambda file, chat, all: all[0].update(role="system")),
        "is not a text": changed(lambda file, chat, all: all[0].update(content={"toString": 1})),
        "name that no setting has": changed(lambda file, chat, all: chat["settings"].update({"__proto__": "x"})),
        "is no date": changed(lambda file, chat, all: all[0].update(at=1e300)),
    }
    for word, content in hostile.items():
        told = imported(drive, content)
        drive.check(told.startswith("Not imported.") and word in told, f"{word}: {told}")
    drive.check(len(drive.titles()) == n, "something of it is imported")
    drive.shot("refused")
    markup = "<img src=x onerror=alert(1)><script>alert(2)</script> [x](javascript:alert(3))"
    imported(drive, changed(lambda file, chat, all: (chat.update(id="hostile", title=markup), [each.update(content=markup) for each in all])))
    expect(drive.at(".turn")).to_have_count(2)
    drive.page.wait_for_timeout(500)
    bad = drive.js("document.querySelectorAll('.turn img, .turn script, nav li img, .turn [onerror], .turn a[href^=javascript]').length")
    drive.check(bad == 0, f"{bad} pieces of hostile markup")
    drive.choose("<img", "Delete")


def tabs(drive):
    """Two tabs with one conversation, which both add to."""
    drive.at("#new").click()
    drive.ask("3+3=?")
    other = Drive.beside(drive)
    other.page.goto(drive.page.url)
    other.page.wait_for_selector("html.ready", state="attached")
    drive.check(other.texts() == drive.texts(), "another tab shows something else")
    other.ask("4+4=?")
    expect(drive.at(".turn .text")).to_have_text(other.texts())
    drive.check(drive.at(".turn").count() == 4, "a tab is not told of what another adds")
    # Both at once: neither is lost.
    for tab, text in [(drive, "5+5=?"), (other, "6+1=?")]:
        tab.page.fill("#input", text)
    at = drive.js("Date.now() + 800")
    for tab in [drive, other]:
        tab.js("at => { setTimeout(() => document.getElementById('composer').requestSubmit(), at - Date.now()); }", at)
    for tab in [drive, other]:
        expect(tab.at(".turn.user .versions")).to_have_text(re.compile("/ 2"))
    drive.reload()
    seen = drive.texts()[4]
    drive.at(".turn.user .versions button:enabled").click()
    drive.check({seen, drive.texts()[4]} == {"5+5=?", "6+1=?"}, f"{seen} and {drive.texts()[4]}")
    other.choose("3+3=?", "Delete")
    expect(drive.at(".turn")).to_have_count(0)
    drive.check("another tab" in drive.notice(), drive.notice())
    other.complain("the other tab")
    other.page.close()


def attaches(drive):
    """Text files go with a message; others do not."""
    drive.at("#new").click()
    files = [{"name": "sum.txt", "mimeType": "text/plain", "buffer": b"2+2=?\n```\n"}, {"name": "a.bin", "mimeType": "", "buffer": b"\0\xff"}]
    drive.page.set_input_files("#file", files)
    expect(drive.at(".chip")).to_have_count(1)
    drive.check("a.bin is not a text file" in drive.notice(), drive.notice())
    drive.reload()
    expect(drive.at(".chip")).to_have_count(1)
    sent = drive.sent()
    drive.ask("Answer.")
    content = sent[0]["messages"][-1]["content"]
    drive.check(content == "File sum.txt:\n````\n2+2=?\n```\n````\n\nAnswer.", f"sends {content}")
    drive.check(drive.at(".chip").count() == 0, "the file stays")
    drive.at(".file summary").click()
    drive.check("2+2=?" in drive.at(".file pre").inner_text(), "the file is not shown")
    drive.shot("file")


def presets(drive):
    drive.page.fill("#system", "Be brief.")
    drive.page.fill("#p-top_k", "7")
    drive.at("#preset-save").click()
    drive.page.keyboard.insert_text("Short answers")
    drive.page.keyboard.press("Enter")
    expect(drive.at("#preset")).to_have_value("Short answers")
    drive.page.fill("#p-top_k", "")
    drive.page.fill("#system", "")
    expect(drive.at("#preset")).to_have_value("")
    drive.reload()
    drive.page.select_option("#preset", "Short answers")
    drive.check(drive.at("#system").input_value() == "Be brief." and drive.at("#p-top_k").input_value() == "7", "the preset is not used")
    drive.at("#preset-delete").click()
    expect(drive.at("#preset option")).to_have_count(1)
    drive.page.fill("#p-top_k", "")
    drive.page.fill("#system", "")


MARKDOWN = """# Title

| a | b |
|--|--|
| 1 | **2** |

```python
x = 1
```

[out](https://example.org/) and $x^2$
"""


def renders(drive):
    """Markdown is shown as such, and as plain text by a server that does not render it."""
    chat = {"id": "rich", "title": "Rich", "named": True, "messages": [
        {"id": "a", "role": "user", "content": "Show it."}, {"id": "b", "parent": "a", "role": "assistant", "content": MARKDOWN}]}
    file = json.dumps({"format": "inference-lab-bench/conversations", "version": 1, "conversations": [chat]})
    has_route = drive.js("fetch('render', { method: 'POST', headers: { 'content-type': 'application/json' }, body: '{\"text\": \"a\"}' }).then(r => r.ok)")
    if has_route:
        imported(drive, file)
        drive.last("table").wait_for()
        shown = drive.js("[...document.querySelectorAll('.text :is(h1, td strong, pre code, a)')].map(box => box.textContent.trim())")
        drive.check(shown == ["Title", "2", "x = 1", "out"], f"renders {shown}")
        drive.last(".code-box button").click()
        expect(drive.at("#say")).to_have_text("Copied")
        drive.check(drive.js("navigator.clipboard.readText()") == "x = 1", "the code is not copied")
        drive.check(drive.last("a").get_attribute("rel").startswith("noopener"), "the link is not safe")
        drive.shot("markdown")
    else:
        drive.complaints.clear()
        print("renders: the server has no /render; only plain text is tested")
    plain = Drive.beside(drive)
    plain.page.route("**/render", lambda route: route.fulfill(status=404, content_type="application/json", body="{}"))
    plain.open()
    asked = []
    plain.page.on("request", lambda request: request.url.endswith("/render") and asked.append(1))
    plain.model("tiny-chat")
    plain.ask("2+2=?")
    plain.ask("3+3=?")
    plain.check("3+3=" in plain.answer() and plain.last(".token").count() > 0, "there is no plain text")
    plain.page.wait_for_timeout(600)
    plain.check(len(asked) == 1, f"a route that is not there is asked for {len(asked)} times")
    plain.page.close()


def refuses(drive):
    """A browser that keeps nothing, and one that is full: this is said, and the page works."""
    off = "Object.defineProperty(window, 'NAME', { get() { throw new DOMException('', 'SecurityError'); } })"
    full = "IDBObjectStore.prototype.put = () => { throw new DOMException('', 'QuotaExceededError'); }"
    for script, words in [("; ".join(off.replace("NAME", name) for name in ["indexedDB", "localStorage", "sessionStorage"]), "keeps nothing"), (full, "is full")]:
        tab = Drive.beside(drive)
        tab.page.on("dialog", lambda dialog: dialog.accept())
        tab.page.add_init_script(script)
        tab.open()
        tab.model("tiny-chat")
        tab.ask("2+2=?")
        tab.check("2+2=4" in tab.answer(), f"{words}: answers {tab.answer()}")
        expect(tab.at("#trouble")).to_contain_text(words)
        tab.shot(words.replace(" ", "-"))
        tab.at("#new").click()
        tab.ask("3+3=?")
        tab.at(".chat a", has_text="2+2=?").first.click()
        expect(tab.at(".turn.user .text")).to_have_text("2+2=?")
        tab.check("2+2=4" in tab.answer(), f"{words}: the other conversation is lost")
        tab.complain(words)
        tab.page.close()


def many(drive):
    """A conversation of 200 turns, and a list of 300 conversations."""
    def chat(n, name):
        messages = [{"id": f"m{i}", "parent": f"m{i - 1}" if i else None, "role": ["user", "assistant"][i % 2], "at": i,
                     "content": f"Message {i}.\n\n" + "Some words that fill a line. " * 8} for i in range(n)]
        return {"id": name, "title": f"Chat {name}", "named": True, "messages": messages}
    chats = [chat(2, f"few-{i}") for i in range(300)] + [chat(400, "long")]
    told = imported(drive, json.dumps({"format": "inference-lab-bench/conversations", "version": 1, "conversations": chats}))
    drive.check("301 chats imported" in told, told)
    opened = """async () => {
        const link = name => [...document.querySelectorAll('.chat a')].find(one => one.title === `Chat ${name}`);
        link('few-0').click();
        while (document.querySelectorAll('.turn').length !== 2) await new Promise(requestAnimationFrame);
        const start = performance.now();
        link('long').click();
        while (document.querySelectorAll('.turn').length < 400) await new Promise(requestAnimationFrame);
        await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
        return performance.now() - start; }"""
    # Other programs on the machine disturb some of them.
    took, key = min(drive.js(opened) for _ in range(4)), min(typed(drive) for _ in range(4))
    print(f"many: a chat of 200 turns opens in {took:.0f} ms, and a key takes {key:.0f} ms", flush=True)
    drive.check(took < 600 and key < 100, f"opening takes {took:.0f} ms, a key {key:.0f} ms")
    # Away with them.
    drive.js("""() => new Promise(done => { const open = indexedDB.open('inference-lab-bench'); open.onsuccess = () => {
        const change = open.result.transaction(['heads', 'bodies'], 'readwrite');
        for (const table of ['heads', 'bodies']) change.objectStore(table).clear();
        change.oncomplete = () => { open.result.close(); done(); }; }; })""")
    drive.open()
    drive.model("tiny-chat")


def settings(drive):
    listed = drive.js("fetch('v1/sampling').then(r => r.json()).then(all => all.data.map(one => one.name))")
    fields = drive.js("[...document.querySelectorAll('#parameters [id^=p-]')].map(field => field.id.slice(2))")
    drive.check(sorted(listed) == sorted(fields) and fields[0] == "temperature" and len(fields) > 20, f"fields {fields}, not {listed}")
    # What holds where nothing is set: what the model states, loaded or not.
    for model, expected in [("tiny-thinks", ["0.6", "20", "1"]), ("tiny-tools", ["1", "0", "1"])]:
        drive.model(model)
        shown = drive.js("['temperature', 'top_k', 'top_p'].map(name => document.getElementById(`p-${name}`).placeholder)")
        drive.check(shown == expected, f"{model}: the defaults are {expected}, shown {shown}")
    drive.model("tiny-chat")
    drive.page.fill("#find", "mirostat")
    drive.check(drive.at("#parameters > :visible").count() == 3, "the search finds something else")
    drive.page.fill("#find", "")
    drive.page.fill("#p-logit_bias", "5=-100, 7=2.5")
    drive.page.fill("#p-dry_sequence_breakers", "\\n\n:")
    drive.page.fill("#p-samplers", "top_k temperature")
    drive.page.fill("#p-top_k", "3")
    expect(drive.at("#n-set")).to_have_text("5 set")
    drive.reload()
    drive.check(drive.at("#p-logit_bias").input_value() == "5=-100, 7=2.5", "settings are forgotten")
    drive.at("#reset").click()
    drive.page.fill("#p-temperature", "0")


def diagram(drive):
    drive.at("#show-model").click()
    drive.at(".picture img").wait_for()
    size = drive.js("(image => [image.naturalWidth, image.naturalHeight])(document.querySelector('.picture img'))")
    drive.check(min(size) > 200, f"a picture of {size}")
    told = drive.at("#numbers").inner_text()
    drive.check("llama" in told and "Memory" in told, told)
    drive.shot("diagram")
    drive.at("#view").click()
    drive.at(".picture img.layers").wait_for()
    drive.shot("layers")
    drive.page.keyboard.press("Escape")
    expect(drive.at("#dialog")).to_be_hidden()


def values(drive):
    """Pictures of the conversation and of texts; what cannot be drawn is said."""
    # The page was loaded anew.
    drive.ask("2+2=?")
    drive.at("#show-lab").click()
    for kind, fields in [
        ("lens", {}),
        ("attention", {"layers": "1", "heads": "0, 2"}),
        ("attribution", {"layers": "", "text": "2+2=", "token": "4"}),
        ("patch", {"layers": "", "text": "2+2=", "corrupt": "2+3=", "token": "4", "against": "5"}),
    ]:
        drive.page.select_option("#lab-picture", kind)
        for name, text in fields.items():
            drive.page.fill(f"#lab-{name}", text)
        drive.at("#lab-draw").click()
        picture = drive.at(f"#lab-out img[alt^={json.dumps({'lens': 'Logit', 'attention': 'Attention', 'patch': 'Patching', 'attribution': 'Parts'}[kind])}]")
        picture.wait_for()
        drive.check(picture.evaluate("image => image.naturalWidth") > 300, f"{kind}: no picture")
        drive.shot(f"values-{kind}")
    # It follows the colours of the system and the choice of the model.
    paper = """() => { const image = document.querySelector('#lab-out img'), canvas = document.createElement('canvas').getContext('2d');
        if (!image) return null;
        canvas.drawImage(image, 0, 0);
        return canvas.getImageData(2, 2, 1, 1).data[0] > 128 ? 'light' : 'dark'; }"""
    drive.check(drive.js(paper) == "light", "the picture is not light")
    drive.page.emulate_media(color_scheme="dark")
    drive.js(f"async () => {{ while (({paper})() !== 'dark') await new Promise(requestAnimationFrame); }}")
    drive.shot("values-dark")
    drive.page.keyboard.press("Escape")
    drive.model("tiny-thinks")
    drive.page.emulate_media(color_scheme="light")
    drive.at("#show-lab").click()
    drive.at("#lab-out img[alt$='tiny-thinks']").wait_for()
    drive.check(drive.js(paper) == "light" and "tiny-thinks" in drive.at("#lab-title").inner_text(), "is not drawn anew")
    drive.page.select_option("#lab-picture", "routing")
    drive.at("#lab-draw").click()
    expect(drive.at("#lab-out .fault")).to_contain_text("router of experts")
    drive.page.keyboard.press("Escape")
    expect(drive.at("#lab")).to_be_hidden()
    drive.model("tiny-chat")


def reasons(drive):
    drive.model("tiny-thinks")
    drive.at("summary:has-text('Reasoning')").first.click()
    drive.page.fill("#budget", "3")
    drive.ask("What is the capital of Italy?")
    fold = drive.last(".reasoning")
    drive.check(fold.count() == 1 and not fold.evaluate("fold => fold.open"), "reasoning is not folded")
    fold.locator("summary").click()
    drive.check(drive.last(".thoughts").inner_text().strip() != "", "there is no reasoning")
    drive.check(drive.answer().strip() != "", "there is no answer")
    drive.shot("reasoning")
    drive.page.fill("#budget", "")


def calls(drive):
    drive.at("#new").click()
    drive.model("tiny-tools")
    drive.at("summary:has-text('Tools')").click()
    drive.page.fill("#tool-list", "[{")
    drive.check("JSON" in drive.at("#tool-fault").inner_text(), "wrong definitions are not told")
    drive.at("#tool-example").click()
    drive.check("get_weather" in drive.at("#tool-list").input_value() and drive.at("#tool-fault").inner_text() == "", "no example")
    drive.page.fill("#tool-list", json.dumps(TOOL, indent=1))
    drive.page.select_option("#tool-choice", "required")
    drive.ask("What is the weather in Bonn?")
    drive.check(drive.last(".call h2").first.inner_text() == "get_weather", "calls something else")
    given = json.loads(drive.last(".call pre").first.inner_text())
    drive.check(given["city"] in ["Bonn", "Trier"], f"arguments {given}")
    for result in drive.last(".call textarea").all():
        result.fill("Sunny, 21 degrees")
    drive.shot("tool")
    drive.page.select_option("#tool-choice", "auto")
    sent = drive.sent()
    drive.at(".send-results").click()
    expect(drive.at(".turn.assistant")).to_have_count(2)
    drive.settled()
    result = sent[0]["messages"][-1]
    drive.check(result["role"] == "tool" and result["content"] == "Sunny, 21 degrees", f"sends {result}")
    drive.check(drive.at(".fault:visible").count() == 0, "the result is refused")
    drive.page.fill("#tool-list", "")
    drive.at("summary:has-text('Tools')").click()


def mcp(drive):
    """Tools of an MCP server run when a person agrees to the call."""
    ran = []

    def answer(route):
        asked = route.request.post_data_json
        results = {
            "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "Weather", "version": "1"}},
            "tools/list": {"tools": [{**{k: v for k, v in TOOL[0]["function"].items() if k != "parameters"}, "inputSchema": TOOL[0]["function"]["parameters"]}]},
            "tools/call": {"content": [{"type": "text", "text": "Rain, 9 degrees"}]},
        }
        if asked["method"] == "tools/call":
            ran.append(asked["params"])
            drive.check(route.request.headers["mcp-session-id"] == "s1", "the session is lost")
        if "id" not in asked:
            return route.fulfill(status=202)
        message = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": results[asked["method"]]})
        # Both forms of an answer.
        if asked["method"] == "tools/call":
            return route.fulfill(content_type="text/event-stream", body=f"event: message\ndata: {message}\n\n")
        return route.fulfill(content_type="application/json", headers={"mcp-session-id": "s1"}, body=message)

    drive.page.route("**/mcp", answer)
    drive.at("#new").click()
    drive.model("tiny-tools")
    drive.at("summary:has-text('Tools')").click()
    drive.page.fill("#mcp-url", "mcp")
    drive.at("#mcp-add").click()
    expect(drive.at("#mcp-list")).to_contain_text("1 tool")
    drive.page.select_option("#tool-choice", "required")
    drive.ask("What is the weather in Bonn?")
    drive.check(drive.last(".call h2").first.inner_text() == "get_weather" and ran == [], "a call runs unasked")
    drive.page.select_option("#tool-choice", "auto")
    drive.shot("mcp")
    n = drive.last(".call").count()
    sent = drive.sent()
    for _ in range(n):
        drive.last(".call button:has-text('Run')").first.focus()
        drive.page.keyboard.press("Enter")
        drive.page.wait_for_timeout(200)
        drive.check(drive.js("document.activeElement !== document.body"), "the focus is lost")
    expect(drive.at(".turn.assistant")).to_have_count(2)
    drive.settled()
    drive.check(len(ran) == n and ran[0]["arguments"]["city"] in ["Bonn", "Trier"], f"runs {ran}")
    drive.check(sent[0]["messages"][-1]["content"] == "Rain, 9 degrees", f"sends {sent[0]['messages'][-1]}")
    drive.at("#mcp-list button").click()
    drive.at("summary:has-text('Tools')").click()
    drive.page.unroute("**/mcp")


class McpServer(http.server.BaseHTTPRequestHandler):
    """An MCP server at an origin of its own, which may want a token, and may not allow the page."""

    token, allows, seen = "", True, []

    @classmethod
    @contextlib.contextmanager
    def running(cls):
        """Its origin."""
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), cls) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}"
            server.shutdown()

    def log_message(self, *args):
        pass

    def answer(self, status, body=b""):
        self.send_response(status)
        if McpServer.allows:
            for name, value in {"origin": "*", "headers": "authorization, content-type, mcp-protocol-version, mcp-session-id"}.items():
                self.send_header(f"access-control-allow-{name}", value)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_OPTIONS(self):
        self.answer(204)

    def do_GET(self):
        self.answer(405)

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        McpServer.seen.append(self.headers["authorization"])
        if McpServer.token and self.headers["authorization"] != f"Bearer {McpServer.token}":
            return self.answer(401)
        results = {"initialize": {"protocolVersion": "2025-06-18", "serverInfo": {"name": "Elsewhere"}}, "tools/list": {"tools": [{"name": "look_up"}]}}
        if "id" not in asked:
            return self.answer(202)
        return self.answer(200, json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": results[asked["method"]]}).encode())


def elsewhere(drive):
    """MCP servers of other origins: only those that a setting of the server names, with a token if they want one."""
    drive.at("#new").click()
    drive.at("summary:has-text('Tools')").click()
    row, told, token = drive.at("#mcp-list li"), drive.at("#mcp-list small"), drive.at("#mcp-list input[type=password]")
    with McpServer.running() as other:
        drive.allowed += (drive.elsewhere, other)
        drive.page.fill("#mcp-url", f"{other}/mcp")
        drive.page.keyboard.press("Enter")
        expect(told).to_contain_text(f"--page-connect {other}")
        drive.check(McpServer.seen == [], "an origin is asked that is not allowed")
        drive.shot("mcp-forbidden")
        row.locator("button").click()
        drive.check(drive.js("document.activeElement.id") == "mcp-url", "the focus is lost")
    McpServer.allows = False
    drive.page.fill("#mcp-url", f"{drive.elsewhere}/mcp")
    drive.at("#mcp-add").click()
    expect(told).to_contain_text("CORS")
    McpServer.allows, McpServer.token = True, "open-sesame"
    row.locator("[type=checkbox]").uncheck()
    expect(told).to_have_text("off")
    row.locator("[type=checkbox]").check()
    expect(told).to_have_text("Wants a token.")
    token.fill("wrong")
    token.press("Enter")
    expect(told).to_have_text("Refuses the token.")
    token.fill("open-sesame")
    token.press("Tab")
    expect(told).to_have_text("1 tool")
    drive.check(drive.js("document.activeElement.closest('#mcp-list') !== null"), "the focus is lost")
    drive.check(McpServer.seen[-1] == "Bearer open-sesame", f"sends {McpServer.seen[-1]}")
    drive.shot("mcp-token")
    drive.reload()
    drive.at("summary:has-text('Tools')").click()
    expect(told).to_have_text("1 tool")
    drive.ask("2+2=?")
    drive.check("open-sesame" not in saved(drive, drive.at("#export-all").click), "the token is exported")
    row.locator("button").click()
    drive.page.fill("#mcp-url", f"{drive.nowhere}/mcp")
    drive.at("#mcp-add").click()
    expect(told).to_have_text(f"{drive.nowhere} cannot be reached.")
    row.locator("button").click()
    drive.at("summary:has-text('Tools')").click()
    drive.allowed = drive.allowed[:-2]
    drive.complaints.clear()


def pulls(drive):
    """A model is fetched by its name, with progress; a server that cannot says so."""
    events = [{"model": "org/small", "progress": {"loaded_bytes": 5e6 * n, "total_bytes": 1e7, "fraction": n / 2}} for n in range(3)]
    events = [*events, {"success": True, "model": "tiny-tools"}]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    drive.at("summary:has-text('Get a model')").click()
    for status, kind, answer, told in [
        (200, "text/event-stream", body, "org/small is here."),
        (404, "application/json", json.dumps({"error": {"message": "the Hub has no org/small", "param": "model"}}), "the Hub has no org/small"),
    ]:
        drive.page.route("**/models/pull", lambda route: route.fulfill(status=status, content_type=kind, body=answer))
        drive.page.fill("#pull", "org/small")
        drive.at("#pull-start").click()
        expect(drive.at("#pull-note")).to_have_text(told)
        drive.page.unroute("**/models/pull")
    drive.complaints.clear()
    expect(drive.at("#model")).to_have_value("tiny-tools")
    drive.at("summary:has-text('Get a model')").click()
    drive.model("tiny-chat")


def diffuses(drive):
    drive.at("#new").click()
    drive.model("tiny-diffusion")
    drive.page.fill("#max_tokens", "24")
    drive.ask("17+5=?")
    drive.check(drive.answer() == "17+5=22", f"answers {drive.answer()}")
    drive.check("passes" in drive.last(".numbers").inner_text(), drive.last(".numbers").inner_text())
    drive.last("button:has-text('Replay')").click()
    expect(drive.last(".cell")).to_have_count(24)
    drive.last(".cell.fixed").nth(2).wait_for()
    drive.check(drive.last(".cell:not(.fixed)").count() > 0, "is not shown step by step")
    drive.shot("diffusion")
    drive.page.fill("#max_tokens", "")
    drive.model("tiny-chat")


def keyboard(drive):
    """Everything without a mouse."""
    drive.at("#new").click()
    drive.js("document.body.tabIndex = -1, document.body.focus(), document.body.removeAttribute('tabindex')")
    drive.page.keyboard.press("Tab")
    drive.check(drive.js("document.activeElement.className") == "skip", "no link to the message comes first")
    drive.page.keyboard.press("Enter")
    drive.page.keyboard.type("Hello")
    drive.page.keyboard.press("Shift+Enter")
    drive.check(drive.at("#input").input_value() == "Hello\n", "Shift+Enter is no new line")
    drive.page.keyboard.press("Backspace")
    drive.page.keyboard.press("Enter")
    drive.settled()
    for _ in range(12):
        drive.page.keyboard.press("Shift+Tab")
        if drive.js("document.activeElement.className").startswith("token"):
            break
    drive.check(drive.at("#tip").is_visible(), "no token is reached by Tab")
    drive.page.keyboard.press("End")
    drive.page.keyboard.press("ArrowLeft")
    drive.page.keyboard.press("ArrowRight")
    drive.page.keyboard.press("ArrowDown")
    drive.check(drive.js("document.activeElement.closest('#tip') !== null"), "alternatives are not reached by ArrowDown")
    drive.shot("keyboard")
    drive.page.keyboard.press("Escape")
    drive.check(drive.js("document.activeElement.className").startswith("token"), "Escape does not lead back")
    drive.page.keyboard.press("ArrowDown")
    drive.page.keyboard.press("Enter")
    drive.settled()
    drive.check(drive.at(".turn").count() == 2 and drive.js("document.activeElement.id") == "input", "Enter does not continue")
    drive.page.select_option("#p-ignore_eos", "true")
    drive.at("#input").focus()
    drive.page.keyboard.type("count from 1 to 100")
    drive.page.keyboard.press("Enter")
    drive.halt(3, "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true, cancelable: true }))")
    drive.check("stopped" in drive.last(".numbers").inner_text(), "Escape does not stop")
    drive.page.select_option("#p-ignore_eos", "")
    # Nothing takes the focus away.
    focus = "(document.activeElement.title || document.activeElement.className)"
    drive.page.keyboard.press("ArrowUp")
    drive.page.keyboard.press("Escape")
    drive.check(drive.js(focus) == "Edit", f"after an edit is left the focus is on {drive.js(focus)}")
    drive.page.keyboard.press("Enter")
    drive.page.keyboard.press("Control+a")
    drive.page.keyboard.type("2+2=?")
    drive.page.keyboard.press("Control+Enter")
    drive.settled()
    drive.check("turn" in drive.js(focus), f"after an edit the focus is on {drive.js(focus)}")
    drive.at("#input").focus()
    for _ in range(9):
        drive.page.keyboard.press("Shift+Tab")
        if drive.js("document.activeElement.title") == "Regenerate":
            break
    drive.page.keyboard.press("Enter")
    drive.settled()
    drive.check("turn" in drive.js(focus), f"after another answer the focus is on {drive.js(focus)}")
    drive.page.keyboard.press("Control+k")
    drive.page.keyboard.press("Tab")
    drive.page.keyboard.press("Tab")
    drive.page.keyboard.press("Enter")
    drive.page.keyboard.press("End")
    drive.page.keyboard.press("Enter")
    expect(drive.at(".notice")).to_contain_text("Deleted")
    drive.at(".notice button", has_text="Undo").focus()
    drive.page.keyboard.press("Enter")
    expect(drive.at(".notice")).to_have_count(0)
    drive.check("log" in drive.js(focus), f"after a notice the focus is on {drive.js(focus)}")
    drive.at("#input").focus()
    unnamed = drive.js("""[...document.querySelectorAll('button, input, select, textarea, a')].filter(box => box.checkVisibility()
        && !(box.labels?.length || box.ariaLabel || box.textContent.trim())).map(box => box.outerHTML)""")
    drive.check(not unnamed, f"without a name: {unnamed}")


def looks(drive):
    for scheme in ["light", "dark"]:
        drive.page.emulate_media(color_scheme=scheme)
        for size in [WIDE, {"width": 768, "height": 1024}, NARROW]:
            drive.page.set_viewport_size(size)
            drive.at("#new").click()
            drive.page.fill("#p-temperature", "1.2") if size is WIDE else None
            for text in ["What is the capital of France?", "Spell the word garden, and then count from 1 to 12."]:
                drive.ask(text)
            name = f"{size['width']}.{scheme}"
            drive.check(fits(drive), f"{name}: wider than the window")
            drive.check(size is not NARROW or drive.at("#panel").is_hidden(), "settings cover a narrow window")
            worst = drive.js(CONTRAST)
            drive.check(worst[0] >= 4.5, f"{name}: contrast {worst}")
            drive.shot(name)
            if size is not WIDE:
                drive.at("#toggle").click()
                drive.check(fits(drive) and drive.at("#panel").is_visible(), f"{name}: no settings")
                worst = drive.js(CONTRAST)
                drive.check(worst[0] >= 4.5, f"{name}: contrast {worst}")
                drive.shot(f"{name}.settings")
                drive.page.keyboard.press("Escape")
                drive.check(drive.at("#panel").is_hidden(), f"{name}: Escape does not close the settings")
            if size is NARROW:
                drive.last(".token").nth(1).hover()
                box = drive.at("#tip").bounding_box()
                drive.check(box["x"] >= 0 and box["x"] + box["width"] <= 320, f"{name}: alternatives at {box}")
                drive.shot(f"{name}.alternatives")
                drive.page.mouse.move(0, 0)
                drive.at("#show-model").click()
                drive.at(".picture img").wait_for()
                drive.shot(f"{name}.diagram")
                drive.at("#dialog-close").click()
    for width in range(340, 1300, 40):
        drive.page.set_viewport_size({"width": width, "height": 700})
        drive.check(fits(drive), f"{width}: wider than the window")
    drive.page.set_viewport_size(WIDE)


def loads(drive):
    """A model is loaded and unloaded, without a mouse too, in every width and colour."""
    drive.page.set_viewport_size(WIDE)
    drive.page.emulate_media(color_scheme="light")
    drive.at("#new").click()
    drive.model("big")
    load, share = drive.at("#load"), drive.at("#share")
    expect(load).to_have_text("Load")
    drive.check(share.is_hidden(), "something is being loaded")
    # By keyboard: after the list of models.
    drive.at("#model").focus()
    drive.page.keyboard.press("Tab")
    drive.check(drive.js("document.activeElement.id") == "load", "the button does not follow the list")
    drive.js("window.seen = []; new MutationObserver(() => seen.push(document.getElementById('load').textContent))"
             ".observe(document.getElementById('load'), { childList: true, characterData: true, subtree: true })")
    drive.page.keyboard.press("Enter")
    expect(share).to_be_visible()
    expect(load).to_have_text(re.compile("%$"))
    drive.shot("loading")
    drive.page.keyboard.press("Enter")
    expect(load).to_have_text("Unload")
    drive.check(share.is_hidden() and "loaded" in drive.at("#facts").inner_text(), "it is not shown that it is loaded")
    drive.check(drive.js("document.activeElement.id") == "load", "the focus is lost")
    seen = drive.js("seen.filter(text => text.endsWith('%')).map(text => parseInt(text))")
    drive.check(len(seen) > 1 and seen == sorted(seen), f"progress {seen}")
    expect(drive.at("#say")).to_have_text("big is loaded")
    drive.page.keyboard.press("Space")
    expect(load).to_have_text("Load")
    drive.check("not loaded" in drive.at("#facts").inner_text(), "it is not unloaded")
    for size in [WIDE, {"width": 768, "height": 1024}, NARROW]:
        for scheme in ["light", "dark"]:
            drive.page.set_viewport_size(size)
            drive.page.emulate_media(color_scheme=scheme)
            load.click()
            expect(share).to_be_visible()
            drive.page.wait_for_timeout(400)
            name = f"loading.{size['width']}.{scheme}"
            drive.check(fits(drive), f"{name}: wider than the window")
            worst = drive.js(CONTRAST)
            drive.check(worst[0] >= 4.5, f"{name}: contrast {worst}")
            drive.shot(name)
            expect(load).to_have_text("Unload")
            drive.check(fits(drive), f"{name}: wider than the window, loaded")
            load.click()
            expect(load).to_have_text("Load")
    # What a message waits for is told below it, and beside the model.
    drive.page.set_viewport_size(WIDE)
    drive.page.emulate_media(color_scheme="light")
    drive.page.fill("#max_tokens", "4")
    drive.page.fill("#input", "2+2=?")
    drive.page.keyboard.press("Enter")
    expect(drive.last(".foot")).to_contain_text("Loading the model")
    expect(share).to_be_visible()
    drive.shot("loading.message")
    drive.settled()
    drive.check(drive.at(".fault:visible").count() == 0, "the answer fails")
    expect(load).to_have_text("Unload")
    load.click()
    expect(load).to_have_text("Load")
    # A failure is told.
    drive.page.route("**/models/load", lambda route: route.fulfill(
        status=403, content_type="application/json", body='{"error": {"message": "models are managed by others"}}'))
    load.click()
    expect(drive.at("#facts.fault")).to_have_text("models are managed by others")
    drive.shot("loading.refused")
    drive.page.unroute("**/models/load")
    drive.complaints.clear()
    drive.model("tiny-chat")
    expect(drive.at("#facts.fault")).to_have_count(0)
    drive.page.fill("#max_tokens", "")


def calm(drive):
    """Nothing moves where that is not wanted."""
    drive.page.emulate_media(color_scheme="light")
    drive.at("#new").click()
    drive.model("tiny-diffusion")
    drive.page.fill("#max_tokens", "24")
    drive.ask("17+5=?")
    for motion, moves in [("no-preference", True), ("reduce", False)]:
        drive.page.emulate_media(reduced_motion=motion)
        drive.last("button:has-text('Replay')").click()
        drive.last(".cell.fixed").nth(2).wait_for()
        moving = drive.js("document.getAnimations().length")
        drive.check((moving > 0) == moves, f"{moving} animations where motion is {motion}")
    drive.page.fill("#max_tokens", "")


def safe(drive):
    """Text of a message is text, and the policy holds."""
    drive.ask("<img src=x onerror=alert(1)><b>bold</b>")
    drive.check(drive.at(".turn img, .turn b").count() == 0, "text has become markup")
    policy = drive.page.request.get(drive.url).headers["content-security-policy"]
    drive.check("script-src 'self'" in policy and "unsafe" not in policy, policy)


# What a model may write, and what a server that cleans nothing would make of it.
HARMFUL = """<script>hacked = 1</script><img src=x onerror="hacked = 1"><svg onload="hacked = 1"><script>hacked = 1</script></svg>
<a href="java\tscript:hacked=1">a</a> <a href="data:text/html,<script>1</script>">b</a> <a href="//evil.example">c</a> [d](javascript:hacked=1)
[e](data:text/html;base64,PHNjcmlwdD4=) ![f](https://evil.example/x.png) <details open ontoggle="hacked = 1">g</details>
<math href="javascript:hacked=1"><maction actiontype="statusline#http://evil.example"><mi xlink:href="javascript:hacked=1">x</mi></maction></math>
<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror=hacked=1&gt;"></table></mtext></math>
<iframe srcdoc="<script>parent.hacked = 1</script>"></iframe> <base href="https://evil.example/"> <form action="https://evil.example"><button>h</button></form>
<p id="send" style="position:fixed;inset:0" onclick="hacked = 1" tabindex="0">i</p> <input autofocus onfocus="hacked = 1">"""
BAD = """[...document.querySelectorAll('.turn.assistant .text *')].filter(one => ['SCRIPT', 'IMG', 'STYLE', 'IFRAME', 'OBJECT', 'BASE', 'META', 'LINK',
    'FORM', 'maction'].includes(one.tagName) || (one.localName === 'svg' && !one.closest('.code-head')) || [...one.attributes].some(({ name, value }) =>
    /^(on.*|style|id|srcdoc)$/.test(name) || (/^(xlink:)?href$/.test(name) && !/^(https?|mailto):/.test(value)))).map(one => one.outerHTML)"""
LARGE = {
    "a line of 1 MB": "x" * 1_000_000,
    "10 000 quotes": "> " * 10_000 + "deep",
    "nested lists": "\n".join("  " * n + "- a" for n in range(1000)),
    "10 000 rows": "|a|b|\n|--|--|\n" + "|1|2|\n" * 10_000,
    "10 000 braces": "$$" + "{" * 10_000 + "x" + "}" * 10_000 + "$$",
}


def typed(drive):
    """The longest time from a key to the next frame, in milliseconds."""
    return drive.js("""async () => {
        let longest = 0;
        document.getElementById('input').focus();
        for (let n = 0; n < 20; n++) {
            const began = performance.now();
            document.execCommand('insertText', false, 'a');
            await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
            longest = Math.max(longest, performance.now() - began);
        }
        document.execCommand('selectAll');
        document.execCommand('delete');
        return longest; }""")


def hostile(drive):
    """Hostile answers do nothing, also where the server cleans nothing, and the page stays responsive."""
    def answered(content, name):
        chat = {"id": name, "title": name, "named": True, "messages": [
            {"id": "a", "role": "user", "content": "?"}, {"id": "b", "parent": "a", "role": "assistant", "content": content, "reason": "stop"}]}
        imported(drive, json.dumps({"format": "inference-lab-bench/conversations", "version": 1, "conversations": [chat]}))
        drive.last(".block.markdown").wait_for()
        drive.page.wait_for_timeout(300)

    answered(HARMFUL, "harmful-1")
    drive.check(drive.js(BAD) == [], f"after the server: {drive.js(BAD)}")
    drive.page.route("**/render", lambda route: route.fulfill(content_type="application/json", body=json.dumps({"html": HARMFUL})))
    answered(HARMFUL + " again", "harmful-2")
    drive.js("document.querySelectorAll('.turn .text *').forEach(one => { one.focus?.(); one.tagName !== 'A' && one.click?.(); })")
    drive.check(drive.js(BAD) == [] and drive.js("window.hacked") is None, f"before the server: {drive.js(BAD)}")
    drive.page.unroute("**/render")
    for name, content in LARGE.items():
        answered(content, re.sub(r"\W+", "-", name))
        took = typed(drive)
        drive.check(took < 500, f"{name}: a key takes {took:.0f} ms")
    # A fence that never ends, and many short paragraphs, as they come.
    for name, piece in [("fence", "x = 1\n"), ("paragraphs", "So.\n\n")]:
        chunks = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in ["```python\n" if name == "fence" else "", *[piece] * 5000]]
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        drive.page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))
        drive.at("#new").click()
        drive.page.fill("#input", "Go on.")
        drive.page.keyboard.press("Enter")
        took = typed(drive)
        drive.check(took < 500, f"{name}: a key takes {took:.0f} ms")
        drive.settled()
        expect(drive.last(".block.plain")).to_have_count(0)
        drive.check(len(drive.answer()) > 5000 * 3, f"{name}: the answer is not complete")
        drive.page.unroute("**/v1/chat/completions")
    drive.complaints.clear()


def returns(drive):
    """A server that is not there is told, and used when it is back."""
    drive.page.route("**/v1/**", lambda route: route.abort())
    drive.page.goto(drive.url)
    expect(drive.at("#facts.fault")).to_have_text("The server cannot be reached.")
    drive.check(drive.at("#show-lab").is_disabled(), "values of no model")
    drive.page.set_viewport_size(NARROW)
    drive.check(drive.at("#facts").is_visible(), "a narrow window does not tell that there is no server")
    drive.shot("320.gone")
    drive.page.set_viewport_size(WIDE)
    drive.page.unroute("**/v1/**")
    drive.page.wait_for_selector("html.ready", state="attached")
    drive.complaints.clear()
    drive.model("tiny-chat")
    drive.ask("2+2=?")
    drive.check("2+2=4" in drive.answer(), f"answers {drive.answer()}")


def keyed(drive):
    """A server that wants a key: a refusal of the first requests is expected."""
    drive.page.goto(drive.url)
    expect(drive.at("#key")).to_be_focused()
    drive.check("API key" in drive.at("#facts").inner_text(), "is not told that a key is needed")
    drive.shot("key")
    drive.complaints.clear()
    drive.page.keyboard.type("open-sesame")
    drive.page.keyboard.press("Tab")
    drive.page.wait_for_selector("html.ready", state="attached")
    drive.ask("2+2=?")
    drive.check("2+2=4" in drive.answer(), f"answers {drive.answer()}")
    kept = drive.js("[sessionStorage, localStorage].map(store => JSON.stringify({...store}).includes('open-sesame'))")
    drive.check(kept == [True, False], f"the key is kept in {kept}")


STEPS = [chats, alternatives, stops, changes, keeps, versions, lists, exports, tabs, attaches, presets, renders, refuses, many, settings, diagram, values, reasons, calls, mcp, elsewhere, pulls, diffuses, keyboard, safe, hostile, returns, looks, loads, calm]


def models(folder, bench):
    """A folder of models: the built-in ones, one of them with other chat templates, and a large one."""
    sizes = ["block_count=12", "n_embd=768", "n_ff=2048"]
    command = [bench, "synth", "llama", "--vocab", BUILT_IN, "--type", "f16", "-o", folder / "big.gguf"]
    run(command + [part for size in sizes for part in ("--set", size)])
    # So that loading it takes a while.
    (folder / "bench.toml").write_text('[per_model.big]\ntype = "q4_k"\n')
    for name in ["tiny-chat.gguf", "tiny-diffusion.gguf"]:
        shutil.copy(ROOT / "models" / name, folder)
    for name, template in TEMPLATES.items():
        shutil.copytree(ROOT / "models/tiny-chat", folder / name)
        (folder / name / "chat_template.jinja").unlink(missing_ok=True)
        path = folder / name / "tokenizer_config.json"
        config = json.loads(path.read_text())
        path.write_text(json.dumps(config | {"chat_template": template}))
    (folder / "tiny-thinks/generation_config.json").write_text('{"do_sample": true, "temperature": 0.6, "top_k": 20}')
    return folder


def modules():
    """Complains of modules of the page that import each other in a circle, and of too much of them."""
    folder = ROOT / "src/server/page"
    texts = {path.name: path.read_text() for path in folder.glob("*.js")}
    imports = {name: set(re.findall(r"from '\./(.+?)'", text)) for name, text in texts.items()}
    left = dict(imports)
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    lines = sum(bool(line.strip()) and not line.strip().startswith("//") for text in texts.values() for line in text.splitlines())
    if left or lines > MOST_LINES:
        sys.exit(f"FAILED: circles among {sorted(left)}" if left else f"FAILED: the page has {lines} lines of script")
    print(f"modules: {len(texts)}, {lines} lines of code", flush=True)


def main():
    parser = options(__doc__, None)
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for screenshots")
    parser.add_argument("--step", action="append", help="only these steps, after the first")
    args = parser.parse_args()
    modules()
    args.out.mkdir(parents=True, exist_ok=True)
    steps = [step for step in STEPS if not args.step or step is chats or step.__name__ in args.step]
    with chromium() as browser, tempfile.TemporaryDirectory() as folder:
        try:
            folder = models(pathlib.Path(folder), args.bench)
            with McpServer.running() as nowhere:
                pass
            own = ["--models", folder, "--ctx", "4096", "--config", folder / "bench.toml"]
            with McpServer.running() as elsewhere, serve(args.bench, *own, "--page-connect", elsewhere, "--page-connect", nowhere) as server:
                drive = Drive(browser, server.url, args.out, permissions=["clipboard-read", "clipboard-write"])
                drive.elsewhere, drive.nowhere = elsewhere, nowhere
                for step in steps:
                    step(drive)
                    drive.complain(step.__name__)
                    print(f"{step.__name__}: {drive.checks} checks so far", flush=True)
            with serve(args.bench, "--api-key", "open-sesame") as server:
                drive = Drive(browser, server.url, args.out)
                keyed(drive)
                drive.complain("keyed")
                print("keyed: good")
        except (AssertionError, Error) as error:
            drive.shot("FAILED")
            sys.exit(f"FAILED: {error}")


if __name__ == "__main__":
    main()
