/** Before and after, side by side: the union of both graphs is laid out once and shown twice. */

import { type Comparison, crowded, type Drawing, draw, type UnionNode } from "./comparison";
import { button, html, isProblem } from "./dom";
import { type Kept, place, type Placed, questionOf } from "./layout";
import { Panes, type Shown } from "./panes";
import { drawingFile, saveText } from "./saving";

type Whole = Required<Pick<Comparison, "nodes" | "edges" | "regions">> & Pick<Comparison, "timeline">;
const SIDES = ["before", "after"] as const;
const WARM = [0.005, 0.01, 0.03, 0.08]; // shares of the whole from which a box is of the next level

const RECORDED = /^\/v1\/gallery\/([\w.-]+)\/comparison$/; // of these the layout is recorded, too

const [CROWDED, FIRST] = [60, 8]; // boxes from which a model is shown from its beginning, and how many are in view then
const NARROW = "(max-width: 62rem)";

export function wake(home: HTMLElement): void {
  home.replaceChildren(html("p", { class: "fine", role: "status" }, "Drawing…"));
  const address = home.dataset["comparison"]!;
  const kept = before(address);
  void load(address).then(
    (found) => {
      if (found.nodes && found.edges && found.regions) {
        const { nodes, edges, regions, timeline } = found;
        new Compare(home, { nodes, edges, regions, ...(timeline ? { timeline } : {}) }, kept);
      } else {
        say(home, `Not drawn: ${found.omitted ?? "there is nothing to draw"}. The tables below say the same.`);
      }
    },
    (error: unknown) => say(home, `Not drawn: ${String(error)}. The tables below say the same.`),
  );
}

function say(home: HTMLElement, text: string): void {
  home.replaceChildren(html("p", { class: "unbuilt", role: "status" }, text));
}

/** How a comparison was laid out when the pages were built, if it was; anything amiss means that it is laid out here. */
async function before(address: string): Promise<Kept | undefined> {
  const name = RECORDED.exec(address)?.[1];
  if (name === undefined) return undefined;
  try {
    const answer = await fetch(`/static/app/place-${name}.json`);
    return answer.ok ? ((await answer.json()) as Kept) : undefined;
  } catch {
    return undefined;
  }
}

/** What an address leads to; `#id` is an element of the page that holds it. */
async function load(address: string): Promise<Comparison> {
  if (address.startsWith("#")) return JSON.parse(document.getElementById(address.slice(1))!.textContent ?? "{}") as Comparison;
  const answer = await fetch(address);
  const data = (await answer.json()) as unknown;
  if (isProblem(data)) throw new Error(data.detail);
  return data as Comparison;
}

class Compare {
  private readonly single: boolean; // one model, not yet optimized
  private placed: Placed | undefined;
  private drawing: Drawing = { boxes: [], edges: [], folded: false, boxOf: new Map() };
  private fold: boolean;
  private readonly opened = new Set<number>();
  private region = -1;
  private readonly panes: Panes;
  private readonly detail = html("div", { class: "detail", role: "status" });
  private readonly frames = html("div", { class: "panes" });
  private readonly status = html("span", { class: "say", role: "status" });
  private readonly folder: HTMLButtonElement;
  private readonly heater: HTMLButtonElement;
  private readonly times: Record<Shown, Map<number, number>>; // microseconds, by node
  private found = -1; // of the nodes that the words fit, the one that is shown

  constructor(
    private readonly home: HTMLElement,
    private readonly given: Whole,
    private readonly kept: Promise<Kept | undefined>,
  ) {
    this.single = "single" in home.dataset;
    this.fold = crowded(given);
    this.panes = new Panes({ chosen: (box) => this.choose(box), step: (by) => this.step(by) });
    this.folder = button("Fold repeated parts", () => this.toggleFold(), { "aria-pressed": String(this.fold) });
    this.heater = button("Colour by time", () => this.toggleHeat(), { "aria-pressed": "false", disabled: !given.timeline });
    const of = (side: Shown) => new Map((given.timeline?.[side] ?? []).map(([node, us]) => [node, us]));
    this.times = { before: of("before"), after: of("after") };
    this.home.classList.add("compare");
    this.home.replaceChildren(this.bar(), this.frames, this.detail);
    if (given.regions.length > 0) this.home.after(this.list());
    for (const side of ["before", "after"] as const) {
      const count = given.nodes.filter((n) => (n.side === "both" || n.side === side) && n.op !== "input" && n.op !== "output").length;
      this.frames.append(
        html("div", { class: "pane", "data-side": side }, html("span", { class: "title" }, this.title(side, count)), this.panes.svgs[side]),
      );
    }
    if (this.single) this.display("after");
    else this.display(matchMedia(NARROW).matches && given.regions.length > 0 ? "after" : "both");
    this.hint();
    void this.redraw();
  }

