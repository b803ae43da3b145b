/** Numbers and times as people read them. */

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const ONE = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export function count(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : WHOLE.format(value);
}

export function rate(value: number | null): string {
  return value === null ? "–" : value >= 100 ? WHOLE.format(value) : ONE.format(value);
}

export function seconds(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${value < 0.01 ? (value * 1000).toFixed(1) : Math.round(value * 1000)} ms`;
  return value < 60 ? `${value.toFixed(2)} s` : `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}

export function percent(value: number | null): string {
  return value === null ? "–" : `${(100 * value).toFixed(value && value < 0.1 ? 1 : 0)} %`;
}

export function clock(created: number): string {
  return new Date(created * 1000).toLocaleTimeString("en-GB");
}
