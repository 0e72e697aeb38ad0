/** The API page's requests: each operation gets a form from the OpenAPI document, and shows what came back. */

import { html } from "./dom";
import { saveText } from "./saving";

interface Schema {
  type?: string | string[];
  enum?: unknown[];
  const?: unknown;
  default?: unknown;
}

interface Parameter {
  name: string;
  in: "path" | "query" | "header";
  required?: boolean;
  schema?: Schema;
}

interface Media {
  example?: unknown;
  examples?: Record<string, { value: unknown }>;
  schema?: { properties?: Record<string, unknown> };
}

interface Operation {
  operationId: string;
  parameters?: Parameter[];
  requestBody?: { content: Record<string, Media> };
  security?: unknown[];
}

interface Endpoint {
  method: string;
  path: string;
  operation: Operation;
}

const SHOWN = 20_000; // characters of an answer
const STREAM = 5_000; // milliseconds that a stream is listened to
const HEADERS = ["content-type", "content-length", "location", "etag", "link", "retry-after", "superopt-status"];

export function wake(place: HTMLElement): void {
  let all: Promise<Map<string, Endpoint>> | undefined;
  for (const details of place.querySelectorAll<HTMLDetailsElement>("details.operation")) {
    const open = () => {
      if (!details.open || details.dataset["form"]) return;
      details.dataset["form"] = "made";
      all ??= operations();
      void all.then((known) => {
        const found = known.get(details.id);
        if (found) new Tryout(details, found, place.dataset["key"] === "true");
      });
    };
    details.addEventListener("toggle", open);
    open();
  }
}

async function operations(): Promise<Map<string, Endpoint>> {
  const answer = await fetch("/openapi.json");
  const { paths } = (await answer.json()) as { paths: Record<string, Record<string, Operation>> };
  return new Map(
    Object.entries(paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, operation]): [string, Endpoint] => [operation.operationId, { method: method.toUpperCase(), path, operation }]),
    ),
  );
}

class Tryout {
  private readonly form = html("form", { class: "tryout" });
  private readonly fields: [Parameter, HTMLInputElement | HTMLSelectElement][];
  private readonly media: HTMLSelectElement | undefined;
  private readonly body = html("div");
  private readonly key: HTMLInputElement | undefined;
  private readonly curl = html("pre", { class: "wrapped" });
  private readonly answer = html("div", { class: "outcome", role: "status" });

