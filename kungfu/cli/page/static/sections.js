// Tables and lists of the page: who is where, decisions, changes, failures, and all that happened.

import { bytes, duration, element, figure, moment } from "./words.js";

const SHOWN_AT_ONCE = 30;
const FOLDED = 10; // rows of a table or a list, until all of them are asked for

export class Sections {
  constructor(run) {
    this.run = run;
    this.shown = SHOWN_AT_ONCE;
    this.kind = "";
    this.painted = new Map(); // of each list, the elements by id, with the item that each one shows
    this.unfolded = new Set(); // the lists of which all items are shown
  }

  listen() {
    document.getElementById("story-kind").addEventListener("change", (event) => {
      [this.kind, this.shown] = [event.target.value, SHOWN_AT_ONCE];
      this.paintStory();
    });
    document.getElementById("story-more").addEventListener("click", () => {
      this.shown += SHOWN_AT_ONCE;
      this.paintStory();
    });
    for (const button of document.querySelectorAll("button.more")) {
      button.addEventListener("click", () => {
        const list = button.getAttribute("aria-controls");
        if (!this.unfolded.delete(list)) this.unfolded.add(list);
        this.paintPeers();
        this.paintItems();
      });
    }
  }

  paintPeers() {
    const rows = this.run.parts.peers ?? [];
    document.getElementById("no-peers").hidden = rows.length > 0;
    document.getElementById("peers").hidden = rows.length === 0;
    this.folded("peers-body", rows, peerRow);
    this.paintUsage();
  }

  /** The usage of the processes changes every few seconds: rows stay, and so does a focus in them. */
  paintUsage() {
    for (const row of document.getElementById("peers-body").children) {
      const [cpu, memory] = this.run.parts.usage?.[row.dataset.peer] ?? [null, null];
      const words = memory === null ? "–" : `${cpu === null ? "" : `${figure(cpu)} %, `}${bytes(memory)}`;
      const cell = row.querySelector("[data-usage]");
      if (cell.textContent === words) continue;
      cell.firstChild.textContent = words;
      cell.toggleAttribute("data-unknown", memory === null);
    }
  }

  paintItems() {
    const { run } = this;
    const [decisions, changes, failures] = [run.ofKind("decision"), run.ofKind("change"), run.ofKind("failure")];
    document.getElementById("no-decisions").hidden = decisions.length > 0;
    document.getElementById("decisions").hidden = decisions.length === 0;
    document.getElementById("no-changes").hidden = changes.length > 0;
    document.getElementById("failures").hidden = failures.length === 0;
    this.folded("decisions-body", decisions, decisionRow);
    this.folded("changes-list", changes, (item) => changeItem(item, run));
    this.folded("failures-list", failures, (item) => storyItem(item, run));
    this.paintStory();
  }

  paintStory() {
    const kinds = this.kind ? [this.kind] : ["decision", "change", "failure", "request", "checkpoint", "setting", "event"];
    const items = this.run.ofKind(...kinds);
    document.getElementById("story-more").hidden = items.length <= this.shown;
    this.list("story-list", items.slice(0, this.shown), (item) => storyItem(item, this.run));
  }

  /** Shows the first items of a list, or all of them once its button was pressed. */
  folded(id, items, make) {
    const [isOpen, button] = [this.unfolded.has(id), document.querySelector(`button.more[aria-controls="${id}"]`)];
    this.list(id, isOpen ? items : items.slice(0, FOLDED), make);
    button.hidden = items.length <= FOLDED;
    button.setAttribute("aria-expanded", String(isOpen));
    const words = isOpen ? `Show ${FOLDED} only` : `Show all ${figure(items.length)}`;
    if (button.textContent !== words) button.textContent = words;
  }

