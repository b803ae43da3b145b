/** The conversations of this tab, as they were before it was loaded again. They end with the tab. */

import { ApiError } from "../api/client";
import { recall, remember } from "../api/session";
import { Conversation, type Answer, type Turn } from "./conversation";

type SavedTurn = Turn | (Omit<Answer, "error"> & { error: SavedError | null });

interface SavedError {
  status: number;
  message: string;
  code: string | null;
  retryAfter: number | null;
}

interface Saved {
  panes: { model: string; turns: SavedTurn[] }[];
}

/** Save what is there now. An answer that is being written is saved as stopped. */
export function saveConversations(panes: readonly Conversation[]): void {
  const saved: Saved = { panes: panes.map(({ model, turns }) => ({ model, turns: turns.map(savedTurn) })) };
  remember("conversations", saved);
}

/** The conversations that were saved last: one at least, of the model with which the person has talked. */
export function savedConversations(): Conversation[] {
  const fresh = new Conversation(recall("model", { id: "" }).id);
  try {
    const found = recall<Saved>("conversations", { panes: [] }).panes.slice(0, 2).map(restored);
    return found.length ? found : [fresh];
  } catch {
    // An earlier version of the page has saved them in another form.
    return [fresh];
  }
}

function restored({ model, turns }: Saved["panes"][number]): Conversation {
  const conversation = new Conversation(model);
  conversation.turns = turns.map(restoredTurn);
  return conversation;
}

function savedTurn(turn: Turn): SavedTurn {
  if (turn.role === "user") return turn;
  const { error } = turn;
  const isEnded = turn.state !== "waiting" && turn.state !== "streaming";
  return {
    ...turn,
    state: isEnded ? turn.state : "stopped",
    endedAt: isEnded ? turn.endedAt : performance.now(),
    // The message of an error is no field of its own.
    error: error && { status: error.status, message: error.message, code: error.code, retryAfter: error.retryAfter },
  };
}

function restoredTurn(turn: SavedTurn): Turn {
  if (turn.role === "user") return turn;
  const { error } = turn;
  return { ...turn, error: error && new ApiError(error.status, error.message, error.code, error.retryAfter) };
}
