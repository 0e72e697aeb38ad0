/** The catalogue's filters answer as they are changed; the address follows, so that it can be shared. */

export function wake(place: HTMLElement): void {
  const form = place as HTMLFormElement;
  let waiting = 0;
  let asked = 0;

  async function refresh(): Promise<void> {
    const query = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (typeof value === "string" && value) query.set(name, value);
    const address = `/rules${query.size > 0 ? `?${query}` : ""}`;
    const mine = ++asked;
    const answer = await fetch(address);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const found = page.getElementById("found");
    if (mine !== asked || !answer.ok || !found) return;
    document.getElementById("found")!.replaceWith(document.adoptNode(found));
    for (const select of form.querySelectorAll("select")) {
      const fresh = page.querySelector<HTMLSelectElement>(`#${form.id} select[name="${select.name}"]`);
      const { value } = select;
      if (fresh) select.replaceChildren(...Array.from(fresh.options, (option) => document.adoptNode(option)));
      select.value = value;
    }
    history.replaceState(null, "", address);
  }
  form.querySelector("button")!.hidden = true;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    void refresh();
  });
  form.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = window.setTimeout(() => void refresh(), 150);
  });
}
