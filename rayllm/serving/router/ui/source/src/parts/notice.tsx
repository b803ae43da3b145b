import type { ComponentChildren } from "preact";

import { ApiError } from "../api/client";

/** Something that went wrong, or that a person should know, with what can be done about it. */
export function Notice({ kind, children, action }: { kind: "error" | "info" | "wait"; children: ComponentChildren; action?: ComponentChildren }) {
  return (
    <div class={`notice ${kind}`} role={kind === "error" ? "alert" : "status"}>
      {kind === "wait" && <span class="spinner" aria-hidden="true" />}
      <div class="notice-text">{children}</div>
      {action && <div class="notice-action">{action}</div>}
    </div>
  );
}

/** A sentence in which backticks mark code, as the service's errors have them. */
export function Prose({ text }: { text: string }) {
  return <>{text.split("`").map((part, index) => (index % 2 ? <code key={index}>{part}</code> : part))}</>;
}

/** What an error means for the person at the page. */
export function explained(error: unknown): string {
  if (!(error instanceof ApiError)) return String(error);
  const wait = error.retryAfter ? ` Try again in ${error.retryAfter} s.` : "";
  switch (error.status) {
    case 401:
      return `The service does not accept the key (401). ${error.message}`;
    case 413:
      return `The request is too large (413). ${error.message}`;
    case 429:
      return `A limit has been reached (429). ${error.message}${wait}`;
    case 0:
      return error.message;
    default:
      return `${error.message}${error.status ? ` (${error.status})` : ""}${wait}`;
  }
}
