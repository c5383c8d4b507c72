"use strict";
// The page: which picture is shown, what is marked in it. It lays nothing out: pictures come with their
// places, data and addresses with their names. All text is put in as text.

const root = document.documentElement;
const by = (id) => document.getElementById(id);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const isShown = (box) => box.getClientRects().length > 0;

// Before anything is shown, so that nothing is shown in other places first.
root.classList.add("js");

const WHOLE = "stack";
let data;
let views;
// Names to what they name: { at, type, title, view, kind, part, op, weight }.
const places = new Map();
let here;
// What is to be marked where the page goes next.
let wanted = null;

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
    know({ at, type: "kind", title: `Layer ${letter}: ${label}`, view, kind: { at, letter, label, lines } });
  }
  for (const part of data.parts) {
    const view = document.querySelector(`.opened [data-at="${part.at}"]`).closest(".view");
    const common = { view, part, kind: places.get(view.dataset.view)?.kind };
    know({ ...common, at: part.at, type: "part", title: part.title });
    for (const op of part.ops) know({ ...common, at: op.at, type: "op", title: op.title, op });
    part.weights.forEach((weight, at) => {
      const op = part.ops.find((op) => op.weights.includes(at));
      know({ ...common, at: weight.at, type: "weight", title: weight.name, op, weight });
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

// Shows the picture of a place, marks it there and its details in the panel.
function show(at, isRequested) {
  const place = places.get(at) ?? places.get(WHOLE);
  if (place.at !== at) say(`Nothing here is called ${at}.`);
  here = place;
  for (const view of views) view.hidden = view !== place.view;
  seeCloser(place);
  const inner = places.get(wanted);
  wanted = null;
  fitTexts(place.view);
  closeSearch();
  const levels = all(".levels a");
  for (const level of levels) level.removeAttribute("aria-current");
  levels.find(({ hash }) => hash === `#${place.kind?.at ?? WHOLE}`)?.setAttribute("aria-current", "location");
  document.title = place.at === WHOLE ? data.name : `${place.title} \u00b7 ${data.name}`;
  const box = boxOf(inner ?? place);
  by("stage").scrollTo(0, 0);
  mark(box, place);
  showDetails(inner ?? place);
  if (isRequested && box) focusOn(box);
  else aim(boxes()[0]);
  if (isRequested && !box) by("stage").focus();
}

// A picture of which a rectangle is seen, in pixels.
function crop(picture, [x, y, width, height]) {
  picture.setAttribute("viewBox", `${x} ${y} ${width} ${height}`);
  picture.setAttribute("width", width);
  picture.setAttribute("height", height);
}

// A block by itself is the picture of its layer, of which only the block's rectangle is seen.
function seeCloser(place) {
  for (const view of all(".view.one")) {
    const picture = view.querySelector(".opened");
    crop(picture, picture.dataset.whole.split(" "));
    view.classList.remove("one");
  }
  if (!place.part) return;
  const picture = place.view.querySelector(".opened");
  picture.dataset.whole = picture.getAttribute("viewBox");
  const { x, y, width, height } = picture.querySelector(`[data-at="${place.part.at}"]`).getBBox();
  place.view.classList.add("one");
  crop(picture, [x - 8, y - 8, width + 16, height + 16]);
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

// One level closer: from the stack to a layer, from that to a block.
function enter(box) {
  const place = places.get(box.dataset.at);
  if (here.type === "stack" && place.part && place.kind) go(place.kind.at, place.at);
  else go(place.at);
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

function start() {
  data = JSON.parse(by("data").textContent);
  views = all(".view");
  index();
  label();
  const stage = by("stage");
  stage.addEventListener("click", ({ target }) => {
    const box = target.closest("[data-at]");
    if (box) enter(box);
  });
  stage.addEventListener("focusin", ({ target }) => {
    const at = target.dataset?.at;
    if (at && boxOf(here) !== target) showDetails(places.get(at));
  });
  by("help").addEventListener("click", ACTIONS["?"]);
  addEventListener("hashchange", () => show(address(), true));
  document.addEventListener("keydown", pressed);
  startSearch();
  show(address(), location.hash.length > 1);
  root.classList.add("ready");
}

document.addEventListener("DOMContentLoaded", start);