  private title(side: Shown, count: number): string {
    const nodes = `${count}\u00a0node${count === 1 ? "" : "s"}`;
    return this.single ? nodes : `${side}, ${nodes}`;
  }

  private bar(): HTMLElement {
    const zoom = [
      button("−", () => this.panes.zoom(0.8), { "aria-label": "Zoom out" }),
      button("+", () => this.panes.zoom(1.25), { "aria-label": "Zoom in" }),
      button("Show all", () => this.panes.fit()),
    ];
    const save = button("Save as SVG", () => this.save());
    if (this.single) return html("div", { class: "bar", role: "toolbar", "aria-label": "Drawing" }, ...zoom, this.folder, save, this.finder(), this.status);
    const sides = (["both", "before", "after"] as const).map((side) =>
      button(side[0]!.toUpperCase() + side.slice(1), () => this.display(side), { "data-show": side }),
    );
    const none = this.given.regions.length === 0;
    return html(
      "div", { class: "bar", role: "toolbar", "aria-label": "Drawing" },
      ...sides,
      button("‹ Change", () => this.step(-1), { disabled: none, "aria-label": "Previous change" }),
      button("Change ›", () => this.step(1), { disabled: none, "aria-label": "Next change" }),
      ...zoom, this.folder, this.heater, save, this.finder(), this.status,
    );
  }

  /** The sides that are shown, with what is folded or opened, as a file. */
  private save(): void {
    if (!this.placed) return;
    const shown = SIDES.filter((side) => !this.home.querySelector<HTMLElement>(`[data-side=${side}]`)!.hidden);
    const titles = shown.map((side): [Shown, string] => [side, this.home.querySelector(`[data-side=${side}] .title`)!.textContent ?? ""]);
    const names = (box: number) => {
      const [first] = this.drawing.boxes[box]!.members;
      const node = this.given.nodes[first!]!;
      return this.drawing.boxes[box]!.folded ? this.drawing.boxes[box]!.label : `${node.op} ${node.name}: ${node.type}`;
    };
    const name = (this.home.dataset["name"] ?? document.querySelector("h1")?.textContent ?? "graph").replace(/[^\w.-]+/g, "_").slice(0, 80);
    saveText(drawingFile(this.drawing, this.placed, titles, names), `${name || "graph"}.svg`, "image/svg+xml");
  }

