"use strict";
// The list of attempts that pass the filters; one of them is chosen.
const PAGE_OF_ROWS = 200;
const NOT_EVALUATED = ["no_submission", "truncated", "refused", "infrastructure"];
const list = document.getElementById("list"), rowsOfList = list.querySelector("ol"), moreButton = document.getElementById("more");
const filterText = document.getElementById("filter-text");
const selects = ["agent", "category", "verdict"].map((name) => [name, document.getElementById(`filter-${name}`)]);
let filtered = ATTEMPTS, chosen = -1;

function verdictOf(attempt) {
  const kind = attempt.right ? "good" : NOT_EVALUATED.includes(attempt.verdictName) ? "unknown" : "bad";
  return element("span", attempt.verdictName, { class: `verdict ${kind}` });
}

function speedOf(attempt) {
  return attempt.speedup === null ? "" : `${attempt.converged ? "" : "≈"}${attempt.speedup.toFixed(2)}x`;
}

function placeOf(attempt) {
  return `${attempt.agentName}, sample ${attempt.sample}, turn ${attempt.turn}`;
}

function rowOf(attempt, place) {
  const row = element("li", null, { id: `attempt-${attempt.number}` }), button = element("button", null, { type: "button", tabindex: "-1" });
  const reward = attempt.reward === null ? "" : `reward ${attempt.reward.toFixed(3)}`;
  const figures = [speedOf(attempt), reward].filter(Boolean).join(", ");
  for (const parts of [
    [element("span", attempt.problemName, { class: "problem" }), verdictOf(attempt)],
    [element("span", placeOf(attempt), { class: "agent" }), element("span", figures, { class: "figures" })],
  ]) {
    const line = element("span", null, { class: "line" });
    line.append(...parts);
    button.append(line);
  }
  button.addEventListener("click", () => mark(place));
  row.append(button);
  return row;
}

function addRows(upTo) {
  const from = rowsOfList.children.length, to = Math.min(filtered.length, upTo);
  const added = document.createDocumentFragment();
  for (let place = from; place < to; place++) added.append(rowOf(filtered[place], place));
  rowsOfList.append(added);
  moreButton.hidden = to >= filtered.length;
}

function applyFilters() {
  const words = filterText.value.toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = selects.filter(([, select]) => select.value !== "");
  filtered = ATTEMPTS.filter((attempt) => words.every((word) => attempt.text.includes(word))
    && wanted.every(([name, select]) => attempt[name === "category" ? "category" : `${name}Name`] === select.value));
  rowsOfList.replaceChildren();
  addRows(PAGE_OF_ROWS);
  document.getElementById("count").textContent = `${filtered.length} of ${ATTEMPTS.length} attempts`;
  chosen = -1;
  if (filtered.length) mark(Math.max(0, shown ? filtered.indexOf(shown) : 0));
}

// Marks an attempt of the list and shows it: the list and the viewer scroll, the page does not.
function mark(place) {
  addRows(Math.max(place + 1, rowsOfList.children.length));
  if (chosen >= 0) {
    rowsOfList.children[chosen].removeAttribute("aria-current");
    rowsOfList.children[chosen].firstChild.tabIndex = -1;
  }
  chosen = place;
  const row = rowsOfList.children[place];
  row.setAttribute("aria-current", "true");
  row.firstChild.tabIndex = 0;
  const above = row.offsetTop - list.scrollTop, below = above + row.offsetHeight - list.clientHeight;
  if (above < 0) list.scrollTop += above;
  else if (below > 0) list.scrollTop += below;
  if (shown === filtered[place]) return;
  viewer.scrollTop = 0;
  show(filtered[place]);
}

function choose(place) {
  if (!filtered.length) return;
  const hadFocus = rowsOfList.contains(document.activeElement);
  mark(Math.max(0, Math.min(filtered.length - 1, place)));
  if (hadFocus) rowsOfList.children[chosen].firstChild.focus({ preventScroll: true });
  const { top, bottom } = viewer.getBoundingClientRect();
  if (top < 0 || bottom < 0) viewer.scrollIntoView();
  else if (top > innerHeight / 2) list.scrollIntoView();
}

function chooseSample(step) {
  const episode = chosen < 0 ? null : filtered[chosen].episode;
  let place = chosen < 0 ? 0 : chosen;
  while (filtered[place] && filtered[place].episode === episode) place += step;
  if (!filtered[place]) return;
  while (step < 0 && filtered[place - 1] && filtered[place - 1].episode === filtered[place].episode) place--;
  choose(place);
}

// The best attempt of a cell of the matrix: a right one before others, then the fastest.
function chooseBest(problem, agent) {
  filterText.value = problem;
  for (const [name, select] of selects) select.value = name === "agent" ? agent : "";
  applyFilters();
  const value = (attempt) => attempt.problemName === problem ? attempt.right * (1 + (attempt.speedup || 0)) : -1;
  const best = filtered.reduce((found, attempt, place) => (value(attempt) > value(filtered[found]) ? place : found), 0);
  choose(best);
  document.getElementById("attempts").scrollIntoView();
}

for (const [name, select] of selects) {
  const values = name === "agent" ? INDEX.agents : [...new Set(ATTEMPTS.map((attempt) => attempt[name === "category" ? "category" : `${name}Name`]))].sort();
  for (const value of values) select.append(element("option", value, { value }));
  select.addEventListener("change", applyFilters);
}
filterText.addEventListener("input", applyFilters);
moreButton.addEventListener("click", () => addRows(rowsOfList.children.length + PAGE_OF_ROWS));
document.getElementById("filters").addEventListener("submit", (event) => event.preventDefault());
document.getElementById("previous").addEventListener("click", () => choose(chosen - 1));
document.getElementById("next").addEventListener("click", () => choose(chosen + 1));
document.getElementById("matrix").addEventListener("click", (event) => {
  const cell = event.target.closest("td");
  if (!cell || !cell.firstChild) return;
  const heads = document.querySelectorAll("#matrix thead th");
  chooseBest(cell.parentElement.firstElementChild.textContent, heads[cell.cellIndex].textContent);
});
applyFilters();
