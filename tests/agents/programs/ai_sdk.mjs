// An agent on Vercel's AI SDK: node ai_sdk.mjs PROVIDER MODEL new|resumed PROMPT. Its session is in session.json.
import { execSync } from "node:child_process";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [provider, model, mode, prompt] = process.argv.slice(2);
const settings = { baseURL: `${process.env.BASE_URL}/v1`, apiKey: "none", name: "rayllm" };
const models = {
  chat: () => createOpenAICompatible({ ...settings, includeUsage: true })(model),
  responses: () => createOpenAI(settings).responses(model),
  messages: () => createAnthropic(settings)(model),
};

const run = ({ command }) => {
  try {
    return execSync(command, { encoding: "utf8", stdio: "pipe" });
  } catch (error) {
    return `exit code ${error.status}: ${error.stderr}`;
  }
};
const edit = ({ path, old, new: text }) => {
  writeFileSync(path, readFileSync(path, "utf8").replace(old, text));
  return "Edited.";
};
const write = ({ path, text }) => {
  writeFileSync(path, text);
  return "Written.";
};
const a = (description, execute, names) =>
  tool({ description, execute, inputSchema: z.object(Object.fromEntries(names.map((name) => [name, z.string()]))) });
const tools = {
  write: a("Write a file", write, ["path", "text"]),
  run: a("Run a command", run, ["command"]),
  read: a("Read a file", ({ path }) => readFileSync(path, "utf8"), ["path"]),
  edit: a("Replace a text in a file", edit, ["path", "old", "new"]),
};

const session = "session.json";
const messages = mode === "resumed" && existsSync(session) ? JSON.parse(readFileSync(session, "utf8")) : [];
const image = prompt.includes("image.png") ? [{ type: "image", image: readFileSync("image.png") }] : [];
messages.push({ role: "user", content: [{ type: "text", text: prompt }, ...image] });
let failure;
const result = streamText({
  model: models[provider](),
  system: "You are an agent that works in a folder.",
  messages,
  tools,
  stopWhen: stepCountIs(8),
  maxRetries: 0,
  // Responses are not stored, so that their items go with each request.
  providerOptions: { openai: { store: false } },
  onError: ({ error }) => {
    failure = error;
  },
});
for await (const text of result.textStream) process.stdout.write(text);
if (failure) throw failure;
messages.push(...(await result.response).messages);
writeFileSync(session, JSON.stringify(messages));
