/** Scrubbing through a derivation: a slider marks the step in the staircase and in the table, and says what it did. */

export function wake(place: HTMLElement): void {
  const last = Number(place.dataset["steps"]);
  const rows = [...document.querySelectorAll<HTMLElement>("#replayed tbody tr")];
  const stairs = [...place.querySelectorAll<SVGRectElement>("rect[data-step]")];
  const label = document.createElement("label");
  const slider = document.createElement("input");
  const said = document.createElement("output");
  slider.type = "range";
  slider.min = "0";
  slider.max = slider.value = String(last);
  label.append("Step ", slider);
  said.className = "fine";
  place.append(label, said);

  const show = () => {
    const step = Number(slider.value);
    const title = stairs[step]?.querySelector("title")?.textContent ?? "";
    const row = rows[step - 1];
    const [, rules, , , gain] = row ? Array.from(row.children, (cell) => cell.textContent?.trim() ?? "") : [];
    said.value = row ? `${title}; gains ${gain ?? ""} by ${rules ?? ""}` : title;
    rows.forEach((one, at) => one.classList.toggle("marked", at === step - 1));
    stairs.forEach((one, at) => one.classList.toggle("later", at > step));
  };
  slider.addEventListener("input", show);
  for (const stair of stairs) {
    stair.addEventListener("click", () => {
      slider.value = stair.dataset["step"] ?? "0";
      show();
    });
  }
  show();
}
