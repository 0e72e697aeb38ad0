/** What the service says of input and result (`superopt.comparison`), and what of it is drawn. */

import { spans } from "./layout";

export type Side = "both" | "before" | "after";

export interface UnionNode {
  op: string;
  name: string;
  side: Side;
  type: string;
  attributes?: Record<string, string>;
  weights?: string[];
  more_weights?: number;
  rules?: string[];
  region?: number;
  renamed?: string;
}

export interface Region {
  before: number[];
  after: number[];
  rules: string[];
  like: string;
}

export interface Comparison {
  nodes?: UnionNode[];
  edges?: [number, number, Side][];
  regions?: Region[];
  timeline?: Record<"before" | "after", [node: number, us: number, alive: number][]>;
  omitted?: string;
}

/** A box: one node of the union, or several that are folded into one. */
export interface Box {
  key: string;
  side: Side;
  label: string;
  members: number[];
  folded: boolean;
}

export interface Drawing {
  boxes: Box[];
  edges: [number, number, Side][];
  folded: boolean;
  boxOf: Map<number, number>;
}

const FOLD_ABOVE = 800; // nodes of the union from which repeated and unchanged parts are folded
const TANGLE = 8000; // ranks that edges pass by together, from which they are folded too: blocks that are densely connected
const MOST_DRAWN = 900;
const ENDS = 6; // inputs and outputs that are kept in sight

/** Whether a union is too much to be drawn as it is. */
export function crowded(given: Required<Pick<Comparison, "nodes" | "edges">>): boolean {
  return given.nodes.length > FOLD_ABOVE || spans(given.nodes.length, given.edges) > TANGLE;
}

/**
 * What to draw: everything, or the changes with `hops` nodes around them. Of regions that look alike the first is
 * drawn; the others, and what is far from any change, are folded into a box for each piece that hangs together.
 */
export function draw(given: Required<Pick<Comparison, "nodes" | "edges" | "regions">>, fold: boolean, opened: Set<number>): Drawing {
  if (!fold) return assemble(given, given.nodes.map(() => true));
  const neighbours = adjacency(given.nodes.length, given.edges);
  for (const hops of [2, 1, 0]) {
    const visible = near(given, neighbours, hops, opened);
    const drawn = assemble(given, visible);
    if (drawn.boxes.length <= MOST_DRAWN || hops === 0) return drawn;
  }
  throw new Error("unreachable");
}

function adjacency(count: number, edges: [number, number, Side][]): number[][] {
  const found: number[][] = Array.from({ length: count }, () => []);
  for (const [from, to] of edges) {
    found[from]!.push(to);
    found[to]!.push(from);
  }
  return found;
}

function near(
  given: Required<Pick<Comparison, "nodes" | "edges" | "regions">>, neighbours: number[][], hops: number, opened: Set<number>,
): boolean[] {
  const visible = given.nodes.map((_, number) => opened.has(number));
  const kinds = new Set<string>();
  let front: number[] = [];
  let drawn = 0;
  for (const region of given.regions) {
    const members = [...region.before, ...region.after];
    if (kinds.has(region.like) || drawn + members.length > MOST_DRAWN / 2) continue;
    kinds.add(region.like);
    drawn += members.length;
    front.push(...members);
  }
  for (const end of ["input", "output"]) {
    front.push(...given.nodes.flatMap((node, number) => (node.op === end ? [number] : [])).slice(0, ENDS));
  }
  for (const number of front) visible[number] = true;
  for (let hop = 0; hop < hops; hop += 1) {
    const next: number[] = [];
    for (const number of front) {
      for (const other of neighbours[number]!) {
        if (visible[other] || given.nodes[other]!.side !== "both") continue;
        visible[other] = true;
        next.push(other);
      }
    }
    front = next;
  }
  return visible;
}

function assemble(given: Required<Pick<Comparison, "nodes" | "edges" | "regions">>, visible: boolean[]): Drawing {
  const root = pieces(given, visible);
  const boxes: Box[] = [];
  const boxOf = new Map<number, number>();
  const byRoot = new Map<number, number>();
  given.nodes.forEach((node, number) => {
    const piece = root[number]!;
    const known = byRoot.get(piece);
    if (known !== undefined) {
      boxes[known]!.members.push(number);
      boxOf.set(number, known);
      return;
    }
    byRoot.set(piece, boxes.length);
    boxOf.set(number, boxes.length);
    boxes.push({ key: String(number), side: node.side, label: node.op, members: [number], folded: !visible[number] });
  });
  for (const box of boxes) {
    if (box.members.length === 1) box.folded = false; // nothing is gained by hiding a single node
    if (box.folded) describe(box, given);
  }
  const edges = new Map<string, [number, number, Side]>();
  for (const [from, to, side] of given.edges) {
    const [a, b] = [boxOf.get(from)!, boxOf.get(to)!];
    if (a === b) continue;
    const known = edges.get(`${a} ${b}`);
    edges.set(`${a} ${b}`, [a, b, known && known[2] !== side ? "both" : side]);
  }
  return { boxes, edges: [...edges.values()], folded: boxes.some((box) => box.folded), boxOf };
}

/** For each node the smallest number of the hidden piece that it is in; its own where it is visible. */
function pieces(given: Required<Pick<Comparison, "nodes" | "edges" | "regions">>, visible: boolean[]): number[] {
  const parent = given.nodes.map((_, number) => number);
  const find = (start: number): number => {
    let number = start;
    while (parent[number] !== number) {
      parent[number] = parent[parent[number]!]!;
      number = parent[number]!;
    }
    return number;
  };
  const join = (one: number, other: number) => {
    if (visible[one] || visible[other]) return;
    const [a, b] = [find(one), find(other)];
    parent[Math.max(a, b)] = Math.min(a, b);
  };
  for (const [from, to] of given.edges) join(from, to);
  for (const { before, after } of given.regions) {
    const [first, ...rest] = [...before, ...after]; // both sides of a change are folded into one box
    for (const other of rest) join(first!, other);
  }
  return given.nodes.map((_, number) => find(number));
}

function describe(box: Box, given: Required<Pick<Comparison, "nodes">>): void {
  const regions = new Set(box.members.map((number) => given.nodes[number]!.region).filter((r) => r !== undefined));
  const on = (side: Side) => box.members.filter((number) => ["both", side].includes(given.nodes[number]!.side)).length;
  const [before, after] = [on("before"), on("after")];
  const changes = regions.size > 0 ? `, ${regions.size} like change${regions.size === 1 ? "" : "s"}` : "";
  box.side = "both";
  box.label = `${before === after ? before : `${before} → ${after}`} nodes${changes}`;
}
