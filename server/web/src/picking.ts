/** Comparing by picking: the jobs of this browser join the models that the page lists. */

import { html } from "./dom";
import { seenJobs } from "./jobs";

const ENDED_BADLY = ["failed", "cancelled", "not kept any more"];

export function wake(place: HTMLElement): void {
  const jobs = seenJobs().filter((job) => !ENDED_BADLY.includes(job.said));
  if (jobs.length === 0) return;
  for (const select of place.querySelectorAll("select")) {
    const chosen = select.value;
    const group = html("optgroup", { label: "Jobs of this browser" });
    for (const job of jobs) {
      const name = `${job.name || "job"} (${job.id.slice(0, 8)})`;
      for (const [value, words] of [[`${job.id}/result`, `${name}, result`], [job.id, `${name}, original`]] as const) {
        if (![...select.options].some((option) => option.value === value)) group.append(html("option", { value }, words));
      }
    }
    select.prepend(group);
    select.prepend(...[...select.options].filter((option) => option.value === ""));
    select.value = chosen;
  }
}
