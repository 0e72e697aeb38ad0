/** “Try it” without leaving the page; the server renders the outcome either way. */

export function wake(place: HTMLElement): void {
  const form = place as HTMLFormElement;
  const seed = form.querySelector<HTMLInputElement>("input[name=seed]")!;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    void run();
  });

  async function run(): Promise<void> {
    const answer = await fetch(`${location.pathname}?seed=${encodeURIComponent(seed.value)}`);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const found = page.getElementById("tried") ?? page.querySelector(".problem");
    const shown = document.getElementById("tried")!;
    if (found) shown.replaceChildren(...Array.from(found.childNodes, (node) => document.adoptNode(node)));
    if (answer.ok) seed.value = String((Number(seed.value) + 1) % 1_000_000);
  }
}
