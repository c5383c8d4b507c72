// The keyboard: arrows go from box to box as they lie, Enter comes closer, Escape goes back.

const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

// Where a box is met: in its middle, or at its heading if it holds others.
function point(box) {
  const rect = box.getBoundingClientRect();
  const holds = box.querySelector("[data-at]") !== null;
  return [rect.left + rect.width / 2, holds ? rect.top + 12 : rect.top + rect.height / 2];
}

// The nearest box in a direction: a step aside counts double.
function nearest(from, [dx, dy]) {
  const [x, y] = point(from);
  const far = boxes().filter((box) => box !== from).map((box) => {
    const [a, b] = point(box);
    const along = (a - x) * dx + (b - y) * dy;
    const aside = Math.abs((a - x) * dy) + Math.abs((b - y) * dx);
    return { box, along, cost: along + 2 * aside };
  });
  const ahead = far.filter(({ along, cost }) => along > 4 && cost < 4 * along + 40);
  return ahead.sort((a, b) => a.cost - b.cost)[0]?.box;
}

function move(box, direction) {
  const order = boxes();
  const forward = direction[0] + direction[1];
  const next = nearest(box, direction) ?? (direction[1] ? order[order.indexOf(box) + forward] : null);
  if (next) focusOn(next);
}

function boxKey({ key }, box) {
  const order = boxes();
  if (DIRECTIONS[key]) move(box, DIRECTIONS[key]);
  else if (key === "Home") focusOn(order[0]);
  else if (key === "End") focusOn(order[order.length - 1]);
  else if (key === "Enter" || key === " ") enter(box);
  else return false;
  return true;
}

const ACTIONS = {
  "/": () => by("query").select(),
  "?": () => by("keys").showModal(),
  Escape: leave,
};

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || by("keys").open) return;
  const { target } = event;
  if (target.matches?.("input")) return;
  const box = target.closest?.("[data-at]");
  const isStage = target === document.body || target === by("stage");
  if (box && boxKey(event, box)) event.preventDefault();
  else if (isStage && DIRECTIONS[event.key]) {
    focusOn(boxOf(here) ?? boxes()[0]);
    event.preventDefault();
  } else if (ACTIONS[event.key]) {
    ACTIONS[event.key]();
    event.preventDefault();
  }
}
