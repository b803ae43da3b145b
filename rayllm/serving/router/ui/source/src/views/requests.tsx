import { useState } from "preact/hooks";

import { ApiError, findRequest, isRefusal, lastRequests, type RequestRecord } from "../api/client";
import { sent, type SentRequest } from "../api/sent";
import { clock, count, seconds } from "../parts/format";
import { Notice, Prose, explained } from "../parts/notice";
import { usePolled } from "../parts/poll";

const SHOWN = 50;
// Milliseconds.
const PERIOD = 5000;
const SOON = 1000;
const RARELY = 60_000;

/** What each part of a request's time is, in order. `rayllm explain` says the same. */
const PARTS: Record<string, string> = {
  router: "reading and routing it",
  hooks: "policy hooks",
  guards: "guards",
  lost: "replicas that did not answer",
  wait: "waiting for a replica",
  transfer: "between router and replica",
  adapter: "loading the adapter",
  prepare: "template, tokens and schema",
  queue: "the engine’s queue",
  prefill: "reading the prompt",
  decode: "generating",
  deliver: "finishing and sending the reply",
  rest: "the rest, until the browser had it all",
};

/** A request, as far as is known: by the service, or by what the browser has measured. */
interface Row {
  id: string;
  created: number;
  model: string;
  key: string;
  status: number;
  totalS: number;
  firstTokenS: number | null;
  tokens: string;
  parts: Record<string, number>;
  explanation: string;
  replica: string;
  isMeasuredHere: boolean;
}

