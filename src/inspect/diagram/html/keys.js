// The keyboard: arrows go from box to box in the order of execution, Enter comes closer, Escape goes back.

const STEPS = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 };

function boxKey({ key }, box) {
  const order = boxes();
  const next = order[order.indexOf(box) + STEPS[key]];
  if (STEPS[key]) focusOn(next ?? box);
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
  else if (isStage && STEPS[event.key]) {
    focusOn(boxOf(here) ?? boxes()[0]);
    event.preventDefault();
  } else if (ACTIONS[event.key]) {
    ACTIONS[event.key]();
    event.preventDefault();
  }
}
