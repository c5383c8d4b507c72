#!/usr/bin/env python3
"""Opens the page of `bench serve` in headless Chromium and uses it as a person does.

Chats, looks at alternatives and continues from one, folds reasoning, calls a tool, watches text diffusion, stops,
edits, loads and unloads a model, enters an API key, goes without a mouse, narrows the window, changes colours, and
fails if what is seen is not what should be. An error in the console or a request to another origin is a failure too.
Leaves screenshots in a folder.

Needs scripts/requirements-page.txt and a Chromium (CHROMIUM, else the PATH).
"""

import json
import pathlib
import re
import shutil
import sys
import tempfile

from playwright.sync_api import Error, expect

from bench_server import BUILT_IN, ROOT, Server, options, run
from drive import Page, chromium

WIDE, NARROW = {"width": 1280, "height": 860}, {"width": 320, "height": 640}
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

    def at(self, selector):
        return self.page.locator(selector)

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

    def answer(self):
        return self.at(".turn.assistant .text").last.inner_text()

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
    drive.last(".token").nth(5).wait_for()
    drive.at("#stop").click()
    drive.settled()
    begun = kept + other.replace("␣", " ")
    drive.check(drive.answer().startswith(begun), f"{drive.answer()[:40]} does not begin with {begun}")
    drive.at("#reset").click()
    drive.page.fill("#p-temperature", "0")


def stops(drive):
    drive.page.select_option("#p-ignore_eos", "true")
    drive.page.fill("#input", "count from 1 to 100")
    drive.page.keyboard.press("Enter")
    drive.last(".token").nth(3).wait_for()
    drive.at("#stop").click()
    drive.settled()
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


def settings(drive):
    listed = drive.js("fetch('v1/sampling').then(r => r.json()).then(all => all.data.map(one => one.name))")
    fields = drive.js("[...document.querySelectorAll('#parameters [id^=p-]')].map(field => field.id.slice(2))")
    drive.check(sorted(listed) == sorted(fields) and fields[0] == "temperature" and len(fields) > 20, f"fields {fields}, not {listed}")
    drive.page.fill("#find", "mirostat")
    drive.check(drive.at("#parameters > :visible").count() == 3, "the search finds something else")
    drive.page.fill("#find", "")
    drive.page.fill("#p-logit_bias", "5=-100, 7=2.5")
    drive.page.fill("#p-dry_sequence_breakers", "\\n\n:")
    drive.page.fill("#p-samplers", "top_k temperature")
    drive.page.fill("#p-top_k", "3")
    expect(drive.at("#n-set")).to_have_text("5 set")
    drive.page.reload()
    drive.page.wait_for_selector("html.ready", state="attached")
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
    drive.page.select_option("#lab-picture", "routing")
    drive.at("#lab-draw").click()
    expect(drive.at("#lab-out .fault")).to_contain_text("router of experts")
    drive.page.keyboard.press("Escape")
    expect(drive.at("#lab")).to_be_hidden()


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
    drive.check(drive.last(".call h3").first.inner_text() == "get_weather", "calls something else")
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
    drive.last(".token").nth(3).wait_for()
    drive.page.keyboard.press("Escape")
    drive.settled()
    drive.check("stopped" in drive.last(".numbers").inner_text(), "Escape does not stop")
    drive.page.select_option("#p-ignore_eos", "")
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


STEPS = [chats, alternatives, stops, changes, settings, diagram, values, reasons, calls, diffuses, keyboard, safe, looks, loads, calm]


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
    return folder


def main():
    parser = options(__doc__, None)
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for screenshots")
    parser.add_argument("--step", action="append", help="only these steps, after the first")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    steps = [step for step in STEPS if not args.step or step is chats or step.__name__ in args.step]
    with chromium() as browser, tempfile.TemporaryDirectory() as folder:
        try:
            folder = models(pathlib.Path(folder), args.bench)
            with serve(args.bench, "--models", folder, "--ctx", "4096", "--config", folder / "bench.toml") as server:
                drive = Drive(browser, server.url, args.out, permissions=["clipboard-read", "clipboard-write"])
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
