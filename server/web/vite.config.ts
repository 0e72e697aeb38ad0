import { defineConfig } from "vite";

// The server's templates name static/app/app.js; everything else is found from there.
export default defineConfig({
  base: "/static/app/",
  worker: { format: "es", rollupOptions: { output: { entryFileNames: "[name]-[hash].js" } } },
  build: {
    outDir: "../static/app",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    chunkSizeWarningLimit: 1600, // graphviz, with its WebAssembly inside
    rollupOptions: {
      input: "src/app.ts",
      output: { entryFileNames: "app.js", chunkFileNames: "[name]-[hash].js", assetFileNames: "[name]-[hash][extname]" },
    },
  },
});
