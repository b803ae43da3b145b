/** Prometheus' text format. https://prometheus.io/docs/instrumenting/exposition_formats/ */

export interface Sample {
  labels: Record<string, string>;
  value: number;
}

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

export class Metrics {
  private readonly samples = new Map<string, Sample[]>();

  /** Keeps the series that `names` lists. */
  constructor(page: string, names: readonly string[]) {
    const wanted = new Set(names);
    for (const line of page.split("\n")) {
      if (line.startsWith("#")) continue;
      const [, name = "", labels = "", value = ""] = SAMPLE.exec(line) ?? [];
      if (!wanted.has(name)) continue;
      const found = this.samples.get(name) ?? [];
      found.push({ labels: parseLabels(labels), value: Number(value) });
      this.samples.set(name, found);
    }
  }

  of(name: string, labels: Record<string, string> = {}): Sample[] {
    const asked = Object.entries(labels);
    return (this.samples.get(name) ?? []).filter((each) => asked.every(([label, value]) => each.labels[label] === value));
  }

  /** The sum of a series; null if there is none. */
  sum(name: string, labels: Record<string, string> = {}): number | null {
    const found = this.of(name, labels);
    return found.length ? found.reduce((total, each) => total + each.value, 0) : null;
  }

  max(name: string, labels: Record<string, string> = {}): number | null {
    const found = this.of(name, labels);
    return found.length ? Math.max(...found.map((each) => each.value)) : null;
  }
}

function parseLabels(text: string): Record<string, string> {
  const labels: Record<string, string> = {};
  for (const [, name = "", value = ""] of text.matchAll(LABEL)) {
    labels[name] = value.replace(/\\(.)/g, (_, escaped: string) => (escaped === "n" ? "\n" : escaped));
  }
  return labels;
}
