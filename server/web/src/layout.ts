/** Where everything goes: graphviz' dot, in a worker, so that the page stays alive. Sizes are in CSS pixels. */

import type { Drawing } from "./comparison";

export interface Placed {
  width: number;
  height: number;
  boxes: { x: number; y: number; width: number; height: number }[]; // centres
  edges: string[]; // path data
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

let worker: Worker | undefined;

export function place(question: Question): Promise<Placed> {
  worker?.terminate(); // an older question is not of interest any more
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
