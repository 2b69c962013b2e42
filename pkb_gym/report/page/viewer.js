"use strict";
// One attempt: its verdict and facts, what the evaluator found, and its source or the difference from the turn before.
const viewer = document.getElementById("viewer");
const viewerTitle = document.getElementById("viewer-title"), viewerBody = document.getElementById("viewer-body");
let showsDifference = false, shown = null;

function turnBefore(attempt) {
  const other = ATTEMPTS[attempt.number - 1];
  return other && other.episode === attempt.episode ? other : null;
}

async function show(attempt) {
  shown = attempt;
  const before = turnBefore(attempt);
  const [found, earlier] = await Promise.all([details(attempt), before ? details(before) : null]);
  if (shown !== attempt) return; // another one was chosen meanwhile
  viewerTitle.replaceChildren(element("span", attempt.problemName, { class: "problem" }), " ", verdictOf(attempt), " ",
    element("span", speedOf(attempt)), element("span", placeOf(attempt), { class: "agent" }));
  viewerBody.replaceChildren(factsOf(found), ...findingsOf(found), ...sourceOf(found, earlier, attempt), ...timesOf(found), ...wordsOf(found));
  viewerBody.dataset.attempt = attempt.number;
}

function factsOf(found) {
  const list = element("dl", null, { class: "facts" });
  for (const [name, value] of found.facts || []) {
    const fact = element("div");
    fact.append(element("dt", name), element("dd", value));
    list.append(fact);
  }
  return list;
}

const WITHOUT_SOURCE = {
  truncated: "The reply was cut off at the limit of tokens before a source was complete.",
  refused: "The endpoint refused the request.",
};

function sourceOf(found, earlier, attempt) {
  if (!found.source) return [element("p", WITHOUT_SOURCE[attempt.verdictName] || "Nothing was submitted.")];
  const canCompare = Boolean(earlier && earlier.source);
  const parts = [element("h4", canCompare && showsDifference ? "Difference from the turn before" : "Source")];
  if (canCompare) {
    const button = element("button", showsDifference ? "Whole source" : "Difference from the turn before", { type: "button", id: "toggle-diff" });
    button.addEventListener("click", toggleDifference);
    parts.push(button);
  }
  const block = element("pre", null, { id: "source", tabindex: "0", "aria-label": "Source" });
  if (canCompare && showsDifference) {
    for (const [kind, line] of differenceOf(earlier.source, found.source)) {
      const sign = { added: "+", removed: "-", same: " " }[kind];
      block.append(element("span", `${sign} ${line}\n`, { class: kind }));
    }
  } else {
    for (const [kind, text] of coloursOf(found.source, found.is_python)) {
      block.append(kind ? element("span", text, { class: kind }) : text);
    }
  }
  parts.push(block);
  return parts;
}

function toggleDifference() {
  showsDifference = !showsDifference;
  if (shown) show(shown);
}

function findingsOf(found) {
  const parts = [];
  if (found.refusal) parts.push(...titled("Refusal of the endpoint", found.refusal));
  if (found.message) parts.push(...titled("Feedback", found.message));
  if (found.findings) parts.push(...titled("Findings", found.findings.join("\n")));
  for (const mismatch of found.mismatches || []) {
    parts.push(...titled("Mismatch", mismatch.text), mismatchPicture(mismatch));
  }
  if (found.compiler_log) parts.push(...titled("Compiler", found.compiler_log));
  if (found.output) parts.push(...titled("Output", found.output));
  return parts;
}

function timesOf(found) {
  const parts = [];
  const reward = Object.entries(found.reward_parts || {}), stages = Object.entries(found.durations_s || {});
  if (reward.length) {
    parts.push(element("h4", "Parts of the reward"), element("p", reward.map(([name, value]) => `${name} ${value}`).join(" + ")),
      partsPicture([{ name: "reward", parts: reward }], "", "Parts of the reward"));
  }
  if (found.ranks) {
    const bars = found.ranks.map((rank) => ({ name: `rank ${rank.rank}`,
      parts: ["compute", "communication", "waiting", "host"].map((name) => [name, rank[name]]) }));
    parts.push(element("h4", "Time of a call"), partsPicture(bars, "us", "Time of a call on each rank"));
  }
  if (found.trace) parts.push(element("h4", "Timeline"), tracePicture(found.trace));
  if (stages.length) parts.push(element("h4", "Time of the evaluation"), partsPicture([{ name: "evaluation", parts: stages }], "s", "Time of the evaluation by stage"));
  return parts;
}

function wordsOf(found) {
  const parts = [];
  for (const [name, text] of [["Reasoning of the model", found.reasoning], ["Reply of the model", found.reply]]) {
    if (!text) continue;
    const more = element("details", null, found.source ? {} : { open: "" });
    more.append(element("summary", name), element("pre", text, { class: "wrap", tabindex: "0", "aria-label": name }));
    parts.push(more);
  }
  return parts;
}

function titled(title, text) {
  return [element("h4", title), element("pre", text, { class: "wrap", tabindex: "0", "aria-label": title })];
}