  /** Words for a node: Enter goes to the first one whose operator or name has them, and on. */
  private finder(): HTMLElement {
    const words = html("input", { type: "search", placeholder: "Find an operator or a name", "aria-label": "Find an operator or a name" });
    words.addEventListener("input", () => (this.found = -1));
    words.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.find(words.value.trim().toLowerCase(), event.shiftKey ? -1 : 1);
    });
    return words;
  }

  private find(words: string, by: number): void {
    if (words === "") return;
    const has = (node: UnionNode) => [node.op, node.name, node.renamed ?? ""].some((text) => text.toLowerCase().includes(words));
    const fits = this.given.nodes.flatMap((node, number) => (has(node) ? [number] : []));
    if (fits.length === 0) {
      this.status.textContent = "none found";
      return;
    }
    this.found = (this.found + by + fits.length) % fits.length;
    const node = fits[this.found]!;
    const reveal = () => {
      const box = this.drawing.boxOf.get(node)!;
      if (this.given.nodes[node]!.side !== "both") this.display(this.frames.classList.contains("one") ? (this.given.nodes[node]!.side as Shown) : "both");
      this.panes.focus([box]);
      this.choose(box);
      this.status.textContent = `${this.found + 1} of ${fits.length} found`;
    };
    if (this.drawing.boxes[this.drawing.boxOf.get(node)!]!.folded) {
      this.opened.add(node);
      void this.redraw(node).then(reveal);
    } else reveal();
  }

  private toggleHeat(): void {
    const on = this.heater.getAttribute("aria-pressed") !== "true";
    this.heater.setAttribute("aria-pressed", String(on));
    this.warm();
    this.detail.textContent = on
      ? `Coloured by the share of estimated time: from ${WARM.map((share) => `${100 * share}\u00a0%`).join(", ")} on. ${this.hottest()}`
      : "Coloured by what changed.";
  }

  private hottest(): string {
    const told = SIDES.map((side) => {
      const line = [...this.times[side]].sort(([, a], [, b]) => b - a).slice(0, 3);
      return `${side}: ${line.map(([node, us]) => `${this.given.nodes[node]!.op} ${this.given.nodes[node]!.name} ${micro(us)}`).join(", ")}`;
    });
    return `Most time ${told.join("; ")}.`;
  }

  private warm(): void {
    if (this.heater.getAttribute("aria-pressed") !== "true") {
      this.panes.heat(undefined);
      return;
    }
    const levels = { before: new Map<number, number>(), after: new Map<number, number>() };
    for (const side of SIDES) {
      const whole = Math.max(total(this.times[side]), 1e-9);
      this.drawing.boxes.forEach((box, number) => {
        const us = box.members.reduce((sum, node) => sum + (this.times[side].get(node) ?? 0), 0);
        levels[side].set(number, WARM.filter((share) => us / whole >= share).length);
      });
    }
    this.panes.heat(levels);
  }

  /** What a node takes, by side, as a fact of it. */
  private takes(number: number): [string, string][] {
    const told = SIDES.flatMap((side) => {
      const us = this.times[side].get(number);
      return us === undefined ? [] : [`${side} ${micro(us)} (${((100 * us) / Math.max(total(this.times[side]), 1e-9)).toFixed(1)} %)`];
    });
    return told.length > 0 ? [["estimated time", told.join(", ")]] : [];
  }

  private display(shown: Shown | "both"): void {
    for (const choice of this.home.querySelectorAll<HTMLElement>("[data-show]")) {
      choice.setAttribute("aria-pressed", String(choice.dataset["show"] === shown));
    }
    for (const pane of this.home.querySelectorAll<HTMLElement>("[data-side]")) {
      pane.hidden = shown !== "both" && pane.dataset["side"] !== shown;
    }
    this.frames.classList.toggle("one", shown !== "both");
  }

  private hint(): void {
    if (this.single) this.detail.textContent = "Choose a node to read about it; drag to move, Ctrl and the wheel to zoom.";
    else this.detail.textContent = this.given.regions.length > 0
      ? "Choose a node to read about it; drag to move, Ctrl and the wheel to zoom."
      : "Nothing changed, so both sides are the same. Choose a node to read about it.";
  }

  private async redraw(keep?: number): Promise<void> {
    this.drawing = draw(this.given, this.fold, this.opened);
    this.status.textContent = "Laying out…";
    try {
      const placed = await place(questionOf(this.drawing), this.kept);
      this.placed = placed;
      const regions = this.given.regions.map((r) => this.boxesOf([...r.before, ...r.after], false));
      this.panes.show(this.drawing, placed, regions);
      this.warm();
      if (keep !== undefined) this.panes.focus(this.boxesOf([keep], true));
      else if (this.given.regions.length > 0) this.go(0);
      else if (this.single && this.drawing.boxes.length > CROWDED) this.panes.focus(topmost(placed));
      else this.panes.fit();
      this.tellCounts();
      this.home.dataset["drawn"] = String(this.drawing.boxes.length);
    } catch (error) {
      this.status.textContent = `Not drawn: ${String(error)}`;
    }
  }

  private tellCounts(): void {
    const changes = this.given.regions.length;
    if (this.single) {
      this.status.textContent = this.drawing.folded ? "repeated parts are folded" : "";
      return;
    }
    const where = this.region >= 0 ? `change ${this.region + 1} of ${changes}` : `${changes} change${changes === 1 ? "" : "s"}`;
    this.status.textContent = this.drawing.folded ? `${where}; folded` : where;
  }

  private boxesOf(nodes: number[], folded: boolean): number[] {
    const found = new Set<number>();
    for (const node of nodes) {
      const box = this.drawing.boxOf.get(node);
      if (box !== undefined && (folded || !this.drawing.boxes[box]!.folded)) found.add(box);
    }
    return [...found];
  }

  private step(by: number): void {
    const count = this.given.regions.length;
    if (count > 0) this.go((this.region + by + count) % count);
  }

  private go(number: number): void {
    this.region = number;
    const region = this.given.regions[number]!;
    const members = [...region.before, ...region.after];
    const shown = SIDES.filter((side) => !this.home.querySelector<HTMLElement>(`[data-side=${side}]`)!.hidden);
    if (shown.length === 1 && region[shown[0]!].length === 0) this.display(shown[0] === "before" ? "after" : "before"); // else an empty pane
    this.panes.focus(this.boxesOf(members, true));
    this.panes.mark(undefined, number);
    const names = (nodes: number[]) => counted(nodes.map((n) => this.given.nodes[n]!.op));
    const left = region.before.length > 0 ? names(region.before) : "nothing";
    const right = region.after.length > 0 ? names(region.after) : "nothing";
    this.detail.replaceChildren(`Change ${number + 1}: ${left} → ${right}. `, ...ruleLinks(region.rules));
    if (this.boxesOf(members, false).length === 0) {
      this.detail.append(" It is folded, because it looks like one that is drawn. ", button("Unfold it", () => this.open(members)));
    }
    this.tellCounts();
  }

  private open(nodes: number[]): void {
    for (const node of nodes) this.opened.add(node);
    void this.redraw(nodes[0]).then(() => this.go(this.region));
  }

  private choose(box: number): void {
    const chosen = this.drawing.boxes[box]!;
    if (chosen.folded) {
      for (const node of chosen.members) this.opened.add(node);
      void this.redraw(chosen.members[0]);
      return;
    }
    const number = chosen.members[0]!;
    const node = this.given.nodes[number]!;
    this.panes.mark(box, node.region);
    this.detail.replaceChildren(...told(node, this.takes(number), this.single));
  }

  private toggleFold(): void {
    this.fold = !this.fold;
    this.opened.clear();
    this.folder.setAttribute("aria-pressed", String(this.fold));
    void this.redraw();
  }

  /** The changes in words, for those who do not see the drawing. */
  private list(): HTMLElement {
    const { regions, nodes } = this.given;
    const kinds = new Map<string, number[]>();
    regions.forEach((region, number) => kinds.set(region.like, [...(kinds.get(region.like) ?? []), number]));
    const items = [...kinds.values()].map((numbers) => {
      const region = regions[numbers[0]!]!;
      const names = (of: number[]) => (of.length > 0 ? counted(of.map((n) => nodes[n]!.op)) : "nothing");
      const times = numbers.length > 1 ? ` (${numbers.length} times)` : "";
      return html("li", {}, button(`${names(region.before)} → ${names(region.after)}`, () => this.go(numbers[0]!)), times, " ", ...ruleLinks(region.rules));
    });
    return html("details", { class: "regions" }, html("summary", {}, `The ${regions.length} changes in words`), html("ul", {}, ...items));
  }
}

