"use strict";
// Small pictures of one attempt, as SVG.
const SVG = "http://www.w3.org/2000/svg";

function shape(tag, attributes, title) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (title) made.appendChild(document.createElementNS(SVG, "title")).textContent = title;
  return made;
}

function picture(width, height, label) {
  return shape("svg", { viewBox: `0 0 ${width} ${height}`, class: "picture", role: "img", "aria-label": label });
}

// The width of a picture in pixels, so that its words are as large as those of the page.
function room() {
  return Math.max(280, Math.min(660, viewerBody.clientWidth));
}

function word(svg, x, y, text) {
  svg.appendChild(shape("text", { x, y })).textContent = text;
}

// The last two dimensions of an output: what is wrong lies within the box, the worst element is the cross.
function mismatchPicture(mismatch) {
  const shapeOf = mismatch.shape.length > 1 ? mismatch.shape.slice(-2) : [1, ...mismatch.shape];
  const box = mismatch.box && (mismatch.box.length > 1 ? mismatch.box.slice(-2) : [[0, 0], ...mismatch.box]);
  const worst = mismatch.worst && (mismatch.worst.length > 1 ? mismatch.worst.slice(-2) : [0, ...mismatch.worst]);
  const [rows, columns] = shapeOf.map((size) => Math.max(1, size || 1));
  const width = room() - 20, height = Math.max(40, Math.min(200, width * rows / columns)), top = 18;
  const svg = picture(width + 20, height + top + 22, mismatch.text);
  const place = ([row, column]) => [10 + width * column / columns, top + height * row / rows];
  svg.appendChild(shape("rect", { x: 10, y: top, width, height, fill: "none", stroke: "var(--muted)" }, "the output"));
  if (box && box.length === 2) {
    const [x, y] = place([box[0][0], box[1][0]]), [right, bottom] = place([box[0][1] + 1, box[1][1] + 1]);
    svg.appendChild(shape("rect", { x, y, width: Math.max(2, right - x), height: Math.max(2, bottom - y),
      fill: "var(--bad)", "fill-opacity": 0.35, stroke: "var(--bad)" }, "wrong elements lie within"));
  }
  if (worst && worst.length === 2) {
    const [x, y] = place([worst[0] + 0.5, worst[1] + 0.5]);
    svg.appendChild(shape("path", { d: `M${x - 6} ${y - 6}L${x + 6} ${y + 6}M${x - 6} ${y + 6}L${x + 6} ${y - 6}`,
      stroke: "var(--ink)", "stroke-width": 2 }, `worst: ${mismatch.worst.join(", ")}`));
  }
  word(svg, 10, 12, `rows 0..${rows - 1}, columns 0..${columns - 1}${mismatch.shape.length > 2 ? " (last two dimensions)" : ""}`);
  return svg;
}

// One bar of parts, each as long as its value.
function partsPicture(bars, unit, label) {
  const left = 80, width = room() - left - 10, perLine = Math.max(1, Math.floor(width / 150)), total = Math.max(...bars.map((bar) => bar.parts.reduce((sum, part) => sum + Math.max(0, part[1]), 0)), 1e-9);
  const names = [...new Set(bars.flatMap((bar) => bar.parts.map((part) => part[0])))];
  const svg = picture(width + left + 10, bars.length * 24 + 24 + 14 * Math.ceil(names.length / perLine), label);
  bars.forEach((bar, row) => {
    let x = left;
    word(svg, 4, row * 24 + 20, bar.name);
    for (const [name, value] of bar.parts) {
      const length = width * Math.max(0, value) / total;
      svg.appendChild(shape("rect", { x, y: row * 24 + 8, width: length, height: 16,
        fill: `var(--agent-${names.indexOf(name) % 8})` }, `${name}: ${value} ${unit}`));
      x += length;
    }
  });
  names.forEach((name, number) => {
    const x = left + (number % perLine) * 150, y = bars.length * 24 + 22 + 14 * Math.floor(number / perLine);
    svg.appendChild(shape("rect", { x, y: y - 9, width: 9, height: 9, fill: `var(--agent-${number % 8})` }));
    word(svg, x + 13, y, name);
  });
  return svg;
}

// Events of each rank over time.
function tracePicture(events) {
  const ranks = [...new Set(events.map((event) => event.rank))].sort((a, b) => a - b);
  const kinds = [...new Set(events.map((event) => event.kind))];
  const end = Math.max(...events.map((event) => event.start + event.duration), 1e-9);
  const left = 60, width = room() - left - 10, row = 14 * kinds.length + 6;
  const svg = picture(width + left + 10, ranks.length * row + 20, "Timeline of the ranks");
  for (const event of events) {
    const y = ranks.indexOf(event.rank) * row + 14 * kinds.indexOf(event.kind) + 4;
    svg.appendChild(shape("rect", { x: left + width * event.start / end, y, height: 11,
      width: Math.max(1, width * event.duration / end), fill: `var(--agent-${kinds.indexOf(event.kind) % 8})` },
    `rank ${event.rank}, ${event.kind} ${event.name}: ${event.duration} us from ${event.start} us`));
  }
  ranks.forEach((rank, number) => word(svg, 4, number * row + 14, `rank ${rank}`));
  word(svg, left, ranks.length * row + 14, `0 to ${end.toFixed(1)} us: ${kinds.join(", ")}`);
  return svg;
}
