/** A drawing as an SVG file that stands alone: its colours are in it, so that it looks the same in any viewer. */

import type { Drawing, Side } from "./comparison";
import { svg } from "./dom";
import type { Placed } from "./layout";

export type Drawn = "before" | "after";

const MARGIN = 16;
const HEAD = 28; // above each graph, for its title
const INK = "#1b1d20";
const LINE = "#6d7680";
const FILL: Record<Side, string> = { both: "#ffffff", before: "#eceef0", after: "#e2f1eb" };
const STROKE: Record<Side, string> = { both: LINE, before: LINE, after: "#0a6b4d" };

/** The sides of a drawing beside each other; `titles` stand above them, `names` of boxes are shown when pointed at. */
export function drawingFile(drawing: Drawing, placed: Placed, titles: [Drawn, string][], names: (box: number) => string): string {
  const wide = placed.width + 2 * MARGIN;
  const high = placed.height + 2 * MARGIN + HEAD;
  const root = svg("svg", {
    xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${Math.ceil(wide * titles.length)} ${Math.ceil(high)}`,
    width: Math.ceil(wide * titles.length), height: Math.ceil(high), "font-family": "system-ui, sans-serif", "font-size": 11,
  });
  root.append(svg("rect", { width: "100%", height: "100%", fill: "#ffffff" }));
  root.append(svg("defs", {}, ...(["both", "before", "after"] as const).map(arrow)));
  titles.forEach(([side, title], number) => {
    const heading = svg("text", { x: number * wide + MARGIN, y: MARGIN + 6, fill: INK, "font-size": 13, "font-weight": 600 }, title);
    root.append(heading, graph(drawing, placed, side, number * wide + MARGIN, MARGIN + HEAD, names));
  });
  return new XMLSerializer().serializeToString(root);
}

function arrow(side: Side): SVGMarkerElement {
  const shape = svg("path", { d: "M0 0 L6 3 L0 6 z", fill: STROKE[side] });
  return svg("marker", { id: `arrow-${side}`, viewBox: "0 0 6 6", refX: 5.5, refY: 3, markerWidth: 6, markerHeight: 6, orient: "auto" }, shape);
}

function graph(drawing: Drawing, placed: Placed, side: Drawn, x: number, y: number, names: (box: number) => string): SVGGElement {
  const here = (other: Side) => other === "both" || other === side;
  const edges = drawing.edges.flatMap(([, , on], number) =>
    here(on) ? [svg("path", { d: placed.edges[number] ?? "", fill: "none", stroke: STROKE[on], "marker-end": `url(#arrow-${on})` })] : [],
  );
  const boxes = drawing.boxes.flatMap((box, number) => {
    if (!here(box.side)) return [];
    const at = placed.boxes[number]!;
    const frame = svg("rect", {
      x: at.x - at.width / 2, y: at.y - at.height / 2, width: at.width, height: at.height, rx: 5,
      fill: FILL[box.side], stroke: STROKE[box.side], "stroke-width": box.side === "both" ? 1 : 2,
    });
    const short = box.label.length > 34 ? `${box.label.slice(0, 33)}…` : box.label;
    const words = svg("text", { x: at.x, y: at.y, fill: INK, "text-anchor": "middle", "dominant-baseline": "central" }, short);
    return [svg("g", {}, svg("title", {}, names(number)), frame, words)];
  });
  return svg("g", { transform: `translate(${x} ${y})` }, ...edges, ...boxes);
}

/** Hand a text to the browser as a file to save. */
export function saveText(text: string, name: string, media: string): void {
  const address = URL.createObjectURL(new Blob([text], { type: media }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
