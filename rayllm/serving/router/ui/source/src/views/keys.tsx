import { useState } from "preact/hooks";

import { ApiError, isRefusal, listKeys, usage, type ApiKey, type KeyPage } from "../api/client";
import { count } from "../parts/format";
import { Notice, Prose, explained } from "../parts/notice";
import { usePolled } from "../parts/poll";

const MOST = 1000;
// Milliseconds.
const PERIOD = 10_000;
const RARELY = 60_000;
const LIMITS = {
  requests_per_minute: "requests/min",
  tokens_per_minute: "tokens/min",
  tokens_per_day: "tokens/day",
  max_concurrent: "at once",
} as const;

interface Known {
  page: KeyPage;
  /** Tokens of the last 30 days, by the key's name; null if the ledger cannot be read. */
  tokens: Map<string, number> | null;
}

async function load(signal: AbortSignal): Promise<Known> {
  const [page, tokens] = await Promise.all([listKeys(MOST, signal), tokensByKey(signal).catch(() => null)]);
  return { page, tokens };
}

async function tokensByKey(signal: AbortSignal): Promise<Map<string, number>> {
  const { data } = await usage(["key"], "", "", signal);
  return new Map(data.map((row) => [String(row.key), Number(row.prompt_tokens) + Number(row.completion_tokens)]));
}

export function Keys() {
  const [wanted, setWanted] = useState("");
  const { value, error } = usePolled(load, (_, failure) => (isRefusal(failure) ? RARELY : PERIOD));
  const isForbidden = error instanceof ApiError && error.status === 403;
  return (
    <section class="view" aria-labelledby="keys-title">
      <h1 id="keys-title">Keys</h1>
      <p class="lead">
        What each key may do, and what it has used in the last 30 days. A key sees itself, an administrator all keys. <code>rayllm keys</code> creates,
        rotates and revokes them; the service follows within seconds.
      </p>
      {error !== null && (
        <Notice kind={isForbidden ? "info" : "error"}>
          <Prose text={explained(error) + (isForbidden ? " With `router.keys`, each key sees itself here." : "")} />
        </Notice>
      )}
      {value ? (
        <>
          <div class="filters">
            <label class="field">
              <span>Find</span>
              <input type="search" size={32} value={wanted} placeholder="Name, tenant, model or label" onInput={(event) => setWanted(event.currentTarget.value)} />
            </label>
          </div>
          {value.page.has_more && <p class="empty">These are the first {count(MOST)} keys of the file.</p>}
          <Table keys={value.page.data.filter((each) => matches(each, wanted))} tokens={value.tokens} />
        </>
      ) : (
        error === null && <Notice kind="wait">Reading the keys.</Notice>
      )}
    </section>
  );
}

function Table({ keys, tokens }: { keys: ApiKey[]; tokens: Known["tokens"] }) {
  if (!keys.length) return <p class="empty">There are no such keys.</p>;
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="List of keys">
      <table class="wide">
        <thead>
          <tr>
            <th scope="col">Key</th>
            <th scope="col">Status</th>
            <th scope="col">Tenant</th>
            <th scope="col">Models</th>
            <th scope="col">Limits</th>
            <th scope="col">Class</th>
            <th scope="col">Labels</th>
            <th scope="col" class="right">
              Tokens
            </th>
          </tr>
        </thead>
        <tbody>
          {keys.map((each) => (
            <tr key={each.name}>
              <th scope="row">{each.name}</th>
              <td>
                <span class={`badge ${each.status === "active" ? "good" : "bad"}`}>{each.status}</span>{" "}
                {each.admin && <span class="badge">administrator</span>}
                {each.expires && <div class="muted">until {each.expires.slice(0, 16).replace("T", " ")} UTC</div>}
              </td>
              <td>{each.tenant}</td>
              <td>{each.models?.join(", ") ?? "all"}</td>
              <td>{limitsOf(each)}</td>
              <td>{each.priority}</td>
              <td>{labelsOf(each).join(", ") || "–"}</td>
              <td class="right">{tokens ? count(tokens.get(each.name) ?? 0) : "–"}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function limitsOf(each: ApiKey): string {
  const names = Object.keys(LIMITS) as (keyof typeof LIMITS)[];
  return (
    names
      .filter((name) => each[name] !== null)
      .map((name) => `${count(each[name])} ${LIMITS[name]}`)
      .join(", ") || "none"
  );
}

function labelsOf(each: ApiKey): string[] {
  return Object.entries(each.labels).map(([name, value]) => `${name}=${value}`);
}

function matches(each: ApiKey, wanted: string): boolean {
  const text = [each.name, each.tenant, each.priority, each.status, ...(each.models ?? []), ...labelsOf(each)].join("\n").toLowerCase();
  return wanted
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}
