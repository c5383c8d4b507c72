"use strict";
// The page: which picture is shown, what is marked in it, what is told of it. It lays nothing out:
// pictures come with their places, data and addresses with their names. All text is put in as text.

const root = document.documentElement;
const by = (id) => document.getElementById(id);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const isShown = (box) => box.getClientRects().length > 0;

// The stored colours, after storing `value` if there is one. Of a file, storage may be forbidden; then the choice
// holds until the page is closed.
function stored(value) {
  try {
    if (value) localStorage.setItem("bench-scheme", value);
    return localStorage.getItem("bench-scheme");
  } catch {
    return null;
  }
}

const isDark = () =>
  root.dataset.scheme ? root.dataset.scheme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;

// Before anything is shown, so that nothing is shown in other colours or places first.
root.classList.add("js");
if (["light", "dark"].includes(stored())) root.dataset.scheme = stored();

const tellScheme = () => by("scheme").setAttribute("aria-pressed", String(isDark()));

function toggleScheme() {
  root.dataset.scheme = isDark() ? "light" : "dark";
  stored(root.dataset.scheme);
  tellScheme();
}

const WHOLE = "stack";
let data;
let views;
// The definition's text, made once.
let definition;
// Names to what they name: { at, type, title, up, view, step, kind, part, op, weight }.
const places = new Map();
let here;
// What is to be marked where the page goes next.
let wanted = null;
let zoom = 1;

