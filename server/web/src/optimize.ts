/** The form: drop files, see how far the upload is, and read what is wrong without losing what was filled in. */

import { html, isProblem, showProblem } from "./dom";

export function wake(place: HTMLElement): void {
  const form = place as HTMLFormElement;
  const file = form.querySelector<HTMLInputElement>("#graph")!;
  const example = form.querySelector<HTMLSelectElement>("#example");
  const chosen = document.getElementById("chosen")!;
  const problem = document.getElementById("problem")!;
  const most = Number(form.dataset["most"]);

  const weights = form.querySelector<HTMLInputElement>("input[name=weights]")!;

  const fits = () => {
    const all = [file, weights].flatMap((input) => Array.from(input.files ?? []));
    const total = all.reduce((sum, one) => sum + one.size, 0);
    if (total > most) showProblem(problem, { title: "This is too large", detail: `It has ${size(total)}; the limit is ${size(most)}.` });
    return total <= most;
  };
  const say = () => {
    const picked = file.files?.[0];
    chosen.textContent = picked ? [picked, ...Array.from(weights.files ?? [])].map((one) => `${one.name}, ${size(one.size)}`).join("; ") : "";
    if (picked && example) example.value = "";
    problem.hidden = true;
    fits();
  };
  file.addEventListener("change", say);
  weights.addEventListener("change", say);
  example?.addEventListener("change", () => {
    if (example.value) file.value = "";
    say();
  });
  receiveDrops(document.getElementById("drop")!, (files) => {
    const isWeights = (one: File) => !/\.(onnx|json)$/i.test(one.name);
    const kinds: [HTMLInputElement, File[]][] = [[file, files.filter((one) => !isWeights(one))], [weights, files.filter(isWeights)]];
    const models = kinds[0]![1];
    if (models.length > 1) {
      const names = models.map((one) => one.name).join(", ");
      showProblem(problem, { title: "One model at a time", detail: `${names}: drop one model, and the files of its weights if it has any.` });
      return;
    }
    for (const [input, some] of kinds) if (some.length > 0) input.files = listOf(some);
    say();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!fits()) return;
    if ((event.submitter as HTMLButtonElement | null)?.id === "look") void inspectModel(form, problem);
    else send(form, problem);
  });
}

/** Show the model below the form, which stays filled in: the server's page has it all. */
async function inspectModel(form: HTMLFormElement, problem: HTMLElement): Promise<void> {
  const say = document.getElementById("sending")!;
  const shown = document.getElementById("looked")!;
  const buttons = form.querySelectorAll<HTMLButtonElement>(".row button");
  problem.hidden = true;
  say.textContent = "Reading the model";
  buttons.forEach((button) => (button.disabled = true));
  try {
    const answer = await fetch("/inspect", { method: "POST", body: new FormData(form) });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const found = page.getElementById("inspection");
    if (answer.ok && found) {
      const heading = html("h2", { tabindex: -1 }, page.querySelector("h1")?.textContent ?? "Model");
      shown.replaceChildren(heading, document.adoptNode(found));
      const { wake } = await import("./compare");
      wake(document.getElementById("compare")!);
      heading.scrollIntoView();
      heading.focus({ preventScroll: true });
    } else {
      const detail = page.querySelector(".problem")?.textContent?.trim() ?? `The service answered ${answer.status}.`;
      showProblem(problem, { title: page.querySelector("h1")?.textContent ?? "The model cannot be shown", detail });
    }
  } catch {
    showProblem(problem, { title: "The service cannot be reached", detail: "No answer came. Try again in a moment." });
  } finally {
    say.textContent = "";
    buttons.forEach((button) => (button.disabled = false));
  }
}

function listOf(files: File[]): FileList {
  const transfer = new DataTransfer();
  for (const one of files) transfer.items.add(one);
  return transfer.files;
}

function receiveDrops(zone: HTMLElement, take: (files: File[]) => void): void {
  for (const kind of ["dragover", "drop"]) {
    document.addEventListener(kind, (event) => event.preventDefault()); // a file beside the zone must not be opened
  }
  zone.addEventListener("dragover", () => zone.classList.add("over"));
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    zone.classList.remove("over");
    if (event.dataTransfer && event.dataTransfer.files.length > 0) take(Array.from(event.dataTransfer.files));
  });
}

function send(form: HTMLFormElement, problem: HTMLElement): void {
  const say = document.getElementById("sending")!;
  const buttons = form.querySelectorAll<HTMLButtonElement>(".row button");
  const request = new XMLHttpRequest(); // fetch does not tell how far an upload is
  const failed = (title: string, detail: string) => showProblem(problem, { title, detail });
  request.open("POST", form.action);
  request.setRequestHeader("Accept", "application/json");
  request.responseType = "json";
  request.upload.addEventListener("progress", (event) => {
    if (event.lengthComputable) say.textContent = `Sending, ${Math.round((100 * event.loaded) / event.total)}\u00a0%`;
  });
  request.addEventListener("loadend", () => {
    buttons.forEach((button) => (button.disabled = false));
    say.textContent = "";
    const answer: unknown = request.response;
    if (request.status === 202) {
      say.textContent = "Sent";
      location.assign(request.getResponseHeader("Location") ?? "/");
    } else if (isProblem(answer)) {
      showProblem(problem, answer);
    } else {
      failed("The service cannot be reached", "Nothing was sent, or no answer came. Try again in a moment.");
    }
  });
  problem.hidden = true;
  buttons.forEach((button) => (button.disabled = true));
  say.textContent = "Sending";
  request.send(new FormData(form));
}

function size(bytes: number): string {
  const units = ["B", "KiB", "MiB", "GiB"];
  const step = Math.min(units.length - 1, Math.floor(Math.log2(Math.max(bytes, 1)) / 10));
  return `${(bytes / 2 ** (10 * step)).toFixed(step > 0 ? 1 : 0)}\u00a0${units[step]}`;
}
