/** Wakes whatever interactive part the page has. Every page is readable, and every form works, without this. */

const PARTS: Record<string, () => Promise<{ wake(place: HTMLElement): void }>> = {
  "optimize-form": () => import("./optimize"),
  progress: () => import("./progress"),
  compare: () => import("./compare"),
  replay: () => import("./replay"),
  filters: () => import("./filters"),
  try: () => import("./trial"),
  models: () => import("./table"),
  job: () => import("./jobs"),
  seen: async () => ({ wake: (await import("./jobs")).wakeList }),
  two: () => import("./picking"),
  short: () => import("./copying"),
  playground: () => import("./completion"),
  operations: () => import("./tryout"),
};

for (const [id, load] of Object.entries(PARTS)) {
  const place = document.getElementById(id);
  if (place) void load().then((part) => part.wake(place));
}
