// Search: every word must occur; names come before their details.

const MOST = 40;
let entries = [];
let found = [];
let chosen = -1;

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
  return { place, texts, title, all, where: where.filter(Boolean).join(" \u203a ") };
}

function search(words) {
  const isIn = (text) => words.every((word) => text.includes(word));
  const hits = entries.filter(({ all }) => isIn(all));
  return [...hits.filter(({ title }) => isIn(title)), ...hits.filter(({ title }) => !isIn(title))];
}

function option(entry, at, words) {
  const detail = entry.texts.find((text) => words.some((word) => text.toLowerCase().includes(word))) ?? entry.texts[0] ?? "";
  const head = make("span", "what", make("b", "", entry.place.title), make("i", "chip", entry.place.type));
  const item = make("li", "", head, make("span", "quiet where", entry.where), make("span", "quiet detail", detail));
  item.id = `found-${at}`;
  item.setAttribute("role", "option");
  item.addEventListener("click", () => take(at));
  return item;
}

function choose(at) {
  const items = all("#found [role=option]");
  if (!items.length) return;
  chosen = (at + items.length) % items.length;
  items.forEach((item, n) => item.setAttribute("aria-selected", String(n === chosen)));
  items[chosen].scrollIntoView({ block: "nearest" });
  by("query").setAttribute("aria-activedescendant", items[chosen].id);
}

function closeSearch() {
  by("found").hidden = true;
  by("query").setAttribute("aria-expanded", "false");
  by("query").removeAttribute("aria-activedescendant");
}

function take(at) {
  if (!found[at]) return;
  closeSearch();
  go(found[at].place.at);
}

function typed() {
  const words = by("query").value.toLowerCase().split(/\s+/).filter(Boolean);
  found = words.length ? search(words) : [];
  chosen = -1;
  const items = found.slice(0, MOST).map((entry, at) => option(entry, at, words));
  if (words.length && !found.length) items.push(make("li", "none", "nothing found"));
  if (found.length > MOST) items.push(make("li", "none", `${found.length - MOST} more`));
  by("found").replaceChildren(...items);
  by("found").hidden = !words.length;
  by("query").setAttribute("aria-expanded", String(words.length > 0));
  by("query").removeAttribute("aria-activedescendant");
  say(words.length ? `${found.length} found` : "");
  choose(0);
}

function searchKey(event) {
  if (event.key === "ArrowDown") choose(chosen + 1);
  else if (event.key === "ArrowUp") choose(chosen - 1);
  else if (event.key === "Enter") take(chosen);
  else if (event.key === "Escape") {
    closeSearch();
    focusOn(boxOf(here));
  } else return;
  event.preventDefault();
  event.stopPropagation();
}

function startSearch() {
  entries = [...places.values()].filter(({ type }) => type !== "stack").map(entryOf);
  const query = by("query");
  query.addEventListener("input", typed);
  query.addEventListener("focus", () => query.value && typed());
  query.addEventListener("blur", closeSearch);
  query.addEventListener("keydown", searchKey);
  by("found").addEventListener("mousedown", (event) => event.preventDefault());
}
