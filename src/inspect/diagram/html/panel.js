// The panel alongside the picture: the details of what is marked, and the text of the definition with the
// line that it comes from.

// The definition as numbered lines.
function definitionText() {
  const lines = data.definition.text.replace(/\n$/, "").split("\n").map((text) => make("span", "line", text === "" ? " " : text));
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
  const details = [make("span", "numbers", numbers(weight)), make("span", "quiet", weight.doc)];
  const item = make("li", isMarked ? "marked" : "", link(weight.at, weight.name), ...details);
  if (isMarked) item.setAttribute("aria-current", "true");
  return item;
}

const listed = (title, items) => (items.length ? make("section", "", make("h3", "", title), make("ul", "", ...items)) : null);
const plainItems = (texts) => texts.filter(Boolean).map((text) => make("li", "", text));

function partDetails({ part, op, weight }) {
  const layers = part.layers > 1 && !data.symbolic ? `in ${part.layers} layers` : "";
  const ops = part.ops.map((other) => make("li", "", link(other.at, other.title), make("span", "numbers", other.shape)));
  const amounts = [part.cost && [part.cost, layers].join(" "), ...part.kept, ...part.facts];
  const own = part.weights.filter((_, at) => weight || !op || op.weights.includes(at));
  return [
    make("p", "", op ? `${op.ops.join(", ")}, gives ${op.shape}` : part.line),
    op ? make("p", "quiet", op.value ? `${op.value}, in ` : "in ", link(part.at, part.title), `: ${part.line}`) : null,
    make("pre", "formula", part.formula),
    listed(data.measured ?? "", plainItems([(op ?? part).note])),
    op ? null : listed("Numbers", plainItems(amounts)),
    listed("Weights", own.map((other) => weightItem(other, other === weight))),
    op ? null : listed("Operations", ops),
  ];
}

// The parts of a kind of layers, or those before and after the layers.
function partItems(kind) {
  const own = [...places.values()].filter((place) => place.type === "part" && place.kind === kind);
  return own.map(({ part }) => make("li", "", link(part.at, part.title), make("span", "quiet", part.line)));
}

const kindDetails = ({ kind }) => [make("ul", "", ...plainItems(kind.lines)), listed("In order", partItems(kind))];

function modelDetails() {
  const kinds = [...places.values()].filter(({ type }) => type === "kind").map(({ kind: { at, letter, label, lines } }) =>
    make("li", "", link(at, `Layer ${letter}`), make("span", "quiet", [label, lines[0]].filter(Boolean).join("; "))));
  const hint = make("p", "quiet", "Choose a box to come closer, Escape to go back, ? for all keys.");
  return [hint, listed("Layers", kinds), listed("Before and after the layers", partItems())];
}

function showDetails(place) {
  const what = { stack: "model", kind: "layer", op: "operation", weight: "weight" }[place.type] ?? place.part.block;
  const inside = place.part ? partDetails(place) : place.kind ? kindDetails(place) : modelDetails();
  const code = place.at === WHOLE ? null : make("code", "", place.at);
  const name = make("p", "place", make("b", "chip", what), code);
  const about = make("div", "about", make("h2", "", place.title), name, ...inside);
  by("panel").replaceChildren(about, definition.section);
  by("panel").scrollTo(0, 0);
  markLine(place.part?.source);
}
