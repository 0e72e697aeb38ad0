/** A running job: its events as they come (the stream resumes by itself), then the page again, with the report. */

import { rememberJob } from "./jobs";

interface Progress {
  done?: number;
  total?: number | null;
  what?: string;
  attempt?: number;
  because?: string;
}

export function wake(place: HTMLElement): void {
  const say = place.querySelector<HTMLElement>("#say")!;
  const bar = place.querySelector("progress")!;
  const address = place.dataset["job"]!;
  const source = new EventSource(`${address}/events`);
  const clock = new Clock(place.querySelector<HTMLElement>("#elapsed")!, Number(place.dataset["elapsed"] ?? 0));
  let cancelling = false;
  let waiting = say.textContent?.startsWith("Waiting") ?? false;
  rememberJob(address.split("/").pop()!, document.querySelector("h1")?.textContent ?? "", "");
  const tell = (text: string) => {
    if (!cancelling) say.textContent = text;
  };
  const on = (kind: string, act: (data: Progress) => void) => {
    source.addEventListener(kind, (event) => act(JSON.parse((event as MessageEvent<string>).data) as Progress));
  };
  on("queued", (data) => tell(data.because ? `Waiting: ${data.because}` : "Waiting"));
  on("started", (data) => {
    tell((data.attempt ?? 1) > 1 ? `Working, attempt ${data.attempt}` : "Working");
    if (!waiting) return;
    waiting = false;
    clock.begin(0); // from now on the time of the work
    place.querySelector("#expects")!.textContent = "";
  });
  on("progress", ({ done, total, what }) => {
    tell(`Working: ${what ?? ""}${total ? ` (${done} of ${total})` : ""}`);
    if (total) {
      bar.max = total;
      bar.value = done ?? 0;
    } else {
      bar.removeAttribute("value");
    }
  });
  on("finished", () => {
    source.close();
    location.reload();
  });
  source.addEventListener("error", () => {
    if (source.readyState === EventSource.CLOSED) location.reload(); // 204: it ended meanwhile
    else tell("The connection was lost; connecting again");
  });
  place.querySelector("form")?.addEventListener("submit", () => {
    tell("Cancelling");
    cancelling = true;
  });
}

/** Seconds that pass, from a number that the server said: the two clocks need not agree. */
class Clock {
  private since = 0;

  constructor(private readonly place: HTMLElement, seconds: number) {
    this.begin(seconds);
    setInterval(() => this.show(), 1000);
  }

  begin(seconds: number): void {
    this.since = performance.now() - 1000 * seconds;
    this.show();
  }

  private show(): void {
    const seconds = Math.floor((performance.now() - this.since) / 1000);
    this.place.textContent = seconds < 120 ? `${seconds}\u00a0s` : `${Math.floor(seconds / 60)}\u00a0min ${seconds % 60}\u00a0s`;
  }
}
