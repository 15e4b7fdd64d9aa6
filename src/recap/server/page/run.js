// A run from the button to the last event: queued, started, watched, ended or cancelled.

import { events, stopped } from "./api.js";
import { gained, plural, seconds } from "./format.js";

export class Run {
  /** `request` gives the body for `path`, or throws what stands in the way; `finished` is told the last event. */
  constructor(controls, stage, { request, path = "/api/compare", finished = () => {} }) {
    Object.assign(this, { controls, stage, request, path, finished });
    this.going = null;
    controls.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.going) this.cancel();
      else this.start();
    });
    addEventListener("pagehide", () => this.cancel());
  }

  cancel() {
    this.going?.abort();
  }

  async start() {
    if (this.going) return;
    const going = (this.going = new AbortController());
    this.stage.clear();
    this.controls.running(true);
    this.controls.status("Starting");
    this.controls.problem(null);
    try {
      const body = await this.request();
      this.own = "full" in body ? null : this.controls.model.schedule;
      for await (const event of events(this.path, body, going.signal)) await this.take(named(event));
    } catch (error) {
      if (stopped(error)) this.controls.status("Cancelled.");
      else {
        this.controls.status("");
        this.controls.problem(error.message);
      }
      this.stage.halt();
    } finally {
      if (this.going === going) this.rest();
    }
  }

  /** Ready for the next run. */
  rest() {
    this.going = null;
    this.controls.running(false);
  }

  async take(event) {
    if (event.event === "queued") {
      const ahead = event.position - 1;
      const before = ahead ? `${plural(ahead, "other")} before yours` : "yours is next";
      this.controls.status(`Position ${event.position} in the queue: ${before}`);
    } else if (event.event === "started") {
      const { full, local, tokens } = event.schedule;
      const own = this.own && `${this.own.full}+${this.own.local}`;
      const fewer = own && own !== `${full}+${local}` ? `: ${full}+${local} evaluations for ${plural(tokens, "token")}, in proportion to ${own} for all` : "";
      this.controls.status((event.variants.length > 1 ? "Both runs are under way" : "The run is under way") + fewer);
      this.stage.begin(event);
    } else if (event.event === "frame") {
      this.stage.frame(event);
    } else if (event.event === "image" || event.event === "text") {
      await this.stage.final(event);
    } else if (event.event === "done") {
      this.rest();
      const { figure, words, about } = event.speedup ? gained(event.speedup) : {};
      const gain = figure ? `reused was ${figure} ${words}` : words;
      const all = Object.values(event.seconds);
      this.controls.status(gain ? `Finished: ${gain}. ${about}` : `Finished in ${seconds(all[0])}.`);
      this.finished(event);
      await this.stage.finish(event);
    }
  }
}

/** An event of texts in the words of those of images: which one, and how many there are. */
const named = (event) => ({ ...event, image: event.image ?? event.text, images: event.images ?? event.texts });
