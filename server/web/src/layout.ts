/** Where everything goes: graphviz' dot, in a worker, so that the page stays alive. Sizes are in CSS pixels. */

import type { Drawing } from "./comparison";

export interface Placed {
  width: number;
  height: number;
  boxes: { x: number; y: number; width: number; height: number }[]; // centres
  edges: string[]; // path data
}

/** A layout that was made before, and of which question: `place-NAME.json`, beside the scripts (`record.mjs`). */
export interface Kept {
  question: string;
  placed: Placed;
}

export interface Question {
  boxes: { width: number; height: number }[];
  edges: [number, number][];
}

const HEIGHT = 24;
const CHARACTER = 6.6;

export function questionOf(drawing: Drawing): Question {
  return {
    boxes: drawing.boxes.map((box) => ({ width: Math.max(46, Math.min(220, box.label.length * CHARACTER + 18)), height: HEIGHT })),
    edges: drawing.edges.map(([from, to]) => [from, to]),
  };
}

/** How many ranks all edges pass by together: what dot has to route, and takes its time for. */
export function spans(count: number, edges: [number, number, ...unknown[]][]): number {
  const out: number[][] = Array.from({ length: count }, () => []);
  const due = new Array<number>(count).fill(0);
  for (const [from, to] of edges) {
    out[from]!.push(to);
    due[to]! += 1;
  }
  const rank = new Array<number>(count).fill(0);
  const ready = due.flatMap((n, node) => (n === 0 ? [node] : []));
  for (let node = ready.pop(); node !== undefined; node = ready.pop()) {
    for (const other of out[node]!) {
      rank[other] = Math.max(rank[other]!, rank[node]! + 1);
      if ((due[other]! -= 1) === 0) ready.push(other);
    }
  }
  return edges.reduce((sum, [from, to]) => sum + Math.max(0, rank[to]! - rank[from]! - 1), 0);
}

/** A name for a question: equal ones have equal names, and two others hardly ever (64 bits). */
export function nameOf(question: Question): string {
  let [a, b] = [0xdeadbeef, 0x41c6ce57];
  for (const character of JSON.stringify(question)) {
    const code = character.codePointAt(0)!;
    a = Math.imul(a ^ code, 2654435761);
    b = Math.imul(b ^ code, 1597334677);
  }
  return `${(a >>> 0).toString(16)}${(b >>> 0).toString(16)}`;
}

let worker: Worker | undefined;

/** Lay out, or take what was laid out before where that answers the same question. */
export async function place(question: Question, before?: Promise<Kept | undefined>): Promise<Placed> {
  worker?.terminate(); // an older question is not of interest any more
  const kept = await before;
  if (kept?.question === nameOf(question)) return kept.placed;
  const mine = new Worker(new URL("./layout.worker.ts", import.meta.url), { type: "module" });
  worker = mine;
  return new Promise((resolve, reject) => {
    mine.addEventListener("message", (event: MessageEvent<Placed | string>) => {
      mine.terminate();
      if (typeof event.data === "string") reject(new Error(event.data));
      else resolve(event.data);
    });
    mine.addEventListener("error", (event) => reject(new Error(event.message || "the layout could not be loaded")));
    mine.postMessage(question);
  });
}
