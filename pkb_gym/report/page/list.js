"use strict";
// The list of attempts that pass the filters; one of them is chosen.
const PAGE_OF_ROWS = 200;
const rowsOfList = document.querySelector("#list tbody"), moreButton = document.getElementById("more");
const filterText = document.getElementById("filter-text");
const selects = ["agent", "category", "verdict"].map((name) => [name, document.getElementById(`filter-${name}`)]);
let filtered = ATTEMPTS, chosen = -1;

function number(value, digits) {
  return value === null || value === undefined ? "" : value.toFixed(digits);
}

function rowOf(attempt, place) {
  const row = element("tr", null, { id: `attempt-${attempt.number}` });
  row.append(element("td", attempt.problemName), element("td", attempt.agentName), element("td", attempt.sample), element("td", attempt.turn),
    element("td", attempt.verdictName, { class: attempt.right ? "good" : "bad" }),
    element("td", number(attempt.speedup, 2)), element("td", number(attempt.reward, 3)));
  row.addEventListener("click", () => choose(place));
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
  const place = shown ? filtered.indexOf(shown) : -1;
  chosen = -1;
  if (place >= 0) mark(place);
}

function mark(place) {
  addRows(Math.max(place + 1, rowsOfList.children.length));
  if (chosen >= 0) rowsOfList.children[chosen].removeAttribute("aria-current");
  chosen = place;
  const row = rowsOfList.children[place];
  row.setAttribute("aria-current", "true");
  row.scrollIntoView({ block: "nearest" });
}

function choose(place) {
  if (!filtered.length) return;
  mark(Math.max(0, Math.min(filtered.length - 1, place)));
  show(filtered[chosen]);
}

function chooseSample(step) {
  const episode = chosen < 0 ? null : filtered[chosen].episode;
  let place = chosen < 0 ? 0 : chosen;
  while (filtered[place] && filtered[place].episode === episode) place += step;
  if (!filtered[place]) return;
  while (step < 0 && filtered[place - 1] && filtered[place - 1].episode === filtered[place].episode) place--;
  choose(place);
}

for (const [name, select] of selects) {
  const values = name === "agent" ? INDEX.agents : [...new Set(ATTEMPTS.map((attempt) => attempt[name === "category" ? "category" : `${name}Name`]))].sort();
  for (const value of values) select.append(element("option", value, { value }));
  select.addEventListener("change", applyFilters);
}
filterText.addEventListener("input", applyFilters);
moreButton.addEventListener("click", () => addRows(rowsOfList.children.length + PAGE_OF_ROWS));
document.getElementById("filters").addEventListener("submit", (event) => event.preventDefault());
applyFilters();
