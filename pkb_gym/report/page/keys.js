"use strict";
// Keys, the help, and the choice of agents in figures.
const help = document.getElementById("help");
const ACTIONS = {
  j: () => choose(chosen + 1), ArrowDown: () => choose(chosen + 1),
  k: () => choose(chosen - 1), ArrowUp: () => choose(chosen - 1),
  n: () => chooseSample(1), p: () => chooseSample(-1),
  d: toggleDifference,
  "/": () => { filterText.focus(); filterText.select(); },
  "?": () => help.showModal(),
};
const SCROLLED = "pre, .scroll, #viewer";

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  const target = event.target;
  if (target.matches("input, select, textarea")) {
    if (event.key === "Escape") target.blur();
    if (target !== filterText || event.key !== "ArrowDown") return;
    target.blur();
  }
  // Arrows move the attempts only where they do not scroll a text or the whole page.
  const inAttempts = document.getElementById("attempts").contains(document.activeElement) || target === filterText;
  if (event.key.startsWith("Arrow") && (!inAttempts || target.matches(SCROLLED))) return;
  const action = ACTIONS[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});

document.getElementById("help-button").addEventListener("click", () => help.showModal());
document.getElementById("agents-shown").addEventListener("change", (event) => {
  for (const group of document.querySelectorAll(`svg [data-agent="${event.target.value}"]`)) {
    group.classList.toggle("off", !event.target.checked);
  }
});
document.documentElement.dataset.ready = "true";
