/** The layout itself: graphviz' dot, wherever it runs. */

import { instance } from "@viz-js/viz";

import { type Placed, type Question, spans } from "./layout";

const POINTS = 72; // in an inch, which is what graphviz measures boxes in; one point is one pixel here
const LARGE = 250; // boxes from which dot is told to hurry
const TANGLED = 1000; // ranks passed by, from which edges are straight
const HOPELESS = 10_000; // from which crossings are not looked at much

interface Answer {
  bb: string;
  objects?: { _gvid: number; name: string; pos: string }[];
  edges?: { tail: number; head: number; pos: string }[]; // in an order of graphviz' own
}

export async function placed(question: Question): Promise<Placed> {
  const viz = await instance();
  const tangle = spans(question.boxes.length, question.edges);
  const effort = tangle > HOPELESS ? 0.02 : 0.1;
  const hurry =
    question.boxes.length > LARGE || tangle > TANGLED
      ? { nslimit: effort, nslimit1: effort, mclimit: effort, searchsize: 5, splines: tangle > TANGLED ? "line" : "polyline" }
      : {};
  const text = viz.renderString(
    {
      graphAttributes: { ranksep: 0.32, nodesep: 0.16, ...hurry },
      nodeAttributes: { shape: "box", fixedsize: true, label: "" },
      nodes: question.boxes.map((box, number) => ({
        name: `n${number}`, attributes: { width: box.width / POINTS, height: box.height / POINTS },
      })),
      edges: question.edges.map(([from, to]) => ({ tail: `n${from}`, head: `n${to}`, attributes: { arrowsize: 0.5 } })),
    },
    { format: "json0", engine: "dot" },
  );
  const found = JSON.parse(text) as Answer;
  const [, , width = 0, height = 0] = found.bb.split(",").map(Number);
  const boxes = question.boxes.map((box) => ({ x: 0, y: 0, ...box }));
  const numbers = new Map<number, number>();
  for (const object of found.objects ?? []) {
    const [x = 0, y = 0] = object.pos.split(",").map(Number);
    const number = Number(object.name.slice(1));
    numbers.set(object._gvid, number);
    Object.assign(boxes[number]!, { x, y: height - y });
  }
  const paths = new Map<string, string>();
  for (const edge of found.edges ?? []) {
    paths.set(`${numbers.get(edge.tail)} ${numbers.get(edge.head)}`, path(edge.pos, height));
  }
  return { width, height, boxes, edges: question.edges.map(([from, to]) => paths.get(`${from} ${to}`) ?? "") };
}

/** `e,x,y x,y …` (the arrow's tip, then a chain of cubic curves) as path data. */
function path(text: string, height: number): string {
  const parts = text.split(" ");
  const tip = parts[0]!.startsWith("e,") ? parts.shift()!.slice(2) : undefined;
  const point = (pair: string) => {
    const [x = 0, y = 0] = pair.split(",").map(Number);
    return `${x.toFixed(1)} ${(height - y).toFixed(1)}`;
  };
  const [first, ...rest] = parts;
  const end = tip ? ` L${point(tip)}` : "";
  return first ? `M${point(first)} C${rest.map(point).join(" ")}${end}` : "";
}
