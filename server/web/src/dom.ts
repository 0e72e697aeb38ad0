/** Elements made from values. Text goes in as text, never as markup, so no name can be anything but a name. */

type Child = Node | string;
type Attributes = Record<string, string | number | boolean>;

const SVG = "http://www.w3.org/2000/svg";

function filled<E extends Element>(made: E, attributes: Attributes, children: Child[]): E {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false) made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children);
  return made;
}

export function html<K extends keyof HTMLElementTagNameMap>(
  tag: K, attributes: Attributes = {}, ...children: Child[]
): HTMLElementTagNameMap[K] {
  return filled(document.createElement(tag), attributes, children);
}

export function svg<K extends keyof SVGElementTagNameMap>(
  tag: K, attributes: Attributes = {}, ...children: Child[]
): SVGElementTagNameMap[K] {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

export function button(label: string, act: () => void, attributes: Attributes = {}): HTMLButtonElement {
  const made = html("button", { type: "button", ...attributes }, label);
  made.addEventListener("click", act);
  return made;
}

/** RFC 9457, as the service answers. */
export interface Problem {
  title: string;
  detail: string;
  errors?: { detail: string; node?: string; pointer?: string; parameter?: string }[];
}

export function isProblem(value: unknown): value is Problem {
  return typeof value === "object" && value !== null && "title" in value && "detail" in value;
}

export function showProblem(place: HTMLElement, problem: Problem): void {
  const more = (problem.errors ?? []).filter((error) => !problem.detail.endsWith(error.detail));
  const places = more.map((error) => {
    const where = error.node ?? error.pointer ?? error.parameter;
    return html("li", {}, ...(where ? [html("code", {}, where), ": "] : []), error.detail);
  });
  const list = places.length > 0 ? [html("ul", {}, ...places)] : [];
  place.replaceChildren(html("strong", {}, `${problem.title}:`), ` ${problem.detail}`, ...list);
  place.hidden = false;
  place.tabIndex = -1;
  place.focus();
}
