// The list of runs: read again every few seconds; those that are ticked are compared.

import { counted, duration, element, figure, moment, setText, stateOf } from "./words.js";

const AGAIN_AFTER_MS = 5000;
const MOST_COMPARED = 8;
const CELLS = ["state", "began", "lasted", "peers", "step", "loss", "samples/s", "newest change"];

const byId = (id) => document.getElementById(id);
const rows = new Map(); // by name: the row, its box and its cells, which stay and so keep a focus
let ticked = [];
let comparing = false;

async function read() {
  try {
    const answer = await fetch("runs.json", { signal: AbortSignal.timeout(60000) });
    paint(await answer.json());
    setText("connection", "");
  } catch {
    setText("connection", "The page does not answer; trying again…");
  }
  setTimeout(readWhenSeen, AGAIN_AFTER_MS);
}

function readWhenSeen() {
  if (!document.hidden) read();
  else document.addEventListener("visibilitychange", readWhenSeen, { once: true });
}

function paint({ folder, count, runs }) {
  setText("folder", folder);
  setText("count", count > runs.length ? `the newest ${counted(runs.length, "run")} of ${figure(count)}` : "");
  runs.forEach((run) => paintRow(run, rows.get(run.name) ?? makeRow(run.name)));
  const wanted = runs.map((run) => rows.get(run.name).row);
  const body = byId("runs-body");
  if (wanted.length !== body.children.length || wanted.some((row, at) => body.children[at] !== row)) body.replaceChildren(...wanted);
  ticked = ticked.filter((name) => runs.some((run) => run.name === name));
  paintButton();
}

function makeRow(name) {
  const box = element("input", { type: "checkbox", "aria-label": `Compare ${name}` });
  box.addEventListener("change", () => {
    ticked = ticked.filter((one) => one !== name);
    if (box.checked) ticked.push(name);
    paintButton();
  });
  const command = element("code", {});
  const link = element("a", { href: `run/${encodeURIComponent(name)}/` }, name);
  const head = element("th", { role: "rowheader", scope: "row" }, element("div", {}, box, " ", link, element("div", { class: "command" }, command)));
  head.dataset.label = "run";
  const cells = CELLS.map((label) => {
    const cell = element("td", { role: "cell", class: label === "newest change" ? "" : "number" }, element("div", {}));
    cell.dataset.label = label;
    return cell;
  });
  const badge = element("span", { class: "badge" });
  cells[0].firstChild.append(badge);
  const made = { row: element("tr", { role: "row" }, head, ...cells), box, command, badge, cells };
  rows.set(name, made);
  return made;
}

function paintRow(run, { box, command, badge, cells }) {
  const [word, tone] = stateOf(run);
  const until = run.ended ?? (run.state === "running" ? Date.now() / 1000 : run.newest.time);
  const words = [word, moment(run.began), duration(until - run.began), figure(run.newest.size), figure(run.newest.step),
    figure(run.newest.loss), figure(run.newest.samples_per_s), run.remark || run.how || [run.why, run.waiting].filter(Boolean).join("; ") || "–"];
  const shown = [badge, ...cells.slice(1).map((cell) => cell.firstChild)];
  shown.forEach((target, at) => target.textContent === words[at] || (target.textContent = words[at]));
  cells.forEach((cell, at) => cell.toggleAttribute("data-unknown", words[at] === "–"));
  badge.dataset.tone = tone;
  box.checked = ticked.includes(run.name); // a run that was gone for a while is ticked no more
  if (command.textContent !== run.command) command.textContent = run.command;
}

function paintButton() {
  byId("compare").disabled = comparing || ticked.length < 2 || ticked.length > MOST_COMPARED;
  const words = ticked.length > MOST_COMPARED ? `At most ${MOST_COMPARED} runs are compared.` : "Tick two runs or more to compare them.";
  setText("hint", ticked.length === 1 ? `${ticked[0]} is ticked; tick another one to compare it with.` : words);
}

// ---- the comparison -------------------------------------------------------------------------------------------------

async function compare() {
  comparing = true;
  paintButton();
  byId("comparison").hidden = false;
  setText("comparison-status", `${counted(ticked.length, "run")} are being read…`);
  byId("comparison-heading").focus();
  try {
    const answer = await fetch(`compare.json?${new URLSearchParams(ticked.map((name) => ["run", name]))}`);
    const told = await answer.json();
    setText("comparison-status", told.error ?? "");
    if (answer.ok) paintComparison(told);
  } catch {
    setText("comparison-status", "The page does not answer; try again.");
  }
  comparing = false;
  paintButton();
}

function paintComparison({ names, rows: figures, notes, plot }) {
  const header = (attributes, text) => element("th", attributes, text);
  const head = element("tr", { role: "row" }, header({ role: "columnheader", scope: "col" }, ""),
    ...names.map((name) => header({ role: "columnheader", scope: "col" }, name)));
  const lines = figures.map(([title, ...cells]) => element("tr", { role: "row" }, header({ role: "rowheader", scope: "row" }, title),
    ...cells.map((text) => element("td", { role: "cell" }, text))));
  byId("comparison-table").replaceChildren(element("thead", { role: "rowgroup" }, head), element("tbody", { role: "rowgroup" }, ...lines));
  byId("comparison-notes").replaceChildren(...notes.map((note) => element("li", {}, note)));
  const picture = byId("comparison-plot");
  picture.hidden = !plot;
  if (plot) picture.src = `data:image/png;base64,${plot}`;
}

byId("compare").addEventListener("click", compare);
byId("comparison-close").addEventListener("click", () => {
  byId("comparison").hidden = true;
  byId("compare").focus();
});
read();
