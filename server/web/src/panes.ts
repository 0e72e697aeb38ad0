/** Two drawings of one layout that move as one: what is on both sides is at the same place in both. */

import type { Drawing, Side } from "./comparison";
import { svg } from "./dom";
import type { Placed } from "./layout";

export type Shown = "before" | "after";

const STEP = 60; // pixels that an arrow key moves
const MARGIN = 24;
const READABLE = 1.15; // the scale at which a change is first shown
const [SMALLEST, LARGEST] = [0.02, 4];

interface View {
  x: number;
  y: number;
  scale: number; // pixels of the screen for one of the layout
}

export interface Listener {
  chosen(box: number): void;
  step(by: number): void;
}

export class Panes {
  readonly svgs: Record<Shown, SVGSVGElement>;
  private view: View = { x: 0, y: 0, scale: 1 };
  private placed: Placed = { width: 1, height: 1, boxes: [], edges: [] };
  private boxes: Record<Shown, Map<number, SVGGElement>> = { before: new Map(), after: new Map() };
  private halos: Record<Shown, Map<number, SVGRectElement>> = { before: new Map(), after: new Map() };

  constructor(private readonly listener: Listener) {
    this.svgs = { before: this.pane("Before"), after: this.pane("After") };
  }

  private pane(name: string): SVGSVGElement {
    const keys = "arrows move, plus and minus zoom, 0 shows all, N and P go through the changes, Enter describes the middle";
    const made = svg("svg", { tabindex: 0, role: "application", "aria-label": `${name}: the graph. Keys: ${keys}` });
    made.addEventListener("keydown", (event) => this.key(event));
    made.addEventListener("wheel", (event) => this.wheel(event, made), { passive: false });
    this.drags(made);
    new ResizeObserver(() => this.apply()).observe(made);
    return made;
  }

  /** Put a drawing at its places into both panes. */
  show(drawing: Drawing, placed: Placed, regions: number[][]): void {
    this.placed = placed;
    for (const side of ["before", "after"] as const) {
      const here = (other: Side) => other === "both" || other === side;
      const edges = drawing.edges.flatMap(([, , on], number) =>
        here(on) ? [svg("path", { class: `edge ${on}`, d: placed.edges[number] ?? "", "marker-end": `url(#tip-${side})` })] : [],
      );
      this.boxes[side].clear();
      const nodes = drawing.boxes.flatMap((box, number) => {
        if (!here(box.side)) return [];
        const made = this.node(number, box.label, `node ${box.side}${box.folded ? " fold" : ""}${isEnd(box.label) ? " end" : ""}`);
        this.boxes[side].set(number, made);
        return [made];
      });
      this.halos[side].clear();
      const halos = regions.flatMap((members, number) => {
        const frame = this.around(members.filter((box) => this.boxes[side].has(box)));
        if (!frame) return [];
        const made = svg("rect", { class: "halo", rx: 9, ...frame });
        this.halos[side].set(number, made);
        return [made];
      });
      this.svgs[side].replaceChildren(svg("defs", {}, tip(side)), svg("g", {}, ...halos, ...edges, ...nodes));
    }
    this.apply();
  }

  private node(number: number, label: string, kind: string): SVGGElement {
    const { x, y, width, height } = this.placed.boxes[number]!;
    const short = label.length > 34 ? `${label.slice(0, 33)}…` : label;
    const made = svg(
      "g", { class: kind, "data-box": number },
      svg("rect", { x: x - width / 2, y: y - height / 2, width, height, rx: 5 }),
      svg("text", { x, y }, short),
    );
    return made;
  }

  private around(members: number[]): { x: number; y: number; width: number; height: number } | undefined {
    if (members.length === 0) return undefined;
    const boxes = members.map((box) => this.placed.boxes[box]!);
    const [left, right] = [Math.min(...boxes.map((b) => b.x - b.width / 2)), Math.max(...boxes.map((b) => b.x + b.width / 2))];
    const [top, bottom] = [Math.min(...boxes.map((b) => b.y - b.height / 2)), Math.max(...boxes.map((b) => b.y + b.height / 2))];
    return { x: left - 9, y: top - 9, width: right - left + 18, height: bottom - top + 18 };
  }

  /** The pane that has a size now. */
  private get size(): { width: number; height: number } {
    const shown = this.svgs.after.clientWidth > 0 ? this.svgs.after : this.svgs.before;
    return { width: shown.clientWidth || 1, height: shown.clientHeight || 1 };
  }

  private apply(): void {
    const { width, height } = this.size;
    const { x, y, scale } = this.view;
    const box = `${x - width / scale / 2} ${y - height / scale / 2} ${width / scale} ${height / scale}`;
    for (const pane of Object.values(this.svgs)) pane.setAttribute("viewBox", box);
  }

  fit(): void {
    const { width, height } = this.size;
    const scale = Math.min(width / (this.placed.width + 2 * MARGIN), height / (this.placed.height + 2 * MARGIN), 1.5);
    this.view = { x: this.placed.width / 2, y: this.placed.height / 2, scale: Math.max(scale, SMALLEST) };
    this.apply();
  }

