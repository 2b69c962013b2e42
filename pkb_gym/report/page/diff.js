"use strict";
// The difference of two texts by lines: the longest common subsequence between what begins and ends alike.
const MAX_CELLS = 4e6;

function differenceOf(before, after) {
  const a = before.split("\n"), b = after.split("\n");
  let start = 0, endA = a.length, endB = b.length;
  while (start < endA && start < endB && a[start] === b[start]) start++;
  while (endA > start && endB > start && a[endA - 1] === b[endB - 1]) { endA--; endB--; }
  const lines = a.slice(0, start).map((line) => ["same", line]);
  lines.push(...middleOf(a.slice(start, endA), b.slice(start, endB)));
  return lines.concat(a.slice(endA).map((line) => ["same", line]));
}

function middleOf(a, b) {
  const removed = (line) => ["removed", line], added = (line) => ["added", line];
  if (a.length * b.length > MAX_CELLS) return a.map(removed).concat(b.map(added));
  const width = b.length + 1;
  const length = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      length[i * width + j] = a[i] === b[j]
        ? length[(i + 1) * width + j + 1] + 1
        : Math.max(length[(i + 1) * width + j], length[i * width + j + 1]);
    }
  }
  const lines = [];
  let i = 0, j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { lines.push(["same", a[i]]); i++; j++; }
    else if (j < b.length && (i === a.length || length[i * width + j + 1] > length[(i + 1) * width + j])) {
      lines.push(added(b[j++]));
    } else lines.push(removed(a[i++]));
  }
  return lines;
}
