import { placed } from "./dot";
import type { Question } from "./layout";

addEventListener("message", (event: MessageEvent<Question>) => {
  placed(event.data).then(
    (found) => postMessage(found),
    (error: unknown) => postMessage(String(error)),
  );
});
