/** A conversation with one model: its turns, and the answer that is being written. */

import { ApiError, call } from "../api/client";
import { eventData } from "../api/events";
import { sent } from "../api/sent";

export interface Picture {
  name: string;
  /** A `data:` URL. */
  url: string;
}

export interface UserTurn {
  role: "user";
  text: string;
  pictures: Picture[];
}

export interface ToolCall {
  id: string;
  name: string;
  arguments: string;
  /** What the person says that the tool returned. */
  result: string;
}

export interface Answer {
  role: "assistant";
  model: string;
  text: string;
  reasoning: string;
  calls: ToolCall[];
  state: "waiting" | "streaming" | "done" | "stopped" | "failed";
  finishReason: string;
  error: ApiError | null;
  requestId: string;
  promptTokens: number | null;
  tokens: number | null;
  /** Milliseconds of `performance.now()`; 0 is not yet. */
  startedAt: number;
  firstAt: number;
  endedAt: number;
}

export type Turn = UserTurn | Answer;

interface Chunk {
  error?: { message?: string; code?: string | null };
  choices?: { index: number; delta?: Delta; finish_reason?: string | null }[];
  usage?: { prompt_tokens?: number; completion_tokens?: number } | null;
}

interface Delta {
  content?: string | null;
  reasoning?: string | null;
  reasoning_content?: string | null;
  tool_calls?: { index: number; id?: string | null; function?: { name?: string | null; arguments?: string | null } }[] | null;
}

/** The messages that an API of chats takes. */
export function messagesOf(turns: readonly Turn[], system: string): object[] {
  const messages: object[] = system.trim() ? [{ role: "system", content: system }] : [];
  for (const turn of turns) {
    if (turn.role === "user") {
      const images = turn.pictures.map((picture) => ({ type: "image_url", image_url: { url: picture.url } }));
      messages.push({ role: "user", content: images.length ? [...images, { type: "text", text: turn.text }] : turn.text });
    } else if (turn.text || turn.calls.length) {
      const calls = turn.calls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } }));
      messages.push({ role: "assistant", content: turn.text || null, ...(calls.length ? { tool_calls: calls } : {}) });
      for (const { id, result } of turn.calls) messages.push({ role: "tool", tool_call_id: id, content: result });
    }
  }
  return messages;
}

/** The body of the request for the next answer. */
export function requestOf(model: string, turns: readonly Turn[], system: string, fields: Record<string, unknown>): Record<string, unknown> {
  return { model, messages: messagesOf(turns, system), ...fields, stream: true, stream_options: { include_usage: true } };
}

export class Conversation {
  turns: Turn[] = [];
  private aborting: AbortController | null = null;
  private readonly listeners = new Set<() => void>();
  private isNotifying = false;

  constructor(public model = "") {}

  /** Call `listener` after changes, at most once a frame; returns a function that stops it. */
  onChange(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  get isBusy(): boolean {
    return this.aborting !== null;
  }

  /** The last turn, if it is an answer. */
  get lastAnswer(): Answer | null {
    const last = this.turns.at(-1);
    return last?.role === "assistant" ? last : null;
  }

  async ask(turn: UserTurn, system: string, fields: Record<string, unknown>): Promise<void> {
    this.turns.push(turn);
    await this.answer(system, fields);
  }

  /** Write the last answer anew. */
  async regenerate(system: string, fields: Record<string, unknown>): Promise<void> {
    if (this.lastAnswer) this.turns.pop();
    await this.answer(system, fields);
  }

  /** Go on after the last answer's calls, of which the results are known. */
  async goOn(system: string, fields: Record<string, unknown>): Promise<void> {
    await this.answer(system, fields);
  }

  stop(): void {
    this.aborting?.abort();
  }

  clear(): void {
    this.stop();
    this.turns = [];
    this.changed();
  }

  changed(): void {
    if (this.isNotifying) return;
    this.isNotifying = true;
    requestAnimationFrame(() => {
      this.isNotifying = false;
      this.listeners.forEach((listener) => listener());
    });
  }

  private async answer(system: string, fields: Record<string, unknown>): Promise<void> {
    const body = requestOf(this.model, this.turns, system, fields);
    const answer: Answer = {
      role: "assistant",
      model: this.model,
      text: "",
      reasoning: "",
      calls: [],
      state: "waiting",
      finishReason: "",
      error: null,
      requestId: "",
      promptTokens: null,
      tokens: null,
      startedAt: performance.now(),
      firstAt: 0,
      endedAt: 0,
    };
    this.turns.push(answer);
    const aborting = (this.aborting = new AbortController());
    this.changed();
    let status = 0;
    let timing = "";
    try {
      const response = await call("/v1/chat/completions", {
        method: "POST",
        headers: { "content-type": "application/json", "x-rayllm-timing": "1" },
        body: JSON.stringify(body),
        signal: aborting.signal,
      });
      status = response.status;
      answer.requestId = response.headers.get("x-request-id") ?? "";
      timing = response.headers.get("server-timing") ?? "";
      await this.read(response, answer);
      answer.state = "done";
    } catch (error) {
      if (aborting.signal.aborted) answer.state = "stopped";
      else {
        answer.state = "failed";
        answer.error = asApiError(error);
        status = answer.error.status || status;
      }
    } finally {
      answer.endedAt = performance.now();
      if (this.aborting === aborting) this.aborting = null;
      if (answer.requestId) sent.add(answer, status, timing);
      this.changed();
    }
  }

  private async read(response: Response, answer: Answer): Promise<void> {
    if (!response.body) return;
    for await (const data of eventData(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data) as Chunk;
      if (chunk.error) throw new ApiError(500, chunk.error.message ?? "The answer broke off.", chunk.error.code ?? null);
      if (chunk.usage) {
        answer.promptTokens = chunk.usage.prompt_tokens ?? null;
        answer.tokens = chunk.usage.completion_tokens ?? null;
      }
      for (const choice of chunk.choices ?? []) {
        if (choice.index !== 0) continue;
        append(answer, choice.delta ?? {});
        if (choice.finish_reason) answer.finishReason = choice.finish_reason;
      }
      this.changed();
    }
    throw new ApiError(0, LOST);
  }
}

const LOST = "The service went away in the middle of the answer. What had arrived by then is above.";

function append(answer: Answer, delta: Delta): void {
  const reasoning = delta.reasoning ?? delta.reasoning_content;
  if (!answer.firstAt && (delta.content || reasoning || delta.tool_calls?.length)) {
    answer.firstAt = performance.now();
    answer.state = "streaming";
  }
  if (delta.content) answer.text += delta.content;
  if (reasoning) answer.reasoning += reasoning;
  for (const part of delta.tool_calls ?? []) {
    const made = (answer.calls[part.index] ??= { id: "", name: "", arguments: "", result: "" });
    if (part.id) made.id = part.id;
    if (part.function?.name) made.name = part.function.name;
    made.arguments += part.function?.arguments ?? "";
  }
}

function asApiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  if (error instanceof SyntaxError) return new ApiError(0, "The service sent something that is not an event of a chat.");
  // The body broke off: a request that gets no reply at all is an `ApiError` already.
  return new ApiError(0, error instanceof TypeError ? LOST : String(error));
}