/** The boxes at the top of a layout. */
function topmost({ boxes }: Placed): number[] {
  return boxes.map((_, box) => box).sort((a, b) => boxes[a]!.y - boxes[b]!.y).slice(0, FIRST);
}

function counted(names: string[]): string {
  const counts = new Map<string, number>();
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts].map(([name, count]) => (count > 1 ? `${count} ${name}` : name)).join(", ");
}

function ruleLinks(rules: string[]): Node[] {
  return rules.map((rule) => html("a", { class: "chip", href: `/rules/${encodeURIComponent(rule)}` }, rule));
}

function total(times: Map<number, number>): number {
  return [...times.values()].reduce((sum, us) => sum + us, 0);
}

function micro(us: number): string {
  return us >= 1000 ? `${(us / 1000).toPrecision(3)}\u00a0ms` : `${us.toPrecision(3)}\u00a0µs`;
}

function told(node: UnionNode, takes: [string, string][], single: boolean): (Node | string)[] {
  const facts: [string, string][] = [["output", node.type], ...takes, ...Object.entries(node.attributes ?? {})];
  if (node.weights && node.weights.length > 0) facts.push(["weights", node.weights.join(", ") + (node.more_weights ? ` and ${node.more_weights} more` : "")]);
  if (node.renamed) facts.push(["in the result", node.renamed]);
  const side = single ? "" : ` (${{ both: "before and after", before: "only before", after: "only after" }[node.side]})`;
  return [
    html("strong", {}, node.op), ` ${node.name}${side} `, ...ruleLinks(node.rules ?? []),
    html("dl", {}, ...facts.filter(([, value]) => value).map(([name, value]) => html("div", {}, html("dt", {}, `${name}:`), html("dd", {}, value)))),
  ];
}
