// The page: connects to the updates, and paints what has changed, once a frame at most.

import { Charts } from "./charts.js";
import { Control } from "./control.js";
import { paintPlan } from "./plan.js";
import { Run } from "./run.js";
import { Sections } from "./sections.js";
import { counted, duration, element, figure, moment, setText } from "./words.js";

const AGAIN_AFTER_MS = 30000;

const run = new Run();
const charts = new Charts(run, document.getElementById("charts"));
const control = new Control(run);
const sections = new Sections(run);
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
    setText("connection", "This page has ended with its job. `kungfu page RUN` shows the record again.");
    control.close();
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
  const keys = isWhole ? ["run", "peers", "membership", "plan", "curves", "items"] : Object.keys(data);
  if (!changed.size) requestAnimationFrame(paint);
  keys.forEach((key) => changed.add(key));
}

// ---- painting -------------------------------------------------------------------------------------------------------

function paint() {
  const parts = new Set(changed);
  changed.clear();
  if (parts.has("run") || parts.has("membership")) paintRun();
  if (parts.has("peers") || parts.has("run")) sections.paintPeers();
  if (parts.has("items")) sections.paintItems();
  if (parts.has("plan")) paintPlan(run.parts.plan);
  if (parts.has("curves") || parts.has("items")) charts.paint();
  control.paint(parts.has("items"));
}

function paintRun() {
  const { run: facts, membership } = run.parts;
  const newest = facts.newest ?? {};
  setText("title", facts.name ?? "kungfu");
  document.title = `${facts.name ?? ""} – kungfu`;
  const [word, tone] = stateOf(facts);
  setText("state", word);
  document.getElementById("state").dataset.tone = tone;
  setText("job-name", jobWords(facts));
  const size = membership?.size ?? newest.size;
  for (const [id, value] of [["size", size], ["batch", newest.batch], ["loss", newest.loss],
    ["samples-per-s", newest.samples_per_s]]) setText(id, figure(value));
  paintProgress(newest, facts.progress ?? {});
  if (size !== announced && size !== undefined) {
    if (announced !== null) setText("announcement", `${counted(size, "peer")} train now`);
    announced = size;
  }
  setText("target", targetWords(membership));
  setText("folder", `${facts.folder ?? ""}`);
  paintRemarks(facts);
}

/** The step and the epoch, of how many where that is known, and about how long it goes on. */
function paintProgress(newest, progress) {
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

function stateOf(facts) {
  if (facts.state === "running") return facts.ended ? ["training is over", "calm"] : ["running", "good"];
  // A record that was copied without the job's file.
  if (facts.state !== "over") return [facts.ended ? "over" : "state not known", "calm"];
  if (facts.code === 0) return ["over", "calm"];
  return [facts.code === null ? "ended without a word" : `ended with exit code ${facts.code}`, "bad"];
}

function jobWords(facts) {
  const words = facts.job ? [`job ${facts.job}`] : [];
  if (facts.began) words.push(`since ${moment(facts.began)}`);
  if (facts.ended) words.push(`for ${duration(facts.ended - facts.began)}: ${facts.how}`);
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

charts.listen();
sections.listen();
control.listen();
connect();
