// Bundles `src` into `../static`, under names that change with the content. `make ui` runs it.
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, relative, sep } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const HERE = dirname(fileURLToPath(import.meta.url));
const STATIC = join(HERE, "..", "static");

// What a build is made of. tests/unit/serving/router/ui computes the same digest.
function sources() {
  const found = readdirSync(HERE, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => relative(HERE, join(entry.parentPath, entry.name)).split(sep).join("/"))
    .filter((name) => !name.startsWith("node_modules/"));
  return found.sort();
}

function digest() {
  const hash = createHash("sha256");
  for (const name of sources()) hash.update(`${name}\0`).update(readFileSync(join(HERE, name))).update("\0");
  return hash.digest("hex");
}

function licenses(inputs) {
  const names = new Set();
  for (const input of Object.keys(inputs)) {
    const found = /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input);
    if (found) names.add(found[1]);
  }
  return [...names].sort().map((name) => {
    const folder = join(HERE, "node_modules", name);
    const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const file = readdirSync(folder).find((each) => /^licen[cs]e/i.test(each));
    return `${name} ${version} (${license})\n\n${file ? readFileSync(join(folder, file), "utf8").trim() : ""}\n`;
  });
}

rmSync(STATIC, { recursive: true, force: true });
mkdirSync(STATIC, { recursive: true });
const { metafile } = await build({
  absWorkingDir: HERE,
  entryPoints: { app: "src/main.tsx", icon: "src/icon.svg" },
  outdir: STATIC,
  entryNames: "[name]-[hash]",
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  loader: { ".svg": "copy" },
  legalComments: "none",
  metafile: true,
});
const built = readdirSync(STATIC);
const named = (ending) => built.find((name) => name.endsWith(ending));
const index = readFileSync(join(HERE, "src", "index.html"), "utf8")
  .replace("app.js", named(".js"))
  .replace("app.css", named(".css"))
  .replace("icon.svg", named(".svg"));
writeFileSync(join(STATIC, "index.html"), index);
writeFileSync(join(STATIC, "LICENSES.txt"), licenses(metafile.inputs).join(`\n${"-".repeat(80)}\n\n`));
const sums = Object.fromEntries(
  readdirSync(STATIC).sort().map((name) => [name, createHash("sha256").update(readFileSync(join(STATIC, name))).digest("hex")]),
);
writeFileSync(join(STATIC, "build.json"), `${JSON.stringify({ sources: digest(), files: sums }, null, 2)}\n`);
for (const name of readdirSync(STATIC)) console.log(`${name} ${readFileSync(join(STATIC, name)).length}`);
