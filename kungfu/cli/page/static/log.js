// The end of a peer's log, read again every few seconds while it is open; a text, whatever is in it.

import { figure, setText } from "./words.js";

const AGAIN_AFTER_MS = 3000;

const byId = (id) => document.getElementById(id);

export class Log {
  constructor() {
    this.peer = null;
  }

  listen() {
    byId("peers-body").addEventListener("click", (event) => {
      const button = event.target.closest("button[data-log]");
      if (button) this.open(button.dataset.log);
    });
    byId("log-close").addEventListener("click", () => this.close());
    this.timer = setInterval(() => this.peer !== null && !document.hidden && this.read(), AGAIN_AFTER_MS);
  }

  /** The page has ended, and nobody answers any more. */
  end() {
    clearInterval(this.timer);
  }

  async open(peer) {
    this.peer = peer;
    setText("log-heading", `The last lines of peer ${figure(Number(peer))}`);
    setText("log-text", "");
    byId("log").hidden = false;
    await this.read();
    byId("log-text").focus();
  }

  close() {
    const [peer, log] = [this.peer, byId("log")];
    [this.peer, log.hidden] = [null, true];
    document.querySelector(`#peers-body button[data-log="${peer}"]`)?.focus();
  }

  async read() {
    const [peer, target] = [this.peer, byId("log-text")];
    const isAtEnd = target.scrollTop + target.clientHeight >= target.scrollHeight - 4;
    try {
      const answer = await fetch(`logs/${peer}`, { signal: AbortSignal.timeout(10000) });
      const text = await answer.text();
      if (peer !== this.peer) return;
      setText("log-text", text || "(it has printed nothing yet)");
    } catch {
      // The page does not answer, as after the end of its job: what was read stays.
      return;
    }
    if (isAtEnd) target.scrollTop = target.scrollHeight;
  }
}