  /** Bring boxes into the middle, as large as can be read and as small as it takes to see all of them. */
  focus(members: number[]): void {
    const frame = this.around(members);
    if (!frame) return;
    const { width, height } = this.size;
    const scale = Math.min(READABLE, (width - 2 * MARGIN) / frame.width, (height - 2 * MARGIN) / frame.height);
    this.view = { x: frame.x + frame.width / 2, y: frame.y + frame.height / 2, scale: Math.max(scale, 0.25) };
    this.apply();
  }

  zoom(factor: number, at?: { x: number; y: number }): void {
    const scale = Math.min(LARGEST, Math.max(SMALLEST, this.view.scale * factor));
    if (at) {
      const kept = 1 - this.view.scale / scale;
      this.view.x += (at.x - this.view.x) * kept;
      this.view.y += (at.y - this.view.y) * kept;
    }
    this.view.scale = scale;
    this.apply();
  }

  private move(dx: number, dy: number): void {
    this.view.x += dx / this.view.scale;
    this.view.y += dy / this.view.scale;
    this.apply();
  }

  mark(box: number | undefined, region: number | undefined): void {
    for (const side of ["before", "after"] as const) {
      for (const [number, node] of this.boxes[side]) node.classList.toggle("chosen", number === box);
      for (const [number, halo] of this.halos[side]) halo.classList.toggle("current", number === region);
    }
  }

  /** Colour boxes by how hot they are, from 0; without levels as they were. */
  heat(levels: Record<Shown, Map<number, number>> | undefined): void {
    for (const side of ["before", "after"] as const) {
      this.svgs[side].classList.toggle("heated", levels !== undefined);
      for (const [number, node] of this.boxes[side]) node.dataset["heat"] = String(levels?.[side].get(number) ?? 0);
    }
  }

  private key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const acts: Record<string, () => void> = {
      ArrowLeft: () => this.move(-STEP, 0), ArrowRight: () => this.move(STEP, 0),
      ArrowUp: () => this.move(0, -STEP), ArrowDown: () => this.move(0, STEP),
      "+": () => this.zoom(1.25), "=": () => this.zoom(1.25), "-": () => this.zoom(0.8), "0": () => this.fit(),
      n: () => this.listener.step(1), p: () => this.listener.step(-1), Enter: () => this.middle(event.currentTarget as SVGSVGElement),
    };
    const act = acts[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  /** Choose the box nearest to the middle of a pane. */
  private middle(pane: SVGSVGElement): void {
    const side = pane === this.svgs.before ? "before" : "after";
    const far = (box: number) => Math.hypot(this.placed.boxes[box]!.x - this.view.x, this.placed.boxes[box]!.y - this.view.y);
    const [nearest] = [...this.boxes[side].keys()].sort((a, b) => far(a) - far(b));
    if (nearest !== undefined) this.listener.chosen(nearest);
  }

  private wheel(event: WheelEvent, pane: SVGSVGElement): void {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== pane) return; // the page scrolls on
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) this.zoom(Math.exp(-event.deltaY / 300), this.point(event, pane));
    else this.move(event.deltaX, event.deltaY);
  }

  private point(event: MouseEvent, pane: SVGSVGElement): { x: number; y: number } {
    const frame = pane.getBoundingClientRect();
    return {
      x: this.view.x + (event.clientX - frame.left - frame.width / 2) / this.view.scale,
      y: this.view.y + (event.clientY - frame.top - frame.height / 2) / this.view.scale,
    };
  }

  private drags(pane: SVGSVGElement): void {
    const held = new Map<number, PointerEvent>();
    let travelled = 0;
    const spread = () => {
      const [a, b] = [...held.values()];
      return a && b ? Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY) : 0;
    };
    pane.addEventListener("pointerdown", (event) => {
      held.set(event.pointerId, event);
      travelled = 0;
      pane.classList.add("dragging");
    });
    pane.addEventListener("pointermove", (event) => {
      const last = held.get(event.pointerId);
      if (!last) return;
      const before = spread();
      held.set(event.pointerId, event);
      travelled += Math.abs(event.clientX - last.clientX) + Math.abs(event.clientY - last.clientY);
      if (travelled > 4 && !pane.hasPointerCapture(event.pointerId)) pane.setPointerCapture(event.pointerId);
      if (before > 0) this.zoom(spread() / before);
      else this.move(last.clientX - event.clientX, last.clientY - event.clientY);
    });
    const release = (event: PointerEvent) => {
      held.delete(event.pointerId);
      pane.classList.remove("dragging");
    };
    pane.addEventListener("pointerup", release);
    pane.addEventListener("pointercancel", release);
    pane.addEventListener("click", (event) => {
      const box = (event.target as Element).closest<SVGGElement>("[data-box]")?.dataset["box"];
      if (box !== undefined && travelled <= 4) this.listener.chosen(Number(box));
    });
  }
}

function isEnd(label: string): boolean {
  return label === "input" || label === "output";
}

function tip(side: Shown): SVGMarkerElement {
  const shape = svg("path", { d: "M0 0 L6 3 L0 6 z", fill: "context-stroke" });
  return svg("marker", { id: `tip-${side}`, viewBox: "0 0 6 6", refX: 5.5, refY: 3, markerWidth: 6, markerHeight: 6, orient: "auto" }, shape);
}
