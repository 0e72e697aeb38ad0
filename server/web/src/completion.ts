/** The playground's fields complete names of operators, with their arguments. */

import { html } from "./dom";

interface Operator {
  name: string;
  inputs: string[];
  attributes: Record<string, string>;
}

const MOST = 8; // suggestions at once
const WORD = /[A-Za-z][A-Za-z0-9]*$/; // what is being typed, before the caret

let known: Promise<Operator[]> | undefined;

function operators(): Promise<Operator[]> {
  known ??= fetch("/v1/operators").then(async (answer) => ((await answer.json()) as { operators: Operator[] }).operators, () => []);
  return known;
}

export function wake(place: HTMLElement): void {
  for (const name of ["lhs", "rhs"]) {
    const field = place.querySelector<HTMLTextAreaElement>(`textarea[name=${name}]`);
    if (field) new Completion(field);
  }
}

/** One field with its list: arrows choose, Enter takes, Escape closes. */
class Completion {
  private readonly list: HTMLUListElement;
  private shown: Operator[] = [];
  private active = -1;

  constructor(private readonly field: HTMLTextAreaElement) {
    const id = `complete-${field.name}`;
    this.list = html("ul", { id, class: "complete", role: "listbox", "aria-label": "Operators", hidden: true });
    field.closest("label")!.after(html("div", { class: "complete-place" }, this.list));
    for (const [name, value] of Object.entries({ "aria-autocomplete": "list", "aria-controls": id, autocomplete: "off" })) {
      field.setAttribute(name, value);
    }
    field.addEventListener("input", () => void this.suggest());
    field.addEventListener("keydown", (event) => this.key(event));
    field.addEventListener("blur", () => this.close());
  }

  private get word(): string {
    return WORD.exec(this.field.value.slice(0, this.field.selectionStart))?.[0] ?? "";
  }

  private async suggest(): Promise<void> {
    const all = await operators();
    const word = this.word.toLowerCase();
    const begins = all.filter((op) => op.name.toLowerCase().startsWith(word));
    const within = all.filter((op) => !begins.includes(op) && op.name.toLowerCase().includes(word));
    this.shown = word.length < 2 ? [] : [...begins, ...within].slice(0, MOST);
    if (this.shown.length === 0) {
      this.close();
      return;
    }
    this.list.replaceChildren(...this.shown.map((op, number) => this.option(op, number)));
    this.list.hidden = false;
    this.choose(-1);
  }

  private option(op: Operator, number: number): HTMLLIElement {
    const made = html("li", { role: "option", id: `${this.list.id}-${number}`, "aria-selected": "false" }, signature(op));
    made.addEventListener("mousedown", (event) => {
      event.preventDefault(); // the field keeps the focus
      this.take(number);
    });
    return made;
  }

  private choose(number: number): void {
    this.active = number;
    [...this.list.children].forEach((option, at) => option.setAttribute("aria-selected", String(at === number)));
    if (number >= 0) this.field.setAttribute("aria-activedescendant", `${this.list.id}-${number}`);
    else this.field.removeAttribute("aria-activedescendant");
  }

  private key(event: KeyboardEvent): void {
    if (this.list.hidden) return;
    const count = this.shown.length;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const next = this.active + (event.key === "ArrowDown" ? 1 : -1);
      this.choose((next + count) % count);
    } else if (event.key === "Enter" && this.active >= 0) this.take(this.active);
    else if (event.key === "Escape") this.close();
    else return;
    event.preventDefault();
  }

  private take(number: number): void {
    const text = `${this.shown[number]!.name}(`;
    const end = this.field.selectionStart;
    this.field.setRangeText(text, end - this.word.length, end, "end");
    this.close();
  }

  private close(): void {
    this.list.hidden = true;
    this.choose(-1);
  }
}

function signature({ name, inputs, attributes }: Operator): string {
  return `${name}(${[...inputs, ...Object.keys(attributes).map((key) => `${key}=…`)].join(", ")})`;
}
