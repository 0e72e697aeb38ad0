/** What `record.mjs` runs under Node: the layout of a comparison as its page shows it first. */

import { type Comparison, crowded, draw } from "./comparison";
import { placed } from "./dot";
import { type Kept, nameOf, questionOf } from "./layout";

export async function kept({ nodes, edges, regions }: Comparison): Promise<Kept | undefined> {
  if (!nodes || !edges || !regions) return undefined;
  const given = { nodes, edges, regions };
  const question = questionOf(draw(given, crowded(given), new Set()));
  return { question: nameOf(question), placed: await placed(question) };
}
