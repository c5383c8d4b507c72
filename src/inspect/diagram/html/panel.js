// The panel alongside the picture: the details of what is marked.

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

function showDetails(place) {
  const what = { stack: "model", kind: "layer", op: "operation", weight: "weight" }[place.type] ?? place.part.block;
  const lines = place.kind?.lines ?? ["Choose a box to come closer, Escape to go back, ? for all keys."];
  const inside = place.part ? partDetails(place) : lines.map((line) => make("p", "quiet", line));
  const code = place.at === WHOLE ? null : make("code", "", place.at);
  const name = make("p", "place", make("b", "chip", what), code);
  const about = make("div", "about", make("h2", "", place.title), name, ...inside);
  by("panel").replaceChildren(about);
  by("panel").scrollTo(0, 0);
}
