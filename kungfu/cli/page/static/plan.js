// The plan of the policies as a graph: from what a step offers, on the left, to what the rules do.

import { setText } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN, INDENT] = [170, 40, 60, 16, 8, 10];
const [LONGEST, LONGEST_TITLE] = [20, 300];

export function paintPlan(plan) {
  const remark = document.getElementById("no-plan");
  const isThere = Boolean(plan?.nodes?.length);
  document.getElementById("plan").hidden = !isThere;
  remark.hidden = isThere;
  if (plan?.remark) remark.textContent = plan.remark;
  if (!isThere) return;
  const graph = document.getElementById("plan-graph");
  graph.replaceChildren(drawn(plan));
  for (const text of graph.querySelectorAll("text")) fit(text);
  setText("plan-text", plan.text);
}

function drawn({ nodes, edges }) {
  const columns = 1 + Math.max(...nodes.map((node) => node.column));
  const rows = 1 + Math.max(...nodes.map((node) => node.row));
  const [width, height] = [columns * (WIDTH + GAP_X) - GAP_X + 2 * MARGIN, rows * (HEIGHT + GAP_Y) - GAP_Y + 2 * MARGIN];
  const picture = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
  const rules = nodes.filter((node) => node.kind === "rule").map((node) => node.label);
  const named = shortened(rules.map(isolated).join(" and "), LONGEST_TITLE);
  picture.append(titled(`What ${named} ${rules.length > 1 ? "are" : "is"} made of; the text below says the same`));
  for (const [from, to] of edges) picture.append(edge(nodes[from], nodes[to]));
  for (const node of nodes) picture.append(box(node));
  return picture;
}

function place(node) {
  return [MARGIN + node.column * (WIDTH + GAP_X), MARGIN + node.row * (HEIGHT + GAP_Y)];
}

function edge(from, to) {
  const [[x, y], [u, v]] = [place(from), place(to)];
  const [begin, end, a, b] = [x + WIDTH, u, y + HEIGHT / 2, v + HEIGHT / 2];
  const bend = Math.max(30, (end - begin) / 2);
  return shape("path", { class: "edge", d: `M${begin},${a} C${begin + bend},${a} ${end - bend},${b} ${end},${b}` });
}

function box(node) {
  const [x, y] = place(node);
  const group = shape("g", { class: `node ${node.kind}`, transform: `translate(${x},${y})` });
  const what = [node.kind, node.placement, node.unit].filter(Boolean).join(", ");
  const [label, how] = [node.label, node.how].map((text) => isolated(shortened(text, LONGEST_TITLE)));
  group.append(titled(`${label}: ${how} (${what})`), shape("rect", { width: WIDTH, height: HEIGHT, rx: 6 }));
  group.append(line(node.label, 17, "name"), line(what, 32, "what"));
  return group;
}

function line(text, y, kind) {
  const made = shape("text", { x: INDENT, y, class: kind });
  made.textContent = shortened(text, LONGEST);
  return made;
}

/** The beginning of a text that is too long, without half of a character at its end. */
function shortened(text, longest) {
  return text.length > longest ? `${[...text.slice(0, longest)].slice(0, -1).join("")}…` : text;
}

/** A text whose direction does not turn what stands beside it. */
function isolated(text) {
  return `\u2068${text}\u2069`;
}

/** Shortens a text of wide letters until it stays in its box; only what is shown has a width. */
function fit(text) {
  while (text.textContent.length > 2 && text.getComputedTextLength() > WIDTH - 2 * INDENT) {
    text.textContent = shortened(text.textContent, text.textContent.length - 1);
  }
}

function titled(text) {
  const made = shape("title", {});
  made.textContent = text;
  return made;
}

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  return made;
}
