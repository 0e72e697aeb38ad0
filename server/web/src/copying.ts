/** A button that copies what a read-only field holds. */

import { button, html } from "./dom";

export function wake(place: HTMLElement): void {
  const field = place as HTMLInputElement;
  const said = html("span", { class: "fine", role: "status" });
  field.value = new URL(field.value, location.href).href;
  field.addEventListener("focus", () => field.select());
  const copy = button("Copy", () => {
    field.select();
    navigator.clipboard.writeText(field.value).then(
      () => (said.textContent = "Copied"),
      () => (said.textContent = "Selected: press Ctrl+C"), // without leave to write, or over plain HTTP
    );
  });
  field.closest("label")!.after(copy, said);
}
