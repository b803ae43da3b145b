/** The requests that this tab has sent, with what the browser has measured of each. */

import type { Answer } from "../chat/conversation";
import { recall, remember } from "./session";

export interface SentRequest {
  id: string;
  /** Seconds since 1970. */
  created: number;
  model: string;
  status: number;
  state: Answer["state"];
  totalS: number;
  firstTokenS: number | null;
  promptTokens: number | null;
  tokens: number | null;
  /** The parts of the time until the reply began, in seconds, which the service told with it. */
  parts: Record<string, number>;
}

const MOST = 200;

class SentRequests {
  list: SentRequest[] = recall<{ list: SentRequest[] }>("sent", { list: [] }).list;

  add(answer: Answer, status: number, timing: string): void {
    const request: SentRequest = {
      id: answer.requestId,
      created: (performance.timeOrigin + answer.startedAt) / 1000,
      model: answer.model,
      status,
      state: answer.state,
      totalS: (answer.endedAt - answer.startedAt) / 1000,
      firstTokenS: answer.firstAt ? (answer.firstAt - answer.startedAt) / 1000 : null,
      promptTokens: answer.promptTokens,
      tokens: answer.tokens,
      parts: partsOf(timing),
    };
    this.list = [request, ...this.list].slice(0, MOST);
    remember("sent", { list: this.list });
  }

  find(id: string): SentRequest | undefined {
    return this.list.find((each) => each.id === id);
  }
}

export const sent = new SentRequests();

/** https://www.w3.org/TR/server-timing/: `name;dur=milliseconds, …` */
export function partsOf(timing: string): Record<string, number> {
  const parts: Record<string, number> = {};
  for (const [, name = "", duration = ""] of timing.matchAll(/([\w-]+);dur=([\d.]+)/g)) parts[name] = Number(duration) / 1000;
  return parts;
}
