/** Calls of the API that serves this page. */

import { key } from "./session";

/** The service's address, with its route prefix: the page's own, without `/ui`. */
export const BASE = location.origin + location.pathname.replace(/\/ui\/?$/, "");

/** An answer that is an error, or none at all (status 0). */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly code: string | null = null,
    readonly retryAfter: number | null = null,
    readonly body: unknown = null,
  ) {
    super(message);
  }
}

/** Whether the service says that it will not answer this, however often it is asked. */
export function isRefusal(error: unknown): boolean {
  return error instanceof ApiError && (error.status === 401 || error.status === 403);
}

export function headers(): Record<string, string> {
  return key() ? { authorization: `Bearer ${key()}` } : {};
}

/** Send a request; anything but a success is an `ApiError`. */
export async function call(path: string, init: RequestInit = {}): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(BASE + path, { ...init, headers: { ...headers(), ...init.headers }, credentials: "same-origin" });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new ApiError(0, `The service at ${BASE} does not answer.`);
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

export async function getJson<T>(path: string, signal?: AbortSignal): Promise<T> {
  const response = await call(path, signal ? { signal } : {});
  return (await response.json()) as T;
}

async function errorOf(response: Response): Promise<ApiError> {
  const after = Number(response.headers.get("retry-after"));
  const retryAfter = Number.isFinite(after) && after > 0 ? after : null;
  let body: unknown = null;
  try {
    body = await response.json();
  } catch {
    // A proxy's page, or nothing.
  }
  const error = (body as { error?: { message?: unknown; code?: unknown } } | null)?.error;
  const message = typeof error?.message === "string" ? error.message : `The service answered ${response.status} ${response.statusText}.`;
  return new ApiError(response.status, message, typeof error?.code === "string" ? error.code : null, retryAfter, body);
}

export interface Model {
  id: string;
  root: string | null;
  parent: string | null;
  max_model_len: number | null;
  endpoints?: string[] | null;
  input_modalities?: string[] | null;
}

/** Whether a model takes part in chats, as far as is known. */
export function chats(model: Model): boolean {
  return !model.endpoints || model.endpoints.includes("/v1/chat/completions");
}

/** Whether a model sees images, as far as is known. */
export function sees(model: Model | undefined): boolean {
  return model?.input_modalities?.includes("image") ?? false;
}

export async function listModels(signal?: AbortSignal): Promise<Model[]> {
  return (await getJson<{ data: Model[] }>("/v1/models", signal)).data;
}

export interface Readiness {
  ready: boolean;
  message: string;
  phases: Record<string, string>;
}

/** `GET /ready`, which answers 503 with the same phases while a model is starting. */
export async function readiness(signal?: AbortSignal): Promise<Readiness> {
  try {
    const { phases } = await getJson<{ phases: Record<string, string> }>("/ready", signal);
    return { ready: true, message: "", phases };
  } catch (error) {
    const phases = error instanceof ApiError ? (error.body as { phases?: Record<string, string> } | null)?.phases : undefined;
    if (!(error instanceof ApiError) || !phases) throw error;
    return { ready: false, message: error.message, phases };
  }
}

export interface RequestRecord {
  id: string;
  created: number;
  key: string;
  endpoint: string;
  model: string;
  adapter: string;
  status: number;
  error: string | null;
  finish_reason: string | null;
  total_s: number;
  first_token_s: number | null;
  parts: Record<string, number>;
  prompt_tokens: number;
  cached_tokens: number;
  completion_tokens: number;
  replica: string;
  choice: string;
  explanation: string;
}

export function findRequest(id: string, signal?: AbortSignal): Promise<RequestRecord> {
  return getJson(`/v1/requests/${encodeURIComponent(id)}`, signal);
}

export async function lastRequests(limit: number, signal?: AbortSignal): Promise<RequestRecord[]> {
  return (await getJson<{ data: RequestRecord[] }>(`/v1/requests?limit=${limit}`, signal)).data;
}

export type UsageRow = Record<string, string | number>;

export interface Usage {
  since: string;
  until: string;
  data: UsageRow[];
}

export function usage(groups: string[], since: string, until: string, signal?: AbortSignal): Promise<Usage> {
  const query = new URLSearchParams({ group_by: groups.join(",") });
  if (since) query.set("since", since);
  if (until) query.set("until", until);
  return getJson(`/v1/usage?${query}`, signal);
}

/** What a key may do: `GET /v1/keys`. */
export interface ApiKey {
  name: string;
  tenant: string;
  status: "active" | "expired";
  models: string[] | null;
  requests_per_minute: number | null;
  tokens_per_minute: number | null;
  tokens_per_day: number | null;
  max_concurrent: number | null;
  priority: string;
  expires: string | null;
  labels: Record<string, string>;
  admin: boolean;
}

export interface KeyPage {
  data: ApiKey[];
  has_more: boolean;
}

export function listKeys(limit: number, signal?: AbortSignal): Promise<KeyPage> {
  return getJson(`/v1/keys?limit=${limit}`, signal);
}

export async function metricsPage(signal?: AbortSignal): Promise<string> {
  return (await call("/metrics", signal ? { signal } : {})).text();
}
