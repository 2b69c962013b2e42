"use strict";
// What the page was given: the list of attempts, and details that are unpacked when they are looked at.
const INDEX = JSON.parse(document.getElementById("index").textContent);
const ATTEMPTS = INDEX.attempts.map((row, number) => {
  const attempt = { number };
  INDEX.columns.forEach((name, column) => { attempt[name] = row[column]; });
  attempt.problemName = INDEX.problems[attempt.problem];
  attempt.agentName = INDEX.agents[attempt.agent];
  attempt.verdictName = INDEX.verdicts[attempt.verdict];
  attempt.category = INDEX.categories[attempt.problem];
  attempt.text = `${attempt.problemName} ${attempt.agentName} ${attempt.verdictName} ${attempt.category}`.toLowerCase();
  return attempt;
});
const unpacked = new Map();

function details(attempt) {
  if (!unpacked.has(attempt.chunk)) unpacked.set(attempt.chunk, unpack(attempt.chunk));
  return unpacked.get(attempt.chunk).then((chunk) => chunk[attempt.place]);
}

async function unpack(number) {
  const packed = atob(document.getElementById(`chunk-${number}`).textContent.trim());
  const bytes = Uint8Array.from(packed, (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// Elements are made with text alone: nothing that a candidate or a model wrote is ever read as markup.
function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
