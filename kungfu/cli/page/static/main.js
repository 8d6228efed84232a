// The page: connects to the updates, and paints what has changed, once a frame at most.

import { Charts } from "./charts.js";
import { Control } from "./control.js";
import { Log } from "./log.js";
import { paintPlan } from "./plan.js";
import { Run } from "./run.js";
import { Sections } from "./sections.js";
import { counted, duration, element, figure, moment, setText, stateOf } from "./words.js";

const AGAIN_AFTER_MS = 30000;

const run = new Run();
const charts = new Charts(run);
const control = new Control(run);
const sections = new Sections(run);
const log = new Log();
const changed = new Set();
let isOver = false;
let announced = null;

// ---- the connection -------------------------------------------------------------------------------------------------

function connect() {
  const source = new EventSource("updates");
  source.addEventListener("open", () => setText("connection", ""));
  source.addEventListener("snapshot", (event) => take(event, (whole) => run.replace(whole), true));
  source.addEventListener("update", (event) => take(event, (update) => run.add(update), false));
  source.addEventListener("over", () => {
    isOver = true;
    source.close();
    setText("connection", "This page has ended with its job.");
    control.close();
    log.end();
  });
  source.addEventListener("error", () => {
    if (isOver) return;
    setText("connection", "The connection is lost; trying again…");
    if (source.readyState === EventSource.CLOSED) refused();
  });
}

/** The server has answered with something else than updates: it says why, and is asked again later. */
async function refused() {
  try {
    const answer = await fetch("updates", { headers: { accept: "text/plain" }, signal: AbortSignal.timeout(5000) });
    if (!answer.ok) setText("connection", await answer.text());
    else await answer.body.cancel();
  } catch {
    // Nobody answers: the message stands.
  }
  setTimeout(connect, AGAIN_AFTER_MS);
}

function take(event, apply, isWhole) {
  const data = JSON.parse(event.data);
  apply(data);
  const keys = isWhole ? ["run", "peers", "membership", "waiting", "usage", "plan", "curves", "items"] : Object.keys(data);
  if (!changed.size) requestAnimationFrame(paint);
  keys.forEach((key) => changed.add(key));
}

// ---- painting -------------------------------------------------------------------------------------------------------

function paint() {
  const parts = new Set(changed);
  changed.clear();
  if (["run", "membership", "waiting"].some((key) => parts.has(key))) paintRun();
  if (parts.has("peers")) sections.paintPeers();
  if (parts.has("usage")) sections.paintUsage();
  if (parts.has("items")) sections.paintItems();
  if (parts.has("plan")) paintPlan(run.parts.plan);
  if (parts.has("curves") || parts.has("items")) charts.paint();
  control.paint(parts.has("items"));
}

function paintRun() {
  const { run: facts, membership, waiting } = run.parts;
  const newest = facts.newest ?? {};
  setText("title", facts.name ?? "kungfu");
  document.title = `${facts.name ?? ""} – kungfu`;
  const [word, tone] = stateOf(facts);
  setText("state", word);
  document.getElementById("state").dataset.tone = tone;
  setText("job-name", jobWords(facts));
  setText("command", facts.command ?? "");
  paintEnding(facts);
  const size = membership?.size ?? newest.size;
  for (const [id, value] of [["size", size], ["batch", newest.batch], ["loss", newest.loss],
    ["samples-per-s", newest.samples_per_s]]) setText(id, figure(value));
  paintProgress(newest, facts.progress ?? {});
  if (size !== announced && size !== undefined) {
    if (announced !== null) setText("announcement", `${counted(size, "peer")} train now`);
    announced = size;
  }
  setText("change", facts.why ? `newest change: ${facts.why}` : "");
  setText("waiting", waiting ? `waits for peers: ${waiting}` : "");
  setText("target", targetWords(membership));
  setText("folder", `${facts.folder ?? ""}`);
  paintRemarks(facts);
}

/** The step and the epoch, of how many where that is known, and about how long it goes on. */
function paintProgress(newest, progress) {
  const bar = document.getElementById("progress-bar");
  bar.hidden = typeof progress.fraction !== "number";
  bar.value = progress.fraction ?? 0;
  const knowsEnd = typeof progress.steps_left === "number" && newest.step !== undefined;
  setText("step", figure(newest.step));
  setText("last-step", knowsEnd ? ` of ${figure(newest.step + progress.steps_left)}` : "");
  setText("epoch", figure(progress.epoch ?? newest.epoch));
  setText("last-epoch", progress.epochs ? ` of ${figure(progress.epochs)}` : "");
  const words = [];
  if (progress.fit > 1) words.push(`fit ${figure(progress.fit)} of the program`);
  if (progress.samples) words.push(`${counted(progress.samples, "sample")} so far`);
  if (progress.time_left) words.push(`about ${progress.time_left} left`);
  setText("progress", words.join(", "));
}

/** At the end: how it came, and where the record is. */
function paintEnding(facts) {
  const target = document.getElementById("ending");
  const [, tone] = stateOf(facts);
  target.hidden = tone !== "good" && tone !== "bad";
  target.dataset.tone = tone;
  const lasting = facts.ended && facts.began ? ` after ${duration(facts.ended - facts.began)}` : "";
  const how = facts.how || (tone === "bad" ? "its kungfu-run was killed, or its machine has stopped" : "");
  const words = `${tone === "good" ? "Finished" : facts.is_failed ? "Failed" : "Ended"}${lasting}${how ? `: ${how}` : ""}. The record is in `;
  const [folder, command] = [facts.folder ?? "", `kungfu why ${facts.folder ?? ""}`];
  if (target.hidden || target.textContent === `${words}${folder}; ${command} tells what was decided, and why.`) return;
  target.replaceChildren(words, element("code", {}, folder), "; ", element("code", {}, command), " tells what was decided, and why.");
}

function jobWords(facts) {
  const words = facts.job ? [`job ${facts.job}`] : [];
  if (facts.began) words.push(`since ${moment(facts.began)}`);
  if (facts.hosts?.length > 1) words.push(`on ${facts.hosts.join(", ")}`);
  if (facts.leader) words.push(`led by ${facts.leader}`);
  return words.join(" · ");
}

function targetWords(membership) {
  if (!membership) return "";
  const going = membership.target === membership.size ? "" : `on the way to ${counted(membership.target, "peer")}; `;
  const asked = membership.request ? `under way: ${membership.request}; ` : "";
  const held = membership.held ? `${membership.held}; ` : "";
  return `${going}${asked}${held}the job takes ${figure(membership.minimum)} to ${figure(membership.maximum)} peers`;
}

function paintRemarks(facts) {
  const remarks = [...(facts.remarks ?? [])];
  if (facts.left_out?.length) remarks.push(`no room for the curves of ${facts.left_out.join(", ")}`);
  const list = document.getElementById("remarks");
  if ([...list.children].map((one) => one.textContent).join("\n") === remarks.join("\n")) return;
  list.replaceChildren(...remarks.map((text) => element("li", {}, text)));
}

// A page in a list of runs leads back to the list.
if (/\/run\/[^/]+\/$/.test(location.pathname)) document.getElementById("job").prepend(element("a", { href: "../../" }, "all runs"), " ");
charts.listen();
sections.listen();
log.listen();
control.listen();
connect();
