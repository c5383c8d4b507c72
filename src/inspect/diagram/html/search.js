// Search: every word must occur; names come before their details. What is found is a list of links.

const MOST = 40;
let entries = [];

function entryOf(place) {
  const { part, op, weight, kind, type } = place;
  const texts = {
    kind: () => kind.lines,
    part: () => [part.block, part.line, part.formula, ...part.facts, ...part.kept],
    op: () => [...op.ops, op.value ?? ""],
    weight: () => [weight.doc, numbers(weight), weight.key],
  }[type]();
  const where = [kind && type !== "kind" ? `Layer ${kind.letter}` : null, op || weight ? part.title : null];
  const title = place.title.toLowerCase();
  const all = [title, place.at, ...texts].join("\n").toLowerCase();
  return { place, title, all, where: where.filter(Boolean).join(" \u203a ") };
}

function search(words) {
  const isIn = (text) => words.every((word) => text.includes(word));
  const hits = entries.filter(({ all }) => isIn(all));
  return [...hits.filter(({ title }) => isIn(title)), ...hits.filter(({ title }) => !isIn(title))];
}

// Lists what is found for the words of the field, and returns it.
function typed() {
  const words = by("query").value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = words.length ? search(words) : [];
  const items = found.slice(0, MOST).map(({ place, where }) =>
    make("li", "", link(place.at, place.title), make("span", "quiet", [place.type, where].filter(Boolean).join(", "))));
  by("found").replaceChildren(make("li", "quiet", `${found.length} found`), ...items);
  by("found").hidden = !words.length;
  say(words.length ? `${found.length} found` : "");
  return found;
}

function closeSearch() {
  by("found").hidden = true;
}

function startSearch() {
  entries = [...places.values()].filter(({ type }) => type !== "stack").map(entryOf);
  const query = by("query");
  query.addEventListener("input", typed);
  query.addEventListener("focus", () => query.value && typed());
  query.addEventListener("keydown", ({ key }) => {
    const [first] = key === "Enter" ? typed() : [];
    if (key === "Escape") closeSearch();
    if (first) go(first.place.at);
    else if (key === "Escape") focusOn(boxOf(here));
  });
}
