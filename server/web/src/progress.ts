/** A running job: its events as they come (the stream resumes by itself), then the page again, with the report. */

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
  const source = new EventSource(`${place.dataset["job"]}/events`);
  let cancelling = false;
  const tell = (text: string) => {
    if (!cancelling) say.textContent = text;
  };
  const on = (kind: string, act: (data: Progress) => void) => {
    source.addEventListener(kind, (event) => act(JSON.parse((event as MessageEvent<string>).data) as Progress));
  };
  on("queued", (data) => tell(data.because ? `Waiting: ${data.because}` : "Waiting"));
  on("started", (data) => tell((data.attempt ?? 1) > 1 ? `Working, attempt ${data.attempt}` : "Working"));
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
