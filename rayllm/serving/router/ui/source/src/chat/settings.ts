/** What a person sets for a chat, as text of its fields; "" leaves the model's default. */

export interface Settings {
  system: string;
  temperature: string;
  topP: string;
  maxTokens: string;
  seed: string;
  topK: string;
  minP: string;
  frequencyPenalty: string;
  presencePenalty: string;
  repetitionPenalty: string;
  stop: string;
  tools: string;
  toolChoice: string;
  schema: string;
  extra: string;
}

export const DEFAULTS: Settings = {
  system: "",
  temperature: "",
  topP: "",
  maxTokens: "",
  seed: "",
  topK: "",
  minP: "",
  frequencyPenalty: "",
  presencePenalty: "",
  repetitionPenalty: "",
  stop: "",
  tools: "",
  toolChoice: "auto",
  schema: "",
  extra: "",
};

/** A number: its field in requests, its bounds, and whether it is whole. */
export interface Numeric {
  name: keyof Settings;
  field: string;
  label: string;
  hint: string;
  min: number;
  max: number;
  whole?: boolean;
}

export const NUMBERS: readonly Numeric[] = [
  { name: "temperature", field: "temperature", label: "Temperature", hint: "0 – 2", min: 0, max: 2 },
  { name: "topP", field: "top_p", label: "Top p", hint: "0 – 1", min: 0, max: 1 },
  { name: "maxTokens", field: "max_tokens", label: "Max tokens", hint: "model’s limit", min: 1, max: 1e9, whole: true },
  { name: "seed", field: "seed", label: "Seed", hint: "random", min: -9007199254740991, max: 9007199254740991, whole: true },
];

export const MORE_NUMBERS: readonly Numeric[] = [
  { name: "topK", field: "top_k", label: "Top k", hint: "off", min: -1, max: 1e9, whole: true },
  { name: "minP", field: "min_p", label: "Min p", hint: "0 – 1", min: 0, max: 1 },
  { name: "frequencyPenalty", field: "frequency_penalty", label: "Frequency penalty", hint: "-2 – 2", min: -2, max: 2 },
  { name: "presencePenalty", field: "presence_penalty", label: "Presence penalty", hint: "-2 – 2", min: -2, max: 2 },
  { name: "repetitionPenalty", field: "repetition_penalty", label: "Repetition penalty", hint: "1", min: 0.01, max: 100 },
];

/** What is wrong with each field that cannot be sent. */
export type Faults = Partial<Record<keyof Settings, string>>;

/** The fields of requests that settings make, and what is wrong with the others. */
export function fieldsOf(settings: Settings): { fields: Record<string, unknown>; faults: Faults } {
  const fields: Record<string, unknown> = {};
  const faults: Faults = {};
  for (const number of [...NUMBERS, ...MORE_NUMBERS]) {
    const text = settings[number.name].trim();
    if (!text) continue;
    const value = Number(text);
    if (!Number.isFinite(value) || value < number.min || value > number.max || (number.whole && !Number.isInteger(value))) {
      const bounds = number.max >= 1e9 ? `from ${number.min}` : `from ${number.min} to ${number.max}`;
      faults[number.name] = `${number.label} must be a ${number.whole ? "whole " : ""}number ${bounds}.`;
    } else fields[number.field] = value;
  }
  const stops = settings.stop.split("\n").filter(Boolean);
  if (stops.length) fields.stop = stops;
  parse(settings, "tools", faults, (value) => {
    const tools = Array.isArray(value) ? value : [value];
    for (const tool of tools) {
      const name = (tool as { function?: { name?: unknown } } | null)?.function?.name;
      if (typeof name !== "string") return 'each tool needs `{"type": "function", "function": {"name": …}}`';
    }
    if (!tools.length) return null;
    fields.tools = tools;
    fields.tool_choice = settings.toolChoice;
    return null;
  });
  parse(settings, "schema", faults, (value) => {
    if (!isObject(value)) return "a schema is a JSON object";
    // A whole `response_format` may be pasted, too.
    fields.response_format =
      typeof value.type === "string" && /^json_(schema|object)$/.test(value.type)
        ? value
        : { type: "json_schema", json_schema: { name: "answer", schema: value, strict: true } };
    return null;
  });
  parse(settings, "extra", faults, (value) => {
    if (!isObject(value)) return "write a JSON object of request fields";
    const own = ["model", "messages", "stream", "stream_options"].find((name) => name in value);
    if (own) return `the page itself sets \`${own}\`; leave it out`;
    if (typeof value.n === "number" && value.n > 1) return "the page shows one answer; leave `n` out";
    Object.assign(fields, value);
    return null;
  });
  return { fields, faults };
}

function parse(settings: Settings, name: "tools" | "schema" | "extra", faults: Faults, use: (value: unknown) => string | null): void {
  const text = settings[name].trim();
  if (!text) return;
  let fault: string | null;
  try {
    fault = use(JSON.parse(text));
  } catch (error) {
    fault = `this is not JSON: ${(error as Error).message}`;
  }
  if (fault) faults[name] = `${fault[0]?.toUpperCase()}${fault.slice(1)}.`;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
