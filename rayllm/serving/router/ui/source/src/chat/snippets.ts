/** A request as code. */

import { BASE } from "../api/client";

// The parameters of OpenAI's client; others go into `extra_body`.
const OPENAI = new Set(
  ("model messages stream stream_options temperature top_p max_tokens max_completion_tokens seed frequency_penalty presence_penalty " +
    "stop tools tool_choice parallel_tool_calls response_format logprobs top_logprobs logit_bias user reasoning_effort metadata n").split(" "),
);

export function asCurl(body: Record<string, unknown>, hasKey: boolean): string {
  const key = hasKey ? ` \\\n  -H "authorization: Bearer $OPENAI_API_KEY"` : "";
  return `curl -N ${BASE}/v1/chat/completions${key} \\\n  -H 'content-type: application/json' \\\n  -d '${JSON.stringify(body, null, 2).replaceAll("'", `'\\''`)}'\n`;
}

export function asPython(body: Record<string, unknown>, hasKey: boolean): string {
  const entries = Object.entries(body);
  const extra = Object.fromEntries(entries.filter(([name]) => !OPENAI.has(name)));
  const parameters = entries.filter(([name]) => OPENAI.has(name)).map(([name, value]) => `    ${name}=${literal(value, 1)},\n`);
  if (Object.keys(extra).length) parameters.push(`    extra_body=${literal(extra, 1)},\n`);
  return [
    ...(hasKey ? ["import os\n\n"] : []),
    "from openai import OpenAI\n\n",
    `client = OpenAI(base_url="${BASE}/v1", api_key=${hasKey ? 'os.environ["OPENAI_API_KEY"]' : '"none"'})\n`,
    `stream = client.chat.completions.create(\n${parameters.join("")})\n`,
    "for chunk in stream:\n    if chunk.choices and chunk.choices[0].delta.content:\n",
    '        print(chunk.choices[0].delta.content, end="", flush=True)\nprint()\n',
  ].join("");
}

/** A value of JSON as Python writes it. */
function literal(value: unknown, depth: number): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const entries = Array.isArray(value)
    ? value.map((each) => literal(each, depth + 1))
    : Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${literal(each, depth + 1)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const line = `${open}${entries.join(", ")}${close}`;
  if (line.length <= 88 - 4 * depth) return line;
  const indent = "    ".repeat(depth);
  return `${open}\n${entries.map((entry) => `${indent}    ${entry},\n`).join("")}${indent}${close}`;
}