  constructor(details: HTMLElement, private readonly found: Endpoint, needsKey: boolean) {
    const { parameters = [], requestBody, security } = found.operation;
    this.fields = parameters.map((parameter) => [parameter, field(parameter)]);
    this.form.append(html("h4", {}, "Try it"), html("div", { class: "options" }, ...this.fields.map(([p, input]) => html("label", {}, `${p.name}${p.required ? "" : " (optional)"} `, input))));
    if (security && needsKey) {
      this.key = html("input", { type: "password", autocomplete: "off" });
      this.form.append(html("label", {}, "API key ", this.key));
    }
    if (requestBody) {
      this.media = html("select", {}, ...Object.keys(requestBody.content).map((name) => html("option", {}, name)));
      this.media.addEventListener("change", () => this.showBody());
      this.form.append(html("label", {}, "Body ", this.media), this.body);
      this.showBody();
    }
    const send = html("button", { class: "primary" }, "Send request");
    this.form.append(html("p", { class: "row" }, send), html("details", {}, html("summary", {}, "As a curl command"), this.curl));
    this.form.addEventListener("input", () => this.showCurl());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      send.disabled = true;
      void this.send().finally(() => (send.disabled = false));
    });
    details.append(this.form, this.answer);
    this.showCurl();
  }

  private showBody(): void {
    const name = this.media!.value;
    const media = this.found.operation.requestBody!.content[name]!;
    if (name === "multipart/form-data") {
      const parts = Object.keys(media.schema?.properties ?? {});
      this.body.replaceChildren(...parts.map((part) => html("label", {}, `${part} `, html("input", { type: "file", name: part }))));
    } else if (name.endsWith("json")) {
      const example = media.example ?? Object.values(media.examples ?? {})[0]?.value ?? {};
      const text = html("textarea", { rows: 10, spellcheck: "false" });
      text.value = JSON.stringify(example, null, 2);
      this.body.replaceChildren(html("label", {}, "Content ", text));
    } else {
      this.body.replaceChildren(html("label", {}, "File ", html("input", { type: "file", name: "body" })));
    }
  }

  private get address(): string {
    const query = new URLSearchParams();
    let path = this.found.path;
    for (const [parameter, input] of this.fields) {
      if (parameter.in === "path") path = path.replace(`{${parameter.name}}`, input.value ? encodeURIComponent(input.value) : `{${parameter.name}}`);
      else if (parameter.in === "query" && input.value) query.append(parameter.name, input.value);
    }
    return query.size > 0 ? `${path}?${query}` : path;
  }

  private get headers(): Record<string, string> {
    const found: Record<string, string> = {};
    for (const [parameter, input] of this.fields) if (parameter.in === "header" && input.value) found[parameter.name] = input.value;
    if (this.key?.value) found["Authorization"] = `Bearer ${this.key.value}`;
    const media = this.media?.value;
    if (media && media !== "multipart/form-data") found["Content-Type"] = media;
    return found;
  }

  private get content(): BodyInit | undefined {
    const files = [...this.body.querySelectorAll<HTMLInputElement>("input[type=file]")];
    if (this.media?.value === "multipart/form-data") {
      const form = new FormData();
      for (const input of files) for (const file of input.files ?? []) form.append(input.name, file);
      return form;
    }
    return this.body.querySelector("textarea")?.value ?? files[0]?.files?.[0] ?? undefined;
  }

  private showCurl(): void {
    const headers = Object.entries(this.headers).map(([name, value]) => `-H ${quoted(`${name}: ${name === "Authorization" ? "Bearer KEY" : value}`)}`);
    const multipart = this.media?.value === "multipart/form-data";
    const body = !this.media ? [] : multipart ? ["-F graph=@model.onnx"] : ["--data-binary @FILE"];
    this.curl.textContent = ["curl", `-X ${this.found.method}`, ...headers, ...body, quoted(`${location.origin}${this.address}`)].join(" ");
  }

  private async send(): Promise<void> {
    this.answer.replaceChildren(html("p", { class: "fine" }, "Sent; waiting for the answer"));
    const stop = new AbortController();
    try {
      const { method } = this.found;
      const body = this.content;
      const answer = await fetch(this.address, { method, headers: this.headers, signal: stop.signal, ...(body === undefined ? {} : { body }) });
      const stream = answer.headers.get("content-type")?.startsWith("text/event-stream") ?? false;
      const text = stream ? await listened(answer, stop) : await answer.text();
      this.show(answer, text);
    } catch (error) {
      this.answer.replaceChildren(html("p", { class: "problem" }, `No answer: ${String(error)}`));
    }
  }

  private show(answer: Response, text: string): void {
    const tone = answer.ok ? "good" : "worse";
    const heads = HEADERS.flatMap((name) => (answer.headers.has(name) ? [`${name}: ${answer.headers.get(name)}`] : []));
    const type = answer.headers.get("content-type") ?? "";
    const readable = /json|text|event-stream/.test(type);
    const shown = type.includes("json") ? pretty(text) : text;
    const more = shown.length > SHOWN ? `\n… ${(shown.length - SHOWN).toLocaleString()} more characters` : "";
    this.answer.replaceChildren(
      html("p", {}, html("strong", { class: tone }, `${answer.status} ${answer.statusText}`)),
      html("pre", { class: "wrapped fine" }, heads.join("\n")),
      ...(readable && text ? [html("pre", { class: "wrapped", tabindex: 0, role: "region", "aria-label": "The answer" }, shown.slice(0, SHOWN) + more)] : []),
    );
    if (readable && more) {
      const save = html("button", { type: "button" }, "Save the answer");
      save.addEventListener("click", () => saveText(text, "answer.json", type));
      this.answer.append(save);
    } else if (!readable) this.answer.append(html("p", { class: "fine" }, "The answer is binary; use the curl command to save it."));
  }
}

function field({ name, in: where, required = false, schema = {} }: Parameter): HTMLInputElement | HTMLSelectElement {
  if (schema.const !== undefined) return html("input", { name, value: String(schema.const), readonly: true });
  const choices = schema.enum ?? (schema.type === "boolean" ? [true, false] : undefined);
  if (choices) return html("select", { name }, ...(required ? [] : [html("option", { value: "" }, "")]), ...choices.map((value) => html("option", {}, String(value))));
  const number = schema.type === "integer" || schema.type === "number";
  return html("input", {
    name, type: number ? "number" : "text", step: "any", required: required || where === "path", autocomplete: "off", spellcheck: "false",
    placeholder: schema.default === undefined || schema.default === null ? "" : String(schema.default),
  });
}

/** What a stream sends in its first seconds. */
async function listened(answer: Response, stop: AbortController): Promise<string> {
  const timer = setTimeout(() => stop.abort(), STREAM);
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) text += piece.value;
  } catch {
    text += `\n… the stream goes on; ${STREAM / 1000} seconds of it are shown`;
  } finally {
    clearTimeout(timer);
  }
  return text;
}

function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function quoted(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}
