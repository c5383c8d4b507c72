// What is told: beside the picture of what is marked, at the pointer of what is under it, and the text of
// the definition with the line that it comes from.

// The definition as numbered lines.
function definitionText() {
  const lines = data.definition.text.replace(/\n$/, "").split("\n").map((text) => {
    const comment = /^\s*#/.test(text) ? "comment" : /^\s*\[/.test(text) ? "table" : "";
    return make("span", `line ${comment}`, text === "" ? " " : text);
  });
  const code = make("pre", "", ...lines);
  code.tabIndex = 0;
  code.setAttribute("aria-label", "Text of the definition");
  const title = make("h3", "", "Definition");
  return { section: make("section", "definition", title, code), title, code, lines };
}

function markLine(number) {
  for (const line of definition.lines) line.removeAttribute("aria-current");
  const line = definition.lines[number - 1];
  const where = line ? `${data.definition.path}, line ${number}` : data.definition.path;
  definition.title.replaceChildren("Definition", make("small", "", where));
  if (!line) return definition.code.scrollTo(0, 0);
  line.setAttribute("aria-current", "true");
  definition.code.scrollTo(0, line.offsetTop - definition.code.clientHeight / 2);
}

function numbers(weight) {
  const stack = weight.tensors > 1 && !data.symbolic ? `${weight.tensors} tensors` : null;
  const shared = weight.shared ? "shared" : null;
  return [weight.shape, weight.types.join("/"), weight.cost, stack, shared].filter(Boolean).join(" \u00b7 ");
}

function weightItem(weight, isMarked) {
  const told = [make("span", "numbers", numbers(weight)), make("span", "quiet", weight.doc)];
  const item = make("li", isMarked ? "marked" : "", link(weight.at, weight.name), ...told);
  if (isMarked) item.setAttribute("aria-current", "true");
  return item;
}

const listed = (title, items, className = "") =>
  items.length ? make("section", "", make("h3", "", title), make("ul", className, ...items)) : null;
const plainItems = (texts) => texts.filter(Boolean).map((text) => make("li", "", text));

// The weights of an operation or of all of a part, and what it does.
const weightsOf = ({ part, op }) => part.weights.filter((_, at) => !op || op.weights.includes(at));
const deedOf = ({ part, op }) => (op ? `${op.ops.join(", ")}, gives ${op.shape}` : part.line);

function tellPart(place) {
  const { part, op, weight } = place;
  const layers = part.layers > 1 && !data.symbolic ? `in ${part.layers} layers` : "";
  const ops = part.ops.map((other) => make("li", "", link(other.at, other.title), make("span", "numbers", other.shape)));
  const amounts = [part.cost && [part.cost, layers].join(" "), ...part.kept, ...part.facts];
  const own = weightsOf(weight ? { part } : place);
  return [
    make("p", "", deedOf(place)),
    op ? make("p", "quiet", op.value ? `${op.value}, in ` : "in ", link(part.at, part.title), `: ${part.line}`) : null,
    make("pre", "formula", part.formula),
    listed(data.measured ?? "", plainItems([(op ?? part).note])),
    op ? null : listed("Numbers", plainItems(amounts)),
    listed("Weights", own.map((other) => weightItem(other, other === weight)), "weights"),
    op ? null : listed("Operations", ops, "ops"),
  ];
}

// The parts of a kind of layers, or those before and after the layers.
function partItems(kind) {
  const own = [...places.values()].filter((place) => place.type === "part" && place.kind === kind);
  return own.map(({ part }) => make("li", "", link(part.at, part.title), make("span", "quiet", part.line)));
}

const tellKind = ({ kind }) => [make("ul", "plain", ...plainItems(kind.lines)), listed("In order", partItems(kind), "ops")];

function tellWhole() {
  const kinds = [...places.values()].filter(({ type }) => type === "kind").map(({ kind: { at, letter, label, lines } }) =>
    make("li", "", link(at, `Layer ${letter}`), make("span", "quiet", [label, lines[0]].filter(Boolean).join("; "))));
  const [escape, help] = ["Escape", "?"].map((key) => make("kbd", "", key));
  const hint = make("p", "quiet", "Choose a box to come closer, ", escape, " to go back, ", help, " for all keys.");
  return [hint, listed("Layers", kinds, "ops"), listed("Before and after the layers", partItems(), "ops")];
}

function tell(place) {
  const what = { stack: "model", kind: "layer", op: "operation", weight: "weight" }[place.type] ?? place.part.block;
  const inside = place.part ? tellPart(place) : place.kind ? tellKind(place) : tellWhole();
  const code = place.at === WHOLE ? null : make("code", "", place.at);
  const name = make("p", "place", make("b", "chip", what), code);
  const about = make("div", "about", make("h2", "", place.title), name, ...inside);
  by("panel").replaceChildren(about, definition.section);
  by("panel").scrollTo(0, 0);
  markLine(place.part?.source);
}

function tipOf(place) {
  const { kind, part, op } = place;
  const title = make("b", "", place.title);
  if (!part) return [title, ...kind.lines.map((line) => make("span", "", line))];
  const own = weightsOf(place);
  const rows = own.slice(0, 6).map((other) => make("span", "row", make("code", "", other.name), ` ${numbers(other)}`));
  const line = definition.lines[part.source - 1]?.textContent.trim();
  const more = [
    own.length > rows.length ? `and ${own.length - rows.length} more` : null,
    part.cost && !op && own.length > 1 ? `all: ${part.cost}` : null,
  ];
  return [
    title,
    make("span", "", deedOf(place)),
    make("span", "formula", part.formula),
    ...rows,
    ...more.filter(Boolean).map((text) => make("span", "", text)),
    line ? make("span", "source", `line ${part.source}: `, make("code", "", line)) : null,
  ];
}

function hover(event) {
  const box = event.pointerType === "touch" ? null : event.target.closest?.("[data-at]");
  const tip = by("tip");
  if (!box) {
    tip.hidden = true;
    delete tip.dataset.of;
    return;
  }
  if (tip.dataset.of !== box.dataset.at) {
    tip.dataset.of = box.dataset.at;
    tip.replaceChildren(...tipOf(places.get(box.dataset.at)).filter((row) => row && row.textContent));
    tip.hidden = false;
  }
  const { offsetWidth: w, offsetHeight: h } = tip;
  const x = Math.max(8, Math.min(event.clientX + 16, innerWidth - w - 8));
  const below = event.clientY + 20;
  tip.style.left = `${x}px`;
  tip.style.top = `${below + h > innerHeight - 8 ? Math.max(8, event.clientY - h - 14) : below}px`;
}
