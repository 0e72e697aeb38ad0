/** A table that can be sorted by its columns. */

import { button } from "./dom";

export function wake(place: HTMLElement): void {
  const table = place as HTMLTableElement;
  const heads = [...table.tHead!.rows[0]!.cells];
  heads.forEach((head, column) => {
    const label = head.textContent ?? "";
    if (!label.trim()) return;
    head.replaceChildren(button(label, () => sort(table, heads, column)));
  });
}

function sort(table: HTMLTableElement, heads: HTMLTableCellElement[], column: number): void {
  const head = heads[column]!;
  const up = head.getAttribute("aria-sort") !== "ascending";
  for (const other of heads) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const body = table.tBodies[0]!;
  const rows = [...body.rows].map((row) => ({ row, key: keyOf(row.cells[column]) }));
  rows.sort((a, b) => (up ? 1 : -1) * compare(a.key, b.key));
  body.append(...rows.map(({ row }) => row));
}

function keyOf(cell: HTMLTableCellElement | undefined): number | string {
  const text = cell?.dataset["value"] ?? cell?.textContent?.trim() ?? "";
  const number = Number.parseFloat(text);
  return Number.isNaN(number) ? (text === "–" ? Number.POSITIVE_INFINITY : text) : number;
}

function compare(a: number | string, b: number | string): number {
  if (typeof a === "number" && typeof b === "number") return a === b ? 0 : a - b;
  return String(a).localeCompare(String(b));
}