  /** Shows items in their order; elements of items that have not changed stay as they are. */
  list(id, items, make) {
    const target = document.getElementById(id);
    const before = this.painted.get(id) ?? new Map();
    const after = new Map();
    for (const item of items) {
      const text = JSON.stringify(item);
      const known = before.get(item.id);
      after.set(item.id, known?.text === text ? known : { text, element: make(item) });
    }
    const elements = [...after.values()].map((one) => one.element);
    if (elements.length !== target.children.length || elements.some((one, at) => target.children[at] !== one)) {
      target.replaceChildren(...elements);
    }
    this.painted.set(id, after);
  }
}

function row(cells, attributes = {}) {
  const made = element("tr", { role: "row", ...attributes });
  cells.forEach(([name, ...content], at) => {
    const cell = at ? element("td", { role: "cell" }) : element("th", { role: "rowheader", scope: "row" });
    cell.dataset.label = name;
    if (content[0] === "–") cell.dataset.unknown = "";
    cell.append(element("div", {}, ...content));
    made.append(cell);
  });
  return made;
}

function peerRow(peer) {
  const speed = peer.speed === null ? "–" : `${figure(peer.speed)} of the median`;
  const slow = peer.is_slow ? element("span", { class: "badge", "data-tone": "bad" }, "slow") : null;
  const made = row([
    ["peer", String(peer.id)], ["rank", figure(peer.rank)], ["host", peer.host || "–"],
    ["process", peer.pid === null ? "–" : String(peer.pid)], ["state", peer.state], ["since", moment(peer.since)],
    ["speed", speed, ...(slow ? [" ", slow] : [])], ["usage", "–"],
    ["log", element("button", { type: "button", class: "small", "data-log": peer.id, "aria-label": `Log of peer ${peer.id}` }, "log")],
  ], { "data-peer": peer.id, "data-state": peer.state });
  made.children[7].dataset.usage = "";
  return made;
}

const TONES = { "carried out": "good", refused: "bad", superseded: "calm", held: "calm", decided: "calm", called: "calm" };

function decisionRow(item) {
  const saw = item.saw.map(([name, value]) => element("li", {}, `${name} ${value}`));
  const notes = [...(item.contest ?? [])].map((text) => element("li", {}, text));
  const badge = element("span", { class: "badge", "data-tone": TONES[item.state] ?? "calm" }, item.state);
  return row([
    ["step", figure(item.step)], ["who", item.rule],
    ["saw", saw.length + notes.length ? element("ul", { class: "plain" }, ...saw, ...notes) : "–"],
    ["wanted", item.asked], ["what came of it", badge, " ", item.outcome],
  ], { "data-state": item.state });
}

function changeItem(item, run) {
  const made = storyItem(item, run);
  made.insertBefore(parts(item), made.children[1] ?? null);
  return made;
}

/** The parts of a stop as a bar, each as wide as it was long; the numbers stand in the text below. */
function parts(item) {
  const stopped = item.parts.filter((part) => part.phase === "stopped" && part.seconds > 0);
  const known = stopped.reduce((sum, part) => sum + part.seconds, 0);
  const whole = Math.max(known, item.stop_s, 1e-9);
  const words = stopped.map((part) => `${part.name} ${duration(part.seconds)}`).join(", ");
  const bar = element("div", { class: "parts", role: "img", "aria-label": `stood still for ${duration(item.stop_s)}: ${words}` });
  stopped.forEach((part, nth) => {
    const piece = element("span", { title: `${part.name} ${duration(part.seconds)}`, "data-nth": nth % 6 });
    piece.style.width = `${(100 * part.seconds) / whole}%`;
    if (part.seconds / whole > 0.18) piece.append(part.name);
    bar.append(piece);
  });
  return bar;
}

function storyItem(item, run) {
  const at = item.time === null ? "" : `+${duration(Math.max(0, run.elapsed(item.time)))}`;
  const head = element("p", { class: "headline" }, element("span", { class: "at" }, at), " ", item.headline);
  const details = item.details.length ? element("ul", {}, ...item.details.map((text) => element("li", {}, text))) : null;
  return element("li", { "data-kind": item.kind }, head, details);
}