export function Requests({ detail }: { detail: string }) {
  const [wants, setWants] = useState<"own" | "all">("own");
  const all = usePolled((signal) => lastRequests(SHOWN, signal), (_, failure) => (isRefusal(failure) ? RARELY : PERIOD), wants === "all");
  const rows = wants === "all" ? (all.value ?? []).map(ofService) : sent.list.slice(0, SHOWN).map(ofBrowser);
  const selected = decoded(detail);
  return (
    <section class="view" aria-labelledby="requests-title">
      <h1 id="requests-title">Requests</h1>
      <p class="lead">Recent requests, and where the time of each went. Nothing of what was written is kept.</p>
      <div class="choices" role="group" aria-label="Which requests">
        <button type="button" class="small" aria-pressed={wants === "own"} onClick={() => setWants("own")}>
          Of this tab
        </button>
        <button type="button" class="small" aria-pressed={wants === "all"} onClick={() => setWants("all")}>
          Of everyone
        </button>
      </div>
      {selected && <Detail key={selected} id={selected} />}
      {wants === "all" && all.error !== null && <Notice kind={isForbidden(all.error) ? "info" : "error"}><Prose text={explained(all.error)} /></Notice>}
      {rows.length ? (
        <div class="scroll" tabIndex={0} role="region" aria-label="List of requests">
          <table class="wide">
            <thead>
              <tr>
                <th scope="col">Time</th>
                <th scope="col">Model</th>
                {wants === "all" && <th scope="col">Key</th>}
                <th scope="col">Status</th>
                <th scope="col" class="right">Tokens</th>
                <th scope="col" class="right">First token</th>
                <th scope="col" class="right">Total</th>
                <th scope="col">Where it went</th>
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <tr key={row.id} class={row.id === selected ? "selected" : ""}>
                  <td>
                    <a href={`#requests/${encodeURIComponent(row.id)}`} aria-label={`Request at ${clock(row.created)}`}>
                      {clock(row.created)}
                    </a>
                  </td>
                  <td>{row.model || "–"}</td>
                  {wants === "all" && <td>{row.key || "–"}</td>}
                  <td>
                    <Status status={row.status} />
                  </td>
                  <td class="right">{row.tokens}</td>
                  <td class="right">{seconds(row.firstTokenS)}</td>
                  <td class="right">{seconds(row.totalS)}</td>
                  <td>
                    <Bar parts={row.parts} />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : (
        !(wants === "all" && (all.error !== null || all.value === null)) && <p class="empty">{wants === "own" ? "This tab has sent no request yet: ask a model something in the chat." : "No requests yet."}</p>
      )}
    </section>
  );
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function isForbidden(error: unknown): boolean {
  return error instanceof ApiError && error.status === 403;
}

function Detail({ id }: { id: string }) {
  const own = sent.find(id);
  // The router learns of the end of a reply a little after the browser.
  const { value, error } = usePolled((signal) => findRequest(id, signal), (found, failure) => (found || isRefusal(failure) ? RARELY : SOON));
  const row = value ? ofService(value) : own ? ofBrowser(own) : null;
  if (!row) return <Notice kind={error ? "info" : "wait"}><Prose text={error ? explained(error) : "Looking for the request."} /></Notice>;
  const parts = Object.entries(row.parts).filter(([, spent]) => spent > 0);
  return (
    <article class="card detail" aria-label={`Request ${row.id}`}>
      <header>
        <h2>
          {row.model} <span class="muted">at {clock(row.created)}</span>
        </h2>
        <Status status={row.status} />
      </header>
      <p>{row.explanation || summary(row)}</p>
      <Bar parts={row.parts} isLarge />
      <table class="parts">
        <thead class="off-screen">
          <tr>
            <th scope="col">Part</th>
            <th scope="col">Time</th>
            <th scope="col">Share</th>
          </tr>
        </thead>
        <tbody>
          {parts.map(([name, spent]) => (
            <tr key={name}>
              <th scope="row">
                <span class={`swatch part-${name}`} aria-hidden="true" />
                {PARTS[name] ?? name}
              </th>
              <td class="right">{seconds(spent)}</td>
              <td class="right muted">{row.totalS ? `${Math.round((100 * spent) / row.totalS)} %` : "–"}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <p class="remark">
        <code>{row.id}</code>
        {row.replica && (
          <>
            {" "}
            on <code>{row.replica}</code>
          </>
        )}
      </p>
      {row.isMeasuredHere && (
        <p class="remark">
          Measured by the browser, and by what the reply told.
          {isForbidden(error) && <Prose text=" The service shows its own record to holders of keys and to administrators (`router.admin_keys`)." />}
        </p>
      )}
    </article>
  );
}

function summary(row: Row): string {
  const [name, spent] = Object.entries(row.parts).reduce((most, part) => (part[1] > most[1] ? part : most), ["", 0]);
  return name ? `${seconds(spent)} of ${seconds(row.totalS)} went into ${PARTS[name] ?? name}.` : `It took ${seconds(row.totalS)}.`;
}

function ofService(record: RequestRecord): Row {
  return {
    id: record.id,
    created: record.created,
    model: [record.model, record.adapter].filter(Boolean).join(":"),
    key: record.key,
    status: record.status,
    totalS: record.total_s,
    firstTokenS: record.first_token_s,
    tokens: `${count(record.prompt_tokens)} + ${count(record.completion_tokens)}`,
    parts: record.parts,
    explanation: record.explanation,
    replica: record.replica,
    isMeasuredHere: false,
  };
}

function ofBrowser(request: SentRequest): Row {
  const told = Object.entries(request.parts).filter(([name, spent]) => name in PARTS && spent > 0);
  const known = told.reduce((total, [, spent]) => total + spent, 0);
  const parts = Object.fromEntries(told);
  if (request.firstTokenS !== null) parts.decode = Math.max(0, request.totalS - request.firstTokenS);
  const rest = request.totalS - known - (parts.decode ?? 0);
  if (rest > 0) parts.rest = rest;
  return {
    id: request.id,
    created: request.created,
    model: request.model,
    key: "",
    status: request.status,
    totalS: request.totalS,
    firstTokenS: request.firstTokenS,
    tokens: request.tokens === null ? "–" : `${count(request.promptTokens)} + ${count(request.tokens)}`,
    parts,
    explanation: "",
    replica: "",
    isMeasuredHere: true,
  };
}

function Status({ status }: { status: number }) {
  const text = status === 499 ? "499 left" : status ? String(status) : "none";
  return <span class={`badge ${status === 200 ? "good" : status >= 500 || !status ? "bad" : "wait"}`}>{text}</span>;
}

/** The parts of a request's time, side by side. */
function Bar({ parts, isLarge }: { parts: Record<string, number>; isLarge?: boolean }) {
  const spent = Object.keys(PARTS).map((name) => [name, parts[name] ?? 0] as const).filter(([, part]) => part > 0);
  const total = spent.reduce((sum, [, part]) => sum + part, 0) || 1;
  let left = 0;
  const label = spent.map(([name, part]) => `${PARTS[name]}: ${seconds(part)}`).join(", ");
  return (
    <svg class={`bar-of-parts ${isLarge ? "large" : ""}`} viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" aria-label={label || "unknown"}>
      <rect class="track" width="1000" height="10" />
      {spent.map(([name, part]) => {
        const width = (1000 * part) / total;
        left += width;
        return <rect key={name} class={`part-${name}`} x={left - width} width={width} height="10" />;
      })}
    </svg>
  );
}