function make(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

function link(at, ...children) {
  const made = make("a", "", ...children);
  made.href = `#${at}`;
  return made;
}

const know = (place) => places.set(place.at, place);

// Where something is seen is where its picture stands.
function index() {
  know({ at: WHOLE, type: "stack", title: data.name, view: views[0] });
  for (const view of views.filter((view) => view.querySelector(".kindhead"))) {
    const [letter, label, ...lines] = all(".letter, h2, p", view.querySelector(".kindhead")).map((part) => part.textContent);
    const at = view.dataset.view;
    know({ at, type: "kind", title: `Layer ${letter}: ${label}`, up: WHOLE, view, kind: { at, letter, label, lines } });
  }
  for (const part of data.parts) {
    const step = document.querySelector(`.opened [data-at="${part.at}"]`).closest(".step");
    const view = step.closest(".view");
    const kind = places.get(view.dataset.view)?.kind;
    const common = { view, step, part, kind };
    know({ ...common, at: part.at, type: "part", title: part.title, up: kind?.at ?? WHOLE });
    for (const op of part.ops) know({ ...common, at: op.at, type: "op", title: op.title, up: part.at, op });
    part.weights.forEach((weight, at) => {
      const op = part.ops.find((op) => op.weights.includes(at));
      know({ ...common, at: weight.at, type: "weight", title: weight.name, up: part.at, op, weight });
    });
  }
}

// Boxes are buttons; what holds other boxes is a group.
function label() {
  for (const box of all("[data-at]")) {
    const place = places.get(box.dataset.at);
    const holds = box.querySelector("[data-at]") !== null;
    box.setAttribute("role", holds ? "group" : "button");
    box.setAttribute("tabindex", "-1");
    const line = place.op ? place.op.ops.join(", ") : place.part?.line;
    box.setAttribute("aria-label", [place.title, line].filter(Boolean).join(". "));
  }
}

// The box that shows a place in the picture that is seen; what has none is shown by what holds it.
function boxOf(place) {
  const names = [place.at, place.op?.at, place.part?.at, place.kind?.at].filter(Boolean);
  const found = names.map((name) => all(`[data-at="${name}"]`, here.view).find(isShown));
  return found.find(Boolean) ?? null;
}

// All boxes that can be reached, in order; of a block that is seen by itself, its own.
function boxes() {
  const scope = here.part ? boxOf({ at: here.part.at }) : null;
  const found = all("[data-at]", scope ?? here.view).filter(isShown);
  return scope ? [scope, ...found] : found;
}

const address = () => location.hash.slice(1) || WHOLE;

function go(at, mark = null) {
  wanted = mark;
  if (address() === at) show(at, true);
  else location.hash = at;
}

// Shows the picture of a place, marks it there and tells of it.
function show(at, isAsked) {
  const place = places.get(at) ?? places.get(WHOLE);
  if (place.at !== at) say(`Nothing here is called ${at}.`);
  here = place;
  root.dataset.level = place.part ? "block" : place.type === "kind" ? "layer" : "stack";
  for (const view of views) view.hidden = view !== place.view;
  seeCloser(place);
  const inner = places.get(wanted);
  wanted = null;
  if (inner && place.type === "kind") fold([inner.step], false);
  magnify();
  fitTexts(place.view);
  trail(place);
  const levels = all(".levels a");
  for (const level of levels) level.removeAttribute("aria-current");
  levels.find(({ hash }) => hash === `#${place.kind?.at ?? WHOLE}`)?.setAttribute("aria-current", "location");
  document.title = place.at === WHOLE ? data.name : `${place.title} \u00b7 ${data.name}`;
  const box = boxOf(inner ?? place);
  by("stage").scrollTo(0, 0);
  mark(box, place);
  tell(inner ?? place);
  if (isAsked && box) focusOn(box);
  else aim(boxes()[0]);
  if (isAsked && !box) by("stage").focus();
}

// A block by itself is the picture of its slot, of which only the block's rectangle is seen.
function seeCloser(place) {
  for (const picture of all("svg[data-whole]")) {
    picture.setAttribute("viewBox", picture.dataset.whole);
    delete picture.dataset.whole;
  }
  for (const step of all(".step.target")) step.classList.remove("target");
  for (const view of views) view.classList.remove("one");
  if (!place.part) return;
  const { view, step, part } = place;
  view.classList.add("one");
  step.classList.add("target");
  const picture = step.querySelector(".opened");
  picture.dataset.whole = picture.getAttribute("viewBox");
  const { x, y, width, height } = picture.querySelector(`[data-at="${part.at}"]`).getBBox();
  picture.setAttribute("viewBox", `${x - 8} ${y - 8} ${width + 16} ${height + 16}`);
}

// How much pictures may be made larger so that they fit. Never smaller: their texts would be too small.
const LIMITS = { stack: 1.1, layer: 1.1, block: 1.5 };

function magnify() {
  const size = (picture) => picture.getAttribute("viewBox").split(" ").map(Number).slice(2);
  const pictures = all("svg", here.view);
  const main = pictures.filter((picture) => !picture.matches(".notes, .scenes, .scale"));
  const seen = here.part ? main.filter(isShown) : main;
  const style = getComputedStyle(by("stage"));
  const edges = parseFloat(style.paddingLeft) + parseFloat(style.paddingRight);
  const room = by("stage").clientWidth - edges - (here.type === "kind" ? 104 : 4);
  let widest = Math.max(1, ...seen.map((picture) => size(picture)[0]));
  // The notes stand beside the stack if there is room.
  const notes = here.view.querySelector(".notes");
  const both = notes ? widest + size(notes)[0] + 48 : 0;
  if (both <= room) widest = Math.max(widest, both);
  const fit = Math.max(1, Math.min(LIMITS[root.dataset.level], room / widest));
  for (const picture of pictures) {
    const [w, h] = size(picture);
    const own = picture.matches(".scenes, .scale") ? zoom : fit * zoom;
    picture.style.width = `${w * own}px`;
    picture.style.height = `${h * own}px`;
  }
  by("scale").textContent = `${Math.round(fit * zoom * 100)} %`;
}

// Texts are measured with one font and shown in the reader's: one that is wider is narrowed to its room.
function fitTexts(within) {
  for (const text of all("text[data-w]", within)) {
    const room = Number(text.dataset.w);
    if (text.getComputedTextLength() <= room) continue;
    text.setAttribute("textLength", room);
    text.setAttribute("lengthAdjust", "spacingAndGlyphs");
  }
}

function zoomBy(factor) {
  zoom = factor === 0 ? 1 : Math.min(4, Math.max(0.4, zoom * factor));
  magnify();
}

// Opens or closes slots; what was focused in one is focused in its other picture.
function fold(steps, isClosed) {
  const focused = document.activeElement;
  for (const step of steps) {
    step.classList.toggle("open", !isClosed);
    step.querySelector(".fold")?.setAttribute("aria-expanded", String(!isClosed));
    fitTexts(step);
  }
  if (focused?.dataset?.at && !isShown(focused)) focusOn(boxOf(places.get(focused.dataset.at)));
}

const toggle = (step) => fold([step], step.classList.contains("open"));
const foldAll = (isClosed) => fold(all(".step", here.view), isClosed);

// One level closer: from the stack to a layer, from a card to its operations, from those to the block.
function enter(box) {
  const place = places.get(box.dataset.at);
  if (here.type === "stack" && place.part && place.kind) return go(place.kind.at, place.at);
  const step = box.closest(".closed")?.closest(".step");
  if (!step) return go(place.at);
  fold([step], false);
  focusOn(boxOf(place));
}

function leave() {
  if (here.type === "stack") return;
  const focused = document.activeElement?.dataset?.at;
  if (here.part) go(here.kind?.at ?? WHOLE, here.part.at);
  else go(WHOLE, focused ?? here.at);
}

function mark(box, place) {
  for (const marked of all(".at")) marked.classList.remove("at");
  if (place.type === "op" || place.type === "weight") box?.classList.add("at");
}

// The box to which Tab leads.
function aim(box) {
  for (const other of all('[data-at][tabindex="0"]')) other.setAttribute("tabindex", "-1");
  box?.setAttribute("tabindex", "0");
}

function focusOn(box) {
  if (!box) return by("stage").focus();
  aim(box);
  box.focus({ preventScroll: true });
  box.scrollIntoView({ block: "nearest", inline: "nearest" });
}

const say = (text) => (by("say").textContent = text);

function trail(place) {
  const steps = [];
  for (let at = place; at; at = places.get(at.up)) steps.unshift(at);
  const name = (step) => (step.type === "stack" ? "Stack" : step.type === "kind" ? `Layer ${step.kind.letter}` : step.title);
  const items = steps.map((step) => make("li", "", step === place ? name(step) : link(step.at, name(step))));
  items.at(-1).setAttribute("aria-current", "page");
  by("trail").replaceChildren(make("ol", "", ...items));
}

function clicked(event) {
  const box = event.target.closest("[data-at]");
  const step = event.target.closest(".fold")?.closest(".step");
  if (step) toggle(step);
  else if (box) enter(box);
}

function start() {
  data = JSON.parse(by("data").textContent);
  views = all(".view");
  definition = definitionText();
  index();
  label();
  tellScheme();
  const stage = by("stage");
  stage.addEventListener("click", clicked);
  stage.addEventListener("pointermove", hover);
  stage.addEventListener("pointerleave", hover);
  stage.addEventListener("scroll", () => (by("tip").hidden = true));
  stage.addEventListener("focusin", ({ target }) => {
    const at = target.dataset?.at;
    if (at && boxOf(here) !== target) tell(places.get(at));
  });
  stage.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoomBy(event.deltaY < 0 ? 1.1 : 1 / 1.1);
  }, { passive: false });
  for (const button of all("[data-key]")) button.addEventListener("click", () => ACTIONS[button.dataset.key]());
  by("skip").addEventListener("click", (event) => {
    event.preventDefault();
    focusOn(boxOf(here));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", tellScheme);
  addEventListener("hashchange", () => show(address(), true));
  addEventListener("resize", magnify);
  startSearch();
  startKeys();
  show(address(), location.hash.length > 1);
  root.classList.add("ready");
}

document.addEventListener("DOMContentLoaded", start);
