/** The jobs that this browser has seen, kept in its local storage: no account, and nothing of it is sent. */

import { button, html } from "./dom";

export interface SeenJob {
  id: string;
  name: string;
  said: string; // the outcome in words, as the job's page has it; empty while it is not known
  at: number; // milliseconds, when it was first seen
}

const KEY = "superopt.jobs";
const MOST = 50;
const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/** The jobs, the newest first; none where storage is switched off or holds something else. */
export function seenJobs(): SeenJob[] {
  try {
    const found: unknown = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(found) ? found.filter(isJob) : [];
  } catch {
    return [];
  }
}

function isJob(value: unknown): value is SeenJob {
  const job = value as SeenJob | null;
  return typeof job === "object" && job !== null && typeof job.id === "string" && ID.test(job.id) && typeof job.name === "string"
    && typeof job.said === "string" && typeof job.at === "number";
}

function keep(jobs: SeenJob[]): void {
  try {
    localStorage.setItem(KEY, JSON.stringify(jobs.slice(0, MOST)));
  } catch {
    // storage is switched off or full: the list is a convenience, and pages work without it
  }
}

/** Remember a job, or what has become of it. */
export function rememberJob(id: string, name: string, said: string): void {
  if (!ID.test(id)) return;
  const jobs = seenJobs();
  const known = jobs.find((job) => job.id === id);
  if (known) Object.assign(known, { name: name || known.name, said: said || known.said });
  else jobs.unshift({ id, name, said, at: Date.now() });
  keep(jobs);
}

/** The page of a job, running or ended. */
export function wake(place: HTMLElement): void {
  const { job = "", name = "", said = "" } = place.dataset;
  rememberJob(job.split("/").pop() ?? "", name, said);
}

/** The list on the first page; a job that ended since is looked up. */
export function wakeList(place: HTMLElement): void {
  const jobs = seenJobs();
  if (jobs.length === 0) return;
  const list = html("ul", { class: "seen" });
  for (const job of jobs) list.append(row(job));
  const forget = button("Clear this list", () => {
    keep([]);
    place.hidden = true;
  });
  place.querySelector(".list")!.replaceChildren(list, forget);
  place.hidden = false;
}

function row(job: SeenJob): HTMLLIElement {
  const said = html("span", { class: "fine" }, job.said || "…");
  const when = new Date(job.at).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
  const item = html("li", {}, html("a", { href: `/jobs/${job.id}` }, job.name || `job ${job.id.slice(0, 8)}`), " ", said, " ", html("time", { class: "fine" }, when));
  if (!job.said) void lookUp(job, said);
  return item;
}

async function lookUp(job: SeenJob, said: HTMLElement): Promise<void> {
  try {
    const answer = await fetch(`/v1/jobs/${job.id}`);
    const state = answer.status === 404 ? "not kept any more" : String(((await answer.json()) as { state?: string }).state ?? "");
    said.textContent = state;
    if (["failed", "cancelled", "not kept any more"].includes(state)) rememberJob(job.id, job.name, state);
  } catch {
    said.textContent = "";
  }
}
