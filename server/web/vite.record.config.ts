import { defineConfig } from "vite";

// For Node, once, when the pages are built: record.mjs lays out the gallery with it.
export default defineConfig({
  ssr: { noExternal: true },
  build: { ssr: "src/places.ts", outDir: "node_modules/.record", emptyOutDir: true, target: "node20" },
});
