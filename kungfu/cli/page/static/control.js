// The buttons: each shows what would follow, and acts when that was confirmed; with the job's secret.

import { element, setText } from "./words.js";

const STORED = `kungfu-secret ${location.pathname}`; // the pages of several runs may have one origin
const WORDS = {
  resize: { title: "Resize the job", act: (size) => `Resize to ${size}` },
  release: { title: "End the hold on the size", act: () => "Let policies decide again" },
  checkpoint: { title: "Write a checkpoint", act: () => "Write it now" },
  stop: { title: "Stop the training", act: () => "Stop the training" },
};

const byId = (id) => document.getElementById(id);

export class Control {
  constructor(run) {
    this.run = run;
    this.action = "resize";
    this.seen = null; // what was shown: the request that is confirmed
    this.asked = null; // the request that was handed in, until the record tells what came of it
  }

  listen() {
    for (const action of Object.keys(WORDS)) byId(`${action}-button`).addEventListener("click", () => this.open(action));
    byId("request-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.look();
    });
    byId("request-act").addEventListener("click", () => this.act());
    byId("request-cancel").addEventListener("click", () => this.close());
    byId("request-size").addEventListener("input", () => this.forget());
    byId("request-hold").addEventListener("input", () => this.forget());
  }

  /** Shows the buttons while the job runs, and what came of the last request. */
  paint(hasNewItems) {
    byId("actions").hidden = this.run.parts.run.state !== "running";
    byId("release-button").hidden = !this.run.parts.membership?.held;
    if (!hasNewItems || this.asked === null) return;
    const told = this.run.ofKind("request").find((item) => item.request_id === this.asked);
    if (!told) return;
    setText("request-status", told.headline);
    if (told.state !== "accepted") this.asked = null;
  }

  close() {
    byId("request-dialog").close();
  }

  open(action) {
    this.action = action;
    setText("request-heading", WORDS[action].title);
    for (const row of ["size", "hold"]) byId(`request-${row}-row`).hidden = action !== "resize";
    byId("request-hold").value = "";
    const size = byId("request-size");
    size.required = action === "resize";
    const { membership, run } = this.run.parts;
    size.value = membership?.target ?? run.newest?.size ?? 1;
    if (membership) [size.min, size.max] = [membership.minimum, membership.maximum];
    const secret = secretKept();
    byId("request-secret-row").hidden = Boolean(secret);
    byId("request-secret").value = secret;
    this.forget();
    byId("request-dialog").showModal();
    if (secret && action !== "resize") this.look();
  }

  /** What was shown is that of another request. */
  forget() {
    this.seen = null;
    byId("request-act").hidden = true;
    byId("request-preview").replaceChildren();
    setText("request-error", "");
  }

  async look() {
    this.forget();
    const wanted = { action: this.action };
    if (this.action === "resize") {
      wanted.size = Number(byId("request-size").value);
      const hold = byId("request-hold").value;
      if (hold) wanted.hold = hold === "released" || Number(hold);
    }
    const told = await this.post("plan", wanted);
    if (told === null) return;
    byId("request-preview").replaceChildren(element("ul", { class: "lines" }, ...told.lines.map(line)));
    if (told.refusal || told.changes_nothing) return;
    // What is carried out is what was shown: in another view the job refuses it.
    this.seen = this.action === "resize" ? { ...wanted, if_view: told.view } : wanted;
    const button = byId("request-act");
    button.textContent = WORDS[this.action].act(wanted.size);
    button.classList.toggle("danger", this.action === "stop");
    button.hidden = false;
    button.focus();
  }

  async act() {
    if (this.seen === null) return;
    byId("request-act").disabled = true;
    const told = await this.post("requests", this.seen);
    byId("request-act").disabled = false;
    if (told === null) return;
    if (told.state === "refused") {
      setText("request-error", `refused: ${told.reason}`);
      return;
    }
    this.asked = told.id;
    setText("request-status", `${told.words}: ${told.state}`);
    this.close();
  }

  /** The answer to a request; `null` where there is none, which is told. */
  async post(path, body) {
    const secret = byId("request-secret").value.trim();
    try {
      const headers = { "content-type": "application/json", "kungfu-secret": secret };
      const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
      const told = await answer.json();
      if (answer.ok) {
        keepSecret(secret);
        return told;
      }
      if (answer.status === 403) this.askAgain();
      setText("request-error", told.error);
    } catch {
      setText("request-error", "the page does not answer; the job may be over");
    }
    return null;
  }

  askAgain() {
    keepSecret("");
    byId("request-secret-row").hidden = false;
    byId("request-secret").focus();
  }
}

/** A line of a plan; what it is about stands before the rest, in a column of `kungfu resize --plan`. */
function line(text) {
  const [, name, rest] = text.match(/^ {2}(\w+) {2,}(.*)$/) ?? [null, null, text.trim()];
  return element("li", {}, name === null ? null : element("span", { class: "name" }, name), rest);
}

// A browser may refuse to keep anything: then it asks each time.

function secretKept() {
  try {
    return sessionStorage.getItem(STORED) ?? "";
  } catch {
    return "";
  }
}

function keepSecret(secret) {
  try {
    if (secret) sessionStorage.setItem(STORED, secret);
    else sessionStorage.removeItem(STORED);
  } catch {
    // It is asked for again.
  }
}
